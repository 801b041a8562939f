//! Nothing of a run outlives it, however it hides, and however the run ends.

use super::{Cx, Effect, everywhere, held};
use crate::support::process::with_argument;
use crate::support::{DEADLINE, eventually};

/// The attack starts `sleep` with a word to find it by, and the run ends. When it has ended, nothing is left.
fn nothing_stays(cx: &Cx, script: &str) -> Effect {
    let marker = cx.marker();
    cx.bash(script, &[&marker]);
    held(with_argument(&marker).is_empty(), "a process lives on")
}

#[test]
fn a_process_in_the_background_does_not_survive() {
    everywhere().holds(|cx| nothing_stays(cx, r#"sleep "$1" > /dev/null 2>&1 &"#));
}

#[test]
fn a_process_in_its_own_session_does_not_survive() {
    everywhere().holds(|cx| nothing_stays(cx, r#"setsid -f sleep "$1" > /dev/null 2>&1"#));
}

#[test]
fn a_daemon_does_not_survive() {
    let script = r#"(setsid bash -c 'cd /; exec < /dev/null > /dev/null 2>&1; (setsid sleep "$1" &) &' bash "$1" &) ; wait"#;
    everywhere().holds(|cx| {
        let marker = cx.marker();
        let daemon = format!(r#"{script}; until grep -aqs "$1" /proc/[0-9]*/cmdline; do :; done"#);
        cx.bash(&daemon, &[&marker]);
        held(with_argument(&marker).is_empty(), "a daemon lives on")
    });
}

#[test]
fn a_process_that_ignores_signals_does_not_survive() {
    let script =
        r#"(trap '' TERM HUP INT QUIT USR1 USR2 ALRM; exec setsid -f sleep "$1" > /dev/null 2>&1)"#;
    everywhere().holds(|cx| nothing_stays(cx, script));
}

#[test]
fn a_stopped_process_does_not_survive() {
    let script = r#"setsid sleep "$1" > /dev/null 2>&1 & kill -STOP $!; until grep -q '^State:.T' /proc/$!/status; do :; done"#;
    everywhere().holds(|cx| nothing_stays(cx, script));
}

/// Children whose parent is not the one that made them, or whose end is told to nobody.
#[test]
fn a_child_of_an_unusual_kind_does_not_survive() {
    everywhere().holds(|cx| {
        let program = cx.compile("kinds", include_str!("probes/kinds.c"));
        let marker = cx.marker();
        let run = cx.fence().start(&[&program, &marker]).end();
        assert!(run.stdout.contains("children 4"), "[{}] {run:?}", cx.mode);
        held(with_argument(&marker).is_empty(), "a process lives on")
    });
}

#[test]
fn a_process_that_adopts_orphans_does_not_survive() {
    everywhere().holds(|cx| {
        let marker = cx.marker();
        let script = r"
syscall('prctl', 36, 1, 0, 0, 0)
syscall('prctl', 1, 0, 0, 0, 0)
reader, writer = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        syscall('prctl', 36, 1, 0, 0, 0)
        null = os.open('/dev/null', os.O_RDWR)
        [os.dup2(null, number) for number in range(3)]
        os.execvp('sleep', ['sleep', sys.argv[1]])
    os._exit(0)
os.close(writer)
os.read(reader, 1)
";
        cx.python(script, &[&marker]);
        held(with_argument(&marker).is_empty(), "a process lives on")
    });
}

/// Each generation is gone before anybody can look at it, but all of them hold one lock. It ends by itself where no
/// fence ends it.
#[test]
fn a_chain_of_ever_new_processes_does_not_survive() {
    everywhere().holds(|cx| {
        let file = cx.inside("lock", "");
        let script = r"
lock = os.open('lock', os.O_RDWR)
fcntl.flock(lock, fcntl.LOCK_EX)
reader, writer = os.pipe()
if os.fork() == 0:
    os.setsid()
    end = time.monotonic() + 5
    for number in range(3):
        os.close(number)
    while time.monotonic() < end:
        if os.fork():
            os._exit(0)
        os.write(writer, b'x')
    os._exit(0)
for _ in range(20):
    os.read(reader, 1)
";
        cx.python(script, &[]);
        let lock = std::fs::File::open(&file).unwrap();
        let free =
            rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok();
        held(free, "it goes on")
    });
}

/// The attack says that its tree stands, and then what holds the fence up is ended by force.
fn falls_with(cx: &Cx, end: impl Fn(super::Live)) -> Effect {
    let marker = cx.marker();
    let script = r"
import subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
quiet = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
subprocess.Popen(['sleep', sys.argv[1]], start_new_session=True, **quiet)
subprocess.Popen(['sleep', sys.argv[1]], **quiet)
say('ready')
while True:
    time.sleep(60)
";
    let mut live = cx.fence().dies().start_python(script, &[&marker]);
    live.wait_for("ready");
    eventually(DEADLINE, "the tree stands", || with_argument(&marker).len() >= 3);
    end(live);
    if !cx.is_fenced() {
        return held(with_argument(&marker).is_empty(), "the tree stands");
    }
    eventually(DEADLINE, &format!("[{}] the tree falls", cx.mode), || {
        with_argument(&marker).is_empty()
    });
    Ok(())
}

#[test]
fn nothing_survives_when_the_fence_is_killed() {
    everywhere().holds(|cx| falls_with(cx, super::Live::kill));
}

#[test]
fn nothing_survives_when_the_fence_is_asked_to_end() {
    everywhere().holds(|cx| {
        falls_with(cx, |live| {
            let pid = rustix::process::Pid::from_raw(live.pid().cast_signed()).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
            if cx.is_fenced() {
                let _ = live.end();
            }
        })
    });
}

#[test]
fn what_is_left_behind_is_counted_in_the_report() {
    everywhere().never_bare().holds(|cx| {
        let (marker, report) = (cx.marker(), cx.path("report.json"));
        let script = r#"setsid -f sleep "$1" > /dev/null 2>&1; until grep -aqs "$1" /proc/[0-9]*/cmdline; do :; done"#;
        cx.fence().args(&["--report", &report]).bash(script, &[&marker]);
        let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
        held(report["left_behind"].as_u64() >= Some(1), format!("it is not: {report}"))
    });
}
