//! Code shared by the browser tools: finding the page that a call means, and ending in time.

pub mod act;
pub mod eval;
pub mod logs;
pub mod navigate;
pub mod screenshot;
pub mod snapshot;
pub mod tabs;

use std::sync::Arc;
use std::time::Duration;

use jail::rights::NetworkAccess;
use serde_json::Value;

use super::run::command;
use super::run::held_execs::{ExecList, RunExecRules};
use super::{CallPlan, LazySchema, PermissionScope, PrepareCx, RunCx, ToolHints, ToolSpec};
use crate::base::{CancelCause, Error, Kind, Result};
use crate::browser::executable::find_browser;
use crate::browser::navigate::NOT_COMMITTED;
use crate::browser::page::BrowserPage;
use crate::browser::tabs::{BrowserContext, SessionTabs};
use crate::browser::{BusyGuard, page_log};
use crate::config::{Config, ProfileSetting};
use crate::redact::short_secrets::ShortSecrets;
use crate::sandbox::browser::BrowserOptions;
use crate::sandbox::{Launcher, RunResult};

/// Default time that a call gives its page.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// Added to the time that a call gives its page: to open it, and to answer.
const OVERHEAD: Duration = Duration::from_secs(30);
/// Maximum bytes of text in a result.
pub const MAX_BYTES: usize = 256 << 10;
const MIN_BYTES: usize = 256;

/// Description of a browser tool.
pub struct BrowserSpec {
    pub name: &'static str,
    pub title: &'static str,
    pub description: &'static str,
    pub scope: PermissionScope,
    pub hints: ToolHints,
    pub writes_files: bool,
    pub input_schema: LazySchema,
    pub output_schema: LazySchema,
    pub returns_image: bool,
}

/// Builds the spec of a browser tool.
pub fn build_spec(config: &Config, browser_spec: BrowserSpec) -> ToolSpec {
    let is_sandboxed = config.default_sandbox.profile != ProfileSetting::None;
    let mut effects = Vec::new();
    effects.extend(browser_spec.writes_files.then_some("filesystem_write"));
    effects.push("network");
    ToolSpec {
        name: browser_spec.name.into(),
        title: browser_spec.title.into(),
        description: browser_spec.description.into(),
        version: "1.0.0".into(),
        scope: browser_spec.scope,
        hints: browser_spec.hints,
        effects,
        profile: config.default_sandbox.profile.name(),
        input_schema: browser_spec.input_schema,
        output_schema: Some(browser_spec.output_schema),
        lists_output_schema: !browser_spec.returns_image,
        requires_approval: !is_sandboxed,
        streaming: false,
        timeout: DEFAULT_TIMEOUT + OVERHEAD,
        unavailable_reason: match config.default_sandbox.profile {
            ProfileSetting::Contained => Some(
                "a browser needs namespaces, which the profile `contained` does not use".to_owned(),
            ),
            _ => find_browser(config).err().map(|error| error.message().to_owned()),
        },
    }
}

/// Refuses, before the user is asked, calls that cannot work or must not run.
pub fn prepare_call(cx: &PrepareCx<'_>, timeout_ms: Option<u64>) -> Result<CallPlan> {
    find_browser(cx.config)?;
    if timeout_ms == Some(0) {
        return Err(Error::invalid_arguments("`timeout_ms` is zero")
            .with_hint("Omit it for the default of 30 seconds."));
    }
    let (session_network, call_network) =
        (cx.state.session.workspace.rights().network, cx.workspace.rights().network);
    if session_network != NetworkAccess::Off && call_network == NetworkAccess::Off {
        // A page's network access is that of the operator's configuration, and cannot be restricted
        // further for a single client.
        return Err(Error::permission_denied(
            "client_sandbox",
            "the client's sandbox allows no network",
        )
        .with_hint("Have the client allow network access for this call."));
    }
    let limit = page_timeout(timeout_ms) + OVERHEAD;
    Ok(CallPlan {
        timeout: Some(limit.min(cx.config.limits.timeout_ceiling)),
        approval_reason: command::approval_reason(cx),
        ..CallPlan::default()
    })
}

/// Returns the time that a call gives its page.
pub fn page_timeout(timeout_ms: Option<u64>) -> Duration {
    timeout_ms.map_or(DEFAULT_TIMEOUT, Duration::from_millis)
}

/// Returns the maximum bytes of text in a result.
pub fn text_budget(cx: &RunCx, max_bytes: Option<usize>) -> usize {
    // The fields of the result come on top of the text.
    max_bytes.unwrap_or(cx.settings.text_budget.saturating_sub(1000)).clamp(MIN_BYTES, MAX_BYTES)
}

/// A page in use. While it is held, its browser is not considered idle.
pub struct PageLease {
    pub context: Arc<BrowserContext>,
    pub page: Arc<BrowserPage>,
    /// Kept alive here in case the session does not do so.
    _tabs: Arc<SessionTabs>,
    _busy: BusyGuard,
}

impl PageLease {
    /// Returns the page that is meant: the named one, the current one, or a new one for `new` or if
    /// there is none yet.
    pub async fn open_page(
        cx: &RunCx,
        launcher: &Launcher,
        page: Option<&str>,
    ) -> Result<PageLease> {
        let tabs = session_tabs(cx);
        if let Some(handle) = page.filter(|page| *page != "new") {
            return PageLease::existing_page_in(cx, tabs, Some(handle)).await;
        }
        let denied = denied_hosts(cx).await?;
        let opened = tabs.open_context(
            &cx.session_ref.state.sandboxes,
            &cx.settings.config,
            launcher,
            &denied,
            Box::pin(build_terms(cx)),
        );
        let (context, busy) = opened.await?;
        context.proxy.update_access(
            &denied,
            cx.open_sandbox(launcher)?,
            cx.settings.workspace.rights().network,
        )?;
        let page = match context.find_page(None).filter(|_| page.is_none()) {
            Some(page) => page,
            None => context.open_page().await?,
        };
        context.traffic.set_call(cx.control.call_events.clone());
        Ok(PageLease { context, page, _tabs: tabs, _busy: busy })
    }

    /// Replaces the page if it hangs, so that an address can be opened in its tab.
    pub async fn replace_if_hung(&mut self) -> Result<()> {
        if self.page.is_hung().await {
            let replaced =
                tokio::time::timeout(REPLACE_TIMEOUT, self.context.replace_page(&self.page)).await;
            if let Some(page) = replaced.map_err(|_| timeout_error(REPLACE_TIMEOUT))?? {
                self.page = page;
            }
        }
        Ok(())
    }

    /// Returns the page that is meant, which must exist.
    pub async fn existing_page(cx: &RunCx, page: Option<&str>) -> Result<PageLease> {
        PageLease::existing_page_in(cx, session_tabs(cx), page).await
    }

    async fn existing_page_in(
        cx: &RunCx,
        tabs: Arc<SessionTabs>,
        handle: Option<&str>,
    ) -> Result<PageLease> {
        let found = match tabs.current_context().await {
            Some((context, busy)) => context.find_page(handle).map(|page| (context, page, busy)),
            None => None,
        };
        let (context, page, busy) = found.ok_or_else(|| no_page_error(cx, &tabs, handle))?;
        let sandbox = cx.open_sandbox(&Launcher::from_current_exe())?;
        context.proxy.update_access(
            &denied_hosts(cx).await?,
            sandbox,
            cx.settings.workspace.rights().network,
        )?;
        context.select_page(&page);
        context.traffic.set_call(cx.control.call_events.clone());
        Ok(PageLease { context, page, _tabs: tabs, _busy: busy })
    }
}

/// Returns the pages that this call may see.
pub fn session_tabs(cx: &RunCx) -> Arc<SessionTabs> {
    let tab_sets = &cx.session_ref.state.tab_sets;
    tab_sets.for_call(cx.session_ref.persistent, cx.settings.workspace.stricter_client_sandbox())
}

/// Returns the hosts that the rules deny now.
pub async fn denied_hosts(cx: &RunCx) -> Result<Vec<String>> {
    Ok(RunExecRules::current(cx)
        .await?
        .map(|exec_rules| exec_rules.denied_hosts())
        .unwrap_or_default())
}

/// Returns the terms that the processes of a browser are judged by: the rules at the time it is
/// started. The browser may outlive the session that needed it first, so the terms must not refer
/// to that session.
async fn build_terms(cx: &RunCx) -> Result<BrowserOptions> {
    let exec_rules = RunExecRules::current(cx).await?;
    let execs = exec_rules
        .map(|exec_rules| {
            exec_rules
                .into_unattended_decider(cx.control.call_events.clone(), &cx.settings.config.root)
        })
        .transpose()?;
    let log = execs.as_ref().and_then(|execs| execs.log.as_ref()?.try_clone().ok());
    let (call_events, short_secrets) = (
        cx.control.call_events.clone(),
        cx.settings.config.policy.audit_execs.then(ShortSecrets::default),
    );
    let ended = Box::new(move |ended: &mut RunResult| {
        let count = ended.execs.take();
        ended.exec_summary = log.map(|log| {
            ExecList::new(call_events.clone(), short_secrets, log).record_and_summarize(count)
        });
        command::record_end(&call_events, ended);
    });
    Ok(BrowserOptions {
        execs,
        on_end: ended,
        cancel: cx.control.cancel.root_token(),
        tasks: cx.services.tasks.clone(),
    })
}

fn no_page_error(cx: &RunCx, tabs: &SessionTabs, handle: Option<&str>) -> Error {
    if !cx.session_ref.persistent {
        return Error::new(Kind::NotFound, "this call has no session, so it has no page")
            .with_reason("no_session")
            .with_hint("Send the handle that results carry in `_meta` (dev.ringfence/session) with each call.");
    }
    match handle {
        Some(handle) if tabs.has_issued(handle) => Error::new(Kind::NotFound, format!("the page `{handle}` is gone"))
            .with_reason("page_closed")
            .with_hint("It was closed, or its browser ended (idle browsers are stopped). Open it again with browser.navigate."),
        Some(handle) => Error::new(Kind::NotFound, format!("there is no page `{}`", page_log::truncate_text(handle, 40)))
            .with_hint("Leave `page` out for the current one; browser.tabs lists them."),
        None => Error::new(Kind::NotFound, "there is no page yet").with_hint("Open one with browser.navigate."),
    }
}

/// Does the work, unless it times out or the call is cancelled. After a timeout the browser and the
/// page are checked, and a page that hangs is replaced, so that the next call works.
pub async fn run_within<T>(
    cx: &RunCx,
    lease: &PageLease,
    limit: Duration,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let bounded = async {
        let result = tokio::time::timeout(limit, work).await;
        match result.unwrap_or_else(|_| Err(timeout_error(limit))) {
            Err(error)
                if error.reason_name().is_some_and(|reason| HANG_REASONS.contains(&reason)) =>
            {
                Err(recover_page(lease, error).await)
            }
            result => result,
        }
    };
    tokio::select! {
        result = bounded => result,
        cause = cx.control.cancel.cancelled() => Err(match cause {
            CancelCause::Deadline => Error::new(Kind::DeadlineExceeded, "the call took too long"),
            _ => Error::new(Kind::Cancelled, "the call was cancelled").with_fact("cause", cause.name()),
        }),
    }
}

/// Reasons of errors that a hanging page may cause.
const HANG_REASONS: [&str; 3] = ["browser_hung", UNRESPONSIVE, NOT_COMMITTED];
const UNRESPONSIVE: &str = "page_unresponsive";
/// Time to close a page that hangs and open an empty one in its place.
const REPLACE_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the error for a page that did not respond in time.
pub fn timeout_error(limit: Duration) -> Error {
    Error::new(
        Kind::DeadlineExceeded,
        format!("the page did not finish within {} ms", limit.as_millis()),
    )
    .with_reason(UNRESPONSIVE)
    .with_hint("Raise `timeout_ms`; browser.logs may show what the page is waiting for.")
}

/// Replaces the page if it hangs, and returns an error that says so instead of the original one.
async fn recover_page(lease: &PageLease, error: Error) -> Error {
    lease.context.browser.check_alive();
    if !lease.page.is_hung().await {
        return error;
    }
    match tokio::time::timeout(REPLACE_TIMEOUT, lease.context.replace_page(&lease.page)).await {
        Ok(Ok(Some(page))) => {
            let handle = page.handle();
            let message = format!("the page hung and was replaced by an empty one, {handle}");
            Error::new(Kind::DeadlineExceeded, message)
                .with_reason(UNRESPONSIVE)
                .with_hint("Open an address with browser.navigate. What the page had loaded or entered is lost.")
                .with_fact("replaced", handle)
        }
        _ => error,
    }
}

/// Joins lines up to a number of bytes, and returns whether any were left out.
pub fn fit_lines(lines: &[String], max_bytes: usize) -> (String, bool) {
    let mut text = String::new();
    for (index, line) in lines.iter().enumerate() {
        if text.len() + line.len() + 1 > max_bytes {
            // A single line may be longer than the limit.
            if text.is_empty() {
                text.push_str(&page_log::truncate_text(line, max_bytes));
                text.push('\n');
            }
            let remaining = lines.len() - index;
            text.push_str(&format!(
                "… [{remaining} more lines: narrow it with `target` or `depth`, or raise `max_bytes`]"
            ));
            return (text, true);
        }
        text.push_str(line);
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    (text, false)
}

/// Builds a result with its own text, and all of the reply as data.
pub fn build_output(text: String, reply: &impl serde::Serialize) -> crate::base::call::ToolOutput {
    // Serializing plain fields cannot fail.
    crate::base::call::ToolOutput::from_structured(
        text,
        serde_json::to_value(reply).unwrap_or(Value::Null),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_between_lines_and_say_so() {
        let lines: Vec<String> = (0..100).map(|number| format!("line {number}")).collect();
        let (text, cut) = fit_lines(&lines, 60);
        assert!(cut && text.contains("line 5") && text.contains("more lines"), "{text}");
        let (text, cut) = fit_lines(&lines[..3], 1000);
        assert_eq!((text.as_str(), cut), ("line 0\nline 1\nline 2", false));
        let (text, cut) = fit_lines(&["x".repeat(5000)], 300);
        assert!(cut && text.len() < 500);
    }
}
