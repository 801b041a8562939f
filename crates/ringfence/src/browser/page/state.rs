//! Known state of a page. Only events of the page change it, and its size is bounded whatever they
//! contain.

use std::collections::{HashMap, VecDeque};

use schemars::JsonSchema;
use serde::Serialize;

use crate::browser::log::Log;
use crate::browser::refs::Refs;

/// Maximum number of unfinished requests remembered.
const REQUESTS: usize = 2000;
const FRAMES: usize = 500;
const DIALOGS: usize = 50;
/// Maximum number of earlier documents remembered.
const DOCUMENTS: usize = 16;
const REDIRECTS: usize = 20;

/// Known state of a page.
pub struct State {
    /// Id of the main frame.
    pub main: String,
    /// Address of the main frame.
    pub url: String,
    /// Document ids of the main frame, newest last.
    pub committed: VecDeque<String>,
    /// Document of our own navigation that the browser has answered but not yet shown. A hung page
    /// never shows it.
    pub expected: Option<String>,
    /// Number of moves of the main frame within its document, by a fragment or `pushState`.
    pub moves: u64,
    /// Lifecycle events that the newest document has reached: `DOMContentLoaded`, `load`,
    /// `networkIdle`.
    pub reached: Vec<String>,
    /// True while a navigation of the main frame is in progress.
    pub leaving: bool,
    /// Frames by id.
    pub frames: HashMap<String, Frame>,
    /// Response that delivered the current document.
    pub response: Option<Response>,
    /// Redirects of the current navigation.
    pub redirects: Vec<Redirect>,
    /// Requests since the last `navigate` call.
    pub counts: Counts,
    /// Unfinished requests by id.
    pub requests: HashMap<String, Request>,
    order: VecDeque<String>,
    /// Newest log entries.
    pub log: Log,
    dialogs: VecDeque<Dialog>,
    /// Total number of dialogs so far.
    pub dialogs_seen: u64,
    /// How confirm and prompt dialogs are answered.
    pub answers: Answers,
    /// Names given to nodes of the current document.
    pub refs: Refs,
    /// Lines of the last snapshot, with the request they were made for.
    pub shown: Option<(String, Vec<String>)>,
    /// Data of the drag in progress, as the browser sent it.
    pub drag: Option<serde_json::Value>,
    /// True if the page crashed.
    pub crashed: bool,
}

/// Frame of a page.
#[derive(Debug, Clone)]
pub struct Frame {
    /// Id of the parent frame; None for the main frame.
    pub parent: Option<String>,
    /// Id of the document that it shows.
    pub document: String,
    /// Address of that document.
    pub url: String,
}

/// Response that delivered the main frame's document.
#[derive(Debug, Clone)]
pub struct Response {
    /// Id of the document.
    pub document: String,
    /// HTTP status.
    pub status: u64,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Redirect {
    pub url: String,
    pub status: u64,
}

/// Request that has not ended.
#[derive(Debug, Clone)]
pub struct Request {
    /// Address.
    pub url: String,
    /// HTTP method.
    pub method: String,
    /// Resource type as the browser names it: `Document`, `Script` …
    pub kind: String,
    /// HTTP status, once the response has started.
    pub status: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default, Serialize, JsonSchema)]
pub struct Counts {
    pub total: u64,
    pub failed: u64,
    /// Refused by policy.
    pub blocked: u64,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Dialog {
    /// alert, confirm, prompt or beforeunload.
    pub kind: String,
    pub message: String,
    pub accepted: bool,
}

/// How dialogs are answered.
#[derive(Debug, Clone, Default)]
pub struct Answers {
    /// Accept confirm and prompt dialogs instead of dismissing them.
    pub accept: bool,
    /// Text for a prompt.
    pub text: Option<String>,
}

impl State {
    /// Creates the state of a page with this main frame.
    pub fn new(main: &str) -> State {
        State {
            // The main frame has the same id as the page's target.
            main: main.to_owned(),
            url: String::new(),
            committed: VecDeque::new(),
            expected: None,
            moves: 0,
            reached: Vec::new(),
            leaving: false,
            frames: HashMap::new(),
            response: None,
            redirects: Vec::new(),
            counts: Counts::default(),
            requests: HashMap::new(),
            order: VecDeque::new(),
            log: Log::default(),
            dialogs: VecDeque::new(),
            dialogs_seen: 0,
            answers: Answers::default(),
            refs: Refs::default(),
            shown: None,
            drag: None,
            crashed: false,
        }
    }

    /// Returns the id of the main frame's document.
    pub fn document(&self) -> &str {
        self.committed.back().map_or("", String::as_str)
    }

    /// Returns whether the newest document has reached this lifecycle event.
    pub fn has_reached(&self, name: &str) -> bool {
        self.reached.iter().any(|reached| reached == name)
    }

    /// Expects this document as the result of our own navigation; it may already be shown.
    pub fn expect(&mut self, document: &str) {
        let is_shown = self.committed.iter().any(|known| known == document);
        self.expected = (!is_shown).then(|| document.to_owned());
    }

    /// Records that the main frame shows this document. Returns false for a document that it has
    /// already left: events from different processes arrive in no particular order.
    pub fn commit(&mut self, document: &str) -> bool {
        if self.expected.as_deref() == Some(document) {
            self.expected = None;
        }
        if self.document() == document {
            return true;
        }
        if self.committed.iter().any(|known| known == document) {
            return false;
        }
        if self.committed.len() == DOCUMENTS {
            self.committed.pop_front();
        }
        self.committed.push_back(document.to_owned());
        self.reached.clear();
        self.refs.clear();
        self.shown = None;
        self.leaving = false;
        true
    }

    /// Adds or updates a frame; ignores new ones beyond the maximum.
    pub fn set_frame(&mut self, id: &str, frame: Frame) {
        if self.frames.len() < FRAMES || self.frames.contains_key(id) {
            self.frames.insert(id.to_owned(), frame);
        }
    }

    /// Removes a frame and all frames in it.
    pub fn drop_frame(&mut self, id: &str) {
        self.frames.remove(id);
        let below: Vec<String> = self
            .frames
            .iter()
            .filter(|(_, frame)| frame.parent.as_deref() == Some(id))
            .map(|(id, _)| id.clone())
            .collect();
        below.iter().for_each(|id| self.drop_frame(id));
    }

    /// Adds a redirect of the current navigation.
    pub fn redirect(&mut self, url: &str, status: u64) {
        if self.redirects.len() < REDIRECTS {
            self.redirects.push(Redirect { url: crate::browser::log::cut(url, 2000), status });
        }
    }

    /// Adds a request; forgets the oldest one beyond the maximum.
    pub fn add_request(&mut self, id: &str, request: Request) {
        if self.requests.insert(id.to_owned(), request).is_none() {
            self.order.push_back(id.to_owned());
        }
        while self.order.len() > REQUESTS {
            if let Some(oldest) = self.order.pop_front() {
                self.requests.remove(&oldest);
            }
        }
    }

    /// Removes and returns a request that has ended.
    pub fn end_request(&mut self, id: &str) -> Option<Request> {
        self.requests.remove(id)
    }

    /// Adds a dialog; forgets the oldest one beyond the maximum.
    pub fn add_dialog(&mut self, dialog: Dialog) {
        if self.dialogs.len() == DIALOGS {
            self.dialogs.pop_front();
        }
        self.dialogs.push_back(dialog);
        self.dialogs_seen += 1;
    }

    /// Returns the dialogs after the first `seen`, as far as they are still remembered.
    pub fn dialogs_after(&self, seen: u64) -> Vec<Dialog> {
        let new = usize::try_from(self.dialogs_seen.saturating_sub(seen)).unwrap_or(usize::MAX);
        self.dialogs.iter().skip(self.dialogs.len().saturating_sub(new)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dialogs_are_reported_however_many_came_before() {
        let mut state = State::new("main");
        let dialog = |number: usize| Dialog {
            kind: "alert".into(),
            message: number.to_string(),
            accepted: true,
        };
        (0..DIALOGS + 7).for_each(|number| state.add_dialog(dialog(number)));
        let seen = state.dialogs_seen;
        assert!(state.dialogs_after(seen).is_empty());
        state.add_dialog(dialog(777));
        let new: Vec<String> =
            state.dialogs_after(seen).into_iter().map(|dialog| dialog.message).collect();
        assert_eq!(new, ["777"]);
        assert_eq!(state.dialogs_after(0).len(), DIALOGS);
    }

    #[test]
    fn an_expected_document_is_shown_only_once_it_commits() {
        let mut state = State::new("main");
        state.commit("old");
        state.expect("new");
        // The old page reloads itself meanwhile, which is not what was asked for.
        state.commit("old, again");
        assert_eq!(state.expected.as_deref(), Some("new"));
        state.commit("new");
        assert_eq!((state.expected.as_deref(), state.document()), (None, "new"));
        state.expect("new");
        assert_eq!(state.expected, None, "it was shown before the browser answered");
    }

    #[test]
    fn a_document_that_was_left_does_not_come_back() {
        let mut state = State::new("main");
        assert!(state.commit("a") && state.commit("b"));
        state.reached.push("load".to_owned());
        assert!(!state.commit("a"), "late news");
        assert!(state.commit("b"));
        assert_eq!((state.document(), state.has_reached("load")), ("b", true));
    }
}
