//! Head and tail of a stream, in bounded memory, and the text that a result shows of them.

use std::collections::VecDeque;

/// Keeps the first quarter and the last three quarters of a budget. Errors tend to be at the end,
/// the requested data at the beginning.
pub struct OutputWindow {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    budget: usize,
    total: u64,
}

/// Part of one stream that is shown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShownOutput {
    pub text: String,
    /// Bytes that the stream really had.
    pub bytes: u64,
    pub truncated: bool,
}

impl OutputWindow {
    pub fn new(budget: usize) -> Self {
        OutputWindow { head: Vec::new(), tail: VecDeque::new(), budget, total: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// Returns what is kept, in two pieces.
    pub fn kept_pieces(&self) -> [Vec<u8>; 2] {
        [self.head.clone(), self.tail.iter().copied().collect()]
    }

    /// Returns whether more has come than the budget.
    pub fn has_overflowed(&self) -> bool {
        self.total > self.budget as u64
    }

    /// Adds output, and drops from the middle what exceeds the budget.
    pub fn push(&mut self, mut bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let head_len = (self.budget / 4).saturating_sub(self.head.len()).min(bytes.len());
        self.head.extend_from_slice(&bytes[..head_len]);
        bytes = &bytes[head_len..];
        let capacity = self.budget - self.budget / 4;
        if bytes.len() > capacity {
            bytes = &bytes[bytes.len() - capacity..];
        }
        let excess = (self.tail.len() + bytes.len()).saturating_sub(capacity);
        self.tail.drain(..excess);
        self.tail.extend(bytes);
    }

    /// Returns the bytes that showing everything would take.
    pub fn shown_len(&self) -> u64 {
        if self.has_overflowed() { self.total } else { wire_len(&self.whole_text()) as u64 }
    }

    /// Returns whether everything can be shown within `limit` bytes. Bytes that are not text grow
    /// when they are made visible.
    pub fn fits_within(&self, limit: usize) -> bool {
        self.total <= limit.min(self.budget) as u64 && wire_len(&self.whole_text()) <= limit
    }

    /// Returns the text of everything, if nothing was dropped.
    fn whole_text(&self) -> String {
        let bytes: Vec<u8> = self.head.iter().chain(&self.tail).copied().collect();
        collapse_overwritten(&String::from_utf8_lossy(&bytes))
    }

    /// Returns the text within `limit` bytes; a cut is marked with how much is missing and, if
    /// there is one, the handle of the whole.
    pub fn into_shown(mut self, limit: usize, output_handle: Option<&str>) -> ShownOutput {
        let bytes = self.total;
        if self.fits_within(limit) {
            return ShownOutput { text: self.whole_text(), bytes, truncated: false };
        }
        let limit = limit.min(self.budget);
        if !self.has_overflowed() {
            // Nothing was dropped, but all of it may be in the head: share it out again.
            self.head.extend(self.tail.drain(..));
            self.tail.extend(self.head.drain(self.head.len() / 4..));
        }
        self.tail.make_contiguous();
        let mut text_budget = limit;
        loop {
            let (head, tail) = self.head_and_tail(text_budget);
            let cost = wire_len(&head) + wire_len(&tail);
            if cost > limit && text_budget > limit / 8 {
                // Shorter by as much as it grows in JSON.
                text_budget = (text_budget * limit / cost).min(text_budget - 1);
                continue;
            }
            let missing = bytes.saturating_sub((head.len() + tail.len()) as u64);
            let handle_note =
                output_handle.map_or(String::new(), |handle| format!("; the whole is {handle}"));
            let break_before = if head.is_empty() || head.ends_with('\n') { "" } else { "\n" };
            let (head, tail) = (collapse_overwritten(&head), collapse_overwritten(&tail));
            let text =
                format!("{head}{break_before}… [{missing} bytes omitted{handle_note}] …\n{tail}");
            return ShownOutput { text, bytes, truncated: true };
        }
    }

    /// Returns the first quarter and the last three quarters of `budget` bytes, cut where it hurts
    /// least.
    fn head_and_tail(&self, budget: usize) -> (String, String) {
        let (head_budget, tail_budget) = (budget / 4, budget - budget / 4);
        let (tail, _) = self.tail.as_slices();
        let head = String::from_utf8_lossy(cut_end(&self.head, head_budget));
        let tail = String::from_utf8_lossy(cut_start(tail, tail_budget));
        (clamp_end(&head, head_budget).to_owned(), clamp_start(&tail, tail_budget).to_owned())
    }
}

/// Returns the head and tail of a text within `limit` bytes; `output_handle` names the whole.
pub fn cut_text(text: &str, limit: usize, output_handle: &str) -> String {
    let mut window = OutputWindow::new(limit);
    window.push(text.as_bytes());
    window.into_shown(limit, Some(output_handle)).text
}

/// Returns the length of a text inside a JSON string, which is how a client counts: a line end is
/// two bytes there.
fn wire_len(text: &str) -> usize {
    let escape_overhead = |byte: u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 8 | 12 => 1,
        0..0x20 => 5,
        _ => 0,
    };
    text.len() + text.bytes().map(escape_overhead).sum::<usize>()
}

/// Returns the first `max_bytes` bytes, back to the end of a line where that loses little, else to
/// the end of a character.
fn cut_end(bytes: &[u8], max_bytes: usize) -> &[u8] {
    let bytes = &bytes[..bytes.len().min(max_bytes)];
    match bytes.iter().rposition(|byte| *byte == b'\n') {
        Some(index) if index >= bytes.len() / 2 => &bytes[..=index],
        _ => match std::str::from_utf8(bytes) {
            Err(error) if error.error_len().is_none() => &bytes[..error.valid_up_to()],
            _ => bytes,
        },
    }
}

/// Returns the last `max_bytes` bytes, from the start of a line where that loses little, else from
/// the start of a character.
fn cut_start(bytes: &[u8], max_bytes: usize) -> &[u8] {
    let bytes = &bytes[bytes.len() - bytes.len().min(max_bytes)..];
    match bytes.iter().position(|byte| *byte == b'\n') {
        Some(index) if index < bytes.len() / 2 => &bytes[index + 1..],
        _ => {
            let continuation_bytes =
                bytes.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count();
            &bytes[continuation_bytes..]
        }
    }
}

/// Returns at most the first `max_bytes` bytes of a text, and only whole characters.
fn clamp_end(text: &str, max_bytes: usize) -> &str {
    let mut end = max_bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Returns at most the last `max_bytes` bytes of a text, and only whole characters.
pub fn clamp_start(text: &str, max_bytes: usize) -> &str {
    let mut start = text.len().saturating_sub(max_bytes);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

/// Reduces a line that was overwritten with `\r` (a progress bar) to the last text written, which
/// is nearly what a terminal would show. `\r\n` line ends stay.
pub fn collapse_overwritten(text: &str) -> String {
    if !text.contains('\r') {
        return text.to_owned();
    }
    text.split_inclusive('\n').map(collapse_line).collect()
}

fn collapse_line(line: &str) -> String {
    let body = line.trim_end_matches(['\r', '\n']);
    let line_ending =
        if line.ends_with("\r\n") { "\r\n" } else { &line[line.trim_end_matches('\n').len()..] };
    let visible = body.rsplit('\r').next().unwrap_or(body);
    format!("{visible}{line_ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(budget: usize, limit: usize, chunks: &[&[u8]]) -> ShownOutput {
        let mut ring = OutputWindow::new(budget);
        chunks.iter().for_each(|chunk| ring.push(chunk));
        ring.into_shown(limit, Some("output:o-1"))
    }

    #[test]
    fn what_fits_is_shown_as_it_is() {
        let chunks: Vec<&[u8]> = vec![b"a\n", "ü".as_bytes(), b"", b"x".repeat(30).leak()];
        assert_eq!(shown(40, 40, &chunks).text, format!("a\nü{}", "x".repeat(30)));
        assert!(!shown(40, 40, &chunks).truncated);
        assert_eq!(shown(40, 40, &[]).text, "");
    }

    #[test]
    fn a_cut_keeps_whole_lines_and_says_what_is_missing() {
        let all: String = (0..1000).map(|line| format!("line {line}\n")).collect();
        for size in [1, 7, 4096] {
            let chunks: Vec<&[u8]> = all.as_bytes().chunks(size).collect();
            let shown = shown(400, 400, &chunks);
            assert!(shown.truncated && shown.bytes == all.len() as u64);
            let (head, rest) = shown.text.split_once("… [").unwrap();
            let (mark, tail) = rest.split_once("] …\n").unwrap();
            assert!(all.starts_with(head) && head.ends_with('\n'), "{head}");
            assert!(all.ends_with(tail) && tail.starts_with("line "), "{tail}");
            assert!(tail.len() > 2 * head.len() && head.len() + tail.len() <= 400);
            let missing = all.len() - head.len() - tail.len();
            assert_eq!(mark, format!("{missing} bytes omitted; the whole is output:o-1"));
        }
    }

    #[test]
    fn one_long_line_is_cut_by_bytes_between_characters() {
        let all = "é".repeat(5000);
        let shown = shown(401, 401, &[all.as_bytes()]);
        assert!(!shown.text.contains('\u{fffd}'), "{}", shown.text);
        assert!(shown.text.len() < 500 && shown.text.starts_with('é') && shown.text.ends_with('é'));
    }

    #[test]
    fn a_smaller_limit_cuts_what_the_ring_still_had_whole() {
        let all: String = (0..100).map(|line| format!("line {line}\n")).collect();
        let shown = shown(4000, 200, &[all.as_bytes()]);
        assert!(
            shown.truncated
                && shown.text.starts_with("line 0\n")
                && shown.text.ends_with("line 99\n")
        );
        assert!(shown.text.len() < 270, "{}", shown.text.len());
    }

    #[test]
    fn bytes_that_are_no_text_stay_within_the_limit() {
        let shown = shown(300, 300, &[&[0xff; 290]]);
        assert!(shown.truncated && shown.text.len() < 400, "{}", shown.text.len());
        assert_eq!(shown.bytes, 290);
    }

    #[test]
    fn progress_bars_collapse() {
        assert_eq!(collapse_overwritten("1%\r2%\r100%\ndone\r\nno\n"), "100%\ndone\r\nno\n");
        assert_eq!(collapse_overwritten("a\rb"), "b");
        assert_eq!(collapse_overwritten("10%\r20%\r"), "20%");
    }
}
