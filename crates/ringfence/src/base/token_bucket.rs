//! A token bucket: a burst of tokens, then one per interval.

use std::time::{Duration, Instant};

/// Tokens that are replenished over time. The caller passes the time in, so that tests need no
/// clock.
#[derive(Debug, Clone)]
pub struct TokenBucket {
    burst: u32,
    interval: Duration,
    tokens_left: u32,
    /// Time up to which replenished tokens are counted. `None` before the first use.
    refilled_until: Option<Instant>,
}

impl TokenBucket {
    /// Creates a full bucket of `burst` tokens that regains one per `interval`.
    pub const fn new(burst: u32, interval: Duration) -> Self {
        TokenBucket { burst, interval, tokens_left: burst, refilled_until: None }
    }

    /// Takes a token, or returns the time until the next one.
    pub fn take_token(&mut self, now: Instant) -> Result<(), Duration> {
        let refilled_until = self.refill(now);
        if self.tokens_left == 0 {
            return Err(self
                .interval
                .saturating_sub(now.saturating_duration_since(refilled_until)));
        }
        self.tokens_left -= 1;
        Ok(())
    }

    /// Returns whether no token is in use: then a new bucket would be equivalent.
    pub fn is_full(&mut self, now: Instant) -> bool {
        self.refill(now);
        self.tokens_left == self.burst
    }

    /// Adds the replenished tokens, and returns the time up to which they are counted.
    fn refill(&mut self, now: Instant) -> Instant {
        let last_refill = *self.refilled_until.get_or_insert(now);
        let elapsed = now.saturating_duration_since(last_refill);
        let earned =
            u32::try_from(elapsed.as_nanos() / self.interval.as_nanos().max(1)).unwrap_or(u32::MAX);
        let refilled_until = match self.tokens_left.saturating_add(earned) {
            tokens if tokens >= self.burst => {
                self.tokens_left = self.burst;
                now
            }
            tokens => {
                self.tokens_left = tokens;
                // The remaining elapsed time counts towards the next token.
                last_refill + self.interval * earned
            }
        };
        self.refilled_until = Some(refilled_until);
        refilled_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_burst_and_then_one_per_interval() {
        let mut bucket = TokenBucket::new(3, SECOND);
        let start = Instant::now();
        assert_eq!((0..10).filter(|_| bucket.take_token(start).is_ok()).count(), 3);
        assert_eq!(bucket.take_token(start + SECOND / 4), Err(SECOND * 3 / 4));
        assert!(bucket.take_token(start + SECOND).is_ok());
        assert!(bucket.take_token(start + SECOND).is_err());
        // Time between two tokens is not lost.
        assert!(bucket.take_token(start + SECOND * 5 / 2).is_ok());
        assert!(bucket.take_token(start + SECOND * 3).is_ok());
    }

    #[test]
    fn it_never_holds_more_than_its_burst() {
        let mut bucket = TokenBucket::new(3, SECOND);
        let start = Instant::now();
        assert!(bucket.is_full(start));
        assert!(bucket.take_token(start).is_ok());
        assert!(!bucket.is_full(start));
        let later = start + 1000 * SECOND;
        assert!(bucket.is_full(later));
        assert_eq!((0..10).filter(|_| bucket.take_token(later).is_ok()).count(), 3);
    }
}
