//! Reads rules in a separate process.
//!
//! A rules file is a program, and in a cloned repository it was written by a stranger. The child
//! limits its own resources before it reads anything, and answers file by file, so that the parent
//! knows which file it died on.

use std::io::{self, BufRead, Write};
use std::process::ExitCode;

use rustix::process::{Resource, Rlimit, setrlimit};
use serde::{Deserialize, Serialize};

use crate::{HostExecutables, RulesSource, read_rules};

/// First argument that makes our binary run as this child.
pub const CHILD_ARGUMENT: &str = "__rules";

const CPU_SECONDS: u64 = 5;
const MEMORY_BYTES: u64 = 1 << 30;
/// Standard input, output and error, and what the system's name lookups open.
const OPEN_FILES: u64 = 16;

/// Request to the child, as one line of JSON. It answers with one line per source: the rules and
/// errors of that file as JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EvaluateRequest {
    pub sources: Vec<RulesSource>,
    /// The `host_executable` entries of the files before these.
    pub known: HostExecutables,
}

/// Runs as the child, when the first argument of our binary is [`CHILD_ARGUMENT`].
pub fn run_child() -> ExitCode {
    match limit_resources()
        .and_then(|()| answer_request(&mut io::stdin().lock(), &mut io::stdout().lock()))
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn limit_resources() -> io::Result<()> {
    let limits = [
        (Resource::Cpu, CPU_SECONDS),
        (Resource::As, MEMORY_BYTES),
        (Resource::Nofile, OPEN_FILES),
        (Resource::Core, 0),
        (Resource::Fsize, 0),
    ];
    for (resource, limit) in limits {
        setrlimit(resource, Rlimit { current: Some(limit), maximum: Some(limit) })?;
    }
    Ok(())
}

fn answer_request(input: &mut impl BufRead, output: &mut impl Write) -> io::Result<()> {
    let mut line = String::new();
    input.read_line(&mut line)?;
    let EvaluateRequest { sources, mut known } = serde_json::from_str(&line)?;
    for source in &sources {
        let parsed = read_rules(source, &known);
        known.extend(parsed.table.host_executables.clone());
        serde_json::to_writer(&mut *output, &parsed)?;
        output.write_all(b"\n")?;
        output.flush()?;
    }
    Ok(())
}
