//! `browser.logs`: returns the console messages, errors and requests of a page.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::approval::Granted;
use crate::base::Result;
use crate::base::call::{Prepared, ToolOutput};
use crate::browser::page_log::{PageLogEntry, PageLogKind, escape_line};
use crate::config::Config;
use crate::tools::browser::{self, BrowserSpec, PageLease};
use crate::tools::limit_docs::{DisplayAmount, ItemCount, ToolLimit};
use crate::tools::{
    CallPlan, LazySchema, PermissionScope, PrepareCx, RunCx, Tool, ToolHints, ToolSpec, arguments,
};

const DEFAULT_LIMIT: usize = 100;

/// Arguments of `browser.logs`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// Handle of a page (p1). Default: the current page.
    page: Option<String>,
    /// console, error, network, blocked, dialog, download. Default: all of them.
    kinds: Option<Vec<PageLogKind>>,
    /// Only entries that contain this text, ignoring case.
    filter: Option<String>,
    /// Only requests that failed, warnings and errors.
    failed: Option<bool>,
    /// Only entries after this number.
    since: Option<u64>,
    /// Only the newest N entries (100).
    limit: Option<usize>,
    /// Maximum bytes of text, up to 262144.
    max_bytes: Option<usize>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Reply {
    page: String,
    /// Oldest first.
    entries: Vec<PageLogEntry>,
    /// For `since` of the next call.
    last: u64,
    /// Refused by policy, for the whole session.
    blocked: Vec<PageLogEntry>,
    /// Older matching entries were left out.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
    /// Entries that were too old to be kept.
    #[serde(skip_serializing_if = "is_zero")]
    lost: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The `browser.logs` tool.
pub struct BrowserLogs {
    spec: ToolSpec,
}

impl BrowserLogs {
    /// Creates the tool.
    pub fn new(config: &Config) -> Self {
        let browser_spec = BrowserSpec {
            name: "browser.logs",
            title: "Read a page's logs",
            description: "Console messages, errors, requests, dialogs and downloads of a page, and what was blocked.",
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
        BrowserLogs { spec: browser::build_spec(config, browser_spec) }
    }
}

impl Args {
    fn wants_entry(&self, entry: &PageLogEntry) -> bool {
        let kind = self
            .kinds
            .as_ref()
            .is_none_or(|kinds| kinds.iter().any(|kind| kind.name() == entry.kind));
        let lower = |text: &str| text.to_lowercase();
        let contains_filter = |filter: &String| {
            lower(&entry.text).contains(&lower(filter))
                || entry.url.as_ref().is_some_and(|url| lower(url).contains(&lower(filter)))
        };
        let is_failure = ["error", "blocked"].contains(&entry.kind)
            || entry
                .level
                .as_deref()
                .is_some_and(|level| ["failed", "warning", "error", "exception"].contains(&level));
        kind && self.filter.as_ref().is_none_or(contains_filter)
            && (is_failure || self.failed != Some(true))
    }
}

fn format_entry(entry: &PageLogEntry) -> String {
    let mut line = format!("{} {}", entry.seq, entry.kind);
    if let Some(level) = &entry.level {
        line.push_str(&format!(" {}", escape_line(level)));
    }
    if let Some(status) = entry.status {
        line.push_str(&format!(" {status}"));
    }
    line.push_str(&format!(": {}", escape_line(&entry.text)));
    if let Some(url) = &entry.url {
        line.push_str(&format!(" ({}", escape_line(url)));
        if let Some(number) = entry.line {
            line.push_str(&format!(":{number}"));
        }
        line.push(')');
    }
    line
}

/// Returns the newest wanted entries that fit, and whether any were left out.
fn newest_entries<'a>(
    entries: impl DoubleEndedIterator<Item = &'a PageLogEntry>,
    limit: usize,
    byte_budget: &mut usize,
) -> (Vec<PageLogEntry>, bool) {
    let (mut newest, mut truncated) = (Vec::new(), false);
    for entry in entries.rev() {
        let size = format_entry(entry).len() + 60;
        if newest.len() >= limit || size > *byte_budget {
            truncated = true;
            break;
        }
        *byte_budget -= size;
        newest.push(entry.clone());
    }
    newest.reverse();
    (newest, truncated)
}

fn read_logs(cx: &RunCx, args: &Args, lease: &PageLease) -> ToolOutput {
    let since = args.since.unwrap_or(0);
    let limit = args.limit.unwrap_or(DEFAULT_LIMIT);
    let mut byte_budget = browser::text_budget(cx, args.max_bytes);
    let log = lease.context.traffic.lock_failed();
    let blocked_entries =
        log.entries_after(0).filter(|entry| entry.kind == PageLogKind::Blocked.name());
    let matching: Vec<&PageLogEntry> =
        blocked_entries.filter(|entry| args.wants_entry(entry)).collect();
    let (blocked, mut truncated) = newest_entries(matching.into_iter(), limit, &mut byte_budget);
    drop(log);
    let state = lease.page.state();
    let matching: Vec<&PageLogEntry> =
        state.log.entries_after(since).filter(|entry| args.wants_entry(entry)).collect();
    let (entries, entries_cut) = newest_entries(matching.into_iter(), limit, &mut byte_budget);
    truncated |= entries_cut;
    let lost = state.log.count_lost_after(since);
    let reply = Reply {
        page: lease.page.handle(),
        last: state.log.last_seq(),
        entries,
        blocked,
        truncated,
        lost,
    };
    drop(state);
    let mut lines: Vec<String> = reply.entries.iter().map(format_entry).collect();
    lines.extend(
        reply.blocked.iter().map(|entry| {
            format!("blocked: {} ({})", entry.text, entry.url.as_deref().unwrap_or(""))
        }),
    );
    if lines.is_empty() {
        lines.push("no entries".to_owned());
    }
    if reply.truncated {
        lines.insert(
            0,
            "[older entries left out: raise `limit` or `max_bytes`, or filter]".to_owned(),
        );
    }
    browser::build_output(lines.join("\n"), &reply)
}

impl Tool for BrowserLogs {
    type Args = Args;

    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn limits(&self) -> Vec<ToolLimit> {
        vec![ToolLimit {
            subject: "entries",
            default_value: DEFAULT_LIMIT.to_string(),
            maximum: ItemCount(crate::browser::page_log::MAX_ENTRIES as u64).format_amount(),
        }]
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
        Ok(read_logs(&cx, &args, &lease))
    }
}
