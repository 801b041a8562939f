//! Starts a run: one supervisor, its control socket and the pipes of its program.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use jail::packet::PacketChannel;
use jail::rights::{NetworkAccess, Rights};
use jail::supervisor::{RunBasis, RunFds, RunSpec, SupervisorReport};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use tokio::io::{BufReader, Lines};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::Child;
use tokio::time::Instant;

use super::egress::Egress;
use super::exec_policy::ExecPolicy;
use super::execs::ExecService;
use super::run_result::RunResult;
use super::session_sandbox::SessionSandbox;
use super::start_error::{self, cannot_start};
use super::supervisor_control::SupervisorControl;
use super::wider::WiderRuns;
use super::{KILL_ALLOWANCE, env};
use crate::base::Result;
use crate::net::{OnDecision, Proxy, SessionRouter, proxy_environment};

/// Time limit for an answer. A supervisor answers in milliseconds; a machine that needs this long
/// will not answer at all.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Program to be run. The environment is exact, and the directory is an open descriptor: the one
/// that was checked is the one that is used.
pub struct LaunchRequest {
    pub program: String,
    pub args: Vec<String>,
    pub cwd: OwnedFd,
    /// Path of the same directory, for a run that sees it through other mounts.
    pub cwd_path: PathBuf,
    pub env: Vec<(String, String)>,
    pub stdin: StdinSource,
    /// Sends standard error to the same pipe as standard output, so that their order is kept.
    pub merge_stderr: bool,
    /// Session rights as restricted by a client's sandbox; the session's own if absent.
    pub rights: Option<Rights>,
    /// Time between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// Called for everything that the run's proxy decides, if it has one.
    pub on_decision: Option<OnDecision>,
    /// Rules for its execs. Without them execs are not watched.
    pub execs: Option<ExecPolicy>,
    /// Host names that it may not reach, whatever the sandbox allows.
    pub denied_hosts: Vec<String>,
    /// One end of a socket pair that the program gets in addition to its standard streams;
    /// `RINGFENCE_LINE` is its number.
    pub driver_socket: Option<OwnedFd>,
    /// Routes of its proxy, for a run that acts for several sessions; replaces what its sandbox
    /// allows.
    pub session_router: Option<Arc<SessionRouter>>,
}

/// Rules for a run in the wider sandbox, and the destination of its record.
pub struct WiderRunOptions {
    pub execs: ExecPolicy,
    /// Called for everything that its proxy decides.
    pub on_decision: OnDecision,
    /// Host names that it may not reach, whatever its sandbox allows.
    pub denied_hosts: Vec<String>,
    /// Wider runs of the run that it belongs to.
    pub wider_runs: Arc<WiderRuns>,
}

/// Standard input of a run. It is never the server's.
#[derive(Debug, Default)]
pub enum StdinSource {
    /// No input.
    #[default]
    Empty,
    /// These bytes, and then the end.
    Bytes(Vec<u8>),
    /// These bytes, and whatever is written later.
    Open(Vec<u8>),
}

/// Run that has been started. Dropping it closes the control socket, which ends the whole tree.
pub struct StartedRun {
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
    pub(super) main_pid: Option<Pid>,
    pub(super) egress: Option<Egress>,
    /// Proxy of a run that acts for several sessions, and its port inside the sandbox.
    pub(super) shared_proxy: Option<(Proxy, u16)>,
    /// Answers for the run's execs until it ends.
    pub(super) exec_service: Option<ExecService>,
    /// Runs in the wider sandbox that it has caused.
    pub(super) wider_runs: Option<Arc<WiderRuns>>,
    basis: RunBasis,
}

impl SessionSandbox {
    /// Starts a run, and returns once its program has been started.
    pub async fn start_run(&self, request: LaunchRequest) -> Result<StartedRun> {
        let program = request.program.clone();
        let on_decision = request.on_decision.clone();
        let denied_hosts = request.denied_hosts.clone();
        let router = request.session_router.clone();
        let (mut run, proxy_channel) = self.spawn_run(request).await?;
        let answer =
            tokio::time::timeout(START_TIMEOUT, run.next_report()).await.unwrap_or(Ok(None));
        match answer {
            Ok(Some(SupervisorReport::Started(main_pid))) => {
                run.main_pid = Pid::from_raw(main_pid);
                if let (Some(proxy_channel), Some(router)) = (&proxy_channel, &router) {
                    let shared_proxy = Egress::start_shared(proxy_channel, router);
                    run.shared_proxy =
                        Some(shared_proxy.map_err(|error| cannot_start(&program, &error))?);
                } else if let (Some(proxy_channel), Some(allow_list)) = (proxy_channel, &self.allow)
                {
                    let restricted = Arc::new(allow_list.with_denied(&denied_hosts)?);
                    let egress = Egress::start(&proxy_channel, &restricted, on_decision);
                    run.egress = Some(egress.map_err(|error| cannot_start(&program, &error))?);
                }
                Ok(run)
            }
            Ok(Some(SupervisorReport::Failed(failure))) => {
                Err(start_error::explain_start_failure(&program, &failure))
            }
            Ok(_) => {
                Err(cannot_start(&program, &io::Error::other("the supervisor did not answer")))
            }
            Err(error) => Err(cannot_start(&program, &error)),
        }
    }

    async fn spawn_run(
        &self,
        request: LaunchRequest,
    ) -> Result<(StartedRun, Option<PacketChannel>)> {
        let started = Instant::now();
        let program = request.program.clone();
        let spawn_error = |error: io::Error| cannot_start(&program, &error);
        let rights = self.rights_for_run(request.rights);
        let pipes = RunPipes::new(request.stdin, request.merge_stderr).map_err(spawn_error)?;
        let has_proxy = self.allow.is_some() || request.session_router.is_some();
        let spec = self.complete_spec(RunSpec {
            program: request.program,
            args: request.args,
            argv0: None,
            env: env::merge_env(request.env, self.env.clone()),
            cwd: request.cwd_path,
            grace_ms: u64::try_from(request.grace.as_millis()).unwrap_or(u64::MAX),
            fence: self.jail_profile(),
            rights,
            limits: Default::default(),
            proxy_env: Vec::new(),
            shut_ports: Vec::new(),
            exec: None,
            user: None,
        });
        let fds = RunFds {
            stdin: pipes.child_ends[0].as_fd(),
            stdout: pipes.child_ends[1].as_fd(),
            stderr: pipes.child_ends[2].as_fd(),
            cwd: request.cwd.as_fd(),
            proxy_channel: None,
            exec_channel: None,
            exec_log: None,
            program_file: None,
            driver_socket: request.driver_socket.as_ref().map(AsFd::as_fd),
        };
        let wider_runs = request.execs.as_ref().map(|execs| Arc::clone(&execs.wider_runs));
        let (control, proxy_channel) =
            self.hand_to_supervisor(spec, fds, request.execs, has_proxy).await?;
        let run = StartedRun {
            started,
            grace: request.grace,
            reports: control.reports,
            orders: control.orders,
            interactive: pipes.interactive,
            stdin: pipes.stdin,
            stdout: Some(pipes.stdout),
            stderr: pipes.stderr,
            supervisor: control.supervisor,
            main_pid: None,
            egress: None,
            shared_proxy: None,
            exec_service: control.exec_service,
            wider_runs,
            basis: control.basis,
        };
        Ok((run, proxy_channel))
    }

    /// Starts a command that comes from another sandbox, on the streams that it brings. Otherwise
    /// it is a run like any other.
    pub(super) async fn start_escalated(
        &self,
        spec: RunSpec,
        fds: RunFds<BorrowedFd<'_>>,
        options: WiderRunOptions,
    ) -> Result<SupervisorControl> {
        let spawn_error = |error: io::Error| cannot_start("the command", &error);
        let spec = self.complete_spec(spec);
        let (mut control, proxy_channel) =
            self.hand_to_supervisor(spec, fds, Some(options.execs), self.allow.is_some()).await?;
        if let (Some(proxy_channel), Some(allow_list)) = (proxy_channel, &self.allow) {
            let first_report = control.next_report().await.map_err(spawn_error)?;
            if matches!(first_report, Some(SupervisorReport::Started(_))) {
                let restricted = Arc::new(allow_list.with_denied(&options.denied_hosts)?);
                control.egress = Some(
                    Egress::start(&proxy_channel, &restricted, Some(options.on_decision))
                        .map_err(spawn_error)?,
                );
            }
            control.early_report = first_report;
        }
        Ok(control)
    }

    /// Adds what all runs of this sandbox have in common.
    fn complete_spec(&self, spec: RunSpec) -> RunSpec {
        RunSpec {
            fence: self.jail_profile(),
            limits: self.limits.clone(),
            shut_ports: self.shut_ports.clone(),
            ..spec
        }
    }

    /// Hands a run to a supervisor, with a channel for its proxy's listener and a task that answers
    /// for its execs.
    async fn hand_to_supervisor(
        &self,
        mut spec: RunSpec,
        fds: RunFds<BorrowedFd<'_>>,
        execs: Option<ExecPolicy>,
        has_proxy: bool,
    ) -> Result<(SupervisorControl, Option<PacketChannel>)> {
        let program = spec.program.clone();
        let spawn_error = |error: io::Error| cannot_start(&program, &error);
        let network = spec.rights.network;
        let is_proxied = network == NetworkAccess::Proxied && has_proxy;
        let proxy_pair = is_proxied.then(PacketChannel::pair).transpose().map_err(spawn_error)?;
        let exec_pair =
            execs.as_ref().map(|_| PacketChannel::pair()).transpose().map_err(spawn_error)?;
        let exec_log = execs.as_ref().and_then(|execs| execs.log.as_ref());
        spec.proxy_env =
            if is_proxied { proxy_environment(jail::PORT_PLACEHOLDER) } else { Vec::new() };
        spec.exec = execs.as_ref().map(|execs| execs.rules.clone());
        let fds = RunFds {
            proxy_channel: proxy_pair.as_ref().map(|(_, run_end)| run_end.as_fd()),
            exec_channel: exec_pair.as_ref().map(|(_, run_end)| run_end.as_fd()),
            exec_log: exec_log.map(AsFd::as_fd),
            ..fds
        };
        let (socket, supervisor) = self.open_supervisor(&spec).await?;
        let mut control = SupervisorControl::open(socket, supervisor, &spec, &fds).await?;
        if let (Some((server_end, _)), Some(execs)) = (exec_pair, execs) {
            control.exec_service =
                Some(ExecService::start_serving(server_end, execs.decider).map_err(spawn_error)?);
        }
        Ok((control, proxy_pair.map(|(server_end, _)| server_end)))
    }

    /// Returns the socket of a supervisor that waits for this spec: the session's zygote forks it,
    /// or it is our own child, which is returned as well.
    async fn open_supervisor(&self, spec: &RunSpec) -> Result<(UnixStream, Option<Child>)> {
        match &self.zygote {
            Some(zygote) => {
                let network = SessionSandbox::network_number(spec.rights.network);
                Ok((zygote.open_supervisor(network, &spec.basis()).await?, None))
            }
            None => {
                let (socket, child) = self.launcher.start_supervisor()?;
                Ok((socket, Some(child)))
            }
        }
    }
}

/// Prepares the run that may follow one, with the same basis.
pub struct NextRun {
    sandbox: Weak<SessionSandbox>,
    basis: RunBasis,
}

impl NextRun {
    /// For a run that may follow `run` in its sandbox.
    pub fn after(run: &StartedRun, sandbox: &Arc<SessionSandbox>) -> NextRun {
        NextRun { sandbox: Arc::downgrade(sandbox), basis: run.basis.clone() }
    }

    /// Has it prepared, unless it is already. No one waits for that.
    pub fn prepare(&self) {
        let (sandbox, basis) = (Weak::clone(&self.sandbox), self.basis.clone());
        tokio::spawn(async move {
            if let Some(zygote) =
                sandbox.upgrade().as_ref().and_then(|sandbox| sandbox.zygote.as_ref())
            {
                let network = SessionSandbox::network_number(basis.rights.network);
                zygote.prepare_ahead(network, basis).await;
            }
        });
    }
}

/// Pipes of a run: our ends, and those that go to it.
struct RunPipes {
    stdin: Option<(Sender, Vec<u8>)>,
    interactive: bool,
    stdout: Receiver,
    stderr: Option<Receiver>,
    child_ends: [OwnedFd; 3],
}

impl RunPipes {
    fn new(source: StdinSource, merge_stderr: bool) -> io::Result<RunPipes> {
        let interactive = matches!(source, StdinSource::Open(_));
        let (stdin, stdin_fd) = match source {
            StdinSource::Bytes(bytes) | StdinSource::Open(bytes) => {
                let (reader, writer) = io::pipe()?;
                (Some((Sender::from_owned_fd(writer.into())?, bytes)), OwnedFd::from(reader))
            }
            StdinSource::Empty => (None, File::open("/dev/null")?.into()),
        };
        let (stdout, stdout_fd) = io::pipe()?;
        let (stderr, stderr_fd) = match merge_stderr {
            true => (None, stdout_fd.try_clone()?),
            false => io::pipe()
                .map(|(stderr_reader, stderr_writer)| (Some(stderr_reader), stderr_writer))?,
        };
        Ok(RunPipes {
            stdin,
            interactive,
            stdout: Receiver::from_owned_fd(stdout.into())?,
            stderr: stderr.map(|stderr| Receiver::from_owned_fd(stderr.into())).transpose()?,
            child_ends: [stdin_fd, stdout_fd.into(), stderr_fd.into()],
        })
    }
}

impl StartedRun {
    /// Kills what can be found without the supervisor, which a command of the same user can kill or
    /// stop.
    pub(super) fn kill_without_supervisor(supervisor: &mut Option<Child>, main_pid: Option<Pid>) {
        // In its own namespaces a run dies with its supervisor, and its processes cannot reach the
        // supervisor.
        let Some(supervisor) = supervisor else { return };
        let has_exited = |error: &io::Error| error.kind() == io::ErrorKind::InvalidInput;
        if let Err(error) = supervisor.start_kill()
            && !has_exited(&error)
        {
            tracing::warn!("a supervisor cannot be killed: {error}");
        }
        if let Some(main_pid) = main_pid
            && let Err(error) = rustix::process::kill_process_group(main_pid, Signal::KILL)
            && error != Errno::SRCH
        {
            tracing::warn!("a run cannot be killed: {error}");
        }
    }

    /// Receives the last of its exec notices, and the reports of what ran in the wider sandbox in
    /// place of its processes.
    pub(super) async fn finish_execs(&mut self, result: &mut RunResult) {
        if let Some(service) = self.exec_service.take() {
            service.finish_notices().await;
        }
        if let Some(wider_runs) = self.wider_runs.take() {
            wider_runs.finish_all(self.grace + KILL_ALLOWANCE, result).await;
        }
    }

    /// Hands standard input and output over to the holder of the run, who then reads and writes
    /// them at its own pace. The driver keeps the reports, standard error and the end. Returns
    /// `None` if the run was started without an open standard input, or they were taken before.
    pub fn take_streams(&mut self) -> Option<(Sender, Receiver)> {
        if !self.interactive || self.stdin.is_none() {
            return None;
        }
        let stdout = self.stdout.take()?;
        let (stdin, _) = self.stdin.take()?;
        Some((stdin, stdout))
    }

    /// Returns the port of its proxy, if it acts for several sessions.
    pub(super) fn shared_proxy_port(&self) -> Option<u16> {
        self.shared_proxy.as_ref().map(|(_, port)| *port)
    }

    /// Returns the supervisor's next report; `None` once it has ended, and everything it ran with
    /// it.
    pub(super) async fn next_report(&mut self) -> io::Result<Option<SupervisorReport>> {
        match self.reports.next_line().await? {
            Some(line) => Ok(Some(serde_json::from_str(&line)?)),
            None => Ok(None),
        }
    }
}
