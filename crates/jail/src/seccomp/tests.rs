//! Runs the compiled filters in a small interpreter, as the kernel would, on made-up calls.

use super::*;

/// On x86-64, the same calls under other numbers.
const X32: u32 = 0x4000_0000;

fn run(program: &[sock_filter], arch: u32, call: c_long, args: [u64; 6]) -> u32 {
    trace(program, arch, call, args).action
}

/// Result of running a filter.
struct Trace {
    action: u32,
    instructions: usize,
    /// The filter read an argument.
    looked: bool,
}

fn trace(program: &[sock_filter], arch: u32, call: c_long, args: [u64; 6]) -> Trace {
    let word = |offset: u32| -> u32 {
        match offset {
            NUMBER_OFFSET => call as u32,
            ARCH_OFFSET => arch,
            _ => args[((offset - ARGS_OFFSET) / 8) as usize] as u32,
        }
    };
    let (mut at, mut value) = (0_usize, 0_u32);
    let (mut instructions, mut looked) = (0, false);
    loop {
        let here = program[at];
        at += 1;
        instructions += 1;
        let code = u32::from(here.code);
        let branch = |yes: bool| usize::from(if yes { here.jt } else { here.jf });
        match code & 7 {
            libc::BPF_LD => {
                value = word(here.k);
                looked |= here.k >= ARGS_OFFSET;
            }
            libc::BPF_ALU => value &= here.k,
            libc::BPF_RET => return Trace { action: here.k, instructions, looked },
            libc::BPF_JMP if code & 0xf0 == libc::BPF_JA => at += here.k as usize,
            libc::BPF_JMP if code & 0xf0 == libc::BPF_JEQ => at += branch(value == here.k),
            libc::BPF_JMP if code & 0xf0 == libc::BPF_JGE => at += branch(value >= here.k),
            libc::BPF_JMP if code & 0xf0 == libc::BPF_JSET => at += branch(value & here.k != 0),
            other => panic!("{other}"),
        }
    }
}

const ASK: u32 = libc::SECCOMP_RET_USER_NOTIF;
const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;

fn fails(errno: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | errno as u32
}

#[test]
fn every_rule_fits_what_it_is_about_and_nothing_else() {
    let own = compile_filter(select_rules(FilterOptions {
        network: NetworkAccess::Off,
        own_namespaces: true,
        ..FilterOptions::default()
    }));
    let none = compile_filter(select_rules(FilterOptions {
        network: NetworkAccess::Off,
        own_namespaces: false,
        ..FilterOptions::default()
    }));
    let socket = |program: &[sock_filter], family: i32, kind: i32, protocol: i32| {
        run(
            program,
            ARCHITECTURE,
            libc::SYS_socket,
            [family as u64, kind as u64, protocol as u64, 0, 0, 0],
        )
    };
    let first = |call, arg: u64| run(&own, ARCHITECTURE, call, [arg, 0, 0, 0, 0, 0]);
    assert_eq!(first(libc::SYS_read, 0), ALLOW);
    assert_eq!(first(libc::SYS_execve, 0), ALLOW);
    assert_eq!(first(libc::SYS_mount, 0), ASK);
    assert_eq!(first(libc::SYS_clone, libc::SIGCHLD as u64), ALLOW);
    for flag in [
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWNS,
        libc::CLONE_NEWNET,
        libc::CLONE_NEWCGROUP,
        libc::CLONE_NEWPID,
    ] {
        assert_eq!(first(libc::SYS_clone, (flag | libc::SIGCHLD) as u64), ASK);
        assert_eq!(first(libc::SYS_unshare, flag as u64), ASK);
    }
    assert_eq!(first(libc::SYS_unshare, libc::CLONE_FILES as u64), ALLOW);
    assert_eq!(first(libc::SYS_unshare, 0x80), ASK);
    assert_eq!(first(libc::SYS_clone3, 0), fails(libc::ENOSYS));
    assert_eq!(first(libc::SYS_io_uring_setup, 0), fails(libc::ENOSYS));
    // Only the low half matters, whatever is in the high half.
    for high in [0, 1_u64 << 32, 0xffff_ffff_0000_0000] {
        let ioctl = |number: u32| {
            run(&own, ARCHITECTURE, libc::SYS_ioctl, [0, high | u64::from(number), 0, 0, 0, 0])
        };
        assert_eq!(
            (ioctl(TIOCSTI), ioctl(TIOCLINUX), ioctl(TIOCSETD), ioctl(0x5413)),
            (ASK, ASK, ASK, ALLOW)
        );
    }
    for program in [&own, &none] {
        assert_eq!(
            socket(program, libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0),
            ALLOW
        );
        assert_eq!(socket(program, libc::AF_UNIX, libc::SOCK_SEQPACKET, 0), ALLOW);
        assert_eq!(socket(program, libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK, 0), ASK);
        assert_eq!(socket(program, libc::AF_UNIX, libc::SOCK_RAW, 0), ASK);
        for family in
            [libc::AF_VSOCK, libc::AF_PACKET, libc::AF_ALG, libc::AF_BLUETOOTH, libc::AF_CAN]
        {
            assert_eq!(socket(program, family, libc::SOCK_STREAM, 0), ASK);
        }
    }
    assert_eq!(socket(&own, libc::AF_INET, libc::SOCK_DGRAM, 0), ALLOW);
    assert_eq!(socket(&own, libc::AF_INET6, libc::SOCK_STREAM, 0), ALLOW);
    assert_eq!(socket(&own, libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE), ALLOW);
    assert_eq!(socket(&own, libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_AUDIT), ASK);
    assert_eq!(socket(&none, libc::AF_INET, libc::SOCK_STREAM, 0), ASK);
    assert_eq!(first(libc::SYS_connect, 3), ASK);
    let sent =
        |flags: i32| run(&own, ARCHITECTURE, libc::SYS_sendto, [3, 0, 0, flags as u64, 0, 0]);
    assert_eq!(
        (sent(libc::MSG_FASTOPEN | libc::MSG_NOSIGNAL), sent(libc::MSG_NOSIGNAL)),
        (fails(libc::EOPNOTSUPP), ALLOW)
    );
}

/// Locking, duplicating and resizing work as usual; only what blocks others or escapes all limits
/// is refused.
#[test]
fn leases_and_directory_notices_are_refused_and_other_controls_are_not() {
    const F_OFD_SETLKW: libc::c_int = 38;
    const F_ADD_SEALS: libc::c_int = 1033;
    let program = compile_filter(select_rules(FilterOptions {
        own_namespaces: true,
        ..FilterOptions::default()
    }));
    let control =
        |command: u64| run(&program, ARCHITECTURE, libc::SYS_fcntl, [3, command, 0, 0, 0, 0]);
    for high in [0, 1_u64 << 32] {
        let command = |number: libc::c_int| control(high | number as u64);
        assert_eq!(
            (command(libc::F_SETLEASE), command(1040)),
            (fails(libc::EACCES), fails(libc::EACCES))
        );
        assert_eq!(command(libc::F_NOTIFY), fails(libc::EINVAL));
        for usual in [
            libc::F_DUPFD_CLOEXEC,
            libc::F_SETFL,
            libc::F_SETLK,
            F_OFD_SETLKW,
            libc::F_SETOWN,
            libc::F_SETPIPE_SZ,
            F_ADD_SEALS,
            libc::F_GETLEASE,
        ] {
            assert_eq!(command(usual), ALLOW, "{usual}");
        }
    }
}

/// Returns every filter that can be built.
fn programs() -> Vec<Vec<sock_filter>> {
    let networks = [NetworkAccess::Off, NetworkAccess::Proxied, NetworkAccess::All];
    let flags = (0..16).map(|bits| (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0, bits & 8 != 0));
    let cases = networks.into_iter().flat_map(|network| {
        flags.clone().map(move |(namespaces, watched, nested, renames)| FilterOptions {
            network,
            own_namespaces: namespaces,
            judges_execs: watched,
            may_nest: nested,
            intercepts_renames: renames,
        })
    });
    cases.map(|case| compile_filter(select_rules(case))).collect()
}

#[test]
fn a_call_that_is_not_known_does_not_exist() {
    for program in programs() {
        let answer = |number: u32| run(&program, ARCHITECTURE, number.into(), [0; 6]);
        for (number, name, reason) in known_calls::LEFT_OUT {
            assert_eq!(answer(*number), fails(libc::ENOSYS), "{name}");
            assert!(!reason.is_empty(), "{name}");
        }
        for number in (470..1024).chain([337, 423, X32 - 1, X32, X32 | 41, u32::MAX]) {
            assert_eq!(answer(number), fails(libc::ENOSYS), "{number}");
        }
    }
    // Every number is decided: none is missing between the first of the later calls and the last
    // one left out.
    for number in 424..=469 {
        let is_left_out = known_calls::LEFT_OUT.iter().any(|(other, ..)| *other == number);
        assert!(known_calls::is_known(number) != is_left_out, "{number}");
    }
    // A rule for an unknown call would make that call exist.
    for rule in RULES
        .iter()
        .chain(SOCKET_FAMILIES)
        .chain(OTHER_PROCESSES)
        .chain(FIRST_PROCESS)
        .chain(OF_THIS_MACHINE)
        .chain(EXECS)
    {
        assert!(known_calls::is_known(rule.call as u32), "{}", rule.name);
    }
}

/// Calls of ordinary programs, including the newest ones.
#[test]
fn what_programs_use_is_known_and_not_refused() {
    for program in programs() {
        let later = [
            424, 434, 436, 439, 441, 444, 445, 446, 447, 448, 449, 450, 452, 453, 454, 455, 456,
            462,
        ];
        let usual =
            [libc::SYS_read, libc::SYS_statx, libc::SYS_rseq, libc::SYS_getrandom, libc::SYS_futex];
        for number in later.into_iter().chain(usual) {
            assert_eq!(run(&program, ARCHITECTURE, number, [0; 6]), ALLOW, "{number}");
        }
    }
}

#[test]
fn internet_sockets_are_of_a_few_protocols() {
    for case in [
        FilterOptions { own_namespaces: true, ..FilterOptions::default() },
        FilterOptions {
            network: NetworkAccess::All,
            own_namespaces: true,
            ..FilterOptions::default()
        },
        FilterOptions { network: NetworkAccess::All, ..FilterOptions::default() },
    ] {
        let program = compile_filter(select_rules(case));
        let socket = |family: i32, kind: i32, protocol: i32| {
            let args = [family as u64, kind as u64 | 7 << 32, protocol as u64, 0, 0, 0];
            run(&program, ARCHITECTURE, libc::SYS_socket, args)
        };
        let (four, six) = (libc::AF_INET, libc::AF_INET6);
        let (stream, datagram) =
            (libc::SOCK_STREAM | libc::SOCK_CLOEXEC, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK);
        for family in [four, six] {
            for protocol in [0, libc::IPPROTO_TCP] {
                assert_eq!(socket(family, stream, protocol), ALLOW, "{protocol}");
            }
            for protocol in [0, libc::IPPROTO_UDP] {
                assert_eq!(socket(family, datagram, protocol), ALLOW, "{protocol}");
            }
            for protocol in [
                libc::IPPROTO_MPTCP,
                libc::IPPROTO_SCTP,
                libc::IPPROTO_UDP,
                libc::IPPROTO_RAW,
                256,
                -1,
            ] {
                assert_eq!(
                    socket(family, stream, protocol),
                    fails(libc::EPROTONOSUPPORT),
                    "{protocol}"
                );
            }
            for protocol in
                [libc::IPPROTO_UDPLITE, libc::IPPROTO_DCCP, libc::IPPROTO_TCP, 115, 256, -1]
            {
                assert_eq!(
                    socket(family, datagram, protocol),
                    fails(libc::EPROTONOSUPPORT),
                    "{protocol}"
                );
            }
            for protocol in [0, libc::IPPROTO_RAW, libc::IPPROTO_ICMP] {
                assert_eq!(
                    socket(family, libc::SOCK_RAW, protocol),
                    fails(libc::EPERM),
                    "{protocol}"
                );
            }
            for kind in [libc::SOCK_SEQPACKET, libc::SOCK_RDM, libc::SOCK_DCCP, 10, 0] {
                assert_eq!(socket(family, kind, 0), fails(libc::ESOCKTNOSUPPORT), "{kind}");
            }
        }
        assert_eq!(socket(four, datagram, libc::IPPROTO_ICMP), ALLOW);
        assert_eq!(socket(six, datagram, libc::IPPROTO_ICMPV6), ALLOW);
        assert_eq!(socket(six, datagram, libc::IPPROTO_ICMP), fails(libc::EPROTONOSUPPORT));
        assert_eq!(socket(four, datagram, libc::IPPROTO_ICMPV6), fails(libc::EPROTONOSUPPORT));
    }
}

/// A socket pair is a way to a family, too.
#[test]
fn pairs_are_of_unix_sockets_alone() {
    for program in programs() {
        let pair = |family: i32| {
            run(
                &program,
                ARCHITECTURE,
                libc::SYS_socketpair,
                [family as u64, libc::SOCK_STREAM as u64, 0, 0, 0, 0],
            )
        };
        assert_eq!(pair(libc::AF_UNIX), ALLOW);
        for family in [libc::AF_TIPC, libc::AF_INET, libc::AF_NETLINK, libc::AF_VSOCK] {
            assert_eq!(pair(family), fails(libc::EOPNOTSUPP), "{family}");
        }
    }
}

/// The kernel caches calls that are allowed without reading an argument and does not run the filter
/// for them. For all other calls the length of the filter determines the cost.
#[test]
fn no_call_costs_many_instructions() {
    for program in programs() {
        for number in 0..1024 {
            let took = trace(&program, ARCHITECTURE, number, [1; 6]);
            let is_ruled = RULES
                .iter()
                .chain(SOCKET_FAMILIES)
                .chain(OTHER_PROCESSES)
                .chain(FIRST_PROCESS)
                .chain(OF_THIS_MACHINE);
            let is_ruled =
                is_ruled.chain(EXECS).any(|rule| rule.call == number && !rule.tests.is_empty());
            assert!(
                took.instructions <= if is_ruled { 64 } else { 24 },
                "{number} {}",
                took.instructions
            );
            assert!(is_ruled || !took.looked, "{number}");
        }
    }
}

/// In a pid namespace, the first process is refused by number and by user, and all other processes
/// are permitted.
#[test]
fn the_first_process_is_refused_by_its_number() {
    let case = FilterOptions { own_namespaces: true, ..FilterOptions::default() };
    for program in [
        compile_filter(select_rules(case)),
        compile_filter(select_rules(FilterOptions { may_nest: true, judges_execs: true, ..case })),
    ] {
        let call = |call, args: [u64; 2]| {
            run(&program, ARCHITECTURE, call, [args[0], args[1], 0, 0, 0, 0])
        };
        let by_number = [
            libc::SYS_prlimit64,
            libc::SYS_sched_setscheduler,
            libc::SYS_sched_setparam,
            libc::SYS_sched_setattr,
            libc::SYS_sched_setaffinity,
        ];
        for number in by_number {
            for first in [1, 1 | 7 << 32] {
                assert_eq!(call(number, [first, 0]), fails(libc::EPERM), "{number}");
            }
            for other in [0, 2, 1 << 32, 4_194_304] {
                assert_eq!(call(number, [other, 0]), ALLOW, "{number} {other}");
            }
        }
        for (number, process, group, user) in
            [(libc::SYS_setpriority, 0, 1, 2), (libc::SYS_ioprio_set, 1, 2, 3)]
        {
            assert_eq!(call(number, [process, 1]), fails(libc::EPERM));
            assert_eq!(call(number, [user, 0]), fails(libc::EPERM));
            assert_eq!(call(number, [user, 1000]), fails(libc::EPERM));
            assert_eq!(
                (call(number, [process, 0]), call(number, [process, 7]), call(number, [group, 7])),
                (ALLOW, ALLOW, ALLOW)
            );
        }
    }
}

#[test]
fn another_architecture_is_killed_and_x32_does_not_exist() {
    let program = compile_filter(select_rules(FilterOptions {
        network: NetworkAccess::All,
        own_namespaces: false,
        ..FilterOptions::default()
    }));
    assert_eq!(run(&program, 0x4000_0003, libc::SYS_read, [0; 6]), libc::SECCOMP_RET_KILL_PROCESS);
    assert_eq!(
        run(&program, ARCHITECTURE, libc::SYS_read | c_long::from(X32), [0; 6]),
        fails(libc::ENOSYS)
    );
}

#[test]
fn the_program_fits_the_kernel() {
    for program in programs() {
        assert!(program.len() < 4096);
        // Every jump ends at an instruction, as the kernel requires.
        for (at, instruction) in program.iter().enumerate() {
            let is_jump = u32::from(instruction.code) & 7 == libc::BPF_JMP;
            let far = instruction.k.min(program.len() as u32) as usize;
            let far =
                if is_jump && u32::from(instruction.code) & 0xf0 == libc::BPF_JA { far } else { 0 };
            let near = usize::from(instruction.jt.max(instruction.jf));
            assert!(!is_jump || at + 1 + near.max(far) < program.len(), "{at}");
        }
    }
    assert_eq!(syscall_name(libc::SYS_mount), Some("mount"));
    assert_eq!(syscall_name(libc::SYS_read), None);
}

/// A nested sandbox needs five more calls and gets no sixth.
#[test]
fn a_nested_sandbox_is_let_make_namespaces_and_mounts_and_nothing_else() {
    let case = FilterOptions { own_namespaces: true, ..FilterOptions::default() };
    let (strict, nested) = (
        compile_filter(select_rules(case)),
        compile_filter(select_rules(FilterOptions { may_nest: true, ..case })),
    );
    let unshare = |bits: u64| (libc::SYS_unshare, [bits, 0, 0, 0, 0, 0]);
    let others = u64::from(NEW_NAMESPACE & !NEW_USER_NAMESPACE & !NEVER_NESTED);
    for (call, args) in [
        unshare(others),
        (libc::SYS_clone, [others, 0, 0, 0, 0, 0]),
        (libc::SYS_mount, [0; 6]),
        (libc::SYS_umount2, [0; 6]),
        (libc::SYS_pivot_root, [0; 6]),
    ] {
        assert_eq!(run(&strict, ARCHITECTURE, call, args), libc::SECCOMP_RET_USER_NOTIF, "{call}");
        assert_eq!(run(&nested, ARCHITECTURE, call, args), libc::SECCOMP_RET_ALLOW, "{call}");
    }
    // The supervisor checks the depth.
    for (call, args) in [
        unshare(u64::from(NEW_USER_NAMESPACE)),
        (libc::SYS_clone, [u64::from(NEW_USER_NAMESPACE) | 17, 0, 0, 0, 0, 0]),
    ] {
        assert_eq!(run(&nested, ARCHITECTURE, call, args), libc::SECCOMP_RET_USER_NOTIF, "{call}");
    }
    // These are refused always, alone or with others, whatever the depth.
    for bits in [0x0200_0000, 0x0400_0000] {
        for call in [libc::SYS_unshare, libc::SYS_clone] {
            for bits in [bits, bits | u64::from(NEW_USER_NAMESPACE)] {
                assert_eq!(
                    run(&nested, ARCHITECTURE, call, [bits, 0, 0, 0, 0, 0]),
                    libc::SECCOMP_RET_USER_NOTIF
                );
                assert!(!is_nesting_call(call, bits), "{call} {bits:x}");
            }
        }
    }
    let (time, both) =
        (u64::from(NEW_TIME_NAMESPACE), u64::from(NEW_TIME_NAMESPACE | NEW_USER_NAMESPACE));
    assert_eq!(
        run(&nested, ARCHITECTURE, libc::SYS_unshare, [time, 0, 0, 0, 0, 0]),
        libc::SECCOMP_RET_USER_NOTIF
    );
    assert!(
        !is_nesting_call(libc::SYS_unshare, both)
            && is_nesting_call(libc::SYS_unshare, u64::from(NEW_USER_NAMESPACE))
    );
    for rule in
        RULES.iter().filter(|rule| rule.tests.is_empty() && !NESTING_CALLS.contains(&rule.call))
    {
        assert_ne!(
            run(&nested, ARCHITECTURE, rule.call, [0; 6]),
            libc::SECCOMP_RET_ALLOW,
            "{}",
            rule.name
        );
    }
}
