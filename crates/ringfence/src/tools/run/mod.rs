//! Code shared by every tool that runs commands: starting them, deciding about their execs, and
//! keeping those that continue in the background.

pub mod asked_call;
pub mod background;
pub mod command;
pub mod held_execs;
pub mod likely_limit;
pub mod program;
