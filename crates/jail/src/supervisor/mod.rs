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
mod wire;

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{self, DumpableBehavior};
use serde::{Deserialize, Serialize};

use crate::fault::{Fault, InLayer, Layer};
use crate::intercept::{Denials, exec};
use crate::limits::Cage;
use crate::protect::Guard;
use crate::zygote::Session;
use lifecycle::{Event, Lifecycle, MainEnd, Step};
pub use wire::{Exit, Fds, Order, Report, Spec, User, encode, send_spec};

/// First argument that makes our binary run as a supervisor.
pub const ARGUMENT: &str = "__supervise";

/// Most names that a report gives of processes left behind.
const NAMES: usize = 5;

/// Supervises one run without a session, from the spec on standard input to the death of its last
/// process.
pub fn run() -> ExitCode {
    crate::close_on_exec();
    match take_control() {
        Ok(control) => supervise(control, None),
        Err(_) => ExitCode::FAILURE,
    }
}

/// Moves the control socket off standard input, to a descriptor that no child inherits.
fn take_control() -> io::Result<UnixStream> {
    let control = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    Ok(UnixStream::from(control))
}

/// Supervises one run, from the spec on its control socket to the death of its last process.
pub(crate) fn supervise(mut control: UnixStream, session: Option<Session<'_>>) -> ExitCode {
    match prepare(&control, session) {
        Ok(Some((run, pid))) => {
            tell(&mut control, &Report::Started(pid));
            run.watch(control);
            ExitCode::SUCCESS
        }
        Ok(None) => ExitCode::SUCCESS,
        Err(fault) => {
            refuse(control, fault);
            ExitCode::FAILURE
        }
    }
}

/// Reports to the server that the run will not start.
pub(crate) fn refuse(mut control: UnixStream, fault: Fault) {
    tell(&mut control, &Report::Failed(fault));
}

/// Sends a report. Ignores errors: the server may be gone, and then no one needs the report.
fn tell(control: &mut UnixStream, report: &Report) {
    if let Ok(line) = encode(report) {
        let _ = control.write_all(&line);
    }
}

/// A run that has been started, with everything that is released when it ends.
struct Run {
    tree: tree::Tree,
    grace: Duration,
    denials: Denials,
    cage: Cage,
    guard: Guard,
    /// Watches the run's execs, unless it is trusted.
    watch: Option<Arc<exec::Watch>>,
}

/// Receives the spec and starts the run. Returns the run and its first pid; `None` when the server
/// closed the socket without sending a spec.
fn prepare(
    control: &UnixStream,
    session: Option<Session<'_>>,
) -> Result<Option<(Run, i32)>, Fault> {
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
    let received = wire::receive_spec(control).in_layer(Layer::Program, "receive the spec")?;
    let Some((spec, fds)) = received else { return Ok(None) };
    let started = match session {
        Some(session) => start::in_namespaces(&spec, fds, &session)?,
        None => start::on_the_host(&spec, fds)?,
    };
    Ok(Some(started))
}

/// Processes that a main process left behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Left {
    Nothing,
    /// Number of processes seen, and some of their names. The number may be zero: a process that
    /// forks and exits all the time is never seen.
    Processes(usize, Vec<String>),
}

impl Left {
    pub(crate) fn behind(processes: Vec<tree::Process>) -> Left {
        Left::Processes(
            processes.len(),
            processes.into_iter().take(NAMES).map(|process| process.name).collect(),
        )
    }
}

impl Run {
    /// Feeds events to the run's [`Lifecycle`] and performs the steps it returns, until the run is
    /// over.
    fn watch(mut self, mut control: UnixStream) {
        let (events, inbox) = mpsc::channel();
        let exceeded = events.clone();
        // Only acts where nothing stronger enforces the totals. If it cannot be started the run
        // continues without it; the kind of limits in its report says that they are advisory.
        let _ = self.cage.watch(self.tree.lister(), move || drop(exceeded.send(Event::Exceeded)));
        listen(&control, events.clone());
        if self.tree.listen(events.clone()).is_err() {
            let _ = events.send(Event::Unheard);
        }
        // Only the listeners send from here on; when the last one ends, the channel closes.
        drop(events);
        let mut lifecycle = Lifecycle::new(self.grace);
        while !lifecycle.is_over() {
            let event = match lifecycle.patience(Instant::now()) {
                None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(patience) => inbox.recv_timeout(patience),
            };
            let event = event.unwrap_or_else(|error| match error {
                RecvTimeoutError::Timeout => Event::Timeout,
                RecvTimeoutError::Disconnected => Event::Unheard,
            });
            for step in lifecycle.advance(event, Instant::now()) {
                self.carry_out(step, &mut control);
            }
        }
        farewell(&control);
    }

    fn carry_out(&mut self, step: Step, control: &mut UnixStream) {
        match step {
            Step::Terminate(signal) => self.tree.terminate(signal),
            Step::Signal(signal) => self.tree.signal(signal),
            Step::Kill => {
                self.tree.kill();
                self.cage.kill();
            }
            Step::ReportInterim(end) => tell(control, &Report::Exited(self.exit(end))),
            Step::ReportFinal(end) => {
                // Remove the stand-ins for missing paths before reporting the end.
                drop(std::mem::take(&mut self.guard));
                tell(control, &Report::Over(self.exit(end)));
                farewell(control);
            }
        }
    }

    /// Builds the report on how the main process ended and what was seen of the run.
    fn exit(&self, end: MainEnd) -> Exit {
        let MainEnd { code, signal, left } = end;
        let (left_behind, names) = match left {
            Left::Nothing => (0, Vec::new()),
            // A process that was not seen still exists.
            Left::Processes(count, names) => (count.max(1), names),
        };
        Exit {
            code,
            signal,
            left_behind,
            names,
            denials: self.denials.list(),
            limits: self.cage.means().name().to_owned(),
            out_of_memory: self.cage.was_out_of_memory(),
            execs: self.watch.as_ref().map(|watch| watch.finish()),
        }
    }
}

/// Closes the stream, which tells the server that nothing of the run is left. This process exits a
/// little later, since the run's namespaces go with it, and no one has to wait for that.
fn farewell(control: &UnixStream) {
    let _ = control.shutdown(std::net::Shutdown::Both);
}

/// Starts a thread that blocks on the control socket, since neither a death nor a message may wait
/// for the other.
fn listen(control: &UnixStream, events: Sender<Event>) {
    match control.try_clone() {
        Ok(control) => {
            thread::spawn(move || hear(control, &events));
        }
        // A supervisor that cannot hear the server must not continue.
        Err(_) => drop(events.send(Event::Stop(libc::SIGTERM))),
    }
}

/// Turns the server's messages into events. A message that is not understood ends the run, as the
/// end of the stream does.
fn hear(control: UnixStream, events: &Sender<Event>) {
    for line in BufReader::new(control).lines() {
        let event = match line.ok().and_then(|line| serde_json::from_str(&line).ok()) {
            Some(Order::Signal(signal)) => Event::Signal(signal),
            Some(Order::End(signal)) => Event::Stop(signal),
            None => break,
        };
        // Fails when the run is over; then the event no longer matters.
        let _ = events.send(event);
    }
    let _ = events.send(Event::Stop(libc::SIGTERM));
}
