//! The audit log: one JSON line per event under `<root>/audit/`, in a tamper-evident chain.
//!
//! Each process writes its own files. A file's first record (`open`) links the newest record of the
//! file opened before it, whichever process wrote that; its last (`close`) says that the process
//! ended, or rotated to the `next` file, in an orderly way. Every record has a `seq` and a `mac`
//! over itself and the record before. After every record the file's head (`.head`) is rewritten
//! with the newest `seq` and `mac`; `latest` names the file opened last. [`verify`] checks it all.
//!
//! # Guarantees and attacker model
//!
//! Against an attacker who can write these files but cannot read `audit/key` (a backup operator, a
//! process that was given the directory but not the key, a damaged disk), the chain proves that no
//! record was changed, added, removed or moved, and that no file is missing that a later header,
//! its own head or `latest` names.
//!
//! It proves nothing against anyone who has the key, that is, the user who runs the server, or
//! root: they can write another history. Where that matters, send the log to another machine as it
//! grows.
//!
//! Nor does it protect against restoring an older state as a whole. Anyone who kept a copy of the
//! newest file *and* its head can restore both; only the link in a file opened in the meantime
//! reveals the records that are gone. Anyone who removes the newest file with its head and restores
//! the previous `latest` leaves no trace, unless a rotation names that file.
//!
//! Old files are removed only by [`prune`], which leaves a sealed record of what it removed. A file
//! that no such record names counts as missing, no matter how it was removed.
//!
//! A process killed in mid-write leaves a last line without its newline (a torn tail). That is
//! reported as a crash, provided the head agrees with the last whole record; the next process opens
//! a new file. Records are not synced one by one, nor at the end of a server: after a power failure
//! the tail may be lost while the head is ahead of it, which cannot be distinguished from a
//! truncated log and is reported as one.
//!
//! # Nothing runs unrecorded
//!
//! [`CallRecord::write_start`] and [`CallEvents::write_approval`] fail if their record cannot be
//! written, and then the call must not run. A `call.stop` that cannot be written is kept in memory
//! and written before anything else. Calls that are refused too often to be recorded one by one are
//! counted (see `refusals`).

mod chain;
mod line_reader;
pub mod prune;
pub mod read;
mod record;
mod refusals;
mod scan;
mod sink;
mod store;
mod survey;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
pub mod verify;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};

use self::chain::{AuditEntry, RecordMembers, borrow_fields};
pub use self::record::{CallEvents, CallRecord};
use self::refusals::{RefusalCount, RefusalLimits};
use self::sink::AuditSink;
use crate::base::clock::now_utc;
use crate::base::{Error, Kind, Result};

use crate::base::IgnorePoison;

/// Returns the directory of the log. Every server creates it when it starts.
pub fn log_directory(root: &Path) -> PathBuf {
    root.join("audit")
}

/// Handle to this process's log. Clones share it; dropping the last one closes it.
#[derive(Clone)]
pub struct AuditLog(Arc<SharedLog>);

struct SharedLog {
    sink: Mutex<AuditSink>,
    refusals: Mutex<RefusalLimits>,
}

impl AuditLog {
    /// Opens a new file under `root`. It is rotated when it has grown past `rotate_bytes`.
    pub fn open(root: &Path, rotate_bytes: u64) -> Result<AuditLog> {
        let sink = AuditSink::open(root, rotate_bytes).map_err(unwritable_error)?;
        Ok(AuditLog(Arc::new(SharedLog { sink: Mutex::new(sink), refusals: Mutex::default() })))
    }

    /// Writes one event: names, hashes and counts. Takes microseconds, so async code may call it.
    pub fn write_event(&self, event: &'static str, fields: Value) -> Result<()> {
        self.write_members(event, RecordMembers::redacted(borrow_fields(&to_object(fields))))
    }

    fn write_members(&self, event: &'static str, members: RecordMembers) -> Result<()> {
        let mut sink = self.0.lock_sink();
        sink.write(&AuditEntry::new(event, members)).map_err(unwritable_error)
    }

    /// Writes the closing record, and starts to write the file to the disk. Later events fail;
    /// calling it twice is not an error.
    pub fn close(&self) -> Result<()> {
        self.0.close().map_err(unwritable_error)
    }

    /// Starts the next file if the current one was started at least `age` ago.
    pub fn rotate_older_than(&self, age: Duration) {
        self.0.lock_sink().rotate_older_than(age);
    }

    /// Writes the number of this principal's calls that were refused without a record of their own,
    /// if any.
    pub fn write_refusal_count(&self, principal: &str) {
        let count = self.0.lock_refusals().take_count(principal);
        self.0.write_counts(count);
    }

    /// Writes the count of refused calls for every principal.
    pub fn write_refusal_counts(&self) {
        let counts = self.0.lock_refusals().take_all_counts();
        self.0.write_counts(counts);
    }

    /// Returns Ok if one more refused call of this principal gets its own record, or the time until
    /// one does.
    fn admit_refusal(&self, principal: &str) -> std::result::Result<(), Duration> {
        let (admitted, evicted) = self.0.lock_refusals().admit_refusal(principal, Instant::now());
        self.0.write_counts(evicted);
        admitted
    }

    fn count_refusal(&self, principal: &str, error: &'static str) -> bool {
        self.0.lock_refusals().count_refusal(principal, error, Instant::now(), now_utc())
    }

    /// Records the end of a call. The end can no longer be refused, so a record that cannot be
    /// written now is kept and written later.
    fn write_stop(&self, members: RecordMembers) {
        log_call_end(&members);
        let mut sink = self.0.lock_sink();
        if let Err(error) = sink.write_or_queue(AuditEntry::new("call.stop", members)) {
            tracing::error!("the end of a call could not be recorded yet: {error}");
        }
    }
}

impl SharedLog {
    fn lock_sink(&self) -> MutexGuard<'_, AuditSink> {
        self.sink.lock().ignore_poison()
    }

    fn lock_refusals(&self) -> MutexGuard<'_, RefusalLimits> {
        self.refusals.lock().ignore_poison()
    }

    /// Records counts of refused calls. The calls have happened, so a count is kept until it can be
    /// written.
    fn write_counts(&self, counts: impl IntoIterator<Item = RefusalCount>) {
        for refusal_count in counts {
            tracing::warn!(
                principal = refusal_count.principal,
                "{} refused calls were counted, not recorded",
                refusal_count.count
            );
            let members = RecordMembers::redacted(borrow_fields(&refusal_count.to_fields()));
            let mut sink = self.lock_sink();
            let entry = AuditEntry::new(refusals::REFUSED_EVENT, members);
            if let Err(error) = sink.write_or_queue(entry) {
                tracing::error!("the count of refused calls could not be recorded yet: {error}");
            }
        }
    }

    fn close(&self) -> std::io::Result<()> {
        let counts = self.lock_refusals().take_all_counts();
        self.write_counts(counts);
        self.lock_sink().close()
    }
}

impl Drop for SharedLog {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!("the audit log could not be closed: {error}");
        }
    }
}

/// Logs the end of a call to the server's log, with fields of its record under the same names.
fn log_call_end(members: &RecordMembers) {
    if !tracing::enabled!(tracing::Level::INFO) {
        return;
    }
    let fields = members.parse();
    let text = |name: &str| fields.get(name).and_then(Value::as_str);
    let number = |name: &str| fields.get(name).and_then(Value::as_i64);
    tracing::info!(
        trace_id = text("trace_id"),
        session = text("session"),
        principal = text("principal"),
        tool = text("tool"),
        arguments_hash = text("arguments_hash"),
        cwd = text("cwd"),
        profile = text("profile"),
        timeout_ms = number("timeout_ms"),
        approval = text("approval"),
        started = text("started"),
        stopped = text("stopped"),
        duration_ms = number("duration_ms"),
        status = text("status"),
        error = text("error"),
        reason = text("reason"),
        cause = text("cause"),
        exit_code = number("exit_code"),
        signal = number("signal"),
        stdout_bytes = number("stdout_bytes"),
        stderr_bytes = number("stderr_bytes"),
        "a call ended"
    );
}

/// Converts a value to the members of an event; a value that is not an object is stored as `value`.
fn to_object(fields: Value) -> Map<String, Value> {
    match fields {
        Value::Object(fields) => fields,
        Value::Null => Map::new(),
        other => Map::from_iter([("value".to_owned(), other)]),
    }
}

fn unwritable_error(error: std::io::Error) -> Error {
    Error::new(Kind::Unavailable, "the audit log cannot be written, and no call runs unrecorded")
        .with_reason("audit_unwritable")
        .with_hint("Ask the operator to check the audit directory (disk full, removed, read-only?); then call again.")
        .with_source(error)
}
