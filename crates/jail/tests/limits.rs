//! Limits on real processes. Every one that eats is confined twice: by the limit under test, and by one beside it.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use jail::limits::{LimitMechanism, ResourceLimits, RunLimits};
use rustix::process::{Pid, Signal, getuid, kill_process, test_kill_process};

const MB: u64 = 1 << 20;
/// The second lock, which no test means to reach.
const BESIDE: &str = "ulimit -v 2000000; ulimit -t 20; ";
const LONG: Duration = Duration::from_secs(10);

/// Built with the tests of this package, beside them.
fn example() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let path = tests.parent().and_then(Path::parent).unwrap().join("examples/limits");
    assert!(path.exists(), "{} is missing: run `cargo build -p jail --examples`", path.display());
    path
}

/// Whether the kernel holds the totals here; a test that needs it says so by name.
fn is_enforced(test: &str) -> bool {
    let means = RunLimits::new(
        "probe",
        &ResourceLimits {
            memory_bytes: Some(64 * MB),
            processes: Some(20),
            ..ResourceLimits::default()
        },
    );
    if means.mechanism().is_advisory() {
        eprintln!(
            "SKIPPED {test}: no control group here: {}",
            means.downgrade_reason().unwrap_or_default()
        );
    }
    !means.mechanism().is_advisory()
}

/// A process that waits for a word before it does anything.
struct Waiting {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Waiting {
    fn bash(script: &str) -> Waiting {
        Waiting::start(
            Command::new("/bin/bash").args(["-c", &format!("{BESIDE} read -r go; {script}")]),
        )
    }

    fn python(script: &str) -> Waiting {
        Waiting::bash(&format!("exec python3 -c '{script}'"))
    }

    fn start(command: &mut Command) -> Waiting {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Waiting { child, stdin, stdout: BufReader::new(stdout) }
    }

    /// Born in a thread that has entered by the door, as a child does between fork and exec.
    fn bash_through_door(cage: &RunLimits, script: &'static str) -> Waiting {
        let door = cage.open_joiner().unwrap();
        let entered = thread::spawn(move || door.join().map(|()| Waiting::bash(script)));
        entered.join().unwrap().unwrap()
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn go(&mut self) {
        self.stdin.write_all(b"go\n").unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Every directory of control groups whose name ends with the run's.
fn directories(run: &str) -> Vec<PathBuf> {
    fn walk(directory: &Path, ending: &str, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_str().is_some_and(|name| name.ends_with(ending)) {
                    found.push(entry.path());
                }
                walk(&entry.path(), ending, found);
            }
        }
    }
    let mut found = Vec::new();
    walk(Path::new("/sys/fs/cgroup"), &format!("-{run}"), &mut found);
    found
}

/// Until it is so, or for too long: for what happens in another process and sends no event.
fn becomes(what: impl Fn() -> bool) -> bool {
    let until = Instant::now() + LONG;
    while !what() && Instant::now() < until {
        thread::sleep(Duration::from_millis(1));
    }
    what()
}

fn is_gone(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    test_kill_process(pid).is_err()
        || stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('Z'))
}

#[test]
fn a_hog_is_killed_at_its_memory_limit() {
    if !is_enforced("a_hog_is_killed_at_its_memory_limit") {
        return;
    }
    let cage = RunLimits::new(
        "hog",
        &ResourceLimits { memory_bytes: Some(64 * MB), ..ResourceLimits::default() },
    );
    let mut hog = Waiting::bash("exec tail /dev/zero");
    cage.add_process(hog.pid()).unwrap();
    assert!(!cage.was_out_of_memory());
    hog.go();
    // The limit beside it is no signal but an error of tail's own.
    assert_eq!(hog.wait().signal(), Some(9));
    assert!(cage.was_out_of_memory());
    let peak = directories("hog").iter().find_map(|path| {
        let read = |file| fs::read_to_string(path.join(file)).ok()?.trim().parse::<u64>().ok();
        read("memory.max_usage_in_bytes").or_else(|| read("memory.peak"))
    });
    assert!(peak.is_some_and(|peak| peak > 32 * MB && peak <= 64 * MB), "{peak:?}");
}

#[test]
fn the_memory_of_many_small_processes_counts_together() {
    if !is_enforced("the_memory_of_many_small_processes_counts_together") {
        return;
    }
    let cage = RunLimits::new(
        "herd",
        &ResourceLimits { memory_bytes: Some(64 * MB), ..ResourceLimits::default() },
    );
    // Eight times 16 MB, none of which is too much alone.
    let mut herd = Waiting::python(
        "import os, time\nfor i in range(8):\n  if not os.fork():\n    x = bytearray(os.urandom(1 << 20)) * 16\n    time.sleep(9)\n    os._exit(0)\n\
         dead = os.wait()[1]\nprint(dead, flush=True)\ntime.sleep(9)",
    );
    cage.add_process(herd.pid()).unwrap();
    herd.go();
    assert_eq!(herd.line(), "9");
    assert!(cage.was_out_of_memory());
}

#[test]
fn forks_stop_at_the_process_limit() {
    if !is_enforced("forks_stop_at_the_process_limit") {
        return;
    }
    let cage = RunLimits::new(
        "forks",
        &ResourceLimits { processes: Some(20), ..ResourceLimits::default() },
    );
    let mut forks = Waiting::python(COUNT_FORKS);
    cage.add_process(forks.pid()).unwrap();
    assert!(!cage.hit_process_limit());
    forks.go();
    // It counts itself.
    assert_eq!(forks.line(), "19");
    assert!(cage.hit_process_limit());
    assert!(!cage.was_out_of_memory());
}

/// Forks at most sixty times, and says how often it could.
const COUNT_FORKS: &str = "import os, time\nn = 0\ntry:\n  while n < 60:\n    if not os.fork():\n      time.sleep(9)\n      os._exit(0)\n    n += 1\nexcept OSError:\n  pass\n\
     print(n, flush=True)\ntime.sleep(9)";

/// A hundred that ignore the polite signal, each with a session of its own and orphaned.
const DAEMONS: &str = "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nr, w = os.pipe()\n\
     for i in range(100):\n  if not os.fork():\n    os.setsid()\n    if os.fork(): os._exit(0)\n    os.write(w, b\"x\")\n    time.sleep(30)\n    os._exit(0)\n\
     for i in range(100): os.wait()\nn = 0\nwhile n < 100: n += len(os.read(r, 100))\nprint(\"up\", flush=True)\ntime.sleep(30)";

fn kill_ends_a_hundred(run: &str, means: LimitMechanism) {
    let cage = RunLimits::new_at_most(run, &ResourceLimits::default(), means);
    if cage.is_empty().is_none() {
        return eprintln!("SKIPPED {run}: no control group here");
    }
    let mut daemons = Waiting::python(DAEMONS);
    cage.add_process(daemons.pid()).unwrap();
    assert_eq!(cage.is_empty(), Some(false));
    daemons.go();
    assert_eq!(daemons.line(), "up");
    let asked = Instant::now();
    assert!(cage.kill_all());
    let told = asked.elapsed();
    assert!(becomes(|| cage.is_empty() == Some(true)), "something lives on");
    eprintln!(
        "{run} ({}): 100 processes told in {told:?}, gone in {:?}",
        cage.mechanism(),
        asked.elapsed()
    );
    assert_eq!(daemons.wait().signal(), Some(9));
    drop(cage);
    assert_eq!(directories(run), [] as [PathBuf; 0]);
}

#[test]
fn kill_ends_a_hundred_processes() {
    kill_ends_a_hundred("daemons-best", LimitMechanism::CgroupV2);
    kill_ends_a_hundred("daemons-v1", LimitMechanism::CgroupV1);
    kill_ends_a_hundred("daemons-bare", LimitMechanism::Rlimits);
}

/// Each generation lives for a moment and leaves group and session; after ten seconds the line ends by itself.
const NEVER_STILL: &str = "import os, time\nend = time.time() + 10\nprint(\"up\", flush=True)\n\
     while time.time() < end:\n  if os.fork(): os._exit(0)\n  os.setsid()";

#[test]
fn kill_ends_what_never_stands_still() {
    for (run, means) in
        [("restless-v1", LimitMechanism::CgroupV1), ("restless-bare", LimitMechanism::Rlimits)]
    {
        let cage = RunLimits::new_at_most(
            run,
            &ResourceLimits { processes: Some(50), ..ResourceLimits::default() },
            means,
        );
        if cage.is_empty().is_none() {
            eprintln!("SKIPPED kill_ends_what_never_stands_still ({run}): no control group here");
            continue;
        }
        let mut restless = Waiting::python(NEVER_STILL);
        cage.add_process(restless.pid()).unwrap();
        restless.go();
        assert_eq!(restless.line(), "up");
        let asked = Instant::now();
        assert!(cage.kill_all());
        assert!(becomes(|| cage.is_empty() == Some(true)), "something lives on");
        assert!(asked.elapsed() < Duration::from_secs(5), "it ended by itself");
    }
}

#[test]
fn the_end_of_a_cage_is_the_end_of_everything_in_it() {
    let cage = RunLimits::new(
        "end",
        &ResourceLimits {
            memory_bytes: Some(256 * MB),
            processes: Some(300),
            ..ResourceLimits::default()
        },
    );
    if cage.is_empty().is_none() {
        return eprintln!(
            "SKIPPED the_end_of_a_cage_is_the_end_of_everything_in_it: no control group here"
        );
    }
    let mut daemons = Waiting::python(DAEMONS);
    cage.add_process(daemons.pid()).unwrap();
    daemons.go();
    assert_eq!(daemons.line(), "up");
    assert!(!directories("end").is_empty());
    drop(cage);
    assert_eq!(directories("end"), [] as [PathBuf; 0]);
    assert_eq!(daemons.wait().signal(), Some(9));
}

#[test]
fn a_child_that_enters_by_the_door_is_held() {
    if !is_enforced("a_child_that_enters_by_the_door_is_held") {
        return;
    }
    let cage = RunLimits::new(
        "door",
        &ResourceLimits {
            memory_bytes: Some(64 * MB),
            processes: Some(20),
            ..ResourceLimits::default()
        },
    );
    if cage.mechanism() == LimitMechanism::CgroupV2 {
        return eprintln!(
            "SKIPPED a_child_that_enters_by_the_door_is_held: in version 2 the door takes this process in"
        );
    }
    let mut hog = Waiting::bash_through_door(&cage, "exec tail /dev/zero");
    hog.go();
    assert_eq!(hog.wait().signal(), Some(9));
    assert!(cage.was_out_of_memory());
}

fn encage(run: &str) -> (Waiting, Pid) {
    let mut owner = Waiting::start(Command::new(example()).args(["cage", run, "/bin/sleep", "30"]));
    let line = owner.line();
    let (owner_pid, child) = line.split_once(' ').unwrap_or_else(|| panic!("{line:?}"));
    assert_eq!(owner_pid, owner.pid().to_string());
    (owner, Pid::from_raw(child.parse().unwrap()).unwrap())
}

#[test]
fn the_cage_of_a_dead_owner_is_swept_and_that_of_a_living_one_is_not() {
    if RunLimits::new("probe", &ResourceLimits::default()).is_empty().is_none() {
        return eprintln!(
            "SKIPPED the_cage_of_a_dead_owner_is_swept_and_that_of_a_living_one_is_not: no control group"
        );
    }
    let (mut dead, orphan) = encage("dead-owner");
    let (_living, child) = encage("living-owner");
    dead.child.kill().unwrap();
    dead.wait();
    assert!(!is_gone(orphan), "it dies by itself, so the test shows nothing");
    assert!(becomes(|| {
        drop(RunLimits::new("sweeper", &ResourceLimits::default()));
        directories("dead-owner").is_empty()
    }));
    assert!(is_gone(orphan));
    assert!(!is_gone(child));
    assert_eq!(directories("living-owner").len(), 1);
}

#[test]
fn the_watch_ends_a_run_that_uses_too_much_together() {
    let limits = ResourceLimits { memory_bytes: Some(64 * MB), ..ResourceLimits::default() };
    let mut cage = RunLimits::new_at_most("watched", &limits, LimitMechanism::Rlimits);
    assert!(cage.downgrade_reason().unwrap().contains("advisory"));
    let mut hog = Waiting::python(
        "import time\nx = bytearray(b\"x\" * (96 << 20))\nprint(1, flush=True)\ntime.sleep(20)",
    );
    let pid = hog.pid();
    cage.watch_usage(move || vec![pid], move || kill_process(pid, Signal::KILL).unwrap()).unwrap();
    hog.go();
    assert_eq!(hog.wait().signal(), Some(9));
    assert!(cage.was_out_of_memory() && !cage.hit_process_limit());
}

#[test]
fn pages_that_a_fork_shares_count_once() {
    let limits = ResourceLimits { memory_bytes: Some(100 * MB), ..ResourceLimits::default() };
    let mut cage = RunLimits::new_at_most("shared", &limits, LimitMechanism::Rlimits);
    // Five processes with 60 MB, which are the same 60 MB.
    let mut family = Waiting::python(
        "import os, time\nx = bytearray(b\"x\" * (60 << 20))\npids = [os.getpid()]\nfor i in range(4):\n  p = os.fork()\n  if not p:\n    time.sleep(9)\n    os._exit(0)\n  pids.append(p)\n\
         print(*pids, flush=True)\ntime.sleep(9)",
    );
    family.go();
    let pids: Vec<Pid> =
        family.line().split(' ').map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap()).collect();
    let (looked, looks) = mpsc::channel();
    let list = pids.clone();
    cage.watch_usage(move || looked.send(()).map(|()| list.clone()).unwrap(), || panic!("ended"))
        .unwrap();
    // The third look begins when the second has been judged.
    (0..3).for_each(|_| looks.recv_timeout(LONG).unwrap());
    assert!(!cage.was_out_of_memory());
    drop(cage);
    pids[1..].iter().for_each(|pid| kill_process(*pid, Signal::KILL).unwrap());
}

#[test]
fn the_watch_ends_a_run_with_too_many_processes() {
    let limits = ResourceLimits { processes: Some(1), ..ResourceLimits::default() };
    let mut cage = RunLimits::new_at_most("many", &limits, LimitMechanism::Rlimits);
    let (one, two) = (Waiting::bash(""), Waiting::bash(""));
    let (pids, (ended, end)) = (vec![one.pid(), two.pid()], mpsc::channel());
    cage.watch_usage(move || pids.clone(), move || ended.send(()).unwrap()).unwrap();
    end.recv_timeout(LONG).unwrap();
    assert!(cage.hit_process_limit() && !cage.was_out_of_memory());
}

/// Another one for each call, since tests run beside each other.
fn unused_user() -> u32 {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    1_000_000 + std::process::id() * 16 + COUNT.fetch_add(1, Ordering::Relaxed)
}

/// Runs a script under advisory limits, as a user of whom nothing else runs: the kernel holds root to none of them.
fn under_rlimits(limits: &str, script: &str) -> (ExitStatus, String) {
    let directory = std::env::temp_dir().join(format!(
        "ringfence-limits-{}-{:?}",
        std::process::id(),
        thread::current().id()
    ));
    fs::create_dir_all(&directory).unwrap();
    let program = directory.join("limits");
    fs::copy(example(), &program).unwrap();
    let mut command = Command::new(program);
    command.args(["rlimits", limits, "/bin/bash", "-c", &format!("{BESIDE} {script}")]);
    command.env("PATH", "/usr/bin:/bin").current_dir("/");
    if getuid().is_root() {
        command.uid(unused_user()).gid(1_000_000);
    }
    let output = command.output().unwrap();
    fs::remove_dir_all(&directory).unwrap();
    (output.status, String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[test]
fn advisory_limits_hold_each_process() {
    let show = "ulimit -n; ulimit -f; ulimit -Ht; ulimit -c; ulimit -u; ulimit -d";
    let limits = r#"{"open_files":77,"file_bytes":4096,"cpu_seconds":3,"processes":50,"memory_bytes":67108864}"#;
    let (status, shown) = under_rlimits(limits, show);
    assert!(status.success());
    assert_eq!(shown.split('\n').collect::<Vec<_>>(), ["77", "4", "4", "0", "50", "unlimited"]);
    let (status, _) = under_rlimits(r#"{"cpu_seconds":1}"#, "while :; do :; done");
    assert_eq!(status.signal(), Some(24));
}

#[test]
fn forks_stop_at_the_advisory_limit() {
    if !getuid().is_root() {
        return eprintln!(
            "SKIPPED forks_stop_at_the_advisory_limit: without root there is no user of whom nothing runs"
        );
    }
    let script = format!(
        "exec timeout 5 /usr/bin/python3 -c '{}'",
        COUNT_FORKS.replace("time.sleep(9)", "time.sleep(1)")
    );
    // Two are timeout and python.
    assert_eq!(under_rlimits(r#"{"processes":20}"#, &script).1, "18");
    assert_eq!(under_rlimits("{}", &script).1, "60", "without a limit it forks as often as it may");
}
