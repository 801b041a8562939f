//! Owner of a run: the call that currently waits for it, or the last one that did.
//!
//! A run can outlive the call that started it. Approval questions about its execs then go to the
//! call that is waiting for it now. If no call is, the connection to the last client is gone, and
//! the answer is no.

use std::sync::{Arc, PoisonError, RwLock};

use crate::base::clock::Deadline;
use crate::tools::RunCx;

/// Tracks which call answers for a run.
pub struct Attended {
    now: RwLock<Attending>,
    /// The run's own deadline, which is paused while a human decides.
    run: Option<Arc<Deadline>>,
}

struct Attending {
    cx: Arc<RunCx>,
    /// Deadlines of the call, such as how long it waits; they are paused as well.
    clocks: Vec<Arc<Deadline>>,
}

impl Attended {
    /// Creates the record for a run that `cx` has started.
    pub fn by(cx: &Arc<RunCx>, run: Option<Arc<Deadline>>) -> Arc<Attended> {
        Arc::new(Attended {
            now: RwLock::new(Attending { cx: Arc::clone(cx), clocks: Vec::new() }),
            run,
        })
    }

    /// Makes this call the one that is asked from now on; `clocks` are its own deadlines.
    pub fn take_over(&self, cx: &Arc<RunCx>, clocks: Vec<Arc<Deadline>>) {
        *self.now.write().unwrap_or_else(PoisonError::into_inner) =
            Attending { cx: Arc::clone(cx), clocks };
    }

    /// Returns the call that is asked now.
    pub fn cx(&self) -> Arc<RunCx> {
        Arc::clone(&self.now.read().unwrap_or_else(PoisonError::into_inner).cx)
    }

    /// Returns the deadlines to pause while a human decides. The gate pauses that of the call
    /// itself.
    pub fn clocks(&self) -> Vec<Arc<Deadline>> {
        let now = self.now.read().unwrap_or_else(PoisonError::into_inner);
        self.run.iter().chain(&now.clocks).cloned().collect()
    }
}
