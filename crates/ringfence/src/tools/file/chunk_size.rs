//! Adaptive chunk size for a regex engine that cannot be interrupted: small while the engine is
//! slow, larger while it is fast.

use std::time::{Duration, Instant};

const MIN_CHUNK_BYTES: usize = 1 << 10;
/// Largest chunk. The engine's work on it is at most quadratic, whatever the pattern.
pub const MAX_CHUNK_BYTES: usize = 16 << 10;
const FAST_SEARCH: Duration = Duration::from_millis(5);
const SLOW_SEARCH: Duration = Duration::from_millis(20);
/// Upper estimate of how much longer a search of the whole text takes than searches of its chunks.
pub const WHOLE_COST_FACTOR: u32 = 8;

/// Number of bytes to search at a time.
#[derive(Debug, Clone, Copy)]
pub struct ChunkSize(usize);

impl Default for ChunkSize {
    fn default() -> Self {
        ChunkSize(MIN_CHUNK_BYTES)
    }
}

impl ChunkSize {
    /// Returns the size in bytes.
    pub fn bytes(self) -> usize {
        self.0
    }

    /// Returns the size of the next chunk, given when the search of the previous one began.
    #[must_use]
    pub fn adjusted_since(self, started_at: Instant) -> ChunkSize {
        match started_at.elapsed() {
            elapsed if elapsed < FAST_SEARCH => ChunkSize((self.0 * 2).min(MAX_CHUNK_BYTES)),
            elapsed if elapsed > SLOW_SEARCH => ChunkSize((self.0 / 2).max(MIN_CHUNK_BYTES)),
            _ => self,
        }
    }
}
