//! The supervisor: one small process per run that owns the run's whole tree and outlives it.
//!
//! In the fence it is forked by the session's zygote; without one it is our own binary, started again with
//! [`ARGUMENT`], an empty environment and a control socket as its standard input. It ends the tree when the server
//! asks, when the server is gone (however it went) and when the main process is; it ends itself when nothing of the
//! tree is left. Nothing here needs the thread that started it to live on.
//!
//! Which end of a run reports what is one state machine, with its table in `lifecycle.rs`: every way to the end sends one
//! final report.

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

/// The first argument that makes our binary a supervisor.
pub const ARGUMENT: &str = "__supervise";

/// How many names a report of processes left behind gives.
const NAMES: usize = 5;
/// Supervises one run without a session, from the spec on standard input to the death of its last process.
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

/// Tells the server that there will be no run.
pub(crate) fn refuse(mut control: UnixStream, fault: Fault) {
    tell(&mut control, &Report::Failed(fault));
}

/// The server may be gone; then nobody needs to be told.
fn tell(control: &mut UnixStream, report: &Report) {
    if let Ok(line) = encode(report) {
        let _ = control.write_all(&line);
    }
}

/// A run that has been started, and what goes when it ends.
struct Run {
    tree: tree::Tree,
    grace: Duration,
    denials: Denials,
    cage: Cage,
    guard: Guard,
    /// Where its execs are watched.
    watch: Option<Arc<exec::Watch>>,
}

fn prepare(
    control: &UnixStream,
    session: Option<Session<'_>>,
) -> Result<Option<(Run, i32)>, Fault> {
    // Away from the server's terminal and group first, so that nothing in the tree has them.
    match process::setsid() {
        // A zygote that has become a supervisor leads a session already.
        Ok(_) | Err(rustix::io::Errno::PERM) if session.is_some() => {}
        other => drop(other.in_layer(Layer::Namespaces, "start a session")?),
    }
    // The tree runs as the same user: it shall not read or trace us through /proc.
    process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .in_layer(Layer::Namespaces, "hide")?;
    let received = wire::receive_spec(control).in_layer(Layer::Program, "hear what to run")?;
    let Some((spec, fds)) = received else { return Ok(None) };
    let started = match session {
        Some(session) => start::in_namespaces(&spec, fds, &session)?,
        None => start::on_the_host(&spec, fds)?,
    };
    Ok(Some(started))
}

/// What a main process leaves behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Left {
    Nothing,
    /// So many were seen, which may be none of a process that never stands still, and some of their names.
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
    /// Feeds what happens to the run's [`Lifecycle`], and does what that says, until the run is over.
    fn watch(mut self, mut control: UnixStream) {
        let (events, inbox) = mpsc::channel();
        let exceeded = events.clone();
        // Where nothing stronger holds the totals. A run that cannot be watched goes on without, as its means say.
        let _ = self.cage.watch(self.tree.lister(), move || drop(exceeded.send(Event::Exceeded)));
        listen(&control, events.clone());
        if self.tree.listen(events.clone()).is_err() {
            let _ = events.send(Event::Unheard);
        }
        // With the last listener goes the last sender.
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
                // What stood in for missing paths goes before the end is told.
                drop(std::mem::take(&mut self.guard));
                tell(control, &Report::Over(self.exit(end)));
                farewell(control);
            }
        }
    }

    fn exit(&self, end: MainEnd) -> Exit {
        let MainEnd { code, signal, left } = end;
        let (left_behind, names) = match left {
            Left::Nothing => (0, Vec::new()),
            // One that was not seen is still there.
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

/// Ends the stream, which says that nothing of the run is left. Our own end takes a while yet: with us go the run's
/// namespaces, and nobody needs to wait for that.
fn farewell(control: &UnixStream) {
    let _ = control.shutdown(std::net::Shutdown::Both);
}

/// A thread that blocks, since neither a death nor a message may wait for the other.
fn listen(control: &UnixStream, events: Sender<Event>) {
    match control.try_clone() {
        Ok(control) => {
            thread::spawn(move || hear(control, &events));
        }
        // Deaf to the server is no way to go on.
        Err(_) => drop(events.send(Event::Stop(libc::SIGTERM))),
    }
}

/// Anything that is not understood ends the run, as the end of the stream does.
fn hear(control: UnixStream, events: &Sender<Event>) {
    for line in BufReader::new(control).lines() {
        let event = match line.ok().and_then(|line| serde_json::from_str(&line).ok()) {
            Some(Order::Signal(signal)) => Event::Signal(signal),
            Some(Order::End(signal)) => Event::Stop(signal),
            None => break,
        };
        // One that is over takes none any more.
        let _ = events.send(event);
    }
    let _ = events.send(Event::Stop(libc::SIGTERM));
}
