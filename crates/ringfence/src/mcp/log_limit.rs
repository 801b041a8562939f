//! Rate limit for log lines that strangers can cause.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::base::IgnorePoison;
use crate::base::token_bucket::TokenBucket;

/// Lines that may be written in a burst.
const BURST: u32 = 10;
/// After that, one line per interval.
const INTERVAL: Duration = Duration::from_secs(6);

/// Rate limit for log lines: allows a burst, then one line at a time, and counts the rest.
pub struct LogLimit {
    state: Mutex<LogLimitState>,
}

struct LogLimitState {
    bucket: TokenBucket,
    unlogged: u64,
}

impl LogLimit {
    /// Creates a limit that has not been used.
    pub const fn new() -> Self {
        LogLimit {
            state: Mutex::new(LogLimitState {
                bucket: TokenBucket::new(BURST, INTERVAL),
                unlogged: 0,
            }),
        }
    }

    /// Returns how many lines were left out since the last one, or `None` if no line may be written
    /// now.
    pub fn admit_line(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().ignore_poison();
        if state.bucket.take_token(now).is_err() {
            state.unlogged += 1;
            return None;
        }
        Some(std::mem::take(&mut state.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_costs_few_lines_and_is_counted() {
        let limit = LogLimit::new();
        let start = Instant::now();
        let written = (0..1000).filter(|_| limit.admit_line(start).is_some()).count();
        assert_eq!(written, BURST as usize);
        assert_eq!(limit.admit_line(start + INTERVAL), Some(1000 - u64::from(BURST)));
        assert_eq!(limit.admit_line(start + INTERVAL), None);
        let later = start + 100 * INTERVAL;
        assert_eq!((0..1000).filter(|_| limit.admit_line(later).is_some()).count(), BURST as usize);
    }
}
