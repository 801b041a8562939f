//! Owner of a run: the call that currently waits for it, or the last one that did.
//!
//! A run can outlive the call that started it. Approval questions about its execs then go to the
//! call that is waiting for it now. If no call is, the connection to the last client is gone, and
//! the answer is no.

use std::sync::{Arc, RwLock};

use crate::base::IgnorePoison;
use crate::base::clock::Deadline;
use crate::tools::RunCx;

/// Tracks which call answers for a run.
pub struct AskedCall {
    owner: RwLock<OwningCall>,
    /// The run's own deadline, which is paused while a human decides.
    run_deadline: Option<Arc<Deadline>>,
}

struct OwningCall {
    cx: Arc<RunCx>,
    /// Deadlines of the call, such as how long it waits; they are paused as well.
    deadlines: Vec<Arc<Deadline>>,
}

impl AskedCall {
    /// Creates the record for a run that `cx` has started.
    pub fn new(cx: &Arc<RunCx>, run_deadline: Option<Arc<Deadline>>) -> Arc<AskedCall> {
        Arc::new(AskedCall {
            owner: RwLock::new(OwningCall { cx: Arc::clone(cx), deadlines: Vec::new() }),
            run_deadline,
        })
    }

    /// Makes this call the one that is asked from now on; `deadlines` are its own deadlines.
    pub fn set_owner(&self, cx: &Arc<RunCx>, deadlines: Vec<Arc<Deadline>>) {
        *self.owner.write().ignore_poison() = OwningCall { cx: Arc::clone(cx), deadlines };
    }

    /// Returns the call that is asked now.
    pub fn owner_cx(&self) -> Arc<RunCx> {
        Arc::clone(&self.owner.read().ignore_poison().cx)
    }

    /// Returns the deadlines to pause while a human decides. The gate pauses that of the call
    /// itself.
    pub fn pausable_deadlines(&self) -> Vec<Arc<Deadline>> {
        let owner = self.owner.read().ignore_poison();
        self.run_deadline.iter().chain(&owner.deadlines).cloned().collect()
    }
}
