//! The system calls that a run may make, those that it may not make, and those that the supervisor makes for it.
//!
//! A call that is not [`known`] does not exist for a run. Of the others, the rules here refuse some. Both lists are data
//! with a reason per line. What is rare and telling goes to the supervisor, which refuses it and
//! writes it down; it decides by the numbers in the registers alone, which nobody can change meanwhile. What
//! programs merely try out is refused in place.

mod known;

use std::collections::BTreeMap;

use libc::{c_long, sock_filter};

use crate::rights::Network;

/// What happens to a call that a rule fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// Fails with this error, as it does on a kernel without it.
    Fail(i32),
    /// The supervisor decides, or refuses and writes it down.
    Ask,
}

/// A condition on one argument. Only its low 32 bits count, as for the kernel itself where the argument is an `int`.
#[derive(Debug, Clone, Copy)]
enum Test {
    Among { arg: u32, mask: u32, values: &'static [u32] },
    NotAmong { arg: u32, mask: u32, values: &'static [u32] },
    AnyBit { arg: u32, bits: u32 },
}

#[derive(Debug, Clone, Copy)]
pub struct Rule {
    call: c_long,
    name: &'static str,
    tests: &'static [Test],
    then: Then,
}

const ALL: u32 = u32::MAX;
const NEW_NAMESPACE: u32 = 0x7e02_0000;
const NEW_USERS: u32 = 0x1000_0000;
const NEW_TIME: u32 = 0x80;
const NEW_CONTROL_GROUPS: u32 = 0x0200_0000;
const NEW_HOST_NAMES: u32 = 0x0400_0000;
/// No sandbox needs these. Who has a namespace of control groups can mount them, and lift the limits of the run or make
/// groups of the host's.
const NEVER_NESTED: u32 = NEW_CONTROL_GROUPS | NEW_HOST_NAMES | NEW_TIME;
const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541c;
const SET_LEASE: u32 = libc::F_SETLEASE as u32;
/// A lease on a directory, from Linux 6.19 on.
const SET_DELEGATION: u32 = 1040;
const NOTIFY: u32 = libc::F_NOTIFY as u32;
const TIOCSETD: u32 = 0x5423;
/// Of a file's mode: run as its owner, run as its group.
const SET_ID: u32 = 0o6000;
/// Flags of `open` with which a mode is given.
const CREATES: u32 = (libc::O_CREAT | libc::O_TMPFILE & !libc::O_DIRECTORY) as u32;
const FAST_OPEN: u32 = libc::MSG_FASTOPEN as u32;
const UNIX: u32 = libc::AF_UNIX as u32;
const INET: u32 = libc::AF_INET as u32;
const INET6: u32 = libc::AF_INET6 as u32;
const NETLINK: u32 = libc::AF_NETLINK as u32;
/// `type` of a socket without its flags.
const TYPE: u32 = 0xf;
const RAW: u32 = libc::SOCK_RAW as u32;
const TCP: u32 = libc::IPPROTO_TCP as u32;
const UDP: u32 = libc::IPPROTO_UDP as u32;
const ICMP: u32 = libc::IPPROTO_ICMP as u32;
const ICMP6: u32 = libc::IPPROTO_ICMPV6 as u32;
const INTERNET: Test = Test::Among { arg: 0, mask: ALL, values: &[INET, INET6] };
const STREAM: Test = Test::Among { arg: 1, mask: TYPE, values: &[libc::SOCK_STREAM as u32] };
const DATAGRAM: Test = Test::Among { arg: 1, mask: TYPE, values: &[libc::SOCK_DGRAM as u32] };
const STREAMS: &[u32] = &[libc::SOCK_STREAM as u32, libc::SOCK_SEQPACKET as u32];

/// Whom a priority is for: every process of a user.
const PRIO_USER: u32 = 2;
const IOPRIO_WHO_USER: u32 = 3;

/// The numbers of calls by their names.
mod numbers {
    pub use libc::*;

    /// The same on every machine, and missing for some of them.
    #[allow(non_upper_case_globals, reason = "named as its neighbours are")]
    pub const SYS_fchmodat2: c_long = 452;
}

macro_rules! rules {
    ($($call:ident $([$($test:expr),*])? => $then:expr),* $(,)?) => {
        &[$(Rule { call: numbers::$call, name: name(stringify!($call)), tests: &[$($($test),*)?], then: $then }),*]
    };
}

const fn name(call: &'static str) -> &'static str {
    let (_, rest) = call.split_at("SYS_".len());
    rest
}

const NO: Then = Then::Ask;

/// What no run may do.
const RULES: &[Rule] = rules![
    // Would pass by every rule on sockets here. Programs fall back.
    SYS_io_uring_setup => Then::Fail(libc::ENOSYS),
    SYS_io_uring_enter => Then::Fail(libc::ENOSYS),
    SYS_io_uring_register => Then::Fail(libc::ENOSYS),
    // Its flags are in memory, where no filter sees them. Every libc falls back to clone.
    SYS_clone3 => Then::Fail(libc::ENOSYS),
    // A namespace of one's own comes with all capabilities in it, and with them most of the kernel's weak spots.
    SYS_clone [Test::AnyBit { arg: 0, bits: NEW_NAMESPACE }] => NO,
    SYS_unshare [Test::AnyBit { arg: 0, bits: NEW_NAMESPACE | NEW_TIME }] => NO,
    SYS_setns => NO,
    // The tree of mounts is the fence.
    SYS_mount => NO,
    SYS_umount2 => NO,
    SYS_pivot_root => NO,
    SYS_chroot => NO,
    SYS_open_tree => NO,
    SYS_move_mount => NO,
    SYS_fsopen => NO,
    SYS_fsconfig => NO,
    SYS_fsmount => NO,
    SYS_fspick => NO,
    SYS_mount_setattr => NO,
    // Opens files by number, past every directory on the way.
    SYS_open_by_handle_at => NO,
    // Another process's memory and descriptors; with them any program of the run could wear another's face.
    SYS_ptrace => NO,
    SYS_process_vm_readv => NO,
    SYS_process_vm_writev => NO,
    SYS_pidfd_getfd => NO,
    SYS_kcmp => Then::Fail(libc::EPERM),
    // Large, privileged or seldom-used parts of the kernel with a history.
    SYS_bpf => NO,
    SYS_perf_event_open => Then::Fail(libc::EPERM),
    SYS_userfaultfd => NO,
    SYS_keyctl => Then::Fail(libc::EPERM),
    SYS_add_key => Then::Fail(libc::EPERM),
    SYS_request_key => Then::Fail(libc::EPERM),
    SYS_kexec_load => NO,
    SYS_kexec_file_load => NO,
    SYS_init_module => NO,
    SYS_finit_module => NO,
    SYS_delete_module => NO,
    SYS_swapon => NO,
    SYS_swapoff => NO,
    SYS_reboot => NO,
    SYS_quotactl => NO,
    SYS_quotactl_fd => NO,
    SYS_acct => NO,
    SYS_syslog => Then::Fail(libc::EPERM),
    SYS_settimeofday => NO,
    SYS_clock_settime => NO,
    SYS_lookup_dcookie => Then::Fail(libc::EPERM),
    SYS_fanotify_init => Then::Fail(libc::EPERM),
    // A lease needs no right but to read a file of one's own. Whoever opens that file then waits for its holder, up to
    // `fs.lease-break-time`: every program of the host would. The error is that for the files of another user.
    SYS_fcntl [Test::Among { arg: 1, mask: ALL, values: &[SET_LEASE, SET_DELEGATION] }] => Then::Fail(libc::EACCES),
    // Watches directories without counting against any limit of the user. Programs use inotify, which counts.
    SYS_fcntl [Test::Among { arg: 1, mask: ALL, values: &[NOTIFY] }] => Then::Fail(libc::EINVAL),
    // The first two type into the terminal of whoever looks on. The last sets a line discipline, and with it loads one:
    // modules with a history that no program in here has a line for.
    SYS_ioctl [Test::Among { arg: 1, mask: ALL, values: &[TIOCSTI, TIOCLINUX, TIOCSETD] }] => NO,
    // A connection that is made with the first data, past `connect`.
    SYS_sendto [Test::AnyBit { arg: 3, bits: FAST_OPEN }] => Then::Fail(libc::EOPNOTSUPP),
    SYS_sendmsg [Test::AnyBit { arg: 2, bits: FAST_OPEN }] => Then::Fail(libc::EOPNOTSUPP),
    SYS_sendmmsg [Test::AnyBit { arg: 3, bits: FAST_OPEN }] => Then::Fail(libc::EOPNOTSUPP),
    // Datagrams carry an address each, which no filter sees: they would reach any socket of the host by its path.
    SYS_socket [Test::Among { arg: 0, mask: ALL, values: &[UNIX] }, Test::NotAmong { arg: 1, mask: TYPE, values: STREAMS }] => NO,
    SYS_socketpair [Test::Among { arg: 0, mask: ALL, values: &[UNIX] }, Test::NotAmong { arg: 1, mask: TYPE, values: STREAMS }] => NO,
    // The routing table, of which the run's own is empty; no other part of netlink.
    SYS_socket [Test::Among { arg: 0, mask: ALL, values: &[NETLINK] }, Test::NotAmong { arg: 2, mask: ALL, values: &[0] }] => NO,
    // A program that keeps its owner's rights for whoever runs it: no use in here, but left behind in the workspace
    // of a server that runs as root it would be a way to become root.
    SYS_fchmod [Test::AnyBit { arg: 1, bits: SET_ID }] => Then::Fail(libc::EPERM),
    SYS_fchmodat [Test::AnyBit { arg: 2, bits: SET_ID }] => Then::Fail(libc::EPERM),
    SYS_fchmodat2 [Test::AnyBit { arg: 2, bits: SET_ID }] => Then::Fail(libc::EPERM),
    SYS_openat [Test::AnyBit { arg: 2, bits: CREATES }, Test::AnyBit { arg: 3, bits: SET_ID }] => Then::Fail(libc::EPERM),
    SYS_mknodat [Test::AnyBit { arg: 2, bits: SET_ID }] => Then::Fail(libc::EPERM),
    // Its mode is in memory, where no filter sees it. Every libc does without.
    SYS_openat2 => Then::Fail(libc::ENOSYS),
    // A socket by its path may be anybody's: the supervisor looks whose, and connects.
    SYS_connect => Then::Ask,
];

/// Sockets of a run that has a network of its own, or the host's.
const FAMILIES: &[Rule] = rules![
    SYS_socket [Test::NotAmong { arg: 0, mask: ALL, values: &[UNIX, INET, INET6, NETLINK] }] => NO,
    // Pairs of other families than this one are a way to a socket past the rule above.
    SYS_socketpair [Test::NotAmong { arg: 0, mask: ALL, values: &[UNIX] }] => Then::Fail(libc::EOPNOTSUPP),
    // TCP and nothing else: other protocols load modules with a history, and some are connected without `connect`. Programs
    // that try Multipath TCP first, as Go does to listen, take this error for a kernel without it and use TCP.
    SYS_socket [INTERNET, STREAM, Test::NotAmong { arg: 2, mask: ALL, values: &[0, TCP] }] => Then::Fail(libc::EPROTONOSUPPORT),
    // UDP, and echo requests where the host lets its users make them.
    SYS_socket [Test::Among { arg: 0, mask: ALL, values: &[INET] }, DATAGRAM, Test::NotAmong { arg: 2, mask: ALL, values: &[0, UDP, ICMP] }] => Then::Fail(libc::EPROTONOSUPPORT),
    SYS_socket [Test::Among { arg: 0, mask: ALL, values: &[INET6] }, DATAGRAM, Test::NotAmong { arg: 2, mask: ALL, values: &[0, UDP, ICMP6] }] => Then::Fail(libc::EPROTONOSUPPORT),
    // Packets as they are on the wire, for which no one in here has the right. `ping` tries it.
    SYS_socket [INTERNET, Test::Among { arg: 1, mask: TYPE, values: &[RAW] }] => Then::Fail(libc::EPERM),
    // SCTP, DCCP, and the old name of packet sockets.
    SYS_socket [INTERNET, Test::NotAmong { arg: 1, mask: TYPE, values: &[libc::SOCK_STREAM as u32, libc::SOCK_DGRAM as u32, RAW] }] => Then::Fail(libc::ESOCKTNOSUPPORT),
];

/// Sockets of a run that shares the host's network and may not use it.
const FAMILIES_WITHOUT_NETWORK: &[Rule] = rules![
    SYS_socket [Test::NotAmong { arg: 0, mask: ALL, values: &[UNIX] }] => NO,
    SYS_socketpair [Test::NotAmong { arg: 0, mask: ALL, values: &[UNIX] }] => Then::Fail(libc::EOPNOTSUPP),
];

/// Where other processes can be seen, what would disturb them without a signal. Zero is the caller itself.
const OTHERS: &[Rule] = rules![
    SYS_prlimit64 [Test::NotAmong { arg: 0, mask: ALL, values: &[0] }] => Then::Fail(libc::EPERM),
    SYS_setpriority [Test::NotAmong { arg: 1, mask: ALL, values: &[0] }] => Then::Fail(libc::EPERM),
    SYS_ioprio_set [Test::NotAmong { arg: 1, mask: ALL, values: &[0] }] => Then::Fail(libc::EPERM),
    SYS_sched_setscheduler [Test::NotAmong { arg: 0, mask: ALL, values: &[0] }] => Then::Fail(libc::EPERM),
    SYS_sched_setparam [Test::NotAmong { arg: 0, mask: ALL, values: &[0] }] => Then::Fail(libc::EPERM),
    SYS_sched_setattr [Test::NotAmong { arg: 0, mask: ALL, values: &[0] }] => Then::Fail(libc::EPERM),
    SYS_sched_setaffinity [Test::NotAmong { arg: 0, mask: ALL, values: &[0] }] => Then::Fail(libc::EPERM),
    SYS_migrate_pages => Then::Fail(libc::EPERM),
    SYS_move_pages [Test::NotAmong { arg: 0, mask: ALL, values: &[0] }] => Then::Fail(libc::EPERM),
    SYS_process_madvise => Then::Fail(libc::EPERM),
];

/// In a pid namespace of one's own, what would disturb its first process, which is ours and reports how the run went.
///
/// The kernel lets one process of a user do these to another: it asks for the same user and for nothing else, so that
/// neither a process that cannot be read nor Landlock is in the way. (Memory, tracing and files in /proc are closed by
/// those two, and signals by the kernel itself.) The first process has one thread, so that 1 is its only number; by its
/// user it is meant together with all others, which no program needs.
const FIRST: &[Rule] = rules![
    SYS_prlimit64 [Test::Among { arg: 0, mask: ALL, values: &[1] }] => Then::Fail(libc::EPERM),
    SYS_setpriority [Test::Among { arg: 1, mask: ALL, values: &[1] }] => Then::Fail(libc::EPERM),
    SYS_setpriority [Test::Among { arg: 0, mask: ALL, values: &[PRIO_USER] }] => Then::Fail(libc::EPERM),
    SYS_ioprio_set [Test::Among { arg: 1, mask: ALL, values: &[1] }] => Then::Fail(libc::EPERM),
    SYS_ioprio_set [Test::Among { arg: 0, mask: ALL, values: &[IOPRIO_WHO_USER] }] => Then::Fail(libc::EPERM),
    SYS_sched_setscheduler [Test::Among { arg: 0, mask: ALL, values: &[1] }] => Then::Fail(libc::EPERM),
    SYS_sched_setparam [Test::Among { arg: 0, mask: ALL, values: &[1] }] => Then::Fail(libc::EPERM),
    SYS_sched_setattr [Test::Among { arg: 0, mask: ALL, values: &[1] }] => Then::Fail(libc::EPERM),
    SYS_sched_setaffinity [Test::Among { arg: 0, mask: ALL, values: &[1] }] => Then::Fail(libc::EPERM),
];

#[cfg(target_arch = "x86_64")]
const OF_THIS_MACHINE: &[Rule] = rules![
    SYS_chmod [Test::AnyBit { arg: 1, bits: SET_ID }] => Then::Fail(libc::EPERM),
    SYS_open [Test::AnyBit { arg: 1, bits: CREATES }, Test::AnyBit { arg: 2, bits: SET_ID }] => Then::Fail(libc::EPERM),
    SYS_creat [Test::AnyBit { arg: 1, bits: SET_ID }] => Then::Fail(libc::EPERM),
    SYS_mknod [Test::AnyBit { arg: 1, bits: SET_ID }] => Then::Fail(libc::EPERM),
    SYS_iopl => NO,
    SYS_ioperm => NO,
    SYS_uselib => Then::Fail(libc::ENOSYS),
    SYS_ustat => Then::Fail(libc::ENOSYS),
];
#[cfg(not(target_arch = "x86_64"))]
const OF_THIS_MACHINE: &[Rule] = &[];

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// What is watched rather than refused.
const EXECS: &[Rule] = rules![
    SYS_execve => Then::Ask,
    SYS_execveat => Then::Ask,
];

/// Where one that changes nothing is done by the supervisor, and every other by its caller.
const RENAMES: &[Rule] = rules![
    SYS_renameat => Then::Ask,
    SYS_renameat2 => Then::Ask,
];

#[cfg(target_arch = "x86_64")]
const RENAMES_OF_THIS_MACHINE: &[Rule] = rules![SYS_rename => Then::Ask];
#[cfg(not(target_arch = "x86_64"))]
const RENAMES_OF_THIS_MACHINE: &[Rule] = &[];

/// What a sandbox inside the sandbox is made with. Mounts can be added with these and, in namespaces of one's own, taken
/// away again; those that were there before are locked by the kernel. The newer calls for mounts stay shut, and so do
/// other people's namespaces.
const NESTING: &[c_long] =
    &[libc::SYS_clone, libc::SYS_unshare, libc::SYS_mount, libc::SYS_umount2, libc::SYS_pivot_root];

/// In place of those about namespaces: the supervisor looks how deep it would be. Without one of users nobody in here has
/// the right to make any other.
const NESTED: &[Rule] = rules![
    SYS_clone [Test::AnyBit { arg: 0, bits: NEW_USERS | NEVER_NESTED & !NEW_TIME }] => Then::Ask,
    SYS_unshare [Test::AnyBit { arg: 0, bits: NEW_USERS | NEVER_NESTED }] => Then::Ask,
];

/// Whether a call is one of those, and makes nothing that no sandbox needs.
pub fn makes_users(call: c_long, flags: u64) -> bool {
    NESTED.iter().any(|rule| rule.call == call) && flags & u64::from(NEVER_NESTED) == 0
}

/// What the rules for a run depend on.
#[derive(Debug, Clone, Copy, Default)]
pub struct Case {
    pub network: Network,
    /// It has its own, of processes and of the network.
    pub namespaces: bool,
    /// Its execs are judged.
    pub watched: bool,
    /// It may be a sandbox itself.
    pub nested: bool,
    /// Its renames are looked at.
    pub renames: bool,
}

/// The rules for a run.
pub fn rules(case: Case) -> impl Iterator<Item = &'static Rule> {
    let Case { network, namespaces, watched, nested, renames } = case;
    let families = match (network, namespaces) {
        (Network::All, _) | (_, true) => FAMILIES,
        (_, false) => FAMILIES_WITHOUT_NETWORK,
    };
    let others: &[Rule] = if namespaces { FIRST } else { OTHERS };
    let execs: &[Rule] = if watched { EXECS } else { &[] };
    let renames: [&[Rule]; 2] =
        if renames { [RENAMES, RENAMES_OF_THIS_MACHINE] } else { [&[], &[]] };
    let kept = move |rule: &&Rule| !(nested && NESTING.contains(&rule.call));
    let nesting: &[Rule] = if nested { NESTED } else { &[] };
    RULES
        .iter()
        .filter(kept)
        .chain(nesting)
        .chain(families)
        .chain(others)
        .chain(OF_THIS_MACHINE)
        .chain(execs)
        .chain(renames.into_iter().flatten())
}

/// The name of a call that a rule is about.
pub fn name_of(call: c_long) -> Option<&'static str> {
    RULES
        .iter()
        .chain(FAMILIES)
        .chain(OF_THIS_MACHINE)
        .find(|rule| rule.call == call)
        .map(|rule| rule.name)
}

// Offsets into `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const ARGS: u32 = 16;

/// The program that the kernel runs at every system call. It searches by halves for the number, so that no call costs more
/// than a few comparisons; and as no argument is looked at before that, the kernel can remember which calls are always
/// allowed, and skips the program for those.
pub fn program(rules: impl Iterator<Item = &'static Rule>) -> Vec<sock_filter> {
    let mut program = vec![
        load(ARCH),
        jump(libc::BPF_JEQ, ARCHITECTURE, 1, 0),
        give(libc::SECCOMP_RET_KILL_PROCESS),
        load(NUMBER),
    ];
    program.extend(search(&segments(rules)));
    program
}

/// What happens to calls from one number up to the next segment.
struct Segment {
    first: u32,
    fate: Fate,
}

enum Fate {
    Allowed,
    Unknown,
    /// The first that fits decides; if none does, the call is allowed.
    Ruled(Vec<&'static Rule>),
}

/// All numbers, in their order.
fn segments(rules: impl Iterator<Item = &'static Rule>) -> Vec<Segment> {
    let mut ruled: BTreeMap<u32, Vec<&'static Rule>> = BTreeMap::new();
    for rule in rules {
        ruled.entry(rule.call as u32).or_default().push(rule);
    }
    let mut segments: Vec<Segment> = Vec::new();
    // One more, which is unknown and stands for all that follow: on x86-64 also the same calls again for x32.
    for number in 0..=known::last() + 1 {
        let fate = match ruled.remove(&number) {
            Some(rules) => Fate::Ruled(rules),
            None if known::is_known(number) => Fate::Allowed,
            None => Fate::Unknown,
        };
        let previous = segments.last().map(|segment| &segment.fate);
        let goes_on = matches!(
            (previous, &fate),
            (Some(Fate::Allowed), Fate::Allowed) | (Some(Fate::Unknown), Fate::Unknown)
        );
        if !goes_on {
            segments.push(Segment { first: number, fate });
        }
    }
    segments
}

/// Finds the segment of the number that is loaded, and does what it says.
fn search(segments: &[Segment]) -> Vec<sock_filter> {
    let (below, above) = match segments {
        [] => return vec![give(NO_SUCH_CALL)],
        [found] => return found.fate.compile(),
        _ => segments.split_at(segments.len() / 2),
    };
    let (lower, upper) = (search(below), search(above));
    let middle = above[0].first;
    let mut program = match u8::try_from(lower.len()) {
        Ok(over) => vec![jump(libc::BPF_JGE, middle, over, 0)],
        // Too far for a condition.
        Err(_) => vec![jump(libc::BPF_JGE, middle, 0, 1), skip(lower.len())],
    };
    program.extend(lower);
    program.extend(upper);
    program
}

/// As a kernel answers that does not have it.
const NO_SUCH_CALL: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

impl Fate {
    fn compile(&self) -> Vec<sock_filter> {
        match self {
            Fate::Allowed => vec![give(libc::SECCOMP_RET_ALLOW)],
            Fate::Unknown => vec![give(NO_SUCH_CALL)],
            Fate::Ruled(rules) => {
                let blocks = rules.iter().flat_map(|rule| block(rule));
                blocks.chain([give(libc::SECCOMP_RET_ALLOW)]).collect()
            }
        }
    }
}

/// One rule: what does not fit jumps behind it.
fn block(rule: &Rule) -> Vec<sock_filter> {
    let mut block = vec![match rule.then {
        Then::Fail(errno) => give(libc::SECCOMP_RET_ERRNO | errno as u32),
        Then::Ask => give(libc::SECCOMP_RET_USER_NOTIF),
    }];
    for test in rule.tests.iter().rev() {
        // Built from the end, so that the distance to the end is known.
        let mut piece = test.piece(block.len());
        piece.append(&mut block);
        block = piece;
    }
    block
}

impl Test {
    /// Falls through when the test holds, else jumps over the `after` instructions that follow it.
    fn piece(&self, after: usize) -> Vec<sock_filter> {
        match *self {
            Test::AnyBit { arg, bits } => {
                vec![load(ARGS + 8 * arg), jump(libc::BPF_JSET, bits, 0, distance(after))]
            }
            Test::Among { arg, mask, values } => {
                let mut piece = vec![load(ARGS + 8 * arg), and(mask)];
                for (at, value) in values.iter().enumerate() {
                    let rest = values.len() - at - 1;
                    let miss = if rest == 0 { distance(after) } else { 0 };
                    piece.push(jump(libc::BPF_JEQ, *value, distance(rest), miss));
                }
                piece
            }
            Test::NotAmong { arg, mask, values } => {
                let mut piece = vec![load(ARGS + 8 * arg), and(mask)];
                for (at, value) in values.iter().enumerate() {
                    let rest = values.len() - at - 1;
                    piece.push(jump(libc::BPF_JEQ, *value, distance(rest + after), 0));
                }
                piece
            }
        }
    }
}

/// A block is short; a jump that did not fit would make the kernel refuse the program, and the run with it.
fn distance(instructions: usize) -> u8 {
    u8::try_from(instructions).unwrap_or(u8::MAX)
}

fn load(offset: u32) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset)
}

fn and(mask: u32) -> sock_filter {
    instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0, mask)
}

fn jump(how: u32, value: u32, yes: u8, no: u8) -> sock_filter {
    instruction(libc::BPF_JMP | how | libc::BPF_K, yes, no, value)
}

fn skip(instructions: usize) -> sock_filter {
    // A program has at most 4096 of them.
    instruction(libc::BPF_JMP | libc::BPF_JA, 0, 0, instructions as u32)
}

fn give(action: u32) -> sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, 0, 0, action)
}

fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}

#[cfg(test)]
mod tests;
