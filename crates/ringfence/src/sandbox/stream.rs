//! A run from its start to its end: output in, progress out, and whatever ends it first.
//!
//! A run is over when its main process is, not when its pipes are: a background process can hold those for ever.

use std::future::pending;
use std::io;
use std::pin::pin;
use std::time::Duration;

use futures::future::BoxFuture;
use jail::supervisor::{Exit, Order, Report, encode};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::time::{Instant, sleep_until, timeout};

use super::Stream;
use super::egress::Egress;
use super::launch::Run;
use super::progress::Progress;
use super::ring::{Ring, Shown};
use super::spool::Spool;
use crate::base::caller::Caller;
use crate::base::clock::Deadline;
use crate::base::{Cancel, Cause, Error, Result};
use crate::session::Outputs;

/// What is still in the pipes when the main process has ended is read for at most this long.
const DRAIN: Duration = Duration::from_millis(150);
/// Beyond the grace: for the killing itself.
const KILLING: Duration = Duration::from_secs(1);
/// A client that has taken the last progress message this late will not miss it.
const LAST_MESSAGE: Duration = Duration::from_secs(1);
const CHUNK: usize = 64 << 10;

/// What a run is watched with.
pub struct Watch<'a> {
    pub caller: &'a Caller,
    pub cancel: &'a Cancel,
    pub deadline: &'a Deadline,
    pub outputs: &'a Outputs,
    /// Of both streams together, as they are shown.
    pub budget: usize,
    /// Of the stored output.
    pub file_bytes: u64,
}

/// Why a run was ended before it ended by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    Deadline,
    Cancelled(Cause),
}

#[derive(Debug)]
pub struct Outcome {
    pub stop: Option<Stop>,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub stdout: Shown,
    pub stderr: Shown,
    /// The handle of the whole output, when it was cut.
    pub output: Option<String>,
    pub warnings: Vec<String>,
    pub duration: Duration,
    /// What the run was refused.
    pub denials: Vec<Value>,
    /// How its limits were kept: `cgroup2`, `cgroup1` or `rlimits`.
    pub limits: String,
    /// How many programs it ran that no rule names, and what is put on record about them.
    pub execs: Option<u64>,
    pub summed: Option<Value>,
}

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

impl Run {
    pub async fn finish(mut self, watch: Watch<'_>) -> Result<Outcome> {
        let mut pump = Pump::new(&watch);
        let mut state = State::default();
        let mut pipes = [Some(self.stdout), self.stderr];
        let mut buffers = [vec![0; CHUNK], vec![0; CHUNK]];
        // A message on its way to the client. While it is, the pipes are not read, so a run is never faster than
        // the one who watches it; once the run is over there is nothing left to slow down.
        let mut sending: Option<BoxFuture<'_, ()>> = None;
        let mut feeding = self.stdin.is_some();
        let mut feed = pin!(feed(self.stdin));
        let mut passed = pin!(watch.deadline.passed());
        let mut cancelled = pin!(watch.cancel.cancelled());
        while !state.is_over(&pipes) {
            let ending = state.until.is_some();
            let read = ending || sending.is_none();
            let due = pump.due(&state, sending.is_some());
            let [out, err] = &mut pipes;
            let [out_buffer, err_buffer] = &mut buffers;
            tokio::select! {
                cause = &mut cancelled, if !ending => {
                    state.stop = Some(if cause == Cause::Deadline { Stop::Deadline } else { Stop::Cancelled(cause) });
                }
                () = &mut passed, if !ending => state.stop = Some(Stop::Deadline),
                line = self.reports.next_line(), if !state.gone => state.hear(line),
                count = read_from(out, out_buffer), if read => pump.take(Stream::Stdout, out, out_buffer, count).await,
                count = read_from(err, err_buffer), if read => pump.take(Stream::Stderr, err, err_buffer, count).await,
                () = async { if let Some(sending) = &mut sending { sending.await } }, if sending.is_some() => sending = None,
                () = &mut feed, if feeding => feeding = false,
                () = sleep_until(due) => {
                    if let Some((text, count)) = pump.message(&state) {
                        sending = Some(Box::pin(watch.caller.progress(text, count, None)));
                    }
                }
            }
            if state.stop.is_some() && !ending {
                state.until = Some(Instant::now() + self.grace + KILLING);
                // A supervisor that cannot be told is one that has ended, and that is told by its end of the socket.
                let _ = self.orders.write_all(&encode(&Order::Kill).unwrap_or_default()).await;
            }
        }
        if state.stop.is_none()
            && let Some(sending) = sending
        {
            let _ = timeout(LAST_MESSAGE, sending).await;
        }
        let lost = state.exit.is_none() && state.stop.is_none() || state.stop.is_some() && !state.gone;
        if lost {
            Run::kill_without_supervisor(&mut self.supervisor, self.main);
        }
        let held = pipes.iter().any(Option::is_some);
        pump.drain(&mut pipes, &mut buffers[0]).await;
        let refused = self.egress.as_ref().map(Egress::denials).unwrap_or_default();
        let mut outcome = pump.finish(state, held, self.started.elapsed()).await?;
        outcome.denials.extend(refused);
        Ok(outcome)
    }
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

async fn read_from(pipe: &mut Option<Receiver>, buffer: &mut [u8]) -> io::Result<usize> {
    match pipe {
        Some(pipe) => pipe.read(buffer).await,
        None => pending().await,
    }
}

/// A program need not read what it is given.
async fn feed(stdin: Option<(Sender, Vec<u8>)>) {
    if let Some((mut pipe, bytes)) = stdin {
        let _ = pipe.write_all(&bytes).await;
    }
}

struct Pump<'a> {
    rings: [Ring; 2],
    spool: Spool<'a>,
    budget: usize,
    /// Only for a client that asked.
    progress: Option<Progress>,
}

impl<'a> Pump<'a> {
    fn new(watch: &Watch<'a>) -> Self {
        Pump {
            rings: [Ring::new(watch.budget), Ring::new(watch.budget)],
            spool: Spool::new(watch.outputs, watch.file_bytes),
            budget: watch.budget,
            progress: watch.caller.abilities().progress.then(|| Progress::new(Instant::now())),
        }
    }

    /// One piece of output, on its one way to ring, file and progress.
    async fn take(&mut self, stream: Stream, pipe: &mut Option<Receiver>, buffer: &[u8], count: io::Result<usize>) {
        let bytes = match count {
            Ok(count) if count > 0 => &buffer[..count],
            _ => return *pipe = None,
        };
        let ring = &mut self.rings[stream as usize];
        ring.push(bytes);
        self.spool.push(bytes, ring.overflowed()).await;
        if let Some(progress) = &mut self.progress {
            progress.push(stream, bytes);
        }
    }

    /// What the pipes still hold, without waiting. A pipe holds little, and one that is written to all the time is
    /// left after that.
    async fn drain(&mut self, pipes: &mut [Option<Receiver>; 2], buffer: &mut [u8]) {
        for (stream, pipe) in [Stream::Stdout, Stream::Stderr].into_iter().zip(pipes) {
            for _ in 0..4 {
                match pipe.as_mut().map(|pipe| pipe.try_read(buffer)) {
                    Some(Ok(count)) => self.take(stream, pipe, buffer, Ok(count)).await,
                    _ => break,
                }
            }
        }
    }

    /// When the loop has to wake up by itself.
    fn due(&self, state: &State, sending: bool) -> Instant {
        let message = self.progress.as_ref().filter(|_| !sending).map(Progress::due);
        let far = Instant::now() + Duration::from_secs(3600);
        state.until.or(message).unwrap_or(far)
    }

    fn message(&mut self, state: &State) -> Option<(String, f64)> {
        let now = Instant::now();
        let progress = self.progress.as_mut().filter(|progress| state.until.is_none() && progress.due() <= now)?;
        Some(progress.take(now))
    }

    async fn finish(mut self, state: State, held: bool, duration: Duration) -> Result<Outcome> {
        let [stdout, stderr] = self.rings;
        if state.exit.is_none() && state.stop.is_none() {
            let said = stderr.show(self.budget.min(1024), None).text;
            return Err(Error::internal("the supervisor of the command was lost").with("stderr", said));
        }
        let (out_limit, err_limit) = share(self.budget, stdout.need(), stderr.need());
        if !(stdout.fits(out_limit) && stderr.fits(err_limit)) {
            self.spool.store().await;
        }
        let (output, stored) = self.spool.finish().await;
        let exit = state.exit.unwrap_or_default();
        let mut warnings: Vec<String> = left_behind(&exit, held).filter(|_| state.stop.is_none()).into_iter().collect();
        if state.stop.is_some() && !state.gone {
            warnings.push("not everything the command started has ended yet; it is still being killed".to_owned());
        }
        if exit.out_of_memory {
            warnings.push("the command used more memory than it may, and was ended for it".to_owned());
        }
        warnings.extend(stored);
        Ok(Outcome {
            stop: state.stop,
            exit_code: exit.code,
            signal: exit.signal,
            stdout: stdout.show(out_limit, output.as_deref()),
            stderr: stderr.show(err_limit, output.as_deref()),
            output,
            warnings,
            duration,
            denials: exit.denials.iter().filter_map(|denial| serde_json::to_value(denial).ok()).collect(),
            limits: exit.limits,
            execs: exit.execs,
            summed: None,
        })
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
