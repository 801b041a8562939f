//! The supervisor: one small process per run that owns the run's whole process tree and outlives
//! it.
//!
//! For a run with namespaces, the session's zygote forks it. Otherwise it is our own binary,
//! executed again with [`ARGUMENT`], an empty environment and a control socket as its standard
//! input. It ends the tree when the server asks for that, when the server is gone (for whatever
//! reason) and when the main process has ended. It exits when nothing of the tree is left. It never
//! depends on the thread that started it staying alive.
//!
//! One state machine decides what is reported for each way a run can end; its table is in
//! `lifecycle.rs`. Every way to the end sends one final report.

mod lifecycle;
mod start;
pub(crate) mod tree;
pub(crate) mod wire;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{self, DumpableBehavior};
use serde::{Deserialize, Serialize};

use crate::error::{Layer, LayerContext, SandboxError};
use crate::intercept::{DenialLog, exec};
use crate::limits::{CgroupLocations, RunLimits};
use crate::namespaces::Tier;
use crate::protect::ProtectionGuard;
use lifecycle::{Lifecycle, LifecycleStep, MainExit, RunEvent};
use start::PreparedRun;
pub use wire::{
    RunBasis, RunExit, RunFds, RunSpec, RunUser, SupervisorCommand, SupervisorReport, encode_line,
    send_spec,
};

/// The parts of a session that a supervisor uses.
pub struct SessionResources<'a> {
    pub network: Option<&'a OwnedFd>,
    pub cgroup_locations: &'a CgroupLocations,
    pub tier: Tier,
}

/// First argument that makes our binary run as a supervisor.
pub const ARGUMENT: &str = "__supervise";

/// Most names that a report gives of processes left behind.
const MAX_NAMES: usize = 5;

/// Supervises one run without a session, from the spec on standard input to the death of its last
/// process.
pub fn run() -> ExitCode {
    crate::mark_close_on_exec();
    match take_control_socket() {
        Ok(control) => supervise_run(control, None, None),
        Err(_) => ExitCode::FAILURE,
    }
}

/// Moves the control socket off standard input, to a descriptor that no child inherits.
fn take_control_socket() -> io::Result<UnixStream> {
    let control = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    Ok(UnixStream::from(control))
}

/// Supervises one run, from the spec on its control socket to the death of its last process. With a
/// basis, the run is prepared before the spec arrives.
pub(crate) fn supervise_run(
    mut control: UnixStream,
    session: Option<SessionResources<'_>>,
    basis: Option<RunBasis>,
) -> ExitCode {
    match start_run(&control, session, basis) {
        Ok(Some((run, pid))) => {
            send_report(&mut control, &SupervisorReport::Started(pid));
            run.run_to_end(control);
            ExitCode::SUCCESS
        }
        Ok(None) => ExitCode::SUCCESS,
        Err(error) => {
            report_failure(control, error);
            ExitCode::FAILURE
        }
    }
}

/// Reports to the server that the run will not start.
pub(crate) fn report_failure(mut control: UnixStream, error: SandboxError) {
    send_report(&mut control, &SupervisorReport::Failed(error));
}

/// Sends a report. Ignores errors: the server may be gone, and then no one needs the report.
fn send_report(control: &mut UnixStream, report: &SupervisorReport) {
    if let Ok(line) = encode_line(report) {
        let _ = control.write_all(&line);
    }
}

/// A run that has been started, with everything that is released when it ends.
struct SupervisedRun {
    tree: tree::ProcessTree,
    grace: Duration,
    denials: DenialLog,
    run_limits: RunLimits,
    protection: ProtectionGuard,
    /// Still open, though removed.
    removed_stand_ins: Vec<File>,
    /// Watches the run's execs, unless it is trusted.
    exec_watch: Option<Arc<exec::ExecWatch>>,
    /// How its session got its namespaces, if it has any.
    tier: Option<Tier>,
}

/// Descriptors for which the kernel makes room at once. A run with many protected paths needs more than
/// the 64 that every process has room for.
const RESERVED_DESCRIPTORS: i32 = 1023;

/// Makes room for descriptors while this process has one thread. Later the kernel would wait for all
/// processors to notice the larger table, up to twenty milliseconds, while the program waits too.
fn reserve_descriptors(control: &UnixStream) {
    // Where fewer may be open, there is less to make room for.
    drop(rustix::io::fcntl_dupfd_cloexec(control, RESERVED_DESCRIPTORS));
}

/// Receives the spec and starts the run. Returns the run and its first pid; `None` when the server
/// closed the socket without sending a spec.
fn start_run(
    control: &UnixStream,
    session: Option<SessionResources<'_>>,
    basis: Option<RunBasis>,
) -> Result<Option<(SupervisedRun, i32)>, SandboxError> {
    // Detach from the server's terminal and process group first, so that nothing in the tree has
    // them.
    match process::setsid() {
        // A zygote that has become a supervisor already leads a session.
        Ok(_) | Err(rustix::io::Errno::PERM) if session.is_some() => {}
        other => drop(other.in_layer(Layer::Namespaces, "start a session")?),
    }
    // The tree runs as the same user and must not read or trace this process through /proc.
    process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .in_layer(Layer::Namespaces, "become non-dumpable")?;
    reserve_descriptors(control);
    // If this fails, so does the same below, with a server that waits for the reason.
    let prepared = session
        .as_ref()
        .zip(basis)
        .and_then(|(session, basis)| PreparedRun::prepare(basis, session).ok());
    let received = wire::receive_spec(control).in_layer(Layer::Program, "receive the spec");
    let prepared = match (prepared, &received) {
        (Some(mut prepared), Ok(Some((spec, _)))) => match prepared.fits(spec) {
            true => Some(prepared),
            false => {
                prepared.end();
                None
            }
        },
        (Some(unneeded), _) => {
            unneeded.end();
            None
        }
        (None, _) => None,
    };
    let Some((spec, fds)) = received? else { return Ok(None) };
    let Some(session) = session else { return start::start_on_host(&spec, fds).map(Some) };
    let prepared = match prepared {
        Some(prepared) => prepared,
        None => PreparedRun::prepare(spec.basis(), &session)?,
    };
    prepared.start(&spec, fds).map(Some)
}

/// Processes that a main process left behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LeftBehind {
    Nothing,
    /// Number of processes seen, and some of their names. The number may be zero: a process that
    /// forks and exits all the time is never seen.
    Processes(usize, Vec<String>),
}

impl LeftBehind {
    pub(crate) fn from_processes(processes: Vec<tree::ProcessStat>) -> LeftBehind {
        LeftBehind::Processes(
            processes.len(),
            processes.into_iter().take(MAX_NAMES).map(|process| process.name).collect(),
        )
    }
}

impl SupervisedRun {
    /// Feeds events to the run's [`Lifecycle`] and performs the steps it returns, until the run is
    /// over.
    fn run_to_end(mut self, mut control: UnixStream) {
        let (events, event_receiver) = mpsc::channel();
        let exceeded_sender = events.clone();
        // Only acts where nothing stronger enforces the totals. If it cannot be started the run
        // continues without it; the kind of limits in its report says that they are advisory.
        let _ = self.run_limits.watch_usage(self.tree.process_lister(), move || {
            drop(exceeded_sender.send(RunEvent::LimitsExceeded))
        });
        spawn_command_reader(&control, events.clone());
        if self.tree.spawn_listener(events.clone()).is_err() {
            let _ = events.send(RunEvent::Unobservable);
        }
        // Only the listeners send from here on; when the last one ends, the channel closes.
        drop(events);
        let mut lifecycle = Lifecycle::new(self.grace);
        while !lifecycle.is_over() {
            let event = match lifecycle.next_timeout(Instant::now()) {
                None => event_receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(timeout) => event_receiver.recv_timeout(timeout),
            };
            let event = event.unwrap_or_else(|error| match error {
                RecvTimeoutError::Timeout => RunEvent::Timeout,
                RecvTimeoutError::Disconnected => RunEvent::Unobservable,
            });
            for step in lifecycle.handle_event(event, Instant::now()) {
                self.perform_step(step, &mut control);
            }
        }
        close_control(&control);
    }

    fn perform_step(&mut self, step: LifecycleStep, control: &mut UnixStream) {
        match step {
            LifecycleStep::Terminate(signal) => self.tree.terminate_all(signal),
            LifecycleStep::Signal(signal) => self.tree.signal_main(signal),
            LifecycleStep::Kill => {
                self.tree.kill_all();
                self.run_limits.kill_all();
            }
            LifecycleStep::ReportInterim(main_exit) => {
                send_report(control, &SupervisorReport::Exited(self.build_exit(main_exit)))
            }
            LifecycleStep::ReportFinal(main_exit) => {
                // Remove the stand-ins for missing paths before reporting the end. They are closed
                // last: the file system then frees them, which no one has to wait for.
                self.removed_stand_ins = self.protection.remove_stand_ins();
                send_report(control, &SupervisorReport::Over(self.build_exit(main_exit)));
                close_control(control);
                // The server waits for the last notice, which is the end of the channel.
                self.exec_watch = None;
            }
        }
    }

    /// Builds the report on how the main process ended and what was seen of the run.
    fn build_exit(&self, main_exit: MainExit) -> RunExit {
        let MainExit { code, signal, left } = main_exit;
        let (left_behind, names) = match left {
            LeftBehind::Nothing => (0, Vec::new()),
            // A process that was not seen still exists.
            LeftBehind::Processes(count, names) => (count.max(1), names),
        };
        RunExit {
            code,
            signal,
            left_behind,
            names,
            denials: self.denials.list(),
            limits: self.run_limits.mechanism().name().to_owned(),
            out_of_memory: self.run_limits.was_out_of_memory(),
            execs: self.exec_watch.as_ref().map(|watch| watch.finish_log()),
            tier: self.tier,
        }
    }
}

/// Closes the stream, which tells the server that nothing of the run is left. This process exits a
/// little later, since the run's namespaces go with it, and no one has to wait for that.
fn close_control(control: &UnixStream) {
    let _ = control.shutdown(std::net::Shutdown::Both);
}

/// Starts a thread that blocks on the control socket, since neither a death nor a message may wait
/// for the other.
fn spawn_command_reader(control: &UnixStream, events: Sender<RunEvent>) {
    match control.try_clone() {
        Ok(control) => {
            thread::spawn(move || read_commands(control, &events));
        }
        // A supervisor that cannot hear the server must not continue.
        Err(_) => drop(events.send(RunEvent::Stop(libc::SIGTERM))),
    }
}

/// Turns the server's messages into events. A message that is not understood ends the run, as the
/// end of the stream does.
fn read_commands(control: UnixStream, events: &Sender<RunEvent>) {
    for line in BufReader::new(control).lines() {
        let event = match line.ok().and_then(|line| serde_json::from_str(&line).ok()) {
            Some(SupervisorCommand::Signal(signal)) => RunEvent::Signal(signal),
            Some(SupervisorCommand::End(signal)) => RunEvent::Stop(signal),
            None => break,
        };
        // Fails when the run is over; then the event no longer matters.
        let _ = events.send(event);
    }
    let _ = events.send(RunEvent::Stop(libc::SIGTERM));
}
