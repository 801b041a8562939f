//! Who answers for a run at the moment: the call that looks at it, or the last that did.
//!
//! A run can outlive the call that started it. What its execs ask then goes to whoever looks at it; when nobody does,
//! the line to the last client is dead, and so the answer is no.

use std::sync::{Arc, PoisonError, RwLock};

use crate::base::clock::Deadline;
use crate::tools::RunCx;

pub struct Attended {
    now: RwLock<Attending>,
    /// The run's own time, which stands still while a human decides.
    run: Option<Arc<Deadline>>,
}

struct Attending {
    cx: Arc<RunCx>,
    /// How long it looks, and the like, which stand still as well.
    clocks: Vec<Arc<Deadline>>,
}

impl Attended {
    pub fn by(cx: &Arc<RunCx>, run: Option<Arc<Deadline>>) -> Arc<Attended> {
        Arc::new(Attended {
            now: RwLock::new(Attending { cx: Arc::clone(cx), clocks: Vec::new() }),
            run,
        })
    }

    /// From now on this call is asked; these clocks are its own.
    pub fn take_over(&self, cx: &Arc<RunCx>, clocks: Vec<Arc<Deadline>>) {
        *self.now.write().unwrap_or_else(PoisonError::into_inner) =
            Attending { cx: Arc::clone(cx), clocks };
    }

    pub fn cx(&self) -> Arc<RunCx> {
        Arc::clone(&self.now.read().unwrap_or_else(PoisonError::into_inner).cx)
    }

    /// The clocks that stand still while a human decides. That of the call itself is the gate's.
    pub fn clocks(&self) -> Vec<Arc<Deadline>> {
        let now = self.now.read().unwrap_or_else(PoisonError::into_inner);
        self.run.iter().chain(&now.clocks).cloned().collect()
    }
}
