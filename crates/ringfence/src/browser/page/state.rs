//! Known state of a page. Only events of the page change it, and its size is bounded whatever they
//! contain.

use std::collections::{HashMap, VecDeque};

use schemars::JsonSchema;
use serde::Serialize;

use crate::browser::page_log::PageLog;
use crate::browser::refs::ElementRefs;

/// Maximum number of unfinished requests remembered.
const MAX_REQUESTS: usize = 2000;
const MAX_FRAMES: usize = 500;
const MAX_DIALOGS: usize = 50;
/// Maximum number of earlier documents remembered.
const MAX_DOCUMENTS: usize = 16;
const MAX_REDIRECTS: usize = 20;

/// Known state of a page.
pub struct PageState {
    /// Id of the main frame.
    pub main_frame: String,
    /// Address of the main frame.
    pub url: String,
    /// Document ids of the main frame, newest last.
    pub documents: VecDeque<String>,
    /// Document of our own navigation that the browser has answered but not yet shown. A hung page
    /// never shows it.
    pub expected_document: Option<String>,
    /// Number of moves of the main frame within its document, by a fragment or `pushState`.
    pub in_document_moves: u64,
    /// Lifecycle events that the newest document has reached: `DOMContentLoaded`, `load`,
    /// `networkIdle`.
    pub reached_events: Vec<String>,
    /// True while a navigation of the main frame is in progress.
    pub is_navigating: bool,
    /// Frames by id.
    pub frames: HashMap<String, PageFrame>,
    /// Response that delivered the current document.
    pub response: Option<DocumentResponse>,
    /// Redirects of the current navigation.
    pub redirects: Vec<PageRedirect>,
    /// Requests since the last `navigate` call.
    pub counts: RequestCounts,
    /// Unfinished requests by id.
    pub requests: HashMap<String, OpenRequest>,
    request_order: VecDeque<String>,
    /// Newest log entries.
    pub log: PageLog,
    dialogs: VecDeque<PageDialog>,
    /// Total number of dialogs so far.
    pub dialogs_seen: u64,
    /// How confirm and prompt dialogs are answered.
    pub answers: DialogAnswers,
    /// Names given to nodes of the current document.
    pub refs: ElementRefs,
    /// Lines of the last snapshot, with the request they were made for.
    pub last_snapshot: Option<(String, Vec<String>)>,
    /// Data of the drag in progress, as the browser sent it.
    pub drag_data: Option<serde_json::Value>,
    /// True if the page crashed.
    pub crashed: bool,
}

/// Frame of a page.
#[derive(Debug, Clone)]
pub struct PageFrame {
    /// Id of the parent frame; None for the main frame.
    pub parent: Option<String>,
    /// Id of the document that it shows.
    pub document: String,
}

/// Response that delivered the main frame's document.
#[derive(Debug, Clone)]
pub struct DocumentResponse {
    /// Id of the document.
    pub document: String,
    /// HTTP status.
    pub status: u64,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct PageRedirect {
    pub url: String,
    pub status: u64,
}

/// Request that has not ended.
#[derive(Debug, Clone)]
pub struct OpenRequest {
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
pub struct RequestCounts {
    pub total: u64,
    pub failed: u64,
    /// Refused by policy.
    pub blocked: u64,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct PageDialog {
    /// alert, confirm, prompt or beforeunload.
    pub kind: String,
    pub message: String,
    pub accepted: bool,
}

/// How dialogs are answered.
#[derive(Debug, Clone, Default)]
pub struct DialogAnswers {
    /// Accept confirm and prompt dialogs instead of dismissing them.
    pub accept: bool,
    /// Text for a prompt.
    pub text: Option<String>,
}

impl PageState {
    /// Creates the state of a page with this main frame.
    pub fn new(main_frame: &str) -> PageState {
        PageState {
            // The main frame has the same id as the page's target.
            main_frame: main_frame.to_owned(),
            url: String::new(),
            documents: VecDeque::new(),
            expected_document: None,
            in_document_moves: 0,
            reached_events: Vec::new(),
            is_navigating: false,
            frames: HashMap::new(),
            response: None,
            redirects: Vec::new(),
            counts: RequestCounts::default(),
            requests: HashMap::new(),
            request_order: VecDeque::new(),
            log: PageLog::default(),
            dialogs: VecDeque::new(),
            dialogs_seen: 0,
            answers: DialogAnswers::default(),
            refs: ElementRefs::default(),
            last_snapshot: None,
            drag_data: None,
            crashed: false,
        }
    }

    /// Returns the id of the main frame's document.
    pub fn current_document(&self) -> &str {
        self.documents.back().map_or("", String::as_str)
    }

    /// Returns whether the newest document has reached this lifecycle event.
    pub fn has_reached(&self, name: &str) -> bool {
        self.reached_events.iter().any(|reached| reached == name)
    }

    /// Expects this document as the result of our own navigation; it may already be shown.
    pub fn expect_document(&mut self, document: &str) {
        let is_shown = self.documents.iter().any(|known| known == document);
        self.expected_document = (!is_shown).then(|| document.to_owned());
    }

    /// Records that the main frame shows this document. Returns false for a document that it has
    /// already left: events from different processes arrive in no particular order.
    pub fn commit_document(&mut self, document: &str) -> bool {
        if self.expected_document.as_deref() == Some(document) {
            self.expected_document = None;
        }
        if self.current_document() == document {
            return true;
        }
        if self.documents.iter().any(|known| known == document) {
            return false;
        }
        if self.documents.len() == MAX_DOCUMENTS {
            self.documents.pop_front();
        }
        self.documents.push_back(document.to_owned());
        self.reached_events.clear();
        self.refs.clear();
        self.last_snapshot = None;
        self.is_navigating = false;
        true
    }

    /// Adds or updates a frame; ignores new ones beyond the maximum.
    pub fn set_frame(&mut self, id: &str, frame: PageFrame) {
        if self.frames.len() < MAX_FRAMES || self.frames.contains_key(id) {
            self.frames.insert(id.to_owned(), frame);
        }
    }

    /// Removes a frame and all frames in it.
    pub fn drop_frame(&mut self, id: &str) {
        self.frames.remove(id);
        let children: Vec<String> = self
            .frames
            .iter()
            .filter(|(_, frame)| frame.parent.as_deref() == Some(id))
            .map(|(id, _)| id.clone())
            .collect();
        children.iter().for_each(|id| self.drop_frame(id));
    }

    /// Adds a redirect of the current navigation.
    pub fn add_redirect(&mut self, url: &str, status: u64) {
        if self.redirects.len() < MAX_REDIRECTS {
            self.redirects.push(PageRedirect {
                url: crate::browser::page_log::truncate_text(url, 2000),
                status,
            });
        }
    }

    /// Adds a request; forgets the oldest one beyond the maximum.
    pub fn add_request(&mut self, id: &str, request: OpenRequest) {
        if self.requests.insert(id.to_owned(), request).is_none() {
            self.request_order.push_back(id.to_owned());
        }
        while self.request_order.len() > MAX_REQUESTS {
            if let Some(oldest) = self.request_order.pop_front() {
                self.requests.remove(&oldest);
            }
        }
    }

    /// Removes and returns a request that has ended.
    pub fn end_request(&mut self, id: &str) -> Option<OpenRequest> {
        self.requests.remove(id)
    }

    /// Adds a dialog; forgets the oldest one beyond the maximum.
    pub fn add_dialog(&mut self, dialog: PageDialog) {
        if self.dialogs.len() == MAX_DIALOGS {
            self.dialogs.pop_front();
        }
        self.dialogs.push_back(dialog);
        self.dialogs_seen += 1;
    }

    /// Returns the dialogs after the first `seen_count`, as far as they are still remembered.
    pub fn dialogs_after(&self, seen_count: u64) -> Vec<PageDialog> {
        let new_count =
            usize::try_from(self.dialogs_seen.saturating_sub(seen_count)).unwrap_or(usize::MAX);
        self.dialogs.iter().skip(self.dialogs.len().saturating_sub(new_count)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dialogs_are_reported_however_many_came_before() {
        let mut state = PageState::new("main");
        let dialog = |number: usize| PageDialog {
            kind: "alert".into(),
            message: number.to_string(),
            accepted: true,
        };
        (0..MAX_DIALOGS + 7).for_each(|number| state.add_dialog(dialog(number)));
        let seen = state.dialogs_seen;
        assert!(state.dialogs_after(seen).is_empty());
        state.add_dialog(dialog(777));
        let new: Vec<String> =
            state.dialogs_after(seen).into_iter().map(|dialog| dialog.message).collect();
        assert_eq!(new, ["777"]);
        assert_eq!(state.dialogs_after(0).len(), MAX_DIALOGS);
    }

    #[test]
    fn an_expected_document_is_shown_only_once_it_commits() {
        let mut state = PageState::new("main");
        state.commit_document("old");
        state.expect_document("new");
        // The old page reloads itself meanwhile, which is not what was asked for.
        state.commit_document("old, again");
        assert_eq!(state.expected_document.as_deref(), Some("new"));
        state.commit_document("new");
        assert_eq!((state.expected_document.as_deref(), state.current_document()), (None, "new"));
        state.expect_document("new");
        assert_eq!(state.expected_document, None, "it was shown before the browser answered");
    }

    #[test]
    fn a_document_that_was_left_does_not_come_back() {
        let mut state = PageState::new("main");
        assert!(state.commit_document("a") && state.commit_document("b"));
        state.reached_events.push("load".to_owned());
        assert!(!state.commit_document("a"), "late news");
        assert!(state.commit_document("b"));
        assert_eq!((state.current_document(), state.has_reached("load")), ("b", true));
    }
}
