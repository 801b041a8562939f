//! Limits of a process, which its children inherit.

use std::io;
use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{Limits, Means};

/// In the child, before exec: open files, file size, processor time and no core files; processes too when no control
/// group holds the total.
///
/// The kernel counts processes per user and user namespace, so this belongs after the run has entered its own.
/// Without one, everything that the user runs counts, and for root nothing does. It allocates nothing, so that it may
/// stand between fork and exec.
pub fn set_rlimits(limits: &Limits, means: Means) -> io::Result<()> {
    // A core file is a copy of memory, secrets included, as large as the memory limit. Where cores are handed to a
    // program and not written to a file, the kernel asks no limit but this one.
    lower(Resource::Core, Some(1), 0)?;
    lower(Resource::Nofile, limits.open_files, 0)?;
    if let (Some(soft), now) = (limits.usual_files, getrlimit(Resource::Nofile)) {
        let current = Some(soft.min(now.current.unwrap_or(soft)));
        setrlimit(Resource::Nofile, Rlimit { current, ..now })?;
    }
    lower(Resource::Fsize, limits.file_bytes, 0)?;
    // The first second too many is a signal that can be handled, the next one is the end.
    lower(Resource::Cpu, limits.cpu_seconds, 1)?;
    if means.is_advisory() {
        // Memory is left to the watch: whatever the kernel limits per process counts what is reserved, and runtimes
        // and sanitizers reserve far more than any machine has.
        lower(Resource::Nproc, limits.processes, 0)?;
    }
    Ok(())
}

/// How many files we could have open when we were started.
static FILES: OnceLock<Option<u64>> = OnceLock::new();

/// Lets this process have as many files open as it may ask for. Runs of one user share a count of descriptors on their
/// way, and whoever has a lower limit than a run has is the one that is refused. A run gets the limit we had.
pub fn raise_files() {
    let now = getrlimit(Resource::Nofile);
    FILES.get_or_init(|| now.current);
    // Where that is refused, it stays as it is.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: now.maximum, ..now });
}

/// How many files could be open before that.
pub fn usual_files() -> Option<u64> {
    FILES.get().copied().flatten()
}

/// Never raises: what the server itself was given is the most that it can pass on.
fn lower(resource: Resource, value: Option<u64>, grace: u64) -> io::Result<()> {
    let Some(value) = value else { return Ok(()) };
    let ceiling = getrlimit(resource).maximum.unwrap_or(u64::MAX);
    let maximum = value.saturating_add(grace).min(ceiling);
    setrlimit(resource, Rlimit { current: Some(value.min(maximum)), maximum: Some(maximum) })?;
    Ok(())
}
