//! Starts a run: one supervisor, its control socket and the pipes of its program.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as Socket;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use jail::packet::PacketChannel;
use jail::rights::{NetworkAccess, Rights};
use jail::supervisor::{self, RunFds, RunSpec, SupervisorCommand, SupervisorReport, encode_line};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, Command};
use tokio::time::Instant;

use super::cell::Cell;
use super::egress::Egress;
use super::execs::{Execs, Service};
use super::live::Ended;
use super::stream::KILLING;
use super::wider::WiderTerms;
use super::{env, fault};
use crate::base::{Error, Result};
use crate::net::{Decided, Proxy, Switch, environment};

/// Time limit for an answer. A supervisor answers in milliseconds; a machine that needs this long
/// will not answer at all.
const START: Duration = Duration::from_secs(10);

/// Starts this binary again, with an argument that selects its role.
#[derive(Debug, Clone)]
pub struct Launcher {
    program: PathBuf,
}

/// Program to be run. The environment is exact, and the directory is an open descriptor: the one
/// that was checked is the one that is used.
pub struct Launch {
    pub program: String,
    pub args: Vec<String>,
    pub cwd: OwnedFd,
    /// Path of the same directory, for a run that sees it through other mounts.
    pub cwd_path: PathBuf,
    pub env: Vec<(String, String)>,
    pub stdin: Stdin,
    /// Sends standard error to the same pipe as standard output, so that their order is kept.
    pub merged: bool,
    /// Session rights as restricted by a client's sandbox; the session's own if absent.
    pub rights: Option<Rights>,
    /// Time between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// Called for everything that the run's proxy decides, if it has one.
    pub decided: Option<Decided>,
    /// Rules for its execs. Without them execs are not watched.
    pub execs: Option<Execs>,
    /// Host names that it may not reach, whatever the sandbox allows.
    pub denied_hosts: Vec<String>,
    /// One end of a socket pair that the program gets in addition to its standard streams;
    /// `RINGFENCE_LINE` is its number.
    pub line: Option<OwnedFd>,
    /// Routes of its proxy, for a run that acts for several sessions; replaces what its sandbox
    /// allows.
    pub switch: Option<Arc<Switch>>,
}

/// Standard input of a run. It is never the server's.
#[derive(Debug, Default)]
pub enum Stdin {
    /// No input.
    #[default]
    Empty,
    /// These bytes, and then the end.
    Bytes(Vec<u8>),
    /// These bytes, and whatever is written later.
    Open(Vec<u8>),
}

/// Run that has been started. Dropping it closes the control socket, which ends the whole tree.
pub struct Run {
    pub(super) started: Instant,
    pub(super) grace: Duration,
    pub(super) reports: Lines<BufReader<OwnedReadHalf>>,
    pub(super) orders: OwnedWriteHalf,
    pub(super) stdin: Option<(Sender, Vec<u8>)>,
    /// More may be written to standard input.
    pub(super) interactive: bool,
    pub(super) stdout: Option<Receiver>,
    pub(super) stderr: Option<Receiver>,
    /// Our own child, held so that it is reaped; while it works it needs no signal, because closing
    /// the socket is enough. A supervisor forked by a zygote is the zygote's child.
    pub(super) supervisor: Option<Child>,
    pub(super) main: Option<Pid>,
    pub(super) egress: Option<Egress>,
    /// Proxy of a run that acts for several sessions, and its port inside the sandbox.
    pub(super) shared: Option<(Proxy, u16)>,
    /// Answers for the run's execs until it ends.
    pub(super) service: Option<Service>,
}

/// Connection to a supervisor that has received its spec.
pub(super) struct Control {
    pub reports: Lines<BufReader<OwnedReadHalf>>,
    pub orders: OwnedWriteHalf,
    /// As in [`Run`].
    pub supervisor: Option<Child>,
    pub egress: Option<Egress>,
    /// Answers for the run's execs until it ends.
    pub service: Option<Service>,
    /// Report that was received early.
    pub told: Option<SupervisorReport>,
}

impl Control {
    /// Starts a supervisor and sends it the spec. `supervisor` makes one that waits on the socket
    /// it is given.
    pub async fn open<F>(
        supervisor: impl FnOnce(OwnedFd) -> F,
        spec: &RunSpec,
        fds: &RunFds<BorrowedFd<'_>>,
    ) -> Result<Control>
    where
        F: Future<Output = Result<Option<Child>>>,
    {
        let failed = |error: io::Error| cannot_start(&spec.program, &error);
        // Our end does not block, the supervisor's does: the flag belongs to one end of the pair.
        let (ours, theirs) = Socket::pair().map_err(failed)?;
        ours.set_nonblocking(true).map_err(failed)?;
        let supervisor = supervisor(theirs.into()).await?;
        let rest = supervisor::send_spec(ours.as_fd(), spec, fds).map_err(failed)?;
        let (reports, mut orders) = UnixStream::from_std(ours).map_err(failed)?.into_split();
        orders.write_all(&rest).await.map_err(failed)?;
        Ok(Control {
            reports: BufReader::new(reports).lines(),
            orders,
            supervisor,
            egress: None,
            service: None,
            told: None,
        })
    }

    /// Sends an order. A write error means that the supervisor has ended, which the end of its
    /// reports shows.
    pub async fn order(&mut self, order: SupervisorCommand) {
        let _ = self.orders.write_all(&encode_line(&order).unwrap_or_default()).await;
    }

    /// Returns the supervisor's next report; `None` once it has ended, and everything it ran with
    /// it.
    pub async fn report(&mut self) -> io::Result<Option<SupervisorReport>> {
        if let Some(told) = self.told.take() {
            return Ok(Some(told));
        }
        match self.reports.next_line().await? {
            Some(line) => Ok(Some(serde_json::from_str(&line)?)),
            None => Ok(None),
        }
    }
}

impl Launcher {
    /// Starts our own binary, which stays the running version even if its file is replaced.
    pub fn own() -> Self {
        Launcher::new("/proc/self/exe")
    }

    /// Starts this program instead of our own binary.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Launcher { program: program.into() }
    }

    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    /// Builds the command with an empty environment: ours holds what neither a run nor its helpers
    /// need to know.
    pub(super) fn command(&self, word: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(word).env_clear();
        command
    }

    /// Returns a function that starts a supervisor as our own child.
    pub(super) fn supervisor(
        &self,
    ) -> impl FnOnce(OwnedFd) -> std::future::Ready<Result<Option<Child>>> {
        let mut command = self.command(supervisor::ARGUMENT);
        move |control| {
            let spawned = command
                .stdin(Stdio::from(control))
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn();
            std::future::ready(
                spawned.map(Some).map_err(|error| cannot_start("the supervisor", &error)),
            )
        }
    }
}

impl Cell {
    /// Starts a run, and returns once its program has been started.
    pub async fn start(&self, launch: Launch) -> Result<Run> {
        let program = launch.program.clone();
        let decided = launch.decided.clone();
        let denied = launch.denied_hosts.clone();
        let switch = launch.switch.clone();
        let (mut run, handout) = self.spawn(launch).await?;
        let answer = tokio::time::timeout(START, run.report()).await.unwrap_or(Ok(None));
        match answer {
            Ok(Some(SupervisorReport::Started(main))) => {
                run.main = Pid::from_raw(main);
                if let (Some(handout), Some(switch)) = (&handout, &switch) {
                    let shared = Egress::start_for_many(handout, switch);
                    run.shared = Some(shared.map_err(|error| cannot_start(&program, &error))?);
                } else if let (Some(handout), Some(allow)) = (handout, &self.allow) {
                    let less = Arc::new(allow.denying(&denied)?);
                    let egress = Egress::start(&handout, &less, decided);
                    run.egress = Some(egress.map_err(|error| cannot_start(&program, &error))?);
                }
                Ok(run)
            }
            Ok(Some(SupervisorReport::Failed(failure))) => Err(fault::explain(&program, &failure)),
            Ok(_) => {
                Err(cannot_start(&program, &io::Error::other("the supervisor did not answer")))
            }
            Err(error) => Err(cannot_start(&program, &error)),
        }
    }

    async fn spawn(&self, launch: Launch) -> Result<(Run, Option<PacketChannel>)> {
        let started = Instant::now();
        let program = launch.program.clone();
        let failed = |error: io::Error| cannot_start(&program, &error);
        let rights = self.rights_of(launch.rights);
        let piped = Piped::new(launch.stdin, launch.merged).map_err(failed)?;
        let has_way_out = self.allow.is_some() || launch.switch.is_some();
        let spec = self.specified(RunSpec {
            program: launch.program,
            args: launch.args,
            argv0: None,
            env: env::merge(launch.env, self.env.clone()),
            cwd: launch.cwd_path,
            grace_ms: u64::try_from(launch.grace.as_millis()).unwrap_or(u64::MAX),
            fence: self.fence(),
            rights,
            limits: Default::default(),
            proxy_env: Vec::new(),
            shut_ports: Vec::new(),
            exec: None,
            user: None,
        });
        let fds = RunFds {
            stdin: piped.theirs[0].as_fd(),
            stdout: piped.theirs[1].as_fd(),
            stderr: piped.theirs[2].as_fd(),
            cwd: launch.cwd.as_fd(),
            proxy_channel: None,
            exec_channel: None,
            exec_log: None,
            program_file: None,
            driver_socket: launch.line.as_ref().map(AsFd::as_fd),
        };
        let (control, handout) = self.begin(spec, fds, launch.execs, has_way_out).await?;
        let run = Run {
            started,
            grace: launch.grace,
            reports: control.reports,
            orders: control.orders,
            interactive: piped.interactive,
            stdin: piped.stdin,
            stdout: Some(piped.stdout),
            stderr: piped.stderr,
            supervisor: control.supervisor,
            main: None,
            egress: None,
            shared: None,
            service: control.service,
        };
        Ok((run, handout))
    }

    /// Starts a command that comes from another sandbox, on the streams that it brings. Otherwise
    /// it is a run like any other.
    pub(super) async fn start_in(
        &self,
        spec: RunSpec,
        fds: RunFds<BorrowedFd<'_>>,
        terms: WiderTerms,
    ) -> Result<Control> {
        let failed = |error: io::Error| cannot_start("the command", &error);
        let spec = self.specified(spec);
        let (mut control, handout) =
            self.begin(spec, fds, Some(terms.execs), self.allow.is_some()).await?;
        if let (Some(handout), Some(allow)) = (handout, &self.allow) {
            let first = control.report().await.map_err(failed)?;
            if matches!(first, Some(SupervisorReport::Started(_))) {
                let less = Arc::new(allow.denying(&terms.denied_hosts)?);
                control.egress =
                    Some(Egress::start(&handout, &less, Some(terms.decided)).map_err(failed)?);
            }
            control.told = first;
        }
        Ok(control)
    }

    /// Adds what all runs of this sandbox have in common.
    fn specified(&self, spec: RunSpec) -> RunSpec {
        RunSpec {
            fence: self.fence(),
            limits: self.limits.clone(),
            shut_ports: self.shut_ports.clone(),
            ..spec
        }
    }

    /// Hands a run to a supervisor, with a channel for its proxy's listener and a task that answers
    /// for its execs.
    async fn begin(
        &self,
        mut spec: RunSpec,
        fds: RunFds<BorrowedFd<'_>>,
        execs: Option<Execs>,
        has_way_out: bool,
    ) -> Result<(Control, Option<PacketChannel>)> {
        let program = spec.program.clone();
        let failed = |error: io::Error| cannot_start(&program, &error);
        let network = spec.rights.network;
        let is_proxied = network == NetworkAccess::Proxied && has_way_out;
        let handout = is_proxied.then(PacketChannel::pair).transpose().map_err(failed)?;
        let notices = execs.as_ref().map(|_| PacketChannel::pair()).transpose().map_err(failed)?;
        let log = execs.as_ref().and_then(|execs| execs.log.as_ref());
        spec.proxy_env = if is_proxied { environment(jail::PORT_PLACEHOLDER) } else { Vec::new() };
        spec.exec = execs.as_ref().map(|execs| execs.rules.clone());
        let fds = RunFds {
            proxy_channel: handout.as_ref().map(|(_, theirs)| theirs.as_fd()),
            exec_channel: notices.as_ref().map(|(_, theirs)| theirs.as_fd()),
            exec_log: log.map(AsFd::as_fd),
            ..fds
        };
        let mut control =
            Control::open(|socket| self.supervisor(network, socket), &spec, &fds).await?;
        if let (Some((ours, _)), Some(execs)) = (notices, execs) {
            control.service = Some(Service::start(ours, execs.desk, execs.wider).map_err(failed)?);
        }
        Ok((control, handout.map(|(ours, _)| ours)))
    }

    /// Starts a supervisor that waits for its spec on the socket: the session's zygote forks it, or
    /// it is our own child.
    async fn supervisor(&self, network: NetworkAccess, control: OwnedFd) -> Result<Option<Child>> {
        if let Some(zygote) = &self.zygote {
            zygote.supervise(Cell::network(network), control).await?;
            return Ok(None);
        }
        self.launcher.supervisor()(control).await
    }
}

/// Pipes of a run: our ends, and those that go to it.
struct Piped {
    stdin: Option<(Sender, Vec<u8>)>,
    interactive: bool,
    stdout: Receiver,
    stderr: Option<Receiver>,
    theirs: [OwnedFd; 3],
}

impl Piped {
    fn new(given: Stdin, merged: bool) -> io::Result<Piped> {
        let interactive = matches!(given, Stdin::Open(_));
        let (stdin, stdin_fd) = match given {
            Stdin::Bytes(bytes) | Stdin::Open(bytes) => {
                let (reader, writer) = io::pipe()?;
                (Some((Sender::from_owned_fd(writer.into())?, bytes)), OwnedFd::from(reader))
            }
            Stdin::Empty => (None, File::open("/dev/null")?.into()),
        };
        let (stdout, stdout_fd) = io::pipe()?;
        let (stderr, stderr_fd) = match merged {
            true => (None, stdout_fd.try_clone()?),
            false => io::pipe().map(|(ours, theirs)| (Some(ours), theirs))?,
        };
        Ok(Piped {
            stdin,
            interactive,
            stdout: Receiver::from_owned_fd(stdout.into())?,
            stderr: stderr.map(|stderr| Receiver::from_owned_fd(stderr.into())).transpose()?,
            theirs: [stdin_fd, stdout_fd.into(), stderr_fd.into()],
        })
    }
}

impl Run {
    /// Kills what can be found without the supervisor, which a command of the same user can kill or
    /// stop.
    pub(super) fn kill_without_supervisor(supervisor: &mut Option<Child>, main: Option<Pid>) {
        // In its own namespaces a run dies with its supervisor, and its processes cannot reach the
        // supervisor.
        let Some(supervisor) = supervisor else { return };
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

    /// Receives the last of its exec notices, and the reports of what ran in the wider sandbox in
    /// place of its processes.
    pub(super) async fn finish(&mut self, ended: &mut Ended) {
        if let Some(service) = self.service.take() {
            service.finish().await.finish(self.grace + KILLING, ended).await;
        }
    }

    /// Returns the port of its proxy, if it acts for several sessions.
    pub(super) fn port(&self) -> Option<u16> {
        self.shared.as_ref().map(|(_, port)| *port)
    }

    /// Returns the supervisor's next report; `None` once it has ended, and everything it ran with
    /// it.
    pub(super) async fn report(&mut self) -> io::Result<Option<SupervisorReport>> {
        match self.reports.next_line().await? {
            Some(line) => Ok(Some(serde_json::from_str(&line)?)),
            None => Ok(None),
        }
    }
}

fn cannot_start(program: &str, error: &io::Error) -> Error {
    tracing::warn!("cannot start a run of {program:?}: {error}");
    Error::internal("the command could not be started")
        .reason("spawn_failed")
        .source(error.to_string())
}
