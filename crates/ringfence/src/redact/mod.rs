//! Keeps secret values out of everything that is shown: output, log lines, audit records, prompts
//! and errors.
//!
//! All code that removes or hides a value is in this folder. It uses no other module.

pub mod known;
pub mod own;
pub mod record;
pub mod secret;
pub mod shown;
pub mod sieve;
