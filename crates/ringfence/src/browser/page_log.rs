//! Log of a page: its newest console messages, errors, requests, and what was refused.

use std::collections::VecDeque;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum number of entries kept per page; a page can produce any number.
pub const MAX_ENTRIES: usize = 1000;
/// Maximum length of the text of one entry, in bytes.
const MAX_TEXT_BYTES: usize = 2000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PageLogKind {
    Console,
    Error,
    Network,
    Blocked,
    Dialog,
    Download,
}

impl PageLogKind {
    /// Returns the name used in results.
    pub fn name(self) -> &'static str {
        match self {
            PageLogKind::Console => "console",
            PageLogKind::Error => "error",
            PageLogKind::Network => "network",
            PageLogKind::Blocked => "blocked",
            PageLogKind::Dialog => "dialog",
            PageLogKind::Download => "download",
        }
    }
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct PageLogEntry {
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

impl PageLogEntry {
    /// Creates an entry with this text, truncated to the maximum length.
    pub fn new(kind: PageLogKind, text: &str) -> PageLogEntry {
        PageLogEntry {
            seq: 0,
            kind: kind.name(),
            level: None,
            text: truncate_text(text, MAX_TEXT_BYTES),
            url: None,
            line: None,
            status: None,
        }
    }

    /// Sets the level.
    pub fn with_level(mut self, level: &str) -> PageLogEntry {
        self.level = Some(truncate_text(level, 40));
        self
    }

    /// Sets the address, unless it is empty.
    pub fn with_url(mut self, url: &str) -> PageLogEntry {
        self.url = (!url.is_empty()).then(|| truncate_text(url, MAX_TEXT_BYTES));
        self
    }

    /// Sets the line number.
    pub fn with_line(mut self, line: Option<u64>) -> PageLogEntry {
        self.line = line;
        self
    }

    /// Sets the HTTP status.
    pub fn with_status(mut self, status: Option<u64>) -> PageLogEntry {
        self.status = status;
        self
    }
}

/// Newest entries of a page.
#[derive(Debug, Default)]
pub struct PageLog {
    entries: VecDeque<PageLogEntry>,
    last: u64,
}

impl PageLog {
    /// Adds an entry with the next number; drops the oldest one if the log is full.
    pub fn add_entry(&mut self, mut entry: PageLogEntry) {
        self.last += 1;
        entry.seq = self.last;
        if self.entries.len() == MAX_ENTRIES {
            self.entries.pop_front();
        }
        self.entries.push_back(entry);
    }

    /// Returns the number of the newest entry ever added.
    pub fn last_seq(&self) -> u64 {
        self.last
    }

    /// Returns the entries after `seq` that are still kept.
    pub fn entries_after(&self, seq: u64) -> impl Iterator<Item = &PageLogEntry> {
        self.entries.iter().filter(move |entry| entry.seq > seq)
    }

    /// Returns the number of entries after `seq` that are no longer kept.
    pub fn count_lost_after(&self, seq: u64) -> u64 {
        let first_seq = self.entries.front().map_or(self.last + 1, |entry| entry.seq);
        first_seq.saturating_sub(seq + 1)
    }
}

/// Truncates text to a number of bytes, on a character boundary.
pub fn truncate_text(text: &str, max_bytes: usize) -> String {
    if text.len() <= max_bytes {
        return text.to_owned();
    }
    let end = (0..=max_bytes).rev().find(|index| text.is_char_boundary(*index)).unwrap_or(0);
    format!("{}…", &text[..end])
}

/// Escapes text of a page to a single line, so that it can neither forge a line of our output nor
/// reverse the direction of the text.
pub fn escape_line(text: &str) -> String {
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
        let mut log = PageLog::default();
        for number in 0..MAX_ENTRIES + 5 {
            log.add_entry(PageLogEntry::new(PageLogKind::Console, &format!("{number}")));
        }
        assert_eq!(log.last_seq(), MAX_ENTRIES as u64 + 5);
        assert_eq!(log.entries_after(0).count(), MAX_ENTRIES);
        assert_eq!(log.count_lost_after(0), 5);
        assert_eq!(
            log.entries_after(MAX_ENTRIES as u64 + 3)
                .map(|entry| entry.text.as_str())
                .collect::<Vec<_>>(),
            ["1003", "1004"]
        );
        assert_eq!(log.count_lost_after(MAX_ENTRIES as u64), 0);
    }

    #[test]
    fn a_page_cannot_make_lines_of_ours() {
        let said =
            escape_line("Home\r\n3 console errors\u{2028}x\u{2029}y\u{85}z\u{1b}[2J\u{202e}\tü");
        assert_eq!(
            said,
            "Home\\r\\n3 console errors\\u{2028}x\\u{2029}y\\u{85}z\\u{1b}[2J\\u{202e} ü"
        );
        assert_eq!(said.lines().count(), 1);
    }

    #[test]
    fn an_entry_is_bounded() {
        let entry =
            PageLogEntry::new(PageLogKind::Error, &"ü".repeat(5000)).with_url(&"x".repeat(9000));
        assert!(
            entry.text.len() <= MAX_TEXT_BYTES + 3
                && entry.url.unwrap().len() <= MAX_TEXT_BYTES + 3
        );
    }
}
