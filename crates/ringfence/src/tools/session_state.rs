//! A session with everything that its tools keep in it from one call to the next.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::run::background::BackgroundRuns;
use crate::browser::tabs::TabSets;
use crate::sandbox::SessionSandboxes;
use crate::session::Session;

/// A session and what its tools keep in it. All of it ends with the session.
pub struct SessionState {
    pub session: Arc<Session>,
    pub sandboxes: Arc<SessionSandboxes>,
    pub tab_sets: TabSets,
    pub background_runs: Arc<BackgroundRuns>,
    /// Number of code cells that were run; tracebacks name each by its number.
    cell_count: AtomicU64,
}

impl SessionState {
    /// Creates the state of a session in which nothing has run yet.
    pub fn new(session: Arc<Session>) -> SessionState {
        SessionState {
            sandboxes: Arc::new(SessionSandboxes::new(Arc::clone(&session))),
            session,
            tab_sets: TabSets::default(),
            background_runs: Arc::default(),
            cell_count: AtomicU64::new(0),
        }
    }

    /// Returns the number of the next code cell, counted from one.
    pub fn next_cell(&self) -> u64 {
        self.cell_count.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// Reference to the session of one call.
#[derive(Clone)]
pub struct SessionRef {
    pub state: Arc<SessionState>,
    /// False for a 2026-07-28 request without a handle: nothing it is granted may outlive it.
    pub persistent: bool,
}

impl SessionRef {
    /// Returns the session itself.
    pub fn session(&self) -> &Arc<Session> {
        &self.state.session
    }
}
