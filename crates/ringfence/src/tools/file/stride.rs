//! Adaptive chunk size for a regex engine that cannot be interrupted: small while the engine is
//! slow, larger while it is fast.

use std::time::{Duration, Instant};

const LEAST: usize = 1 << 10;
/// Largest chunk. The engine's work on it is at most quadratic, whatever the pattern.
pub const MOST: usize = 16 << 10;
const FAST: Duration = Duration::from_millis(5);
const SLOW: Duration = Duration::from_millis(20);
/// Upper estimate of how much longer a search of the whole text takes than searches of its chunks.
pub const DEARER: u32 = 8;

/// Number of bytes to search at a time.
#[derive(Debug, Clone, Copy)]
pub struct Stride(usize);

impl Default for Stride {
    fn default() -> Self {
        Stride(LEAST)
    }
}

impl Stride {
    /// Returns the size in bytes.
    pub fn bytes(self) -> usize {
        self.0
    }

    /// Returns the size of the next chunk, given when the search of the previous one began.
    #[must_use]
    pub fn after(self, begun: Instant) -> Stride {
        match begun.elapsed() {
            took if took < FAST => Stride((self.0 * 2).min(MOST)),
            took if took > SLOW => Stride((self.0 / 2).max(LEAST)),
            _ => self,
        }
    }
}
