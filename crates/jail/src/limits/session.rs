//! Limits on kernel objects that outlive a run and are not covered by any run's control group: SysV
//! shared memory, message queues and semaphores; and on inotify, which the kernel counts per user.
//!
//! All are settings of the session's own namespaces below `/proc/sys`, which a run can only read.
//! They are set as far as the host permits; `docs/sandbox.md` lists the exceptions.

use std::fs;

/// Bytes of SysV shared memory, both per segment and in total.
const SHARED_BYTES: u64 = 1 << 30;
/// Number of shared memory segments. Even an empty segment uses a few KiB of kernel memory.
const MAX_SEGMENTS: u64 = 1024;
/// Number of message queues, 16 KiB each.
const MAX_QUEUES: u64 = 256;
/// Values of `kernel.sem`: semaphores per set, semaphores in total, operations per call, number of
/// sets.
const SEMAPHORES: &str = "1000 32000 500 1024";

/// Settings that the kernel counts per user: the host's, and the corresponding one of a user
/// namespace.
const SHARED_WITH_USER: &[(&str, &str)] = &[
    ("fs/inotify/max_user_instances", "user/max_inotify_instances"),
    ("fs/inotify/max_user_watches", "user/max_inotify_watches"),
];

/// Limits SysV objects in this process's IPC namespace, and inotify in its user namespace if that
/// is the session's own.
pub(crate) fn limit_session(owns_user_namespace: bool) {
    write_setting("kernel/shmmax", &SHARED_BYTES.to_string());
    // `shmall` is counted in pages, and the block size of /proc is one page.
    if let Ok(proc) = rustix::fs::statvfs("/proc") {
        write_setting("kernel/shmall", &(SHARED_BYTES / proc.f_bsize.max(1)).to_string());
    }
    write_setting("kernel/shmmni", &MAX_SEGMENTS.to_string());
    write_setting("kernel/msgmni", &MAX_QUEUES.to_string());
    write_setting("kernel/sem", SEMAPHORES);
    if owns_user_namespace {
        for (host_setting, namespace_setting) in SHARED_WITH_USER {
            let host_limit = fs::read_to_string(format!("/proc/sys/{host_setting}")).ok();
            if let Some(host_limit) = host_limit.and_then(|text| text.trim().parse::<u64>().ok()) {
                // Leave the other half to what the user runs outside the sandbox.
                write_setting(namespace_setting, &(host_limit / 2).to_string());
            }
        }
    }
}

/// Writes a setting if the host permits. Kernels before 6.7 let only the host's root change
/// namespace settings, and some containers make all settings read-only; a session there has the
/// same limits as any other program.
fn write_setting(name: &str, value: &str) {
    let _ = fs::write(format!("/proc/sys/{name}"), value);
}
