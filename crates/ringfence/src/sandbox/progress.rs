//! Progress messages of a run: the newest complete lines, a few times a second, and a sign of life
//! now and then if there are none.

use std::time::Duration;

use tokio::time::Instant;

use super::OutputStream;
use super::output_window::{clamp_start, collapse_overwritten};

/// Time for which lines are collected, which makes at most ten messages a second. Output just
/// before the end is left to the result.
const COLLECT_INTERVAL: Duration = Duration::from_millis(100);
/// Time after which a message is sent without output. Clients give up on a call that is silent for
/// long.
const MAX_SILENCE: Duration = Duration::from_secs(15);
const MESSAGE_BYTES: usize = 4096;
const STDERR_MARK: &str = "[stderr] ";

/// Collects a run's output into progress messages.
pub struct ProgressCollector {
    started: Instant,
    last_sent: Instant,
    count: u32,
    /// Newest complete lines not sent yet, and since when there are any.
    lines: Vec<u8>,
    waiting_since: Option<Instant>,
    partial_lines: [Vec<u8>; 2],
}

impl ProgressCollector {
    pub fn new(now: Instant) -> Self {
        ProgressCollector {
            started: now,
            last_sent: now,
            count: 0,
            lines: Vec::new(),
            waiting_since: None,
            partial_lines: Default::default(),
        }
    }

    /// Adds a piece of output.
    pub fn push(&mut self, stream: OutputStream, chunk: &[u8]) {
        // Text older than what fits a message is never shown, so a flood costs no more than its
        // last page.
        let chunk = &chunk[chunk.len().saturating_sub(MESSAGE_BYTES)..];
        let partial = &mut self.partial_lines[stream as usize];
        let Some(end) = chunk.iter().rposition(|byte| matches!(byte, b'\n' | b'\r')) else {
            partial.extend_from_slice(chunk);
            keep_last(partial);
            return;
        };
        partial.extend_from_slice(&chunk[..=end]);
        let complete = std::mem::replace(partial, chunk[end + 1..].to_vec());
        for line in complete.split_inclusive(|byte| *byte == b'\n') {
            if stream == OutputStream::Stderr {
                self.lines.extend_from_slice(STDERR_MARK.as_bytes());
            }
            self.lines.extend_from_slice(line);
        }
        keep_last(&mut self.lines);
        self.waiting_since.get_or_insert_with(Instant::now);
    }

    /// Returns when the next message is due.
    pub fn next_due(&self) -> Instant {
        self.waiting_since.map_or(self.last_sent + MAX_SILENCE, |since| since + COLLECT_INTERVAL)
    }

    /// Takes the message to send now and its number, which only grows.
    pub fn take_message(&mut self, now: Instant) -> (String, f64) {
        self.last_sent = now;
        self.count += 1;
        self.waiting_since = None;
        let lines = std::mem::take(&mut self.lines);
        let text = collapse_overwritten(&String::from_utf8_lossy(&lines));
        let text = clamp_start(text.trim_end(), MESSAGE_BYTES);
        let text = if text.is_empty() {
            format!("still running, {} s", now.duration_since(self.started).as_secs())
        } else {
            text.to_owned()
        };
        (text, f64::from(self.count))
    }
}

/// Drops the oldest bytes, up to the start of a line if there is one.
fn keep_last(bytes: &mut Vec<u8>) {
    if bytes.len() > MESSAGE_BYTES {
        let mut start = bytes.len() - MESSAGE_BYTES;
        if let Some(end) = bytes[start..bytes.len() - 1].iter().position(|byte| *byte == b'\n') {
            start += end + 1;
        }
        bytes.drain(..start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_complete_lines_are_shown() {
        let now = Instant::now();
        let mut progress = ProgressCollector::new(now);
        assert_eq!(progress.next_due(), now + MAX_SILENCE);
        progress.push(OutputStream::Stdout, b"one\ntw");
        progress.push(OutputStream::Stderr, b"oops\n");
        assert!(progress.next_due() < now + 2 * COLLECT_INTERVAL);
        assert_eq!(progress.take_message(now), ("one\n[stderr] oops".to_owned(), 1.0));
        progress.push(OutputStream::Stdout, b"o\n1%\r2%\r");
        assert_eq!(progress.take_message(now), ("two\n2%".to_owned(), 2.0));
        assert_eq!(
            progress.take_message(now + Duration::from_secs(45)),
            ("still running, 45 s".to_owned(), 3.0)
        );
    }

    #[test]
    fn a_message_is_never_longer_than_a_page() {
        let mut progress = ProgressCollector::new(Instant::now());
        for _ in 0..100 {
            progress.push(OutputStream::Stderr, &b"0123456789\n".repeat(1000));
            progress.push(OutputStream::Stdout, &[0xff; 9000]);
        }
        progress.push(OutputStream::Stdout, b"\n");
        let (text, _) = progress.take_message(Instant::now());
        assert!(text.len() <= MESSAGE_BYTES, "{}", text.len());
        assert!(progress.partial_lines.iter().all(|partial| partial.len() <= MESSAGE_BYTES));
    }
}
