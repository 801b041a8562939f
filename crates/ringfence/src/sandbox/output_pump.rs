//! Moves the output of a run from the pipes to its observers, and to the file that stores all of
//! it.

use std::borrow::Cow;
use std::io;
use std::time::Duration;

use jail::supervisor::RunExit;
use tokio::net::unix::pipe::Receiver;

use super::OutputStream;
use super::output_spool::OutputSpool;
use super::output_window::{OutputWindow, ShownOutput};
use super::progress::ProgressCollector;
use super::run_driver::{DriverState, RunObserver};
use super::run_handle::{OutputFilter, PendingRequest, RunOptions, StateSender};
use super::run_result::{PartialOutput, ReportCompleteness, RunOutcome, RunResult, RunState};
use crate::base::Error;
use crate::redact::stream::StreamRedactor;

/// Error reason for a lost supervisor.
pub const SUPERVISOR_LOST: &str = "supervisor_lost";

/// Destination of a run's output: what has come since the last look, and the whole of it.
pub(super) struct OutputPump {
    windows: [OutputWindow; 2],
    /// Redact secrets, before anything is stored or shown.
    redactors: [StreamRedactor; 2],
    /// Bytes that the program wrote to each stream, from its beginning and since the last look.
    total_bytes: [u64; 2],
    new_bytes: [u64; 2],
    spool: OutputSpool,
    budget: usize,
    stdout_filter: Option<OutputFilter>,
}

impl OutputPump {
    pub(super) fn new(options: &mut RunOptions) -> Self {
        OutputPump {
            stdout_filter: options.stdout_filter.take(),
            windows: [OutputWindow::new(options.budget), OutputWindow::new(options.budget)],
            redactors: [StreamRedactor::new(), StreamRedactor::new()],
            total_bytes: [0; 2],
            new_bytes: [0; 2],
            spool: OutputSpool::new(options.outputs.clone(), options.max_file_bytes),
            budget: options.budget,
        }
    }

    /// Makes room for what a new observer wants to see of the output to come.
    pub(super) fn set_budget(&mut self, budget: usize) {
        self.budget = budget;
        if self.windows.iter().all(OutputWindow::is_empty) {
            self.windows = [OutputWindow::new(budget), OutputWindow::new(budget)];
        }
    }

    /// Feeds output that came before an observer looked to its progress, for which it is news.
    pub(super) fn catch_up(&self, progress: Option<&mut ProgressCollector>) {
        let Some(progress) = progress else { return };
        for (stream, window) in
            [OutputStream::Stdout, OutputStream::Stderr].into_iter().zip(&self.windows)
        {
            for piece in window.kept_pieces().iter().filter(|piece| !piece.is_empty()) {
                progress.push(stream, piece);
            }
        }
    }

    /// Handles one read from a pipe: the output goes to the window, the file and the progress.
    pub(super) async fn handle_read(
        &mut self,
        stream: OutputStream,
        pipe: &mut Option<Receiver>,
        buffer: &[u8],
        count: io::Result<usize>,
        observer: &mut Option<RunObserver>,
    ) {
        let progress = observer.as_mut().and_then(|observer| observer.progress.as_mut());
        match count {
            Ok(count) if count > 0 => self.add_output(stream, &buffer[..count], progress).await,
            _ => {
                *pipe = None;
                self.flush_redactor(stream, progress).await;
            }
        }
    }

    async fn add_output(
        &mut self,
        stream: OutputStream,
        bytes: &[u8],
        progress: Option<&mut ProgressCollector>,
    ) {
        self.total_bytes[stream as usize] += bytes.len() as u64;
        self.new_bytes[stream as usize] += bytes.len() as u64;
        let redacted = self.redactors[stream as usize].push(bytes);
        self.forward_output(stream, &redacted, progress).await;
    }

    /// Releases what was held back because more could have come.
    async fn flush_redactor(
        &mut self,
        stream: OutputStream,
        progress: Option<&mut ProgressCollector>,
    ) {
        let rest = self.redactors[stream as usize].finish();
        self.forward_output(stream, &rest, progress).await;
    }

    async fn forward_output(
        &mut self,
        stream: OutputStream,
        bytes: &[u8],
        progress: Option<&mut ProgressCollector>,
    ) {
        if bytes.is_empty() {
            return;
        }
        let bytes = match (&mut self.stdout_filter, stream) {
            (Some(filter), OutputStream::Stdout) => Cow::Owned(filter(bytes)),
            _ => Cow::Borrowed(bytes),
        };
        let window = &mut self.windows[stream as usize];
        window.push(&bytes);
        self.spool.push(&bytes, window.has_overflowed()).await;
        if let Some(progress) = progress {
            progress.push(stream, &bytes);
        }
    }

    /// Reads what the pipes still hold, without waiting. A pipe holds little, and one that is
    /// written to all the time is left after that.
    pub(super) async fn drain_pipes(
        &mut self,
        pipes: &mut [Option<Receiver>; 2],
        buffer: &mut [u8],
    ) {
        for (stream, pipe) in [OutputStream::Stdout, OutputStream::Stderr].into_iter().zip(pipes) {
            for _ in 0..4 {
                match pipe.as_mut().map(|pipe| pipe.try_read(buffer)) {
                    Some(Ok(0)) => {
                        *pipe = None;
                        self.flush_redactor(stream, None).await;
                    }
                    Some(Ok(count)) => self.add_output(stream, &buffer[..count], None).await,
                    _ => break,
                }
            }
        }
    }

    /// Returns the output since the last look. From the first look on the whole output is stored,
    /// so that nothing is lost with an answer that does not arrive.
    pub(super) async fn take_partial(&mut self, duration: Duration) -> PartialOutput {
        self.spool.ensure_file().await;
        self.spool.flush().await;
        let (output_handle, warning) = self.spool.stored_output();
        let [stdout, stderr] = self.take_shown(output_handle.as_deref());
        let warnings = warning.into_iter().collect();
        PartialOutput { stdout, stderr, output_handle, warnings, kept_inside: Vec::new(), duration }
    }

    fn take_shown(&mut self, output_handle: Option<&str>) -> [ShownOutput; 2] {
        let new_windows = [OutputWindow::new(self.budget), OutputWindow::new(self.budget)];
        let [stdout, stderr] = std::mem::replace(&mut self.windows, new_windows);
        let (out_limit, err_limit) =
            share_budget(self.budget, stdout.shown_len(), stderr.shown_len());
        let [out_bytes, err_bytes] = std::mem::take(&mut self.new_bytes);
        [
            ShownOutput { bytes: out_bytes, ..stdout.into_shown(out_limit, output_handle) },
            ShownOutput { bytes: err_bytes, ..stderr.into_shown(err_limit, output_handle) },
        ]
    }

    pub(super) async fn finish_run(
        &mut self,
        state: DriverState,
        is_output_held: bool,
        duration: Duration,
    ) -> RunResult {
        for stream in [OutputStream::Stdout, OutputStream::Stderr] {
            self.flush_redactor(stream, None).await;
        }
        let [stdout, stderr] = &self.windows;
        let (out_limit, err_limit) =
            share_budget(self.budget, stdout.shown_len(), stderr.shown_len());
        if !(stdout.fits_within(out_limit) && stderr.fits_within(err_limit)) {
            self.spool.ensure_file().await;
        }
        self.spool.close().await;
        let (output_handle, storage_warning) = self.spool.stored_output();
        let is_lost = state.exit.is_none() && state.stop_reason.is_none();
        let exit = state.exit.unwrap_or_default();
        let is_unknown = state.reported == ReportCompleteness::Missing && !is_lost;
        let mut warnings: Vec<String> = left_behind_warning(&exit, is_output_held)
            .filter(|_| state.stop_reason.is_none())
            .into_iter()
            .collect();
        if state.stop_reason.is_some() && !state.supervisor_gone {
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
        warnings.extend(storage_warning);
        let bytes = self.total_bytes;
        let mut result = RunResult {
            is_lost,
            stop_reason: state.stop_reason,
            stream_bytes: bytes,
            output_handle,
            warnings,
            duration,
            ..RunResult::default()
        };
        result.set_report(&exit, state.reported);
        result
    }

    /// Replies with the result of the run. Takes no output for an observer that has gone.
    pub(super) async fn reply_result(
        &mut self,
        result: &mut RunResult,
        request: &PendingRequest,
        reply: StateSender,
    ) {
        if reply.is_closed() {
            return;
        }
        self.budget = request.budget;
        let [stdout, stderr] = &self.windows;
        let (out_limit, err_limit) =
            share_budget(self.budget, stdout.shown_len(), stderr.shown_len());
        if result.output_handle.is_none()
            && !(stdout.fits_within(out_limit) && stderr.fits_within(err_limit))
        {
            self.spool.ensure_file().await;
            self.spool.close().await;
            result.output_handle = self.spool.stored_output().0;
        }
        let _ = reply.send(self.final_state(result));
    }

    /// Returns the result of the run, with the output that no one has seen yet.
    fn final_state(&mut self, result: &RunResult) -> crate::base::Result<RunState> {
        let [stdout, stderr] = self.take_shown(result.output_handle.as_deref());
        if result.is_lost {
            let stderr_text: String = stderr.text.chars().take(1024).collect();
            return Err(Error::internal("the supervisor of the command was lost")
                .with_reason(SUPERVISOR_LOST)
                .with_hint("Its denials and execs are unknown; the audit record says so.")
                .with_fact("stderr", stderr_text));
        }
        Ok(RunState::Over(RunOutcome { stdout, stderr, result: result.clone() }))
    }
}

/// Shares the budget. Both streams get what they need while there is enough; then a quarter is
/// reserved for the errors.
fn share_budget(budget: usize, stdout: u64, stderr: u64) -> (usize, usize) {
    let stdout = usize::try_from(stdout).unwrap_or(usize::MAX);
    let stderr = usize::try_from(stderr).unwrap_or(usize::MAX);
    if stdout.saturating_add(stderr) <= budget {
        return (budget - stderr, budget - stdout);
    }
    let stderr_budget = stderr.min((budget / 4).max(budget.saturating_sub(stdout)));
    (budget - stderr_budget, stderr_budget)
}

fn left_behind_warning(exit: &RunExit, is_output_held: bool) -> Option<String> {
    // Processes choose their own names, so these may hold anything.
    let sanitize = |name: &String| {
        name.chars().map(|c| if c.is_ascii_graphic() { c } else { '?' }).collect::<String>()
    };
    let held_note = if is_output_held { ", with the output open" } else { "" };
    match exit.left_behind {
        0 if is_output_held => {
            Some("a process outside the command's reach still holds the output; the rest of it is not shown".to_owned())
        }
        0 => None,
        count => {
            let names = exit.names.iter().map(sanitize).collect::<Vec<_>>().join(", ");
            let (noun, verb) = match count {
                1 => ("background process", "was"),
                _ => ("background processes", "were"),
            };
            Some(format!(
                "{count} {noun} ({names}) {verb} still running when the command exited{held_note}, and {verb} ended"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_shared_by_need() {
        assert_eq!(share_budget(100, 10, 20), (80, 90));
        assert_eq!(share_budget(100, 1000, 10), (90, 10));
        assert_eq!(share_budget(100, 1000, 1000), (75, 25));
        assert_eq!(share_budget(100, 10, 1000), (10, 90));
        assert_eq!(share_budget(100, u64::MAX, u64::MAX), (75, 25));
    }

    #[test]
    fn a_name_cannot_break_the_line() {
        let exit = RunExit {
            left_behind: 2,
            names: vec!["a\nb".into(), "ü".into()],
            ..RunExit::default()
        };
        let warning = left_behind_warning(&exit, true).unwrap();
        assert_eq!(
            warning,
            "2 background processes (a?b, ?) were still running when the command exited, with the output open, and were ended"
        );
    }
}
