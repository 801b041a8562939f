//! What the audit log holds about the execs of a run.

use std::fs::File;
use std::io::{BufRead, BufReader, Seek};

use ::policy::Verdict;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::audit::Approvals;
use crate::base::call::digest;
use crate::tools::own::Own;

/// Bytes of a command's words in one record; of what does not fit there is a hash of all.
const COMMAND: usize = 4096;

/// Everything that a record says about a decision, but for who made it and where the command ran.
pub fn fields(pid: i32, path: &str, argv: &[String], verdict: &Verdict, own: &Own) -> Map<String, Value> {
    let rule = json!({"file": verdict.origin.file, "line": verdict.origin.line, "prefix": verdict.prefix});
    let mut shown = own.words(argv);
    let mut length = 0;
    let fitting = shown.iter().take_while(|word| {
        length += word.len();
        length <= COMMAND
    });
    let fitting = fitting.count();
    shown.truncate(fitting);
    let mut fields = Map::new();
    let mut add = |name: &str, value: Value| drop(fields.insert(name.to_owned(), value));
    add("pid", pid.into());
    add("path", path.into());
    if shown.len() < argv.len() {
        add("command_hash", digest(&json!(argv)).into());
    }
    add("command", shown.into());
    add("rule", rule);
    add("verdict", json!(verdict.decision));
    add("recognised", json!(verdict.seen));
    fields
}

/// What is put on record about the execs that no rule named: their number, and a digest of the list, so that a list kept
/// elsewhere can be checked against it. The list itself goes into the log where the operator wants that.
pub fn sum(approvals: &Approvals, audit_execs: Option<&Own>, log: File, count: u64) -> Value {
    let mut hash = blake3::Hasher::new();
    let mut listed = 0_u64;
    let mut lines = BufReader::new(log);
    let mut line = Vec::new();
    let whole = lines.rewind().is_ok();
    while whole && matches!(lines.read_until(b'\n', &mut line), Ok(1..)) {
        hash.update(&line);
        listed += 1;
        if let (Some(own), Ok(Seen { pid, path, argv })) = (audit_execs, serde_json::from_slice(&line)) {
            let fields =
                json!({"pid": pid, "path": path, "command": own.words(&argv), "by": "nobody", "ran": "inside"});
            if let Value::Object(fields) = fields
                && let Err(error) = approvals.exec(fields)
            {
                tracing::error!("an exec could not be recorded: {}", error.log_line());
            }
        }
        line.clear();
    }
    let mut sum = json!({"count": count, "digest": format!("blake3:{}", hash.finalize().to_hex())});
    if listed < count {
        // The disk was full, or there were more than anybody reads.
        sum["unlisted"] = (count - listed).into();
    }
    sum
}

/// One exec that no rule names.
#[derive(Deserialize)]
struct Seen {
    pid: i32,
    path: String,
    argv: Vec<String>,
}
