//! Moves the output of a run from the pipes to its observers, and to the file that stores all of
//! it.

use std::borrow::Cow;
use std::io;
use std::time::Duration;

use jail::supervisor::RunExit;
use tokio::net::unix::pipe::Receiver;

use super::Stream;
use super::live::{Asked, Ended, Glance, Keep, Outcome, Reads, Reply, Reported, Seen};
use super::progress::Progress;
use super::ring::{Ring, Shown};
use super::spool::Spool;
use super::stream::{Looking, State};
use crate::base::Error;
use crate::redact::sieve::Sieve;

/// Error reason for a lost supervisor.
pub const SUPERVISOR_LOST: &str = "supervisor_lost";

/// Destination of a run's output: what has come since the last look, and the whole of it.
pub(super) struct Pump {
    rings: [Ring; 2],
    /// Redact secrets, before anything is stored or shown.
    sieves: [Sieve; 2],
    /// Bytes that the program wrote to each stream, from its beginning and since the last look.
    totals: [u64; 2],
    fresh: [u64; 2],
    spool: Spool,
    budget: usize,
    reads: Option<Reads>,
}

impl Pump {
    pub(super) fn new(keep: &mut Keep) -> Self {
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

    /// Makes room for what a new observer wants to see of the output to come.
    pub(super) fn widen(&mut self, budget: usize) {
        self.budget = budget;
        if self.rings.iter().all(Ring::is_empty) {
            self.rings = [Ring::new(budget), Ring::new(budget)];
        }
    }

    /// Feeds output that came before an observer looked to its progress, for which it is news.
    pub(super) fn catch_up(&self, progress: Option<&mut Progress>) {
        let Some(progress) = progress else { return };
        for (stream, ring) in [Stream::Stdout, Stream::Stderr].into_iter().zip(&self.rings) {
            for piece in ring.pieces().iter().filter(|piece| !piece.is_empty()) {
                progress.push(stream, piece);
            }
        }
    }

    /// Handles one read from a pipe: the output goes to the window, the file and the progress.
    pub(super) async fn take(
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

    /// Releases what was held back because more could have come.
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

    /// Reads what the pipes still hold, without waiting. A pipe holds little, and one that is
    /// written to all the time is left after that.
    pub(super) async fn drain(&mut self, pipes: &mut [Option<Receiver>; 2], buffer: &mut [u8]) {
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

    /// Returns the output since the last look. From the first look on the whole output is stored,
    /// so that nothing is lost with an answer that does not arrive.
    pub(super) async fn glance(&mut self, duration: Duration) -> Glance {
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

    pub(super) async fn end(&mut self, state: State, held: bool, duration: Duration) -> Ended {
        for stream in [Stream::Stdout, Stream::Stderr] {
            self.finish(stream, None).await;
        }
        let [stdout, stderr] = &self.rings;
        let (out_limit, err_limit) = share(self.budget, stdout.need(), stderr.need());
        if !(stdout.fits(out_limit) && stderr.fits(err_limit)) {
            self.spool.store().await;
        }
        self.spool.close().await;
        let (output, stored) = self.spool.state();
        let is_lost = state.exit.is_none() && state.stop.is_none();
        let exit = state.exit.unwrap_or_default();
        let is_unknown = state.reported == Reported::Missing && !is_lost;
        let mut warnings: Vec<String> =
            left_behind(&exit, held).filter(|_| state.stop.is_none()).into_iter().collect();
        if state.stop.is_some() && !state.gone {
            warnings.push(
                "not everything the command started has ended yet; it is still being killed"
                    .to_owned(),
            );
        }
        if is_unknown {
            warnings.push(
                "the denials of the command are unknown: its supervisor did not report".to_owned(),
            );
        }
        if exit.out_of_memory {
            warnings.push("the command exceeded its memory limit and was ended".to_owned());
        }
        warnings.extend(stored);
        let bytes = self.totals;
        let mut ended = Ended {
            is_lost,
            stop: state.stop,
            bytes,
            output,
            warnings,
            duration,
            ..Ended::default()
        };
        ended.set_report(&exit, state.reported);
        ended
    }

    /// Replies with the result of the run. Takes no output for an observer that has gone.
    pub(super) async fn answer(&mut self, ended: &mut Ended, look: &Asked, reply: Reply) {
        if reply.is_closed() {
            return;
        }
        self.budget = look.budget;
        let [stdout, stderr] = &self.rings;
        let (out_limit, err_limit) = share(self.budget, stdout.need(), stderr.need());
        if ended.output.is_none() && !(stdout.fits(out_limit) && stderr.fits(err_limit)) {
            self.spool.store().await;
            self.spool.close().await;
            ended.output = self.spool.state().0;
        }
        let _ = reply.send(self.seen(ended));
    }

    /// Returns the result of the run, with the output that no one has seen yet.
    fn seen(&mut self, ended: &Ended) -> crate::base::Result<Seen> {
        let [stdout, stderr] = self.show(ended.output.as_deref());
        if ended.is_lost {
            let said: String = stderr.text.chars().take(1024).collect();
            return Err(Error::internal("the supervisor of the command was lost")
                .reason(SUPERVISOR_LOST)
                .hint("Its denials and execs are unknown; the audit record says so.")
                .with("stderr", said));
        }
        Ok(Seen::Over(Outcome { stdout, stderr, ended: ended.clone() }))
    }
}

/// Shares the budget. Both streams get what they need while there is enough; then a quarter is
/// reserved for the errors.
fn share(budget: usize, stdout: u64, stderr: u64) -> (usize, usize) {
    let stdout = usize::try_from(stdout).unwrap_or(usize::MAX);
    let stderr = usize::try_from(stderr).unwrap_or(usize::MAX);
    if stdout.saturating_add(stderr) <= budget {
        return (budget - stderr, budget - stdout);
    }
    let errors = stderr.min((budget / 4).max(budget.saturating_sub(stdout)));
    (budget - errors, errors)
}

fn left_behind(exit: &RunExit, held: bool) -> Option<String> {
    // Processes choose their own names, so these may hold anything.
    let plain = |name: &String| {
        name.chars().map(|c| if c.is_ascii_graphic() { c } else { '?' }).collect::<String>()
    };
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
        let exit = RunExit {
            left_behind: 2,
            names: vec!["a\nb".into(), "ü".into()],
            ..RunExit::default()
        };
        let warning = left_behind(&exit, true).unwrap();
        assert_eq!(
            warning,
            "2 background processes (a?b, ?) outlived the command and still held the output; ended"
        );
    }
}
