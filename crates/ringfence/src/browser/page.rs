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
        connection: &CdpConnection,
        session: &str,
        target: &str,
        context: Weak<BrowserContext>,
    ) -> Arc<BrowserPage> {
        let page = Arc::new(BrowserPage {
            handle: Mutex::new(handle),
            target: target.to_owned(),
            session: session.to_owned(),
            connection: connection.clone(),
            context,
            state: Mutex::new(PageState::new(target)),
            changed: watch::channel(0).0,
            gone: CancellationToken::new(),
        });
        connection.set_sink(
            Some(session),
            Arc::new(events::PageEventSink(Arc::downgrade(&page))) as Arc<dyn EventSink>,
        );
        page
    }

    /// Enables all events we need before the page runs its first script.
    pub fn enable_events(&self) {
        let send = |method: &str, params: Value| {
            self.connection.send_command(Some(&self.session), method, params)
        };
        send("Page.enable", json!({}));
        send("Page.setLifecycleEventsEnabled", json!({"enabled": true}));
        send("Runtime.enable", json!({}));
        // The browser must not buffer any content: we only count requests.
        send(
            "Network.enable",
            json!({"maxTotalBufferSize": 0, "maxResourceBufferSize": 0, "maxPostDataSize": 0}),
        );
        send("Log.enable", json!({}));
        let size = json!({"width": WINDOW_WIDTH, "height": WINDOW_HEIGHT, "deviceScaleFactor": 1, "mobile": false});
        send("Emulation.setDeviceMetricsOverride", size);
        // Pages in the background are rendered and focused, too, because no person looks at any of
        // them.
        send("Emulation.setFocusEmulationEnabled", json!({"enabled": true}));
        send("Runtime.runIfWaitingForDebugger", json!({}));
    }

    /// Calls a method of the page's protocol session.
    pub async fn call_method(&self, method: &str, params: Value) -> Result<Value> {
        tokio::select! {
            biased;
            answer = self.connection.call_method(Some(&self.session), method, params) => answer,
            () = self.gone.cancelled() => Err(self.gone_error()),
        }
    }

    /// Calls a method that may take up to `timeout`, the time given by the caller of a tool. The
    /// caller ends it by dropping the future.
    pub async fn call_with_timeout(
        &self,
        method: &str,
        params: Value,
        timeout: Duration,
    ) -> Result<Value> {
        let reply_timeout = timeout.saturating_add(REPLY_GRACE);
        tokio::select! {
            biased;
            answer = self.connection.call_with_timeout(Some(&self.session), method, params, reply_timeout) => answer,
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
        let probe =
            self.call_method("Runtime.evaluate", json!({"expression": "1", "returnByValue": true}));
        tokio::time::timeout(HANG_TIMEOUT, probe).await.is_err()
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

    /// Waits until `condition` returns a value for the state of the page.
    pub async fn wait_until<T>(
        &self,
        mut condition: impl FnMut(&mut PageState) -> Option<T>,
    ) -> Result<T> {
        let mut changed = self.changed.subscribe();
        loop {
            if let Some(value) = condition(&mut self.state()) {
                return Ok(value);
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
        let request = self.call_method("Page.getNavigationHistory", json!({}));
        let history = match tokio::time::timeout(DESCRIBE_TIMEOUT, request).await {
            Ok(Ok(history)) => history,
            _ => Value::Null,
        };
        let index = history["currentIndex"].as_u64().and_then(|index| usize::try_from(index).ok());
        let entry = index.and_then(|index| history["entries"].get(index)).unwrap_or(&Value::Null);
        let escaped = |text: &str| escape_line(&truncate_text(text, 2000));
        let title = escaped(entry["title"].as_str().unwrap_or_default());
        let url = self.state().url.clone();
        (
            escaped(if url.is_empty() { entry["url"].as_str().unwrap_or_default() } else { &url }),
            title,
        )
    }

    /// Returns the id of the isolated world in a frame (the main frame if None), in which only our
    /// own functions run.
    pub async fn isolated_world(&self, frame: Option<&str>) -> Result<Value> {
        let frame = frame.unwrap_or(&self.target);
        // The browser creates it only once per document.
        let mut world = self
            .call_method(
                "Page.createIsolatedWorld",
                json!({"frameId": frame, "worldName": WORLD_NAME}),
            )
            .await?;
        Ok(world["executionContextId"].take())
    }

    /// Evaluates an expression of our own in the main frame and returns its value.
    pub async fn evaluate_value(&self, expression: &str, await_promise: bool) -> Result<Value> {
        let world = self.isolated_world(None).await?;
        let params = json!({"expression": expression, "contextId": world, "returnByValue": true, "awaitPromise": await_promise});
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
        if let Some(exception) = answer.get("exceptionDetails") {
            return Err(Error::new(
                Kind::Conflict,
                format!("the page threw: {}", exception_text(exception)),
            )
            .with_reason("exception")
            .with_hint("Look at the page with browser.snapshot and try again."));
        }
        Ok(answer["result"]["value"].take())
    }
}

/// Returns what was thrown as one bounded line of text.
pub fn exception_text(details: &Value) -> String {
    let description = details["exception"]["description"].as_str();
    let thrown_value = details["exception"].get("value").map(|value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    });
    let text = description.map(str::to_owned).or(thrown_value);
    let text = text.unwrap_or_else(|| details["text"].as_str().unwrap_or("an error").to_owned());
    escape_line(&truncate_text(&text, 1000))
}

/// Returns whether this can be an id made by the browser.
pub fn is_valid_id(text: &str) -> bool {
    text.len() <= MAX_ID_BYTES
}
