//! Navigates to an address. A navigation is complete once the requested document says so, not when
//! some other document does.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::address::host_and_port;
use super::page::BrowserPage;
use super::page::PageRedirect;
use crate::base::{Error, Kind, Result};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LoadState {
    Commit,
    DomContentLoaded,
    #[default]
    Load,
    NetworkIdle,
}

impl LoadState {
    fn lifecycle_event(self) -> Option<&'static str> {
        match self {
            LoadState::Commit => None,
            LoadState::DomContentLoaded => Some("DOMContentLoaded"),
            LoadState::Load => Some("load"),
            LoadState::NetworkIdle => Some("networkIdle"),
        }
    }
}

/// Error reason for a navigation that the server answered but the page did not carry out.
pub const NOT_COMMITTED: &str = "not_committed";

/// Result of a navigation.
#[derive(Debug, Default)]
pub struct NavigationResult {
    /// HTTP status of the document.
    pub status: Option<u64>,
    /// Redirects on the way, in order.
    pub redirects: Vec<PageRedirect>,
    /// The document is shown, but did not finish loading in time.
    pub timed_out: bool,
    /// The address is a download, so no document was shown.
    pub is_download: bool,
}

impl BrowserPage {
    /// Navigates to an address that has passed the address check, and waits for it.
    pub async fn navigate_to(
        &self,
        url: &str,
        until: LoadState,
        limit: Duration,
    ) -> Result<NavigationResult> {
        let deadline = Instant::now() + limit;
        let before = self.last_failure_seq();
        {
            let mut state = self.state();
            state.counts = super::page::RequestCounts::default();
            state.response = None;
            state.redirects.clear();
        }
        let answer = match timeout_at(
            deadline,
            self.call_with_timeout("Page.navigate", json!({"url": url}), limit),
        )
        .await
        {
            Ok(answer) => answer?,
            Err(_) => {
                self.connection.send_command(Some(&self.session), "Page.stopLoading", json!({}));
                return Err(self
                    .failure_since(before, url)
                    .unwrap_or_else(|| timeout_error(limit)));
            }
        };
        if let Some(failed) = self.failure_since(before, url) {
            return Err(failed);
        }
        if let Some(failed) = answer["errorText"].as_str().filter(|text| !text.is_empty()) {
            if answer["isDownload"] == true {
                return Ok(NavigationResult { is_download: true, ..NavigationResult::default() });
            }
            return Err(unreachable_error(failed));
        }
        // A navigation within the document has nothing to wait for.
        let Some(document) = answer["loaderId"].as_str() else {
            return Ok(self.navigation_result(false));
        };
        // The browser answers before the page shows the document, and a hung page never shows it.
        self.state().expect_document(document);
        let arrived = timeout_at(deadline, self.wait_for_arrival(until)).await;
        let timed_out = match arrived {
            Ok(done) => done.map(|()| false)?,
            Err(_) if self.state().expected_document.is_some() => {
                return Err(self.abort_navigation(limit));
            }
            Err(_) => true,
        };
        Ok(self.navigation_result(timed_out))
    }

    /// Aborts a navigation that the page did not carry out in time.
    fn abort_navigation(&self, limit: Duration) -> Error {
        self.state().expected_document = None;
        self.connection.send_command(Some(&self.session), "Page.stopLoading", json!({}));
        Error::new(
            Kind::DeadlineExceeded,
            format!("the page did not leave its document within {} ms", limit.as_millis()),
        )
        .with_reason(NOT_COMMITTED)
        .with_hint("The tab still shows the previous page. Raise `timeout_ms`, or open the address with `page` new.")
    }

    /// Goes back or forward, or reloads; returns None if the history has no such entry.
    pub async fn move_in_history(
        &self,
        how: HistoryMove,
        until: LoadState,
        limit: Duration,
    ) -> Result<Option<NavigationResult>> {
        let deadline = Instant::now() + limit;
        let (before, moves) = {
            let state = self.state();
            (state.current_document().to_owned(), state.in_document_moves)
        };
        match how {
            HistoryMove::Reload => drop(self.call_method("Page.reload", json!({})).await?),
            HistoryMove::Back | HistoryMove::Forward => {
                let history = self.call_method("Page.getNavigationHistory", json!({})).await?;
                let at = history["currentIndex"].as_i64().unwrap_or(0)
                    + if how == HistoryMove::Back { -1 } else { 1 };
                let entry = usize::try_from(at).ok().and_then(|at| history["entries"].get(at));
                let Some(entry) = entry else { return Ok(None) };
                self.call_method("Page.navigateToHistoryEntry", json!({"entryId": entry["id"]}))
                    .await?;
            }
        }
        let work = async {
            let is_other = self.wait_until(|state| match state.current_document() != before {
                true => Some(true),
                // A move within the document brings no other document to wait for.
                false => (how != HistoryMove::Reload && state.in_document_moves != moves)
                    .then_some(false),
            });
            if is_other.await? {
                self.wait_for_arrival(until).await?;
            }
            Ok::<(), Error>(())
        };
        let timed_out = match timeout_at(deadline, work).await {
            Ok(done) => done.map(|()| false)?,
            Err(_) if self.state().current_document() == before => {
                return Err(self.abort_navigation(limit));
            }
            Err(_) => true,
        };
        Ok(Some(self.navigation_result(timed_out)))
    }

    /// Waits until the expected document, or one that it redirected to on its own, is shown and has
    /// loaded as far as wanted.
    async fn wait_for_arrival(&self, until: LoadState) -> Result<()> {
        self.wait_until(|state| {
            let there = state.expected_document.is_none();
            (there && until.lifecycle_event().is_none_or(|event| state.has_reached(event)))
                .then_some(())
        })
        .await
    }

    fn navigation_result(&self, timed_out: bool) -> NavigationResult {
        let state = self.state();
        let status = state
            .response
            .as_ref()
            .filter(|response| response.document == state.current_document());
        NavigationResult {
            status: status.map(|response| response.status),
            redirects: state.redirects.clone(),
            timed_out,
            is_download: false,
        }
    }

    fn last_failure_seq(&self) -> u64 {
        self.context().map_or(0, |context| context.traffic.lock_failed().last_seq())
    }

    /// Returns the error if the proxy refused or failed to reach the address or one it redirected
    /// to. The proxy answers as a server would, so the browser does not report this as a failure.
    fn failure_since(&self, before: u64, url: &str) -> Option<Error> {
        let context = self.context()?;
        let mut asked: Vec<String> = vec![url.to_owned()];
        {
            let state = self.state();
            asked.push(state.url.clone());
            asked.extend(state.redirects.iter().map(|redirect| redirect.url.clone()));
            asked.extend(
                state
                    .requests
                    .values()
                    .filter(|request| request.kind == "Document")
                    .map(|r| r.url.clone()),
            );
        }
        let asked = asked.iter().filter_map(|url| host_and_port(url));
        let asked: Vec<String> = asked.map(|(host, port)| format!("{host}:{port}")).collect();
        let log = context.traffic.lock_failed();
        let hit = log
            .entries_after(before)
            .find(|entry| asked.iter().any(|place| entry.url.as_deref() == Some(place)))?;
        let place = hit.url.as_deref().unwrap_or_default();
        if hit.kind == super::page_log::PageLogKind::Blocked.name() {
            return Some(
                Error::permission_denied("blocked_by_policy", format!("{place} may not be reached: {}", hit.text))
                    .with_hint("Pages can reach only what the operator allows, and servers that you start on localhost."),
            );
        }
        Some(unreachable_error(match hit.text.as_str() {
            "resolve_failed" => "net::ERR_NAME_NOT_RESOLVED",
            _ => "net::ERR_CONNECTION_REFUSED",
        }))
    }
}

/// Move in the history of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HistoryMove {
    /// To the previous entry.
    Back,
    /// To the next entry.
    Forward,
    /// To the same entry again.
    Reload,
}

fn timeout_error(limit: Duration) -> Error {
    Error::new(
        Kind::DeadlineExceeded,
        format!("the server did not answer within {} ms", limit.as_millis()),
    )
    .with_hint("Raise `timeout_ms`, or check that the server is up.")
}

fn unreachable_error(said: &str) -> Error {
    let said: String = said.chars().take(100).collect();
    let hint = match said.as_str() {
        "net::ERR_CONNECTION_REFUSED" | "net::ERR_EMPTY_RESPONSE" | "net::ERR_CONNECTION_RESET" => {
            "Nothing answers there. On localhost only servers that this session has started can be reached."
        }
        "net::ERR_NAME_NOT_RESOLVED" => "The host name does not exist. Check the spelling.",
        "net::ERR_ABORTED" => {
            "The page navigated elsewhere in the meantime, or the address has no content."
        }
        _ => "Check the address.",
    };
    Error::new(Kind::Unavailable, format!("the page could not be opened: {said}"))
        .with_reason("navigation_failed")
        .with_hint(hint)
        .with_fact("net_error", Value::from(said))
}
