//! Navigates to an address. A navigation is complete once the requested document says so, not when
//! some other document does.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::address::place;
use super::page::Page;
use super::page::Redirect;
use crate::base::{Error, Kind, Result};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Until {
    Commit,
    DomContentLoaded,
    #[default]
    Load,
    NetworkIdle,
}

impl Until {
    fn event(self) -> Option<&'static str> {
        match self {
            Until::Commit => None,
            Until::DomContentLoaded => Some("DOMContentLoaded"),
            Until::Load => Some("load"),
            Until::NetworkIdle => Some("networkIdle"),
        }
    }
}

/// Error reason for a navigation that the server answered but the page did not carry out.
pub const NOT_COMMITTED: &str = "not_committed";

/// Result of a navigation.
#[derive(Debug, Default)]
pub struct Arrival {
    /// HTTP status of the document.
    pub status: Option<u64>,
    /// Redirects on the way, in order.
    pub redirects: Vec<Redirect>,
    /// The document is shown, but did not finish loading in time.
    pub timed_out: bool,
    /// The address is a download, so no document was shown.
    pub download: bool,
}

impl Page {
    /// Navigates to an address that has passed the address check, and waits for it.
    pub async fn navigate(&self, url: &str, until: Until, limit: Duration) -> Result<Arrival> {
        let deadline = Instant::now() + limit;
        let before = self.failed_count();
        {
            let mut state = self.state();
            state.counts = super::page::Counts::default();
            state.response = None;
            state.redirects.clear();
        }
        let answer =
            match timeout_at(deadline, self.call_for("Page.navigate", json!({"url": url}), limit))
                .await
            {
                Ok(answer) => answer?,
                Err(_) => {
                    self.line.order(Some(&self.session), "Page.stopLoading", json!({}));
                    return Err(self.failed_since(before, url).unwrap_or_else(|| slow(limit)));
                }
            };
        if let Some(failed) = self.failed_since(before, url) {
            return Err(failed);
        }
        if let Some(failed) = answer["errorText"].as_str().filter(|text| !text.is_empty()) {
            if answer["isDownload"] == true {
                return Ok(Arrival { download: true, ..Arrival::default() });
            }
            return Err(unreachable(failed));
        }
        // A navigation within the document has nothing to wait for.
        let Some(document) = answer["loaderId"].as_str() else { return Ok(self.arrival(false)) };
        // The browser answers before the page shows the document, and a hung page never shows it.
        self.state().expect(document);
        let arrived = timeout_at(deadline, self.arrived(until)).await;
        let timed_out = match arrived {
            Ok(done) => done.map(|()| false)?,
            Err(_) if self.state().expected.is_some() => return Err(self.give_up(limit)),
            Err(_) => true,
        };
        Ok(self.arrival(timed_out))
    }

    /// Aborts a navigation that the page did not carry out in time.
    fn give_up(&self, limit: Duration) -> Error {
        self.state().expected = None;
        self.line.order(Some(&self.session), "Page.stopLoading", json!({}));
        Error::new(
            Kind::DeadlineExceeded,
            format!("the page did not leave its document within {} ms", limit.as_millis()),
        )
        .reason(NOT_COMMITTED)
        .hint("The tab still shows the previous page. Raise `timeout_ms`, or open the address with `page` new.")
    }

    /// Goes back or forward, or reloads; returns None if the history has no such entry.
    pub async fn travel(
        &self,
        how: Travel,
        until: Until,
        limit: Duration,
    ) -> Result<Option<Arrival>> {
        let deadline = Instant::now() + limit;
        let (before, moves) = {
            let state = self.state();
            (state.document().to_owned(), state.moves)
        };
        match how {
            Travel::Reload => drop(self.call("Page.reload", json!({})).await?),
            Travel::Back | Travel::Forward => {
                let history = self.call("Page.getNavigationHistory", json!({})).await?;
                let at = history["currentIndex"].as_i64().unwrap_or(0)
                    + if how == Travel::Back { -1 } else { 1 };
                let entry = usize::try_from(at).ok().and_then(|at| history["entries"].get(at));
                let Some(entry) = entry else { return Ok(None) };
                self.call("Page.navigateToHistoryEntry", json!({"entryId": entry["id"]})).await?;
            }
        }
        let work = async {
            let is_other = self.wait(|state| match state.document() != before {
                true => Some(true),
                // A move within the document brings no other document to wait for.
                false => (how != Travel::Reload && state.moves != moves).then_some(false),
            });
            if is_other.await? {
                self.arrived(until).await?;
            }
            Ok::<(), Error>(())
        };
        let timed_out = match timeout_at(deadline, work).await {
            Ok(done) => done.map(|()| false)?,
            Err(_) if self.state().document() == before => return Err(self.give_up(limit)),
            Err(_) => true,
        };
        Ok(Some(self.arrival(timed_out)))
    }

    /// Waits until the expected document, or one that it redirected to on its own, is shown and has
    /// loaded as far as wanted.
    async fn arrived(&self, until: Until) -> Result<()> {
        self.wait(|state| {
            let there = state.expected.is_none();
            (there && until.event().is_none_or(|event| state.has_reached(event))).then_some(())
        })
        .await
    }

    fn arrival(&self, timed_out: bool) -> Arrival {
        let state = self.state();
        let status =
            state.response.as_ref().filter(|response| response.document == state.document());
        Arrival {
            status: status.map(|response| response.status),
            redirects: state.redirects.clone(),
            timed_out,
            download: false,
        }
    }

    fn failed_count(&self) -> u64 {
        self.context().map_or(0, |context| context.traffic.failed().last())
    }

    /// Returns the error if the proxy refused or failed to reach the address or one it redirected
    /// to. The proxy answers as a server would, so the browser does not report this as a failure.
    fn failed_since(&self, before: u64, url: &str) -> Option<Error> {
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
        let asked = asked.iter().filter_map(|url| place(url));
        let asked: Vec<String> = asked.map(|(host, port)| format!("{host}:{port}")).collect();
        let log = context.traffic.failed();
        let hit = log
            .after(before)
            .find(|entry| asked.iter().any(|place| entry.url.as_deref() == Some(place)))?;
        let place = hit.url.as_deref().unwrap_or_default();
        if hit.kind == super::log::Kind::Blocked.name() {
            return Some(
                Error::permission_denied("blocked_by_policy", format!("{place} may not be reached: {}", hit.text))
                    .hint("Pages can reach only what the operator allows, and servers that you start on localhost."),
            );
        }
        Some(unreachable(match hit.text.as_str() {
            "resolve_failed" => "net::ERR_NAME_NOT_RESOLVED",
            _ => "net::ERR_CONNECTION_REFUSED",
        }))
    }
}

/// Move in the history of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Travel {
    /// To the previous entry.
    Back,
    /// To the next entry.
    Forward,
    /// To the same entry again.
    Reload,
}

fn slow(limit: Duration) -> Error {
    Error::new(
        Kind::DeadlineExceeded,
        format!("the server did not answer within {} ms", limit.as_millis()),
    )
    .hint("Raise `timeout_ms`, or check that the server is up.")
}

fn unreachable(said: &str) -> Error {
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
        .reason("navigation_failed")
        .hint(hint)
        .with("net_error", Value::from(said))
}
