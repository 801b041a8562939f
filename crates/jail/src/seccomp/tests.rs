//! The program is run here as the kernel runs it, on made-up calls.

use super::*;

fn run(program: &[sock_filter], arch: u32, call: c_long, args: [u64; 6]) -> u32 {
    let word = |offset: u32| -> u32 {
        match offset {
            NUMBER => call as u32,
            ARCH => arch,
            _ => args[((offset - ARGS) / 8) as usize] as u32,
        }
    };
    let (mut at, mut value) = (0_usize, 0_u32);
    loop {
        let here = program[at];
        at += 1;
        let code = u32::from(here.code);
        let branch = |yes: bool| usize::from(if yes { here.jt } else { here.jf });
        match code & 7 {
            libc::BPF_LD => value = word(here.k),
            libc::BPF_ALU => value &= here.k,
            libc::BPF_RET => return here.k,
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
    let own = program(rules(Case { network: Network::Off, namespaces: true, ..Case::default() }));
    let none = program(rules(Case { network: Network::Off, namespaces: false, ..Case::default() }));
    let socket = |program: &[sock_filter], family: i32, kind: i32, protocol: i32| {
        run(program, ARCHITECTURE, libc::SYS_socket, [family as u64, kind as u64, protocol as u64, 0, 0, 0])
    };
    let first = |call, arg: u64| run(&own, ARCHITECTURE, call, [arg, 0, 0, 0, 0, 0]);
    assert_eq!(first(libc::SYS_read, 0), ALLOW);
    assert_eq!(first(libc::SYS_execve, 0), ALLOW);
    assert_eq!(first(libc::SYS_mount, 0), ASK);
    assert_eq!(first(libc::SYS_clone, libc::SIGCHLD as u64), ALLOW);
    for flag in [libc::CLONE_NEWUSER, libc::CLONE_NEWNS, libc::CLONE_NEWNET, libc::CLONE_NEWCGROUP, libc::CLONE_NEWPID]
    {
        assert_eq!(first(libc::SYS_clone, (flag | libc::SIGCHLD) as u64), ASK);
        assert_eq!(first(libc::SYS_unshare, flag as u64), ASK);
    }
    assert_eq!(first(libc::SYS_unshare, libc::CLONE_FILES as u64), ALLOW);
    assert_eq!(first(libc::SYS_unshare, 0x80), ASK);
    assert_eq!(first(libc::SYS_clone3, 0), fails(libc::ENOSYS));
    assert_eq!(first(libc::SYS_io_uring_setup, 0), fails(libc::ENOSYS));
    // Only the low half counts, whatever stands in the high one.
    for high in [0, 1_u64 << 32, 0xffff_ffff_0000_0000] {
        let ioctl = |number: u32| run(&own, ARCHITECTURE, libc::SYS_ioctl, [0, high | u64::from(number), 0, 0, 0, 0]);
        assert_eq!((ioctl(TIOCSTI), ioctl(TIOCLINUX), ioctl(TIOCSETD), ioctl(0x5413)), (ASK, ASK, ASK, ALLOW));
    }
    for program in [&own, &none] {
        assert_eq!(socket(program, libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0), ALLOW);
        assert_eq!(socket(program, libc::AF_UNIX, libc::SOCK_SEQPACKET, 0), ALLOW);
        assert_eq!(socket(program, libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK, 0), ASK);
        assert_eq!(socket(program, libc::AF_UNIX, libc::SOCK_RAW, 0), ASK);
        for family in [libc::AF_VSOCK, libc::AF_PACKET, libc::AF_ALG, libc::AF_BLUETOOTH, libc::AF_CAN] {
            assert_eq!(socket(program, family, libc::SOCK_STREAM, 0), ASK);
        }
    }
    assert_eq!(socket(&own, libc::AF_INET, libc::SOCK_DGRAM, 0), ALLOW);
    assert_eq!(socket(&own, libc::AF_INET6, libc::SOCK_STREAM, 0), ALLOW);
    assert_eq!(socket(&own, libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE), ALLOW);
    assert_eq!(socket(&own, libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_AUDIT), ASK);
    assert_eq!(socket(&none, libc::AF_INET, libc::SOCK_STREAM, 0), ASK);
    assert_eq!(first(libc::SYS_connect, 3), ASK);
    let sent = |flags: i32| run(&own, ARCHITECTURE, libc::SYS_sendto, [3, 0, 0, flags as u64, 0, 0]);
    assert_eq!(
        (sent(libc::MSG_FASTOPEN | libc::MSG_NOSIGNAL), sent(libc::MSG_NOSIGNAL)),
        (fails(libc::EOPNOTSUPP), ALLOW)
    );
}

/// Programs lock, duplicate and resize as usual; only what keeps others waiting or counts nowhere is refused.
#[test]
fn leases_and_directory_notices_are_refused_and_other_controls_are_not() {
    const F_OFD_SETLKW: libc::c_int = 38;
    const F_ADD_SEALS: libc::c_int = 1033;
    let program = program(rules(Case { namespaces: true, ..Case::default() }));
    let control = |command: u64| run(&program, ARCHITECTURE, libc::SYS_fcntl, [3, command, 0, 0, 0, 0]);
    for high in [0, 1_u64 << 32] {
        let command = |number: libc::c_int| control(high | number as u64);
        assert_eq!((command(libc::F_SETLEASE), command(1040)), (fails(libc::EACCES), fails(libc::EACCES)));
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

/// Where a run has a pid namespace, its first process is refused by number and by user, and every other is open.
#[test]
fn the_first_process_is_refused_by_its_number() {
    let case = Case { namespaces: true, ..Case::default() };
    for program in [program(rules(case)), program(rules(Case { nested: true, watched: true, ..case }))] {
        let call = |call, args: [u64; 2]| run(&program, ARCHITECTURE, call, [args[0], args[1], 0, 0, 0, 0]);
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
        for (number, process, group, user) in [(libc::SYS_setpriority, 0, 1, 2), (libc::SYS_ioprio_set, 1, 2, 3)] {
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
    let program = program(rules(Case { network: Network::All, namespaces: false, ..Case::default() }));
    assert_eq!(run(&program, 0x4000_0003, libc::SYS_read, [0; 6]), libc::SECCOMP_RET_KILL_PROCESS);
    assert_eq!(run(&program, ARCHITECTURE, libc::SYS_read | c_long::from(X32), [0; 6]), fails(libc::ENOSYS));
}

#[test]
fn the_program_fits_the_kernel() {
    let program = program(rules(Case { network: Network::Off, namespaces: true, ..Case::default() }));
    assert!(program.len() < 4096);
    assert!(program.iter().all(|instruction| instruction.jt < u8::MAX && instruction.jf < u8::MAX));
    assert_eq!(name_of(libc::SYS_mount), Some("mount"));
    assert_eq!(name_of(libc::SYS_read), None);
}

/// A sandbox inside the sandbox needs five calls, and gets no sixth.
#[test]
fn a_nested_sandbox_is_let_make_namespaces_and_mounts_and_nothing_else() {
    let case = Case { namespaces: true, ..Case::default() };
    let (strict, nested) = (program(rules(case)), program(rules(Case { nested: true, ..case })));
    let unshare = |bits: u64| (libc::SYS_unshare, [bits, 0, 0, 0, 0, 0]);
    let others = u64::from(NEW_NAMESPACE & !NEW_USERS & !NEVER_NESTED);
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
    // How deep, the supervisor looks.
    for (call, args) in [unshare(u64::from(NEW_USERS)), (libc::SYS_clone, [u64::from(NEW_USERS) | 17, 0, 0, 0, 0, 0])] {
        assert_eq!(run(&nested, ARCHITECTURE, call, args), libc::SECCOMP_RET_USER_NOTIF, "{call}");
    }
    // And these never, alone or with others, whatever the depth.
    for bits in [0x0200_0000, 0x0400_0000] {
        for call in [libc::SYS_unshare, libc::SYS_clone] {
            for bits in [bits, bits | u64::from(NEW_USERS)] {
                assert_eq!(run(&nested, ARCHITECTURE, call, [bits, 0, 0, 0, 0, 0]), libc::SECCOMP_RET_USER_NOTIF);
                assert!(!makes_users(call, bits), "{call} {bits:x}");
            }
        }
    }
    let (time, both) = (u64::from(NEW_TIME), u64::from(NEW_TIME | NEW_USERS));
    assert_eq!(run(&nested, ARCHITECTURE, libc::SYS_unshare, [time, 0, 0, 0, 0, 0]), libc::SECCOMP_RET_USER_NOTIF);
    assert!(!makes_users(libc::SYS_unshare, both) && makes_users(libc::SYS_unshare, u64::from(NEW_USERS)));
    for rule in RULES.iter().filter(|rule| rule.tests.is_empty() && !NESTING.contains(&rule.call)) {
        assert_ne!(run(&nested, ARCHITECTURE, rule.call, [0; 6]), libc::SECCOMP_RET_ALLOW, "{}", rule.name);
    }
}
