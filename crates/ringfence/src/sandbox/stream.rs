//! A run from its start to its end: output in, progress out, and whatever ends it first.
//!
//! A run is over when its main process is, not when its pipes are: a background process can hold those for ever.
//! It is driven by a task of its own, which goes on when nobody looks; whoever wants to see it asks ([`super::live`]).

use std::borrow::Cow;
use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::BoxFuture;
use jail::supervisor::{Exit, Order, Report, encode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use super::Stream;
use super::egress::Egress;
use super::launch::Run;
use super::live::{Ask, Asked, Ended, Glance, Keep, Outcome, Reads, Reply, Seen, Stop};
use super::progress::Progress;
use super::ring::{Ring, Shown};
use super::spool::Spool;
use crate::base::sieve::Sieve;
use crate::base::{Cancel, Cause, Error, Kind};

/// What is still in the pipes when the main process has ended is read for at most this long.
const DRAIN: Duration = Duration::from_millis(150);
/// Beyond the grace: for the killing itself.
const KILLING: Duration = Duration::from_secs(1);
/// A client that has taken the last progress message this late will not miss it.
const LAST_MESSAGE: Duration = Duration::from_secs(1);
/// What has ended can be looked at this long.
const REMEMBERED: Duration = Duration::from_secs(600);
const CHUNK: usize = 64 << 10;
/// Of input that the program has not taken yet.
const INPUT_BYTES: usize = 1 << 20;

/// How far a run has come.
#[derive(Default)]
struct State {
    stop: Option<Stop>,
    exit: Option<Exit>,
    /// The supervisor has ended: nothing of the run is left.
    gone: bool,
    /// No waiting beyond this.
    until: Option<Instant>,
}

impl State {
    fn is_over(&self, pipes: &[Option<Receiver>; 2]) -> bool {
        let late = self.until.is_some_and(|until| Instant::now() >= until);
        match (&self.stop, &self.exit) {
            (Some(_), _) => self.gone || late,
            (None, Some(_)) => late || pipes.iter().all(Option::is_none),
            (None, None) => self.gone,
        }
    }

    fn hear(&mut self, line: io::Result<Option<String>>) {
        let report = line.ok().flatten().and_then(|line| serde_json::from_str(&line).ok());
        match report {
            Some(Report::Exited(exit)) => {
                self.exit = Some(exit);
                self.until.get_or_insert(Instant::now() + DRAIN);
            }
            // Nothing else is told of a run that was started; what cannot be read is as good as no supervisor.
            _ => self.gone = true,
        }
    }
}

/// Somebody who looks at the run, until they have seen enough or have gone.
struct Looking {
    look: Asked,
    reply: Reply,
    /// Only for a client that asked.
    progress: Option<Progress>,
    /// A message on its way to the client. While it is, the pipes are not read, so a run is never faster than the one
    /// who watches it; once the run is over there is nothing left to slow down.
    sending: Option<BoxFuture<'static, ()>>,
}

impl Looking {
    fn new(look: Asked, reply: Reply) -> Looking {
        let progress = look.caller.as_ref().filter(|caller| caller.abilities().progress);
        let progress = progress.map(|_| Progress::new(Instant::now()));
        Looking { look, reply, progress, sending: None }
    }
}

/// The run's standard input: what was written and not yet taken, and whether more may come.
struct Input {
    pipe: Option<Sender>,
    waiting: VecDeque<u8>,
    stays_open: bool,
}

impl Input {
    /// Passes on what waits, and closes the pipe when no more will come. Never ends while there is nothing to do.
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
            // A program need not read what it is given.
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
            return Err(Error::new(Kind::ResourceExhausted, "the program has not taken what was written before")
                .hint("Read its output, or wait until it reads its input."));
        }
        self.waiting.extend(bytes);
        self.stays_open = !close;
        Ok(())
    }
}

/// Drives a run until it is over and nobody can look any more.
pub(super) async fn drive(mut run: Run, mut keep: Keep, mut inbox: mpsc::UnboundedReceiver<Ask>) {
    let mut pump = Pump::new(&mut keep);
    let mut state = State::default();
    let mut looking: Option<Looking> = None;
    let mut next: VecDeque<(Asked, Reply)> = VecDeque::new();
    let mut pipes = [run.stdout.take(), run.stderr.take()];
    let mut buffers = [vec![0; CHUNK], vec![0; CHUNK]];
    let mut input = match run.stdin.take() {
        Some((pipe, bytes)) => Input { pipe: Some(pipe), waiting: bytes.into(), stays_open: run.interactive },
        None => Input { pipe: None, waiting: VecDeque::new(), stays_open: false },
    };
    let deadline = keep.deadline.clone();
    let mut is_held = true;
    let mut passed: BoxFuture<'_, ()> = match &deadline {
        Some(deadline) => Box::pin(deadline.passed()),
        None => Box::pin(pending()),
    };
    while !state.is_over(&pipes) {
        // What has been seen enough of, or by nobody any more, waits no longer; and one that gives way does so.
        next.retain(|(_, reply)| !reply.is_closed());
        let is_enough = looking.as_ref().is_some_and(|Looking { look, .. }| {
            look.is_enough.load(Ordering::SeqCst) || look.gives_way && !next.is_empty()
        });
        if is_enough && let Some(Looking { reply, .. }) = looking.take() {
            pump.drain(&mut pipes, &mut buffers[0]).await;
            let glance = pump.glance(run.started.elapsed()).await;
            // Who has gone in this moment finds it in the stored output.
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
            line = run.reports.next_line(), if !state.gone => state.hear(line),
            count = read_from(out, out_buffer), if read => pump.take(Stream::Stdout, out, out_buffer, count, &mut looking).await,
            count = read_from(err, err_buffer), if read => pump.take(Stream::Stderr, err, err_buffer, count, &mut looking).await,
            () = input.feed() => {}
            what = attend(&mut looking), if looking.is_some() => match what {
                Attended::Sent => if let Some(looking) = &mut looking { looking.sending = None },
                Attended::Left => looking = None,
            },
            ask = inbox.recv(), if is_held => match ask {
                // Nobody holds the run any more.
                None => {
                    is_held = false;
                    state.stop.get_or_insert(Stop::Cancelled(Cause::SessionEnd));
                }
                Some(Ask::Look(look, reply)) => next.push_back((look, reply)),
                Some(Ask::Enough) => {}
                Some(Ask::Write { bytes, close, reply }) => drop(reply.send(input.write(&bytes, close))),
                Some(Ask::Signal(signal)) => order = Some(Order::Signal(signal)),
                // One that has ended by itself was not stopped.
                Some(Ask::Stop(_)) if state.exit.is_some() => {}
                Some(Ask::Stop(stop)) => drop(state.stop.get_or_insert(stop)),
            },
            () = sleep_until(due) => say(&state, looking.as_mut()),
        }
        if state.stop.is_some() && !ending {
            state.until = Some(Instant::now() + run.grace + KILLING);
            order = Some(Order::Kill);
        }
        if let Some(order) = order {
            // A supervisor that cannot be told is one that has ended, and that is told by its end of the socket.
            let _ = run.orders.write_all(&encode(&order).unwrap_or_default()).await;
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
    let refused = run.egress.as_ref().map(Egress::denials).unwrap_or_default();
    let mut ended = pump.end(state, held, run.started.elapsed()).await;
    ended.denials.extend(refused);
    drop(passed);
    if let Some(service) = run.service.take() {
        service.finish().await;
    }
    drop(run);
    (keep.ended)(&mut ended);
    let first = looking.map(|Looking { look, reply, .. }| (look, reply));
    for (look, reply) in first.into_iter().chain(next) {
        pump.answer(&mut ended, &look, reply).await;
    }
    remember(pump, ended, inbox, &keep.cancel).await;
    (keep.forgotten)();
}

/// Answers whoever comes late.
async fn remember(mut pump: Pump, mut ended: Ended, mut inbox: mpsc::UnboundedReceiver<Ask>, cancel: &Cancel) {
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
                let _ = reply.send(Err(over.hint("Read what it has left with `op: read`.")));
            }
            Some(Ask::Signal(_) | Ask::Stop(_) | Ask::Enough) => {}
            None => return,
        }
    }
}

enum Attended {
    /// The client has taken a message.
    Sent,
    /// Nobody waits for the answer any more.
    Left,
}

async fn attend(looking: &mut Option<Looking>) -> Attended {
    let Some(Looking { reply, sending, .. }) = looking else { return pending().await };
    tokio::select! {
        () = async { match sending { Some(sending) => sending.await, None => pending().await } } => Attended::Sent,
        () = reply.closed() => Attended::Left,
    }
}

/// When the loop has to wake up by itself.
fn due(state: &State, looking: Option<&Looking>) -> Instant {
    let silent = looking.filter(|looking| looking.sending.is_none());
    let message = silent.and_then(|looking| looking.progress.as_ref()).map(Progress::due);
    state.until.or(message).unwrap_or_else(|| Instant::now() + Duration::from_secs(3600))
}

fn say(state: &State, looking: Option<&mut Looking>) {
    let now = Instant::now();
    let Some(looking) = looking.filter(|_| state.until.is_none()) else { return };
    let (Some(progress), Some(caller)) = (&mut looking.progress, &looking.look.caller) else { return };
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

/// Where output goes: what has come since the last look, and the whole of it.
struct Pump {
    rings: [Ring; 2],
    /// Take out secrets, before anything is kept or shown.
    sieves: [Sieve; 2],
    /// What the program wrote to each stream, from its beginning and since the last look.
    totals: [u64; 2],
    fresh: [u64; 2],
    spool: Spool,
    budget: usize,
    reads: Option<Reads>,
}

impl Pump {
    fn new(keep: &mut Keep) -> Self {
        Pump {
            reads: keep.reads.take(),
            rings: [Ring::new(keep.budget), Ring::new(keep.budget)],
            sieves: [Sieve::new(), Sieve::new()],
            totals: [0; 2],
            fresh: [0; 2],
            spool: Spool::new(keep.outputs.clone(), keep.file_bytes),
            budget: keep.budget,
        }
    }

    /// Makes room for what this one wants to see of what is to come.
    fn widen(&mut self, budget: usize) {
        self.budget = budget;
        if self.rings.iter().all(Ring::is_empty) {
            self.rings = [Ring::new(budget), Ring::new(budget)];
        }
    }

    /// What came before somebody looked is news to them.
    fn catch_up(&self, progress: Option<&mut Progress>) {
        let Some(progress) = progress else { return };
        for (stream, ring) in [Stream::Stdout, Stream::Stderr].into_iter().zip(&self.rings) {
            for piece in ring.pieces().iter().filter(|piece| !piece.is_empty()) {
                progress.push(stream, piece);
            }
        }
    }

    /// One piece of output, on its one way to ring, file and progress.
    async fn take(
        &mut self,
        stream: Stream,
        pipe: &mut Option<Receiver>,
        buffer: &[u8],
        count: io::Result<usize>,
        looking: &mut Option<Looking>,
    ) {
        let progress = looking.as_mut().and_then(|looking| looking.progress.as_mut());
        match count {
            Ok(count) if count > 0 => self.keep(stream, &buffer[..count], progress).await,
            _ => {
                *pipe = None;
                self.finish(stream, progress).await;
            }
        }
    }

    async fn keep(&mut self, stream: Stream, bytes: &[u8], progress: Option<&mut Progress>) {
        self.totals[stream as usize] += bytes.len() as u64;
        self.fresh[stream as usize] += bytes.len() as u64;
        let shown = self.sieves[stream as usize].push(bytes);
        self.pass_on(stream, &shown, progress).await;
    }

    /// What was held back because more could have come.
    async fn finish(&mut self, stream: Stream, progress: Option<&mut Progress>) {
        let rest = self.sieves[stream as usize].finish();
        self.pass_on(stream, &rest, progress).await;
    }

    async fn pass_on(&mut self, stream: Stream, bytes: &[u8], progress: Option<&mut Progress>) {
        if bytes.is_empty() {
            return;
        }
        let bytes = match (&mut self.reads, stream) {
            (Some(reads), Stream::Stdout) => Cow::Owned(reads(bytes)),
            _ => Cow::Borrowed(bytes),
        };
        let ring = &mut self.rings[stream as usize];
        ring.push(&bytes);
        self.spool.push(&bytes, ring.overflowed()).await;
        if let Some(progress) = progress {
            progress.push(stream, &bytes);
        }
    }

    /// What the pipes still hold, without waiting. A pipe holds little, and one that is written to all the time is
    /// left after that.
    async fn drain(&mut self, pipes: &mut [Option<Receiver>; 2], buffer: &mut [u8]) {
        for (stream, pipe) in [Stream::Stdout, Stream::Stderr].into_iter().zip(pipes) {
            for _ in 0..4 {
                match pipe.as_mut().map(|pipe| pipe.try_read(buffer)) {
                    Some(Ok(0)) => {
                        *pipe = None;
                        self.finish(stream, None).await;
                    }
                    Some(Ok(count)) => self.keep(stream, &buffer[..count], None).await,
                    _ => break,
                }
            }
        }
    }

    /// What has come since the last look. From the first one on the whole is kept, so that nothing is lost with an
    /// answer that does not arrive.
    async fn glance(&mut self, duration: Duration) -> Glance {
        self.spool.store().await;
        self.spool.flush().await;
        let (output, warning) = self.spool.state();
        let [stdout, stderr] = self.show(output.as_deref());
        let warnings = warning.into_iter().collect();
        Glance { stdout, stderr, output, warnings, kept_inside: Vec::new(), duration }
    }

    fn show(&mut self, output: Option<&str>) -> [Shown; 2] {
        let fresh = [Ring::new(self.budget), Ring::new(self.budget)];
        let [stdout, stderr] = std::mem::replace(&mut self.rings, fresh);
        let (out_limit, err_limit) = share(self.budget, stdout.need(), stderr.need());
        let [out_bytes, err_bytes] = std::mem::take(&mut self.fresh);
        [
            Shown { bytes: out_bytes, ..stdout.show(out_limit, output) },
            Shown { bytes: err_bytes, ..stderr.show(err_limit, output) },
        ]
    }

    async fn end(&mut self, state: State, held: bool, duration: Duration) -> Ended {
        for stream in [Stream::Stdout, Stream::Stderr] {
            self.finish(stream, None).await;
        }
        let [stdout, stderr] = &self.rings;
        let (out_limit, err_limit) = share(self.budget, stdout.need(), stderr.need());
        if !(stdout.fits(out_limit) && stderr.fits(err_limit)) {
            self.spool.store().await;
        }
        self.spool.flush().await;
        let (output, stored) = self.spool.state();
        let is_lost = state.exit.is_none() && state.stop.is_none();
        let exit = state.exit.unwrap_or_default();
        let mut warnings: Vec<String> = left_behind(&exit, held).filter(|_| state.stop.is_none()).into_iter().collect();
        if state.stop.is_some() && !state.gone {
            warnings.push("not everything the command started has ended yet; it is still being killed".to_owned());
        }
        if exit.out_of_memory {
            warnings.push("the command used more memory than it may, and was ended for it".to_owned());
        }
        warnings.extend(stored);
        Ended {
            is_lost,
            stop: state.stop,
            exit_code: exit.code,
            signal: exit.signal,
            bytes: self.totals,
            output,
            warnings,
            duration,
            denials: exit.denials.iter().filter_map(|denial| serde_json::to_value(denial).ok()).collect(),
            kept_inside: Vec::new(),
            limits: exit.limits,
            execs: exit.execs,
            summed: None,
        }
    }

    /// Tells how it ended. Nothing is taken for one that has gone.
    async fn answer(&mut self, ended: &mut Ended, look: &Asked, reply: Reply) {
        if reply.is_closed() {
            return;
        }
        self.budget = look.budget;
        let [stdout, stderr] = &self.rings;
        let (out_limit, err_limit) = share(self.budget, stdout.need(), stderr.need());
        if ended.output.is_none() && !(stdout.fits(out_limit) && stderr.fits(err_limit)) {
            self.spool.store().await;
            self.spool.flush().await;
            ended.output = self.spool.state().0;
        }
        let _ = reply.send(self.seen(ended));
    }

    /// How it ended, with what nobody has seen yet.
    fn seen(&mut self, ended: &Ended) -> crate::base::Result<Seen> {
        let [stdout, stderr] = self.show(ended.output.as_deref());
        if ended.is_lost {
            let said: String = stderr.text.chars().take(1024).collect();
            return Err(Error::internal("the supervisor of the command was lost").with("stderr", said));
        }
        Ok(Seen::Over(Outcome { stdout, stderr, ended: ended.clone() }))
    }
}

/// Both streams get what they need while there is enough; then a quarter is kept for the errors.
fn share(budget: usize, stdout: u64, stderr: u64) -> (usize, usize) {
    let stdout = usize::try_from(stdout).unwrap_or(usize::MAX);
    let stderr = usize::try_from(stderr).unwrap_or(usize::MAX);
    if stdout.saturating_add(stderr) <= budget {
        return (budget - stderr, budget - stdout);
    }
    let errors = stderr.min((budget / 4).max(budget.saturating_sub(stdout)));
    (budget - errors, errors)
}

fn left_behind(exit: &Exit, held: bool) -> Option<String> {
    // Names are chosen by the processes themselves.
    let plain = |name: &String| name.chars().map(|c| if c.is_ascii_graphic() { c } else { '?' }).collect::<String>();
    let holding = if held { " and still held the output" } else { "" };
    match exit.left_behind {
        0 if held => {
            Some("a process outside the command's reach still holds the output; the rest of it is not shown".to_owned())
        }
        0 => None,
        count => {
            let names = exit.names.iter().map(plain).collect::<Vec<_>>().join(", ");
            let noun = if count == 1 { "background process" } else { "background processes" };
            Some(format!("{count} {noun} ({names}) outlived the command{holding}; ended"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_shared_by_need() {
        assert_eq!(share(100, 10, 20), (80, 90));
        assert_eq!(share(100, 1000, 10), (90, 10));
        assert_eq!(share(100, 1000, 1000), (75, 25));
        assert_eq!(share(100, 10, 1000), (10, 90));
        assert_eq!(share(100, u64::MAX, u64::MAX), (75, 25));
    }

    #[test]
    fn a_name_cannot_break_the_line() {
        let exit = Exit { left_behind: 2, names: vec!["a\nb".into(), "ü".into()], ..Exit::default() };
        let warning = left_behind(&exit, true).unwrap();
        assert_eq!(warning, "2 background processes (a?b, ?) outlived the command and still held the output; ended");
    }
}
