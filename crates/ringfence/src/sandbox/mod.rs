//! Starts and supervises commands. Nothing else in the crate starts processes, except
//! `config::secrets::keyring`.
//!
//! A session has one sandbox ([`Cell`]). Each run in it gets its own supervisor
//! (`jail::supervisor`), which owns the run's whole process tree: whatever ends the call (exit,
//! deadline, cancellation, death of this server) ends every process that it started.

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

/// Allowance on top of the grace periods of an interrupted command and of an ended run: for
/// killing, the final report, and the last exec notices.
const REPORTING: Duration = Duration::from_secs(3);

/// Returns the longest time that ending a run can take, from the request to its record, for runs
/// with this grace period.
pub fn longest_end(grace: Duration) -> Duration {
    grace * 2 + REPORTING
}

/// Removes the files that killed servers left below this root: outputs, temporary files, browser
/// directories.
pub fn sweep_abandoned(root: &Path) {
    for parent in ["outputs", "tmp"] {
        held_dir::sweep_abandoned(&root.join(parent));
    }
    if let Err(error) = browser::sweep_abandoned(root) {
        tracing::warn!("cannot remove files that browsers left behind: {error}");
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stream {
    Stdout = 0,
    Stderr = 1,
}
