//! Rules for the execs of one run.

use std::fs::File;
use std::sync::Arc;

use jail::intercept::exec::wire::ExecRules;

use super::execs::ExecDecider;
use super::wider::WiderRuns;

/// Rules for a run's execs, and the decider for those where a rule is not enough.
pub struct ExecPolicy {
    pub rules: ExecRules,
    pub decider: Arc<dyn ExecDecider>,
    /// Log for execs that no rule names.
    pub log: Option<File>,
    /// Runs that the decider starts in the wider sandbox.
    pub wider_runs: Arc<WiderRuns>,
}
