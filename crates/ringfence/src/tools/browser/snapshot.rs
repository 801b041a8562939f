//! `browser.snapshot`: describes a page and its controls as text with refs.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::approval::Granted;
use crate::base::Result;
use crate::base::call::{Prepared, ToolOutput};
use crate::browser::snapshot::{SnapshotLines, SnapshotMode, SnapshotRequest};
use crate::config::Config;
use crate::tools::browser::{self, BrowserSpec, PageLease};
use crate::tools::limit_docs::{ItemCount, ToolLimit};
use crate::tools::{
    CallPlan, LazySchema, PermissionScope, PrepareCx, RunCx, Tool, ToolHints, ToolSpec, arguments,
};

/// Arguments of `browser.snapshot`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// Handle of a page (p1). Default: the current page.
    page: Option<String>,
    /// interactive (default): what can be acted on; full: everything; text: the words alone.
    mode: Option<SnapshotMode>,
    /// Only this element: a ref (e12), a CSS selector or text=words.
    target: Option<String>,
    /// How many levels. Default: all.
    depth: Option<usize>,
    /// Only what has changed since the last snapshot of the same.
    diff: Option<bool>,
    /// Maximum bytes of text, up to 262144.
    max_bytes: Option<usize>,
}

#[derive(Debug, Default, Serialize, JsonSchema)]
struct Reply {
    page: String,
    url: String,
    title: String,
    /// A line for each element, with its ref in brackets; with diff + and - lines.
    snapshot: String,
    lines: usize,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
    /// The lines are changes.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    diff: bool,
}

/// The `browser.snapshot` tool.
pub struct BrowserSnapshot {
    spec: ToolSpec,
}

impl BrowserSnapshot {
    /// Creates the tool.
    pub fn new(config: &Config) -> Self {
        let browser_spec = BrowserSpec {
            name: "browser.snapshot",
            title: "Look at a page as text",
            description: "A page and its controls as text, from its accessibility tree, frames included. Elements have \
                refs ([e12]) for browser.act; a ref is valid until the page changes.",
            scope: PermissionScope::Network,
            hints: ToolHints {
                read_only: true,
                destructive: false,
                idempotent: true,
                open_world: true,
            },
            writes_files: false,
            input_schema: LazySchema::new(arguments::input_schema::<Args>),
            output_schema: LazySchema::new(arguments::reply_schema::<Reply>),
            returns_image: false,
        };
        BrowserSnapshot { spec: browser::build_spec(config, browser_spec) }
    }
}

async fn take_snapshot(cx: &RunCx, args: &Args, lease: &PageLease) -> Result<ToolOutput> {
    let request = SnapshotRequest {
        mode: args.mode.unwrap_or_default(),
        target: args.target.clone(),
        depth: args.depth,
    };
    let (lines, diff) = match lease.page.take_snapshot(&request, args.diff.unwrap_or(false)).await?
    {
        SnapshotLines::All(lines) => (lines, false),
        SnapshotLines::Changes(lines) => (lines, true),
    };
    let (url, title) = lease.page.describe().await;
    let (snapshot, truncated) =
        browser::fit_lines(&lines, browser::text_budget(cx, args.max_bytes));
    let reply = Reply {
        page: lease.page.handle(),
        url,
        title,
        snapshot,
        lines: lines.len(),
        truncated,
        diff,
    };
    let empty_text = if diff { "nothing has changed" } else { "nothing to show" };
    let body = if reply.snapshot.is_empty() { empty_text } else { &reply.snapshot };
    let text = format!("{}: {}\n{}\n\n{body}", reply.page, reply.url, reply.title);
    Ok(browser::build_output(text, &reply))
}

impl Tool for BrowserSnapshot {
    type Args = Args;

    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn limits(&self) -> Vec<ToolLimit> {
        vec![
            ToolLimit::for_text(browser::MAX_BYTES),
            ToolLimit::from_fixed("lines", ItemCount(crate::browser::snapshot::MAX_LINES as u64)),
        ]
    }

    fn parse(&self, arguments: &Map<String, Value>, _: &PrepareCx<'_>) -> Result<Args> {
        self.spec.parse_arguments(arguments)
    }

    fn prepare(&self, _: &Args, cx: &PrepareCx<'_>) -> Result<CallPlan> {
        browser::prepare_call(cx, None)
    }

    async fn run(
        self: Arc<Self>,
        cx: Arc<RunCx>,
        args: Args,
        _call: Granted<Prepared>,
    ) -> Result<ToolOutput> {
        let lease = PageLease::existing_page(&cx, args.page.as_deref()).await?;
        let work = take_snapshot(&cx, &args, &lease);
        browser::run_within(&cx, &lease, browser::DEFAULT_TIMEOUT, work).await
    }
}
