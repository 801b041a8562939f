//! Processes outside: they are not seen, not signalled, not read, not slowed down.

use std::path::Path;

use super::{Cx, Effect, by_default, everywhere, held};

/// The attack is told the number of a process outside, which must then still live.
fn spares(cx: &Cx, script: &str) -> Effect {
    let mut victim = cx.victim();
    cx.python(script, &[&victim.pid()]);
    if !cx.is_fenced() {
        // A process that was killed takes a moment to die.
        return victim.dies();
    }
    victim.lives()
}

#[test]
fn a_process_outside_is_not_killed() {
    everywhere().holds(|cx| spares(cx, "tried('kill', lambda: os.kill(int(sys.argv[1]), 9))"));
}

#[test]
fn a_process_outside_is_not_killed_by_a_rarer_call() {
    let script = r"
pid = int(sys.argv[1])
tried('tgkill', lambda: syscall('tgkill', pid, pid, 9))
tried('sigqueue', lambda: syscall('rt_sigqueueinfo', pid, 9, struct.pack('iii', 9, 0, -1) + bytes(120)))
tried('group', lambda: os.killpg(pid, 9))
";
    everywhere().holds(|cx| spares(cx, script));
}

#[test]
fn a_process_outside_is_not_killed_by_a_descriptor() {
    let script = "tried('pidfd', lambda: syscall('pidfd_send_signal', os.pidfd_open(int(sys.argv[1])), 9, 0, 0))";
    everywhere().holds(|cx| spares(cx, script));
}

/// Whoever owns a pipe is told when something comes through it, by a signal of one's choice.
#[test]
fn a_process_outside_is_not_signalled_by_a_pipe() {
    let script = r"
def signal_by_pipe():
    reader, writer = os.pipe()
    fcntl.fcntl(reader, fcntl.F_SETOWN, int(sys.argv[1]))
    fcntl.fcntl(reader, fcntl.F_SETSIG, 15)
    fcntl.fcntl(reader, fcntl.F_SETFL, fcntl.fcntl(reader, fcntl.F_GETFL) | os.O_ASYNC)
    os.write(writer, b'x')
tried('pipe', signal_by_pipe)
";
    everywhere().holds(|cx| {
        let mut victim = cx.victim();
        cx.python(script, &[&victim.pid()]);
        if !cx.is_fenced() {
            // The signal takes its time; nothing else tells when it has come.
            crate::support::eventually(crate::support::DEADLINE, "the signal comes", || {
                victim.lives().is_err()
            });
        }
        victim.lives()
    });
}

const WITNESS: &str = r"
seen = []
signal.signal(int(sys.argv[1]), lambda *_: seen.append(1))
say('ready')
sys.stdin.readline()
say('seen', len(seen))
";

/// Signals that harm nobody, because they are sent to everybody. Each test has its own, or one would hear the other.
const URGENT: &str = "23";
const RESIZED: &str = "28";

#[test]
fn a_signal_to_everybody_stays_inside() {
    everywhere().holds(|cx| {
        let mut witness = cx.bystander(WITNESS, &[URGENT]);
        witness.wait_for("ready");
        cx.python("tried('everybody', lambda: os.kill(-1, int(sys.argv[1])))", &[URGENT]);
        witness.tell("look");
        let run = witness.end();
        held(run.word("seen") == "0", "it was seen outside")
    });
}

/// The shell that started the fence, and everything else in its process group.
#[test]
fn a_signal_to_the_own_group_stays_inside() {
    everywhere().holds(|cx| {
        let mut witness = cx.bystander(WITNESS, &[RESIZED]);
        witness.wait_for("ready");
        let script = r"
number = int(sys.argv[1])
tried('group', lambda: os.kill(0, number))
tried('number', lambda: os.killpg(os.getpgrp(), number))
";
        cx.python(script, &[RESIZED]);
        witness.tell("look");
        let run = witness.end();
        held(run.word("seen") == "0", "it was seen outside")
    });
}

/// Whatever holds the fence up from within or beside is no target either.
#[test]
fn the_parent_of_the_run_is_not_stopped() {
    everywhere().never_bare().holds(|cx| {
        let script = r"
for number in [19, 15, 9]:
    tried('parent', lambda: os.kill(os.getppid(), number))
    tried('first', lambda: os.kill(1, number))
say('parent', os.getppid())
";
        // The end is reached, and with it the exit status.
        held(cx.python(script, &[]).code == Some(0), "the run was cut short")
    });
}

#[test]
fn the_fence_itself_is_not_killed() {
    everywhere().holds(|cx| {
        let script = r"
say('ready')
pid = int(sys.stdin.readline())
tried('kill', lambda: os.kill(pid, 15))
tried('pidfd', lambda: syscall('pidfd_send_signal', os.pidfd_open(pid), 15, 0, 0))
sys.stdin.readline()
";
        let mut live = cx.fence().dies().start_python(script, &[]);
        live.wait_for("ready");
        live.tell(&live.pid().to_string());
        let run = live.end();
        held(run.code == Some(0), format!("it was: {run:?}"))
    });
}

#[test]
fn a_process_outside_is_not_traced() {
    let script = r"
for name, request in [('attach', 16), ('seize', 0x4206)]:
    tried(name, lambda: syscall('ptrace', request, int(sys.argv[1]), 0, 0))
";
    everywhere().bare_as_root().holds(|cx| {
        let mut victim = cx.victim();
        let run = cx.python(script, &[&victim.pid()]);
        victim.lives()?;
        run.refused()
    });
}

#[test]
fn the_memory_of_a_process_outside_is_not_read() {
    everywhere().bare_as_root().holds(|cx| {
        let secret = cx.secret();
        let (start, end) = secret.split_at(7);
        let script = format!(
            "text = ctypes.create_string_buffer(b'{start}' + b'{end}')\nsay('at', os.getpid(), ctypes.addressof(text))\nsys.stdin.readline()"
        );
        let mut holder = cx.bystander(&script, &[]);
        let place = holder.wait_for("at");
        let (pid, address) = place.split_once(' ').unwrap();
        let attack = r"
pid, address = map(int, sys.argv[1:])
def vm():
    text = ctypes.create_string_buffer(100)
    vector = lambda at: struct.pack('LL', at, 40)
    syscall('process_vm_readv', pid, vector(ctypes.addressof(text)), 1, vector(address), 1, 0)
    say(text.value)
def mem():
    fd = os.open(f'/proc/{pid}/mem', os.O_RDONLY)
    say(os.pread(fd, 40, address))
tried('vm', vm)
tried('mem', mem)
";
        let run = cx.python(attack, &[pid, address]);
        drop(holder);
        run.knows_nothing_of(&secret)
    });
}

#[test]
fn the_environment_of_a_process_outside_is_not_read() {
    everywhere().holds(|cx| {
        let secret = cx.secret();
        let mut command = super::fence::as_user(cx);
        let marker = cx.marker();
        let mut child = command.env("TOKEN", &secret).args(["sleep", &marker]).spawn().unwrap();
        let run = cx.bash(
            "cat /proc/[0-9]*/environ | tr '\\0' '\\n'; cat \"/proc/$1/environ\"",
            &[&child.id().to_string()],
        );
        let _ = child.kill();
        let _ = child.wait();
        run.knows_nothing_of(&secret)
    });
}

#[test]
fn the_files_of_a_process_outside_are_not_reached() {
    everywhere().holds(|cx| {
        let secret = cx.secret();
        let file = cx.outside("file", &secret);
        // Its name is gone: only the process that has it open leads to it.
        let script = "file = os.open(sys.argv[1], os.O_RDONLY); os.unlink(sys.argv[1]); say('open', os.getpid(), file); sys.stdin.readline()";
        let mut holder = cx.bystander(script, &[&file]);
        let place = holder.wait_for("open").replace(' ', "/fd/");
        let attack = r"
pid, number = map(int, sys.argv[1].split('/fd/'))
tried('name', lambda: say(get('/proc/' + sys.argv[1])))
tried('copy', lambda: say(os.pread(syscall('pidfd_getfd', os.pidfd_open(pid), number, 0), 100, 0)))
";
        let run = cx.python(attack, &[&place]);
        drop(holder);
        run.knows_nothing_of(&secret)
    });
}

#[test]
fn no_process_outside_is_seen() {
    by_default().holds(|cx| {
        let victim = cx.victim();
        let script = "cat /proc/[0-9]*/cmdline | tr '\\0' '\\n'; ps axww -o args; ls -d \"/proc/$1\" && cat \"/proc/$1/cmdline\"";
        cx.bash(script, &[&victim.pid()]).knows_nothing_of(&victim.marker)
    });
}

#[test]
fn a_process_outside_is_not_slowed_down() {
    let script = r"
pid = int(sys.argv[1])
tried('renice', lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
tried('group', lambda: os.setpriority(os.PRIO_PGRP, pid, 19))
tried('affinity', lambda: os.sched_setaffinity(pid, [0]))
tried('policy', lambda: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)))
tried('input and output', lambda: syscall('ioprio_set', 1, pid, 3 << 13))
";
    by_default().holds(|cx| {
        let victim = cx.victim();
        let facts = || (field(&victim.fact("stat"), 18), field(&victim.fact("stat"), 40));
        let before = facts();
        cx.python(script, &[&victim.pid()]).refused()?;
        held(facts() == before, "it was")
    });
}

/// The fields after the name, which may hold spaces itself.
fn field(stat: &str, number: usize) -> String {
    stat.rsplit(')').next().unwrap().split_whitespace().nth(number - 2).unwrap().to_owned()
}

/// One call for all processes of the user.
#[test]
fn no_process_of_the_same_user_is_slowed_down() {
    by_default().never_bare().holds(|cx| {
        let victim = cx.victim();
        let niceness = || field(&victim.fact("stat"), 18);
        let before = niceness();
        cx.python("tried('user', lambda: os.setpriority(os.PRIO_USER, os.getuid(), 19))", &[]);
        held(niceness() == before, "it was")
    });
}

#[test]
fn the_limits_of_a_process_outside_stay() {
    by_default().holds(|cx| {
        let victim = cx.victim();
        let before = victim.fact("limits");
        let script = "import resource; tried('limit', lambda: resource.prlimit(int(sys.argv[1]), resource.RLIMIT_NOFILE, (3, 3)))";
        cx.python(script, &[&victim.pid()]);
        held(victim.fact("limits") == before, "they changed")
    });
}

#[test]
fn a_process_outside_is_not_offered_to_the_memory_killer() {
    by_default().holds(|cx| {
        let victim = cx.victim();
        cx.bash(r#"echo 1000 > "/proc/$1/oom_score_adj""#, &[&victim.pid()]);
        held(victim.fact("oom_score_adj").trim() != "1000", "it was")
    });
}

/// The first process of the sandbox is ours and comes from outside: nothing of it may be used.
#[test]
fn the_first_process_gives_nothing_away() {
    by_default().never_bare().holds(|cx| {
        let secret = cx.secret();
        let file = cx.outside("file", &secret);
        let script = r"
for name in ['environ', 'mem', 'maps', 'auxv', 'syscall', 'stack', 'io']:
    tried(name, lambda: say(open('/proc/1/' + name, 'rb').read(100000)))
# How many descriptors it has can be seen by root; where they lead must not be.
try:
    held = ['fd/' + name for name in os.listdir('/proc/1/fd')]
except OSError:
    held = []
for name in ['root', 'cwd', 'exe', 'ns/mnt', 'ns/user', 'ns/net', 'fd/0', 'fd/1', 'fd/3'] + held:
    tried(name, lambda: os.readlink('/proc/1/' + name))
    tried(name, lambda: os.open('/proc/1/' + name, os.O_RDONLY))
tried('write', lambda: put('/proc/1/oom_score_adj', '1000'))
tried('trace', lambda: syscall('ptrace', 0x4206, 1, 0, 0))
";
        let run = cx
            .fence()
            .env("TOKEN", &secret)
            .before(&format!("exec 9< '{file}'"))
            .python(script, &[]);
        run.knows_nothing_of(&secret)?;
        run.refused()
    });
}

/// Everything that acts on another process of the same user by its number, and by its user. All threads of the first
/// process count: the kernel takes the number of any of them for the process.
#[test]
fn the_first_process_is_not_touched() {
    let script = r"
import resource
threads = sorted({1, *map(int, os.listdir('/proc/1/task'))})
for pid in threads:
    for name, limit in [('cpu', resource.RLIMIT_CPU), ('files', resource.RLIMIT_NOFILE), ('memory', resource.RLIMIT_AS)]:
        tried(f'{pid} {name}', lambda: resource.prlimit(pid, limit, resource.prlimit(0, limit)))
    tried(f'{pid} nice', lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
    tried(f'{pid} affinity', lambda: os.sched_setaffinity(pid, [min(os.sched_getaffinity(0))]))
    tried(f'{pid} policy', lambda: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)))
    tried(f'{pid} parameters', lambda: os.sched_setparam(pid, os.sched_param(0)))
    tried(f'{pid} attributes', lambda: syscall('sched_setattr', pid, struct.pack('IIQiIQQQ', 48, 5, 0, 0, 0, 0, 0, 0), 0))
    tried(f'{pid} input and output', lambda: syscall('ioprio_set', 1, pid, 3 << 13))
    tried(f'{pid} high half', lambda: syscall('prlimit64', pid | 7 << 32, 0, struct.pack('QQ', 1, 1), 0))
    for name in ['oom_score_adj', 'oom_adj', 'autogroup', 'coredump_filter', 'timerslack_ns', 'clear_refs', 'comm']:
        tried(f'{pid} {name}', lambda: put(f'/proc/{pid}/' + name, '1'))
    tried(f'{pid} memory read', lambda: syscall('process_vm_readv', pid, b'x' * 16, 1, b'x' * 16, 1, 0))
    tried(f'{pid} memory written', lambda: syscall('process_vm_writev', pid, b'x' * 16, 1, b'x' * 16, 1, 0))
    tried(f'{pid} trace', lambda: syscall('ptrace', 0x4206, pid, 0, 0))
    tried(f'{pid} pages', lambda: syscall('move_pages', pid, 1, struct.pack('Q', 4096), struct.pack('i', 0), struct.pack('i', 0), 2))
    tried(f'{pid} scheduling group', lambda: syscall('prctl', 62, 3, pid, 0, 0))
tried('user', lambda: os.setpriority(os.PRIO_USER, os.getuid(), 19))
tried('own user', lambda: os.setpriority(os.PRIO_USER, 0, 19))
tried('group', lambda: os.setpriority(os.PRIO_PGRP, 1, 19))
tried('input and output of the user', lambda: syscall('ioprio_set', 3, os.getuid(), 3 << 13))
tried('limits', lambda: put('/sys/fs/cgroup/cgroup.kill', '1'))
";
    by_default().never_bare().holds(|cx| {
        let run = cx.python(script, &[]);
        held(run.code == Some(0), format!("the run was cut short: {run:?}"))?;
        run.refused()
    });
}

/// The kernel drops a signal to the first process only where it has no handler for it.
#[test]
fn no_signal_reaches_the_first_process() {
    let script = r"
def facts():
    with open('/proc/1/status') as file:
        lines = dict(line.split(':', 1) for line in file)
    return lines['SigCgt'].strip(), lines['State'].split()[0], lines['Threads'].strip()
say('before', *facts())
for number in range(1, 65):
    try:
        os.kill(1, number)
    except OSError:
        pass
    # With the address of a fault that never was, as only a handler would read it.
    try:
        syscall('rt_sigqueueinfo', 1, number, struct.pack('iiiiQ', number, 0, -1, 0, 4096) + bytes(104))
    except OSError:
        pass
# A forged SIGCHLD wakes it where Landlock does not stop signals; it finds nothing to reap and sleeps again.
end = time.monotonic() + 10
while facts()[1] != 'S' and time.monotonic() < end:
    os.sched_yield()
say('after', *facts())
";
    by_default().never_bare().holds(|cx| {
        let run = cx.python(script, &[]);
        held(run.code == Some(0), format!("the run was cut short: {run:?}"))?;
        held(
            run.word("before") == "0000000000000000 S 1",
            format!("handlers or threads: {}", run.word("before")),
        )?;
        held(run.word("after") == run.word("before"), format!("it changed: {}", run.word("after")))
    });
}

#[test]
fn the_own_processes_are_seen_and_signalled() {
    everywhere().never_bare().holds(|cx| {
        let run = cx.bash("sleep 100 & kill -TERM $!; wait $!; echo status $?; test -d /proc/self && test -e /proc/$$/cmdline && echo seen", &[]);
        assert!(Path::new("/proc/self").exists());
        held(run.stdout.contains("status 143") && run.stdout.contains("seen"), format!("{run:?}"))
    });
}
