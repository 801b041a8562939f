//! Applies the events of a page to its state.

use std::sync::Weak;

use serde_json::{Value, json};

use super::state::{DocumentResponse, OpenRequest, PageDialog, PageFrame};
use super::{BrowserPage, PageState, is_valid_id};
use crate::browser::address;
use crate::browser::cdp::{CdpConnection, CdpEvent, EventSink};
use crate::browser::page_log::{PageLogEntry, PageLogKind, escape_line, truncate_text};

/// Maximum size of dragged data.
const MAX_DRAG_BYTES: usize = 256 << 10;

/// Receives the events of a page without keeping the page alive.
pub struct PageEventSink(pub Weak<BrowserPage>);

impl EventSink for PageEventSink {
    fn handle_event(&self, connection: &CdpConnection, event: CdpEvent<'_>) {
        let Some(page) = self.0.upgrade() else { return };
        if !has_valid_ids(event.params) || !has_valid_ids(&event.params["frame"]) {
            return;
        }
        match event.method {
            "Page.javascriptDialogOpening" => page.answer_dialog(connection, event.params),
            "Page.frameNavigated" => page.apply_navigation(connection, &event.params["frame"]),
            "Inspector.targetCrashed" => page.mark_gone(true),
            method => page.update_state(|state| apply_event(state, method, event.params)),
        }
    }

    fn handle_skipped(&self, method: &str, bytes: usize) {
        if let Some(page) = self.0.upgrade() {
            let text =
                format!("a page event was skipped: {}, {bytes} bytes", truncate_text(method, 100));
            page.update_state(|state| {
                state
                    .log
                    .add_entry(PageLogEntry::new(PageLogKind::Error, &text).with_level("too_large"))
            });
        }
    }
}

/// Returns whether the ids can be the browser's own: they are stored, and everything stored is
/// bounded.
fn has_valid_ids(params: &Value) -> bool {
    const IDS: [&str; 6] = ["frameId", "parentFrameId", "loaderId", "requestId", "id", "parentId"];
    IDS.iter().all(|name| is_valid_id(text_of(&params[name])))
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn apply_event(state: &mut PageState, method: &str, params: &Value) {
    match method {
        "Page.lifecycleEvent" => apply_lifecycle(state, params),
        "Page.frameAttached" => {
            let parent = Some(text_of(&params["parentFrameId"]).to_owned());
            state.set_frame(
                text_of(&params["frameId"]),
                PageFrame { parent, document: String::new() },
            );
        }
        "Page.frameDetached" if params["reason"] != "swap" => {
            state.drop_frame(text_of(&params["frameId"]))
        }
        "Page.navigatedWithinDocument" if params["frameId"] == state.main_frame.as_str() => {
            state.url = truncate_text(text_of(&params["url"]), 4000);
            state.in_document_moves += 1;
        }
        "Page.frameRequestedNavigation"
        | "Page.frameStartedNavigating"
        | "Page.frameStartedLoading"
            if params["frameId"] == state.main_frame.as_str() =>
        {
            state.is_navigating = true;
        }
        "Page.frameStoppedLoading" if params["frameId"] == state.main_frame.as_str() => {
            state.is_navigating = false
        }
        "Network.requestWillBeSent" => apply_request(state, params),
        "Network.responseReceived" => apply_response(state, params),
        "Network.loadingFinished" => {
            if let Some(request) = state.end_request(text_of(&params["requestId"])) {
                state.log.add_entry(finished_entry(&request));
            }
        }
        "Network.loadingFailed" => apply_failure(state, params),
        "Network.webSocketCreated" => {
            let url = text_of(&params["url"]);
            state.counts.total += 1;
            state.log.add_entry(
                PageLogEntry::new(PageLogKind::Network, "WebSocket")
                    .with_level("opened")
                    .with_url(url),
            );
        }
        "Network.webSocketFrameError" => {
            state.log.add_entry(
                PageLogEntry::new(PageLogKind::Network, text_of(&params["errorMessage"]))
                    .with_level("failed"),
            );
        }
        "Runtime.consoleAPICalled" => apply_console(state, params),
        "Runtime.exceptionThrown" => {
            let details = &params["exceptionDetails"];
            let entry = PageLogEntry::new(PageLogKind::Error, &super::exception_text(details))
                .with_level("exception");
            state.log.add_entry(
                entry
                    .with_url(text_of(&details["url"]))
                    .with_line(details["lineNumber"].as_u64().map(|line| line + 1)),
            );
        }
        "Input.dragIntercepted" => {
            let data = &params["data"];
            state.drag_data = (data.to_string().len() <= MAX_DRAG_BYTES).then(|| data.clone());
        }
        "Log.entryAdded" => {
            let entry = &params["entry"];
            let kind =
                if entry["level"] == "error" { PageLogKind::Error } else { PageLogKind::Console };
            let log_entry = PageLogEntry::new(kind, text_of(&entry["text"]))
                .with_level(text_of(&entry["level"]));
            state.log.add_entry(
                log_entry.with_url(text_of(&entry["url"])).with_line(entry["lineNumber"].as_u64()),
            );
        }
        _ => {}
    }
}

fn apply_lifecycle(state: &mut PageState, params: &Value) {
    if params["frameId"] != state.main_frame.as_str() {
        return;
    }
    let (document, name) = (text_of(&params["loaderId"]), text_of(&params["name"]));
    if name == "commit" || name == "init" {
        state.commit_document(document);
    } else if document == state.current_document()
        && !state.has_reached(name)
        && state.reached_events.len() < 32
    {
        state.reached_events.push(name.to_owned());
    }
}

fn apply_request(state: &mut PageState, params: &Value) {
    let id = text_of(&params["requestId"]);
    let is_main_document = params["frameId"] == state.main_frame.as_str()
        && params["type"] == "Document"
        && params["loaderId"] == id;
    if is_main_document && params.get("redirectResponse").is_none() {
        state.redirects.clear();
    }
    if let Some(redirect) = params.get("redirectResponse") {
        if is_main_document {
            state.add_redirect(text_of(&redirect["url"]), redirect["status"].as_u64().unwrap_or(0));
        }
        if let Some(mut request) = state.end_request(id) {
            request.status = redirect["status"].as_u64();
            state.log.add_entry(finished_entry(&request));
        }
    }
    state.counts.total += 1;
    let request_data = &params["request"];
    let url = text_of(&request_data["url"]);
    // Resources contained in the page itself are not traffic.
    if url.starts_with("data:") || url.starts_with("blob:") {
        return;
    }
    let request = OpenRequest {
        url: truncate_text(url, 2000),
        method: truncate_text(text_of(&request_data["method"]), 20),
        kind: truncate_text(text_of(&params["type"]), 20),
        status: None,
    };
    state.add_request(id, request);
}

fn apply_response(state: &mut PageState, params: &Value) {
    let id = text_of(&params["requestId"]);
    let status = params["response"]["status"].as_u64();
    if params["frameId"] == state.main_frame.as_str()
        && params["type"] == "Document"
        && params["loaderId"] == id
    {
        state.response =
            Some(DocumentResponse { document: id.to_owned(), status: status.unwrap_or(0) });
    }
    if let Some(request) = state.requests.get_mut(id) {
        request.status = status;
    }
}

fn finished_entry(request: &OpenRequest) -> PageLogEntry {
    let level = if request.status.is_some_and(|status| status >= 400) { "failed" } else { "ok" };
    let text = format!("{} {}", request.method, request.kind);
    PageLogEntry::new(PageLogKind::Network, &text)
        .with_level(level)
        .with_url(&request.url)
        .with_status(request.status)
}

fn apply_failure(state: &mut PageState, params: &Value) {
    let Some(request) = state.end_request(text_of(&params["requestId"])) else { return };
    if params["canceled"] == true {
        return;
    }
    state.counts.failed += 1;
    let description = match params["blockedReason"].as_str() {
        Some(reason) => {
            format!("{} {}: blocked by the browser ({reason})", request.method, request.kind)
        }
        None => format!("{} {}: {}", request.method, request.kind, text_of(&params["errorText"])),
    };
    state.log.add_entry(
        PageLogEntry::new(PageLogKind::Network, &description)
            .with_level("failed")
            .with_url(&request.url)
            .with_status(request.status),
    );
}

fn apply_console(state: &mut PageState, params: &Value) {
    let arguments: Vec<String> = params["args"]
        .as_array()
        .into_iter()
        .flatten()
        .take(20)
        .map(|value| truncate_text(&format_console_value(value), 1000))
        .collect();
    let call_frame = &params["stackTrace"]["callFrames"][0];
    let level = text_of(&params["type"]);
    let kind = if level == "error" || level == "assert" {
        PageLogKind::Error
    } else {
        PageLogKind::Console
    };
    let entry = PageLogEntry::new(kind, &arguments.join(" "))
        .with_level(level)
        .with_url(text_of(&call_frame["url"]));
    state.log.add_entry(entry.with_line(call_frame["lineNumber"].as_u64().map(|line| line + 1)));
}

/// Formats a value as a console shows it.
fn format_console_value(value: &Value) -> String {
    match (&value["value"], &value["description"], &value["preview"]) {
        (Value::String(text), ..) => text.clone(),
        (plain, ..) if !plain.is_null() => plain.to_string(),
        (_, _, preview) if preview["properties"].is_array() => {
            let fields = preview["properties"].as_array().into_iter().flatten();
            let fields: Vec<String> = fields
                .map(|field| format!("{}: {}", text_of(&field["name"]), text_of(&field["value"])))
                .collect();
            format!("{{{}}}", fields.join(", "))
        }
        (_, Value::String(description), _) => description.clone(),
        _ => text_of(&value["type"]).to_owned(),
    }
}

impl BrowserPage {
    /// Answers and reports a dialog. It would block the page until answered, so this happens
    /// immediately.
    fn answer_dialog(&self, connection: &CdpConnection, params: &Value) {
        let kind = truncate_text(text_of(&params["type"]), 20);
        let (accepted, reply) = self.update_state(|state| {
            let expects_answer = kind == "confirm" || kind == "prompt";
            let accepted = !expects_answer || state.answers.accept;
            let reply = state.answers.text.clone().filter(|_| accepted && kind == "prompt");
            let message = escape_line(&truncate_text(text_of(&params["message"]), 1000));
            let outcome = if accepted { "accepted" } else { "dismissed" };
            state.log.add_entry(
                PageLogEntry::new(PageLogKind::Dialog, &format!("{kind}: {message}"))
                    .with_level(outcome),
            );
            state.add_dialog(PageDialog { kind: kind.clone(), message, accepted });
            (accepted, reply)
        });
        let mut answer = json!({"accept": accepted});
        if let Some(reply) = reply {
            answer["promptText"] = json!(reply);
        }
        connection.send_command(Some(&self.session), "Page.handleJavaScriptDialog", answer);
    }

    /// Handles a frame that shows another document. A main frame that went to an address that is
    /// not allowed is sent to a blank page.
    fn apply_navigation(&self, connection: &CdpConnection, frame: &Value) {
        let (id, url) = (text_of(&frame["id"]), text_of(&frame["url"]));
        let refused = self.update_state(|state| {
            let parent = frame["parentId"].as_str().map(str::to_owned);
            let document = text_of(&frame["loaderId"]).to_owned();
            if id == state.main_frame {
                if !state.commit_document(&document) {
                    return false;
                }
                // The fragment is reported separately.
                state.url =
                    truncate_text(&format!("{url}{}", text_of(&frame["urlFragment"])), 4000);
            }
            let is_top = parent.is_none();
            state.set_frame(id, PageFrame { parent, document });
            let refused = is_top && !address::may_stay_at(url);
            if refused {
                state.counts.blocked += 1;
                state.log.add_entry(
                    PageLogEntry::new(
                        PageLogKind::Blocked,
                        "the page navigated to an address that is not allowed",
                    )
                    .with_url(url),
                );
            }
            refused
        });
        if refused {
            connection.send_command(
                Some(&self.session),
                "Page.navigate",
                json!({"url": address::BLANK_PAGE}),
            );
        }
    }
}
