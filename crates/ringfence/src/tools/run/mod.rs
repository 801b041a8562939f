//! Code shared by every tool that runs commands: starting them, deciding about their execs, and
//! keeping those that continue in the background.

pub mod background;
pub mod command;
pub mod exec_decisions;
pub mod likely_limit;
pub mod run_owner;
