//! State and result of a run, as observers get them.

use std::time::Duration;

use jail::namespaces::Tier;
use jail::supervisor::RunExit;
use serde_json::Value;

use super::kept_inside::KeptCommand;
use super::output_window::ShownOutput;
use crate::base::CancelCause;

/// Reason why a run was ended before it ended on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    Deadline,
    Cancelled(CancelCause),
}

impl StopReason {
    /// Returns the reason for a cancellation with this cause.
    pub fn from_cause(cause: CancelCause) -> StopReason {
        if cause == CancelCause::Deadline {
            StopReason::Deadline
        } else {
            StopReason::Cancelled(cause)
        }
    }
}

/// State of a run, as an observer gets it.
pub enum RunState {
    Running(PartialOutput),
    Over(RunOutcome),
}

/// Output since the last look.
#[derive(Debug)]
pub struct PartialOutput {
    pub stdout: ShownOutput,
    pub stderr: ShownOutput,
    /// Handle of the whole output.
    pub output_handle: Option<String>,
    pub warnings: Vec<String>,
    /// Commands that a rule lets out and that ran in the sandbox since the last look.
    pub kept_inside: Vec<KeptCommand>,
    pub duration: Duration,
}

/// Result of a run, and the part of its output that no one had seen before.
#[derive(Debug)]
pub struct RunOutcome {
    pub stdout: ShownOutput,
    pub stderr: ShownOutput,
    pub result: RunResult,
}

/// Completeness of what a supervisor has reported about a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ReportCompleteness {
    /// Nothing, or not everything: a supervisor was lost, or did not report in time.
    #[default]
    Missing,
    /// Everything until the end of the main process, which has left others behind.
    Interim,
    /// Everything.
    Whole,
}

impl ReportCompleteness {
    /// Returns the word for the audit record. A whole report needs none.
    pub fn audit_name(self) -> Option<&'static str> {
        match self {
            ReportCompleteness::Missing => Some("missing"),
            ReportCompleteness::Interim => Some("interim"),
            ReportCompleteness::Whole => None,
        }
    }
}

/// Result of a run.
#[derive(Debug, Clone, Default)]
pub struct RunResult {
    /// The supervisor was lost, so it is unknown how the run ended.
    pub is_lost: bool,
    pub reported: ReportCompleteness,
    pub stop_reason: Option<StopReason>,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// Bytes of standard output and standard error, from their beginning.
    pub stream_bytes: [u64; 2],
    /// Handle of the whole output, if it was cut.
    pub output_handle: Option<String>,
    pub warnings: Vec<String>,
    pub duration: Duration,
    /// Accesses that the run was denied.
    pub denials: Vec<Value>,
    /// As in [`PartialOutput`].
    pub kept_inside: Vec<KeptCommand>,
    /// Changes in what git on the host would execute, compared with before the run.
    pub git_changed: Vec<String>,
    /// Mechanism that enforced its limits: `cgroup2`, `cgroup1` or `rlimits`.
    pub limits_mechanism: String,
    /// How its session got its namespaces, if it has any.
    pub tier: Option<Tier>,
    /// Number of programs it ran that no rule names.
    pub execs: Option<u64>,
    /// Audit record about these programs.
    pub exec_summary: Option<Value>,
}

impl RunResult {
    /// Takes over what a supervisor has reported, in place of an earlier report.
    pub(super) fn set_report(&mut self, exit: &RunExit, reported: ReportCompleteness) {
        (self.exit_code, self.signal, self.reported) = (exit.code, exit.signal, reported);
        self.denials =
            exit.denials.iter().filter_map(|denial| serde_json::to_value(denial).ok()).collect();
        self.limits_mechanism.clone_from(&exit.limits);
        self.execs = exit.execs;
        self.tier = exit.tier;
    }

    /// Returns the name of the tier if it keeps fewer promises than the others.
    pub fn weaker_tier(&self) -> Option<&'static str> {
        self.tier.filter(|tier| *tier == Tier::Mounts).map(Tier::name)
    }

    /// Adds denials that were seen elsewhere. One that is already listed only gets a higher count.
    pub(super) fn add_denials(&mut self, denials: Vec<Value>) {
        let is_same = |one: &Value, other: &Value| {
            ["kind", "name", "reason"].iter().all(|key| one[key] == other[key])
        };
        for denial in denials {
            match self.denials.iter_mut().find(|existing| is_same(existing, &denial)) {
                Some(existing) => {
                    let counts = [&existing["count"], &denial["count"]]
                        .map(|count| count.as_u64().unwrap_or_default());
                    existing["count"] = counts[0].saturating_add(counts[1]).into();
                }
                None => self.denials.push(denial),
            }
        }
    }
}
