//! Drives a run from its start to its end: reads output, sends progress, and handles whatever ends
//! it first.
//!
//! A run is over when its main process has exited, not when its pipes are closed: a background
//! process can hold those indefinitely. A separate task drives the run and continues when no one
//! looks; observers send it requests ([`super::run_handle`]).
//!
//! Whatever ends the run, its supervisor's final report is awaited, within limits: the record says
//! what the run was denied and what it ran, or that this is unknown ([`ReportCompleteness`]). The
//! end of the main process alone completes a result; [`super::left_behind`] follows what it left
//! behind to the end.

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

use super::egress::Egress;
use super::launch::StartedRun;
use super::left_behind;
use super::output_pump::OutputPump;
use super::progress::ProgressCollector;
use super::run_handle::{PendingRequest, RunHandle, RunMessage, RunOptions, StateSender};
use super::run_result::{ReportCompleteness, RunResult, RunState, StopReason};
use super::{KILL_ALLOWANCE, OutputStream};
use crate::base::{CancelCause, CancelToken, Error, Kind};

/// Maximum time for reading what is still in the pipes after the main process has exited.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(150);
/// Maximum wait for the client to take the last progress message; after that the client will not
/// miss it.
const LAST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for which an ended run can still be looked at.
const RETENTION: Duration = Duration::from_secs(600);
const CHUNK_BYTES: usize = 64 << 10;
/// Maximum input that the program has not read yet.
const MAX_QUEUED_INPUT: usize = 1 << 20;

impl StartedRun {
    /// Starts the task that drives the run.
    pub fn into_handle(self, options: RunOptions) -> RunHandle {
        let (messages, inbox) = mpsc::unbounded_channel();
        let tasks = options.tasks.clone();
        tasks.spawn(drive_run(self, options, inbox).in_current_span());
        RunHandle::new(messages)
    }
}

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
        let is_late = self.wait_until.is_some_and(|deadline| Instant::now() >= deadline);
        match (&self.stop_reason, &self.exit) {
            (Some(_), _) => self.supervisor_gone || is_late,
            (None, Some(_)) => is_late || self.supervisor_gone && pipes.iter().all(Option::is_none),
            (None, None) => self.supervisor_gone,
        }
    }

    /// Takes in a report. `drain_timeout` is how long to wait for what the main process left
    /// behind.
    fn handle_report(&mut self, line: io::Result<Option<String>>, drain_timeout: Duration) {
        let report = line.ok().flatten().and_then(|line| serde_json::from_str(&line).ok());
        let now = Instant::now();
        match report {
            Some(SupervisorReport::Exited(exit)) => {
                (self.exit, self.reported) = (Some(exit), ReportCompleteness::Interim);
                self.wait_until.get_or_insert(now + drain_timeout);
            }
            Some(SupervisorReport::Over(exit)) => {
                (self.exit, self.reported, self.supervisor_gone) =
                    (Some(exit), ReportCompleteness::Whole, true);
                let drain_deadline = now + DRAIN_TIMEOUT;
                let deadline = self.wait_until.get_or_insert(drain_deadline);
                *deadline = drain_deadline.min(*deadline);
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
    fn new(request: PendingRequest, reply: StateSender) -> RunObserver {
        let progress = request.client.as_ref().filter(|client| client.capabilities().progress);
        let progress = progress.map(|_| ProgressCollector::new(Instant::now()));
        RunObserver { request, reply, progress, sending: None }
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
            Ok(written) => drop(self.queued.drain(..written)),
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
    mut options: RunOptions,
    mut inbox: mpsc::UnboundedReceiver<RunMessage>,
) {
    let mut pump = OutputPump::new(&mut options);
    let mut state = DriverState::default();
    let mut observer: Option<RunObserver> = None;
    let mut waiting_requests: VecDeque<(PendingRequest, StateSender)> = VecDeque::new();
    let mut pipes = [run.stdout.take(), run.stderr.take()];
    let mut buffers = [vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]];
    let mut input = match run.stdin.take() {
        Some((pipe, bytes)) => {
            StdinFeed { pipe: Some(pipe), queued: bytes.into(), stays_open: run.interactive }
        }
        None => StdinFeed { pipe: None, queued: VecDeque::new(), stays_open: false },
    };
    let deadline = options.deadline.clone();
    // If a caller waits for the result, what was left behind must not delay it.
    let drain_timeout =
        if options.on_late_end.is_some() { DRAIN_TIMEOUT } else { run.grace + KILL_ALLOWANCE };
    let mut has_handle = true;
    let mut deadline_passed: BoxFuture<'_, ()> = match &deadline {
        Some(deadline) => Box::pin(deadline.wait_until_passed()),
        None => Box::pin(pending()),
    };
    while !state.is_over(&pipes) {
        // Requests whose sender has gone wait no longer. A request whose event has occurred is
        // answered now, and so is one that yields to the next.
        waiting_requests.retain(|(_, reply)| !reply.is_closed());
        let is_enough = observer.as_ref().is_some_and(|RunObserver { request, .. }| {
            request.is_satisfied.load(Ordering::SeqCst)
                || request.yields_to_next && !waiting_requests.is_empty()
        });
        if is_enough && let Some(RunObserver { reply, .. }) = observer.take() {
            pump.drain_pipes(&mut pipes, &mut buffers[0]).await;
            let partial = pump.take_partial(run.started.elapsed()).await;
            // An observer that has just gone finds it in the stored output.
            let _ = reply.send(Ok(RunState::Running(partial)));
        }
        if observer.is_none()
            && let Some((request, reply)) = waiting_requests.pop_front()
        {
            pump.set_budget(request.budget);
            let mut new_observer = RunObserver::new(request, reply);
            pump.catch_up(new_observer.progress.as_mut());
            observer = Some(new_observer);
        }
        let is_ending = state.wait_until.is_some();
        let may_read =
            is_ending || observer.as_ref().is_none_or(|observer| observer.sending.is_none());
        let wakeup = next_wakeup(&state, observer.as_ref());
        let [out, err] = &mut pipes;
        let [out_buffer, err_buffer] = &mut buffers;
        let mut order = None;
        tokio::select! {
            cause = options.cancel.cancelled(), if !is_ending => state.stop_reason = Some(StopReason::from_cause(cause)),
            () = &mut deadline_passed, if !is_ending => state.stop_reason = Some(StopReason::Deadline),
            line = run.reports.next_line(), if !state.supervisor_gone => state.handle_report(line, drain_timeout),
            count = read_pipe(out, out_buffer), if may_read => pump.handle_read(OutputStream::Stdout, out, out_buffer, count, &mut observer).await,
            count = read_pipe(err, err_buffer), if may_read => pump.handle_read(OutputStream::Stderr, err, err_buffer, count, &mut observer).await,
            () = input.feed_pipe() => {}
            event = next_observer_event(&mut observer), if observer.is_some() => match event {
                ObserverEvent::Sent => if let Some(observer) = &mut observer { observer.sending = None },
                ObserverEvent::Left => observer = None,
            },
            message = inbox.recv(), if has_handle => match message {
                // No handle to the run is left.
                None => {
                    has_handle = false;
                    state.stop_reason.get_or_insert(StopReason::Cancelled(CancelCause::SessionEnd));
                }
                Some(RunMessage::Output(request, reply)) => waiting_requests.push_back((request, reply)),
                Some(RunMessage::Satisfied) => {}
                Some(RunMessage::Write { bytes, close, reply }) => drop(reply.send(input.queue_input(&bytes, close))),
                Some(RunMessage::Signal(signal)) => order = Some(SupervisorCommand::Signal(signal)),
                // A run that has exited on its own was not stopped.
                Some(RunMessage::Stop(_)) if state.exit.is_some() => {}
                Some(RunMessage::Stop(reason)) => drop(state.stop_reason.get_or_insert(reason)),
            },
            () = sleep_until(wakeup) => send_progress(&state, observer.as_mut()),
        }
        if state.stop_reason.is_some() && !is_ending {
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
        && let Some(sending) = observer.as_mut().and_then(|observer| observer.sending.take())
    {
        let _ = timeout(LAST_MESSAGE_TIMEOUT, sending).await;
    }
    let is_lost = state.exit.is_none() && state.stop_reason.is_none()
        || state.stop_reason.is_some() && !state.supervisor_gone;
    if is_lost {
        StartedRun::kill_without_supervisor(&mut run.supervisor, run.main_pid);
    }
    let is_output_held = pipes.iter().any(Option::is_some);
    pump.drain_pipes(&mut pipes, &mut buffers[0]).await;
    drop(pipes);
    let denials = run.egress.take().as_ref().map(Egress::denials).unwrap_or_default();
    let has_rest = state.reported == ReportCompleteness::Interim && state.stop_reason.is_none();
    let on_late_end = options.on_late_end.take().filter(|_| has_rest);
    let mut result = pump.finish_run(state, is_output_held, run.started.elapsed()).await;
    drop(deadline_passed);
    match on_late_end {
        Some(on_late_end) => {
            if let Some(service) = &run.exec_service {
                service.stop_answering();
            }
            let follow_up =
                left_behind::follow_left_behind(run, result.clone(), denials.clone(), on_late_end);
            result.add_denials(denials);
            (options.on_end)(&mut result).await;
            options.tasks.spawn(follow_up.in_current_span());
        }
        None => {
            result.add_denials(denials);
            run.finish_execs(&mut result).await;
            drop(run);
            (options.on_end)(&mut result).await;
        }
    }
    let active = observer.map(|RunObserver { request, reply, .. }| (request, reply));
    for (request, reply) in active.into_iter().chain(waiting_requests) {
        pump.reply_result(&mut result, &request, reply).await;
    }
    answer_late_requests(pump, result, inbox, &options.cancel).await;
    (options.on_forgotten)();
}

/// Answers requests that come after the end.
async fn answer_late_requests(
    mut pump: OutputPump,
    mut result: RunResult,
    mut inbox: mpsc::UnboundedReceiver<RunMessage>,
    cancel: &CancelToken,
) {
    let retention_end = Instant::now() + RETENTION;
    loop {
        let message = tokio::select! {
            message = inbox.recv() => message,
            () = sleep_until(retention_end) => None,
            _ = cancel.cancelled() => None,
        };
        match message {
            Some(RunMessage::Output(request, reply)) => {
                pump.reply_result(&mut result, &request, reply).await
            }
            Some(RunMessage::Write { reply, .. }) => {
                let error = Error::new(Kind::Conflict, "it has ended").with_reason("ended");
                let _ = reply
                    .send(Err(error.with_hint("Read the rest of its output with `op: read`.")));
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

async fn next_observer_event(observer: &mut Option<RunObserver>) -> ObserverEvent {
    let Some(RunObserver { reply, sending, .. }) = observer else { return pending().await };
    tokio::select! {
        () = async { match sending { Some(sending) => sending.await, None => pending().await } } => ObserverEvent::Sent,
        () = reply.closed() => ObserverEvent::Left,
    }
}

/// Returns when the loop has to wake up without an event.
fn next_wakeup(state: &DriverState, observer: Option<&RunObserver>) -> Instant {
    let idle_observer = observer.filter(|observer| observer.sending.is_none());
    let progress_due = idle_observer
        .and_then(|observer| observer.progress.as_ref())
        .map(ProgressCollector::next_due);
    state.wait_until.or(progress_due).unwrap_or_else(|| Instant::now() + Duration::from_secs(3600))
}

fn send_progress(state: &DriverState, observer: Option<&mut RunObserver>) {
    let now = Instant::now();
    let Some(observer) = observer.filter(|_| state.wait_until.is_none()) else { return };
    let (Some(progress), Some(client)) = (&mut observer.progress, &observer.request.client) else {
        return;
    };
    if progress.next_due() <= now {
        let (text, count) = progress.take_message(now);
        let client = client.clone();
        observer.sending =
            Some(Box::pin(async move { client.send_progress(text, count, None).await }));
    }
}

async fn read_pipe(pipe: &mut Option<Receiver>, buffer: &mut [u8]) -> io::Result<usize> {
    match pipe {
        Some(pipe) => pipe.read(buffer).await,
        None => pending().await,
    }
}
