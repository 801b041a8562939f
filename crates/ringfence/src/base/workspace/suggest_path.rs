//! Suggests what a caller may have meant by a name that does not exist.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::path_walk::WalkLevel;
use super::{Workspace, os_error, quote_path, tree};
use crate::base::error::Error;
use crate::base::suggest::suggest_names;

/// Maximum number of names to compare: an error must not cost more than the call.
const MAX_COMPARED: usize = 2000;
const MAX_SUGGESTED: usize = 3;

/// Returns similar names in a directory. Names that no tool may open are left out.
pub(super) fn similar_names(
    workspace: &Workspace,
    levels: &[WalkLevel],
    dir: &OwnedFd,
    name: &OsStr,
) -> Vec<OsString> {
    let Some(name) = name.to_str() else { return Vec::new() };
    let found = tree::read_first_names(dir, MAX_COMPARED);
    let utf8_names: Vec<&str> = found.iter().filter_map(|found| found.to_str()).collect();
    let near = suggest_names(name, &utf8_names, MAX_SUGGESTED);
    let is_open = |near: &&str| {
        let near = OsStr::new(near);
        workspace.closed_name_error(levels, near).is_none()
            && !workspace.is_closed_object_at(dir, near)
    };
    near.into_iter().filter(is_open).map(OsString::from).collect()
}

/// Returns the error for a path that does not exist.
pub(super) fn not_found_error(requested_path: &str, is_last: bool, near: Vec<String>) -> Error {
    let error = os_error(Errno::NOENT, requested_path);
    let quoted: Vec<String> = near.iter().map(|near| quote_path(near)).collect();
    match quoted.as_slice() {
        [] if is_last => error.with_hint("List the directory with `file.list`; paths are relative to the workspace."),
        [] => error.with_hint("A parent directory does not exist. Use `file.list`; paths are relative to the workspace."),
        _ => error.with_hint(format!("Did you mean {}?", quoted.join(" or "))).with_fact("nearest", near),
    }
}
