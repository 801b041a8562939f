//! Runs, with a real supervisor.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::*;
use crate::base::client_handle::{ClientCapabilities, ClientEvent, ClientHandle};
use crate::base::clock::Deadline;
use crate::base::workspace::Workspace;
use crate::base::{CancelCause, CancelToken};
use crate::config::{
    Config, ConfigFlags, ProcessEnv, ProfileSetting, SandboxFlags, resolve_config,
};
use crate::session::{Principal, Session};

/// Launches the real binary: a test program has threads, and neither a zygote nor a supervisor
/// forks with more than one.
pub(crate) fn launcher() -> Launcher {
    let tests = std::env::current_exe().unwrap();
    let binary = tests.parent().and_then(Path::parent).unwrap().join("ringfence");
    assert!(binary.exists(), "{} is missing: run `cargo build -p ringfence`", binary.display());
    Launcher::new(binary)
}

/// A session over a directory of its own, removed with it.
pub(crate) struct Place {
    pub dir: PathBuf,
    pub session: Arc<Session>,
    pub sandboxes: SessionSandboxes,
}

impl Place {
    pub fn new() -> Self {
        let dir = std::env::temp_dir().join(crate::base::ids::short_id("ringfence-test"));
        std::fs::create_dir_all(dir.join("ws")).unwrap();
        let config = config(&dir, ProfileSetting::Default);
        let workspace = Workspace::open(&dir.join("ws"), &[]).unwrap();
        let rights =
            profile::run_rights(&SandboxConfig::from_config(&config), workspace.path()).unwrap();
        let workspace = Arc::new(workspace.with_rights(rights).unwrap());
        let session =
            Session::new(Principal::local(), "stdio", workspace, &config.root, CancelToken::new());
        let session = Arc::new(session);
        Place { dir, sandboxes: SessionSandboxes::new(Arc::clone(&session)), session }
    }

    /// Returns the session's sandbox with profile `none`.
    fn cell(&self) -> Arc<SessionSandbox> {
        let config = sandbox_config(&self.dir, ProfileSetting::None);
        self.sandboxes.own_sandbox(&config, &launcher()).unwrap()
    }
}

/// Resolves a config in which the operator has set nothing but this.
pub(crate) fn config(dir: &Path, profile: ProfileSetting) -> Config {
    let flags = ConfigFlags {
        root: Some(dir.join("root")),
        workspace: Some(dir.join("ws")),
        sandbox: SandboxFlags { profile: Some(profile), ..SandboxFlags::default() },
        ..ConfigFlags::default()
    };
    resolve_config(&flags, &ProcessEnv::new([("HOME", "/nonexistent")], "/")).unwrap()
}

/// Returns the sandbox of such a config.
pub(crate) fn sandbox_config(dir: &Path, profile: ProfileSetting) -> SandboxConfig {
    SandboxConfig::from_config(&config(dir, profile))
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn bash(script: &str) -> LaunchRequest {
    LaunchRequest {
        program: "/bin/bash".into(),
        args: vec!["-c".into(), script.into()],
        cwd: File::open("/").unwrap().into(),
        cwd_path: "/".into(),
        on_decision: None,
        env: env::build(&[]).unwrap(),
        stdin: StdinSource::Empty,
        merge_stderr: false,
        rights: None,
        grace: Duration::from_millis(300),
        execs: None,
        denied_hosts: Vec::new(),
        driver_socket: None,
        session_router: None,
    }
}

/// A run, and what may end it.
struct Test {
    place: Place,
    cancel: CancelToken,
    deadline: Arc<Deadline>,
    caller: ClientHandle,
    budget: usize,
    file_bytes: u64,
}

impl Test {
    fn new() -> Self {
        Test {
            place: Place::new(),
            cancel: CancelToken::new(),
            deadline: Arc::new(Deadline::after(Duration::from_secs(60))),
            caller: ClientHandle::new(ClientCapabilities::default()).0,
            budget: 10_000,
            file_bytes: 50_000_000,
        }
    }

    async fn run(&self, launch: LaunchRequest) -> RunOutcome {
        self.try_run(launch).await.unwrap()
    }

    async fn try_run(&self, launch: LaunchRequest) -> crate::base::Result<RunOutcome> {
        let keep = RunOptions {
            outputs: self.place.session.outputs.clone(),
            cancel: self.cancel.clone(),
            deadline: Some(self.deadline.clone()),
            budget: self.budget,
            max_file_bytes: self.file_bytes,
            stdout_filter: None,
            on_end: Box::new(|_| Box::pin(async {})),
            on_late_end: Some(Box::new(|_| {})),
            on_forgotten: Box::new(|| {}),
            tasks: TaskTracker::new(),
        };
        let live = self.place.cell().start_run(launch).await?.into_handle(keep);
        let look = OutputRequest {
            client: Some(self.caller.clone()),
            budget: self.budget,
            until: Box::pin(std::future::pending()),
            yields_to_next: false,
        };
        match live.request_output(look).await? {
            RunState::Over(outcome) => Ok(outcome),
            RunState::Running(_) => unreachable!("nothing else is waited for"),
        }
    }
}

fn our_memory_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

async fn is_gone(pid: &str) {
    let pid = rustix::process::Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    let Ok(handle) = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) else {
        return;
    };
    let gone = tokio::task::spawn_blocking(move || {
        let limit = rustix::event::Timespec { tv_sec: 5, tv_nsec: 0 };
        let mut watched = [rustix::event::PollFd::new(&handle, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut watched, Some(&limit)).unwrap() == 1
    });
    let gone = gone.await.unwrap();
    assert!(gone, "{pid:?} lives on");
}

fn children() -> impl Iterator<Item = String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let pids = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let pids: Vec<String> =
        pids.flat_map(|list| list.split(' ').map(str::to_owned).collect::<Vec<_>>()).collect();
    pids.into_iter().filter_map(|pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok())
}

#[tokio::test]
async fn streams_and_exit_code_come_back_apart() {
    let outcome = Test::new().run(bash("echo out; echo err >&2; exit 3")).await;
    assert_eq!(
        (outcome.result.exit_code, outcome.result.signal, outcome.result.stop_reason),
        (Some(3), None, None)
    );
    assert_eq!((outcome.stdout.text.as_str(), outcome.stderr.text.as_str()), ("out\n", "err\n"));
    assert_eq!((outcome.result.output_handle, outcome.result.warnings), (None, vec![]));
    let outcome = Test::new().run(bash("kill -KILL $$")).await;
    assert_eq!((outcome.result.exit_code, outcome.result.signal), (None, Some(9)));
}

#[tokio::test]
async fn standard_input_is_what_was_given_or_nothing() {
    let mut launch = bash("cat");
    launch.stdin = StdinSource::Bytes(b"x".repeat(300_000));
    let test = Test { budget: 400_000, ..Test::new() };
    assert_eq!(test.run(launch).await.stdout.bytes, 300_000);
    let outcome = test.run(bash("read x; echo $?; readlink /proc/self/fd/0")).await;
    assert_eq!(outcome.stdout.text, "1\n/dev/null\n");
    // A program need not read its input.
    let mut launch = bash("exit 0");
    launch.stdin = StdinSource::Bytes(b"x".repeat(300_000));
    assert_eq!(test.run(launch).await.result.exit_code, Some(0));
}

#[tokio::test]
async fn our_environment_stays_ours() {
    // Cargo and nextest put dozens of variables here; HOME is on the list, as an example of those
    // that pass.
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some() && std::env::var_os("HOME").is_some());
    let text = Test::new().run(bash("env")).await.stdout.text;
    assert!(text.contains("HOME=") && !text.contains("CARGO"), "{text}");
}

#[tokio::test]
async fn a_missing_program_is_not_found() {
    let launch =
        LaunchRequest { program: "no-such-program-anywhere".into(), args: vec![], ..bash("") };
    let error = Place::new().cell().start_run(launch).await.err().unwrap();
    assert_eq!(
        (error.kind(), error.reason_name()),
        (crate::base::Kind::NotFound, Some("spawn_failed"))
    );
    let launch = LaunchRequest { program: "/etc/passwd".into(), args: vec![], ..bash("") };
    assert_eq!(
        Place::new().cell().start_run(launch).await.err().unwrap().kind(),
        crate::base::Kind::InvalidArguments
    );
}

#[tokio::test]
async fn a_background_process_does_not_hold_the_result() {
    let test = Test::new();
    let began = Instant::now();
    let outcome = test.run(bash("sleep 30 & echo $!")).await;
    assert!(began.elapsed() < Duration::from_millis(600), "{:?}", began.elapsed());
    assert_eq!(outcome.result.exit_code, Some(0));
    // The name is bash's until the exec of sleep.
    assert!(
        outcome.result.warnings[0].starts_with("1 background process ("),
        "{:?}",
        outcome.result.warnings
    );
    assert!(outcome.result.warnings[0].ends_with(", and was ended"));
    is_gone(&outcome.stdout.text).await;

    let began = Instant::now();
    let outcome = test.run(bash("trap '' TERM; sleep 30 & echo $!")).await;
    assert!(began.elapsed() < Duration::from_millis(600), "{:?}", began.elapsed());
    assert!(
        outcome.result.warnings[0]
            .ends_with(" when the command exited, with the output open, and was ended")
    );
    is_gone(&outcome.stdout.text).await;
}

#[tokio::test]
async fn a_deadline_ends_the_tree_and_keeps_what_was_said() {
    let test = Test { deadline: Deadline::after(Duration::from_millis(200)).into(), ..Test::new() };
    let outcome = test
        .run(bash("trap '' TERM; (setsid bash -c 'echo $BASHPID; exec sleep 100' &); sleep 100"))
        .await;
    assert_eq!(
        (outcome.result.stop_reason, outcome.result.signal),
        (Some(StopReason::Deadline), Some(9))
    );
    assert_eq!(outcome.result.warnings, Vec::<String>::new());
    // Already dead: a result never comes before the end of what it describes.
    assert!(!std::path::Path::new(&format!("/proc/{}", outcome.stdout.text.trim())).exists());
}

#[tokio::test]
async fn a_cancelled_run_tells_its_cause() {
    let (caller, mut inbox) =
        ClientHandle::new(ClientCapabilities { progress: true, ..ClientCapabilities::default() });
    let test = Test { caller, ..Test::new() };
    let cancel = test.cancel.clone();
    // The first line is out: now the run is cancelled.
    tokio::spawn(async move {
        let event = inbox.recv().await;
        cancel.cancel(CancelCause::Client);
        drop(event);
        inbox.recv().await;
    });
    let outcome = test.run(bash("echo up; sleep 100")).await;
    assert_eq!(
        (outcome.result.stop_reason, outcome.result.signal),
        (Some(StopReason::Cancelled(CancelCause::Client)), Some(15))
    );
    assert_eq!(outcome.stdout.text, "up\n");
}

#[tokio::test]
async fn a_dropped_run_ends_its_tree() {
    let run = Place::new()
        .cell()
        .start_run(bash("(setsid bash -c 'echo $BASHPID; exec sleep 100' &); sleep 100"))
        .await
        .unwrap();
    let mut line = [0; 32];
    run.stdout.as_ref().unwrap().readable().await.unwrap();
    let count = run.stdout.as_ref().unwrap().try_read(&mut line).unwrap();
    drop(run);
    is_gone(std::str::from_utf8(&line[..count]).unwrap()).await;
}

#[tokio::test]
async fn a_lost_supervisor_is_an_error_and_not_a_result() {
    let mut launch = bash("read; echo why >&2; kill -KILL $PPID; exec sleep 0.2");
    // Standard input is fed once the start has been reported.
    launch.stdin = StdinSource::Bytes(b"go\n".to_vec());
    let error = Test::new().try_run(launch).await.unwrap_err();
    assert_eq!(error.kind(), crate::base::Kind::Internal);
    let body = error.to_body(&crate::base::TraceId::generate());
    assert_eq!(
        (&body["message"], &body["stderr"]),
        (&"the supervisor of the command was lost".into(), &"why\n".into())
    );
}

#[tokio::test]
async fn what_is_cut_is_stored_whole_and_in_order() {
    let test = Test { budget: 1000, ..Test::new() };
    let outcome = test.run(bash("for i in {1..500}; do echo line $i; done; echo end >&2")).await;
    assert!(outcome.stdout.truncated && outcome.stdout.text.len() < 1100);
    assert!(outcome.stdout.text.ends_with("line 500\n"));
    assert_eq!(outcome.stderr.text, "end\n");
    let file =
        test.place.session.outputs.open_output(&outcome.result.output_handle.unwrap()).unwrap();
    let whole = std::io::read_to_string(file).unwrap();
    let expected: String = (1..=500).map(|line| format!("line {line}\n")).collect();
    assert_eq!(whole.replace("end\n", ""), expected);
    assert_eq!(whole.len(), expected.len() + 4);
}

#[tokio::test]
async fn a_flood_costs_no_memory_and_little_disk() {
    let test = Test { file_bytes: 1_000_000, ..Test::new() };
    test.run(bash("echo warm; echo up >&2")).await;
    let before = our_memory_kib();
    let began = Instant::now();
    let outcome = test.run(bash("yes 0123456789abcdef | head -c 300000000")).await;
    let grown = our_memory_kib() - before;
    println!("300 MB in {:?}, {grown} KiB more", began.elapsed());
    assert_eq!(outcome.stdout.bytes, 300_000_000);
    assert!(grown < 8 * 1024, "{grown} KiB");
    let file =
        test.place.session.outputs.open_output(&outcome.result.output_handle.unwrap()).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 1_000_000);
    assert_eq!(outcome.result.warnings, ["the stored output stops after 1000000 bytes"]);
}

#[tokio::test]
async fn a_client_that_takes_nothing_slows_the_run_down() {
    let (caller, mut inbox) =
        ClientHandle::new(ClientCapabilities { progress: true, ..ClientCapabilities::default() });
    let test = Test {
        caller,
        deadline: Deadline::after(Duration::from_millis(700)).into(),
        ..Test::new()
    };
    let slow = tokio::spawn(async move {
        let first = inbox.recv().await;
        std::future::pending::<()>().await;
        drop(first);
    });
    let outcome = test.run(bash("yes")).await;
    slow.abort();
    // 600 ms of `yes` would be gigabytes; it ran for the 100 ms before the first message only.
    let free = Test { deadline: Deadline::after(Duration::from_millis(700)).into(), ..Test::new() };
    let free = free.run(bash("yes")).await;
    assert_eq!(
        (outcome.result.stop_reason, free.result.stop_reason),
        (Some(StopReason::Deadline), Some(StopReason::Deadline))
    );
    assert!(
        outcome.stdout.bytes < free.stdout.bytes / 2,
        "{} {}",
        outcome.stdout.bytes,
        free.stdout.bytes
    );
}

#[tokio::test]
async fn progress_shows_lines_as_they_come() {
    let (caller, mut inbox) =
        ClientHandle::new(ClientCapabilities { progress: true, ..ClientCapabilities::default() });
    let test = Test { caller, ..Test::new() };
    let seen = tokio::spawn(async move {
        let mut seen = Vec::new();
        while let Some(ClientEvent::Progress { message, progress, done, .. }) = inbox.recv().await {
            seen.push((message, progress));
            let _ = done.send(());
        }
        seen
    });
    test.run(bash("echo one; echo bad >&2; sleep 0.3; echo two; sleep 0.3; echo three")).await;
    drop(test);
    let seen = seen.await.unwrap();
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert!(seen[0].0.contains("one") && seen[0].0.contains("[stderr] bad"));
    assert_eq!(seen[1], ("two".to_owned(), 2.0));
}

/// Not a promise, a measurement: `--nocapture` shows it.
#[tokio::test]
async fn the_price_of_a_supervisor_is_small() {
    let test = Test::new();
    let mut supervised = Vec::new();
    let mut plain = Vec::new();
    for _ in 0..100 {
        let began = Instant::now();
        assert_eq!(test.run(bash("echo hi")).await.stdout.text, "hi\n");
        supervised.push(began.elapsed());
        let began = Instant::now();
        tokio::process::Command::new("/bin/bash").args(["-c", "echo hi"]).output().await.unwrap();
        plain.push(began.elapsed());
    }
    // They are reaped as they end: at most the last is still on its way.
    let dead = children().filter(|stat| stat.contains(") Z ")).count();
    assert!(dead <= 2, "{dead} supervisors are not reaped");
    supervised.sort();
    plain.sort();
    println!(
        "echo hi: p50 {:?} (plain {:?}), p95 {:?} (plain {:?})",
        supervised[50], plain[50], supervised[95], plain[95]
    );
    assert!(supervised[50] < plain[50] + Duration::from_millis(100));
}
