//! System calls that exist for a run, by number.
//!
//! All others fail as on a kernel that does not have them: what a later kernel adds stays closed
//! until it has been reviewed and added here. Programs probe for new calls and do without them,
//! since they must also run on older kernels.
//!
//! Being listed makes a call known, not allowed: the rules refuse some of these calls.

/// An inclusive range of call numbers.
type NumberRange = (u32, u32);

/// Calls up to Linux 5.0, whose numbers differ between architectures.
#[cfg(target_arch = "x86_64")]
const OF_THIS_MACHINE: &[NumberRange] = &[
    // read to rseq, without a gap
    (0, 334),
    // uretprobe, uprobe: made by code that the kernel inserts into programs that the host traces;
    // these die if it fails
    (335, 336),
];
#[cfg(target_arch = "aarch64")]
const OF_THIS_MACHINE: &[NumberRange] = &[
    // io_setup to recvmmsg, without a gap
    (0, 243),
    // wait4 to kexec_file_load; the numbers in between belong to other architectures
    (260, 294),
];

/// Later calls, which have the same number on all architectures.
const ON_ALL_MACHINES: &[NumberRange] = &[
    // pidfd_send_signal: signals that cannot hit the wrong process
    (424, 424),
    // io_uring_setup, io_uring_enter, io_uring_register: refused by rules
    (425, 427),
    // open_tree, move_mount, fsopen, fsconfig, fsmount, fspick: refused by rules
    (428, 433),
    // pidfd_open: waiting for a process
    (434, 434),
    // clone3: refused by a rule, since every libc tries it first
    (435, 435),
    // close_range: used by programs that start others
    (436, 436),
    // openat2, pidfd_getfd: refused by rules
    (437, 438),
    // faccessat2: used by every libc
    (439, 439),
    // process_madvise: for the caller's own processes; a rule refuses it where others are visible
    (440, 440),
    // epoll_pwait2: waiting with nanosecond timeouts
    (441, 441),
    // mount_setattr, quotactl_fd: refused by rules
    (442, 443),
    // landlock_create_ruleset, landlock_add_rule, landlock_restrict_self: a program may restrict
    // itself
    (444, 446),
    // memfd_secret: memory that only its owner can read; we never need to read it
    (447, 447),
    // process_mrelease: frees the memory of a process that is already dying
    (448, 448),
    // futex_waitv: games and emulators use it to wait for several locks
    (449, 449),
    // set_mempolicy_home_node: placement of the caller's own memory
    (450, 450),
    // fchmodat2: used by every libc; a rule checks the mode
    (452, 452),
    // map_shadow_stack: used by a libc that protects return addresses
    (453, 453),
    // futex_wake, futex_wait, futex_requeue: the functions of futex as three calls
    (454, 456),
    // mseal: used by a libc that seals its own memory
    (462, 462),
];

/// Calls of Linux 6.18 that are left out, with the reason for each.
#[cfg(test)]
pub const LEFT_OUT: &[(u32, &str, &str)] = &[
    (
        451,
        "cachestat",
        "reveals which files others read recently; programs fall back to mincore, which does not",
    ),
    (
        457,
        "statmount",
        "lists mounts by id; programs fall back to /proc/self/mountinfo, which shows the run's own",
    ),
    (458, "listmount", "as statmount"),
    (459, "lsm_get_self_attr", "no ordinary program uses it; /proc/self/attr has the same"),
    (
        460,
        "lsm_set_self_attr",
        "would change the label under which the host's security modules see the run",
    ),
    (461, "lsm_list_modules", "reveals how the host is protected and is of no use to a run"),
    (
        463,
        "setxattrat",
        "takes its arguments from memory, which a filter cannot read; programs fall back to setxattr",
    ),
    (464, "getxattrat", "as setxattrat; getxattr is allowed"),
    (465, "listxattrat", "as setxattrat; listxattr is allowed"),
    (466, "removexattrat", "as setxattrat; removexattr is allowed"),
    (467, "open_tree_attr", "a variant of open_tree, which is refused"),
    (468, "file_getattr", "no ordinary program uses it; the ioctl is allowed"),
    (
        469,
        "file_setattr",
        "takes its arguments from memory; sets flags of files that no ordinary program sets",
    ),
];

/// Returns whether a call exists for a run.
pub fn is_known(number: u32) -> bool {
    OF_THIS_MACHINE
        .iter()
        .chain(ON_ALL_MACHINES)
        .any(|(first, last)| (*first..=*last).contains(&number))
}

/// Returns the highest known number.
pub fn last_known() -> u32 {
    OF_THIS_MACHINE.iter().chain(ON_ALL_MACHINES).map(|(_, last)| *last).max().unwrap_or_default()
}
