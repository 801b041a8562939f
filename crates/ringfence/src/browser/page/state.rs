//! What is known about a page. It changes with the events of the page alone, and is bounded whatever they are.

use std::collections::{HashMap, VecDeque};

use schemars::JsonSchema;
use serde::Serialize;

use crate::browser::log::Log;
use crate::browser::refs::Refs;

/// Requests that are remembered until they end.
const REQUESTS: usize = 2000;
const FRAMES: usize = 500;
const DIALOGS: usize = 50;
/// Documents that were shown before this one.
const DOCUMENTS: usize = 16;
const REDIRECTS: usize = 20;

pub struct State {
    pub main: String,
    pub url: String,
    /// Document ids of the main frame, the newest last.
    pub committed: VecDeque<String>,
    /// The document of a navigation of ours that the browser has answered and not yet shown. A page that hangs never
    /// shows it.
    pub expected: Option<String>,
    /// How often the main frame moved within its document, by a fragment or `pushState`.
    pub moves: u64,
    /// What the newest document has come to: `DOMContentLoaded`, `load`, `networkIdle`.
    pub reached: Vec<String>,
    /// A navigation of the main frame is under way.
    pub leaving: bool,
    pub frames: HashMap<String, Frame>,
    pub response: Option<Response>,
    pub redirects: Vec<Redirect>,
    pub counts: Counts,
    pub requests: HashMap<String, Request>,
    order: VecDeque<String>,
    pub log: Log,
    dialogs: VecDeque<Dialog>,
    /// How many there ever were.
    pub dialogs_seen: u64,
    /// How the next confirm or prompt is answered.
    pub answers: Answers,
    pub refs: Refs,
    /// The lines of the last snapshot, by what was asked for.
    pub shown: Option<(String, Vec<String>)>,
    /// What is being dragged, in the browser's own words.
    pub drag: Option<serde_json::Value>,
    pub crashed: bool,
}

#[derive(Debug, Clone)]
pub struct Frame {
    pub parent: Option<String>,
    pub document: String,
    pub url: String,
}

/// The answer that brought the main frame's document.
#[derive(Debug, Clone)]
pub struct Response {
    pub document: String,
    pub status: u64,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Redirect {
    pub url: String,
    pub status: u64,
}

#[derive(Debug, Clone)]
pub struct Request {
    pub url: String,
    pub method: String,
    pub kind: String,
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

#[derive(Debug, Clone, Default)]
pub struct Answers {
    pub accept: bool,
    pub text: Option<String>,
}

impl State {
    pub fn new(main: &str) -> State {
        State {
            // The main frame of a page has the id of its target.
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

    pub fn document(&self) -> &str {
        self.committed.back().map_or("", String::as_str)
    }

    pub fn has_reached(&self, name: &str) -> bool {
        self.reached.iter().any(|reached| reached == name)
    }

    /// A navigation of ours leads to this document, which may be shown already.
    pub fn expect(&mut self, document: &str) {
        let is_shown = self.committed.iter().any(|known| known == document);
        self.expected = (!is_shown).then(|| document.to_owned());
    }

    /// The main frame shows this document. False for one that it has left already: documents of different processes
    /// speak in no order.
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

    pub fn set_frame(&mut self, id: &str, frame: Frame) {
        if self.frames.len() < FRAMES || self.frames.contains_key(id) {
            self.frames.insert(id.to_owned(), frame);
        }
    }

    /// A frame that is gone takes those in it along.
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

    pub fn redirect(&mut self, url: &str, status: u64) {
        if self.redirects.len() < REDIRECTS {
            self.redirects.push(Redirect { url: crate::browser::log::cut(url, 2000), status });
        }
    }

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

    pub fn end_request(&mut self, id: &str) -> Option<Request> {
        self.requests.remove(id)
    }

    pub fn add_dialog(&mut self, dialog: Dialog) {
        if self.dialogs.len() == DIALOGS {
            self.dialogs.pop_front();
        }
        self.dialogs.push_back(dialog);
        self.dialogs_seen += 1;
    }

    /// Those that came after so many; of very many the newest.
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
