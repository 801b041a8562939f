//! Stop signals for `ringfence sandbox`, which are meant for its run.

use std::io;

use futures::future::select_all;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals that a user, a service manager or a closed terminal sends.
const STOP_SIGNALS: [SignalKind; 3] =
    [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];

/// Listens for stop signals instead of ending on them.
pub(super) struct StopSignals(Vec<(i32, Signal)>);

impl StopSignals {
    /// Skips signals that were ignored when this process was started (`nohup`, a background job of
    /// a script): a handler would enable them again.
    pub(super) fn listen() -> io::Result<StopSignals> {
        let ignored = ignored_signals(&std::fs::read_to_string("/proc/self/status")?);
        let handled =
            STOP_SIGNALS.into_iter().filter(|kind| ignored & signal_bit(kind.as_raw_value()) == 0);
        let listen = |kind: SignalKind| Ok((kind.as_raw_value(), signal(kind)?));
        handled.map(listen).collect::<io::Result<_>>().map(StopSignals)
    }

    /// Returns the number of the next signal.
    pub(super) async fn next(&mut self) -> i32 {
        if self.0.is_empty() {
            return std::future::pending().await;
        }
        let received = self.0.iter_mut().map(|(number, signal)| {
            Box::pin(async move {
                signal.recv().await;
                *number
            })
        });
        select_all(received).await.0
    }
}

fn signal_bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Returns the set of ignored signals from the text of `/proc/PID/status`.
fn ignored_signals(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_status() {
        let status =
            "SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000440\n";
        assert_eq!(ignored_signals(status), signal_bit(1) | signal_bit(13));
        assert_eq!(ignored_signals("Name:\tx\n"), 0);
    }
}
