//! `browser.tabs`: lists, opens, selects and closes the pages of a session.

use std::sync::Arc;

use futures::future::BoxFuture;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::approval::Granted;
use crate::base::call::{Output, Prepared};
use crate::base::{Error, Result};
use crate::browser::downloads::PageDownload;
use crate::browser::tabs::BrowserContext;
use crate::config::Config;
use crate::sandbox::Launcher;
use crate::tools::browser::{self, About, Held};
use crate::tools::limits::{Count, Limit};
use crate::tools::{Hints, Plan, PrepareCx, RunCx, Scope, Spec, Tool, arguments};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    /// list (default), new, select, close, or close_all (also deletes cookies and storage).
    op: Option<Op>,
    /// Handle of the page to select or close.
    page: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Op {
    #[default]
    List,
    New,
    Select,
    Close,
    CloseAll,
}

#[derive(Debug, Default, Serialize, JsonSchema)]
struct Reply {
    pages: Vec<Tab>,
    /// Files that pages have saved.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    downloads: Vec<PageDownload>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Tab {
    page: String,
    url: String,
    title: String,
    /// Used when no page is named.
    current: bool,
}

/// The `browser.tabs` tool.
pub struct BrowserTabs {
    spec: Spec,
    launcher: Launcher,
}

impl BrowserTabs {
    /// Creates the tool.
    pub fn new(config: &Config) -> Self {
        let about = About {
            name: "browser.tabs",
            title: "List and close pages",
            description: "Lists, opens, selects and closes the pages of this session.",
            scope: Scope::Network,
            hints: Hints {
                read_only: false,
                destructive: true,
                idempotent: false,
                open_world: true,
            },
            writes: false,
            input: arguments::schema::<Args>(),
            output: arguments::reply_schema::<Reply>(),
            image: false,
        };
        BrowserTabs { spec: browser::spec(config, about), launcher: Launcher::from_current_exe() }
    }

    async fn execute(&self, cx: &RunCx, args: Args) -> Result<Output> {
        let page = args.page.as_deref();
        match args.op.unwrap_or_default() {
            Op::List => {}
            Op::New => drop(Held::open(cx, &self.launcher, Some("new")).await?),
            Op::Select => drop(Held::existing(cx, page).await?),
            Op::Close => {
                let held = Held::existing(cx, page).await?;
                let closed = held.context.close_page(&held.page);
                browser::within(cx, &held, browser::DEFAULT_TIMEOUT, closed).await?;
            }
            Op::CloseAll => browser::tabs(cx)?.close_all().await,
        }
        let reply = match browser::tabs(cx)?.current_context().await {
            Some((context, _busy)) => list(&context).await,
            None => Reply::default(),
        };
        let mut lines: Vec<String> = reply.pages.iter().map(line).collect();
        if lines.is_empty() {
            lines.push("no pages".to_owned());
        }
        let text = lines.join("\n") + &super::browser_navigate::happenings(&[], &reply.downloads);
        Ok(browser::output(text, &reply))
    }
}

async fn list(context: &BrowserContext) -> Reply {
    let mut reply = Reply {
        downloads: context.downloads.wait_for_downloads(0, false, std::time::Duration::ZERO).await,
        ..Reply::default()
    };
    for page in context.pages() {
        let (url, title) = page.describe().await;
        reply.pages.push(Tab {
            page: page.handle(),
            url,
            title,
            current: context.is_current(&page),
        });
    }
    reply
}

fn line(tab: &Tab) -> String {
    let mark = if tab.current { "*" } else { " " };
    format!("{mark} {}: {} {}", tab.page, tab.url, tab.title)
}

impl Tool for BrowserTabs {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn limits(&self) -> Vec<Limit> {
        vec![Limit::fixed("pages of a session", Count(crate::browser::tabs::MAX_PAGES as u64))]
    }

    fn prepare(&self, arguments: &Map<String, Value>, cx: &PrepareCx<'_>) -> Result<Plan> {
        let args: Args = arguments::parse(arguments, &self.spec.input_schema)?;
        if args.page.is_none() && matches!(args.op, Some(Op::Select | Op::Close)) {
            return Err(Error::invalid_arguments("name the `page`")
                .hint("browser.tabs without arguments lists them."));
        }
        browser::prepare(cx, None)
    }

    fn run(
        self: Arc<Self>,
        cx: Arc<RunCx>,
        call: Granted<Prepared>,
    ) -> BoxFuture<'static, Result<Output>> {
        Box::pin(async move {
            let args = arguments::parse(&call.consume().arguments, &self.spec.input_schema)?;
            self.execute(&cx, args).await
        })
    }
}
