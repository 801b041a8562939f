//! `browser.act`: performs one user action on a page.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::navigate::{DOWNLOAD_WAIT, SnapshotChoice, format_events};
use crate::approval::Granted;
use crate::base::call::{Prepared, ToolOutput};
use crate::base::{Error, Kind, Result};
use crate::browser::act::{ActOp, MouseButton};
use crate::browser::downloads::PageDownload;
use crate::browser::navigate::{HistoryMove, LoadState};
use crate::browser::page::{DialogAnswers, PageDialog};
use crate::browser::snapshot::{SnapshotLines, SnapshotRequest};
use crate::config::Config;
use crate::tools::browser::{self, BrowserSpec, PageLease};
use crate::tools::limit_docs::{DisplayAmount, ItemCount, ToolLimit};
use crate::tools::{
    CallPlan, LazySchema, PermissionScope, PrepareCx, RunCx, Tool, ToolHints, ToolSpec, arguments,
};

/// Time for an element to become ready; `wait_for` has the whole time of the call.
const READY_TIMEOUT: Duration = Duration::from_secs(5);

/// Arguments of `browser.act`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// fill replaces the text of a field, type types key by key, press presses `key`.
    op: ActOp,
    /// A ref of browser.snapshot (e12), a CSS selector or text=words.
    target: Option<String>,
    /// Handle of a page (p1). Default: the current page.
    page: Option<String>,
    /// For fill and type.
    text: Option<String>,
    /// For press: Enter, Tab, a, Control+A …
    key: Option<String>,
    /// For select: values or labels of options.
    values: Option<Vec<String>>,
    /// For upload: workspace-relative paths.
    files: Option<Vec<String>>,
    /// For drag: where to.
    to: Option<String>,
    /// For scroll: pixels.
    dx: Option<f64>,
    /// For scroll: pixels; positive is down. Without dx and dy the target comes into view.
    dy: Option<f64>,
    /// For click: left (default), right or middle.
    button: Option<MouseButton>,
    /// For wait_for: wait until the target is gone.
    gone: Option<bool>,
    /// Say yes to confirm and prompt dialogs. Default: no. Alerts are always closed.
    accept_dialogs: Option<bool>,
    /// Answer to a prompt.
    prompt_text: Option<String>,
    /// Afterwards: none (default), interactive, full or text.
    snapshot: Option<SnapshotChoice>,
    /// Default 30000.
    timeout_ms: Option<u64>,
}

#[derive(Debug, Default, Serialize, JsonSchema)]
struct Reply {
    page: String,
    url: String,
    title: String,
    /// The page shows another document than before.
    navigated: bool,
    /// Other elements that match the selector; the first visible one was used.
    #[serde(skip_serializing_if = "is_zero")]
    other_matches: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    new_pages: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    dialogs: Vec<PageDialog>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    downloads: Vec<PageDownload>,
    console_errors: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot: Option<String>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The `browser.act` tool.
pub struct BrowserAct {
    spec: ToolSpec,
}

impl BrowserAct {
    /// Creates the tool.
    pub fn new(config: &Config) -> Self {
        let browser_spec = BrowserSpec {
            name: "browser.act",
            title: "Act on a page",
            description: "Clicks, types, selects, scrolls, drags, uploads or waits on a page opened with \
                browser.navigate. Waits until the element is ready, and for what the action triggers.",
            scope: PermissionScope::Network,
            hints: ToolHints {
                read_only: false,
                destructive: true,
                idempotent: false,
                open_world: true,
            },
            writes_files: false,
            input_schema: LazySchema::new(arguments::input_schema::<Args>),
            output_schema: LazySchema::new(arguments::reply_schema::<Reply>),
            returns_image: false,
        };
        BrowserAct { spec: browser::build_spec(config, browser_spec) }
    }

    fn parse_args(&self, arguments: &Map<String, Value>) -> Result<Args> {
        let args: Args = arguments::parse_arguments(arguments, &self.spec.input_schema)?;
        let require = |is_given: bool, name: &str| match is_given {
            true => Ok(()),
            false => Err(Error::invalid_arguments(format!("this op needs `{name}`"))
                .with_fact("argument", name)),
        };
        match args.op {
            ActOp::Type => require(args.text.is_some(), "text")?,
            ActOp::Press => require(args.key.is_some(), "key")?,
            ActOp::Scroll => require(args.target.is_some() || args.dx.or(args.dy).is_some(), "dy")?,
            ActOp::Back | ActOp::Forward | ActOp::Reload => {}
            op => {
                require(args.target.is_some(), "target")?;
                require(op != ActOp::Fill || args.text.is_some(), "text")?;
                require(op != ActOp::Select || args.values.is_some(), "values")?;
                require(op != ActOp::Upload || args.files.is_some(), "files")?;
                require(op != ActOp::Drag || args.to.is_some(), "to")?;
            }
        }
        Ok(args)
    }
}

async fn act_on_page(cx: &Arc<RunCx>, args: &Args, lease: &PageLease) -> Result<ToolOutput> {
    let (page, context) = (&lease.page, &lease.context);
    let limit = browser::page_timeout(args.timeout_ms);
    let deadline = Instant::now() + limit;
    let (document_before, last_log_seq, dialogs_before) = {
        let state = page.state();
        (state.current_document().to_owned(), state.log.last_seq(), state.dialogs_seen)
    };
    let answers = DialogAnswers {
        accept: args.accept_dialogs.unwrap_or(false),
        text: args.prompt_text.clone(),
    };
    let dialog_guard = page.answer_dialogs(answers);
    let known_pages: Vec<String> = context.pages().iter().map(|page| page.handle()).collect();
    let downloads_before = context.downloads.count();
    let op_result = perform_op(cx, args, lease, deadline).await;
    if op_result.is_ok() {
        page.wait_until_settled(&document_before, deadline).await;
    }
    drop(dialog_guard);
    let other_matches = op_result?;
    let snapshot = match args.snapshot.unwrap_or_default().snapshot_mode() {
        Some(mode) => {
            let lines = match page
                .take_snapshot(&SnapshotRequest { mode, ..SnapshotRequest::default() }, false)
                .await?
            {
                SnapshotLines::All(lines) | SnapshotLines::Changes(lines) => lines,
            };
            Some(browser::fit_lines(&lines, browser::text_budget(cx, None)).0)
        }
        None => None,
    };
    let (url, title) = page.describe().await;
    let downloads =
        context.downloads.wait_for_downloads(downloads_before, false, DOWNLOAD_WAIT).await;
    let new_pages = context
        .pages()
        .iter()
        .map(|page| page.handle())
        .filter(|handle| !known_pages.contains(handle))
        .collect();
    let state = page.state();
    let reply = Reply {
        page: page.handle(),
        url,
        title,
        navigated: state.current_document() != document_before,
        other_matches,
        new_pages,
        dialogs: state.dialogs_after(dialogs_before),
        downloads,
        console_errors: state
            .log
            .entries_after(last_log_seq)
            .filter(|entry| entry.kind == "error")
            .count() as u64,
        snapshot,
    };
    drop(state);
    Ok(browser::build_output(reply.format_text(), &reply))
}

/// Performs the action and returns how many other elements the selector matches.
async fn perform_op(
    cx: &Arc<RunCx>,
    args: &Args,
    lease: &PageLease,
    deadline: Instant,
) -> Result<u64> {
    let page = &lease.page;
    let ready_deadline = deadline.min(Instant::now() + READY_TIMEOUT);
    let target = args.target.as_deref();
    let selector = target.unwrap_or_default();
    let text = args.text.as_deref().unwrap_or_default();
    match args.op {
        ActOp::Click => {
            page.click_element(selector, args.button.unwrap_or_default(), 1, ready_deadline).await
        }
        ActOp::DoubleClick => {
            page.click_element(selector, args.button.unwrap_or_default(), 2, ready_deadline).await
        }
        ActOp::Hover => page.hover_element(selector, ready_deadline).await,
        ActOp::Fill => page.fill_element(selector, text, ready_deadline).await,
        ActOp::Type => page.type_text(target, text, ready_deadline).await,
        ActOp::Press => {
            page.press_key(target, args.key.as_deref().unwrap_or_default(), ready_deadline).await
        }
        ActOp::Select => {
            page.select_options(
                selector,
                args.values.as_deref().unwrap_or_default(),
                ready_deadline,
            )
            .await
        }
        ActOp::Check => page.set_checked(selector, true, ready_deadline).await,
        ActOp::Uncheck => page.set_checked(selector, false, ready_deadline).await,
        ActOp::Scroll => {
            let scroll_delta =
                args.dx.or(args.dy).map(|_| (args.dx.unwrap_or(0.0), args.dy.unwrap_or(0.0)));
            page.scroll_by(target, scroll_delta, ready_deadline).await
        }
        ActOp::Drag => {
            page.drag_element(selector, args.to.as_deref().unwrap_or_default(), ready_deadline)
                .await
        }
        ActOp::Upload => {
            let (uploads, files) =
                (Arc::clone(&lease.context.uploads), args.files.clone().unwrap_or_default());
            let workspace = Arc::clone(&cx.settings.workspace);
            let copied_files = async {
                let work = tokio::task::spawn_blocking(move || {
                    uploads.copy_for_browser(&workspace, &files)
                });
                work.await.map_err(|error| {
                    Error::internal("the copy ended unexpectedly").with_source(error)
                })?
            };
            page.upload_files(selector, copied_files, ready_deadline).await
        }
        ActOp::WaitFor => {
            page.wait_for_target(selector, args.gone.unwrap_or(false), deadline).await.map(|()| 0)
        }
        ActOp::Back | ActOp::Forward | ActOp::Reload => {
            let history_move = match args.op {
                ActOp::Back => HistoryMove::Back,
                ActOp::Forward => HistoryMove::Forward,
                _ => HistoryMove::Reload,
            };
            let time_left = deadline.saturating_duration_since(Instant::now());
            match page.move_in_history(history_move, LoadState::Load, time_left).await? {
                Some(_) => Ok(0),
                None => Err(Error::new(Kind::NotFound, "there is no page in that direction")
                    .with_reason("no_history")),
            }
        }
    }
}

impl Reply {
    fn format_text(&self) -> String {
        let moved = if self.navigated { "now at" } else { "at" };
        let mut text = format!("done; {} {moved} {}\n{}", self.page, self.url, self.title);
        if self.other_matches > 0 {
            text.push_str(&format!(
                "\n{} other elements match the selector as well",
                self.other_matches
            ));
        }
        if !self.new_pages.is_empty() {
            text.push_str(&format!("\nnew pages: {}", self.new_pages.join(", ")));
        }
        if self.console_errors > 0 {
            text.push_str(&format!("\n{} console errors: see browser.logs", self.console_errors));
        }
        text.push_str(&format_events(&self.dialogs, &self.downloads));
        if let Some(snapshot) = &self.snapshot {
            text.push_str(&format!("\n\n{snapshot}"));
        }
        text
    }
}

impl Tool for BrowserAct {
    type Args = Args;

    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn limits(&self) -> Vec<ToolLimit> {
        vec![
            ToolLimit::from_fixed(
                "files of an upload",
                ItemCount(crate::browser::upload::MAX_FILES as u64),
            ),
            ToolLimit {
                subject: "wait for an element",
                default_value: READY_TIMEOUT.format_amount(),
                maximum: "`[limits] timeout_ms`".to_owned(),
            },
        ]
    }

    fn parse(&self, arguments: &Map<String, Value>, _: &PrepareCx<'_>) -> Result<Args> {
        self.parse_args(arguments)
    }

    fn prepare(&self, args: &Args, cx: &PrepareCx<'_>) -> Result<CallPlan> {
        browser::prepare_call(cx, args.timeout_ms)
    }

    async fn run(
        self: Arc<Self>,
        cx: Arc<RunCx>,
        args: Args,
        _call: Granted<Prepared>,
    ) -> Result<ToolOutput> {
        let lease = PageLease::existing_page(&cx, args.page.as_deref()).await?;
        let limit = browser::page_timeout(args.timeout_ms) + Duration::from_secs(3);
        browser::run_within(&cx, &lease, limit, act_on_page(&cx, &args, &lease)).await
    }
}
