//! Starting a run: one supervisor, its control socket and the pipes of what it runs.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as Socket;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use jail::supervisor::{self, Failure, Fds, Report, Spec};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::base::{Error, Kind, Result};

/// A supervisor answers in milliseconds; a machine that needs this long is not going to.
const START: Duration = Duration::from_secs(10);

/// How a supervisor is started.
#[derive(Debug, Clone)]
pub struct Launcher {
    program: PathBuf,
    args: Vec<OsString>,
}

/// What is to run. The environment is exact, and the directory is an open one: what was checked is what is used.
pub struct Launch {
    pub program: String,
    pub args: Vec<String>,
    pub cwd: OwnedFd,
    pub env: Vec<(String, String)>,
    /// Nothing to read when absent.
    pub stdin: Option<Vec<u8>>,
    /// Between SIGTERM and SIGKILL.
    pub grace: Duration,
}

/// A run that has been started. Dropping it closes the control socket, which ends the whole tree.
pub struct Run {
    pub(super) started: Instant,
    pub(super) grace: Duration,
    pub(super) reports: Lines<BufReader<OwnedReadHalf>>,
    pub(super) orders: OwnedWriteHalf,
    pub(super) stdin: Option<(Sender, Vec<u8>)>,
    pub(super) stdout: Receiver,
    pub(super) stderr: Receiver,
    /// Held so that it is reaped; while it does its work it needs no signal, the closed socket is enough.
    pub(super) supervisor: Child,
    pub(super) main: Option<Pid>,
}

impl Launcher {
    /// Our own binary, which stays the one that is running even when its file is replaced.
    pub fn own() -> Self {
        Launcher::new("/proc/self/exe", [supervisor::ARGUMENT])
    }

    pub fn new<A: Into<OsString>>(program: impl Into<PathBuf>, args: impl IntoIterator<Item = A>) -> Self {
        Launcher { program: program.into(), args: args.into_iter().map(Into::into).collect() }
    }

    pub async fn start(&self, launch: Launch) -> Result<Run> {
        let program = launch.program.clone();
        let mut run = self.spawn(launch).await.map_err(|error| cannot_start(&program, &error))?;
        let answer = tokio::time::timeout(START, run.report()).await.unwrap_or(Ok(None));
        match answer {
            Ok(Some(Report::Started(main))) => {
                run.main = Pid::from_raw(main);
                Ok(run)
            }
            Ok(Some(Report::Failed(failure))) => Err(spawn_failed(&program, &failure)),
            Ok(_) => Err(cannot_start(&program, &io::Error::other("the supervisor did not answer"))),
            Err(error) => Err(cannot_start(&program, &error)),
        }
    }

    async fn spawn(&self, launch: Launch) -> io::Result<Run> {
        let started = Instant::now();
        // Ours does not block, theirs does: a flag belongs to its end of the pair, so each gets its own way.
        let (ours, theirs) = Socket::pair()?;
        ours.set_nonblocking(true)?;
        let supervisor = Command::new(&self.program)
            .args(&self.args)
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let (stdin, stdin_fd) = match launch.stdin {
            Some(bytes) => {
                let (reader, writer) = io::pipe()?;
                (Some((Sender::from_owned_fd(writer.into())?, bytes)), OwnedFd::from(reader))
            }
            None => (None, File::open("/dev/null")?.into()),
        };
        let (stdout, stdout_fd) = io::pipe()?;
        let (stderr, stderr_fd) = io::pipe()?;
        let spec = Spec {
            program: launch.program,
            args: launch.args,
            argv0: None,
            env: launch.env,
            grace_ms: u64::try_from(launch.grace.as_millis()).unwrap_or(u64::MAX),
        };
        let fds = Fds {
            stdin: stdin_fd.as_fd(),
            stdout: stdout_fd.as_fd(),
            stderr: stderr_fd.as_fd(),
            cwd: launch.cwd.as_fd(),
        };
        let rest = supervisor::send_spec(ours.as_fd(), &spec, &fds)?;
        let (reports, mut orders) = UnixStream::from_std(ours)?.into_split();
        orders.write_all(&rest).await?;
        Ok(Run {
            started,
            grace: launch.grace,
            reports: BufReader::new(reports).lines(),
            orders,
            stdin,
            stdout: Receiver::from_owned_fd(stdout.into())?,
            stderr: Receiver::from_owned_fd(stderr.into())?,
            supervisor,
            main: None,
        })
    }
}

impl Run {
    /// Ends what can be found without the supervisor, which a command of the same user can kill or stop.
    pub(super) fn kill_without_supervisor(supervisor: &mut Child, main: Option<Pid>) {
        let ended = |error: &io::Error| error.kind() == io::ErrorKind::InvalidInput;
        if let Err(error) = supervisor.start_kill()
            && !ended(&error)
        {
            tracing::warn!("a supervisor cannot be killed: {error}");
        }
        if let Some(main) = main
            && let Err(error) = rustix::process::kill_process_group(main, Signal::KILL)
            && error != Errno::SRCH
        {
            tracing::warn!("a run cannot be killed: {error}");
        }
    }

    /// The next thing the supervisor tells; `None` once it has ended, and everything it ran with it.
    pub(super) async fn report(&mut self) -> io::Result<Option<Report>> {
        match self.reports.next_line().await? {
            Some(line) => Ok(Some(serde_json::from_str(&line)?)),
            None => Ok(None),
        }
    }
}

fn cannot_start(program: &str, error: &io::Error) -> Error {
    tracing::warn!("cannot start a run of {program:?}: {error}");
    Error::internal("the command could not be started").reason("spawn_failed").source(error.to_string())
}

/// The program was looked for and could not be run. Its name is the caller's own word.
fn spawn_failed(program: &str, failure: &Failure) -> Error {
    let shown: String = program.chars().take(200).collect();
    let errno = failure.errno.map(Errno::from_raw_os_error);
    let (kind, message, hint) = match errno {
        Some(Errno::NOENT) => (
            Kind::NotFound,
            format!("there is no program `{shown}`"),
            "Check the name; a path is relative to `cwd`, a bare name is looked up in PATH. A script may name an interpreter that is missing.",
        ),
        Some(Errno::ACCESS | Errno::ISDIR | Errno::NOTDIR | Errno::LOOP) => (
            Kind::InvalidArguments,
            format!("`{shown}` is not a program that can be run"),
            "Run it through its interpreter, or make the file executable.",
        ),
        Some(Errno::NOEXEC) => (
            Kind::InvalidArguments,
            format!("`{shown}` is not in a format that this system runs"),
            "Run it through its interpreter, or give it a `#!` line.",
        ),
        Some(Errno::TOOBIG | Errno::NAMETOOLONG) => (
            Kind::InvalidArguments,
            "the command is longer than the system takes".to_owned(),
            "Pass long text through `stdin` or a file.",
        ),
        _ => (Kind::Internal, format!("`{shown}` could not be started"), Kind::Internal.default_hint()),
    };
    Error::new(kind, message).reason("spawn_failed").hint(hint).source(failure.text.clone())
}
