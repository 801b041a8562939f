//! Suggests what a caller may have meant by a name that does not exist.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::walk::Level;
use super::{Workspace, os_error, quoted, tree};
use crate::base::error::Error;
use crate::base::nearest::nearest_few;

/// Maximum number of names to compare: an error must not cost more than the call.
const LOOKED_AT: usize = 2000;
const NAMED: usize = 3;

/// Returns similar names in a directory. Names that no tool may open are left out.
pub(super) fn names(
    workspace: &Workspace,
    levels: &[Level],
    dir: &OwnedFd,
    name: &OsStr,
) -> Vec<OsString> {
    let Some(name) = name.to_str() else { return Vec::new() };
    let found = tree::first_names(dir, LOOKED_AT);
    let plain: Vec<&str> = found.iter().filter_map(|found| found.to_str()).collect();
    let near = nearest_few(name, &plain, NAMED);
    let open = |near: &&str| {
        let near = OsStr::new(near);
        workspace.shut_name(levels, near).is_none() && !workspace.shuts_object_at(dir, near)
    };
    near.into_iter().filter(open).map(OsString::from).collect()
}

/// Returns the error for a path that does not exist.
pub(super) fn not_found(asked: &str, last: bool, near: Vec<String>) -> Error {
    let error = os_error(Errno::NOENT, asked);
    let quote: Vec<String> = near.iter().map(|near| quoted(near)).collect();
    match quote.as_slice() {
        [] if last => error.hint("List the directory with `file.list`; paths are relative to the workspace."),
        [] => error.hint("A parent directory does not exist. Use `file.list`; paths are relative to the workspace."),
        _ => error.hint(format!("Did you mean {}?", quote.join(" or "))).with("nearest", near),
    }
}
