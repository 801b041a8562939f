//! The supervisor: one small process per run that owns the run's whole tree and outlives it.
//!
//! It is our own binary, started again with [`ARGUMENT`], an empty environment and a control socket as its standard
//! input. It ends the tree when the server asks, when the server is gone (however it went) and when the main process
//! is; it ends itself when nothing of the tree is left. Nothing here needs the thread that started it to live on.

mod tree;
mod wire;

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{self, DumpableBehavior, Pid, WaitOptions, WaitStatus};

pub use wire::{Exit, Failure, Fds, Order, Report, Spec, encode, send_spec};

/// The first argument that makes our binary a supervisor.
pub const ARGUMENT: &str = "__supervise";

/// How many names a report of processes left behind gives.
const NAMES: usize = 5;
/// Between two rounds of killing: short at first, longer while something cannot be killed.
const ROUND: Duration = Duration::from_millis(5);
const LONGEST_ROUND: Duration = Duration::from_millis(500);

/// Supervises one run, from the spec on standard input to the death of its last process.
pub fn run() -> ExitCode {
    crate::close_on_exec();
    let Ok(mut control) = take_control() else { return ExitCode::FAILURE };
    match start(&control) {
        Ok(Some(run)) => {
            tell(&mut control, &Report::Started(run.main.as_raw_nonzero().get()));
            run.watch(control);
            ExitCode::SUCCESS
        }
        Ok(None) => ExitCode::SUCCESS,
        Err(error) => {
            tell(&mut control, &Report::Failed(Failure { errno: error.raw_os_error(), text: error.to_string() }));
            ExitCode::FAILURE
        }
    }
}

/// Moves the control socket off standard input, to a descriptor that no child inherits.
fn take_control() -> io::Result<UnixStream> {
    let control = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    Ok(UnixStream::from(control))
}

/// The server may be gone; then nobody needs to be told.
fn tell(control: &mut UnixStream, report: &Report) {
    if let Ok(line) = encode(report) {
        let _ = control.write_all(&line);
    }
}

struct Run {
    main: Pid,
    grace: Duration,
}

fn start(control: &UnixStream) -> io::Result<Option<Run>> {
    // Away from the server's terminal and group first, so that nothing in the tree has them.
    process::setsid()?;
    process::set_child_subreaper(Some(process::getpid()))?;
    // The tree runs as the same user: it shall not read or trace us through /proc.
    process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let Some((spec, fds)) = wire::receive_spec(control)? else { return Ok(None) };
    process::fchdir(&fds.cwd)?;
    let mut command = Command::new(&spec.program);
    command.args(&spec.args).env_clear().envs(spec.env).process_group(0);
    command.stdin(Stdio::from(fds.stdin)).stdout(Stdio::from(fds.stdout)).stderr(Stdio::from(fds.stderr));
    if let Some(name) = &spec.argv0 {
        command.arg0(name);
    }
    let child = command.spawn()?;
    // From here on our copies of the pipes are closed: they end when the last process of the run closes them.
    drop(command);
    let main = Pid::from_child(&child);
    Ok(Some(Run { main, grace: Duration::from_millis(spec.grace_ms) }))
}

enum Event {
    /// The main process has ended; `alone` when nothing else of the tree lives.
    Ended(WaitStatus, bool),
    /// No process of the tree is left.
    Empty,
    /// The server wants it to end, or is gone.
    Stop,
}

enum State {
    Running,
    /// Everything was asked to end, and may take until then.
    Ending(Instant),
    Killing(Duration),
}

impl Run {
    fn watch(self, mut control: UnixStream) {
        let (events, inbox) = mpsc::channel();
        self.listen(&control, events);
        let mut state = State::Running;
        loop {
            let event = match state {
                State::Running => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                State::Ending(until) => inbox.recv_timeout(until.saturating_duration_since(Instant::now())),
                State::Killing(round) => inbox.recv_timeout(round),
            };
            match event {
                Ok(Event::Ended(status, alone)) => {
                    tell(&mut control, &Report::Exited(exit(status, alone)));
                    if !alone {
                        self.end(&mut state);
                    }
                }
                Ok(Event::Stop) => self.end(&mut state),
                Ok(Event::Empty) => return,
                Err(RecvTimeoutError::Timeout) => {
                    tree::kill();
                    state = match state {
                        State::Killing(round) => State::Killing((round * 2).min(LONGEST_ROUND)),
                        _ => State::Killing(ROUND),
                    };
                }
                // Both listeners have ended without a word of the tree's end, which only a fault of ours explains.
                Err(RecvTimeoutError::Disconnected) => return tree::kill(),
            }
        }
    }

    fn end(&self, state: &mut State) {
        if matches!(state, State::Running) {
            tree::terminate();
            *state = State::Ending(Instant::now() + self.grace);
        }
    }

    /// Two threads that block, since neither a death nor a message may wait for the other.
    fn listen(&self, control: &UnixStream, events: Sender<Event>) {
        let orders = events.clone();
        match control.try_clone() {
            Ok(control) => {
                thread::spawn(move || hear(control, &orders));
            }
            // Deaf to the server is no way to go on.
            Err(_) => drop(orders.send(Event::Stop)),
        }
        let main = self.main;
        thread::spawn(move || reap(main, &events));
    }
}

/// Anything that is not understood ends the run, as the end of the stream does.
fn hear(control: UnixStream, events: &Sender<Event>) {
    let mut line = String::new();
    let _ = BufReader::new(control).read_line(&mut line);
    let _ = events.send(Event::Stop);
}

/// Reaps the main process and every orphan. A descendant always has a living ancestor below us or is our child, so
/// having no child left means that the tree is gone.
fn reap(main: Pid, events: &Sender<Event>) {
    let mut ended = None;
    loop {
        // With the end of the main process in hand, one look decides whether anything else lives.
        let options = if ended.is_some() { WaitOptions::NOHANG } else { WaitOptions::empty() };
        match process::wait(options) {
            Ok(Some((pid, status))) if pid == main => ended = Some(status),
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => {
                if let Some(status) = ended.take() {
                    let _ = events.send(Event::Ended(status, false));
                }
            }
            Err(_) => {
                if let Some(status) = ended.take() {
                    let _ = events.send(Event::Ended(status, true));
                }
                let _ = events.send(Event::Empty);
                return;
            }
        }
    }
}

fn exit(status: WaitStatus, alone: bool) -> Exit {
    let left = if alone { Vec::new() } else { tree::living() };
    Exit {
        code: status.exit_status(),
        signal: status.terminating_signal(),
        left_behind: left.len(),
        names: left.into_iter().take(NAMES).map(|process| process.name).collect(),
    }
}
