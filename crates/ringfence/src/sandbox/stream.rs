//! Drives a run from its start to its end: reads output, sends progress, and handles whatever ends
//! it first.
//!
//! A run is over when its main process has exited, not when its pipes are closed: a background
//! process can hold those indefinitely. A separate task drives the run and continues when no one
//! looks; observers send it requests ([`super::live`]).
//!
//! Whatever ends the run, its supervisor's final report is awaited, within limits: the record says
//! what the run was denied and what it ran, or that this is unknown ([`Reported`]). The end of the
//! main process alone completes a result; [`super::aftermath`] follows what it left behind to the
//! end.

use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::BoxFuture;
use jail::supervisor::{RunExit, SupervisorCommand, SupervisorReport, encode_line};
use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::Instrument;

use super::Stream;
use super::aftermath;
use super::egress::Egress;
use super::launch::Run;
use super::live::{Ask, Asked, Ended, Keep, Reply, Reported, Seen, Stop};
use super::progress::Progress;
use super::pump::Pump;
use crate::base::{Cancel, Cause, Error, Kind};

/// Maximum time for reading what is still in the pipes after the main process has exited.
const DRAIN: Duration = Duration::from_millis(150);
/// Time allowed beyond the grace period, for the killing itself and for the report about it.
pub(super) const KILLING: Duration = Duration::from_secs(1);
/// Maximum wait for the client to take the last progress message; after that the client will not
/// miss it.
const LAST_MESSAGE: Duration = Duration::from_secs(1);
/// Time for which an ended run can still be looked at.
const REMEMBERED: Duration = Duration::from_secs(600);
const CHUNK: usize = 64 << 10;
/// Maximum input that the program has not read yet.
const INPUT_BYTES: usize = 1 << 20;

/// State of a run, as its task knows it.
#[derive(Default)]
pub(super) struct State {
    pub(super) stop: Option<Stop>,
    pub(super) exit: Option<RunExit>,
    pub(super) reported: Reported,
    /// The supervisor has ended, or has reported that nothing of the run is left.
    pub(super) gone: bool,
    /// Time beyond which nothing is waited for.
    until: Option<Instant>,
}

impl State {
    fn is_over(&self, pipes: &[Option<Receiver>; 2]) -> bool {
        let late = self.until.is_some_and(|until| Instant::now() >= until);
        match (&self.stop, &self.exit) {
            (Some(_), _) => self.gone || late,
            (None, Some(_)) => late || self.gone && pipes.iter().all(Option::is_none),
            (None, None) => self.gone,
        }
    }

    /// Takes in a report. `patience` is how long to wait for what the main process left behind.
    fn hear(&mut self, line: io::Result<Option<String>>, patience: Duration) {
        let report = line.ok().flatten().and_then(|line| serde_json::from_str(&line).ok());
        let now = Instant::now();
        match report {
            Some(SupervisorReport::Exited(exit)) => {
                (self.exit, self.reported) = (Some(exit), Reported::Interim);
                self.until.get_or_insert(now + patience);
            }
            Some(SupervisorReport::Over(exit)) => {
                (self.exit, self.reported, self.gone) = (Some(exit), Reported::Whole, true);
                let drained = now + DRAIN;
                let until = self.until.get_or_insert(drained);
                *until = drained.min(*until);
            }
            // Nothing else is reported about a run that was started; an unreadable report is
            // treated as a lost supervisor.
            _ => self.gone = true,
        }
    }
}

/// Observer of the run, until its request is answered or it has gone.
pub(super) struct Looking {
    look: Asked,
    reply: Reply,
    /// Only for a client that asked for it.
    pub(super) progress: Option<Progress>,
    /// Message on its way to the client. Meanwhile the pipes are not read, so a run is never faster
    /// than its observer; once the run is over there is nothing left to slow down.
    sending: Option<BoxFuture<'static, ()>>,
}

impl Looking {
    fn new(look: Asked, reply: Reply) -> Looking {
        let progress = look.caller.as_ref().filter(|caller| caller.abilities().progress);
        let progress = progress.map(|_| Progress::new(Instant::now()));
        Looking { look, reply, progress, sending: None }
    }
}

/// Standard input of the run: what was written and not yet read, and whether more may come.
struct Input {
    pipe: Option<Sender>,
    waiting: VecDeque<u8>,
    stays_open: bool,
}

impl Input {
    /// Passes on what waits, and closes the pipe when no more will come. Never returns while there
    /// is nothing to do.
    async fn feed(&mut self) {
        let Some(pipe) = &mut self.pipe else { return pending().await };
        if self.waiting.is_empty() {
            if self.stays_open {
                return pending().await;
            }
            self.pipe = None;
            return;
        }
        let (bytes, _) = self.waiting.as_slices();
        match pipe.write(bytes).await {
            Ok(taken) => drop(self.waiting.drain(..taken)),
            // A program need not read its input.
            Err(_) => {
                self.pipe = None;
                self.waiting.clear();
            }
        }
    }

    fn write(&mut self, bytes: &[u8], close: bool) -> crate::base::Result<()> {
        if self.pipe.is_none() || !self.stays_open {
            return Err(Error::new(Kind::Conflict, "its standard input is closed")
                .reason("stdin_closed")
                .hint("Start the command with `interactive: true` to write to it later."));
        }
        if self.waiting.len() + bytes.len() > INPUT_BYTES {
            return Err(Error::new(
                Kind::ResourceExhausted,
                "the program has not read its earlier input yet",
            )
            .hint("Read its output, or wait until it reads its input."));
        }
        self.waiting.extend(bytes);
        self.stays_open = !close;
        Ok(())
    }
}

/// Drives a run until it is over and no one can look at it any more.
pub(super) async fn drive(mut run: Run, mut keep: Keep, mut inbox: mpsc::UnboundedReceiver<Ask>) {
    let mut pump = Pump::new(&mut keep);
    let mut state = State::default();
    let mut looking: Option<Looking> = None;
    let mut next: VecDeque<(Asked, Reply)> = VecDeque::new();
    let mut pipes = [run.stdout.take(), run.stderr.take()];
    let mut buffers = [vec![0; CHUNK], vec![0; CHUNK]];
    let mut input = match run.stdin.take() {
        Some((pipe, bytes)) => {
            Input { pipe: Some(pipe), waiting: bytes.into(), stays_open: run.interactive }
        }
        None => Input { pipe: None, waiting: VecDeque::new(), stays_open: false },
    };
    let deadline = keep.deadline.clone();
    // If a caller waits for the result, what was left behind must not delay it.
    let patience = if keep.late.is_some() { DRAIN } else { run.grace + KILLING };
    let mut is_held = true;
    let mut passed: BoxFuture<'_, ()> = match &deadline {
        Some(deadline) => Box::pin(deadline.passed()),
        None => Box::pin(pending()),
    };
    while !state.is_over(&pipes) {
        // Requests whose sender has gone wait no longer. A request whose event has occurred is
        // answered now, and so is one that yields to the next.
        next.retain(|(_, reply)| !reply.is_closed());
        let is_enough = looking.as_ref().is_some_and(|Looking { look, .. }| {
            look.is_enough.load(Ordering::SeqCst) || look.gives_way && !next.is_empty()
        });
        if is_enough && let Some(Looking { reply, .. }) = looking.take() {
            pump.drain(&mut pipes, &mut buffers[0]).await;
            let glance = pump.glance(run.started.elapsed()).await;
            // An observer that has just gone finds it in the stored output.
            let _ = reply.send(Ok(Seen::Running(glance)));
        }
        if looking.is_none()
            && let Some((look, reply)) = next.pop_front()
        {
            pump.widen(look.budget);
            let mut beginning = Looking::new(look, reply);
            pump.catch_up(beginning.progress.as_mut());
            looking = Some(beginning);
        }
        let ending = state.until.is_some();
        let read = ending || looking.as_ref().is_none_or(|looking| looking.sending.is_none());
        let due = due(&state, looking.as_ref());
        let [out, err] = &mut pipes;
        let [out_buffer, err_buffer] = &mut buffers;
        let mut order = None;
        tokio::select! {
            cause = keep.cancel.cancelled(), if !ending => state.stop = Some(Stop::by(cause)),
            () = &mut passed, if !ending => state.stop = Some(Stop::Deadline),
            line = run.reports.next_line(), if !state.gone => state.hear(line, patience),
            count = read_from(out, out_buffer), if read => pump.take(Stream::Stdout, out, out_buffer, count, &mut looking).await,
            count = read_from(err, err_buffer), if read => pump.take(Stream::Stderr, err, err_buffer, count, &mut looking).await,
            () = input.feed() => {}
            what = attend(&mut looking), if looking.is_some() => match what {
                Attended::Sent => if let Some(looking) = &mut looking { looking.sending = None },
                Attended::Left => looking = None,
            },
            ask = inbox.recv(), if is_held => match ask {
                // No handle to the run is left.
                None => {
                    is_held = false;
                    state.stop.get_or_insert(Stop::Cancelled(Cause::SessionEnd));
                }
                Some(Ask::Look(look, reply)) => next.push_back((look, reply)),
                Some(Ask::Enough) => {}
                Some(Ask::Write { bytes, close, reply }) => drop(reply.send(input.write(&bytes, close))),
                Some(Ask::Signal(signal)) => order = Some(SupervisorCommand::Signal(signal)),
                // A run that has exited on its own was not stopped.
                Some(Ask::Stop(_)) if state.exit.is_some() => {}
                Some(Ask::Stop(stop)) => drop(state.stop.get_or_insert(stop)),
            },
            () = sleep_until(due) => say(&state, looking.as_mut()),
        }
        if state.stop.is_some() && !ending {
            state.until = Some(Instant::now() + run.grace + KILLING);
            order = Some(SupervisorCommand::End(Signal::TERM.as_raw()));
            // Commands that run elsewhere in place of its processes have their grace period at the
            // same time.
            if let Some(service) = &run.service {
                service.stop_answering();
            }
        }
        if let Some(order) = order {
            // A write error means that the supervisor has ended, which the end of its reports
            // shows.
            let _ = run.orders.write_all(&encode_line(&order).unwrap_or_default()).await;
        }
    }
    if state.stop.is_none()
        && let Some(sending) = looking.as_mut().and_then(|looking| looking.sending.take())
    {
        let _ = timeout(LAST_MESSAGE, sending).await;
    }
    let lost = state.exit.is_none() && state.stop.is_none() || state.stop.is_some() && !state.gone;
    if lost {
        Run::kill_without_supervisor(&mut run.supervisor, run.main);
    }
    let held = pipes.iter().any(Option::is_some);
    pump.drain(&mut pipes, &mut buffers[0]).await;
    drop(pipes);
    let refused = run.egress.take().as_ref().map(Egress::denials).unwrap_or_default();
    let has_rest = state.reported == Reported::Interim && state.stop.is_none();
    let late = keep.late.take().filter(|_| has_rest);
    let mut ended = pump.end(state, held, run.started.elapsed()).await;
    drop(passed);
    match late {
        Some(late) => {
            if let Some(service) = &run.service {
                service.stop_answering();
            }
            let rest = aftermath::follow(run, ended.clone(), refused.clone(), late);
            ended.add_denials(refused);
            (keep.ended)(&mut ended).await;
            keep.tasks.spawn(rest.in_current_span());
        }
        None => {
            ended.add_denials(refused);
            run.finish(&mut ended).await;
            drop(run);
            (keep.ended)(&mut ended).await;
        }
    }
    let first = looking.map(|Looking { look, reply, .. }| (look, reply));
    for (look, reply) in first.into_iter().chain(next) {
        pump.answer(&mut ended, &look, reply).await;
    }
    remember(pump, ended, inbox, &keep.cancel).await;
    (keep.forgotten)();
}

/// Answers requests that come after the end.
async fn remember(
    mut pump: Pump,
    mut ended: Ended,
    mut inbox: mpsc::UnboundedReceiver<Ask>,
    cancel: &Cancel,
) {
    let until = Instant::now() + REMEMBERED;
    loop {
        let ask = tokio::select! {
            ask = inbox.recv() => ask,
            () = sleep_until(until) => None,
            _ = cancel.cancelled() => None,
        };
        match ask {
            Some(Ask::Look(look, reply)) => pump.answer(&mut ended, &look, reply).await,
            Some(Ask::Write { reply, .. }) => {
                let over = Error::new(Kind::Conflict, "it has ended").reason("ended");
                let _ = reply.send(Err(over.hint("Read the rest of its output with `op: read`.")));
            }
            Some(Ask::Signal(_) | Ask::Stop(_) | Ask::Enough) => {}
            None => return,
        }
    }
}

enum Attended {
    /// The client has taken a message.
    Sent,
    /// The observer has gone.
    Left,
}

async fn attend(looking: &mut Option<Looking>) -> Attended {
    let Some(Looking { reply, sending, .. }) = looking else { return pending().await };
    tokio::select! {
        () = async { match sending { Some(sending) => sending.await, None => pending().await } } => Attended::Sent,
        () = reply.closed() => Attended::Left,
    }
}

/// Returns when the loop has to wake up without an event.
fn due(state: &State, looking: Option<&Looking>) -> Instant {
    let silent = looking.filter(|looking| looking.sending.is_none());
    let message = silent.and_then(|looking| looking.progress.as_ref()).map(Progress::due);
    state.until.or(message).unwrap_or_else(|| Instant::now() + Duration::from_secs(3600))
}

fn say(state: &State, looking: Option<&mut Looking>) {
    let now = Instant::now();
    let Some(looking) = looking.filter(|_| state.until.is_none()) else { return };
    let (Some(progress), Some(caller)) = (&mut looking.progress, &looking.look.caller) else {
        return;
    };
    if progress.due() <= now {
        let (text, count) = progress.take(now);
        let caller = caller.clone();
        looking.sending = Some(Box::pin(async move { caller.progress(text, count, None).await }));
    }
}

async fn read_from(pipe: &mut Option<Receiver>, buffer: &mut [u8]) -> io::Result<usize> {
    match pipe {
        Some(pipe) => pipe.read(buffer).await,
        None => pending().await,
    }
}
