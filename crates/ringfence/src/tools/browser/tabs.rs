//! `browser.tabs`: lists, opens, selects and closes the pages of a session.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::approval::Granted;
use crate::base::call::{Prepared, ToolOutput};
use crate::base::{Error, Result};
use crate::browser::downloads::PageDownload;
use crate::browser::tabs::BrowserContext;
use crate::config::Config;
use crate::sandbox::Launcher;
use crate::tools::browser::{self, BrowserSpec, PageLease};
use crate::tools::limit_docs::{ItemCount, ToolLimit};
use crate::tools::{
    CallPlan, LazySchema, PermissionScope, PrepareCx, RunCx, Tool, ToolHints, ToolSpec, arguments,
};

/// Arguments of `browser.tabs`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// list (default), new, select, close, or close_all (also deletes cookies and storage).
    op: Option<TabsOp>,
    /// Handle of the page to select or close.
    page: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum TabsOp {
    #[default]
    List,
    New,
    Select,
    Close,
    CloseAll,
}

#[derive(Debug, Default, Serialize, JsonSchema)]
struct Reply {
    pages: Vec<TabRow>,
    /// Files that pages have saved.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    downloads: Vec<PageDownload>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct TabRow {
    page: String,
    url: String,
    title: String,
    /// Used when no page is named.
    current: bool,
}

/// The `browser.tabs` tool.
pub struct BrowserTabs {
    spec: ToolSpec,
    launcher: Launcher,
}

impl BrowserTabs {
    /// Creates the tool.
    pub fn new(config: &Config) -> Self {
        let browser_spec = BrowserSpec {
            name: "browser.tabs",
            title: "List and close pages",
            description: "Lists, opens, selects and closes the pages of this session.",
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
        BrowserTabs {
            spec: browser::build_spec(config, browser_spec),
            launcher: Launcher::from_current_exe(),
        }
    }

    async fn execute_call(&self, cx: &RunCx, args: Args) -> Result<ToolOutput> {
        let page = args.page.as_deref();
        match args.op.unwrap_or_default() {
            TabsOp::List => {}
            TabsOp::New => drop(PageLease::open_page(cx, &self.launcher, Some("new")).await?),
            TabsOp::Select => drop(PageLease::existing_page(cx, page).await?),
            TabsOp::Close => {
                let lease = PageLease::existing_page(cx, page).await?;
                let closing = lease.context.close_page(&lease.page);
                browser::run_within(cx, &lease, browser::DEFAULT_TIMEOUT, closing).await?;
            }
            TabsOp::CloseAll => browser::session_tabs(cx).close_all().await,
        }
        let reply = match browser::session_tabs(cx).current_context().await {
            Some((context, _busy)) => list_tabs(&context).await,
            None => Reply::default(),
        };
        let mut lines: Vec<String> = reply.pages.iter().map(format_tab).collect();
        if lines.is_empty() {
            lines.push("no pages".to_owned());
        }
        let text = lines.join("\n") + &super::navigate::format_events(&[], &reply.downloads);
        Ok(browser::build_output(text, &reply))
    }
}

async fn list_tabs(context: &BrowserContext) -> Reply {
    let mut reply = Reply {
        downloads: context.downloads.wait_for_downloads(0, false, std::time::Duration::ZERO).await,
        ..Reply::default()
    };
    for page in context.pages() {
        let (url, title) = page.describe().await;
        reply.pages.push(TabRow {
            page: page.handle(),
            url,
            title,
            current: context.is_current(&page),
        });
    }
    reply
}

fn format_tab(tab: &TabRow) -> String {
    let mark = if tab.current { "*" } else { " " };
    format!("{mark} {}: {} {}", tab.page, tab.url, tab.title)
}

impl Tool for BrowserTabs {
    type Args = Args;

    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn limits(&self) -> Vec<ToolLimit> {
        vec![ToolLimit::from_fixed(
            "pages of a session",
            ItemCount(crate::browser::tabs::MAX_PAGES as u64),
        )]
    }

    fn parse(&self, arguments: &Map<String, Value>, _: &PrepareCx<'_>) -> Result<Args> {
        let args: Args = self.spec.parse_arguments(arguments)?;
        if args.page.is_none() && matches!(args.op, Some(TabsOp::Select | TabsOp::Close)) {
            return Err(Error::invalid_arguments("name the `page`")
                .with_hint("browser.tabs without arguments lists them."));
        }
        Ok(args)
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
        self.execute_call(&cx, args).await
    }
}
