//! Keeps secret values from being shown: in output, log lines, audit records, prompts and errors.
//!
//! Everything that removes or hides a value is in this folder. It uses no other module.

pub mod known;
pub mod own;
pub mod redact;
pub mod secret;
pub mod shown;
pub mod sieve;
