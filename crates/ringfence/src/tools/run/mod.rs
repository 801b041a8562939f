//! Code shared by every tool that runs commands: starting them, deciding about their execs, and
//! keeping those that continue in the background.

pub mod attended;
pub mod command;
pub mod execs;
pub mod likely_limit;
pub mod runs;
