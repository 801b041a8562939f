//! What runs beside and inside a run. No async runtime, no network stack: `cargo tree -p jail` is what has to be
//! read to trust it.
//!
//! A session has a [`zygote`], a run a [`supervisor`] and, in the fence, an `init` of its own; `launch` has the steps
//! of the process that becomes the program, in their order.

pub mod fault;
mod git;
mod init;
pub mod intercept;
mod keep;
mod landlock;
mod launch;
pub mod limits;
pub mod metadata;
mod mounts;
pub mod namespaces;
pub mod packet;
pub mod probe;
mod protect;
mod resolver;
pub mod rights;
pub mod script;
pub mod seatbelt;
mod seccomp;
pub mod steering;
pub mod supervisor;
mod sys;
pub mod zygote;

pub use launch::{Fence, PORT};
pub use protect::real_places;

/// Marks every descriptor but the standard three so that no child inherits it. Our own are made that way; those that
/// we were started with are not, and editors and terminals do leave some open.
pub fn close_on_exec() {
    close_fds::set_fds_cloexec(3, &[]);
}
