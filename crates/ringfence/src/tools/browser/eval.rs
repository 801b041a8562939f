//! `browser.eval`: runs a script in a page.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::approval::Granted;
use crate::base::Result;
use crate::base::call::{Prepared, ToolOutput};
use crate::config::Config;
use crate::tools::browser::{self, BrowserSpec, PageLease};
use crate::tools::limit_docs::ToolLimit;
use crate::tools::{
    CallPlan, LazySchema, PermissionScope, PrepareCx, RunCx, Tool, ToolHints, ToolSpec, arguments,
};

/// Arguments of `browser.eval`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// JavaScript: an expression, statements (last value) or a function. Promises are awaited.
    script: String,
    /// Handle of a page (p1). Default: the current page.
    page: Option<String>,
    /// Run it as a function of this element: a ref (e12), a CSS selector or text=words.
    target: Option<String>,
    /// Default 30000.
    timeout_ms: Option<u64>,
    /// Maximum bytes of the value, up to 262144.
    max_bytes: Option<usize>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Reply {
    page: String,
    /// As JSON text.
    value: String,
    /// string, number, boolean, object, array, null, undefined …
    kind: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

/// The `browser.eval` tool.
pub struct BrowserEval {
    spec: ToolSpec,
}

impl BrowserEval {
    /// Creates the tool.
    pub fn new(config: &Config) -> Self {
        let browser_spec = BrowserSpec {
            name: "browser.eval",
            title: "Run a script in a page",
            description: "Runs JavaScript in a page opened with browser.navigate and returns its value as JSON.",
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
        BrowserEval { spec: browser::build_spec(config, browser_spec) }
    }
}

async fn eval_script(cx: &RunCx, args: &Args, lease: &PageLease) -> Result<ToolOutput> {
    let max_bytes = browser::text_budget(cx, args.max_bytes);
    let limit = browser::page_timeout(args.timeout_ms);
    let evaluated =
        lease.page.eval_script(&args.script, args.target.as_deref(), max_bytes, limit).await?;
    let text = if evaluated.js_type == "undefined" {
        "undefined".to_owned()
    } else {
        evaluated.value.to_string()
    };
    let truncated = evaluated.truncated || text.len() > max_bytes;
    let value = crate::browser::page_log::truncate_text(&text, max_bytes);
    let shown_text = if truncated {
        format!("{value}\n… [cut: return less, or raise `max_bytes`]")
    } else {
        value.clone()
    };
    let reply = Reply { page: lease.page.handle(), value, kind: evaluated.js_type, truncated };
    Ok(browser::build_output(shown_text, &json!(reply)))
}

impl Tool for BrowserEval {
    type Args = Args;

    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn limits(&self) -> Vec<ToolLimit> {
        vec![ToolLimit::for_time(browser::DEFAULT_TIMEOUT), ToolLimit::for_text(browser::MAX_BYTES)]
    }

    fn parse(&self, arguments: &Map<String, Value>, _: &PrepareCx<'_>) -> Result<Args> {
        self.spec.parse_arguments(arguments)
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
        let limit = browser::page_timeout(args.timeout_ms) + std::time::Duration::from_millis(500);
        browser::run_within(&cx, &lease, limit, eval_script(&cx, &args, &lease)).await
    }
}
