//! The seccomp filter: which system calls a run may make, which fail, and which the supervisor
//! decides.
//!
//! A call that is not [known](known_calls) does not exist for a run. Of the known calls, the rules
//! below refuse some. Both lists are data with a reason for each entry. Calls that are rare and
//! suspicious go to the supervisor, which refuses and records them; it decides by register values
//! alone, which no other thread can change in the meantime. Calls that ordinary programs merely try
//! out fail right in the filter.

mod known_calls;

use std::collections::BTreeMap;

use libc::{c_long, sock_filter};

use crate::rights::NetworkAccess;

/// Action for a call that matches a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleAction {
    /// Fails with this error, as if the kernel did not support the call or did not permit it.
    Fail(i32),
    /// Goes to the supervisor, which decides it or refuses and records it.
    AskSupervisor,
}

/// A condition on one argument. It compares only the low 32 bits, as the kernel does for an `int`
/// argument.
#[derive(Debug, Clone, Copy)]
enum ArgumentTest {
    Among { arg: u32, mask: u32, values: &'static [u32] },
    NotAmong { arg: u32, mask: u32, values: &'static [u32] },
    AnyBit { arg: u32, bits: u32 },
}

/// A system call and the conditions under which it is not simply allowed.
#[derive(Debug, Clone, Copy)]
pub struct SyscallRule {
    call: c_long,
    name: &'static str,
    tests: &'static [ArgumentTest],
    then: RuleAction,
}

const ALL_BITS: u32 = u32::MAX;
/// Namespace flags of `clone` and `unshare`.
const NEW_NAMESPACE: u32 = 0x7e02_0000;
const NEW_USER_NAMESPACE: u32 = 0x1000_0000;
const NEW_TIME_NAMESPACE: u32 = 0x80;
const NEW_CGROUP_NAMESPACE: u32 = 0x0200_0000;
const NEW_UTS_NAMESPACE: u32 = 0x0400_0000;
/// Namespaces that no nested sandbox needs. A process with its own cgroup namespace can mount the
/// hierarchy, and then lift the run's limits or create groups on the host.
const NEVER_NESTED: u32 = NEW_CGROUP_NAMESPACE | NEW_UTS_NAMESPACE | NEW_TIME_NAMESPACE;
const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541c;
const SET_LEASE: u32 = libc::F_SETLEASE as u32;
/// A lease on a directory, available since Linux 6.19.
const SET_DELEGATION: u32 = 1040;
const NOTIFY: u32 = libc::F_NOTIFY as u32;
const TIOCSETD: u32 = 0x5423;
/// The set-user-ID and set-group-ID bits of a file mode.
const SET_ID_BITS: u32 = 0o6000;
/// Flags of `open` that make it take a mode.
const CREATE_FLAGS: u32 = (libc::O_CREAT | libc::O_TMPFILE & !libc::O_DIRECTORY) as u32;
const FAST_OPEN: u32 = libc::MSG_FASTOPEN as u32;
const UNIX: u32 = libc::AF_UNIX as u32;
const INET: u32 = libc::AF_INET as u32;
const INET6: u32 = libc::AF_INET6 as u32;
const NETLINK: u32 = libc::AF_NETLINK as u32;
/// Mask for `type` of a socket without its flags.
const SOCKET_TYPE_MASK: u32 = 0xf;
const RAW: u32 = libc::SOCK_RAW as u32;
const TCP: u32 = libc::IPPROTO_TCP as u32;
const UDP: u32 = libc::IPPROTO_UDP as u32;
const ICMP: u32 = libc::IPPROTO_ICMP as u32;
const ICMP6: u32 = libc::IPPROTO_ICMPV6 as u32;
const INTERNET: ArgumentTest =
    ArgumentTest::Among { arg: 0, mask: ALL_BITS, values: &[INET, INET6] };
const STREAM: ArgumentTest =
    ArgumentTest::Among { arg: 1, mask: SOCKET_TYPE_MASK, values: &[libc::SOCK_STREAM as u32] };
const DATAGRAM: ArgumentTest =
    ArgumentTest::Among { arg: 1, mask: SOCKET_TYPE_MASK, values: &[libc::SOCK_DGRAM as u32] };
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
        &[$(SyscallRule { call: numbers::$call, name: name(stringify!($call)), tests: &[$($($test),*)?], then: $then }),*]
    };
}

/// Strips the `SYS_` prefix.
const fn name(call: &'static str) -> &'static str {
    let (_, rest) = call.split_at("SYS_".len());
    rest
}

/// For calls that are never permitted: the supervisor refuses and records them.
const REFUSE_AND_RECORD: RuleAction = RuleAction::AskSupervisor;

/// Rules that apply to every run.
const RULES: &[SyscallRule] = rules![
    // io_uring would bypass all the socket rules below. Programs fall back to ordinary calls.
    SYS_io_uring_setup => RuleAction::Fail(libc::ENOSYS),
    SYS_io_uring_enter => RuleAction::Fail(libc::ENOSYS),
    SYS_io_uring_register => RuleAction::Fail(libc::ENOSYS),
    // Its flags are in memory, which a filter cannot read. Every libc falls back to clone.
    SYS_clone3 => RuleAction::Fail(libc::ENOSYS),
    // A process has all capabilities in a namespace of its own, and with them access to most of the
    // kernel's attack surface.
    SYS_clone [ArgumentTest::AnyBit { arg: 0, bits: NEW_NAMESPACE }] => REFUSE_AND_RECORD,
    SYS_unshare [ArgumentTest::AnyBit { arg: 0, bits: NEW_NAMESPACE | NEW_TIME_NAMESPACE }] => REFUSE_AND_RECORD,
    SYS_setns => REFUSE_AND_RECORD,
    // The mount tree is what confines the run.
    SYS_mount => REFUSE_AND_RECORD,
    SYS_umount2 => REFUSE_AND_RECORD,
    SYS_pivot_root => REFUSE_AND_RECORD,
    SYS_chroot => REFUSE_AND_RECORD,
    SYS_open_tree => REFUSE_AND_RECORD,
    SYS_move_mount => REFUSE_AND_RECORD,
    SYS_fsopen => REFUSE_AND_RECORD,
    SYS_fsconfig => REFUSE_AND_RECORD,
    SYS_fsmount => REFUSE_AND_RECORD,
    SYS_fspick => REFUSE_AND_RECORD,
    SYS_mount_setattr => REFUSE_AND_RECORD,
    // Opens files by inode handle and so bypasses the permissions of every directory above.
    SYS_open_by_handle_at => REFUSE_AND_RECORD,
    // Access to another process's memory and descriptors, with which any program of the run could
    // impersonate another.
    SYS_ptrace => REFUSE_AND_RECORD,
    SYS_process_vm_readv => REFUSE_AND_RECORD,
    SYS_process_vm_writev => REFUSE_AND_RECORD,
    SYS_pidfd_getfd => REFUSE_AND_RECORD,
    SYS_kcmp => RuleAction::Fail(libc::EPERM),
    // Large, privileged or rarely used kernel features with a history of vulnerabilities.
    SYS_bpf => REFUSE_AND_RECORD,
    SYS_perf_event_open => RuleAction::Fail(libc::EPERM),
    SYS_userfaultfd => REFUSE_AND_RECORD,
    SYS_keyctl => RuleAction::Fail(libc::EPERM),
    SYS_add_key => RuleAction::Fail(libc::EPERM),
    SYS_request_key => RuleAction::Fail(libc::EPERM),
    SYS_kexec_load => REFUSE_AND_RECORD,
    SYS_kexec_file_load => REFUSE_AND_RECORD,
    SYS_init_module => REFUSE_AND_RECORD,
    SYS_finit_module => REFUSE_AND_RECORD,
    SYS_delete_module => REFUSE_AND_RECORD,
    SYS_swapon => REFUSE_AND_RECORD,
    SYS_swapoff => REFUSE_AND_RECORD,
    SYS_reboot => REFUSE_AND_RECORD,
    SYS_quotactl => REFUSE_AND_RECORD,
    SYS_quotactl_fd => REFUSE_AND_RECORD,
    SYS_acct => REFUSE_AND_RECORD,
    SYS_syslog => RuleAction::Fail(libc::EPERM),
    SYS_settimeofday => REFUSE_AND_RECORD,
    SYS_clock_settime => REFUSE_AND_RECORD,
    SYS_lookup_dcookie => RuleAction::Fail(libc::EPERM),
    SYS_fanotify_init => RuleAction::Fail(libc::EPERM),
    // A lease requires only read access to a file that the caller owns. Any process that then opens
    // the file, including programs on the host, blocks until the holder reacts, for up to
    // `fs.lease-break-time`. EACCES is what the kernel returns for another user's file.
    SYS_fcntl [ArgumentTest::Among { arg: 1, mask: ALL_BITS, values: &[SET_LEASE, SET_DELEGATION] }] => RuleAction::Fail(libc::EACCES),
    // Directory notifications that no per-user limit counts. Programs use inotify, which is
    // counted.
    SYS_fcntl [ArgumentTest::Among { arg: 1, mask: ALL_BITS, values: &[NOTIFY] }] => RuleAction::Fail(libc::EINVAL),
    // The first two inject input into the terminal of the user who is watching. The last sets a
    // line discipline and can load its module: these have a history of vulnerabilities, and no
    // program in the sandbox needs them.
    SYS_ioctl [ArgumentTest::Among { arg: 1, mask: ALL_BITS, values: &[TIOCSTI, TIOCLINUX, TIOCSETD] }] => REFUSE_AND_RECORD,
    // TCP Fast Open connects with the first data and so bypasses `connect`.
    SYS_sendto [ArgumentTest::AnyBit { arg: 3, bits: FAST_OPEN }] => RuleAction::Fail(libc::EOPNOTSUPP),
    SYS_sendmsg [ArgumentTest::AnyBit { arg: 2, bits: FAST_OPEN }] => RuleAction::Fail(libc::EOPNOTSUPP),
    SYS_sendmmsg [ArgumentTest::AnyBit { arg: 3, bits: FAST_OPEN }] => RuleAction::Fail(libc::EOPNOTSUPP),
    // Each datagram carries its own address, which a filter cannot read: it could reach any of the
    // host's sockets by path.
    SYS_socket [ArgumentTest::Among { arg: 0, mask: ALL_BITS, values: &[UNIX] }, ArgumentTest::NotAmong { arg: 1, mask: SOCKET_TYPE_MASK, values: STREAMS }] => REFUSE_AND_RECORD,
    SYS_socketpair [ArgumentTest::Among { arg: 0, mask: ALL_BITS, values: &[UNIX] }, ArgumentTest::NotAmong { arg: 1, mask: SOCKET_TYPE_MASK, values: STREAMS }] => REFUSE_AND_RECORD,
    // Only the routing protocol of netlink is allowed; the run's own routing table is empty.
    SYS_socket [ArgumentTest::Among { arg: 0, mask: ALL_BITS, values: &[NETLINK] }, ArgumentTest::NotAmong { arg: 2, mask: ALL_BITS, values: &[0] }] => REFUSE_AND_RECORD,
    // A set-user-ID program gives its owner's rights to every user who starts it. It is useless
    // inside the sandbox, but left in the workspace of a server that runs as root it would let a
    // local user become root.
    SYS_fchmod [ArgumentTest::AnyBit { arg: 1, bits: SET_ID_BITS }] => RuleAction::Fail(libc::EPERM),
    SYS_fchmodat [ArgumentTest::AnyBit { arg: 2, bits: SET_ID_BITS }] => RuleAction::Fail(libc::EPERM),
    SYS_fchmodat2 [ArgumentTest::AnyBit { arg: 2, bits: SET_ID_BITS }] => RuleAction::Fail(libc::EPERM),
    SYS_openat [ArgumentTest::AnyBit { arg: 2, bits: CREATE_FLAGS }, ArgumentTest::AnyBit { arg: 3, bits: SET_ID_BITS }] => RuleAction::Fail(libc::EPERM),
    SYS_mknodat [ArgumentTest::AnyBit { arg: 2, bits: SET_ID_BITS }] => RuleAction::Fail(libc::EPERM),
    // A queue outlives its run and is charged to no one. Landlock forbids it too, where there is one.
    SYS_mq_open [ArgumentTest::AnyBit { arg: 1, bits: CREATE_FLAGS }] => RuleAction::Fail(libc::EACCES),
    // Its mode is in memory, which a filter cannot read. No libc depends on it.
    SYS_openat2 => RuleAction::Fail(libc::ENOSYS),
    // A socket path may belong to any process on the host: the supervisor checks who owns it and
    // makes the connection.
    SYS_connect => RuleAction::AskSupervisor,
];

/// Socket rules for a run with its own network namespace, or with the host's network.
const SOCKET_FAMILIES: &[SyscallRule] = rules![
    SYS_socket [ArgumentTest::NotAmong { arg: 0, mask: ALL_BITS, values: &[UNIX, INET, INET6, NETLINK] }] => REFUSE_AND_RECORD,
    // Pairs of another family would be a way around the rule above.
    SYS_socketpair [ArgumentTest::NotAmong { arg: 0, mask: ALL_BITS, values: &[UNIX] }] => RuleAction::Fail(libc::EOPNOTSUPP),
    // TCP only: other protocols load modules with a history of vulnerabilities, and some connect
    // without `connect`. Programs that try Multipath TCP first, as Go does when listening, take
    // this error to mean that the kernel lacks it and use TCP.
    SYS_socket [INTERNET, STREAM, ArgumentTest::NotAmong { arg: 2, mask: ALL_BITS, values: &[0, TCP] }] => RuleAction::Fail(libc::EPROTONOSUPPORT),
    // UDP, and ICMP echo requests if the host permits them to its users.
    SYS_socket [ArgumentTest::Among { arg: 0, mask: ALL_BITS, values: &[INET] }, DATAGRAM, ArgumentTest::NotAmong { arg: 2, mask: ALL_BITS, values: &[0, UDP, ICMP] }] => RuleAction::Fail(libc::EPROTONOSUPPORT),
    SYS_socket [ArgumentTest::Among { arg: 0, mask: ALL_BITS, values: &[INET6] }, DATAGRAM, ArgumentTest::NotAmong { arg: 2, mask: ALL_BITS, values: &[0, UDP, ICMP6] }] => RuleAction::Fail(libc::EPROTONOSUPPORT),
    // Raw packets, for which no process in the sandbox has the capability. `ping` tries this.
    SYS_socket [INTERNET, ArgumentTest::Among { arg: 1, mask: SOCKET_TYPE_MASK, values: &[RAW] }] => RuleAction::Fail(libc::EPERM),
    // SCTP, DCCP and the obsolete type of packet sockets.
    SYS_socket [INTERNET, ArgumentTest::NotAmong { arg: 1, mask: SOCKET_TYPE_MASK, values: &[libc::SOCK_STREAM as u32, libc::SOCK_DGRAM as u32, RAW] }] => RuleAction::Fail(libc::ESOCKTNOSUPPORT),
];

/// Socket rules for a run that shares the host's network namespace and may not use the network.
const SOCKET_FAMILIES_WITHOUT_NETWORK: &[SyscallRule] = rules![
    SYS_socket [ArgumentTest::NotAmong { arg: 0, mask: ALL_BITS, values: &[UNIX] }] => REFUSE_AND_RECORD,
    SYS_socketpair [ArgumentTest::NotAmong { arg: 0, mask: ALL_BITS, values: &[UNIX] }] => RuleAction::Fail(libc::EOPNOTSUPP),
];

/// Calls that affect other processes without a signal, for a run that can see processes outside.
/// Zero means the caller itself.
const OTHER_PROCESSES: &[SyscallRule] = rules![
    SYS_prlimit64 [ArgumentTest::NotAmong { arg: 0, mask: ALL_BITS, values: &[0] }] => RuleAction::Fail(libc::EPERM),
    SYS_setpriority [ArgumentTest::NotAmong { arg: 1, mask: ALL_BITS, values: &[0] }] => RuleAction::Fail(libc::EPERM),
    SYS_ioprio_set [ArgumentTest::NotAmong { arg: 1, mask: ALL_BITS, values: &[0] }] => RuleAction::Fail(libc::EPERM),
    SYS_sched_setscheduler [ArgumentTest::NotAmong { arg: 0, mask: ALL_BITS, values: &[0] }] => RuleAction::Fail(libc::EPERM),
    SYS_sched_setparam [ArgumentTest::NotAmong { arg: 0, mask: ALL_BITS, values: &[0] }] => RuleAction::Fail(libc::EPERM),
    SYS_sched_setattr [ArgumentTest::NotAmong { arg: 0, mask: ALL_BITS, values: &[0] }] => RuleAction::Fail(libc::EPERM),
    SYS_sched_setaffinity [ArgumentTest::NotAmong { arg: 0, mask: ALL_BITS, values: &[0] }] => RuleAction::Fail(libc::EPERM),
    SYS_migrate_pages => RuleAction::Fail(libc::EPERM),
    SYS_move_pages [ArgumentTest::NotAmong { arg: 0, mask: ALL_BITS, values: &[0] }] => RuleAction::Fail(libc::EPERM),
    SYS_process_madvise => RuleAction::Fail(libc::EPERM),
];

/// Calls that could disturb the first process of a run's pid namespace, which is ours and reports
/// the result of the run.
///
/// The kernel permits these calls between any two processes of the same user and checks nothing
/// else, so neither making the process non-dumpable nor Landlock prevents them. (Those two block
/// access to its memory, tracing and its files in /proc; the kernel itself drops signals to it.)
/// The first process has a single thread, so 1 is its only id. A call for all processes of a user
/// would include it, and no program needs that.
const FIRST_PROCESS: &[SyscallRule] = rules![
    SYS_prlimit64 [ArgumentTest::Among { arg: 0, mask: ALL_BITS, values: &[1] }] => RuleAction::Fail(libc::EPERM),
    SYS_setpriority [ArgumentTest::Among { arg: 1, mask: ALL_BITS, values: &[1] }] => RuleAction::Fail(libc::EPERM),
    SYS_setpriority [ArgumentTest::Among { arg: 0, mask: ALL_BITS, values: &[PRIO_USER] }] => RuleAction::Fail(libc::EPERM),
    SYS_ioprio_set [ArgumentTest::Among { arg: 1, mask: ALL_BITS, values: &[1] }] => RuleAction::Fail(libc::EPERM),
    SYS_ioprio_set [ArgumentTest::Among { arg: 0, mask: ALL_BITS, values: &[IOPRIO_WHO_USER] }] => RuleAction::Fail(libc::EPERM),
    SYS_sched_setscheduler [ArgumentTest::Among { arg: 0, mask: ALL_BITS, values: &[1] }] => RuleAction::Fail(libc::EPERM),
    SYS_sched_setparam [ArgumentTest::Among { arg: 0, mask: ALL_BITS, values: &[1] }] => RuleAction::Fail(libc::EPERM),
    SYS_sched_setattr [ArgumentTest::Among { arg: 0, mask: ALL_BITS, values: &[1] }] => RuleAction::Fail(libc::EPERM),
    SYS_sched_setaffinity [ArgumentTest::Among { arg: 0, mask: ALL_BITS, values: &[1] }] => RuleAction::Fail(libc::EPERM),
];

/// Rules for calls that exist only on this architecture.
#[cfg(target_arch = "x86_64")]
const OF_THIS_MACHINE: &[SyscallRule] = rules![
    SYS_chmod [ArgumentTest::AnyBit { arg: 1, bits: SET_ID_BITS }] => RuleAction::Fail(libc::EPERM),
    SYS_open [ArgumentTest::AnyBit { arg: 1, bits: CREATE_FLAGS }, ArgumentTest::AnyBit { arg: 2, bits: SET_ID_BITS }] => RuleAction::Fail(libc::EPERM),
    SYS_creat [ArgumentTest::AnyBit { arg: 1, bits: SET_ID_BITS }] => RuleAction::Fail(libc::EPERM),
    SYS_mknod [ArgumentTest::AnyBit { arg: 1, bits: SET_ID_BITS }] => RuleAction::Fail(libc::EPERM),
    SYS_iopl => REFUSE_AND_RECORD,
    SYS_ioperm => REFUSE_AND_RECORD,
    SYS_uselib => RuleAction::Fail(libc::ENOSYS),
    SYS_ustat => RuleAction::Fail(libc::ENOSYS),
];
#[cfg(not(target_arch = "x86_64"))]
const OF_THIS_MACHINE: &[SyscallRule] = &[];

/// The `AUDIT_ARCH_…` value of native calls. A call made through another ABI kills the process.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// Program starts, which are judged by rules instead of being refused.
const EXECS: &[SyscallRule] = rules![
    SYS_execve => RuleAction::AskSupervisor,
    SYS_execveat => RuleAction::AskSupervisor,
];

/// Renames, in a run that needs them intercepted: the supervisor performs one that would change
/// nothing, and lets the caller make every other.
const RENAMES: &[SyscallRule] = rules![
    SYS_renameat => RuleAction::AskSupervisor,
    SYS_renameat2 => RuleAction::AskSupervisor,
];

#[cfg(target_arch = "x86_64")]
const RENAMES_OF_THIS_MACHINE: &[SyscallRule] = rules![SYS_rename => RuleAction::AskSupervisor];
#[cfg(not(target_arch = "x86_64"))]
const RENAMES_OF_THIS_MACHINE: &[SyscallRule] = &[];

/// Calls that a nested sandbox is built with. They can add mounts and remove these again in the
/// sandbox's own namespaces, but the kernel locks the mounts that existed before. The newer mount
/// calls stay closed, and so does entering existing namespaces.
const NESTING_CALLS: &[c_long] =
    &[libc::SYS_clone, libc::SYS_unshare, libc::SYS_mount, libc::SYS_umount2, libc::SYS_pivot_root];

/// Replacements for the rules on namespaces: the supervisor checks the nesting depth. Without a new
/// user namespace no process in the sandbox may create any other kind.
const NESTED_RULES: &[SyscallRule] = rules![
    SYS_clone [ArgumentTest::AnyBit { arg: 0, bits: NEW_USER_NAMESPACE | NEVER_NESTED & !NEW_TIME_NAMESPACE }] => RuleAction::AskSupervisor,
    SYS_unshare [ArgumentTest::AnyBit { arg: 0, bits: NEW_USER_NAMESPACE | NEVER_NESTED }] => RuleAction::AskSupervisor,
];

/// Returns whether a call matched by these rules creates none of the namespaces that no nested
/// sandbox needs.
pub fn is_nesting_call(call: c_long, flags: u64) -> bool {
    NESTED_RULES.iter().any(|rule| rule.call == call) && flags & u64::from(NEVER_NESTED) == 0
}

/// Properties of a run that select its rules.
#[derive(Debug, Clone, Copy, Default)]
pub struct FilterOptions {
    pub network: NetworkAccess,
    /// It has its own pid and network namespaces.
    pub own_namespaces: bool,
    /// Its program starts are judged by rules.
    pub judges_execs: bool,
    /// It may build a sandbox of its own.
    pub may_nest: bool,
    /// Its renames are intercepted.
    pub intercepts_renames: bool,
}

/// Returns the rules for a run.
pub fn select_rules(options: FilterOptions) -> impl Iterator<Item = &'static SyscallRule> {
    let FilterOptions {
        network,
        own_namespaces,
        judges_execs,
        may_nest,
        intercepts_renames: renames,
    } = options;
    let socket_rules = match (network, own_namespaces) {
        (NetworkAccess::All, _) | (_, true) => SOCKET_FAMILIES,
        (_, false) => SOCKET_FAMILIES_WITHOUT_NETWORK,
    };
    let process_rules: &[SyscallRule] =
        if own_namespaces { FIRST_PROCESS } else { OTHER_PROCESSES };
    let exec_rules: &[SyscallRule] = if judges_execs { EXECS } else { &[] };
    let renames: [&[SyscallRule]; 2] =
        if renames { [RENAMES, RENAMES_OF_THIS_MACHINE] } else { [&[], &[]] };
    let is_kept = move |rule: &&SyscallRule| !(may_nest && NESTING_CALLS.contains(&rule.call));
    let nesting_rules: &[SyscallRule] = if may_nest { NESTED_RULES } else { &[] };
    RULES
        .iter()
        .filter(is_kept)
        .chain(nesting_rules)
        .chain(socket_rules)
        .chain(process_rules)
        .chain(OF_THIS_MACHINE)
        .chain(exec_rules)
        .chain(renames.into_iter().flatten())
}

/// Returns the name of a call that has a rule.
pub fn syscall_name(call: c_long) -> Option<&'static str> {
    RULES
        .iter()
        .chain(SOCKET_FAMILIES)
        .chain(OF_THIS_MACHINE)
        .find(|rule| rule.call == call)
        .map(|rule| rule.name)
}

// Offsets into `struct seccomp_data`.
const NUMBER_OFFSET: u32 = 0;
const ARCH_OFFSET: u32 = 4;
const ARGS_OFFSET: u32 = 16;

/// Compiles the filter that the kernel runs at every system call.
///
/// A binary search over the call number keeps the cost to a few comparisons. No argument is read
/// before that search, so the kernel can cache which calls are always allowed and skips the filter
/// for them.
pub fn compile_filter(rules: impl Iterator<Item = &'static SyscallRule>) -> Vec<sock_filter> {
    let mut program = vec![
        load_word(ARCH_OFFSET),
        jump_if(libc::BPF_JEQ, ARCHITECTURE, 1, 0),
        return_action(libc::SECCOMP_RET_KILL_PROCESS),
        load_word(NUMBER_OFFSET),
    ];
    program.extend(compile_search(&build_segments(rules)));
    program
}

/// A range of call numbers, up to the start of the next segment, that have the same fate.
struct CallRange {
    first: u32,
    handling: CallHandling,
}

/// How the filter treats a call.
enum CallHandling {
    Allowed,
    Unknown,
    /// The first matching rule decides; if none matches, the call is allowed.
    Ruled(Vec<&'static SyscallRule>),
}

/// Divides all call numbers into segments, in ascending order.
fn build_segments(rules: impl Iterator<Item = &'static SyscallRule>) -> Vec<CallRange> {
    let mut rules_by_call: BTreeMap<u32, Vec<&'static SyscallRule>> = BTreeMap::new();
    for rule in rules {
        rules_by_call.entry(rule.call as u32).or_default().push(rule);
    }
    let mut segments: Vec<CallRange> = Vec::new();
    // One number past the end represents all higher ones as unknown. On x86-64 these include the
    // x32 variants of the same calls.
    for number in 0..=known_calls::last_known() + 1 {
        let handling = match rules_by_call.remove(&number) {
            Some(rules) => CallHandling::Ruled(rules),
            None if known_calls::is_known(number) => CallHandling::Allowed,
            None => CallHandling::Unknown,
        };
        let previous = segments.last().map(|segment| &segment.handling);
        let extends_previous = matches!(
            (previous, &handling),
            (Some(CallHandling::Allowed), CallHandling::Allowed)
                | (Some(CallHandling::Unknown), CallHandling::Unknown)
        );
        if !extends_previous {
            segments.push(CallRange { first: number, handling });
        }
    }
    segments
}

/// Compiles a binary search for the segment of the loaded number, followed by its action.
fn compile_search(segments: &[CallRange]) -> Vec<sock_filter> {
    let (lower_segments, upper_segments) = match segments {
        [] => return vec![return_action(NO_SUCH_CALL)],
        [segment] => return segment.handling.compile(),
        _ => segments.split_at(segments.len() / 2),
    };
    let (lower, upper) = (compile_search(lower_segments), compile_search(upper_segments));
    let middle = upper_segments[0].first;
    let mut program = match u8::try_from(lower.len()) {
        Ok(distance) => vec![jump_if(libc::BPF_JGE, middle, distance, 0)],
        // Too far for a conditional jump.
        Err(_) => vec![jump_if(libc::BPF_JGE, middle, 0, 1), jump_over(lower.len())],
    };
    program.extend(lower);
    program.extend(upper);
    program
}

/// Error for an unknown call, as from a kernel that does not have it.
const NO_SUCH_CALL: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

impl CallHandling {
    fn compile(&self) -> Vec<sock_filter> {
        match self {
            CallHandling::Allowed => vec![return_action(libc::SECCOMP_RET_ALLOW)],
            CallHandling::Unknown => vec![return_action(NO_SUCH_CALL)],
            CallHandling::Ruled(rules) => {
                let blocks = rules.iter().flat_map(|rule| compile_rule(rule));
                blocks.chain([return_action(libc::SECCOMP_RET_ALLOW)]).collect()
            }
        }
    }
}

/// Compiles one rule; a call that does not match jumps behind it.
fn compile_rule(rule: &SyscallRule) -> Vec<sock_filter> {
    let mut block = vec![match rule.then {
        RuleAction::Fail(errno) => return_action(libc::SECCOMP_RET_ERRNO | errno as u32),
        RuleAction::AskSupervisor => return_action(libc::SECCOMP_RET_USER_NOTIF),
    }];
    for test in rule.tests.iter().rev() {
        // Built from the end, so that the distance to the end is known.
        let mut piece = test.compile_test(block.len());
        piece.append(&mut block);
        block = piece;
    }
    block
}

impl ArgumentTest {
    /// Compiles the test. It falls through on a match, otherwise it jumps over the `after`
    /// instructions that follow.
    fn compile_test(&self, after: usize) -> Vec<sock_filter> {
        match *self {
            ArgumentTest::AnyBit { arg, bits } => {
                vec![
                    load_word(ARGS_OFFSET + 8 * arg),
                    jump_if(libc::BPF_JSET, bits, 0, jump_distance(after)),
                ]
            }
            ArgumentTest::Among { arg, mask, values } => {
                let mut instructions = vec![load_word(ARGS_OFFSET + 8 * arg), mask_value(mask)];
                for (index, value) in values.iter().enumerate() {
                    let remaining = values.len() - index - 1;
                    let miss_distance = if remaining == 0 { jump_distance(after) } else { 0 };
                    instructions.push(jump_if(
                        libc::BPF_JEQ,
                        *value,
                        jump_distance(remaining),
                        miss_distance,
                    ));
                }
                instructions
            }
            ArgumentTest::NotAmong { arg, mask, values } => {
                let mut instructions = vec![load_word(ARGS_OFFSET + 8 * arg), mask_value(mask)];
                for (index, value) in values.iter().enumerate() {
                    let remaining = values.len() - index - 1;
                    instructions.push(jump_if(
                        libc::BPF_JEQ,
                        *value,
                        jump_distance(remaining + after),
                        0,
                    ));
                }
                instructions
            }
        }
    }
}

/// Converts a jump distance. Blocks are short; a jump that did not fit would make the kernel reject
/// the filter, and the run would not start.
fn jump_distance(instructions: usize) -> u8 {
    u8::try_from(instructions).unwrap_or(u8::MAX)
}

fn load_word(offset: u32) -> sock_filter {
    make_instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset)
}

fn mask_value(mask: u32) -> sock_filter {
    make_instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0, mask)
}

fn jump_if(comparison: u32, value: u32, if_true: u8, if_false: u8) -> sock_filter {
    make_instruction(libc::BPF_JMP | comparison | libc::BPF_K, if_true, if_false, value)
}

fn jump_over(instructions: usize) -> sock_filter {
    // The kernel limits a filter to 4096 instructions.
    make_instruction(libc::BPF_JMP | libc::BPF_JA, 0, 0, instructions as u32)
}

fn return_action(action: u32) -> sock_filter {
    make_instruction(libc::BPF_RET | libc::BPF_K, 0, 0, action)
}

fn make_instruction(code: u32, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}

#[cfg(test)]
mod tests;
