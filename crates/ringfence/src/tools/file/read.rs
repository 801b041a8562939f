//! `file.read`: returns a part of a file, as text whenever it is text, and never more than the
//! client can take.

mod excerpt;

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use encoding_rs::Encoding;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::blocking;
use super::content::{ContentSurvey, FileContent};
use super::{image, mime};
use crate::approval::Granted;
use crate::base::call::{OutputBlock, Prepared, ToolOutput};
use crate::base::clock::format_utc;
use crate::base::{CancelToken, Error, Kind, Result};
use crate::redact::known_secrets;
use crate::tools::limit_docs::{ByteCount, DisplayAmount, ItemCount, ToolLimit};
use crate::tools::{PrepareCx, RunCx, Tool, ToolSpec};
use excerpt::{ExcerptWindow, TextExcerpt};

/// Key in a result's `_meta` under which the file's metadata is stored.
pub const META: &str = "dev.ringfence/file";

/// What the path of a stored output begins with.
const OUTPUT_PREFIX: &str = "output:";
const DEFAULT_LINES: u64 = 2000;
const MAX_BYTES: usize = 256 << 10;
const MIN_BYTES: usize = 64;
/// Reserved for the metadata block and the note, which count against the client's budget as well.
const METADATA_BYTES: usize = 700;
const MAX_IMAGE_BYTES: u64 = 5 << 20;
/// Models see at most this many pixels of an image's longer side.
const MAX_IMAGE_SIDE: u32 = 1568;
/// Files up to this size are read once, so that content and etag belong to the same moment even if
/// the file is being changed.
const MAX_SNAPSHOT_BYTES: u64 = 1 << 20;
/// Attempts to read a larger file that changes while it is being read.
const MAX_ATTEMPTS: usize = 3;

/// Arguments of `file.read`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// Workspace-relative path, or `output:<id>` to read a stored output.
    path: String,
    /// First line, from 1; -20 is the last 20 lines.
    offset: Option<i64>,
    /// Number of lines (2000).
    limit: Option<u64>,
    /// First byte, for very long lines and binary files.
    byte_offset: Option<u64>,
    /// Number of bytes from byte_offset.
    byte_length: Option<u64>,
    /// auto (default), utf-8, base64, or a name such as gbk, shift_jis, utf-16le.
    encoding: Option<String>,
    /// Put `<line>\t` before each line (false).
    line_numbers: Option<bool>,
    /// An etag; if the file still has it, no content is sent.
    if_none_match: Option<String>,
    /// Maximum bytes of text (at most 262144).
    max_bytes: Option<u64>,
}

/// Metadata of a result, as JSON in its second text block (the first one for an image).
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Reply {
    /// Relative to the workspace, symlinks resolved.
    pub path: String,
    /// text, binary, image or unchanged.
    pub kind: &'static str,
    /// Pass it to file.write as if_match, or to file.read as if_none_match.
    pub etag: String,
    pub size: u64,
    pub mtime: String,
    pub mime: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encoding: Option<String>,
    /// The file starts with a byte order mark, which is not part of the text.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub bom: bool,
    /// lf, crlf, mixed or none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eol: Option<&'static str>,
    /// Unknown for very large files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_lines: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub final_newline: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_line: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_line: Option<u64>,
    /// The first byte shown, if bytes were requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub byte_offset: Option<u64>,
    /// Less was returned than requested.
    pub truncated: bool,
    /// The offset at which to continue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_offset: Option<u64>,
    /// The byte_offset at which to continue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_byte_offset: Option<u64>,
    /// Number of lines that were too long to show in full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub long_lines_cut: Option<u64>,
    /// Some bytes are invalid in the encoding and appear as U+FFFD.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub lossy: bool,
    /// Width of an image in pixels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub width: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub height: Option<u32>,
    /// How to see more of an image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// Requested conversion of bytes to text.
#[derive(Debug, Clone, Copy, PartialEq)]
enum TextDecoding {
    Auto,
    Named(&'static Encoding),
    Base64,
}

impl Args {
    fn parse_decoding(&self) -> Result<TextDecoding> {
        match self.encoding.as_deref() {
            None | Some("auto") => Ok(TextDecoding::Auto),
            Some("base64") => Ok(TextDecoding::Base64),
            Some(label) => Encoding::for_label_no_replacement(label.as_bytes()).map(TextDecoding::Named).ok_or_else(|| {
                Error::invalid_arguments("the argument `encoding` is not a known encoding")
                    .with_hint("Use auto, utf-8, base64 or a WHATWG label such as gbk, shift_jis, windows-1252, utf-16le.")
                    .with_fact("argument", "encoding")
            }),
        }
    }

    /// Checks what the schema alone cannot express.
    fn validate(&self) -> Result<TextDecoding> {
        let decoding = self.parse_decoding()?;
        let uses_lines = self.offset.is_some() || self.limit.is_some();
        if uses_lines && (self.byte_offset.is_some() || self.byte_length.is_some()) {
            return Err(Error::invalid_arguments(
                "`offset`/`limit` count lines, `byte_offset`/`byte_length` count bytes: use one pair",
            ));
        }
        if decoding == TextDecoding::Base64 && (uses_lines || self.line_numbers == Some(true)) {
            return Err(Error::invalid_arguments(
                "base64 has no lines: use `byte_offset` and `byte_length`",
            ));
        }
        if self.offset == Some(0) {
            return Err(Error::invalid_arguments(
                "`offset` counts lines from 1, or from the end when negative",
            ));
        }
        Ok(decoding)
    }

    fn max_text_bytes(&self, budget: usize) -> usize {
        let requested = match self.max_bytes {
            Some(bytes) => usize::try_from(bytes).unwrap_or(MAX_BYTES),
            None => budget.saturating_sub(METADATA_BYTES).max(budget / 2),
        };
        requested.clamp(MIN_BYTES, MAX_BYTES)
    }

    fn requested_window(&self) -> ExcerptWindow {
        if self.byte_offset.is_some() || self.byte_length.is_some() {
            ExcerptWindow::Bytes { from: self.byte_offset.unwrap_or(0), length: self.byte_length }
        } else {
            ExcerptWindow::Lines {
                from: self.offset.unwrap_or(1),
                limit: self.limit.unwrap_or(DEFAULT_LINES),
                numbered: self.line_numbers.unwrap_or(false),
                asked: self.limit.is_some(),
            }
        }
    }
}

/// The `file.read` tool.
pub struct FileRead {
    spec: ToolSpec,
}

impl FileRead {
    /// Creates the tool.
    pub fn new() -> Self {
        FileRead {
            spec: ToolSpec {
                lists_output_schema: false,
                ..ToolSpec::from_types::<Args, Reply>(
                    "file.read",
                    "Read a file",
                    "Reads a text file (any encoding), an image or, with encoding base64, any bytes of the \
                 workspace. Returns the text and, as JSON, its etag, size, line range and where to continue. \
                 `output:<id>` reads the stored output of an earlier call.",
                )
            },
        }
    }
}

impl Default for FileRead {
    fn default() -> Self {
        Self::new()
    }
}

impl Tool for FileRead {
    type Args = Args;

    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn limits(&self) -> Vec<ToolLimit> {
        vec![
            ToolLimit {
                subject: "lines",
                default_value: ItemCount(DEFAULT_LINES).format_amount(),
                maximum: "the text of a result".to_owned(),
            },
            ToolLimit::for_text(MAX_BYTES),
            ToolLimit::from_fixed("size of an image shown", ByteCount(MAX_IMAGE_BYTES)),
            ToolLimit::from_fixed(
                "file size for an etag of the content",
                ByteCount(super::content::MAX_HASHED_BYTES),
            ),
            ToolLimit::for_time(self.spec.timeout),
        ]
    }

    fn parse(&self, arguments: &Map<String, Value>, _: &PrepareCx<'_>) -> Result<Args> {
        let args: Args = self.spec.parse_arguments(arguments)?;
        args.validate()?;
        Ok(args)
    }

    async fn run(
        self: Arc<Self>,
        cx: Arc<RunCx>,
        args: Args,
        _call: Granted<Prepared>,
    ) -> Result<ToolOutput> {
        let cancel = cx.control.cancel.clone();
        let is_stored = args.path.starts_with(OUTPUT_PREFIX);
        let workspace = &cx.settings.workspace;
        let opened = (!is_stored).then(|| workspace.open_read_without_waiting(&args.path));
        if let Some(content) = opened.flatten().and_then(FileContent::from_cache) {
            return read_content(content, &args, false, cx.settings.text_budget, &cancel);
        }
        let work = blocking::run_blocking(&cancel, "the read ended unexpectedly", move || {
            let (content, stored) = if is_stored {
                let file = cx.session().outputs.open_output(&args.path)?;
                (FileContent::new(file, args.path.clone(), MAX_SNAPSHOT_BYTES)?, true)
            } else {
                let opened = cx.settings.workspace.open_read(&args.path)?;
                (FileContent::new(opened.file, opened.path, MAX_SNAPSHOT_BYTES)?, false)
            };
            read_content(content, &args, stored, cx.settings.text_budget, &cx.control.cancel)
        });
        work.await
    }
}

/// Reads what `args` ask for. A `is_stored` output is the text of a command and is never treated as
/// a binary file.
fn read_content(
    mut content: FileContent,
    args: &Args,
    is_stored: bool,
    budget: usize,
    cancel: &CancelToken,
) -> Result<ToolOutput> {
    let decoding = args.validate()?;
    let mut attempts_left = MAX_ATTEMPTS;
    loop {
        let mut answer =
            ReadAnswer::from_content(&content, args, decoding, is_stored, budget, cancel)?;
        attempts_left -= 1;
        if !content.has_changed()? {
            return Ok(answer.into_output());
        }
        content.refresh_stat()?;
        if attempts_left == 0 {
            // The file keeps changing. The text was read from it, but the etag must not claim to
            // describe that text.
            answer.reply.etag = content.weak_etag();
            return Ok(answer.into_output());
        }
    }
}

/// Result under construction.
struct ReadAnswer {
    reply: Reply,
    text: String,
    /// Remarks about the text that a model needs to know.
    notes: Vec<String>,
    image_base64: Option<String>,
}

impl ReadAnswer {
    fn from_content(
        content: &FileContent,
        args: &Args,
        decoding: TextDecoding,
        is_stored: bool,
        budget: usize,
        cancel: &CancelToken,
    ) -> Result<ReadAnswer> {
        let named_encoding = match decoding {
            TextDecoding::Named(encoding) => Some(encoding),
            TextDecoding::Auto | TextDecoding::Base64 => None,
        };
        let survey = content.inspect_text(named_encoding, cancel)?;
        let magic = mime::detect_by_content(&survey.head).filter(|_| !is_stored);
        let is_binary =
            named_encoding.is_none() && !is_stored && (survey.format.is_binary || magic.is_some());
        let mut answer = ReadAnswer::with_metadata(content, &survey, magic, is_binary);
        if let Some((width, height)) =
            magic.and_then(|mime| image::image_dimensions(mime, &survey.head))
        {
            (answer.reply.width, answer.reply.height) = (Some(width), Some(height));
        }
        let max_bytes = args.max_text_bytes(budget);
        if args.if_none_match.as_ref() == Some(&survey.etag) {
            answer.reply.kind = "unchanged";
            answer.notes.push("unchanged since it had this etag".to_owned());
        } else if decoding == TextDecoding::Base64 {
            answer.add_base64(content, args, max_bytes)?;
        } else if is_binary
            && magic.is_some_and(mime::is_viewable_image)
            && survey.size <= MAX_IMAGE_BYTES
        {
            answer.add_image(content)?;
        } else if is_binary {
            answer.describe_binary(content, &survey)?;
        } else {
            answer.add_text(content, args, &survey, max_bytes, cancel)?;
        }
        Ok(answer)
    }

    fn with_metadata(
        content: &FileContent,
        survey: &ContentSurvey,
        magic: Option<&'static str>,
        is_binary: bool,
    ) -> ReadAnswer {
        let mime = magic.or_else(|| mime::detect_by_name(&content.path));
        let reply = Reply {
            path: content.path.clone(),
            kind: if is_binary { "binary" } else { "text" },
            etag: survey.etag.clone(),
            size: survey.size,
            mtime: format_utc(content.modified()),
            mime: mime
                .unwrap_or(if is_binary { "application/octet-stream" } else { "text/plain" })
                .to_owned(),
            ..Reply::default()
        };
        ReadAnswer { reply, text: String::new(), notes: Vec::new(), image_base64: None }
    }

    fn add_base64(&mut self, content: &FileContent, args: &Args, max_bytes: usize) -> Result<()> {
        let offset = args.byte_offset.unwrap_or(0);
        let max_raw_bytes = max_bytes / 4 * 3;
        let requested = args
            .byte_length
            .map_or(usize::MAX, |length| usize::try_from(length).unwrap_or(usize::MAX));
        let mut bytes = content.read(offset, max_raw_bytes.min(requested))?;
        let end = offset + bytes.len() as u64;
        self.mask_secrets(content, offset, &mut bytes)?;
        self.text = STANDARD.encode(&bytes);
        self.reply.encoding = Some("base64".to_owned());
        self.reply.byte_offset = Some(offset);
        self.reply.truncated = requested > max_raw_bytes && end < self.reply.size;
        if end < self.reply.size && !bytes.is_empty() {
            self.reply.next_byte_offset = Some(end);
            self.notes.push(format!(
                "base64 of bytes {offset}-{end} of {}; next byte_offset {end}",
                self.reply.size
            ));
        }
        Ok(())
    }

    /// Masks secret values in bytes that are returned as base64 or hex, where later redaction does
    /// not find all of them.
    fn mask_secrets(&mut self, content: &FileContent, offset: u64, bytes: &mut [u8]) -> Result<()> {
        if known_secrets::mask_part(offset, bytes, |position, length| {
            content.read(position, length)
        })? {
            self.notes.push("secret values are shown as `*`".to_owned());
        }
        Ok(())
    }

    fn add_image(&mut self, content: &FileContent) -> Result<()> {
        let mut bytes = content.read(0, usize::try_from(MAX_IMAGE_BYTES).unwrap_or(usize::MAX))?;
        self.mask_secrets(content, 0, &mut bytes)?;
        self.reply.kind = "image";
        self.image_base64 = Some(STANDARD.encode(bytes));
        if self.reply.width.max(self.reply.height).is_some_and(|side| side > MAX_IMAGE_SIDE) {
            self.reply.hint = Some(format!(
                "Details may be lost: models see at most {MAX_IMAGE_SIDE} pixels a side. To see a part: {}",
                self.suggest_resize("-crop 1568x1568+0+0")
            ));
        }
        Ok(())
    }

    /// Suggests a command that produces an image the model can see.
    fn suggest_resize(&self, options: &str) -> String {
        let name = self.reply.path.rsplit('/').next().unwrap_or_default();
        // Do not embed a file name from the workspace in a command unless it is harmless.
        let is_plain_name =
            name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._".contains(&byte));
        let source = if is_plain_name { self.reply.path.as_str() } else { "IN" };
        format!(
            "shell.exec `magick {source} {options} small.png` (or ffmpeg, or Python with Pillow), then file.read it."
        )
    }

    fn describe_binary(&mut self, content: &FileContent, survey: &ContentSurvey) -> Result<()> {
        if mime::is_viewable_image(&self.reply.mime) {
            let size = match (self.reply.width, self.reply.height) {
                (Some(width), Some(height)) => format!("{width}x{height} pixels, "),
                _ => String::new(),
            };
            let hint = format!("Make a smaller copy: {}", self.suggest_resize("-resize 1568x1568"));
            self.notes.push(format!(
                "{}, {size}{} bytes: images larger than {MAX_IMAGE_BYTES} bytes are not shown. {hint}",
                self.reply.mime, survey.size
            ));
            self.reply.hint = Some(hint);
            return Ok(());
        }
        let mut first_bytes = survey.head[..survey.head.len().min(64)].to_vec();
        self.mask_secrets(content, 0, &mut first_bytes)?;
        let first_bytes = crate::base::ids::to_hex(&first_bytes);
        self.notes.push(format!(
            "binary file, {}, {} bytes; first bytes {first_bytes}; use encoding \"base64\" to read its bytes",
            self.reply.mime, survey.size
        ));
        Ok(())
    }

    fn add_text(
        &mut self,
        content: &FileContent,
        args: &Args,
        survey: &ContentSurvey,
        max_bytes: usize,
        cancel: &CancelToken,
    ) -> Result<()> {
        let format = &survey.format;
        let window = args.requested_window();
        let excerpt = excerpt::read_excerpt(content, survey, window, max_bytes, cancel)?;
        let reply = &mut self.reply;
        reply.encoding = Some(format.encoding.name().to_ascii_lowercase());
        reply.bom = survey.bom_len > 0;
        // The head of a file can show which line endings occur, but not that there are none.
        reply.eol = (survey.is_complete || format.eol != super::text::LineEnding::None)
            .then(|| format.eol.name());
        if survey.is_complete {
            reply.total_lines = Some(format.lines);
            reply.final_newline = Some(format.has_final_newline);
        }
        let TextExcerpt {
            text,
            start_line,
            end_line,
            byte_offset,
            truncated,
            next_offset,
            next_byte_offset,
            ..
        } = excerpt;
        (reply.start_line, reply.end_line, reply.byte_offset) = (start_line, end_line, byte_offset);
        (reply.truncated, reply.next_offset, reply.next_byte_offset) =
            (truncated, next_offset, next_byte_offset);
        reply.lossy = excerpt.lossy;
        reply.long_lines_cut = excerpt.line_cut.then_some(1);
        self.text = text;
        self.add_text_notes(excerpt.line_cut);
        Ok(())
    }

    /// Adds notes on what the text alone does not show: its position in the file and anything
    /// unusual.
    fn add_text_notes(&mut self, line_cut: bool) {
        let reply = &self.reply;
        let total = reply.total_lines.map_or(String::new(), |total| format!(" of {total}"));
        let notes = &mut self.notes;
        if reply.size == 0 {
            notes.push("empty file".to_owned());
        } else if let (Some(start), Some(end)) = (reply.start_line, reply.end_line) {
            if line_cut {
                notes.push(format!("line {start}{total}, cut"));
            } else if start > 1 || reply.next_offset.is_some() {
                notes.push(format!("lines {start}-{end}{total}"));
            }
        } else if self.text.is_empty() {
            notes.push(format!(
                "nothing at this offset: the file has {} bytes, {} lines",
                reply.size,
                reply.total_lines.unwrap_or(0)
            ));
        }
        if let (true, Some(next)) =
            (line_cut || reply.next_offset.is_none(), reply.next_byte_offset)
        {
            notes.push(format!("{} bytes in total; next byte_offset {next}", reply.size));
        }
        if let Some(next) = reply.next_offset {
            notes.push(format!("next offset {next}"));
        }
        if let Some(encoding) = reply.encoding.as_deref().filter(|name| *name != "utf-8") {
            notes.push(format!("encoding {encoding}"));
        }
        if reply.lossy {
            notes.push("bytes that are invalid in this encoding are shown as U+FFFD".to_owned());
        }
    }

    fn into_output(self) -> ToolOutput {
        let ReadAnswer { reply, mut text, notes, image_base64: image } = self;
        // Serializing plain fields cannot fail; if it did, null would at least not be wrong data.
        let metadata = serde_json::to_value(&reply).unwrap_or(Value::Null);
        let json = OutputBlock::Text(metadata.to_string());
        let content = match image {
            Some(data) => vec![json, OutputBlock::Image { data, mime: reply.mime }],
            None => {
                if !notes.is_empty() {
                    if !text.is_empty() && !text.ends_with('\n') {
                        text.push('\n');
                    }
                    text.push_str(&format!("[{}]", notes.join("; ")));
                }
                vec![OutputBlock::Text(text), json]
            }
        };
        ToolOutput { content, ..ToolOutput::default() }.with_meta(META, metadata)
    }
}

/// Returns the error for a file that is too large for the requested operation.
fn too_large_error(purpose: &str) -> Error {
    Error::new(Kind::TooLarge, format!("the file is too large {purpose}"))
        .with_hint("Use `byte_offset` and `byte_length`.")
}

#[cfg(test)]
mod tests;
