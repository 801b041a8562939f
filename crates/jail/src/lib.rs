//! What runs beside and inside a run. No async runtime, no network stack: `cargo tree -p jail` is what has to be
//! read to trust it.

pub mod supervisor;

/// Marks every descriptor but the standard three so that no child inherits it. Our own are made that way; those that
/// we were started with are not, and editors and terminals do leave some open.
pub fn close_on_exec() {
    close_fds::set_fds_cloexec(3, &[]);
}
