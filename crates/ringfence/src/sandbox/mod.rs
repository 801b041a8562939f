//! Starts and supervises commands. Nothing else in the crate starts processes, except
//! `config::secrets::keyring`.
//!
//! A session has one sandbox for its commands, and more where something else was configured or
//! reported ([`SessionSandboxes`]). Each run in one gets its own supervisor
//! (`jail::supervisor`), which owns the run's whole process tree: whatever ends the call (exit,
//! deadline, cancellation, death of this server) ends every process that it started.

mod bounded_read;
pub mod browser;
pub mod codex;
mod config;
mod dedicated;
mod driver_socket;
mod egress;
pub mod env;
pub mod escalate;
pub mod evaluate;
mod exec_answer;
mod exec_policy;
mod execs;
pub mod foreground;
pub mod git;
mod gitlinks;
mod hidden;
mod install;
mod kept_inside;
mod launch;
mod launcher;
mod left_behind;
mod output_pump;
mod output_spool;
mod output_window;
pub mod profile;
pub mod program_version;
mod progress;
pub mod repositories;
mod restricted;
mod run_driver;
mod run_handle;
mod run_result;
mod script;
mod self_server;
pub mod self_test;
mod session_sandbox;
mod session_sandboxes;
mod start_error;
mod supervisor_control;
mod tier;
pub mod user;
mod wider;
mod zygote;

#[cfg(test)]
pub(crate) mod tests;

use std::path::Path;
use std::time::Duration;

use crate::base::held_dir;
pub use crate::net::OnDecision;
pub use config::SandboxConfig;
pub use dedicated::{DedicatedSandbox, DedicatedSpec, LazyDefinition};
pub use driver_socket::DriverSocket;
pub use egress::decision_fields as network_fields;
pub use exec_policy::ExecPolicy;
pub use execs::{ExecDecider, WaitingExec, create_exec_log};
pub use install::{InstallSpec, open_install_sandbox};
pub use kept_inside::{KeptCommand, KeptInside};
pub use launch::{LaunchRequest, NextRun, StdinSource, WiderRunOptions};
pub use launcher::Launcher;
pub use output_pump::SUPERVISOR_LOST;
pub use output_window::{ShownOutput, cut_text};
pub use run_handle::{OutputFilter, OutputRequest, RunHandle, RunOptions};
pub use run_result::{
    PartialOutput, ReportCompleteness, RunOutcome, RunResult, RunState, StopReason,
};
pub use self_server::{SelfServer, SelfSpawner, start_self_server};
pub use session_sandbox::SessionSandbox;
pub use session_sandboxes::SessionSandboxes;
pub use wider::WiderRuns;
pub use zygote::end_all_zygotes as end_zygotes;

/// Time allowed beyond the grace period, for the killing itself and for the report about it.
pub(super) const KILL_ALLOWANCE: Duration = Duration::from_secs(1);

/// Allowance on top of the grace periods of an interrupted command and of an ended run: for
/// killing, the final report, and the last exec notices.
const REPORTING_ALLOWANCE: Duration = Duration::from_secs(3);

/// Returns the longest time that ending a run can take, from the request to its record, for runs
/// with this grace period.
pub fn max_end_duration(grace: Duration) -> Duration {
    grace * 2 + REPORTING_ALLOWANCE
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
enum OutputStream {
    Stdout = 0,
    Stderr = 1,
}
