//! Drives a run from its start to its end: reads output, sends progress, and handles whatever ends
//! it first.
//!
//! A run is over when its main process has exited, not when its pipes are closed: a background
//! process can hold those indefinitely. A separate task drives the run and continues when no one
//! looks; observers send it requests ([`super::run_handle`]).
//!
//! Whatever ends the run, its supervisor's final report is awaited, within limits: the record says
//! what the run was denied and what it ran, or that this is unknown ([`ReportCompleteness`]). The end of the
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

use super::OutputStream;
use super::aftermath;
use super::egress::Egress;
use super::launch::StartedRun;
use super::output_pump::OutputPump;
use super::progress::ProgressCollector;
use super::run_handle::{
    PendingRequest, ReportCompleteness, RunMessage, RunOptions, RunResult, RunState, StateSender,
    StopReason,
};
use crate::base::{CancelCause, CancelToken, Error, Kind};

/// Maximum time for reading what is still in the pipes after the main process has exited.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(150);
/// Time allowed beyond the grace period, for the killing itself and for the report about it.
pub(super) const KILL_ALLOWANCE: Duration = Duration::from_secs(1);
/// Maximum wait for the client to take the last progress message; after that the client will not
/// miss it.
const LAST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for which an ended run can still be looked at.
const RETENTION: Duration = Duration::from_secs(600);
const CHUNK_BYTES: usize = 64 << 10;
/// Maximum input that the program has not read yet.
const MAX_QUEUED_INPUT: usize = 1 << 20;

/// State of a run, as its task knows it.
#[derive(Default)]
pub(super) struct DriverState {
    pub(super) stop_reason: Option<StopReason>,
    pub(super) exit: Option<RunExit>,
    pub(super) reported: ReportCompleteness,
    /// The supervisor has ended, or has reported that nothing of the run is left.
    pub(super) supervisor_gone: bool,
    /// Time beyond which nothing is waited for.
    wait_until: Option<Instant>,
}

impl DriverState {
    fn is_over(&self, pipes: &[Option<Receiver>; 2]) -> bool {
        let late = self.wait_until.is_some_and(|until| Instant::now() >= until);
        match (&self.stop_reason, &self.exit) {
            (Some(_), _) => self.supervisor_gone || late,
            (None, Some(_)) => late || self.supervisor_gone && pipes.iter().all(Option::is_none),
            (None, None) => self.supervisor_gone,
        }
    }

    /// Takes in a report. `patience` is how long to wait for what the main process left behind.
    fn handle_report(&mut self, line: io::Result<Option<String>>, patience: Duration) {
        let report = line.ok().flatten().and_then(|line| serde_json::from_str(&line).ok());
        let now = Instant::now();
        match report {
            Some(SupervisorReport::Exited(exit)) => {
                (self.exit, self.reported) = (Some(exit), ReportCompleteness::Interim);
                self.wait_until.get_or_insert(now + patience);
            }
            Some(SupervisorReport::Over(exit)) => {
                (self.exit, self.reported, self.supervisor_gone) =
                    (Some(exit), ReportCompleteness::Whole, true);
                let drained = now + DRAIN_TIMEOUT;
                let until = self.wait_until.get_or_insert(drained);
                *until = drained.min(*until);
            }
            // Nothing else is reported about a run that was started; an unreadable report is
            // treated as a lost supervisor.
            _ => self.supervisor_gone = true,
        }
    }
}

/// Observer of the run, until its request is answered or it has gone.
pub(super) struct RunObserver {
    request: PendingRequest,
    reply: StateSender,
    /// Only for a client that asked for it.
    pub(super) progress: Option<ProgressCollector>,
    /// Message on its way to the client. Meanwhile the pipes are not read, so a run is never faster
    /// than its observer; once the run is over there is nothing left to slow down.
    sending: Option<BoxFuture<'static, ()>>,
}

impl RunObserver {
    fn new(look: PendingRequest, reply: StateSender) -> RunObserver {
        let progress = look.client.as_ref().filter(|caller| caller.capabilities().progress);
        let progress = progress.map(|_| ProgressCollector::new(Instant::now()));
        RunObserver { request: look, reply, progress, sending: None }
    }
}

/// Standard input of the run: what was written and not yet read, and whether more may come.
struct StdinFeed {
    pipe: Option<Sender>,
    queued: VecDeque<u8>,
    stays_open: bool,
}

impl StdinFeed {
    /// Passes on what waits, and closes the pipe when no more will come. Never returns while there
    /// is nothing to do.
    async fn feed_pipe(&mut self) {
        let Some(pipe) = &mut self.pipe else { return pending().await };
        if self.queued.is_empty() {
            if self.stays_open {
                return pending().await;
            }
            self.pipe = None;
            return;
        }
        let (bytes, _) = self.queued.as_slices();
        match pipe.write(bytes).await {
            Ok(taken) => drop(self.queued.drain(..taken)),
            // A program need not read its input.
            Err(_) => {
                self.pipe = None;
                self.queued.clear();
            }
        }
    }

    fn queue_input(&mut self, bytes: &[u8], close: bool) -> crate::base::Result<()> {
        if self.pipe.is_none() || !self.stays_open {
            return Err(Error::new(Kind::Conflict, "its standard input is closed")
                .with_reason("stdin_closed")
                .with_hint("Start the command with `interactive: true` to write to it later."));
        }
        if self.queued.len() + bytes.len() > MAX_QUEUED_INPUT {
            return Err(Error::new(
                Kind::ResourceExhausted,
                "the program has not read its earlier input yet",
            )
            .with_hint("Read its output, or wait until it reads its input."));
        }
        self.queued.extend(bytes);
        self.stays_open = !close;
        Ok(())
    }
}

/// Drives a run until it is over and no one can look at it any more.
pub(super) async fn drive_run(
    mut run: StartedRun,
    mut keep: RunOptions,
    mut inbox: mpsc::UnboundedReceiver<RunMessage>,
) {
    let mut pump = OutputPump::new(&mut keep);
    let mut state = DriverState::default();
    let mut looking: Option<RunObserver> = None;
    let mut next: VecDeque<(PendingRequest, StateSender)> = VecDeque::new();
    let mut pipes = [run.stdout.take(), run.stderr.take()];
    let mut buffers = [vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]];
    let mut input = match run.stdin.take() {
        Some((pipe, bytes)) => {
            StdinFeed { pipe: Some(pipe), queued: bytes.into(), stays_open: run.interactive }
        }
        None => StdinFeed { pipe: None, queued: VecDeque::new(), stays_open: false },
    };
    let deadline = keep.deadline.clone();
    // If a caller waits for the result, what was left behind must not delay it.
    let patience =
        if keep.on_late_end.is_some() { DRAIN_TIMEOUT } else { run.grace + KILL_ALLOWANCE };
    let mut is_held = true;
    let mut passed: BoxFuture<'_, ()> = match &deadline {
        Some(deadline) => Box::pin(deadline.wait_until_passed()),
        None => Box::pin(pending()),
    };
    while !state.is_over(&pipes) {
        // Requests whose sender has gone wait no longer. A request whose event has occurred is
        // answered now, and so is one that yields to the next.
        next.retain(|(_, reply)| !reply.is_closed());
        let is_enough = looking.as_ref().is_some_and(|RunObserver { request: look, .. }| {
            look.is_satisfied.load(Ordering::SeqCst) || look.yields_to_next && !next.is_empty()
        });
        if is_enough && let Some(RunObserver { reply, .. }) = looking.take() {
            pump.drain_pipes(&mut pipes, &mut buffers[0]).await;
            let glance = pump.take_partial(run.started.elapsed()).await;
            // An observer that has just gone finds it in the stored output.
            let _ = reply.send(Ok(RunState::Running(glance)));
        }
        if looking.is_none()
            && let Some((look, reply)) = next.pop_front()
        {
            pump.set_budget(look.budget);
            let mut beginning = RunObserver::new(look, reply);
            pump.catch_up(beginning.progress.as_mut());
            looking = Some(beginning);
        }
        let ending = state.wait_until.is_some();
        let read = ending || looking.as_ref().is_none_or(|looking| looking.sending.is_none());
        let due = next_wakeup(&state, looking.as_ref());
        let [out, err] = &mut pipes;
        let [out_buffer, err_buffer] = &mut buffers;
        let mut order = None;
        tokio::select! {
            cause = keep.cancel.cancelled(), if !ending => state.stop_reason = Some(StopReason::from_cause(cause)),
            () = &mut passed, if !ending => state.stop_reason = Some(StopReason::Deadline),
            line = run.reports.next_line(), if !state.supervisor_gone => state.handle_report(line, patience),
            count = read_pipe(out, out_buffer), if read => pump.handle_read(OutputStream::Stdout, out, out_buffer, count, &mut looking).await,
            count = read_pipe(err, err_buffer), if read => pump.handle_read(OutputStream::Stderr, err, err_buffer, count, &mut looking).await,
            () = input.feed_pipe() => {}
            what = next_observer_event(&mut looking), if looking.is_some() => match what {
                ObserverEvent::Sent => if let Some(looking) = &mut looking { looking.sending = None },
                ObserverEvent::Left => looking = None,
            },
            ask = inbox.recv(), if is_held => match ask {
                // No handle to the run is left.
                None => {
                    is_held = false;
                    state.stop_reason.get_or_insert(StopReason::Cancelled(CancelCause::SessionEnd));
                }
                Some(RunMessage::Output(look, reply)) => next.push_back((look, reply)),
                Some(RunMessage::Satisfied) => {}
                Some(RunMessage::Write { bytes, close, reply }) => drop(reply.send(input.queue_input(&bytes, close))),
                Some(RunMessage::Signal(signal)) => order = Some(SupervisorCommand::Signal(signal)),
                // A run that has exited on its own was not stopped.
                Some(RunMessage::Stop(_)) if state.exit.is_some() => {}
                Some(RunMessage::Stop(stop)) => drop(state.stop_reason.get_or_insert(stop)),
            },
            () = sleep_until(due) => send_progress(&state, looking.as_mut()),
        }
        if state.stop_reason.is_some() && !ending {
            state.wait_until = Some(Instant::now() + run.grace + KILL_ALLOWANCE);
            order = Some(SupervisorCommand::End(Signal::TERM.as_raw()));
            // Commands that run elsewhere in place of its processes have their grace period at the
            // same time.
            if let Some(service) = &run.exec_service {
                service.stop_answering();
            }
        }
        if let Some(order) = order {
            // A write error means that the supervisor has ended, which the end of its reports
            // shows.
            let _ = run.orders.write_all(&encode_line(&order).unwrap_or_default()).await;
        }
    }
    if state.stop_reason.is_none()
        && let Some(sending) = looking.as_mut().and_then(|looking| looking.sending.take())
    {
        let _ = timeout(LAST_MESSAGE_TIMEOUT, sending).await;
    }
    let lost = state.exit.is_none() && state.stop_reason.is_none()
        || state.stop_reason.is_some() && !state.supervisor_gone;
    if lost {
        StartedRun::kill_without_supervisor(&mut run.supervisor, run.main_pid);
    }
    let held = pipes.iter().any(Option::is_some);
    pump.drain_pipes(&mut pipes, &mut buffers[0]).await;
    drop(pipes);
    let refused = run.egress.take().as_ref().map(Egress::denials).unwrap_or_default();
    let has_rest = state.reported == ReportCompleteness::Interim && state.stop_reason.is_none();
    let late = keep.on_late_end.take().filter(|_| has_rest);
    let mut ended = pump.finish_run(state, held, run.started.elapsed()).await;
    drop(passed);
    match late {
        Some(late) => {
            if let Some(service) = &run.exec_service {
                service.stop_answering();
            }
            let rest = aftermath::follow_left_behind(run, ended.clone(), refused.clone(), late);
            ended.add_denials(refused);
            (keep.on_end)(&mut ended).await;
            keep.tasks.spawn(rest.in_current_span());
        }
        None => {
            ended.add_denials(refused);
            run.finish_execs(&mut ended).await;
            drop(run);
            (keep.on_end)(&mut ended).await;
        }
    }
    let first = looking.map(|RunObserver { request: look, reply, .. }| (look, reply));
    for (look, reply) in first.into_iter().chain(next) {
        pump.reply_result(&mut ended, &look, reply).await;
    }
    answer_late_requests(pump, ended, inbox, &keep.cancel).await;
    (keep.on_forgotten)();
}

/// Answers requests that come after the end.
async fn answer_late_requests(
    mut pump: OutputPump,
    mut ended: RunResult,
    mut inbox: mpsc::UnboundedReceiver<RunMessage>,
    cancel: &CancelToken,
) {
    let until = Instant::now() + RETENTION;
    loop {
        let ask = tokio::select! {
            ask = inbox.recv() => ask,
            () = sleep_until(until) => None,
            _ = cancel.cancelled() => None,
        };
        match ask {
            Some(RunMessage::Output(look, reply)) => {
                pump.reply_result(&mut ended, &look, reply).await
            }
            Some(RunMessage::Write { reply, .. }) => {
                let over = Error::new(Kind::Conflict, "it has ended").with_reason("ended");
                let _ =
                    reply.send(Err(over.with_hint("Read the rest of its output with `op: read`.")));
            }
            Some(RunMessage::Signal(_) | RunMessage::Stop(_) | RunMessage::Satisfied) => {}
            None => return,
        }
    }
}

enum ObserverEvent {
    /// The client has taken a message.
    Sent,
    /// The observer has gone.
    Left,
}

async fn next_observer_event(looking: &mut Option<RunObserver>) -> ObserverEvent {
    let Some(RunObserver { reply, sending, .. }) = looking else { return pending().await };
    tokio::select! {
        () = async { match sending { Some(sending) => sending.await, None => pending().await } } => ObserverEvent::Sent,
        () = reply.closed() => ObserverEvent::Left,
    }
}

/// Returns when the loop has to wake up without an event.
fn next_wakeup(state: &DriverState, looking: Option<&RunObserver>) -> Instant {
    let silent = looking.filter(|looking| looking.sending.is_none());
    let message =
        silent.and_then(|looking| looking.progress.as_ref()).map(ProgressCollector::next_due);
    state.wait_until.or(message).unwrap_or_else(|| Instant::now() + Duration::from_secs(3600))
}

fn send_progress(state: &DriverState, looking: Option<&mut RunObserver>) {
    let now = Instant::now();
    let Some(looking) = looking.filter(|_| state.wait_until.is_none()) else { return };
    let (Some(progress), Some(caller)) = (&mut looking.progress, &looking.request.client) else {
        return;
    };
    if progress.next_due() <= now {
        let (text, count) = progress.take_message(now);
        let caller = caller.clone();
        looking.sending =
            Some(Box::pin(async move { caller.send_progress(text, count, None).await }));
    }
}

async fn read_pipe(pipe: &mut Option<Receiver>, buffer: &mut [u8]) -> io::Result<usize> {
    match pipe {
        Some(pipe) => pipe.read(buffer).await,
        None => pending().await,
    }
}
