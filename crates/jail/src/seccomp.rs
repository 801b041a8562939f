//! The seccomp filter: which system calls a run may make, which fail, and which the supervisor
//! decides.
//!
//! A call that is not [`known`] does not exist for a run. Of the known calls, the rules below
//! refuse some. Both lists are data with a reason for each entry. Calls that are rare and
//! suspicious go to the supervisor, which refuses and records them; it decides by register values
//! alone, which no other thread can change in the meantime. Calls that ordinary programs merely try
//! out fail right in the filter.

mod known;

use std::collections::BTreeMap;

use libc::{c_long, sock_filter};

use crate::rights::Network;

/// Action for a call that matches a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// Fails with this error, as if the kernel did not support the call or did not permit it.
    Fail(i32),
    /// Goes to the supervisor, which decides it or refuses and records it.
    Ask,
}

/// A condition on one argument. It compares only the low 32 bits, as the kernel does for an `int`
/// argument.
#[derive(Debug, Clone, Copy)]
enum Test {
    Among { arg: u32, mask: u32, values: &'static [u32] },
    NotAmong { arg: u32, mask: u32, values: &'static [u32] },
    AnyBit { arg: u32, bits: u32 },
}

/// A system call and the conditions under which it is not simply allowed.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    call: c_long,
    name: &'static str,
    tests: &'static [Test],
    then: Then,
}

const ALL: u32 = u32::MAX;
/// Namespace flags of `clone` and `unshare`.
const NEW_NAMESPACE: u32 = 0x7e02_0000;
const NEW_USERS: u32 = 0x1000_0000;
const NEW_TIME: u32 = 0x80;
const NEW_CONTROL_GROUPS: u32 = 0x0200_0000;
const NEW_HOST_NAMES: u32 = 0x0400_0000;
/// Namespaces that no nested sandbox needs. A process with its own cgroup namespace can mount the
/// hierarchy, and then lift the run's limits or create groups on the host.
const NEVER_NESTED: u32 = NEW_CONTROL_GROUPS | NEW_HOST_NAMES | NEW_TIME;
const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541c;
const SET_LEASE: u32 = libc::F_SETLEASE as u32;
/// A lease on a directory, available since Linux 6.19.
const SET_DELEGATION: u32 = 1040;
const NOTIFY: u32 = libc::F_NOTIFY as u32;
const TIOCSETD: u32 = 0x5423;
/// The set-user-ID and set-group-ID bits of a file mode.
const SET_ID: u32 = 0o6000;
/// Flags of `open` that make it take a mode.
const CREATES: u32 = (libc::O_CREAT | libc::O_TMPFILE & !libc::O_DIRECTORY) as u32;
const FAST_OPEN: u32 = libc::MSG_FASTOPEN as u32;
const UNIX: u32 = libc::AF_UNIX as u32;
const INET: u32 = libc::AF_INET as u32;
const INET6: u32 = libc::AF_INET6 as u32;
const NETLINK: u32 = libc::AF_NETLINK as u32;
/// Mask for `type` of a socket without its flags.
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

/// Values with which a priority call addresses every process of a user.
const PRIO_USER: u32 = 2;
const IOPRIO_WHO_USER: u32 = 3;

/// System call numbers by name.
mod numbers {
    pub use libc::*;

    /// The same on all architectures; libc lacks it on some.
    #[allow(non_upper_case_globals, reason = "named as its neighbours are")]
    pub const SYS_fchmodat2: c_long = 452;
}

macro_rules! rules {
    ($($call:ident $([$($test:expr),*])? => $then:expr),* $(,)?) => {
        &[$(Rule { call: numbers::$call, name: name(stringify!($call)), tests: &[$($($test),*)?], then: $then }),*]
    };
}

/// Strips the `SYS_` prefix.
const fn name(call: &'static str) -> &'static str {
    let (_, rest) = call.split_at("SYS_".len());
    rest
}

/// For calls that are never permitted: the supervisor refuses and records them.
const NO: Then = Then::Ask;

/// Rules that apply to every run.
const RULES: &[Rule] = rules![
    // io_uring would bypass all the socket rules below. Programs fall back to ordinary calls.
    SYS_io_uring_setup => Then::Fail(libc::ENOSYS),
    SYS_io_uring_enter => Then::Fail(libc::ENOSYS),
    SYS_io_uring_register => Then::Fail(libc::ENOSYS),
    // Its flags are in memory, which a filter cannot read. Every libc falls back to clone.
    SYS_clone3 => Then::Fail(libc::ENOSYS),
    // A process has all capabilities in a namespace of its own, and with them access to most of the
    // kernel's attack surface.
    SYS_clone [Test::AnyBit { arg: 0, bits: NEW_NAMESPACE }] => NO,
    SYS_unshare [Test::AnyBit { arg: 0, bits: NEW_NAMESPACE | NEW_TIME }] => NO,
    SYS_setns => NO,
    // The mount tree is what confines the run.
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
    // Opens files by inode handle and so bypasses the permissions of every directory above.
    SYS_open_by_handle_at => NO,
    // Access to another process's memory and descriptors, with which any program of the run could
    // impersonate another.
    SYS_ptrace => NO,
    SYS_process_vm_readv => NO,
    SYS_process_vm_writev => NO,
    SYS_pidfd_getfd => NO,
    SYS_kcmp => Then::Fail(libc::EPERM),
    // Large, privileged or rarely used kernel features with a history of vulnerabilities.
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
    // A lease requires only read access to a file that the caller owns. Any process that then opens
    // the file, including programs on the host, blocks until the holder reacts, for up to
    // `fs.lease-break-time`. EACCES is what the kernel returns for another user's file.
    SYS_fcntl [Test::Among { arg: 1, mask: ALL, values: &[SET_LEASE, SET_DELEGATION] }] => Then::Fail(libc::EACCES),
    // Directory notifications that no per-user limit counts. Programs use inotify, which is
    // counted.
    SYS_fcntl [Test::Among { arg: 1, mask: ALL, values: &[NOTIFY] }] => Then::Fail(libc::EINVAL),
    // The first two inject input into the terminal of the user who is watching. The last sets a
    // line discipline and can load its module: these have a history of vulnerabilities, and no
    // program in the sandbox needs them.
    SYS_ioctl [Test::Among { arg: 1, mask: ALL, values: &[TIOCSTI, TIOCLINUX, TIOCSETD] }] => NO,
    // TCP Fast Open connects with the first data and so bypasses `connect`.
    SYS_sendto [Test::AnyBit { arg: 3, bits: FAST_OPEN }] => Then::Fail(libc::EOPNOTSUPP),
    SYS_sendmsg [Test::AnyBit { arg: 2, bits: FAST_OPEN }] => Then::Fail(libc::EOPNOTSUPP),
    SYS_sendmmsg [Test::AnyBit { arg: 3, bits: FAST_OPEN }] => Then::Fail(libc::EOPNOTSUPP),
    // Each datagram carries its own address, which a filter cannot read: it could reach any of the
    // host's sockets by path.
    SYS_socket [Test::Among { arg: 0, mask: ALL, values: &[UNIX] }, Test::NotAmong { arg: 1, mask: TYPE, values: STREAMS }] => NO,
    SYS_socketpair [Test::Among { arg: 0, mask: ALL, values: &[UNIX] }, Test::NotAmong { arg: 1, mask: TYPE, values: STREAMS }] => NO,
    // Only the routing protocol of netlink is allowed; the run's own routing table is empty.
    SYS_socket [Test::Among { arg: 0, mask: ALL, values: &[NETLINK] }, Test::NotAmong { arg: 2, mask: ALL, values: &[0] }] => NO,
    // A set-user-ID program gives its owner's rights to every user who starts it. It is useless
    // inside the sandbox, but left in the workspace of a server that runs as root it would let a
    // local user become root.
    SYS_fchmod [Test::AnyBit { arg: 1, bits: SET_ID }] => Then::Fail(libc::EPERM),
    SYS_fchmodat [Test::AnyBit { arg: 2, bits: SET_ID }] => Then::Fail(libc::EPERM),
    SYS_fchmodat2 [Test::AnyBit { arg: 2, bits: SET_ID }] => Then::Fail(libc::EPERM),
    SYS_openat [Test::AnyBit { arg: 2, bits: CREATES }, Test::AnyBit { arg: 3, bits: SET_ID }] => Then::Fail(libc::EPERM),
    SYS_mknodat [Test::AnyBit { arg: 2, bits: SET_ID }] => Then::Fail(libc::EPERM),
    // Its mode is in memory, which a filter cannot read. No libc depends on it.
    SYS_openat2 => Then::Fail(libc::ENOSYS),
    // A socket path may belong to any process on the host: the supervisor checks who owns it and
    // makes the connection.
    SYS_connect => Then::Ask,
];

/// Socket rules for a run with its own network namespace, or with the host's network.
const FAMILIES: &[Rule] = rules![
    SYS_socket [Test::NotAmong { arg: 0, mask: ALL, values: &[UNIX, INET, INET6, NETLINK] }] => NO,
    // Pairs of another family would be a way around the rule above.
    SYS_socketpair [Test::NotAmong { arg: 0, mask: ALL, values: &[UNIX] }] => Then::Fail(libc::EOPNOTSUPP),
    // TCP only: other protocols load modules with a history of vulnerabilities, and some connect
    // without `connect`. Programs that try Multipath TCP first, as Go does when listening, take
    // this error to mean that the kernel lacks it and use TCP.
    SYS_socket [INTERNET, STREAM, Test::NotAmong { arg: 2, mask: ALL, values: &[0, TCP] }] => Then::Fail(libc::EPROTONOSUPPORT),
    // UDP, and ICMP echo requests if the host permits them to its users.
    SYS_socket [Test::Among { arg: 0, mask: ALL, values: &[INET] }, DATAGRAM, Test::NotAmong { arg: 2, mask: ALL, values: &[0, UDP, ICMP] }] => Then::Fail(libc::EPROTONOSUPPORT),
    SYS_socket [Test::Among { arg: 0, mask: ALL, values: &[INET6] }, DATAGRAM, Test::NotAmong { arg: 2, mask: ALL, values: &[0, UDP, ICMP6] }] => Then::Fail(libc::EPROTONOSUPPORT),
    // Raw packets, for which no process in the sandbox has the capability. `ping` tries this.
    SYS_socket [INTERNET, Test::Among { arg: 1, mask: TYPE, values: &[RAW] }] => Then::Fail(libc::EPERM),
    // SCTP, DCCP and the obsolete type of packet sockets.
    SYS_socket [INTERNET, Test::NotAmong { arg: 1, mask: TYPE, values: &[libc::SOCK_STREAM as u32, libc::SOCK_DGRAM as u32, RAW] }] => Then::Fail(libc::ESOCKTNOSUPPORT),
];

/// Socket rules for a run that shares the host's network namespace and may not use the network.
const FAMILIES_WITHOUT_NETWORK: &[Rule] = rules![
    SYS_socket [Test::NotAmong { arg: 0, mask: ALL, values: &[UNIX] }] => NO,
    SYS_socketpair [Test::NotAmong { arg: 0, mask: ALL, values: &[UNIX] }] => Then::Fail(libc::EOPNOTSUPP),
];

/// Calls that affect other processes without a signal, for a run that can see processes outside.
/// Zero means the caller itself.
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

/// Calls that could disturb the first process of a run's pid namespace, which is ours and reports
/// the result of the run.
///
/// The kernel permits these calls between any two processes of the same user and checks nothing
/// else, so neither making the process non-dumpable nor Landlock prevents them. (Those two block
/// access to its memory, tracing and its files in /proc; the kernel itself drops signals to it.)
/// The first process has a single thread, so 1 is its only id. A call for all processes of a user
/// would include it, and no program needs that.
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

/// Rules for calls that exist only on this architecture.
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

/// The `AUDIT_ARCH_…` value of native calls. A call made through another ABI kills the process.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// Program starts, which are judged by rules instead of being refused.
const EXECS: &[Rule] = rules![
    SYS_execve => Then::Ask,
    SYS_execveat => Then::Ask,
];

/// Renames, in a run that needs them intercepted: the supervisor performs one that would change
/// nothing, and lets the caller make every other.
const RENAMES: &[Rule] = rules![
    SYS_renameat => Then::Ask,
    SYS_renameat2 => Then::Ask,
];

#[cfg(target_arch = "x86_64")]
const RENAMES_OF_THIS_MACHINE: &[Rule] = rules![SYS_rename => Then::Ask];
#[cfg(not(target_arch = "x86_64"))]
const RENAMES_OF_THIS_MACHINE: &[Rule] = &[];

/// Calls that a nested sandbox is built with. They can add mounts and remove these again in the
/// sandbox's own namespaces, but the kernel locks the mounts that existed before. The newer mount
/// calls stay closed, and so does entering existing namespaces.
const NESTING: &[c_long] =
    &[libc::SYS_clone, libc::SYS_unshare, libc::SYS_mount, libc::SYS_umount2, libc::SYS_pivot_root];

/// Replacements for the rules on namespaces: the supervisor checks the nesting depth. Without a new
/// user namespace no process in the sandbox may create any other kind.
const NESTED: &[Rule] = rules![
    SYS_clone [Test::AnyBit { arg: 0, bits: NEW_USERS | NEVER_NESTED & !NEW_TIME }] => Then::Ask,
    SYS_unshare [Test::AnyBit { arg: 0, bits: NEW_USERS | NEVER_NESTED }] => Then::Ask,
];

/// Returns whether a call matched by these rules creates none of the namespaces that no nested
/// sandbox needs.
pub fn makes_users(call: c_long, flags: u64) -> bool {
    NESTED.iter().any(|rule| rule.call == call) && flags & u64::from(NEVER_NESTED) == 0
}

/// Properties of a run that select its rules.
#[derive(Debug, Clone, Copy, Default)]
pub struct Case {
    pub network: Network,
    /// It has its own pid and network namespaces.
    pub namespaces: bool,
    /// Its program starts are judged by rules.
    pub watched: bool,
    /// It may build a sandbox of its own.
    pub nested: bool,
    /// Its renames are intercepted.
    pub renames: bool,
}

/// Returns the rules for a run.
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

/// Returns the name of a call that has a rule.
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

/// Compiles the filter that the kernel runs at every system call.
///
/// A binary search over the call number keeps the cost to a few comparisons. No argument is read
/// before that search, so the kernel can cache which calls are always allowed and skips the filter
/// for them.
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

/// A range of call numbers, up to the start of the next segment, that have the same fate.
struct Segment {
    first: u32,
    fate: Fate,
}

/// How the filter treats a call.
enum Fate {
    Allowed,
    Unknown,
    /// The first matching rule decides; if none matches, the call is allowed.
    Ruled(Vec<&'static Rule>),
}

/// Divides all call numbers into segments, in ascending order.
fn segments(rules: impl Iterator<Item = &'static Rule>) -> Vec<Segment> {
    let mut ruled: BTreeMap<u32, Vec<&'static Rule>> = BTreeMap::new();
    for rule in rules {
        ruled.entry(rule.call as u32).or_default().push(rule);
    }
    let mut segments: Vec<Segment> = Vec::new();
    // One number past the end represents all higher ones as unknown. On x86-64 these include the
    // x32 variants of the same calls.
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

/// Compiles a binary search for the segment of the loaded number, followed by its action.
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
        // Too far for a conditional jump.
        Err(_) => vec![jump(libc::BPF_JGE, middle, 0, 1), skip(lower.len())],
    };
    program.extend(lower);
    program.extend(upper);
    program
}

/// Error for an unknown call, as from a kernel that does not have it.
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

/// Compiles one rule; a call that does not match jumps behind it.
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
    /// Compiles the test. It falls through on a match, otherwise it jumps over the `after`
    /// instructions that follow.
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

/// Converts a jump distance. Blocks are short; a jump that did not fit would make the kernel reject
/// the filter, and the run would not start.
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
    // The kernel limits a filter to 4096 instructions.
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
