//! Per-process limits (`setrlimit`), which child processes inherit.

use std::io;
use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{LimitMechanism, ResourceLimits};

/// Descriptors that we can still pass when a run has used up its own share. One message carries up
/// to 253, and the kernel allows the last message to exceed the limit.
const RESERVED_FILES: u64 = 512;

/// Sets the limits in the child before exec: file size, CPU time, no core files, and the number of
/// processes if no control group limits the total. [`set_file_limit`] sets the limit on open files.
///
/// The kernel counts processes per user and user namespace, so call this after the run has entered
/// its own user namespace. Without one, everything that the user runs counts, and root is not
/// limited at all. It allocates nothing, so it can be called between fork and exec.
pub fn set_rlimits(limits: &ResourceLimits, mechanism: LimitMechanism) -> io::Result<()> {
    // A core file is a copy of memory, including secrets, up to the size of the memory limit. If
    // cores are piped to a program instead of written to a file, the kernel ignores every value of
    // this limit except 1, which disables the dump.
    lower_limit(Resource::Core, Some(1), 0)?;
    lower_limit(Resource::Fsize, limits.file_bytes, 0)?;
    // At the limit the process gets a signal that it can handle; one second later it is killed.
    lower_limit(Resource::Cpu, limits.cpu_seconds, 1)?;
    // The kernel counts these queues for the whole user across all namespaces. Leave half to the
    // host.
    for resource in [Resource::Msgqueue, Resource::Sigpending] {
        lower_limit(resource, getrlimit(resource).current.map(|soft_limit| soft_limit / 2), 0)?;
    }
    if mechanism.is_advisory() {
        // Memory is left to the polling thread: the kernel's per-process limits count reserved
        // address space, and runtimes and sanitizers reserve far more than any machine has.
        lower_limit(Resource::Nproc, limits.processes, 0)?;
    }
    Ok(())
}

/// Sets the limit on open files in the child, after it has passed its last descriptor to us.
///
/// The same limit bounds the number of descriptors in transit, which the kernel counts for all
/// processes of a user together. A run that has sent as many as it may must leave room for the
/// descriptors that start the next run. So a run gets fewer than we have, and the process that
/// becomes the program keeps our limit until then.
pub fn set_file_limit(limits: &ResourceLimits) -> io::Result<()> {
    let our_limit = getrlimit(Resource::Nofile).maximum;
    lower_limit(
        Resource::Nofile,
        limits.open_files.map(|requested| requested.min(file_share(our_limit))),
        0,
    )?;
    if let (Some(soft_limit), rlimit) = (limits.soft_open_files, getrlimit(Resource::Nofile)) {
        let current = Some(soft_limit.min(rlimit.current.unwrap_or(soft_limit)));
        setrlimit(Resource::Nofile, Rlimit { current, ..rlimit })?;
    }
    Ok(())
}

/// Returns how many of our files a run may have open: three quarters, or half on a host that gives
/// us few.
fn file_share(our_limit: Option<u64>) -> u64 {
    let Some(our_limit) = our_limit else { return u64::MAX };
    our_limit.saturating_sub(RESERVED_FILES.max(our_limit / 4)).max(our_limit / 2)
}

/// Our soft limit on open files at start-up.
static INITIAL_FILE_LIMIT: OnceLock<Option<u64>> = OnceLock::new();

/// Raises this process's soft limit on open files to its hard limit.
///
/// Descriptors in transit are counted per user, and a process whose limit is below that of a run is
/// refused first. Runs still start with the original soft limit and may raise it, but not as far as
/// ours.
pub fn raise_file_limit() {
    let rlimit = getrlimit(Resource::Nofile);
    INITIAL_FILE_LIMIT.get_or_init(|| rlimit.current);
    // If refused, the limit stays unchanged.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: rlimit.maximum, ..rlimit });
}

/// Returns the soft limit on open files as it was before [`raise_file_limit`].
pub fn initial_file_limit() -> Option<u64> {
    INITIAL_FILE_LIMIT.get().copied().flatten()
}

/// Lowers a limit, never raises it: the server's own limit is the most that it can pass on.
fn lower_limit(resource: Resource, value: Option<u64>, grace: u64) -> io::Result<()> {
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
        let shares = [64, 1024, 4096, 20_000, 524_288].map(|ours| file_share(Some(ours)));
        assert_eq!(shares, [32, 512, 3072, 15_000, 393_216]);
        assert_eq!(file_share(None), u64::MAX);
    }
}
