//! Log of the execs that no rule names.
//!
//! They are many and seldom matter, so they go to a file that the server reads after the run: to
//! count them, to compute their digest, and to list them if the operator wants that.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use serde::Serialize;

use crate::poison::IgnorePoison;

/// Records are written in pieces of this size.
const FLUSH_BYTES: usize = 32 << 10;
/// Most bytes of the host's disk that a run may fill with records. After that, execs are only
/// counted.
const MAX_LOG_BYTES: u64 = 256 << 20;
/// Most bytes of one exec's arguments.
pub const MAX_ARGV_BYTES: usize = 4096;

/// Log of a run's execs that no rule names.
#[derive(Default)]
pub struct ExecLog(Mutex<ExecLogState>);

#[derive(Default)]
struct ExecLogState {
    file: Option<File>,
    /// Where the programs ran, if not in the sandbox itself.
    ran: Option<&'static str>,
    buffer: Vec<u8>,
    written_bytes: u64,
    count: u64,
}

#[derive(Serialize)]
struct ExecRecord<'a> {
    pid: i32,
    path: &'a str,
    argv: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    ran: Option<&'static str>,
}

impl ExecLog {
    /// Creates a log. Without a file it only counts.
    pub fn new(file: Option<OwnedFd>, ran: Option<&'static str>) -> ExecLog {
        ExecLog(Mutex::new(ExecLogState {
            file: file.map(File::from),
            ran,
            ..ExecLogState::default()
        }))
    }

    /// Records one exec.
    pub fn record_exec(&self, pid: i32, path: &str, argv: &[&[u8]]) {
        let mut state = self.0.lock().ignore_poison();
        state.count += 1;
        if state.file.is_none() || state.written_bytes > MAX_LOG_BYTES {
            return;
        }
        let record = ExecRecord { pid, path, argv: &truncate_argv(argv), ran: state.ran };
        // Writing into memory cannot fail, except for a number that JSON does not have.
        let _ = serde_json::to_writer(&mut state.buffer, &record);
        state.buffer.push(b'\n');
        if state.buffer.len() > FLUSH_BYTES {
            state.flush();
        }
    }

    /// Writes the remaining records, and returns the number of execs.
    pub fn flush_and_count(&self) -> u64 {
        let mut state = self.0.lock().ignore_poison();
        state.flush();
        state.count
    }
}

impl ExecLogState {
    fn flush(&mut self) {
        let Some(file) = &mut self.file else { return };
        self.written_bytes += self.buffer.len() as u64;
        if file.write_all(&self.buffer).is_err() {
            // The disk is full. Counting continues, and the count shows the server that records are
            // missing.
            self.file = None;
        }
        self.buffer.clear();
    }
}

/// Converts arguments to text, up to a total length.
pub fn truncate_argv(argv: &[&[u8]]) -> Vec<String> {
    let mut remaining = MAX_ARGV_BYTES;
    let mut truncated = Vec::new();
    for arg in argv {
        if remaining == 0 {
            truncated.push("…".to_owned());
            break;
        }
        let piece = &arg[..arg.len().min(remaining)];
        remaining -= piece.len();
        let mut text = String::from_utf8_lossy(piece).into_owned();
        if piece.len() < arg.len() {
            text.push('…');
        }
        truncated.push(text);
    }
    truncated
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_cut_at_a_length() {
        let long = vec![b'x'; MAX_ARGV_BYTES];
        assert_eq!(truncate_argv(&[b"a", b"b"]), ["a", "b"]);
        assert_eq!(truncate_argv(&[b"a", &long, b"c"])[1].chars().count(), MAX_ARGV_BYTES);
        assert_eq!(truncate_argv(&[b"a", &long, b"c"]).len(), 3);
    }
}
