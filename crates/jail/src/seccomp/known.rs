//! The system calls that exist for a run, by their numbers. All others fail as on a kernel that has never heard of them:
//! what a later kernel adds is closed until somebody has looked at it and has written it down here. Programs ask for what
//! is new and do without it, since they have to run on older kernels.
//!
//! Being in here makes a call known, not allowed: the rules refuse some of them.

/// Both ends belong to it.
type Numbers = (u32, u32);

/// Up to Linux 5.0 each machine has numbers of its own.
#[cfg(target_arch = "x86_64")]
const OF_THIS_MACHINE: &[Numbers] = &[
    // read to rseq, without a gap
    (0, 334),
    // uretprobe, uprobe: made by what the kernel itself puts into programs that the host measures, which die if it fails
    (335, 336),
];
#[cfg(target_arch = "aarch64")]
const OF_THIS_MACHINE: &[Numbers] = &[
    // io_setup to recvmmsg, without a gap
    (0, 243),
    // wait4 to kexec_file_load; what is in between is for other machines
    (260, 294),
];

/// Later ones have the same number everywhere.
const LATER: &[Numbers] = &[
    // pidfd_send_signal: signals without mistaking one process for another
    (424, 424),
    // io_uring_setup, io_uring_enter, io_uring_register: refused by rules
    (425, 427),
    // open_tree, move_mount, fsopen, fsconfig, fsmount, fspick: refused by rules
    (428, 433),
    // pidfd_open: waiting for a process
    (434, 434),
    // clone3: refused by a rule, since every libc asks for it first
    (435, 435),
    // close_range: of any program that starts others
    (436, 436),
    // openat2, pidfd_getfd: refused by rules
    (437, 438),
    // faccessat2: of every libc
    (439, 439),
    // process_madvise: of the caller's own processes; a rule refuses it where others can be seen
    (440, 440),
    // epoll_pwait2: waiting with a finer clock
    (441, 441),
    // mount_setattr, quotactl_fd: refused by rules
    (442, 443),
    // landlock_create_ruleset, landlock_add_rule, landlock_restrict_self: a program may take rights away from itself
    (444, 446),
    // memfd_secret: memory that only its owner sees; we read none of it
    (447, 447),
    // process_mrelease: frees the memory of a process that is dying already
    (448, 448),
    // futex_waitv: games and emulators wait for several locks with it
    (449, 449),
    // set_mempolicy_home_node: where the caller's own memory comes from
    (450, 450),
    // fchmodat2: of every libc; a rule looks at the mode
    (452, 452),
    // map_shadow_stack: of a libc that protects return addresses
    (453, 453),
    // futex_wake, futex_wait, futex_requeue: what futex does, in three calls
    (454, 456),
    // mseal: of a libc that locks its own memory
    (462, 462),
];

/// Calls of Linux 6.18 that stay out, with the reason for each.
#[cfg(test)]
pub const LEFT_OUT: &[(u32, &str, &str)] = &[
    (
        451,
        "cachestat",
        "tells which files others have read lately; programs fall back to mincore, which does not",
    ),
    (
        457,
        "statmount",
        "tells of mounts by number; programs fall back to /proc/self/mountinfo, which is the run's own",
    ),
    (458, "listmount", "as statmount"),
    (459, "lsm_get_self_attr", "no ordinary program; /proc/self/attr has the same"),
    (
        460,
        "lsm_set_self_attr",
        "would change the label under which the host's security modules see the run",
    ),
    (461, "lsm_list_modules", "tells what the host is protected by, and is of no use to a run"),
    (
        463,
        "setxattrat",
        "takes its arguments from memory, where no filter sees them; programs fall back to setxattr",
    ),
    (464, "getxattrat", "as setxattrat; getxattr is there"),
    (465, "listxattrat", "as setxattrat; listxattr is there"),
    (466, "removexattrat", "as setxattrat; removexattr is there"),
    (467, "open_tree_attr", "open_tree by another number, which is refused"),
    (468, "file_getattr", "no ordinary program; the ioctl for it is there"),
    (
        469,
        "file_setattr",
        "takes its arguments from memory; sets flags of files that no ordinary program sets",
    ),
];

/// Whether a call exists for a run.
pub fn is_known(number: u32) -> bool {
    OF_THIS_MACHINE.iter().chain(LATER).any(|(first, last)| (*first..=*last).contains(&number))
}

/// The last number that is known.
pub fn last() -> u32 {
    OF_THIS_MACHINE.iter().chain(LATER).map(|(_, last)| *last).max().unwrap_or_default()
}
