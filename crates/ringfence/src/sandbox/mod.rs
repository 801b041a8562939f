//! The only place that spawns.
//!
//! A run is started through a supervisor of its own (`jail::supervisor`), which owns the run's whole tree: whatever
//! ends the call (its exit, a deadline, a cancel, our own death) ends every process it started.

pub mod env;
mod launch;
mod own;
mod progress;
mod ring;
mod spool;
mod stream;

#[cfg(test)]
pub(crate) mod tests;

pub use launch::{Launch, Launcher, Run};
pub use own::{OwnServer, own_server};
pub use ring::Shown;
pub use stream::{Outcome, Stop, Watch};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stream {
    Stdout = 0,
    Stderr = 1,
}
