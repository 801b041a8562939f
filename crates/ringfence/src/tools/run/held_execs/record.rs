//! Audit records about the execs of a run and about the decisions of its proxy.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ::policy::ExecVerdict;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::audit::CallEvents;
use crate::base::call::digest_json;
use crate::redact::short_secrets::ShortSecrets;
use crate::sandbox::{OnDecision, network_fields};

/// Maximum bytes of a command's words in one record; a longer command is cut and its hash added.
const MAX_COMMAND_BYTES: usize = 4096;

/// Returns all fields of a record about a decision, except who made it and where the command ran.
pub fn exec_fields(
    pid: i32,
    path: &str,
    argv: &[String],
    verdict: &ExecVerdict,
    short_secrets: &ShortSecrets,
) -> Map<String, Value> {
    let rule =
        json!({"file": verdict.origin.file, "line": verdict.origin.line, "prefix": verdict.prefix});
    let mut shown_argv = short_secrets.redact_argv(argv);
    let mut length = 0;
    let fitting_args = shown_argv.iter().take_while(|arg| {
        length += arg.len();
        length <= MAX_COMMAND_BYTES
    });
    let fitting_args = fitting_args.count();
    shown_argv.truncate(fitting_args);
    let mut fields = Map::new();
    let mut add = |name: &str, value: Value| drop(fields.insert(name.to_owned(), value));
    add("pid", pid.into());
    add("path", path.into());
    if shown_argv.len() < argv.len() {
        add("command_hash", digest_json(&json!(argv)).into());
    }
    add("command", shown_argv.into());
    add("rule", rule);
    add("verdict", json!(verdict.decision));
    add("recognised", json!(verdict.seen));
    fields
}

/// The execs of a run that no rule named, as its supervisors log them. Their number and a digest of
/// the list are recorded, so that a list kept elsewhere can be checked against the record. The list
/// itself is recorded only if the operator wants it.
pub struct ExecList {
    call_events: CallEvents,
    /// Redacts the list; absent unless the operator wants the list recorded.
    short_secrets: Option<ShortSecrets>,
    log: File,
    /// Read position in the log, and the hash of everything before it.
    position: u64,
    hash: blake3::Hasher,
    listed_count: u64,
}

impl ExecList {
    /// Creates the list for a run's log. `short_secrets` is given if each exec is to be recorded.
    pub fn new(
        call_events: CallEvents,
        short_secrets: Option<ShortSecrets>,
        log: File,
    ) -> ExecList {
        ExecList {
            call_events,
            short_secrets,
            log,
            position: 0,
            hash: blake3::Hasher::new(),
            listed_count: 0,
        }
    }

    /// Records the new entries of the list and returns a summary of all of it. `count` is the
    /// number of execs, if a supervisor reported it.
    pub fn record_and_summarize(&mut self, count: Option<u64>) -> Value {
        // Read by position: the descriptor is shared with the writers, and so is its file offset.
        let mut lines =
            BufReader::new(PositionedReader { file: &self.log, position: self.position });
        let mut line = Vec::new();
        while matches!(lines.read_until(b'\n', &mut line), Ok(1..)) && line.ends_with(b"\n") {
            self.position += line.len() as u64;
            self.hash.update(&line);
            self.listed_count += 1;
            if let (Some(short_secrets), Ok(logged)) =
                (&self.short_secrets, serde_json::from_slice(&line))
            {
                record_exec(&self.call_events, short_secrets, logged);
            }
            line.clear();
        }
        let digest = format!("blake3:{}", self.hash.finalize().to_hex());
        let mut summary = json!({"count": count.unwrap_or(self.listed_count), "digest": digest});
        match count {
            // The disk was full, or the log had reached its size limit.
            Some(count) if self.listed_count < count => {
                summary["unlisted"] = (count - self.listed_count).into()
            }
            Some(_) => {}
            // The number was not reported, so this is a lower bound.
            None => summary["partial"] = true.into(),
        }
        summary
    }
}

fn record_exec(call_events: &CallEvents, short_secrets: &ShortSecrets, logged: LoggedExec) {
    let LoggedExec { pid, path, argv, ran } = logged;
    let ran = ran.unwrap_or_else(|| "inside".to_owned());
    let fields = json!({"pid": pid, "path": path, "command": short_secrets.redact_argv(&argv), "by": "nobody", "ran": ran});
    if let Value::Object(fields) = fields
        && let Err(error) = call_events.write_exec(fields)
    {
        tracing::error!("an exec could not be recorded: {}", error.log_line());
    }
}

/// Reads a file from its own position.
struct PositionedReader<'a> {
    file: &'a File,
    position: u64,
}

impl Read for PositionedReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.position)?;
        self.position += count as u64;
        Ok(count)
    }
}

/// An exec that no rule names.
#[derive(Deserialize)]
struct LoggedExec {
    pid: i32,
    path: String,
    argv: Vec<String>,
    /// Where it ran, if not in the sandbox itself.
    #[serde(default)]
    ran: Option<String>,
}

/// Decisions of one run's proxy that are recorded individually.
const MAX_DECISIONS: usize = 10_000;

/// Returns a callback that records every decision of a run's proxy, up to a limit: a run can cause
/// as many as it likes.
pub fn audit_network(call_events: &CallEvents) -> OnDecision {
    let (call_events, count) = (call_events.clone(), AtomicUsize::new(0));
    Arc::new(move |decision| {
        if count.fetch_add(1, Ordering::Relaxed) < MAX_DECISIONS
            && let Err(error) = call_events.write_network(network_fields(decision))
        {
            tracing::error!("a decision of the proxy could not be recorded: {}", error.log_line());
        }
    })
}
