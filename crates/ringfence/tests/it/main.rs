//! The real binary over stdio, Streamable HTTP and HTTP+SSE, in both protocol eras.
//!
//! `RINGFENCE_PROOF=1` makes the runs that are about time and amounts long; `RINGFENCE_BINARY` names another build
//! to test; `RINGFENCE_KEEP=1` keeps the directories of the servers.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "these are tests"
)]

mod approvals;
mod audit;
mod auth;
mod browser;
mod call_command;
mod cancel;
mod code_exec;
mod codex_home;
mod codex_pair;
mod completions;
mod config;
mod configured;
mod connect;
mod crowds;
mod descriptors;
mod doctor;
mod escalate;
mod escape;
mod examples;
mod exec;
mod fence;
mod file_list;
mod file_replace;
mod file_search;
mod first_minutes;
mod footprint;
mod git_covers;
mod hints;
mod install;
mod journey;
mod logs;
mod malformed;
mod names;
mod packaging;
mod peers;
mod prepared;
mod prompts;
mod ps;
mod recorded_session;
mod refused_calls;
mod reload;
mod results;
mod retention;
mod rules;
mod rules_like_codex;
mod run_ahead;
mod run_record;
mod sandbox_command;
mod sandbox_state;
mod scenarios;
mod secrets;
mod session_limits;
mod shaping;
mod shell;
mod shell_session;
mod soak;
mod starts;
mod steering;
mod support;
mod tidy;
mod token_command;
mod tools_command;
mod traffic;
mod upstream;
mod upstream_login;
mod work;
