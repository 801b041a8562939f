//! One page: its line to the browser, and what it has told us about itself.

mod events;
mod state;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::cdp::{Line, Sink};
use super::log::{cut, plain};
use super::tabs::Context;
use crate::base::{Error, Kind, Result};
pub use state::{Answers, Counts, Dialog, Frame, Redirect, State};

/// The size of a page's window.
pub const WIDTH: u32 = 1280;
pub const HEIGHT: u32 = 720;
/// What a browser that works needs to say a title.
const QUICK: Duration = Duration::from_secs(2);
/// A page that has not evaluated `1` by then hangs. Long enough for a busy machine.
pub const RESPONSIVE: Duration = Duration::from_secs(5);
/// Over the time that a call gives its page.
const GRACE: Duration = Duration::from_secs(5);
/// The browser's ids are much shorter.
const ID: usize = 128;
/// Where our own functions run: beside the page's scripts, which can change what is in theirs.
const WORLD: &str = "ringfence";

pub struct Page {
    /// How callers name it: `p3`. A page that takes the place of one that hangs takes over its handle.
    handle: Mutex<String>,
    pub target: String,
    pub session: String,
    pub line: Line,
    context: Weak<Context>,
    state: Mutex<State>,
    changed: watch::Sender<u64>,
    gone: CancellationToken,
}

impl Page {
    pub fn new(
        handle: String,
        line: &Line,
        session: &str,
        target: &str,
        context: Weak<Context>,
    ) -> Arc<Page> {
        let page = Arc::new(Page {
            handle: Mutex::new(handle),
            target: target.to_owned(),
            session: session.to_owned(),
            line: line.clone(),
            context,
            state: Mutex::new(State::new(target)),
            changed: watch::channel(0).0,
            gone: CancellationToken::new(),
        });
        line.listen(Some(session), Arc::new(events::Ear(Arc::downgrade(&page))) as Arc<dyn Sink>);
        page
    }

    /// Has the browser tell us everything, before the page runs its first script.
    pub fn set_up(&self) {
        let order =
            |method: &str, params: Value| self.line.order(Some(&self.session), method, params);
        order("Page.enable", json!({}));
        order("Page.setLifecycleEventsEnabled", json!({"enabled": true}));
        order("Runtime.enable", json!({}));
        // Nothing of what was loaded is kept for us: we only count.
        order(
            "Network.enable",
            json!({"maxTotalBufferSize": 0, "maxResourceBufferSize": 0, "maxPostDataSize": 0}),
        );
        order("Log.enable", json!({}));
        let size =
            json!({"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": false});
        order("Emulation.setDeviceMetricsOverride", size);
        // A page in the background is drawn and has the focus all the same: there is nobody to see the difference.
        order("Emulation.setFocusEmulationEnabled", json!({"enabled": true}));
        order("Runtime.runIfWaitingForDebugger", json!({}));
    }

    pub async fn call(&self, method: &str, params: Value) -> Result<Value> {
        tokio::select! {
            biased;
            answer = self.line.call(Some(&self.session), method, params) => answer,
            () = self.gone.cancelled() => Err(self.lost()),
        }
    }

    /// One that may take as long as the caller of a tool has said; who waits for it ends it.
    pub async fn call_for(&self, method: &str, params: Value, limit: Duration) -> Result<Value> {
        let patience = limit.saturating_add(GRACE);
        tokio::select! {
            biased;
            answer = self.line.call_for(Some(&self.session), method, params, patience) => answer,
            () = self.gone.cancelled() => Err(self.lost()),
        }
    }

    pub fn handle(&self) -> String {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn take_over_handle(&self, handle: String) {
        *self.handle.lock().unwrap_or_else(PoisonError::into_inner) = handle;
    }

    /// Whether the page hangs: a script that never returns, or one that shows dialogs without end, keeps its main
    /// thread from everything else. An error is an answer, too.
    pub async fn is_hung(&self) -> bool {
        let asked =
            self.call("Runtime.evaluate", json!({"expression": "1", "returnByValue": true}));
        tokio::time::timeout(RESPONSIVE, asked).await.is_err()
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn context(&self) -> Option<Arc<Context>> {
        self.context.upgrade()
    }

    /// Changes what is known, and wakes whoever waits for it.
    fn update<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.state());
        self.changed.send_modify(|count| *count += 1);
        result
    }

    /// Waits until `look` finds what it looks for.
    pub async fn wait<T>(&self, mut look: impl FnMut(&mut State) -> Option<T>) -> Result<T> {
        let mut changed = self.changed.subscribe();
        loop {
            if let Some(found) = look(&mut self.state()) {
                return Ok(found);
            }
            tokio::select! {
                _ = changed.changed() => {}
                () = self.gone.cancelled() => return Err(self.lost()),
                () = self.line.closed() => return Err(self.lost()),
            }
        }
    }

    pub fn is_gone(&self) -> bool {
        self.gone.is_cancelled()
    }

    pub fn lose(&self, crashed: bool) {
        self.state().crashed |= crashed;
        self.gone.cancel();
        self.changed.send_modify(|count| *count += 1);
    }

    fn lost(&self) -> Error {
        let (message, reason) = match self.state().crashed {
            true => ("the page crashed", "page_crashed"),
            false if self.line.is_closed() => ("the browser ended unexpectedly", "browser_ended"),
            false => ("the page was closed", "page_closed"),
        };
        Error::new(Kind::Unavailable, message)
            .reason(reason)
            .hint("Open the address again with browser.navigate, without `page`.")
    }

    /// Where it is now and what it calls itself, as the browser knows it: a page's scripts would say what they like.
    pub async fn describe(&self) -> (String, String) {
        let asked = self.call("Page.getNavigationHistory", json!({}));
        let said = match tokio::time::timeout(QUICK, asked).await {
            Ok(Ok(said)) => said,
            _ => Value::Null,
        };
        let at = said["currentIndex"].as_u64().and_then(|at| usize::try_from(at).ok());
        let entry = at.and_then(|at| said["entries"].get(at)).unwrap_or(&Value::Null);
        let shown = |text: &str| plain(&cut(text, 2000));
        let title = shown(entry["title"].as_str().unwrap_or_default());
        let url = self.state().url.clone();
        (
            shown(if url.is_empty() { entry["url"].as_str().unwrap_or_default() } else { &url }),
            title,
        )
    }

    /// The id of the context in a frame, the main one for none, that only our own functions run in.
    pub async fn world(&self, frame: Option<&str>) -> Result<Value> {
        let frame = frame.unwrap_or(&self.target);
        // The browser makes it once for each document.
        let mut made = self
            .call("Page.createIsolatedWorld", json!({"frameId": frame, "worldName": WORLD}))
            .await?;
        Ok(made["executionContextId"].take())
    }

    /// The value of an expression of ours in the main frame.
    pub async fn evaluate_value(&self, expression: &str, awaits: bool) -> Result<Value> {
        let world = self.world(None).await?;
        let params = json!({"expression": expression, "contextId": world, "returnByValue": true, "awaitPromise": awaits});
        let mut answer = self.call("Runtime.evaluate", params).await?;
        if answer.get("exceptionDetails").is_some() {
            return Err(Error::new(Kind::Conflict, "the page does not answer as pages do")
                .reason("browser_refused"));
        }
        Ok(answer["result"]["value"].take())
    }

    /// Calls a function of ours on an object of the page's, and gives its value.
    pub async fn call_on(&self, object: &str, function: &str, arguments: Value) -> Result<Value> {
        let params = json!({
            "objectId": object, "functionDeclaration": function, "arguments": arguments,
            // Not awaited: anything can be made to look like a promise.
            "returnByValue": true, "userGesture": true,
        });
        let mut answer = self.call("Runtime.callFunctionOn", params).await?;
        if let Some(thrown) = answer.get("exceptionDetails") {
            return Err(Error::new(
                Kind::Conflict,
                format!("the page threw: {}", exception(thrown)),
            )
            .reason("exception")
            .hint("Look at the page with browser.snapshot and try again."));
        }
        Ok(answer["result"]["value"].take())
    }
}

/// What was thrown, in one bounded text.
pub fn exception(details: &Value) -> String {
    let described = details["exception"]["description"].as_str();
    let thrown = details["exception"].get("value").map(|value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    });
    let text = described.map(str::to_owned).or(thrown);
    let text = text.unwrap_or_else(|| details["text"].as_str().unwrap_or("an error").to_owned());
    plain(&cut(&text, 1000))
}

/// Whether it can be an id of the browser's.
pub fn is_id(text: &str) -> bool {
    text.len() <= ID
}
