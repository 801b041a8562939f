//! The supervisor as a process: what it starts, what it tells and what it never leaves behind.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs::File;
use std::io::{BufRead, BufReader, PipeReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use jail::supervisor::{
    RunExit, RunFds, RunSpec, SupervisorCommand, SupervisorReport, encode_line, send_spec,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Built with the tests of this package, beside them.
fn supervisor() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let path = tests.parent().and_then(Path::parent).unwrap().join("examples/supervise");
    assert!(path.exists(), "{} is missing: run `cargo build -p jail --examples`", path.display());
    path
}

struct Run {
    supervisor: Child,
    control: Option<BufReader<UnixStream>>,
    stdout: BufReader<PipeReader>,
}

/// A pid that the run printed, held by a descriptor: it cannot be mistaken for a later process.
struct Watched(OwnedFd);

impl Watched {
    fn is_gone_within(&self, limit: Duration) -> bool {
        let limit =
            Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&limit)).unwrap() == 1
    }
}

const LONG: Duration = Duration::from_secs(10);

impl Run {
    fn start(program: &str, args: &[&str]) -> Run {
        Run::start_in(program, args, "/", &[("PATH", "/usr/local/bin:/usr/bin:/bin")], 200)
    }

    fn bash(script: &str) -> Run {
        Run::start("/bin/bash", &["-c", script])
    }

    fn start_in(
        program: &str,
        args: &[&str],
        cwd: &str,
        env: &[(&str, &str)],
        grace_ms: u64,
    ) -> Run {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let supervisor = Command::new(supervisor())
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let (stdout, writer) = std::io::pipe().unwrap();
        let null = File::options().read(true).write(true).open("/dev/null").unwrap();
        let cwd = File::open(cwd).unwrap();
        let spec = RunSpec {
            program: program.to_owned(),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            argv0: None,
            env: env
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            cwd: PathBuf::from("/"),
            grace_ms,
            fence: jail::SandboxProfile::None,
            rights: jail::rights::Rights::default(),
            limits: jail::limits::ResourceLimits::default(),
            proxy_env: Vec::new(),
            shut_ports: Vec::new(),
            exec: None,
            user: None,
        };
        let fds = RunFds {
            stdin: null.as_fd(),
            stdout: writer.as_fd(),
            stderr: null.as_fd(),
            cwd: cwd.as_fd(),
            proxy_channel: None,
            exec_channel: None,
            exec_log: None,
            program_file: None,
            driver_socket: None,
        };
        let rest = send_spec(ours.as_fd(), &spec, &fds).unwrap();
        (&ours).write_all(&rest).unwrap();
        Run { supervisor, control: Some(BufReader::new(ours)), stdout: BufReader::new(stdout) }
    }

    fn report(&mut self) -> Option<SupervisorReport> {
        let mut line = String::new();
        self.control.as_mut().unwrap().read_line(&mut line).unwrap();
        (!line.is_empty()).then(|| serde_json::from_str(&line).unwrap())
    }

    fn exit(&mut self) -> RunExit {
        let started = self.report();
        assert!(matches!(started, Some(SupervisorReport::Started(_))), "{started:?}");
        match self.report() {
            Some(SupervisorReport::Exited(exit) | SupervisorReport::Over(exit)) => exit,
            other => panic!("not an exit: {other:?}"),
        }
    }

    fn order_kill(&mut self) {
        self.control
            .as_mut()
            .unwrap()
            .get_mut()
            .write_all(&encode_line(&SupervisorCommand::End(15)).unwrap())
            .unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn watch_printed(&mut self) -> Watched {
        let pid = Pid::from_raw(self.line().parse().unwrap()).unwrap();
        Watched(pidfd_open(pid, PidfdFlags::empty()).unwrap())
    }

    fn rest(mut self) -> String {
        let mut text = String::new();
        self.stdout.read_to_string(&mut text).unwrap();
        text
    }

    /// The supervisor ends by itself, and only after the last process that could write to the pipe.
    fn ends_with_its_tree(mut self) {
        let watched =
            Watched(pidfd_open(Pid::from_child(&self.supervisor), PidfdFlags::empty()).unwrap());
        assert!(watched.is_gone_within(LONG), "the supervisor lives on");
        assert!(self.supervisor.wait().unwrap().success());
        let mut rest = Vec::new();
        self.stdout.read_to_end(&mut rest).unwrap();
    }
}

/// Prints its pid, having forked twice and left session and group.
const DAEMON: &str = "(setsid bash -c 'echo $BASHPID; exec sleep 1000' &) ; ";

#[test]
fn an_exit_code_and_a_signal_are_told() {
    let mut run = Run::bash("exit 7");
    let exit = run.exit();
    assert_eq!(
        (exit.code, exit.signal, exit.left_behind, exit.denials.len()),
        (Some(7), None, 0, 0)
    );
    assert_eq!(run.report(), None);
    run.ends_with_its_tree();
    let mut run = Run::bash("kill -SEGV $$");
    let exit = run.exit();
    assert_eq!((exit.code, exit.signal), (None, Some(11)));
    run.ends_with_its_tree();
}

#[test]
fn a_program_that_cannot_be_started_is_told_with_its_errno() {
    let mut run = Run::start("/no/such/program", &[]);
    match run.report() {
        Some(SupervisorReport::Failed(failure)) => {
            assert_eq!(failure.errno, Some(2), "{failure:?}")
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(run.report(), None);
}

#[test]
fn the_environment_is_exactly_the_one_given_and_the_directory_too() {
    let env = [("ONE", "1"), ("TWO", "a b\n\"c\"")];
    let run = Run::start_in("/usr/bin/env", &["-0"], "/usr/lib", &env, 200);
    assert_eq!(run.rest(), "ONE=1\0TWO=a b\n\"c\"\0");
    let run = Run::start_in("/bin/pwd", &["-P"], "/usr/lib", &[], 200);
    assert_eq!(run.rest().trim(), "/usr/lib");
}

#[test]
fn a_long_argument_list_arrives_whole() {
    let long = "x".repeat(100_000);
    let args = ["-c", "printf %s \"$0$1$2$3$4$5\"", &long, &long, &long, &long, &long, &long];
    assert_eq!(Run::start("/bin/bash", &args).rest().len(), 600_000);
}

#[test]
fn the_program_has_three_descriptors_a_group_of_its_own_and_no_terminal() {
    // The fourth is the directory that `ls` itself has open.
    let run = Run::start("/bin/ls", &["/proc/self/fd"]);
    assert_eq!(run.rest().split_whitespace().collect::<Vec<_>>(), ["0", "1", "2", "3"]);
    let mut run = Run::bash(
        "read -r pid _ _ _ group session tty rest </proc/$$/stat; echo $((pid == group)) $((pid == session)) $tty",
    );
    assert_eq!(run.line(), "1 1 0");
}

#[test]
fn a_daemon_dies_when_the_server_says_so() {
    let mut run = Run::bash(&format!("{DAEMON} sleep 1000"));
    let daemon = run.watch_printed();
    run.order_kill();
    assert!(daemon.is_gone_within(LONG));
    assert_eq!(run.exit().signal, Some(15));
    run.ends_with_its_tree();
}

#[test]
fn a_daemon_dies_when_the_server_is_gone() {
    let mut run = Run::bash(&format!("{DAEMON} sleep 1000"));
    let daemon = run.watch_printed();
    run.control = None;
    assert!(daemon.is_gone_within(LONG));
    run.ends_with_its_tree();
}

#[test]
fn a_daemon_dies_when_the_server_is_killed() {
    let mut run = Run::bash(&format!("{DAEMON} sleep 1000"));
    let daemon = run.watch_printed();
    // A process that holds the control socket as the server does, and has no chance to say goodbye.
    let control = run.control.take().unwrap().into_inner();
    let mut server = Command::new("/bin/sleep")
        .arg("1000")
        .stdin(Stdio::from(OwnedFd::from(control)))
        .spawn()
        .unwrap();
    assert!(!daemon.is_gone_within(Duration::from_millis(50)));
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(daemon.is_gone_within(LONG));
    run.ends_with_its_tree();
}

#[test]
fn what_the_main_process_leaves_behind_is_counted_and_ended() {
    let mut run = Run::bash(&format!("{DAEMON} read -t 0.2 <> <(:); exit 3"));
    let daemon = run.watch_printed();
    let exit = run.exit();
    assert_eq!((exit.code, exit.left_behind), (Some(3), 1), "{exit:?}");
    assert!(["bash", "sleep"].contains(&exit.names[0].as_str()), "{exit:?}");
    assert!(daemon.is_gone_within(LONG));
    run.ends_with_its_tree();
}

#[test]
fn a_process_that_ignores_the_request_dies_after_the_grace() {
    let mut run = Run::bash("trap '' TERM; echo $$; while :; do sleep 1000; done");
    let stubborn = run.watch_printed();
    let asked = Instant::now();
    run.order_kill();
    assert!(stubborn.is_gone_within(LONG));
    assert!(asked.elapsed() >= Duration::from_millis(200), "no grace: {:?}", asked.elapsed());
    assert_eq!(run.exit().signal, Some(9));
    run.ends_with_its_tree();
}

#[test]
fn a_process_that_ends_within_the_grace_may_clean_up() {
    let mut run = Run::bash("trap 'echo bye; exit 4' TERM; echo up; while :; do sleep 0.01; done");
    assert_eq!(run.line(), "up");
    run.order_kill();
    assert_eq!(run.line(), "bye");
    assert_eq!(run.exit().code, Some(4));
    run.ends_with_its_tree();
}

#[test]
fn a_storm_of_forks_dies() {
    let mut run = Run::bash(
        "trap '' TERM; f() { sleep 0.005; f & }; for i in {1..20}; do f & done; echo up; wait; sleep 1000",
    );
    assert_eq!(run.line(), "up");
    run.order_kill();
    run.ends_with_its_tree();
}

/// Each generation leaves group and session and is gone in a moment: no walk through /proc is fast enough.
#[test]
fn a_process_that_never_stands_still_dies() {
    let script = "import os, signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\n\
                  while True:\n  if os.fork(): os._exit(0)\n  os.setsid()\n";
    let mut run = Run::start("/usr/bin/env", &["python3", "-c", script]);
    assert_eq!(run.line(), "up");
    run.ends_with_its_tree();
}
