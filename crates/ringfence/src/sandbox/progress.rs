//! Progress messages of a run: the newest complete lines, a few times a second, and a sign of life
//! now and then if there are none.

use std::time::Duration;

use tokio::time::Instant;

use super::Stream;
use super::ring::{clamp_start, collapse};

/// Time for which lines are collected, which makes at most ten messages a second. Output just
/// before the end is left to the result.
const PAUSE: Duration = Duration::from_millis(100);
/// Time after which a message is sent without output. Clients give up on a call that is silent for
/// long.
const SILENCE: Duration = Duration::from_secs(15);
const MESSAGE_BYTES: usize = 4096;
const STDERR_MARK: &str = "[stderr] ";

/// Collects a run's output into progress messages.
pub struct Progress {
    started: Instant,
    last: Instant,
    count: u32,
    /// Newest complete lines not sent yet, and since when there are any.
    lines: Vec<u8>,
    waiting: Option<Instant>,
    partial: [Vec<u8>; 2],
}

impl Progress {
    pub fn new(now: Instant) -> Self {
        Progress {
            started: now,
            last: now,
            count: 0,
            lines: Vec::new(),
            waiting: None,
            partial: Default::default(),
        }
    }

    /// Adds a piece of output.
    pub fn push(&mut self, stream: Stream, chunk: &[u8]) {
        // Text older than what fits a message is never shown, so a flood costs no more than its
        // last page.
        let chunk = &chunk[chunk.len().saturating_sub(MESSAGE_BYTES)..];
        let partial = &mut self.partial[stream as usize];
        let Some(end) = chunk.iter().rposition(|byte| matches!(byte, b'\n' | b'\r')) else {
            partial.extend_from_slice(chunk);
            keep_last(partial);
            return;
        };
        partial.extend_from_slice(&chunk[..=end]);
        let complete = std::mem::replace(partial, chunk[end + 1..].to_vec());
        for line in complete.split_inclusive(|byte| *byte == b'\n') {
            if stream == Stream::Stderr {
                self.lines.extend_from_slice(STDERR_MARK.as_bytes());
            }
            self.lines.extend_from_slice(line);
        }
        keep_last(&mut self.lines);
        self.waiting.get_or_insert_with(Instant::now);
    }

    /// Returns when the next message is due.
    pub fn due(&self) -> Instant {
        self.waiting.map_or(self.last + SILENCE, |since| since + PAUSE)
    }

    /// Takes the message to send now and its number, which only grows.
    pub fn take(&mut self, now: Instant) -> (String, f64) {
        self.last = now;
        self.count += 1;
        self.waiting = None;
        let lines = std::mem::take(&mut self.lines);
        let text = collapse(&String::from_utf8_lossy(&lines));
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
        let mut from = bytes.len() - MESSAGE_BYTES;
        if let Some(end) = bytes[from..bytes.len() - 1].iter().position(|byte| *byte == b'\n') {
            from += end + 1;
        }
        bytes.drain(..from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_complete_lines_are_shown() {
        let now = Instant::now();
        let mut progress = Progress::new(now);
        assert_eq!(progress.due(), now + SILENCE);
        progress.push(Stream::Stdout, b"one\ntw");
        progress.push(Stream::Stderr, b"oops\n");
        assert!(progress.due() < now + 2 * PAUSE);
        assert_eq!(progress.take(now), ("one\n[stderr] oops".to_owned(), 1.0));
        progress.push(Stream::Stdout, b"o\n1%\r2%\r");
        assert_eq!(progress.take(now), ("two\n2%".to_owned(), 2.0));
        assert_eq!(
            progress.take(now + Duration::from_secs(45)),
            ("still running, 45 s".to_owned(), 3.0)
        );
    }

    #[test]
    fn a_message_is_never_longer_than_a_page() {
        let mut progress = Progress::new(Instant::now());
        for _ in 0..100 {
            progress.push(Stream::Stderr, &b"0123456789\n".repeat(1000));
            progress.push(Stream::Stdout, &[0xff; 9000]);
        }
        progress.push(Stream::Stdout, b"\n");
        let (text, _) = progress.take(Instant::now());
        assert!(text.len() <= MESSAGE_BYTES, "{}", text.len());
        assert!(progress.partial.iter().all(|partial| partial.len() <= MESSAGE_BYTES));
    }
}
