//! Rules about commands: a flat table, and the two ways to evaluate it.
//!
//! [`RuleTable::check_command`] evaluates a command as text, before anything runs, exactly as Codex
//! does. [`ExecJudge::judge_exec`] evaluates a program that the kernel is about to execute, and
//! knows which file it really is. Both work on plain data, so that the server and the supervisor of
//! a run share the same code.

mod check;
mod judge;
mod rule;

pub use check::{CheckResult, RuleMatch};
pub use judge::{ExecCandidate, ExecJudge, ExecVerdict, HEURISTICS_ORIGIN, MatchBasis};
pub use rule::{
    Decision, HostFile, HostProgram, NetworkProtocol, NetworkRule, PatternToken, PrefixRule,
    RuleOrigin, RuleTable,
};
