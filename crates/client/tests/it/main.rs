//! The client against scripted servers, most of them with bad manners.
// A helper that fails is a test that fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod eras;
mod floods;
mod greetings;
mod harness;
mod http_manners;
mod lifecycle;
mod lists;
mod manners;
mod processes;
mod questions;
mod sse_manners;
