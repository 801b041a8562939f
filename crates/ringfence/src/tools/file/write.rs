//! `file.write`: writes a whole file or appends to it.
//!
//! The old bytes stay in place until all new ones are written, and mode, owner, encoding and line
//! endings are preserved unless the caller asks for something else.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use encoding_rs::{Encoding, UTF_8};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::atomic_write::{self, TempFile};
use super::blocking;
use super::content::{MAX_HASHED_BYTES, check_cancelled, etag_from_bytes, weak_etag_from_stat};
use super::diff::{self, LineChanges, diff_lines};
use super::old_file::{OldFile, stale_error};
use super::text::{self, LineEnding};
use crate::approval::Granted;
use crate::base::call::{Prepared, ToolOutput};
use crate::base::workspace::{Workspace, WriteTarget, quote_path};
use crate::base::{CancelToken, Error, Kind, Result};
use crate::tools::limit_docs::{ByteCount, ToolLimit};
use crate::tools::{PrepareCx, RunCx, Tool, ToolHints, ToolSpec};

/// Old content up to this size is kept in memory, to be compared and, for a write in place, to be
/// restored after a failure.
const MAX_OLD_BYTES: u64 = 16 << 20;
/// Attempts before giving up because another process keeps changing the file.
const MAX_ATTEMPTS: usize = 8;

/// Arguments of `file.write`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// Workspace-relative path. Missing directories are created.
    path: String,
    /// The text, or base64 of the bytes with encoding base64.
    content: String,
    /// keep (default): the file's own encoding; base64 for bytes.
    encoding: Option<WriteEncoding>,
    /// overwrite (default); create: fail if it exists; append.
    mode: Option<WriteMode>,
    /// Write only if the file still has this etag.
    if_match: Option<String>,
    /// keep (default): the file's own line endings.
    eol: Option<WriteLineEnding>,
    /// Set or clear the executable bits; unchanged by default.
    executable: Option<bool>,
    /// Report what would happen, change nothing.
    dry_run: Option<bool>,
    /// stat (default) counts changed lines.
    diff: Option<WriteDiffMode>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum WriteEncoding {
    #[default]
    Keep,
    #[serde(rename = "utf-8")]
    Utf8,
    Base64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum WriteMode {
    #[default]
    Overwrite,
    Create,
    Append,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum WriteLineEnding {
    #[default]
    Keep,
    Lf,
    Crlf,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum WriteDiffMode {
    None,
    #[default]
    Stat,
    Unified,
}

/// Result of `file.write`.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Reply {
    /// Relative to the workspace, symlinks resolved.
    pub path: String,
    created: bool,
    /// New etag (with dry_run, as it would be; absent if unknown).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    previous_etag: Option<String>,
    /// Bytes written.
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    lines_added: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lines_removed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    diff: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    diff_truncated: bool,
    /// The full diff, if it was cut: read it with file.read.
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<String>,
    /// The encoding of the text written.
    #[serde(skip_serializing_if = "Option::is_none")]
    encoding: Option<String>,
    /// False if changed in place: append, and files with several hard links.
    atomic: bool,
    dry_run: bool,
}

/// The `file.write` tool.
pub struct FileWrite {
    spec: ToolSpec,
}

impl FileWrite {
    /// Creates the tool.
    pub fn new() -> Self {
        FileWrite {
            spec: ToolSpec {
                hints: ToolHints {
                    read_only: false,
                    destructive: true,
                    idempotent: false,
                    open_world: false,
                },
                effects: vec!["filesystem_write"],
                ..ToolSpec::from_types::<Args, Reply>(
                    "file.write",
                    "Write a file",
                    "Writes a whole file of the workspace, atomically, or appends to it. Keeps the mode, encoding \
                 and line endings of an existing file. `if_match` with the etag of your last read guards against \
                 changes by others.",
                )
            },
        }
    }
}

impl Default for FileWrite {
    fn default() -> Self {
        Self::new()
    }
}

impl Tool for FileWrite {
    type Args = Args;

    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn limits(&self) -> Vec<ToolLimit> {
        vec![
            ToolLimit::from_fixed(
                "size of a diff in the result",
                ByteCount(super::diff::MAX_DIFF_BYTES as u64),
            ),
            ToolLimit::for_time(self.spec.timeout),
        ]
    }

    fn parse(&self, arguments: &Map<String, Value>, _: &PrepareCx<'_>) -> Result<Args> {
        let args: Args = self.spec.parse_arguments(arguments)?;
        args.decode_input()?;
        Ok(args)
    }

    async fn run(
        self: Arc<Self>,
        cx: Arc<RunCx>,
        args: Args,
        _call: Granted<Prepared>,
    ) -> Result<ToolOutput> {
        let cancel = cx.control.cancel.clone();
        let work = blocking::run_blocking(&cancel, "the write ended unexpectedly", move || {
            let mut reply = write_with_retries(&cx.settings.workspace, &args, &cx.control.cancel)?;
            (reply.diff_truncated, reply.output) =
                diff::fit_diff(&mut reply.diff, &cx.session().outputs);
            Ok(reply)
        });
        Ok(work.await?.into_output())
    }
}

/// Writes bytes produced by another tool, exactly as if the caller had written them.
pub fn write_base64(
    workspace: &Workspace,
    path: String,
    content: String,
    cancel: &CancelToken,
) -> Result<Reply> {
    let (encoding, diff) = (Some(WriteEncoding::Base64), Some(WriteDiffMode::None));
    write_with_retries(
        workspace,
        &Args { path, content, encoding, diff, ..Args::default() },
        cancel,
    )
}

/// Content sent by the caller.
enum WriteInput<'a> {
    Text(&'a str),
    Bytes(Vec<u8>),
}

impl Args {
    fn decode_input(&self) -> Result<WriteInput<'_>> {
        match self.encoding.unwrap_or_default() {
            WriteEncoding::Base64 => {
                STANDARD.decode(&self.content).map(WriteInput::Bytes).map_err(|error| {
                    Error::invalid_arguments("the argument `content` is not base64")
                        .with_fact("argument", "content")
                        .with_source(error)
                })
            }
            WriteEncoding::Keep | WriteEncoding::Utf8 => Ok(WriteInput::Text(&self.content)),
        }
    }

    fn is_dry_run(&self) -> bool {
        self.dry_run.unwrap_or(false)
    }
}

/// Writes what `args` ask for, and starts over if the file is changed in the meantime.
fn write_with_retries(workspace: &Workspace, args: &Args, cancel: &CancelToken) -> Result<Reply> {
    let input = args.decode_input()?;
    for _ in 0..MAX_ATTEMPTS {
        check_cancelled(cancel)?;
        let write_target = match workspace.find_write_target(&args.path, false)? {
            WriteTarget::NoParent { path } => {
                WriteJob::new(args, &input, path, None)?;
                // Everything that can be refused has been checked; only now may directories be
                // created.
                workspace.find_write_target(&args.path, !args.is_dry_run())?
            }
            ready => ready,
        };
        let (path, target, existing) = match write_target {
            WriteTarget::NoParent { path } => (path, None, None),
            WriteTarget::Ready { dir, name, path, existing } => {
                (path, Some((Arc::new(dir), name)), existing)
            }
        };
        let old =
            existing.map(|object| OldFile::inspect(object, MAX_OLD_BYTES, cancel)).transpose()?;
        let job = WriteJob::new(args, &input, path, old)?;
        match target {
            Some((dir, name)) if !args.is_dry_run() => {
                if let Some(reply) = job.write_file(&dir, &name, cancel)? {
                    return Ok(reply);
                }
            }
            _ => {
                if let Some(old) = &job.old {
                    OldFile::check_writable(&old.object)?;
                }
                return Ok(job.into_preview());
            }
        }
    }
    Err(Error::new(
        Kind::Conflict,
        format!("{} keeps changing while it is being written", quote_path(&args.path)),
    )
    .with_reason("busy")
    .with_hint("Stop the process that writes to it, or try again."))
}

/// One attempt to write, fully determined before anything is touched.
struct WriteJob<'a> {
    args: &'a Args,
    path: String,
    old: Option<OldFile>,
    /// Bytes to write: the whole file, or the part to append.
    bytes: Vec<u8>,
    is_append: bool,
    encoding: Option<&'static Encoding>,
    changes: Option<LineChanges>,
}

impl<'a> WriteJob<'a> {
    fn new(
        args: &'a Args,
        input: &WriteInput<'_>,
        path: String,
        old: Option<OldFile>,
    ) -> Result<WriteJob<'a>> {
        check_preconditions(args, old.as_ref(), &path)?;
        let is_append = args.mode == Some(WriteMode::Append) && old.is_some();
        let (bytes, encoding, text) = match input {
            WriteInput::Bytes(bytes) => (bytes.clone(), None, None),
            WriteInput::Text(text) => {
                let text = text::convert_line_endings(text, target_line_ending(args, old.as_ref()));
                let (bytes, encoding) = encode_for_file(args, &text, old.as_ref(), is_append)?;
                (bytes, Some(encoding), Some(text))
            }
        };
        let mut job = WriteJob { args, path, old, bytes, is_append, encoding, changes: None };
        job.changes = text.and_then(|text| job.diff_with_old(&text));
        Ok(job)
    }

    fn diff_with_old(&self, text: &str) -> Option<LineChanges> {
        let unified = match self.args.diff.unwrap_or_default() {
            WriteDiffMode::None => return None,
            WriteDiffMode::Stat => false,
            WriteDiffMode::Unified => true,
        };
        let old = match &self.old {
            Some(old) => old.decoded_text()?,
            None => String::new(),
        };
        if self.is_append {
            return diff_lines(&self.path, &old, &format!("{old}{text}"), unified);
        }
        diff_lines(&self.path, &old, text, unified)
    }

    /// Returns whether the file is replaced atomically. It is written in place if it has other hard
    /// links or is appended to.
    fn is_atomic(&self) -> bool {
        !self.is_append && self.old.as_ref().is_none_or(|old| old.content.stat.st_nlink <= 1)
    }

    /// Performs the write. Returns `None` if another process changed the file first and the attempt
    /// must start over.
    fn write_file(
        self,
        dir: &Arc<OwnedFd>,
        name: &OsString,
        cancel: &CancelToken,
    ) -> Result<Option<Reply>> {
        let etag = match &self.old {
            None => self.create_file(dir, name, cancel)?,
            Some(old) if self.is_atomic() => self.replace_file(old, dir, name, cancel)?,
            Some(old) => self.write_in_place(old, cancel)?,
        };
        Ok(etag.map(|etag| self.into_reply(Some(etag))))
    }

    fn create_file(
        &self,
        dir: &Arc<OwnedFd>,
        name: &OsString,
        cancel: &CancelToken,
    ) -> Result<Option<String>> {
        let mode = if self.args.executable == Some(true) { 0o777 } else { 0o666 };
        let mut temporary = TempFile::create(dir, name, &self.path, mode)?;
        temporary.write(&self.bytes, cancel)?;
        let etag = self.compute_etag(&temporary)?;
        match temporary.publish_new(name)? {
            true => Ok(Some(etag)),
            false if self.args.mode == Some(WriteMode::Create) => {
                Err(already_exists_error(&self.path))
            }
            false => Ok(None),
        }
    }

    fn replace_file(
        &self,
        old: &OldFile,
        dir: &Arc<OwnedFd>,
        name: &OsString,
        cancel: &CancelToken,
    ) -> Result<Option<String>> {
        let temporary =
            old.stage_replacement(dir, name, &self.bytes, self.compute_mode(old), cancel)?;
        let etag = self.compute_etag(&temporary)?;
        if !old.is_unchanged()? {
            return Ok(None);
        }
        let Some(exchanged) = temporary.exchange_with(name, &old.content.stat)? else {
            return Ok(None);
        };
        Ok(exchanged.confirm_or_restore(old.is_unchanged())?.map(|_| etag))
    }

    fn write_in_place(&self, old: &OldFile, cancel: &CancelToken) -> Result<Option<String>> {
        old.write_in_place(self.compute_mode(old), cancel, |file| {
            if self.is_append {
                atomic_write::append_in_place(
                    file,
                    old.survey.size,
                    &self.bytes,
                    &self.path,
                    cancel,
                )
            } else {
                atomic_write::overwrite_in_place(
                    file,
                    old.content.snapshot_bytes(),
                    &self.bytes,
                    &self.path,
                )
            }
        })
    }

    fn compute_mode(&self, old: &OldFile) -> u32 {
        let mode = old.permission_bits();
        match self.args.executable {
            None => mode,
            // Everyone who may read the file may execute it.
            Some(true) => mode | (mode & 0o444) >> 2,
            Some(false) => mode & !0o111,
        }
    }

    fn compute_etag(&self, temporary: &TempFile) -> Result<String> {
        if self.bytes.len() as u64 > MAX_HASHED_BYTES {
            return Ok(weak_etag_from_stat(&temporary.stat()?));
        }
        Ok(etag_from_bytes(&self.bytes))
    }

    fn into_preview(self) -> Reply {
        let etag = match &self.old {
            Some(old) if self.is_append => old
                .content
                .snapshot_bytes()
                .map(|bytes| etag_from_bytes(&[bytes, &self.bytes].concat())),
            _ => {
                (self.bytes.len() as u64 <= MAX_HASHED_BYTES).then(|| etag_from_bytes(&self.bytes))
            }
        };
        self.into_reply(etag)
    }

    fn into_reply(self, etag: Option<String>) -> Reply {
        let atomic = self.is_atomic();
        let changes = self.changes.as_ref();
        Reply {
            created: self.old.is_none(),
            etag,
            previous_etag: self.old.as_ref().map(|old| old.survey.etag.clone()),
            bytes: self.bytes.len() as u64,
            lines_added: changes.map(|changes| changes.added),
            lines_removed: changes.map(|changes| changes.removed),
            diff_truncated: false,
            output: None,
            encoding: self.encoding.map(|encoding| encoding.name().to_ascii_lowercase()),
            atomic,
            dry_run: self.args.is_dry_run(),
            diff: self.changes.and_then(|changes| changes.unified_diff),
            path: self.path,
        }
    }
}

fn check_preconditions(args: &Args, old: Option<&OldFile>, path: &str) -> Result<()> {
    if args.mode == Some(WriteMode::Create) && old.is_some() {
        return Err(already_exists_error(path));
    }
    let Some(expected_etag) = &args.if_match else { return Ok(()) };
    let current = old.map(|old| old.survey.etag.as_str());
    if current == Some(expected_etag) {
        return Ok(());
    }
    Err(stale_error(path, current))
}

fn already_exists_error(path: &str) -> Error {
    Error::new(Kind::Conflict, format!("{} already exists", quote_path(path)))
        .with_reason("already_exists")
        .with_hint("Use mode overwrite to replace it, or another path.")
}

fn target_line_ending(args: &Args, old: Option<&OldFile>) -> LineEnding {
    match args.eol.unwrap_or_default() {
        WriteLineEnding::Lf => LineEnding::Lf,
        WriteLineEnding::Crlf => LineEnding::Crlf,
        WriteLineEnding::Keep => {
            old.filter(|old| old.is_text()).map_or(LineEnding::None, |old| old.survey.format.eol)
        }
    }
}

/// Encodes the text for the file. A character that the file's encoding cannot represent is an error
/// and is never replaced by a question mark.
fn encode_for_file(
    args: &Args,
    text: &str,
    old: Option<&OldFile>,
    is_append: bool,
) -> Result<(Vec<u8>, &'static Encoding)> {
    let keeps_encoding = args.encoding.unwrap_or_default() == WriteEncoding::Keep;
    if let Some(old) = old.filter(|old| {
        is_append && !keeps_encoding && old.is_text() && old.survey.format.encoding != UTF_8
    }) {
        let encoding = old.survey.format.encoding.name();
        return Err(Error::invalid_arguments(format!(
            "the file is in {encoding}: UTF-8 appended to it would not be readable text"
        ))
        .with_reason("encoding_error")
        .with_hint(
            "Use encoding keep to append in the file's own encoding, or overwrite the whole file.",
        )
        .with_fact("encoding", encoding.to_ascii_lowercase()));
    }
    let Some(old) = old.filter(|old| keeps_encoding && old.is_text()) else {
        return Ok((text.as_bytes().to_vec(), UTF_8));
    };
    let encoding = old.survey.format.encoding;
    let body = text::encode_text(encoding, text).ok_or_else(|| {
        Error::invalid_arguments(format!(
            "the file is in {}, which cannot express this text",
            encoding.name()
        ))
        .with_reason("encoding_error")
        .with_hint(
            "Use encoding utf-8 to convert the file to UTF-8, or leave those characters out.",
        )
        .with_fact("encoding", encoding.name().to_ascii_lowercase())
    })?;
    let adds_bom = old.survey.bom_len > 0 && !is_append && !text.starts_with('\u{feff}');
    Ok((if adds_bom { [text::bom_bytes(encoding), &body].concat() } else { body }, encoding))
}

impl Reply {
    fn into_output(self) -> ToolOutput {
        let verb = match (self.dry_run, self.created) {
            (true, true) => "would create",
            (true, false) => "would write",
            (false, true) => "created",
            (false, false) => "wrote",
        };
        let mut text = format!("{verb} {} ({} bytes", self.path, self.bytes);
        if let (Some(added), Some(removed)) = (self.lines_added, self.lines_removed) {
            text.push_str(&format!(", +{added} -{removed} lines"));
        }
        text.push(')');
        if let Some(etag) = &self.etag {
            text.push_str(&format!(" {etag}"));
        }
        if let Some(diff) = &self.diff {
            text.push('\n');
            text.push_str(diff);
        }
        // Serializing plain fields cannot fail.
        ToolOutput::from_structured(text, serde_json::to_value(&self).unwrap_or(Value::Null))
    }
}

#[cfg(test)]
mod tests;
