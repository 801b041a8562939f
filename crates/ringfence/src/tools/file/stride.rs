//! How much text a search engine that cannot be told to end is given at a time: little while it is slow, more while it
//! is fast.

use std::time::{Duration, Instant};

const LEAST: usize = 1 << 10;
/// The engine's work on this is bounded by its square, whatever the pattern.
pub const MOST: usize = 16 << 10;
const FAST: Duration = Duration::from_millis(5);
const SLOW: Duration = Duration::from_millis(20);
/// How much dearer a whole may be than its parts were, one by one.
pub const DEARER: u32 = 8;

#[derive(Debug, Clone, Copy)]
pub struct Stride(usize);

impl Default for Stride {
    fn default() -> Self {
        Stride(LEAST)
    }
}

impl Stride {
    pub fn bytes(self) -> usize {
        self.0
    }

    /// The next one, after one that began then.
    #[must_use]
    pub fn after(self, begun: Instant) -> Stride {
        match begun.elapsed() {
            took if took < FAST => Stride((self.0 * 2).min(MOST)),
            took if took > SLOW => Stride((self.0 / 2).max(LEAST)),
            _ => self,
        }
    }
}
