//! The kernel's own switches: settings, devices, clocks, names, and what all processes of a machine share.

use super::{Cx, Effect, User, absent, by_default, everywhere, held, unchanged};

/// A setting that matters to nobody, on a host where somebody may be working.
const SETTING: &str = "/proc/sys/vm/oom_dump_tasks";

/// Root without any capability still owns the files under `/proc/sys`.
#[test]
fn no_setting_of_the_kernel_is_changed() {
    everywhere().bare_as_root().holds(|cx| {
        let before = std::fs::read_to_string(SETTING).unwrap();
        let other = if before.trim() == "0" { "1" } else { "0" };
        let script = r#"for at in /proc/sys /proc/self/root/proc/sys /proc/1/root/proc/sys; do echo "$1" > "$at/vm/oom_dump_tasks"; done; sysctl -w "vm.oom_dump_tasks=$1""#;
        cx.bash(script, &[other]);
        let outcome = unchanged(SETTING, &before);
        if outcome.is_err() {
            std::fs::write(SETTING, &before).unwrap();
        }
        outcome
    });
}

/// Each is given the value that it has, so that nothing changes even where it can be written.
#[test]
fn no_setting_that_runs_programs_is_written() {
    let script = r"
for name in ['core_pattern', 'modprobe', 'hotplug', 'poweroff_cmd', 'usermodehelper/bset', 'yama/ptrace_scope', 'ns_last_pid', 'hostname', 'domainname']:
    path = '/proc/sys/kernel/' + name
    tried(name, lambda: put(path, get(path)))
tried('binfmt', lambda: put('/proc/sys/fs/binfmt_misc/register', ''))
tried('uevent', lambda: put('/sys/kernel/uevent_helper', get('/sys/kernel/uevent_helper')))
";
    everywhere().never_bare().holds(|cx| cx.python(script, &[]).refused());
}

#[test]
fn the_keys_for_emergencies_are_out_of_reach() {
    // The letter asks for help and does nothing else.
    let script = "tried('sysrq', lambda: put('/proc/sysrq-trigger', 'h'))";
    everywhere().never_bare().holds(|cx| cx.python(script, &[]).refused());
}

#[test]
fn nothing_else_under_proc_is_written() {
    let script = r"
import glob
for path in glob.glob('/proc/irq/*/smp_affinity') + glob.glob('/proc/irq/default_smp_affinity') + ['/proc/mtrr', '/proc/timer_list', '/proc/bus/pci/00/00.0', '/proc/acpi/wakeup', '/proc/scsi/scsi', '/proc/fs/ext4']:
    tried(path, lambda: os.open(path, os.O_WRONLY))
";
    everywhere().never_bare().holds(|cx| cx.python(script, &[]).refused());
}

#[test]
fn nothing_under_sys_is_written() {
    let script = r"
import glob
paths = glob.glob('/sys/kernel/mm/**/*', recursive=True)[:200] + glob.glob('/sys/module/*/parameters/*')[:200] + glob.glob('/sys/block/*/queue/*') + glob.glob('/sys/power/*')
for path in paths:
    if os.path.isfile(path):
        tried(path, lambda: os.open(path, os.O_WRONLY))
";
    everywhere().bare_as_root().holds(|cx| cx.python(script, &[]).refused());
}

/// The hierarchies of control groups that are mounted.
fn hierarchies() -> Vec<String> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let groups = mounts
        .lines()
        .filter(|line| line.split(' ').nth(2).is_some_and(|kind| kind.starts_with("cgroup")));
    groups.filter_map(|line| line.split(' ').nth(1)).map(str::to_owned).collect()
}

#[test]
fn no_control_group_is_made() {
    everywhere().bare_as_root().holds(|cx| {
        let name = cx.secret();
        let places = hierarchies();
        assert!(!places.is_empty(), "no control groups are mounted");
        let args: Vec<&str> =
            std::iter::once(name.as_str()).chain(places.iter().map(String::as_str)).collect();
        cx.bash(r#"name=$1; shift; for at; do mkdir "$at/$name"; done"#, &args);
        let outcome = places.iter().try_for_each(|at| absent(format!("{at}/{name}")));
        for place in &places {
            let _ = std::fs::remove_dir(format!("{place}/{name}"));
        }
        outcome
    });
}

/// The program that the kernel runs, outside and as root, when a group becomes empty.
#[test]
fn no_program_is_left_for_an_empty_control_group() {
    let script = r"
import glob
for path in glob.glob('/sys/fs/cgroup/**/release_agent', recursive=True) + glob.glob('/sys/fs/cgroup/**/notify_on_release', recursive=True) + ['/sys/fs/cgroup/release_agent']:
    tried(path, lambda: os.open(path, os.O_WRONLY))
";
    everywhere().bare_as_root().holds(|cx| cx.python(script, &[]).refused());
}

#[test]
fn no_process_leaves_its_control_group() {
    let script = r"
import glob
for path in glob.glob('/sys/fs/cgroup/**/cgroup.procs', recursive=True) + glob.glob('/sys/fs/cgroup/**/tasks', recursive=True) + ['/sys/fs/cgroup/cgroup.procs']:
    tried(path, lambda: put(path, '0'))
";
    everywhere().never_bare().holds(|cx| cx.python(script, &[]).refused());
}

#[test]
fn no_device_is_made() {
    let script = r"
disk = os.stat('/usr').st_dev
for name, kind, device in [('disk', 0o060600, disk), ('memory', 0o020600, os.makedev(1, 1)), ('log', 0o020600, os.makedev(1, 11))]:
    def use():
        os.mknod(name, kind, device)
        os.close(os.open(name, os.O_RDONLY))
    tried(name, use)
";
    everywhere().bare_as_root().holds(|cx| cx.python(script, &[]).refused());
}

#[test]
fn no_device_of_the_host_is_opened() {
    everywhere().bare_as_root().holds(|cx| {
        let flags = if cx.is_default() { "os.O_RDONLY" } else { "os.O_WRONLY" };
        let script = format!(
            "import glob\nfor path in glob.glob('/dev/[vsh]d[a-z]') + glob.glob('/dev/nvme*') + ['/dev/mem', '/dev/port', '/dev/kmsg', '/dev/loop-control', '/dev/loop0', '/dev/fuse', '/dev/kvm', '/dev/console', '/dev/userfaultfd', '/dev/vcs', '/dev/uinput', '/dev/mapper/control']:\n    tried(path, lambda: os.open(path, {flags} | os.O_NONBLOCK | os.O_NOCTTY))"
        );
        cx.python(&script, &[]).refused()
    });
}

#[test]
fn the_memory_of_the_kernel_is_not_read() {
    let script = "for name in ['kcore', 'kmsg', 'kpagecount', 'vmallocinfo']: tried(name, lambda: open('/proc/' + name, 'rb').read(10) or 1 / 0)";
    // As root these are open where a capability is; `kmsg` would wait for the next line.
    by_default().never_bare().holds(|cx| match cx.mode.user {
        User::Root => cx.python("tried('kcore', lambda: os.open('/proc/kcore', os.O_RDONLY)); tried('kmsg', lambda: os.open('/proc/kmsg', os.O_RDONLY))", &[]).refused(),
        _ => cx.python(script, &[]).refused(),
    });
}

#[test]
fn the_log_of_the_kernel_is_not_read() {
    let script = r"
text = ctypes.create_string_buffer(4096)
tried('all', lambda: syscall('syslog', 3, text, 4096))
tried('size', lambda: syscall('syslog', 10, 0, 0))
tried('unread', lambda: syscall('syslog', 9, 0, 0))
";
    everywhere().bare_as_root().holds(|cx| cx.python(script, &[]).refused());
}

#[test]
fn the_clock_is_not_set() {
    let script = r"
def now():
    seconds, rest = divmod(time.time_ns(), 10**9)
    return struct.pack('qq', seconds, rest)
tried('clock', lambda: syscall('clock_settime', 0, now()))
tried('time of day', lambda: checked(libc.settimeofday(struct.pack('qq', int(time.time()), 0), None)))
";
    everywhere().never_bare().holds(|cx| cx.python(script, &[]).refused());
}

#[test]
fn the_name_of_the_host_stays() {
    everywhere().never_bare().holds(|cx| {
        let name = || std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let before = name();
        let script = "tried('name', lambda: syscall('sethostname', b'mine', 4)); tried('domain', lambda: syscall('setdomainname', b'mine', 4))";
        cx.python(script, &[]);
        held(name() == before, format!("it is {}", name()))
    });
}

/// With arguments that could not do harm even if they were taken.
#[test]
fn the_machine_is_not_administered() {
    let script = r"
put('area', 'x' * 8192)
tried('swap', lambda: syscall('swapon', b'area', 0))
tried('accounts', lambda: syscall('acct', b'area'))
tried('quota', lambda: syscall('quotactl', 0x80000100, b'/dev/null', 0, 0))
tried('quota of a file', lambda: syscall(443, 0, 0x80000100, 0, 0))
tried('restart', lambda: syscall('reboot', 0xfee1dead, 672274793, 0, 0))
tried('hang up', lambda: syscall('vhangup'))
";
    everywhere().never_bare().holds(|cx| cx.python(script, &[]).refused());
}

/// A call that a later kernel has is one that nobody has looked at yet. Nothing is asked of it but whether it exists.
#[test]
fn no_call_exists_that_is_not_known() {
    let script = r"
for number in [451, 457, 458, 459, 460, 461, *range(463, 640)]:
    tried(str(number), lambda: syscall(number, -1, 0, 0, 0, 0, 0))
";
    everywhere().never_bare().holds(|cx| cx.python(script, &[]).refused_with("ENOSYS"));
}

/// Many kernels are built without these calls, so that nothing is asked of them without a fence.
#[cfg(target_arch = "x86_64")]
#[test]
fn no_port_of_the_machine_is_opened() {
    let script = "tried('iopl', lambda: syscall('iopl', 3)); tried('ioperm', lambda: syscall('ioperm', 0x80, 1, 1))";
    everywhere().never_bare().holds(|cx| cx.python(script, &[]).refused());
}

#[test]
fn the_files_of_others_are_not_watched_over() {
    let script = "tried('content', lambda: syscall('fanotify_init', 4, 0)); tried('before content', lambda: syscall('fanotify_init', 8, 0))";
    everywhere().bare_as_root().holds(|cx| cx.python(script, &[]).refused());
}

#[test]
fn nobody_gets_ahead_of_the_machine() {
    let script = r"
tried('real time', lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
tried('priority', lambda: os.setpriority(os.PRIO_PROCESS, 0, -5))
";
    by_default().bare_as_root().holds(|cx| cx.python(script, &[]).refused());
}

/// A program outside makes something that all processes of the machine share and says how it is called.
fn is_not_shared(cx: &Cx, make: &str, read: &str, remove: &str) -> Effect {
    let secret = cx.secret();
    let key = (std::process::id() << 8 | u32::from(secret.bytes().fold(0_u8, u8::wrapping_add)))
        .to_string();
    let rest = "\nsay('made')\nsys.stdin.readline()\n";
    let prepare = "key, text = int(sys.argv[1]), sys.argv[2].encode()\nlibc.shmat.restype = ctypes.c_void_p\n";
    let mut maker = cx.bystander(&format!("{prepare}{make}{rest}{remove}"), &[&key, &secret]);
    maker.wait_for("made");
    let prepare = "key = int(sys.argv[1])\nlibc.shmat.restype = ctypes.c_void_p\n";
    let run = cx.python(&format!("{prepare}{read}"), &[&key]);
    maker.tell("end");
    maker.end();
    run.knows_nothing_of(&secret)?;
    run.refused()
}

#[test]
fn shared_memory_of_the_host_is_not_reached() {
    by_default().holds(|cx| {
        is_not_shared(
            cx,
            "id = checked(libc.shmget(key, 4096, 0o1666))\nctypes.memmove(libc.shmat(id, None, 0), text, len(text))",
            "tried('memory', lambda: say(ctypes.string_at(libc.shmat(checked(libc.shmget(key, 0, 0)), None, 0o10000))))",
            "checked(libc.shmctl(id, 0, None))",
        )
    });
}

#[test]
fn a_semaphore_of_the_host_is_not_reached() {
    by_default().holds(|cx| {
        is_not_shared(
            cx,
            "id = checked(libc.semget(key, 1, 0o1666))",
            "tried('semaphore', lambda: checked(libc.semget(key, 1, 0)))",
            "checked(libc.semctl(id, 0, 0))",
        )
    });
}

#[test]
fn a_message_queue_of_the_host_is_not_reached() {
    by_default().holds(|cx| {
        is_not_shared(
            cx,
            "id = checked(libc.msgget(key, 0o1666))\nchecked(libc.msgsnd(id, struct.pack('l', 1) + text, len(text), 0))",
            "text = ctypes.create_string_buffer(200)\ntried('queue', lambda: checked(libc.msgrcv(checked(libc.msgget(key, 0)), text, 100, 0, 0o4000)))\nsay(text.raw)",
            "checked(libc.msgctl(id, 0, None))",
        )
    });
}

#[test]
fn a_named_message_queue_of_the_host_is_not_reached() {
    by_default().holds(|cx| {
        is_not_shared(
            cx,
            "name = str(key).encode()\nsyscall('mq_open', name, os.O_CREAT | os.O_RDWR, 0o666, 0)",
            "tried('queue', lambda: syscall('mq_open', str(key).encode(), os.O_RDONLY, 0, 0))",
            "libc.mq_unlink(b'/' + name)",
        )
    });
}
