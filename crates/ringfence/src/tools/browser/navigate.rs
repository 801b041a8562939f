//! `browser.navigate`: opens an address in a page and waits until it has loaded.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::approval::{ApprovalPrompt, Granted, TrustKey};
use crate::base::call::{Prepared, ToolOutput};
use crate::base::{Error, Result};
use crate::browser::address;
use crate::browser::downloads::PageDownload;
use crate::browser::navigate::LoadState;
use crate::browser::page::{HANG_TIMEOUT, PageDialog, PageRedirect, RequestCounts};
use crate::browser::snapshot::{SnapshotLines, SnapshotMode, SnapshotRequest};
use crate::config::Config;
use crate::sandbox::Launcher;
use crate::sandbox::browser::page_allow_list;
use crate::tools::browser::{self, BrowserSpec, PageLease};
use crate::tools::limit_docs::{ItemCount, ToolLimit};
use crate::tools::{
    CallPlan, LazySchema, PermissionScope, PrepareCx, RunCx, Tool, ToolHints, ToolSpec, arguments,
};

/// Arguments of `browser.navigate`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// http or https address. localhost is this session's own: servers started by shell.exec.
    url: String,
    /// Handle of a page (p1), or new. Default: the current page.
    page: Option<String>,
    /// Default: load.
    wait_until: Option<LoadState>,
    /// Then wait for a CSS selector or text=words.
    wait_for: Option<String>,
    /// Default 30000.
    timeout_ms: Option<u64>,
    /// Snapshot to return, as browser.snapshot. Default: none.
    snapshot: Option<SnapshotChoice>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SnapshotChoice {
    #[default]
    None,
    Interactive,
    Full,
    Text,
}

impl SnapshotChoice {
    /// Returns the mode of the snapshot, if one is wanted.
    pub fn snapshot_mode(self) -> Option<SnapshotMode> {
        match self {
            SnapshotChoice::None => None,
            SnapshotChoice::Interactive => Some(SnapshotMode::Interactive),
            SnapshotChoice::Full => Some(SnapshotMode::Full),
            SnapshotChoice::Text => Some(SnapshotMode::Text),
        }
    }
}

#[derive(Debug, Default, Serialize, JsonSchema)]
struct Reply {
    page: String,
    url: String,
    title: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    http_status: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    redirects: Vec<PageRedirect>,
    load_ms: u64,
    /// Only partly loaded.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    timed_out: bool,
    console_errors: u64,
    requests: RequestCounts,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    dialogs: Vec<PageDialog>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    downloads: Vec<PageDownload>,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot: Option<String>,
}

/// The `browser.navigate` tool.
pub struct BrowserNavigate {
    spec: ToolSpec,
    launcher: Launcher,
}

impl BrowserNavigate {
    /// Creates the tool.
    pub fn new(config: &Config) -> Self {
        let browser_spec = BrowserSpec {
            name: "browser.navigate",
            title: "Open a page",
            description: "Opens an address in a real browser (Chromium) of this session and waits until it has loaded. \
                Look at it with browser.screenshot or browser.snapshot, use it with browser.act.",
            scope: PermissionScope::Network,
            hints: ToolHints {
                read_only: false,
                destructive: false,
                idempotent: false,
                open_world: true,
            },
            writes_files: false,
            input_schema: LazySchema::new(arguments::input_schema::<Args>),
            output_schema: LazySchema::new(arguments::reply_schema::<Reply>),
            returns_image: false,
        };
        BrowserNavigate {
            spec: browser::build_spec(config, browser_spec),
            launcher: Launcher::from_current_exe(),
        }
    }

    async fn execute_call(&self, cx: &RunCx, args: Args, call: Prepared) -> Result<ToolOutput> {
        let url = address::check_url(&args.url)?;
        let granted =
            match host_to_approve(&cx.settings.config, &browser::denied_hosts(cx).await?, &url)? {
                Some(endpoint) => Some(confirm_host(cx, &call, &url, endpoint).await?.consume()),
                None => None,
            };
        let mut lease = PageLease::open_page(cx, &self.launcher, args.page.as_deref()).await?;
        lease.replace_if_hung().await?;
        if let Some((host, port)) = granted {
            lease.context.proxy.allow_host(&host, port)?;
        }
        let limit = browser::page_timeout(args.timeout_ms);
        let work = self.load_page(cx, &args, &url, &lease);
        browser::run_within(
            cx,
            &lease,
            limit + std::time::Duration::from_secs(3) + HANG_TIMEOUT,
            work,
        )
        .await
    }

    async fn load_page(
        &self,
        cx: &RunCx,
        args: &Args,
        url: &str,
        lease: &PageLease,
    ) -> Result<ToolOutput> {
        let started = Instant::now();
        let limit = browser::page_timeout(args.timeout_ms);
        let (page, context) = (&lease.page, &lease.context);
        let (last_log_seq, dialogs_before) = {
            let state = page.state();
            (state.log.last_seq(), state.dialogs_seen)
        };
        let (downloads_before, last_failed_seq) =
            (context.downloads.count(), context.traffic.lock_failed().last_seq());
        let arrival = page.navigate_to(url, args.wait_until.unwrap_or_default(), limit).await?;
        if arrival.timed_out && page.is_hung().await {
            return Err(browser::timeout_error(limit));
        }
        if let Some(target) = &args.wait_for {
            page.wait_for_target(target, false, started + limit).await?;
        }
        let load_ms = crate::tools::run::command::to_millis(started.elapsed());
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
        let downloads = context
            .downloads
            .wait_for_downloads(downloads_before, arrival.is_download, DOWNLOAD_WAIT)
            .await;
        let state = page.state();
        let mut requests = state.counts;
        requests.blocked += context.traffic.count_blocked_after(last_failed_seq);
        let reply = Reply {
            page: page.handle(),
            url,
            title,
            http_status: arrival.status,
            redirects: arrival.redirects,
            load_ms,
            timed_out: arrival.timed_out,
            console_errors: state
                .log
                .entries_after(last_log_seq)
                .filter(|entry| entry.kind == "error")
                .count() as u64,
            requests,
            dialogs: state.dialogs_after(dialogs_before),
            downloads,
            snapshot,
        };
        drop(state);
        Ok(browser::build_output(reply.format_text(), &reply))
    }
}

/// Returns the host and port of an address that the sandbox does not allow but a human may. Refuses
/// an address that not even a human may allow.
fn host_to_approve(config: &Config, denied: &[String], url: &str) -> Result<Option<(String, u16)>> {
    let Some((host, port)) = address::host_and_port(url) else { return Ok(None) };
    let allow_list = page_allow_list(&config.default_sandbox)?.with_denied(denied)?;
    if address::is_loopback(&host) || allow_list.allows_host(&host, port) {
        return Ok(None);
    }
    if !allow_list.with_granted(&host, port)?.allows_host(&host, port) {
        let message = format!(
            "{host}:{port} may not be reached: it is private, or the operator has denied it"
        );
        return Err(Error::permission_denied("blocked_by_policy", message).with_hint(
            "Only public addresses can be opened, and servers that you start on localhost.",
        ));
    }
    Ok(Some((host, port)))
}

/// Asks for one host, which then stays open to the session's pages: they need it for longer than
/// this call.
async fn confirm_host(
    cx: &RunCx,
    call: &Prepared,
    url: &str,
    endpoint: (String, u16),
) -> Result<Granted<(String, u16)>> {
    let subject = format!("{}:{}", endpoint.0, endpoint.1);
    let reason = "The sandbox does not allow this host. Approving lets this session's pages reach it until they are closed.";
    let prompt =
        ApprovalPrompt::for_exec(call, subject.clone(), reason, json!({"url": url}), cx.session());
    let trust_key = TrustKey { subject: "browser host".to_owned(), detail: subject };
    cx.confirm_for_session(prompt, trust_key, endpoint).await
}

/// How long to wait for a download that has started.
pub const DOWNLOAD_WAIT: std::time::Duration = std::time::Duration::from_secs(2);

impl Reply {
    fn format_text(&self) -> String {
        let status = self.http_status.map(|status| format!(" (HTTP {status})")).unwrap_or_default();
        let mut text = format!("{}: {}{status}\n{}", self.page, self.url, self.title);
        if self.timed_out {
            text.push_str("\nthe page did not load completely in time");
        }
        if self.console_errors > 0 || self.requests.failed > 0 || self.requests.blocked > 0 {
            text.push_str(&format!(
                "\n{} console errors, {} requests failed, {} blocked: see browser.logs",
                self.console_errors, self.requests.failed, self.requests.blocked
            ));
        }
        text.push_str(&format_events(&self.dialogs, &self.downloads));
        if let Some(snapshot) = &self.snapshot {
            text.push_str(&format!("\n\n{snapshot}"));
        }
        text
    }
}

/// Formats dialogs and downloads, one line each.
pub fn format_events(dialogs: &[PageDialog], downloads: &[PageDownload]) -> String {
    let mut text = String::new();
    for dialog in dialogs {
        let action = if dialog.accepted { "accepted" } else { "dismissed" };
        text.push_str(&format!("\n{} {action}: {}", dialog.kind, dialog.message));
    }
    for download in downloads {
        let read_hint = download
            .output
            .as_ref()
            .map(|output| format!(", read it as {output}"))
            .unwrap_or_default();
        text.push_str(&format!(
            "\ndownload {}: {}, {} bytes{read_hint}",
            download.name, download.state, download.bytes
        ));
    }
    text
}

impl Tool for BrowserNavigate {
    type Args = Args;

    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn limits(&self) -> Vec<ToolLimit> {
        vec![
            ToolLimit::for_time(browser::DEFAULT_TIMEOUT),
            ToolLimit::from_fixed(
                "pages of a session",
                ItemCount(crate::browser::tabs::MAX_PAGES as u64),
            ),
        ]
    }

    fn parse(&self, arguments: &Map<String, Value>, _: &PrepareCx<'_>) -> Result<Args> {
        self.spec.parse_arguments(arguments)
    }

    fn prepare(&self, args: &Args, cx: &PrepareCx<'_>) -> Result<CallPlan> {
        let url = address::check_url(&args.url)?;
        // The rules are checked when the call runs.
        host_to_approve(cx.config, &[], &url)?;
        browser::prepare_call(cx, args.timeout_ms)
    }

    async fn run(
        self: Arc<Self>,
        cx: Arc<RunCx>,
        args: Args,
        call: Granted<Prepared>,
    ) -> Result<ToolOutput> {
        self.execute_call(&cx, args, call.consume()).await
    }
}
