//! What every test here stands on: the real binary on a root of its own, and clients that speak to it as real
//! ones do. Nothing here sleeps in place of an event, and nothing waits for ever.

pub mod aged_log;
pub mod approve;
pub mod client;
pub mod http;
pub mod matrix;
pub mod place;
pub mod process;
pub mod screen;
pub mod server;
pub mod subset;
pub mod token;

use std::time::{Duration, Instant};

pub use approve::Approve;
pub use client::Client;
pub use matrix::{CELLS, Cell, on_every_transport};
pub use server::{Options, Server};

/// Whatever takes longer has failed.
pub const DEADLINE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    Stdio,
    Http,
    Sse,
}

pub const MODERN: &str = "2026-07-28";
pub const SESSIONS: &str = "2025-11-25";

/// Looks again and again until it is so. For what the system shows but does not announce (`/proc`).
pub fn eventually(within: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + within;
    while !is_so() {
        assert!(Instant::now() < until, "not within {within:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
