//! A real Chromium, driven over its debugging pipe.
//!
//! `process` is the browser of a principal, `tabs` a session's context in it, and `page` one page
//! and its known state; the other files are operations on a page. The browser and its pages are
//! untrusted: what is kept of their messages is bounded.

pub mod act;
pub mod address;
pub mod capture;
mod cdp;
pub mod downloads;
mod element;
pub mod eval;
pub mod executable;
mod keys;
pub mod navigate;
pub mod page;
pub mod page_log;
mod process;
mod refs;
pub mod snapshot;
pub mod tabs;
mod traffic;
pub mod upload;

pub use process::BusyGuard;
