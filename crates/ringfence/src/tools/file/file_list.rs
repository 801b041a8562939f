//! `file.list`: lists the names below a directory, limited to what a model can use.

mod pick;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::cursor::Question;
use super::selection::Selection;
use super::turn;
use crate::approval::Granted;
use crate::base::call::{Output, Prepared};
use crate::base::workspace::Workspace;
use crate::base::workspace::tree::{Halt, Sight, Start, Tree, threads};
use crate::base::{Cancel, Cause, Error, Kind, Result};
use crate::tools::limits::{Count, Limit};
use crate::tools::{Hints, Plan, PrepareCx, RunCx, Scope, Spec, Tool, arguments};
use pick::{Picker, Wanted};

const NAME: &str = "file.list";
const DEFAULT_LIMIT: u64 = 200;
const MAX_LIMIT: u64 = 5000;
/// After this time the entries found so far are returned.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes reserved for everything in a result besides the entries.
const FRAME_BYTES: usize = 400;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
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
    sort: Option<Sort>,
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
enum Sort {
    #[default]
    Name,
    Mtime,
    Size,
}

#[derive(Debug, Default, Serialize, JsonSchema)]
struct Reply {
    entries: Vec<Item>,
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
struct Item {
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
struct Job {
    path: String,
    sight: Sight,
    wanted: Wanted,
    question: Question,
    sorted_by_name: bool,
}

impl Args {
    fn job(&self, arguments: &Map<String, Value>) -> Result<Job> {
        let none = Vec::new();
        let globs = self.glob.as_ref().unwrap_or(&none);
        let selection = Selection::new(globs, self.exclude.as_ref().unwrap_or(&none), None)?;
        let sort = self.sort.unwrap_or_default();
        let question = Question::of(NAME, arguments);
        let after = match &self.cursor {
            Some(_) if sort != Sort::Name => {
                return Err(Error::invalid_arguments("`cursor` works only with `sort: \"name\"`")
                    .hint("Raise `limit`, or narrow the list with `glob`."));
            }
            Some(cursor) => Some(question.place(cursor)?.0),
            None => None,
        };
        let sight = Sight {
            gitignore: self.gitignore.unwrap_or(true),
            hidden: self.hidden.unwrap_or(false) || selection.names_hidden,
            left_out: false,
        };
        let depth = self.depth.unwrap_or(u64::from(!selection.has_globs()));
        let wanted = Wanted {
            depth: usize::try_from(depth).unwrap_or(0),
            kind: self.kind.unwrap_or_default(),
            sort,
            details: self.details.unwrap_or(false),
            limit: usize::try_from(self.limit.unwrap_or(DEFAULT_LIMIT).clamp(1, MAX_LIMIT))
                .unwrap_or(1),
            after,
            selection,
        };
        let path = self.path.clone().unwrap_or_else(|| ".".to_owned());
        Ok(Job { path, sight, wanted, question, sorted_by_name: sort == Sort::Name })
    }
}

/// The `file.list` tool.
pub struct FileList {
    spec: Spec,
}

impl FileList {
    /// Creates the tool.
    pub fn new() -> Self {
        FileList {
            spec: Spec {
                name: NAME.into(),
                title: "List files".into(),
                description: "Lists a directory, or finds files by name: `glob: [\"**/*.rs\"]` goes through all levels. \
                    Leaves out hidden names and what git ignores unless told otherwise. Below `path`, a directory of more \
                    than 100 entries is one entry with `children`."
                    .into(),
                version: "1.0.0".into(),
                scope: Scope::Workspace,
                hints: Hints { read_only: true, destructive: false, idempotent: true, open_world: false },
                effects: vec![],
                profile: "default",
                input_schema: arguments::schema::<Args>(),
                output_schema: Some(arguments::reply_schema::<Reply>()),
                lists_output_schema: true,
                requires_approval: false,
                streaming: false,
                timeout: Duration::from_secs(30),
                unavailable: None,
            },
        }
    }
}

impl Default for FileList {
    fn default() -> Self {
        Self::new()
    }
}

impl Tool for FileList {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn limits(&self) -> Vec<Limit> {
        vec![
            Limit::up_to("entries", Count(DEFAULT_LIMIT), Count(MAX_LIMIT)),
            Limit::fixed(
                "entries shown per directory before it is collapsed",
                Count(pick::COLLAPSE as u64),
            ),
            Limit::fixed("time spent listing", PATIENCE),
        ]
    }

    fn prepare(&self, arguments: &Map<String, Value>, _: &PrepareCx<'_>) -> Result<Plan> {
        arguments::parse::<Args>(arguments, &self.spec.input_schema)?.job(arguments)?;
        Ok(Plan::default())
    }

    fn run(
        self: Arc<Self>,
        cx: Arc<RunCx>,
        call: Granted<Prepared>,
    ) -> BoxFuture<'static, Result<Output>> {
        Box::pin(async move {
            let arguments = call.consume().arguments;
            let args: Args = arguments::parse(&arguments, &self.spec.input_schema)?;
            let job = args.job(&arguments)?;
            let cancel = cx.cancel.clone();
            let work = move || list(&cx.workspace, &job, cx.budget, &cx.cancel);
            let reply = turn::blocking(&cancel, "the list ended unexpectedly", work).await?;
            let text = pick::render(&reply);
            Ok(Output::of(text, serde_json::to_value(reply).unwrap_or(Value::Null)))
        })
    }
}

fn list(workspace: &Arc<Workspace>, job: &Job, budget: usize, cancel: &Cancel) -> Result<Reply> {
    list_until(
        workspace,
        job,
        budget,
        &Halt::new(cancel.clone(), Some(Instant::now() + PATIENCE)),
        cancel,
    )
}

fn list_until(
    workspace: &Arc<Workspace>,
    job: &Job,
    budget: usize,
    halt: &Halt,
    cancel: &Cancel,
) -> Result<Reply> {
    let tree = match Tree::at(workspace, &job.path, job.sight)? {
        Start::Tree(tree) => tree,
        Start::File(_, path) => {
            return Err(Error::invalid_arguments(format!(
                "{} is a file, not a directory",
                crate::base::workspace::quoted(&path)
            ))
            .reason("not_a_directory")
            .hint("Read it with `file.read`, or list its parent directory."));
        }
    };
    let picker = Picker::new(&job.wanted, tree.path());
    let hands = if job.wanted.depth == 1 { 1 } else { threads() };
    tree.walk(&picker, hands, halt);
    // A timeout still returns what was found; a cancelled call needs no result.
    if cancel.is_cancelled() && cancel.cause() != Some(Cause::Deadline) {
        return Err(Error::new(Kind::Cancelled, "the list was cancelled"));
    }
    let mut picked = picker.finish();
    if halt.is_called() {
        picked.warnings.push(
            "the tree is very large and was listed only in part; list a subdirectory".to_owned(),
        );
    }
    let (items, shown, last) = picked.fit(budget.saturating_sub(FRAME_BYTES));
    let halted = halt.is_called();
    let truncated = picked.total > picked.before + shown || halted;
    let next_cursor = match last {
        // After an incomplete walk there may be entries before the last one shown: continuing after
        // it would skip them.
        Some(path) if truncated && !halted && job.sorted_by_name => {
            Some(job.question.cursor(&path, 0))
        }
        _ => None,
    };
    Ok(Reply {
        entries: items,
        total: picked.total,
        truncated,
        next_cursor,
        ignored: picked.ignored,
        warnings: picked.warnings,
    })
}

#[cfg(test)]
mod tests;
