//! Limits of a process, which its children inherit.

use std::io;
use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{Limits, Means};

/// Descriptors that we can still pass when a run has used up its own share. One message carries up to 253, and the kernel
/// lets the last one over the limit.
const RESERVED_FILES: u64 = 512;

/// In the child, before exec: file size, processor time and no core files; processes too when no control group holds the
/// total. [`set_file_limit`] sets the rest.
///
/// The kernel counts processes per user and user namespace, so this belongs after the run has entered its own.
/// Without one, everything that the user runs counts, and for root nothing does. It allocates nothing, so that it may
/// stand between fork and exec.
pub fn set_rlimits(limits: &Limits, means: Means) -> io::Result<()> {
    // A core file is a copy of memory, secrets included, as large as the memory limit. Where cores are handed to a
    // program and not written to a file, the kernel asks no limit but this one.
    lower(Resource::Core, Some(1), 0)?;
    lower(Resource::Fsize, limits.file_bytes, 0)?;
    // The first second too many is a signal that can be handled, the next one is the end.
    lower(Resource::Cpu, limits.cpu_seconds, 1)?;
    // What waits in these counts for the whole user, in every namespace. Half of it stays for the host.
    for shared in [Resource::Msgqueue, Resource::Sigpending] {
        lower(shared, getrlimit(shared).current.map(|most| most / 2), 0)?;
    }
    if means.is_advisory() {
        // Memory is left to the watch: whatever the kernel limits per process counts what is reserved, and runtimes
        // and sanitizers reserve far more than any machine has.
        lower(Resource::Nproc, limits.processes, 0)?;
    }
    Ok(())
}

/// In the child, once it has passed its last descriptor to us: how many files it may have open.
///
/// The same limit bounds how many descriptors may be in transit, of which the kernel keeps one count for all processes of
/// a user. A run that has sent as many as it may must leave room for those that start the next run, so it gets less than
/// we have, and the process that becomes the program keeps our limit until then.
pub fn set_file_limit(limits: &Limits) -> io::Result<()> {
    let ours = getrlimit(Resource::Nofile).maximum;
    lower(Resource::Nofile, limits.open_files.map(|wanted| wanted.min(share_of_files(ours))), 0)?;
    if let (Some(soft), now) = (limits.usual_files, getrlimit(Resource::Nofile)) {
        let current = Some(soft.min(now.current.unwrap_or(soft)));
        setrlimit(Resource::Nofile, Rlimit { current, ..now })?;
    }
    Ok(())
}

/// How many of our files a run may have: three quarters, and on a host that gives us few, half.
fn share_of_files(ours: Option<u64>) -> u64 {
    let Some(ours) = ours else { return u64::MAX };
    ours.saturating_sub(RESERVED_FILES.max(ours / 4)).max(ours / 2)
}

/// How many files we could have open when we were started.
static FILES: OnceLock<Option<u64>> = OnceLock::new();

/// Lets this process have as many files open as it may ask for. Runs of one user share a count of descriptors on their
/// way, and whoever has a lower limit than a run has is the one that is refused. A run starts with the limit we had, and
/// may ask for less than we can.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_fewer_files_than_we_have() {
        let shares = [64, 1024, 4096, 20_000, 524_288].map(|ours| share_of_files(Some(ours)));
        assert_eq!(shares, [32, 512, 3072, 15_000, 393_216]);
        assert_eq!(share_of_files(None), u64::MAX);
    }
}
