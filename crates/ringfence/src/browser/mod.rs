//! A real Chromium, driven over its debugging pipe.
//!
//! `process` is the browser of a principal, `tabs` a session's context in it, `page` one page and what it has told
//! us; the other files are what can be done with a page.

pub mod act;
pub mod address;
pub mod capture;
mod cdp;
pub mod downloads;
mod element;
pub mod eval;
pub mod find;
mod keys;
pub mod log;
pub mod navigate;
pub mod page;
mod process;
mod refs;
pub mod snapshot;
pub mod tabs;
mod traffic;
pub mod upload;

pub use process::Busy;
