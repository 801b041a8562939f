//! One page: its connection to the browser, and its known state.

mod events;
mod state;

use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::cdp::{CdpConnection, EventSink};
use super::page_log::{escape_line, truncate_text};
use super::tabs::BrowserContext;
use crate::base::IgnorePoison;
use crate::base::{Error, Kind, Result};
pub use state::{DialogAnswers, PageDialog, PageFrame, PageRedirect, PageState, RequestCounts};

/// Width of a page's window, in pixels.
pub const WINDOW_WIDTH: u32 = 1280;
/// Height of a page's window, in pixels.
pub const WINDOW_HEIGHT: u32 = 720;
/// Time in which a working browser answers a simple query.
const DESCRIBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time after which a page that has not evaluated `1` is considered hung. Long enough for a busy
/// machine.
pub const HANG_TIMEOUT: Duration = Duration::from_secs(5);
/// Extra time for the browser to answer, beyond the limit given to the page.
const REPLY_GRACE: Duration = Duration::from_secs(5);
/// Maximum length of an id; the browser's own ids are much shorter.
const MAX_ID_BYTES: usize = 128;
/// Name of the isolated world in which our own functions run, where the page's scripts cannot
/// change their environment.
const WORLD_NAME: &str = "ringfence";

/// One page of a session.
pub struct BrowserPage {
    /// Name that callers use: `p3`. A page that replaces a hung one takes over its handle.
    handle: Mutex<String>,
    /// The browser's id of the page.
    pub target: String,
    /// Id of the protocol session.
    pub session: String,
    /// Connection to the browser.
    pub connection: CdpConnection,
    context: Weak<BrowserContext>,
    state: Mutex<PageState>,
    changed: watch::Sender<u64>,
    gone: CancellationToken,
}

impl BrowserPage {
    /// Creates a page and starts listening to its events.
    pub fn new(
        handle: String,
        line: &CdpConnection,
        session: &str,
        target: &str,
        context: Weak<BrowserContext>,
    ) -> Arc<BrowserPage> {
        let page = Arc::new(BrowserPage {
            handle: Mutex::new(handle),
            target: target.to_owned(),
            session: session.to_owned(),
            connection: line.clone(),
            context,
            state: Mutex::new(PageState::new(target)),
            changed: watch::channel(0).0,
            gone: CancellationToken::new(),
        });
        line.set_sink(
            Some(session),
            Arc::new(events::PageEventSink(Arc::downgrade(&page))) as Arc<dyn EventSink>,
        );
        page
    }

    /// Enables all events we need before the page runs its first script.
    pub fn enable_events(&self) {
        let order = |method: &str, params: Value| {
            self.connection.send_command(Some(&self.session), method, params)
        };
        order("Page.enable", json!({}));
        order("Page.setLifecycleEventsEnabled", json!({"enabled": true}));
        order("Runtime.enable", json!({}));
        // The browser must not buffer any content: we only count requests.
        order(
            "Network.enable",
            json!({"maxTotalBufferSize": 0, "maxResourceBufferSize": 0, "maxPostDataSize": 0}),
        );
        order("Log.enable", json!({}));
        let size = json!({"width": WINDOW_WIDTH, "height": WINDOW_HEIGHT, "deviceScaleFactor": 1, "mobile": false});
        order("Emulation.setDeviceMetricsOverride", size);
        // Pages in the background are rendered and focused, too, because no person looks at any of
        // them.
        order("Emulation.setFocusEmulationEnabled", json!({"enabled": true}));
        order("Runtime.runIfWaitingForDebugger", json!({}));
    }

    /// Calls a method of the page's protocol session.
    pub async fn call_method(&self, method: &str, params: Value) -> Result<Value> {
        tokio::select! {
            biased;
            answer = self.connection.call_method(Some(&self.session), method, params) => answer,
            () = self.gone.cancelled() => Err(self.gone_error()),
        }
    }

    /// Calls a method that may take up to `limit`, the time given by the caller of a tool. The
    /// caller ends it by dropping the future.
    pub async fn call_with_timeout(
        &self,
        method: &str,
        params: Value,
        limit: Duration,
    ) -> Result<Value> {
        let patience = limit.saturating_add(REPLY_GRACE);
        tokio::select! {
            biased;
            answer = self.connection.call_with_timeout(Some(&self.session), method, params, patience) => answer,
            () = self.gone.cancelled() => Err(self.gone_error()),
        }
    }

    /// Returns the name that callers use.
    pub fn handle(&self) -> String {
        self.handle.lock().ignore_poison().clone()
    }

    /// Takes the handle of the hung page that this one replaces.
    pub fn take_over_handle(&self, handle: String) {
        *self.handle.lock().ignore_poison() = handle;
    }

    /// Returns whether the page hangs: a script that never returns, or that shows dialogs without
    /// end, blocks its main thread. An error counts as an answer.
    pub async fn is_hung(&self) -> bool {
        let asked =
            self.call_method("Runtime.evaluate", json!({"expression": "1", "returnByValue": true}));
        tokio::time::timeout(HANG_TIMEOUT, asked).await.is_err()
    }

    /// Locks the state of the page.
    pub fn state(&self) -> MutexGuard<'_, PageState> {
        self.state.lock().ignore_poison()
    }

    /// Returns the context of the page, if it still exists.
    pub fn context(&self) -> Option<Arc<BrowserContext>> {
        self.context.upgrade()
    }

    /// Changes the state and wakes the tasks that wait for a change.
    fn update_state<T>(&self, change: impl FnOnce(&mut PageState) -> T) -> T {
        let result = change(&mut self.state());
        self.changed.send_modify(|count| *count += 1);
        result
    }

    /// Waits until `look` returns a value for the state of the page.
    pub async fn wait_until<T>(
        &self,
        mut look: impl FnMut(&mut PageState) -> Option<T>,
    ) -> Result<T> {
        let mut changed = self.changed.subscribe();
        loop {
            if let Some(found) = look(&mut self.state()) {
                return Ok(found);
            }
            tokio::select! {
                _ = changed.changed() => {}
                () = self.gone.cancelled() => return Err(self.gone_error()),
                () = self.connection.wait_closed() => return Err(self.gone_error()),
            }
        }
    }

    /// Returns whether the page was closed or has crashed.
    pub fn is_gone(&self) -> bool {
        self.gone.is_cancelled()
    }

    /// Marks the page as gone; calls that wait for it fail.
    pub fn mark_gone(&self, crashed: bool) {
        self.state().crashed |= crashed;
        self.gone.cancel();
        self.changed.send_modify(|count| *count += 1);
    }

    fn gone_error(&self) -> Error {
        let (message, reason) = match self.state().crashed {
            true => ("the page crashed", "page_crashed"),
            false if self.connection.is_closed() => {
                ("the browser ended unexpectedly", "browser_ended")
            }
            false => ("the page was closed", "page_closed"),
        };
        Error::new(Kind::Unavailable, message)
            .with_reason(reason)
            .with_hint("Open the address again with browser.navigate, without `page`.")
    }

    /// Returns the address and title as the browser knows them: the page's scripts could report
    /// anything.
    pub async fn describe(&self) -> (String, String) {
        let asked = self.call_method("Page.getNavigationHistory", json!({}));
        let said = match tokio::time::timeout(DESCRIBE_TIMEOUT, asked).await {
            Ok(Ok(said)) => said,
            _ => Value::Null,
        };
        let at = said["currentIndex"].as_u64().and_then(|at| usize::try_from(at).ok());
        let entry = at.and_then(|at| said["entries"].get(at)).unwrap_or(&Value::Null);
        let shown = |text: &str| escape_line(&truncate_text(text, 2000));
        let title = shown(entry["title"].as_str().unwrap_or_default());
        let url = self.state().url.clone();
        (
            shown(if url.is_empty() { entry["url"].as_str().unwrap_or_default() } else { &url }),
            title,
        )
    }

    /// Returns the id of the isolated world in a frame (the main frame if None), in which only our
    /// own functions run.
    pub async fn isolated_world(&self, frame: Option<&str>) -> Result<Value> {
        let frame = frame.unwrap_or(&self.target);
        // The browser creates it only once per document.
        let mut made = self
            .call_method(
                "Page.createIsolatedWorld",
                json!({"frameId": frame, "worldName": WORLD_NAME}),
            )
            .await?;
        Ok(made["executionContextId"].take())
    }

    /// Evaluates an expression of our own in the main frame and returns its value.
    pub async fn evaluate_value(&self, expression: &str, awaits: bool) -> Result<Value> {
        let world = self.isolated_world(None).await?;
        let params = json!({"expression": expression, "contextId": world, "returnByValue": true, "awaitPromise": awaits});
        let mut answer = self.call_method("Runtime.evaluate", params).await?;
        if answer.get("exceptionDetails").is_some() {
            return Err(Error::new(Kind::Conflict, "the page sent an unexpected reply")
                .with_reason("browser_refused"));
        }
        Ok(answer["result"]["value"].take())
    }

    /// Calls a function of our own on an object of the page, and returns its value.
    pub async fn call_function_on(
        &self,
        object: &str,
        function: &str,
        arguments: Value,
    ) -> Result<Value> {
        let params = json!({
            "objectId": object, "functionDeclaration": function, "arguments": arguments,
            // Not awaited: a page can make anything look like a promise.
            "returnByValue": true, "userGesture": true,
        });
        let mut answer = self.call_method("Runtime.callFunctionOn", params).await?;
        if let Some(thrown) = answer.get("exceptionDetails") {
            return Err(Error::new(
                Kind::Conflict,
                format!("the page threw: {}", exception_text(thrown)),
            )
            .with_reason("exception")
            .with_hint("Look at the page with browser.snapshot and try again."));
        }
        Ok(answer["result"]["value"].take())
    }
}

/// Returns what was thrown as one bounded line of text.
pub fn exception_text(details: &Value) -> String {
    let described = details["exception"]["description"].as_str();
    let thrown = details["exception"].get("value").map(|value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    });
    let text = described.map(str::to_owned).or(thrown);
    let text = text.unwrap_or_else(|| details["text"].as_str().unwrap_or("an error").to_owned());
    escape_line(&truncate_text(&text, 1000))
}

/// Returns whether this can be an id made by the browser.
pub fn is_valid_id(text: &str) -> bool {
    text.len() <= MAX_ID_BYTES
}
