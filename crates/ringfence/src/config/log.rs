//! `[log]`: how much the server tells about itself, in which form, and where.

use schemars::JsonSchema;
use serde::Deserialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// What failed
    Error,
    /// And what an operator should know
    Warn,
    /// And each call
    Info,
    /// And how it went
    Debug,
    /// And everything else
    Trace,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people
    Pretty,
    /// One object per line
    Json,
}
