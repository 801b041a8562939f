//! Keeps secret values out of everything that is shown: output, log lines, audit records, prompts
//! and errors.
//!
//! All code that removes or hides a value is in this folder. It uses no other module.

pub mod arguments;
pub mod known_secrets;
pub mod record;
pub mod secret;
pub mod short_secrets;
pub mod stream;
