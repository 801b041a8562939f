//! `file.replace`: makes exact edits in files. Each edit must match as often as expected or nothing
//! is written, and not one byte outside the replaced text changes.

mod document;
mod edit;
mod groups;
mod mismatch_help;
mod multi_file;
mod similar_regions;
mod single_file;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{blocking, diff};
use crate::approval::Granted;
use crate::base::call::{Prepared, ToolOutput};
use crate::base::workspace::Workspace;
use crate::base::{CancelToken, Error, Kind, Result};
use crate::session::OutputStore;
use crate::tools::limit_docs::{ByteCount, ItemCount, ToolLimit};
use crate::tools::{PrepareCx, RunCx, Tool, ToolHints, ToolSpec};
use edit::{CompiledEdit, MatchTally};

/// Larger files are neither edited nor created.
pub const MAX_BYTES: usize = 64 << 20;
const MAX_EDITS: usize = 100;
/// Bytes reserved for the note about omitted files.
const RESERVED_BYTES: usize = 200;

/// Arguments of `file.replace`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// Workspace-relative path of a file; with glob, of a directory.
    path: String,
    /// Applied in order, each to the result of the previous one; all or none.
    edits: Vec<RawEdit>,
    /// Edit all files below path that match: ["*.rs", "!gen/"]. Needs dry_run or total_expected.
    glob: Option<Vec<String>>,
    /// Write only if the file still has this etag.
    if_match: Option<String>,
    /// Required total number of replacements.
    total_expected: Option<u64>,
    /// Report what would happen, change nothing.
    dry_run: Option<bool>,
    /// stat (default) counts changed lines.
    diff: Option<ReplaceDiffMode>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawEdit {
    /// Exact text to replace, including whitespace; \n matches any line ending.
    old: String,
    /// New text; with regex, $1, ${1} and $name insert groups, $$ is $.
    new: String,
    /// Required number of matches: 1 (any with glob); 0: any number.
    expect: Option<u64>,
    /// `old` is a regex (Rust syntax, flags as (?ims)).
    regex: Option<bool>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum ReplaceDiffMode {
    None,
    #[default]
    Stat,
    Unified,
}

/// Result of `file.replace`.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Reply {
    path: String,
    /// New etag (with dry_run, as it would be).
    #[serde(skip_serializing_if = "Option::is_none")]
    etag: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    previous_etag: Option<String>,
    replacements: u64,
    edits: Vec<EditReply>,
    /// With glob: the files that changed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    files: Vec<FileReply>,
    /// Changed files not in `files`; files_output lists all.
    #[serde(skip_serializing_if = "is_zero")]
    files_omitted: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    files_output: Option<String>,
    /// With glob: what could not be read or edited (binary, too large, protected).
    #[serde(skip_serializing_if = "is_zero")]
    skipped: u64,
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
    dry_run: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct EditReply {
    count: u64,
    /// Lines of the first matches, in the text that the edit was applied to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lines: Vec<u64>,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct FileReply {
    path: String,
    replacements: u64,
    etag: String,
    previous_etag: String,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Returns the size of a value as JSON, in bytes.
fn json_size(value: &impl Serialize) -> usize {
    serde_json::to_string(value).map_or(0, |json| json.len())
}

impl From<MatchTally> for EditReply {
    fn from(tally: MatchTally) -> Self {
        EditReply { count: tally.count, lines: tally.lines }
    }
}

/// The `file.replace` tool.
pub struct FileReplace {
    spec: ToolSpec,
}

impl FileReplace {
    /// Creates the tool.
    pub fn new() -> Self {
        FileReplace {
            spec: ToolSpec {
                hints: ToolHints {
                    read_only: false,
                    destructive: true,
                    idempotent: false,
                    open_world: false,
                },
                effects: vec!["filesystem_write"],
                ..ToolSpec::from_types::<Args, Reply>(
                    "file.replace",
                    "Edit a file",
                    "Replaces exact text (or a regex) in a file of the workspace, atomically. Every edit must \
                 match exactly `expect` times, or nothing is written. The rest of the file stays \
                 byte-identical: encoding, line endings, mode.",
                )
            },
        }
    }
}

impl Default for FileReplace {
    fn default() -> Self {
        Self::new()
    }
}

impl Tool for FileReplace {
    type Args = Args;

    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn limits(&self) -> Vec<ToolLimit> {
        vec![
            ToolLimit::from_fixed("file size", ByteCount(MAX_BYTES as u64)),
            ToolLimit::from_fixed("edits", ItemCount(MAX_EDITS as u64)),
            ToolLimit::from_fixed("matches per edit", ItemCount(edit::MAX_MATCHES as u64)),
            ToolLimit::from_fixed("files changed at once", ItemCount(multi_file::MAX_FILES as u64)),
            ToolLimit::from_fixed(
                "size of a diff in the result",
                ByteCount(super::diff::MAX_DIFF_BYTES as u64),
            ),
            ToolLimit::for_time(self.spec.timeout),
        ]
    }

    fn parse(&self, arguments: &Map<String, Value>, _: &PrepareCx<'_>) -> Result<Args> {
        let args: Args = self.spec.parse_arguments(arguments)?;
        args.compile_edits()?;
        Ok(args)
    }

    async fn run(
        self: Arc<Self>,
        cx: Arc<RunCx>,
        args: Args,
        _call: Granted<Prepared>,
    ) -> Result<ToolOutput> {
        let cancel = cx.control.cancel.clone();
        let work = blocking::run_blocking(&cancel, "the edit ended unexpectedly", move || {
            let mut reply = replace_text(&cx.settings.workspace, &args, &cx.control.cancel)?;
            (reply.diff_truncated, reply.output) =
                diff::fit_diff(&mut reply.diff, &cx.session().outputs);
            reply.fit_budget(cx.settings.text_budget, &cx.session().outputs);
            Ok(reply)
        });
        Ok(work.await?.into_output())
    }
}

fn replace_text(workspace: &Arc<Workspace>, args: &Args, cancel: &CancelToken) -> Result<Reply> {
    match args.glob {
        None => single_file::replace_in_file(workspace, args, cancel),
        Some(_) => multi_file::replace_in_files(workspace, args, cancel),
    }
}

impl Args {
    /// Checks what the schema alone cannot express, and compiles the edits.
    fn compile_edits(&self) -> Result<Vec<CompiledEdit>> {
        if self.edits.is_empty() || self.edits.len() > MAX_EDITS {
            return Err(Error::invalid_arguments(format!(
                "`edits` must contain 1 to {MAX_EDITS} edits"
            ))
            .with_fact("argument", "edits"));
        }
        if self.glob.is_some() {
            self.check_glob()?;
        }
        let expect = u64::from(self.glob.is_none());
        self.edits
            .iter()
            .enumerate()
            .map(|(index, raw)| CompiledEdit::compile(raw, index, expect))
            .collect()
    }

    /// Requires the caller to state how much will change before many files are edited.
    fn check_glob(&self) -> Result<()> {
        if !self.is_dry_run() && self.total_expected.is_none() {
            return Err(Error::invalid_arguments("`glob` needs `dry_run` or `total_expected`")
                .with_hint("Call it with dry_run: true first, then repeat it with total_expected set to `replacements`.")
                .with_fact("argument", "total_expected"));
        }
        if self.if_match.is_some() {
            return Err(Error::invalid_arguments("`if_match` is for one file, not for `glob`")
                .with_fact("argument", "if_match"));
        }
        Ok(())
    }

    fn is_dry_run(&self) -> bool {
        self.dry_run.unwrap_or(false)
    }

    fn check_total(&self, total: u64) -> Result<()> {
        match self.total_expected {
            Some(expected) if expected != total => {
                Err(Error::new(Kind::Conflict, format!("there are {total} matches in total, not {expected}"))
                    .with_reason("ambiguous_match")
                    .with_hint("Nothing was written. Check the matches with dry_run and diff unified, then correct total_expected.")
                    .with_fact("count", total)
                    .with_fact("expected", expected))
            }
            _ => Ok(()),
        }
    }
}

impl Reply {
    /// Omits the last files if the reply would exceed the client's budget, and stores the full
    /// list.
    fn fit_budget(&mut self, budget: usize, outputs: &OutputStore) {
        let full_size = json_size(self);
        if full_size <= budget || self.files.is_empty() {
            return;
        }
        let mut bytes_left =
            budget.saturating_sub(full_size - json_size(&self.files) + RESERVED_BYTES);
        let fits = self.files.iter().take_while(|file| {
            let file_size = json_size(file) + 1;
            let fits = file_size <= bytes_left;
            bytes_left = bytes_left.saturating_sub(file_size);
            fits
        });
        let fits = fits.count();
        let list: String = self
            .files
            .iter()
            .filter_map(|file| serde_json::to_string(file).ok())
            .map(|line| line + "\n")
            .collect();
        self.files_output = diff::store_text(&list, outputs);
        self.files_omitted = (self.files.len() - fits) as u64;
        self.files.truncate(fits);
    }

    fn describe_target(&self) -> String {
        match self.etag {
            Some(_) => self.path.clone(),
            None => {
                format!("{} files of {}", self.files.len() as u64 + self.files_omitted, self.path)
            }
        }
    }

    fn into_output(self) -> ToolOutput {
        let verb = if self.dry_run { "would replace" } else { "replaced" };
        let plural = if self.replacements == 1 { "" } else { "es" };
        let mut text =
            format!("{verb} {} match{plural} in {}", self.replacements, self.describe_target());
        if let (Some(added), Some(removed)) = (self.lines_added, self.lines_removed) {
            text.push_str(&format!(" (+{added} -{removed} lines)"));
        }
        if let Some(etag) = &self.etag {
            text.push_str(&format!(" {etag}"));
        }
        if self.skipped > 0 {
            text.push_str(&format!(", {} files skipped", self.skipped));
        }
        for file in &self.files {
            text.push_str(&format!("\n{} {} {}", file.replacements, file.path, file.etag));
        }
        if let Some(output) = &self.files_output {
            text.push_str(&format!("\n[{} more files: {output}]", self.files_omitted));
        }
        if let Some(diff) = &self.diff {
            text.push('\n');
            text.push_str(diff);
        }
        if let Some(output) = &self.output {
            text.push_str(&format!("[full diff: {output}]"));
        }
        // Serializing plain fields cannot fail.
        ToolOutput::from_structured(text, serde_json::to_value(&self).unwrap_or(Value::Null))
    }
}

#[cfg(test)]
mod layers_tests;
#[cfg(test)]
mod tests;
