//! The sandbox: the processes that run next to and inside every command.
//!
//! This crate has no async runtime and no network stack, so that the code that enforces the sandbox
//! stays small enough to read. `cargo tree -p jail` lists everything you have to read to trust it.
//!
//! Each session has a [`zygote`]. Each run has a [`supervisor`] and, inside the sandbox, its own
//! `init` process. `launch` holds the steps, in order, of the process that becomes the program.

pub mod control_files;
mod cover_guard;
pub mod error;
mod git;
mod init;
pub mod intercept;
mod landlock;
mod launch;
pub mod limits;
pub mod metadata;
mod mounts;
pub mod namespaces;
pub mod packet;
mod poison;
pub mod probe;
mod protect;
mod resolver;
pub mod rights;
// A policy for macOS is not part of what has to be read to trust the sandbox on Linux. It is text,
// so its tests run everywhere.
#[cfg(any(target_os = "macos", test))]
pub mod seatbelt;
mod seccomp;
pub mod shebang;
pub mod supervisor;
mod sys;
pub mod zygote;

pub use landlock::has_required_version as has_required_landlock;
pub use launch::{PORT_PLACEHOLDER, SandboxProfile};
pub use poison::IgnorePoison;
pub use protect::paths_to_cover;
pub use sys::memory::release_start_memory;

/// Marks every descriptor except the standard three as close-on-exec, so that no child inherits it.
///
/// Descriptors that we open ourselves already have the flag. Those that we were started with may
/// not: editors and terminals do leave some open.
pub fn mark_close_on_exec() {
    close_fds::set_fds_cloexec(3, &[]);
}
