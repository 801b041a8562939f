//! `file.search`: searches the files a caller may see with ripgrep's engine.

mod cancellable;
mod engine;
mod pattern;
mod render;
mod results;

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::blocking;
use super::cursor::CursorQuery;
use super::path_filter::PathFilter;
use crate::approval::Granted;
use crate::base::call::{Prepared, ToolOutput};
use crate::base::workspace::Workspace;
use crate::base::workspace::tree::{WalkFilter, WalkStart, WalkStop, WorkspaceTree, thread_count};
use crate::base::{CancelCause, CancelToken, Error, Kind, Result};
use crate::tools::limit_docs::{ItemCount, ToolLimit};
use crate::tools::{CallPlan, PrepareCx, RunCx, Tool, ToolSpec};
use engine::{SearchSpec, SearchVisitor};
use results::{SearchPosition, SearchResults};

const NAME: &str = "file.search";
const DEFAULT_RESULTS: u64 = 100;
const MAX_RESULTS: u64 = 2000;
const MAX_CONTEXT: u64 = 20;
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_TIMEOUT: Duration = Duration::from_secs(120);
/// Time added to a call's timeout for the work before and after the search itself.
const TIMEOUT_SLACK: Duration = Duration::from_secs(5);
/// Time to check whether files that were left out would have matched.
const LEFT_OUT_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_BYTES: usize = 256 << 10;
const MIN_BYTES: usize = 512;
/// Bytes reserved for everything in a result besides the matches.
const RESERVED_BYTES: usize = 500;

/// Arguments of `file.search`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// Regular expression (Rust syntax, line by line).
    pattern: String,
    /// Treat pattern as plain text (false).
    literal: Option<bool>,
    /// Directory or file, relative to the workspace (the default), or `output:<id>`.
    path: Option<String>,
    /// Only these files, relative to path: `*.rs`, `src/**/*.ts`.
    glob: Option<Vec<String>>,
    /// Globs to exclude.
    exclude: Option<Vec<String>>,
    /// A ripgrep file type: rust, py, ts …
    #[serde(rename = "type")]
    file_type: Option<String>,
    ignore_case: Option<bool>,
    /// Whole words only.
    word: Option<bool>,
    /// Let a match span lines.
    multiline: Option<bool>,
    /// content (default), paths only, or matching lines per file.
    output: Option<SearchOutput>,
    /// Lines of context (at most 20).
    before: Option<u64>,
    after: Option<u64>,
    /// 100, at most 2000.
    max_results: Option<u64>,
    max_per_file: Option<u64>,
    /// Respect .gitignore (true).
    gitignore: Option<bool>,
    /// Include dot files (false).
    hidden: Option<bool>,
    /// 10000; what was found by then is returned.
    timeout_ms: Option<u64>,
    /// next_cursor of the previous result.
    cursor: Option<String>,
    /// At most 262144.
    max_bytes: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum SearchOutput {
    #[default]
    Content,
    Files,
    Count,
}

#[derive(Debug, Default, Serialize, JsonSchema)]
struct Reply {
    matches: Vec<SearchHit>,
    /// All matches, shown or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    total_matches: Option<u64>,
    files_matched: u64,
    files_searched: u64,
    truncated: bool,
    timed_out: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
    skipped: SkippedCounts,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
struct SkippedCounts {
    binary: u64,
    unreadable: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
struct SearchHit {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
    /// In characters, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    column: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    before: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    after: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
}

/// Validated arguments.
pub struct SearchJob {
    path: String,
    sight: WalkFilter,
    filter: PathFilter,
    spec: SearchSpec,
    max_results: usize,
    timeout: Duration,
    max_bytes: Option<usize>,
    cursor_query: CursorQuery,
    page_start: Option<SearchPosition>,
}

impl Args {
    fn timeout(&self) -> Duration {
        self.timeout_ms
            .map_or(DEFAULT_TIMEOUT, Duration::from_millis)
            .clamp(Duration::from_millis(1), MAX_TIMEOUT)
    }

    fn build_job(&self, arguments: &Map<String, Value>) -> Result<SearchJob> {
        let empty = Vec::new();
        let globs = self.glob.as_ref().unwrap_or(&empty);
        let excluded = self.exclude.as_ref().unwrap_or(&empty);
        let filter = PathFilter::new(globs, excluded, self.file_type.as_deref())?;
        let cursor_query = CursorQuery::from_arguments(NAME, arguments);
        let page_start =
            self.cursor.as_ref().map(|cursor| cursor_query.decode_cursor(cursor)).transpose()?;
        let context_lines = |requested: Option<u64>| {
            usize::try_from(requested.unwrap_or(0).min(MAX_CONTEXT)).unwrap_or(0)
        };
        let multiline = self.multiline.unwrap_or(false);
        let mode = self.output.unwrap_or_default();
        Ok(SearchJob {
            path: self.path.clone().unwrap_or_else(|| ".".to_owned()),
            sight: WalkFilter {
                skip_ignored: self.gitignore.unwrap_or(true),
                show_hidden: self.hidden.unwrap_or(false) || filter.names_hidden,
                inverted: false,
            },
            filter,
            spec: SearchSpec {
                matcher: pattern::build_matcher(self)?,
                mode,
                multiline,
                has_non_ascii: !self.pattern.is_ascii(),
                before: if mode == SearchOutput::Content { context_lines(self.before) } else { 0 },
                after: if mode == SearchOutput::Content { context_lines(self.after) } else { 0 },
                max_per_file: self.max_per_file.map(|most| most.max(1)),
            },
            max_results: usize::try_from(
                self.max_results.unwrap_or(DEFAULT_RESULTS).clamp(1, MAX_RESULTS),
            )
            .unwrap_or(1),
            timeout: self.timeout(),
            max_bytes: self.max_bytes.map(|bytes| usize::try_from(bytes).unwrap_or(MAX_BYTES)),
            cursor_query,
            page_start: page_start.map(|(path, line)| SearchPosition { path, line }),
        })
    }
}

impl SearchJob {
    /// Returns the bytes available for matches in a result that fits the client's budget.
    fn match_budget(&self, budget: usize) -> usize {
        let total = self.max_bytes.unwrap_or(budget).clamp(MIN_BYTES, MAX_BYTES);
        total.saturating_sub(RESERVED_BYTES).max(total / 2)
    }
}

/// The `file.search` tool.
pub struct FileSearch {
    spec: ToolSpec,
}

impl FileSearch {
    /// Creates the tool.
    pub fn new() -> Self {
        FileSearch {
            spec: ToolSpec {
                timeout: DEFAULT_TIMEOUT + TIMEOUT_SLACK,
                ..ToolSpec::from_types::<Args, Reply>(
                    NAME,
                    "Search in files",
                    "Searches text in files with a regular expression, as ripgrep does: fast, skipping \
                 hidden and binary files and what git ignores. Results are ordered by path and line.",
                )
            },
        }
    }
}

impl Default for FileSearch {
    fn default() -> Self {
        Self::new()
    }
}

impl Tool for FileSearch {
    type Args = SearchJob;

    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn limits(&self) -> Vec<ToolLimit> {
        vec![
            ToolLimit::from_range("results", ItemCount(DEFAULT_RESULTS), ItemCount(MAX_RESULTS)),
            ToolLimit::from_range("lines of context", ItemCount(0), ItemCount(MAX_CONTEXT)),
            ToolLimit::from_range("time", DEFAULT_TIMEOUT, MAX_TIMEOUT),
            ToolLimit::from_fixed(
                "characters shown per line",
                ItemCount(engine::LINE_CHARS as u64),
            ),
            ToolLimit::for_text(MAX_BYTES),
        ]
    }

    fn parse(&self, arguments: &Map<String, Value>, _: &PrepareCx<'_>) -> Result<SearchJob> {
        self.spec.parse_arguments::<Args>(arguments)?.build_job(arguments)
    }

    fn prepare(&self, args: &SearchJob, _: &PrepareCx<'_>) -> Result<CallPlan> {
        Ok(CallPlan { timeout: Some(args.timeout + TIMEOUT_SLACK), ..CallPlan::default() })
    }

    async fn run(
        self: Arc<Self>,
        cx: Arc<RunCx>,
        args: SearchJob,
        _call: Granted<Prepared>,
    ) -> Result<ToolOutput> {
        let cancel = cx.control.cancel.clone();
        let work = blocking::run_blocking(&cancel, "the search ended unexpectedly", move || {
            let stored = args
                .path
                .starts_with("output:")
                .then(|| cx.session().outputs.open_output(&args.path))
                .transpose()?;
            search_workspace(
                &cx.settings.workspace,
                stored,
                &args,
                cx.settings.text_budget,
                &cx.control.cancel,
            )
        });
        let reply = work.await?;
        let text = render::render_results(&reply);
        Ok(ToolOutput::from_structured(text, serde_json::to_value(reply).unwrap_or(Value::Null)))
    }
}

/// Searches the stored output if one is given, otherwise the workspace.
fn search_workspace(
    workspace: &Arc<Workspace>,
    stored: Option<File>,
    job: &SearchJob,
    budget: usize,
    cancel: &CancelToken,
) -> Result<Reply> {
    let start = match stored {
        Some(file) => WalkStart::File(file, job.path.clone()),
        None => WorkspaceTree::find_start(workspace, &job.path, job.sight)?,
    };
    let match_budget = job.match_budget(budget);
    let halt = WalkStop::new(cancel.clone(), Some(Instant::now() + job.timeout));
    let (mut reply, left_out) = collect_reply(job, &start, match_budget, &halt);
    // A timeout still returns what was found; a cancelled call needs no result.
    if cancel.is_cancelled() && cancel.cause() != Some(CancelCause::Deadline) {
        return Err(Error::new(Kind::Cancelled, "the search was cancelled"));
    }
    if reply.files_matched == 0 && !reply.timed_out && left_out > 0 {
        let warning = check_left_out(workspace, job, cancel)?;
        reply.warnings.extend(warning);
    }
    Ok(reply)
}

/// Runs the search. Returns the reply and the number of names that were left out.
fn collect_reply(
    job: &SearchJob,
    start: &WalkStart,
    match_budget: usize,
    halt: &WalkStop,
) -> (Reply, u64) {
    let results = SearchResults::new(job.max_results, match_budget, job.page_start.clone());
    let mut reply = Reply::default();
    match start {
        WalkStart::Tree(tree) => {
            let visitor = SearchVisitor::new(&job.spec, &job.filter, tree.path(), &results, halt);
            tree.walk(&visitor, thread_count(), halt);
            if results.files_searched() == 0 && !halt.is_stopped() {
                reply.warnings.push(
                    "no file was searched: there are none, or `glob`, `exclude`, `type` and the ignore rules exclude all of them"
                        .to_owned(),
                );
            }
        }
        WalkStart::File(file, path) => {
            if engine::search_one_file(&job.spec, file, path, &results, halt) {
                reply.warnings.push(
                    "this is a binary file: its zero bytes were treated as line ends".to_owned(),
                );
            }
        }
    }
    let left_out = results.left_out();
    results.fill_reply(&mut reply, &job.cursor_query, job.spec.mode, halt.is_stopped());
    if reply.timed_out {
        reply.warnings.push(
            "files that were not searched may match too: narrow the search with `path` or `glob`, or raise `timeout_ms`"
                .to_owned(),
        );
    }
    (reply, left_out)
}

/// Returns a warning if nothing was found only because ignored and hidden files were left out.
fn check_left_out(
    workspace: &Arc<Workspace>,
    job: &SearchJob,
    cancel: &CancelToken,
) -> Result<Option<String>> {
    let sight = WalkFilter { inverted: true, ..job.sight };
    let WalkStart::Tree(tree) = WorkspaceTree::find_start(workspace, &job.path, sight)? else {
        return Ok(None);
    };
    let halt =
        WalkStop::new(cancel.clone(), Some(Instant::now() + LEFT_OUT_TIMEOUT.min(job.timeout)));
    let results = SearchResults::new(3, MIN_BYTES, None);
    let spec = SearchSpec {
        mode: SearchOutput::Files,
        before: 0,
        after: 0,
        max_per_file: None,
        ..job.spec.clone()
    };
    let visitor = SearchVisitor::new(&spec, &job.filter, tree.path(), &results, &halt);
    tree.walk(&visitor, thread_count(), &halt);
    let mut left_out = Reply::default();
    results.fill_reply(&mut left_out, &job.cursor_query, SearchOutput::Files, false);
    if left_out.files_matched == 0 {
        return Ok(None);
    }
    let names: Vec<_> =
        left_out.matches.iter().map(|hit| crate::base::workspace::quote_path(&hit.path)).collect();
    let at_least = if halt.is_stopped() { "at least " } else { "" };
    Ok(Some(format!(
        "{at_least}{} files that are ignored by git or hidden match, such as {}: set `gitignore: false` or `hidden: true`",
        left_out.files_matched,
        names.join(", ")
    )))
}

#[cfg(test)]
mod tests;
