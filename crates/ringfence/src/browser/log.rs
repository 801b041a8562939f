//! Log of a page: its newest console messages, errors, requests, and what was refused.

use std::collections::VecDeque;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum number of entries kept per page; a page can produce any number.
pub const KEPT: usize = 1000;
/// Maximum length of the text of one entry, in bytes.
const TEXT: usize = 2000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Console,
    Error,
    Network,
    Blocked,
    Dialog,
    Download,
}

impl Kind {
    /// Returns the name used in results.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Console => "console",
            Kind::Error => "error",
            Kind::Network => "network",
            Kind::Blocked => "blocked",
            Kind::Dialog => "dialog",
            Kind::Download => "download",
        }
    }
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Entry {
    /// Counts up; pass the last one as `since` to read on.
    pub seq: u64,
    pub kind: &'static str,
    /// Of a console message: log, warning, error …; of a request its outcome.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    pub text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u64>,
}

impl Entry {
    /// Creates an entry with this text, truncated to the maximum length.
    pub fn new(kind: Kind, text: &str) -> Entry {
        Entry {
            seq: 0,
            kind: kind.name(),
            level: None,
            text: cut(text, TEXT),
            url: None,
            line: None,
            status: None,
        }
    }

    /// Sets the level.
    pub fn level(mut self, level: &str) -> Entry {
        self.level = Some(cut(level, 40));
        self
    }

    /// Sets the address, unless it is empty.
    pub fn url(mut self, url: &str) -> Entry {
        self.url = (!url.is_empty()).then(|| cut(url, TEXT));
        self
    }

    /// Sets the line number.
    pub fn line(mut self, line: Option<u64>) -> Entry {
        self.line = line;
        self
    }

    /// Sets the HTTP status.
    pub fn status(mut self, status: Option<u64>) -> Entry {
        self.status = status;
        self
    }
}

/// Newest entries of a page.
#[derive(Debug, Default)]
pub struct Log {
    entries: VecDeque<Entry>,
    last: u64,
}

impl Log {
    /// Adds an entry with the next number; drops the oldest one if the log is full.
    pub fn add(&mut self, mut entry: Entry) {
        self.last += 1;
        entry.seq = self.last;
        if self.entries.len() == KEPT {
            self.entries.pop_front();
        }
        self.entries.push_back(entry);
    }

    /// Returns the number of the newest entry ever added.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Returns the entries after `seq` that are still kept.
    pub fn after(&self, seq: u64) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(move |entry| entry.seq > seq)
    }

    /// Returns the number of entries after `seq` that are no longer kept.
    pub fn lost_after(&self, seq: u64) -> u64 {
        let first = self.entries.front().map_or(self.last + 1, |entry| entry.seq);
        first.saturating_sub(seq + 1)
    }
}

/// Truncates text to a number of bytes, on a character boundary.
pub fn cut(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    let end = (0..=bytes).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{}…", &text[..end])
}

/// Escapes text of a page to a single line, so that it can neither forge a line of our output nor
/// reverse the direction of the text.
pub fn plain(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => line.push_str("\\n"),
            '\r' => line.push_str("\\r"),
            '\t' => line.push(' '),
            '\u{2028}'
            | '\u{2029}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}' => {
                line.extend(c.escape_unicode());
            }
            c if c.is_control() => line.extend(c.escape_unicode()),
            c => line.push(c),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept_and_the_lost_are_counted() {
        let mut log = Log::default();
        for number in 0..KEPT + 5 {
            log.add(Entry::new(Kind::Console, &format!("{number}")));
        }
        assert_eq!(log.last(), KEPT as u64 + 5);
        assert_eq!(log.after(0).count(), KEPT);
        assert_eq!(log.lost_after(0), 5);
        assert_eq!(
            log.after(KEPT as u64 + 3).map(|entry| entry.text.as_str()).collect::<Vec<_>>(),
            ["1003", "1004"]
        );
        assert_eq!(log.lost_after(KEPT as u64), 0);
    }

    #[test]
    fn a_page_cannot_make_lines_of_ours() {
        let said = plain("Home\r\n3 console errors\u{2028}x\u{2029}y\u{85}z\u{1b}[2J\u{202e}\tü");
        assert_eq!(
            said,
            "Home\\r\\n3 console errors\\u{2028}x\\u{2029}y\\u{85}z\\u{1b}[2J\\u{202e} ü"
        );
        assert_eq!(said.lines().count(), 1);
    }

    #[test]
    fn an_entry_is_bounded() {
        let entry = Entry::new(Kind::Error, &"ü".repeat(5000)).url(&"x".repeat(9000));
        assert!(entry.text.len() <= TEXT + 3 && entry.url.unwrap().len() <= TEXT + 3);
    }
}
