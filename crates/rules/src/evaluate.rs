//! Reading rules in a process of its own.
//!
//! A rules file is a program, and one of a cloned repository is a stranger's. The child bounds itself before it reads
//! a word, and answers file by file, so that whoever started it knows which one it died of.

use std::io::{self, BufRead, Write};
use std::process::ExitCode;

use rustix::process::{Resource, Rlimit, setrlimit};
use serde::{Deserialize, Serialize};

use crate::{HostExecutables, Source, read};

/// The word that makes our binary this child.
pub const ARGUMENT: &str = "__rules";

const CPU_SECONDS: u64 = 5;
const MEMORY: u64 = 1 << 30;
/// Standard input, output and error, and what the system's own lookups open.
const FILES: u64 = 16;

/// What the child is asked, as one line of JSON. It answers with one line for each source: a `Reading`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Request {
    pub sources: Vec<Source>,
    /// What files before these said about which programs may go by a name.
    pub known: HostExecutables,
}

/// What our binary does when its first argument is [`ARGUMENT`].
pub fn child() -> ExitCode {
    match limit().and_then(|()| answer(&mut io::stdin().lock(), &mut io::stdout().lock())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn limit() -> io::Result<()> {
    let limits = [
        (Resource::Cpu, CPU_SECONDS),
        (Resource::As, MEMORY),
        (Resource::Nofile, FILES),
        (Resource::Core, 0),
        (Resource::Fsize, 0),
    ];
    for (resource, most) in limits {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    Ok(())
}

fn answer(input: &mut impl BufRead, output: &mut impl Write) -> io::Result<()> {
    let mut line = String::new();
    input.read_line(&mut line)?;
    let Request { sources, mut known } = serde_json::from_str(&line)?;
    for source in &sources {
        let reading = read(source, &known);
        known.extend(reading.table.host_executables.clone());
        serde_json::to_writer(&mut *output, &reading)?;
        output.write_all(b"\n")?;
        output.flush()?;
    }
    Ok(())
}
