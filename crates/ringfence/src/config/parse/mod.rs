//! Parses the config file as it is written, and reports every error in it with its line.

pub mod config_text;
pub mod key_spans;
pub mod lenient;
pub mod raw;
pub mod toml_errors;
pub mod upstream_section;
pub mod value_errors;
