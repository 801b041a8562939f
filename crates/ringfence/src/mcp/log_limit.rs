//! A bound on log lines that strangers can cause.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::base::token_bucket::TokenBucket;

/// Lines that may follow one another without a pause.
const BURST: u32 = 10;
/// After that, one line in this time.
const INTERVAL: Duration = Duration::from_secs(6);

/// Lets the first lines through and then one at a time; counts the rest.
pub struct LogLimit {
    state: Mutex<State>,
}

struct State {
    bucket: TokenBucket,
    unlogged: u64,
}

impl LogLimit {
    /// A limit that nothing has been counted against.
    pub const fn new() -> Self {
        LogLimit {
            state: Mutex::new(State { bucket: TokenBucket::new(BURST, INTERVAL), unlogged: 0 }),
        }
    }

    /// Whether a line may be written now, and how many were left out since the last one.
    pub fn admit(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.bucket.take(now).is_err() {
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
        let written = (0..1000).filter(|_| limit.admit(start).is_some()).count();
        assert_eq!(written, BURST as usize);
        assert_eq!(limit.admit(start + INTERVAL), Some(1000 - u64::from(BURST)));
        assert_eq!(limit.admit(start + INTERVAL), None);
        let later = start + 100 * INTERVAL;
        assert_eq!((0..1000).filter(|_| limit.admit(later).is_some()).count(), BURST as usize);
    }
}
