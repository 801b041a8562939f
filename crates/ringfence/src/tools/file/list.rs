//! `file.list`: lists the names below a directory, limited to what a model can use.

mod top_entries;

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
use crate::tools::{PrepareCx, RunCx, Tool, ToolSpec};
use top_entries::{EntryCollector, ListQuery};

const NAME: &str = "file.list";
const DEFAULT_LIMIT: u64 = 200;
const MAX_LIMIT: u64 = 5000;
/// After this time the entries found so far are returned.
const LIST_TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes reserved for everything in a result besides the entries.
const RESERVED_BYTES: usize = 400;

/// Arguments of `file.list`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// Directory, relative to the workspace (the default).
    path: Option<String>,
    /// Levels to descend: 1 (default; all with glob), 0 for all.
    depth: Option<u64>,
    /// Only these, relative to path: `*.rs`, `src/**/*.ts`.
    glob: Option<Vec<String>>,
    /// Globs to exclude.
    exclude: Option<Vec<String>>,
    /// Respect .gitignore (true).
    gitignore: Option<bool>,
    /// Include dot files (false).
    hidden: Option<bool>,
    #[serde(rename = "type")]
    kind: Option<EntryType>,
    /// name (default); newest or largest first.
    sort: Option<ListOrder>,
    /// Include size and mtime (false).
    details: Option<bool>,
    /// Maximum entries (200, at most 5000).
    limit: Option<u64>,
    /// next_cursor of the previous result.
    cursor: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum EntryType {
    #[default]
    Any,
    File,
    Directory,
    Symlink,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum ListOrder {
    #[default]
    Name,
    Mtime,
    Size,
}

#[derive(Debug, Default, Serialize, JsonSchema)]
struct Reply {
    entries: Vec<ListEntry>,
    /// Number of entries, shown or not.
    total: u64,
    truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
    /// Names left out: hidden or ignored by git.
    ignored: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
struct ListEntry {
    path: String,
    /// file, directory, symlink, fifo, socket, device
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtime: Option<String>,
    /// Target of a symlink.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    /// Number of entries of a large directory that is collapsed.
    #[serde(skip_serializing_if = "Option::is_none")]
    children: Option<u64>,
}

/// Validated arguments.
pub struct ListJob {
    path: String,
    sight: WalkFilter,
    query: ListQuery,
    cursor_query: CursorQuery,
    sorted_by_name: bool,
}

impl Args {
    fn build_job(&self, arguments: &Map<String, Value>) -> Result<ListJob> {
        let empty = Vec::new();
        let globs = self.glob.as_ref().unwrap_or(&empty);
        let filter = PathFilter::new(globs, self.exclude.as_ref().unwrap_or(&empty), None)?;
        let sort = self.sort.unwrap_or_default();
        let cursor_query = CursorQuery::from_arguments(NAME, arguments);
        let after_path = match &self.cursor {
            Some(_) if sort != ListOrder::Name => {
                return Err(Error::invalid_arguments("`cursor` works only with `sort: \"name\"`")
                    .with_hint("Raise `limit`, or narrow the list with `glob`."));
            }
            Some(cursor) => Some(cursor_query.decode_cursor(cursor)?.0),
            None => None,
        };
        let sight = WalkFilter {
            skip_ignored: self.gitignore.unwrap_or(true),
            show_hidden: self.hidden.unwrap_or(false) || filter.names_hidden,
            inverted: false,
        };
        let depth = self.depth.unwrap_or(u64::from(!filter.has_globs()));
        let query = ListQuery {
            depth: usize::try_from(depth).unwrap_or(0),
            kind: self.kind.unwrap_or_default(),
            sort,
            details: self.details.unwrap_or(false),
            limit: usize::try_from(self.limit.unwrap_or(DEFAULT_LIMIT).clamp(1, MAX_LIMIT))
                .unwrap_or(1),
            after_path,
            filter,
        };
        let path = self.path.clone().unwrap_or_else(|| ".".to_owned());
        Ok(ListJob { path, sight, query, cursor_query, sorted_by_name: sort == ListOrder::Name })
    }
}

/// The `file.list` tool.
pub struct FileList {
    spec: ToolSpec,
}

impl FileList {
    /// Creates the tool.
    pub fn new() -> Self {
        FileList {
            spec: ToolSpec::from_types::<Args, Reply>(
                NAME,
                "List files",
                "Lists a directory, or finds files by name: `glob: [\"**/*.rs\"]` goes through all levels. \
                 Leaves out hidden names and what git ignores unless told otherwise. Below `path`, a directory of more \
                 than 100 entries is one entry with `children`.",
            ),
        }
    }
}

impl Default for FileList {
    fn default() -> Self {
        Self::new()
    }
}

impl Tool for FileList {
    type Args = ListJob;

    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn limits(&self) -> Vec<ToolLimit> {
        vec![
            ToolLimit::from_range("entries", ItemCount(DEFAULT_LIMIT), ItemCount(MAX_LIMIT)),
            ToolLimit::from_fixed(
                "entries shown per directory before it is collapsed",
                ItemCount(top_entries::MAX_DIR_ENTRIES as u64),
            ),
            ToolLimit::from_fixed("time spent listing", LIST_TIMEOUT),
        ]
    }

    fn parse(&self, arguments: &Map<String, Value>, _: &PrepareCx<'_>) -> Result<ListJob> {
        self.spec.parse_arguments::<Args>(arguments)?.build_job(arguments)
    }

    async fn run(
        self: Arc<Self>,
        cx: Arc<RunCx>,
        args: ListJob,
        _call: Granted<Prepared>,
    ) -> Result<ToolOutput> {
        let cancel = cx.control.cancel.clone();
        let work = move || {
            list_directory(
                &cx.settings.workspace,
                &args,
                cx.settings.text_budget,
                &cx.control.cancel,
            )
        };
        let reply = blocking::run_blocking(&cancel, "the list ended unexpectedly", work).await?;
        let text = top_entries::render_list(&reply);
        Ok(ToolOutput::from_structured(text, serde_json::to_value(reply).unwrap_or(Value::Null)))
    }
}

fn list_directory(
    workspace: &Arc<Workspace>,
    job: &ListJob,
    budget: usize,
    cancel: &CancelToken,
) -> Result<Reply> {
    list_until_halted(
        workspace,
        job,
        budget,
        &WalkStop::new(cancel.clone(), Some(Instant::now() + LIST_TIMEOUT)),
        cancel,
    )
}

fn list_until_halted(
    workspace: &Arc<Workspace>,
    job: &ListJob,
    budget: usize,
    halt: &WalkStop,
    cancel: &CancelToken,
) -> Result<Reply> {
    let tree = match WorkspaceTree::find_start(workspace, &job.path, job.sight)? {
        WalkStart::Tree(tree) => tree,
        WalkStart::File(_, path) => {
            return Err(Error::invalid_arguments(format!(
                "{} is a file, not a directory",
                crate::base::workspace::quote_path(&path)
            ))
            .with_reason("not_a_directory")
            .with_hint("Read it with `file.read`, or list its parent directory."));
        }
    };
    let collector = EntryCollector::new(&job.query, tree.path());
    let workers = if job.query.depth == 1 { 1 } else { thread_count() };
    tree.walk(&collector, workers, halt);
    // A timeout still returns what was found; a cancelled call needs no result.
    if cancel.is_cancelled() && cancel.cause() != Some(CancelCause::Deadline) {
        return Err(Error::new(Kind::Cancelled, "the list was cancelled"));
    }
    let mut collected = collector.into_top_entries();
    if halt.is_stopped() {
        collected.warnings.push(
            "the tree is very large and was listed only in part; list a subdirectory".to_owned(),
        );
    }
    let (entries, shown_count, last_path) =
        collected.take_fitting(budget.saturating_sub(RESERVED_BYTES));
    let is_halted = halt.is_stopped();
    let truncated = collected.total > collected.already_shown + shown_count || is_halted;
    let next_cursor = match last_path {
        // After an incomplete walk there may be entries before the last one shown: continuing after
        // it would skip them.
        Some(path) if truncated && !is_halted && job.sorted_by_name => {
            Some(job.cursor_query.encode_cursor(&path, 0))
        }
        _ => None,
    };
    Ok(Reply {
        entries,
        total: collected.total,
        truncated,
        next_cursor,
        ignored: collected.ignored,
        warnings: collected.warnings,
    })
}

#[cfg(test)]
mod tests;
