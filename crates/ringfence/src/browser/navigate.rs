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
        load_state: LoadState,
        timeout: Duration,
    ) -> Result<NavigationResult> {
        let deadline = Instant::now() + timeout;
        let last_seq = self.last_failure_seq();
        {
            let mut state = self.state();
            state.counts = super::page::RequestCounts::default();
            state.response = None;
            state.redirects.clear();
        }
        let answer = match timeout_at(
            deadline,
            self.call_with_timeout("Page.navigate", json!({"url": url}), timeout),
        )
        .await
        {
            Ok(answer) => answer?,
            Err(_) => {
                self.connection.send_command(Some(&self.session), "Page.stopLoading", json!({}));
                return Err(self
                    .failure_since(last_seq, url)
                    .unwrap_or_else(|| timeout_error(timeout)));
            }
        };
        if let Some(failed) = self.failure_since(last_seq, url) {
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
        let arrival = timeout_at(deadline, self.wait_for_arrival(load_state)).await;
        let timed_out = match arrival {
            Ok(outcome) => outcome.map(|()| false)?,
            Err(_) if self.state().expected_document.is_some() => {
                return Err(self.abort_navigation(timeout));
            }
            Err(_) => true,
        };
        Ok(self.navigation_result(timed_out))
    }

    /// Aborts a navigation that the page did not carry out in time.
    fn abort_navigation(&self, timeout: Duration) -> Error {
        self.state().expected_document = None;
        self.connection.send_command(Some(&self.session), "Page.stopLoading", json!({}));
        Error::new(
            Kind::DeadlineExceeded,
            format!("the page did not leave its document within {} ms", timeout.as_millis()),
        )
        .with_reason(NOT_COMMITTED)
        .with_hint("The tab still shows the previous page. Raise `timeout_ms`, or open the address with `page` new.")
    }

    /// Goes back or forward, or reloads; returns None if the history has no such entry.
    pub async fn move_in_history(
        &self,
        history_move: HistoryMove,
        load_state: LoadState,
        timeout: Duration,
    ) -> Result<Option<NavigationResult>> {
        let deadline = Instant::now() + timeout;
        let (previous_document, previous_moves) = {
            let state = self.state();
            (state.current_document().to_owned(), state.in_document_moves)
        };
        match history_move {
            HistoryMove::Reload => drop(self.call_method("Page.reload", json!({})).await?),
            HistoryMove::Back | HistoryMove::Forward => {
                let history = self.call_method("Page.getNavigationHistory", json!({})).await?;
                let index = history["currentIndex"].as_i64().unwrap_or(0)
                    + if history_move == HistoryMove::Back { -1 } else { 1 };
                let entry =
                    usize::try_from(index).ok().and_then(|index| history["entries"].get(index));
                let Some(entry) = entry else { return Ok(None) };
                self.call_method("Page.navigateToHistoryEntry", json!({"entryId": entry["id"]}))
                    .await?;
            }
        }
        let work = async {
            let is_new_document =
                self.wait_until(|state| match state.current_document() != previous_document {
                    true => Some(true),
                    // A move within the document brings no other document to wait for.
                    false => (history_move != HistoryMove::Reload
                        && state.in_document_moves != previous_moves)
                        .then_some(false),
                });
            if is_new_document.await? {
                self.wait_for_arrival(load_state).await?;
            }
            Ok::<(), Error>(())
        };
        let timed_out = match timeout_at(deadline, work).await {
            Ok(outcome) => outcome.map(|()| false)?,
            Err(_) if self.state().current_document() == previous_document => {
                return Err(self.abort_navigation(timeout));
            }
            Err(_) => true,
        };
        Ok(Some(self.navigation_result(timed_out)))
    }

    /// Waits until the expected document, or one that it redirected to on its own, is shown and has
    /// loaded as far as wanted.
    async fn wait_for_arrival(&self, load_state: LoadState) -> Result<()> {
        self.wait_until(|state| {
            let has_arrived = state.expected_document.is_none();
            (has_arrived
                && load_state.lifecycle_event().is_none_or(|event| state.has_reached(event)))
            .then_some(())
        })
        .await
    }

    fn navigation_result(&self, timed_out: bool) -> NavigationResult {
        let state = self.state();
        let document_response = state
            .response
            .as_ref()
            .filter(|response| response.document == state.current_document());
        NavigationResult {
            status: document_response.map(|response| response.status),
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
    fn failure_since(&self, after_seq: u64, url: &str) -> Option<Error> {
        let context = self.context()?;
        let mut requested: Vec<String> = vec![url.to_owned()];
        {
            let state = self.state();
            requested.push(state.url.clone());
            requested.extend(state.redirects.iter().map(|redirect| redirect.url.clone()));
            requested.extend(
                state
                    .requests
                    .values()
                    .filter(|request| request.kind == "Document")
                    .map(|r| r.url.clone()),
            );
        }
        let requested = requested.iter().filter_map(|url| host_and_port(url));
        let requested: Vec<String> =
            requested.map(|(host, port)| format!("{host}:{port}")).collect();
        let log = context.traffic.lock_failed();
        let failure = log.entries_after(after_seq).find(|entry| {
            requested.iter().any(|authority| entry.url.as_deref() == Some(authority))
        })?;
        let authority = failure.url.as_deref().unwrap_or_default();
        if failure.kind == super::page_log::PageLogKind::Blocked.name() {
            return Some(
                Error::permission_denied("blocked_by_policy", format!("{authority} may not be reached: {}", failure.text))
                    .with_hint("Pages can reach only what the operator allows, and servers that you start on localhost."),
            );
        }
        Some(unreachable_error(match failure.text.as_str() {
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

fn timeout_error(timeout: Duration) -> Error {
    Error::new(
        Kind::DeadlineExceeded,
        format!("the server did not answer within {} ms", timeout.as_millis()),
    )
    .with_hint("Raise `timeout_ms`, or check that the server is up.")
}

fn unreachable_error(net_error: &str) -> Error {
    let net_error: String = net_error.chars().take(100).collect();
    let hint = match net_error.as_str() {
        "net::ERR_CONNECTION_REFUSED" | "net::ERR_EMPTY_RESPONSE" | "net::ERR_CONNECTION_RESET" => {
            "Nothing answers there. On localhost only servers that this session has started can be reached."
        }
        "net::ERR_NAME_NOT_RESOLVED" => "The host name does not exist. Check the spelling.",
        "net::ERR_ABORTED" => {
            "The page navigated elsewhere in the meantime, or the address has no content."
        }
        _ => "Check the address.",
    };
    Error::new(Kind::Unavailable, format!("the page could not be opened: {net_error}"))
        .with_reason("navigation_failed")
        .with_hint(hint)
        .with_fact("net_error", Value::from(net_error))
}
