//! Parses the config file as it is written, and reports every error in it with its line.

pub mod places;
pub mod raw;
pub mod read;
pub mod sieve;
pub mod syntax;
pub mod template;
