//! Applies the events of a page to its state.

use std::sync::Weak;

use serde_json::{Value, json};

use super::state::{Dialog, Frame, Request, Response};
use super::{Page, State, is_id};
use crate::browser::address;
use crate::browser::cdp::{Event, Line, Sink};
use crate::browser::log::{Entry, Kind, cut, plain};

/// Maximum size of dragged data.
const DRAG: usize = 256 << 10;

/// Receives the events of a page without keeping the page alive.
pub struct Ear(pub Weak<Page>);

impl Sink for Ear {
    fn take(&self, line: &Line, event: Event<'_>) {
        let Some(page) = self.0.upgrade() else { return };
        if !has_ids(event.params) || !has_ids(&event.params["frame"]) {
            return;
        }
        match event.method {
            "Page.javascriptDialogOpening" => page.answer_dialog(line, event.params),
            "Page.frameNavigated" => page.arrive(line, &event.params["frame"]),
            "Inspector.targetCrashed" => page.lose(true),
            method => page.update(|state| take(state, method, event.params)),
        }
    }

    fn miss(&self, method: &str, bytes: usize) {
        if let Some(page) = self.0.upgrade() {
            let text = format!("a page event was skipped: {}, {bytes} bytes", cut(method, 100));
            page.update(|state| state.log.add(Entry::new(Kind::Error, &text).level("too_large")));
        }
    }
}

/// Returns whether the ids can be the browser's own: they are stored, and everything stored is
/// bounded.
fn has_ids(params: &Value) -> bool {
    const IDS: [&str; 6] = ["frameId", "parentFrameId", "loaderId", "requestId", "id", "parentId"];
    IDS.iter().all(|name| is_id(text(&params[name])))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn take(state: &mut State, method: &str, params: &Value) {
    match method {
        "Page.lifecycleEvent" => lifecycle(state, params),
        "Page.frameAttached" => {
            let parent = Some(text(&params["parentFrameId"]).to_owned());
            state.set_frame(
                text(&params["frameId"]),
                Frame { parent, document: String::new(), url: String::new() },
            );
        }
        "Page.frameDetached" if params["reason"] != "swap" => {
            state.drop_frame(text(&params["frameId"]))
        }
        "Page.navigatedWithinDocument" if params["frameId"] == state.main.as_str() => {
            state.url = cut(text(&params["url"]), 4000);
            state.moves += 1;
        }
        "Page.frameRequestedNavigation"
        | "Page.frameStartedNavigating"
        | "Page.frameStartedLoading"
            if params["frameId"] == state.main.as_str() =>
        {
            state.leaving = true;
        }
        "Page.frameStoppedLoading" if params["frameId"] == state.main.as_str() => {
            state.leaving = false
        }
        "Network.requestWillBeSent" => request(state, params),
        "Network.responseReceived" => response(state, params),
        "Network.loadingFinished" => {
            if let Some(request) = state.end_request(text(&params["requestId"])) {
                state.log.add(ended(&request));
            }
        }
        "Network.loadingFailed" => failure(state, params),
        "Network.webSocketCreated" => {
            let url = text(&params["url"]);
            state.counts.total += 1;
            state.log.add(Entry::new(Kind::Network, "WebSocket").level("opened").url(url));
        }
        "Network.webSocketFrameError" => {
            state.log.add(Entry::new(Kind::Network, text(&params["errorMessage"])).level("failed"));
        }
        "Runtime.consoleAPICalled" => console(state, params),
        "Runtime.exceptionThrown" => {
            let details = &params["exceptionDetails"];
            let entry = Entry::new(Kind::Error, &super::exception(details)).level("exception");
            state.log.add(
                entry
                    .url(text(&details["url"]))
                    .line(details["lineNumber"].as_u64().map(|line| line + 1)),
            );
        }
        "Input.dragIntercepted" => {
            let data = &params["data"];
            state.drag = (data.to_string().len() <= DRAG).then(|| data.clone());
        }
        "Log.entryAdded" => {
            let entry = &params["entry"];
            let kind = if entry["level"] == "error" { Kind::Error } else { Kind::Console };
            let added = Entry::new(kind, text(&entry["text"])).level(text(&entry["level"]));
            state.log.add(added.url(text(&entry["url"])).line(entry["lineNumber"].as_u64()));
        }
        _ => {}
    }
}

fn lifecycle(state: &mut State, params: &Value) {
    if params["frameId"] != state.main.as_str() {
        return;
    }
    let (document, name) = (text(&params["loaderId"]), text(&params["name"]));
    if name == "commit" || name == "init" {
        state.commit(document);
    } else if document == state.document() && !state.has_reached(name) && state.reached.len() < 32 {
        state.reached.push(name.to_owned());
    }
}

fn request(state: &mut State, params: &Value) {
    let id = text(&params["requestId"]);
    let main = params["frameId"] == state.main.as_str()
        && params["type"] == "Document"
        && params["loaderId"] == id;
    if main && params.get("redirectResponse").is_none() {
        state.redirects.clear();
    }
    if let Some(before) = params.get("redirectResponse") {
        if main {
            state.redirect(text(&before["url"]), before["status"].as_u64().unwrap_or(0));
        }
        if let Some(mut request) = state.end_request(id) {
            request.status = before["status"].as_u64();
            state.log.add(ended(&request));
        }
    }
    state.counts.total += 1;
    let asked = &params["request"];
    let url = text(&asked["url"]);
    // Resources contained in the page itself are not traffic.
    if url.starts_with("data:") || url.starts_with("blob:") {
        return;
    }
    let request = Request {
        url: cut(url, 2000),
        method: cut(text(&asked["method"]), 20),
        kind: cut(text(&params["type"]), 20),
        status: None,
    };
    state.add_request(id, request);
}

fn response(state: &mut State, params: &Value) {
    let id = text(&params["requestId"]);
    let status = params["response"]["status"].as_u64();
    if params["frameId"] == state.main.as_str()
        && params["type"] == "Document"
        && params["loaderId"] == id
    {
        state.response = Some(Response { document: id.to_owned(), status: status.unwrap_or(0) });
    }
    if let Some(request) = state.requests.get_mut(id) {
        request.status = status;
    }
}

fn ended(request: &Request) -> Entry {
    let level = if request.status.is_some_and(|status| status >= 400) { "failed" } else { "ok" };
    let text = format!("{} {}", request.method, request.kind);
    Entry::new(Kind::Network, &text).level(level).url(&request.url).status(request.status)
}

fn failure(state: &mut State, params: &Value) {
    let Some(request) = state.end_request(text(&params["requestId"])) else { return };
    if params["canceled"] == true {
        return;
    }
    state.counts.failed += 1;
    let why = match params["blockedReason"].as_str() {
        Some(reason) => {
            format!("{} {}: blocked by the browser ({reason})", request.method, request.kind)
        }
        None => format!("{} {}: {}", request.method, request.kind, text(&params["errorText"])),
    };
    state.log.add(
        Entry::new(Kind::Network, &why).level("failed").url(&request.url).status(request.status),
    );
}

fn console(state: &mut State, params: &Value) {
    let said: Vec<String> = params["args"]
        .as_array()
        .into_iter()
        .flatten()
        .take(20)
        .map(|value| cut(&shown(value), 1000))
        .collect();
    let at = &params["stackTrace"]["callFrames"][0];
    let level = text(&params["type"]);
    let kind = if level == "error" || level == "assert" { Kind::Error } else { Kind::Console };
    let entry = Entry::new(kind, &said.join(" ")).level(level).url(text(&at["url"]));
    state.log.add(entry.line(at["lineNumber"].as_u64().map(|line| line + 1)));
}

/// Formats a value as a console shows it.
fn shown(value: &Value) -> String {
    match (&value["value"], &value["description"], &value["preview"]) {
        (Value::String(text), ..) => text.clone(),
        (plain, ..) if !plain.is_null() => plain.to_string(),
        (_, _, preview) if preview["properties"].is_array() => {
            let fields = preview["properties"].as_array().into_iter().flatten();
            let fields: Vec<String> = fields
                .map(|field| format!("{}: {}", text(&field["name"]), text(&field["value"])))
                .collect();
            format!("{{{}}}", fields.join(", "))
        }
        (_, Value::String(description), _) => description.clone(),
        _ => text(&value["type"]).to_owned(),
    }
}

impl Page {
    /// Answers and reports a dialog. It would block the page until answered, so this happens
    /// immediately.
    fn answer_dialog(&self, line: &Line, params: &Value) {
        let kind = cut(text(&params["type"]), 20);
        let (accepted, reply) = self.update(|state| {
            let asks = kind == "confirm" || kind == "prompt";
            let accepted = !asks || state.answers.accept;
            let reply = state.answers.text.clone().filter(|_| accepted && kind == "prompt");
            let message = plain(&cut(text(&params["message"]), 1000));
            let done = if accepted { "accepted" } else { "dismissed" };
            state.log.add(Entry::new(Kind::Dialog, &format!("{kind}: {message}")).level(done));
            state.add_dialog(Dialog { kind: kind.clone(), message, accepted });
            (accepted, reply)
        });
        let mut answer = json!({"accept": accepted});
        if let Some(reply) = reply {
            answer["promptText"] = json!(reply);
        }
        line.order(Some(&self.session), "Page.handleJavaScriptDialog", answer);
    }

    /// Handles a frame that shows another document. A main frame that went to an address that is
    /// not allowed is sent to a blank page.
    fn arrive(&self, line: &Line, frame: &Value) {
        let (id, url) = (text(&frame["id"]), text(&frame["url"]));
        let refused = self.update(|state| {
            let parent = frame["parentId"].as_str().map(str::to_owned);
            let document = text(&frame["loaderId"]).to_owned();
            if id == state.main {
                if !state.commit(&document) {
                    return false;
                }
                // The fragment is reported separately.
                state.url = cut(&format!("{url}{}", text(&frame["urlFragment"])), 4000);
            }
            let top = parent.is_none();
            state.set_frame(id, Frame { parent, document, url: cut(url, 2000) });
            let refused = top && !address::may_stay(url);
            if refused {
                state.counts.blocked += 1;
                state.log.add(
                    Entry::new(
                        Kind::Blocked,
                        "the page navigated to an address that is not allowed",
                    )
                    .url(url),
                );
            }
            refused
        });
        if refused {
            line.order(Some(&self.session), "Page.navigate", json!({"url": address::BLANK}));
        }
    }
}
