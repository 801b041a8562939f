//! The only place that spawns.
//!
//! A session has a [`Cell`], and a run in it a supervisor of its own (`jail::supervisor`), which owns the run's whole
//! tree: whatever ends the call (its exit, a deadline, a cancel, our own death) ends every process it started.

mod aftermath;
pub mod attached;
pub mod browser;
mod cell;
pub mod codex;
mod egress;
pub mod env;
pub mod escalate;
pub mod evaluate;
mod execs;
mod fault;
pub mod git;
mod gitlinks;
mod ground;
mod hidden;
mod kept_inside;
mod launch;
mod line;
mod live;
mod narrowed;
mod own;
pub mod profile;
mod progress;
mod pump;
pub mod repositories;
mod ring;
mod script;
mod spool;
mod stream;
mod tier;
pub mod trial;
pub mod user;
mod wider;
mod zygote;

#[cfg(test)]
pub(crate) mod tests;

use std::path::Path;
use std::time::Duration;

use crate::base::held_dir;
pub use crate::net::Decided;
pub use cell::Cell;
pub use egress::fields as network_fields;
pub use execs::{Desk, Execs, Waiting, exec_log};
pub use ground::Ground;
pub use kept_inside::{KeptCommand, KeptInside};
pub use launch::{Launch, Launcher, Run, Stdin};
pub use line::Line;
pub use live::{Ended, Glance, Keep, Live, Look, Outcome, Reads, Reported, Seen, Stop};
pub use own::{OwnServer, own_server};
pub use pump::SUPERVISOR_LOST;
pub use ring::Shown;
pub use wider::{WiderRuns, WiderTerms};
pub use zygote::end_all as end_zygotes;

/// Beyond the grace of a command that is interrupted and of a run that is ended: for the killing, the final report, and
/// what its execs had to say.
const REPORTING: Duration = Duration::from_secs(3);

/// How long the end of a run takes at most, from the request to its record, for runs with this grace.
pub fn longest_end(grace: Duration) -> Duration {
    grace * 2 + REPORTING
}

/// Removes the files that killed servers have left below this root: outputs, temporary files, browsers.
pub fn sweep_abandoned(root: &Path) {
    for parent in ["outputs", "tmp"] {
        held_dir::sweep_abandoned(&root.join(parent));
    }
    if let Err(error) = browser::sweep_abandoned(root) {
        tracing::warn!("what browsers have left cannot be removed: {error}");
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stream {
    Stdout = 0,
    Stderr = 1,
}
