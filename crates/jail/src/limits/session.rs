//! Limits of what a session leaves in the kernel between its runs, where no control group of a run holds it any more:
//! SysV shared memory, queues and semaphores. And of what counts for the whole user: inotify.
//!
//! All of it is settings of the session's own namespaces, below `/proc/sys`, which a run can only read. They are set as
//! far as the host lets us: `docs/sandbox.md` says where it does not.

use std::fs;

/// Bytes of SysV shared memory, of one segment and of all together.
const SHARED_BYTES: u64 = 1 << 30;
/// Its segments. An empty one takes a few KiB of the kernel's.
const SEGMENTS: u64 = 1024;
/// Message queues, of 16 KiB each.
const QUEUES: u64 = 256;
/// Semaphores in one set, in all sets, operations in one call, and sets.
const SEMAPHORES: &str = "1000 32000 500 1024";

/// What the kernel counts for the whole user: its setting of the host, and the one of a user namespace.
const SHARED_WITH_USER: &[(&str, &str)] = &[
    ("fs/inotify/max_user_instances", "user/max_inotify_instances"),
    ("fs/inotify/max_user_watches", "user/max_inotify_watches"),
];

/// Sets the limits of this process's namespaces: the one for SysV objects and, if it is the session's own, the one for
/// users.
pub(crate) fn limit_session(owns_users: bool) {
    set("kernel/shmmax", &SHARED_BYTES.to_string());
    // Counted in pages, and a block of /proc is one.
    if let Ok(proc) = rustix::fs::statvfs("/proc") {
        set("kernel/shmall", &(SHARED_BYTES / proc.f_bsize.max(1)).to_string());
    }
    set("kernel/shmmni", &SEGMENTS.to_string());
    set("kernel/msgmni", &QUEUES.to_string());
    set("kernel/sem", SEMAPHORES);
    if owns_users {
        for (of_host, own) in SHARED_WITH_USER {
            let most = fs::read_to_string(format!("/proc/sys/{of_host}")).ok();
            if let Some(most) = most.and_then(|text| text.trim().parse::<u64>().ok()) {
                // The other half stays for what the user runs outside.
                set(own, &(most / 2).to_string());
            }
        }
    }
}

/// Kernels before 6.7 let only the host's root change the settings of a namespace, and some containers make all settings
/// read-only. A session there is as it is for every other program.
fn set(name: &str, value: &str) {
    let _ = fs::write(format!("/proc/sys/{name}"), value);
}
