//! Stores the whole output of a run, both streams in the order they came, for a result that could
//! not show all of it.
//!
//! Most runs print little, so nothing is written until something has to be cut: until then the
//! output is kept in memory.

use std::sync::Arc;

use tokio::fs::File;
use tokio::io::AsyncWriteExt;

use crate::base::Error;
use crate::session::{OpenOutput, OutputStore};

const STORE_FAILED: &str = "the whole output could not be stored";

/// Stored output of one run.
pub struct OutputSpool {
    outputs: Arc<OutputStore>,
    /// Maximum bytes of the file; what comes after is counted and dropped.
    max_bytes: u64,
    written: u64,
    is_capped: bool,
    state: SpoolState,
}

enum SpoolState {
    Waiting(Vec<u8>),
    Stored(OpenOutput, File),
    /// Handle of the stored output. Nothing more comes.
    Closed(String),
    /// Writing has failed. The run continues without its copy; the result says so.
    Lost,
}

impl OutputSpool {
    pub fn new(outputs: Arc<OutputStore>, max_bytes: u64) -> Self {
        OutputSpool {
            outputs,
            max_bytes,
            written: 0,
            is_capped: false,
            state: SpoolState::Waiting(Vec::new()),
        }
    }

    /// Adds the next piece. `needs_file` says that it must go to the file now, with everything
    /// before it.
    pub async fn push(&mut self, bytes: &[u8], needs_file: bool) {
        if self.max_bytes == 0 {
            return;
        }
        if let SpoolState::Waiting(buffered) = &mut self.state {
            buffered.extend_from_slice(bytes);
            if needs_file {
                self.ensure_file().await;
            }
        } else {
            self.write(bytes).await;
        }
    }

    /// Makes sure that a file exists.
    pub async fn ensure_file(&mut self) {
        let SpoolState::Waiting(buffered) = &mut self.state else { return };
        // A limit of zero means that no file is wanted.
        if self.max_bytes == 0 {
            return;
        }
        let buffered = std::mem::take(buffered);
        let store_error = |error| Error::internal("cannot store the output").with_source(error);
        let opened = self
            .outputs
            .create_output()
            .and_then(|output| Ok((output.clone_file().map_err(store_error)?, output)));
        self.state = match opened {
            Ok((file, output)) => SpoolState::Stored(output, File::from_std(file)),
            Err(error) => {
                tracing::warn!("a run's output is not stored: {}", error.log_line());
                SpoolState::Lost
            }
        };
        self.write(&buffered).await;
    }

    async fn write(&mut self, bytes: &[u8]) {
        let SpoolState::Stored(output, file) = &mut self.state else { return };
        // Room may become free when other outputs are dropped, but an output with a gap would be
        // misleading.
        if self.is_capped {
            return;
        }
        let accepted =
            output.reserve_bytes((self.max_bytes - self.written).min(bytes.len() as u64));
        let accepted = usize::try_from(accepted).unwrap_or(usize::MAX);
        self.is_capped |= accepted < bytes.len();
        self.written += accepted as u64;
        if let Err(error) = file.write_all(&bytes[..accepted]).await {
            tracing::warn!("a run's output is not stored: {error}");
            self.state = SpoolState::Lost;
        }
    }

    /// Flushes everything to where a reader finds it.
    pub async fn flush(&mut self) {
        if let SpoolState::Stored(_, file) = &mut self.state
            && let Err(error) = file.flush().await
        {
            tracing::warn!("a run's output is not stored: {error}");
            self.state = SpoolState::Lost;
        }
    }

    /// Flushes for the last time: from now on the output may be dropped for newer ones.
    pub async fn close(&mut self) {
        self.flush().await;
        if let SpoolState::Stored(output, _) = &self.state {
            self.state = SpoolState::Closed(output.handle.clone());
        }
    }

    /// Returns the handle of the stored output, and a warning if it is not complete.
    pub fn stored_output(&self) -> (Option<String>, Option<String>) {
        match &self.state {
            SpoolState::Waiting(_) => (None, None),
            SpoolState::Lost => (None, Some(STORE_FAILED.to_owned())),
            SpoolState::Stored(OpenOutput { handle, .. }, _) | SpoolState::Closed(handle) => {
                let warning = format!("the stored output stops after {} bytes", self.written);
                (Some(handle.clone()), self.is_capped.then_some(warning))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::config::scratch::Scratch;
    use crate::session::OutputQuota;

    #[tokio::test]
    async fn an_output_that_ran_out_of_room_has_no_gap() {
        let scratch = Scratch::new();
        let quota = OutputQuota::new(8 << 10);
        let outputs = Arc::new(OutputStore::with_quota(scratch.path().join("s-1"), quota));
        let mut other = outputs.create_output().unwrap();
        other.write_all(&[b'x'; 100 << 10]).unwrap();
        let mut spool = OutputSpool::new(Arc::clone(&outputs), 1 << 20);
        // Only 28 KiB of the session's 128 are left while the other is being written.
        spool.push(&[b'a'; 40 << 10], true).await;
        drop(other);
        spool.push(b"later", true).await;
        spool.close().await;
        let (handle, warning) = spool.stored_output();
        let whole =
            std::io::read_to_string(outputs.open_output(&handle.unwrap()).unwrap()).unwrap();
        assert_eq!(whole, "a".repeat(28 << 10));
        assert_eq!(warning.unwrap(), "the stored output stops after 28672 bytes");
    }
}
