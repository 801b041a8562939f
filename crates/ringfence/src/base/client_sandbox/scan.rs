//! Finds existing files that match a client's patterns in the places that a run may write.
//! Elsewhere a run cannot create or remove files.

use std::path::PathBuf;

use crate::base::glob::Glob;

/// Limits on the entries visited and on the matches that are hidden one by one.
const MAX_VISITED: usize = 200_000;
const MAX_MATCHES: usize = 1_000;

/// Returns every matching path, but nothing inside a matching directory; `None` if there are too
/// many entries.
pub fn find_matches<'r>(
    roots: impl Iterator<Item = &'r PathBuf>,
    globs: &[Glob],
) -> Option<Vec<PathBuf>> {
    let mut matched_paths = Vec::new();
    let mut visited = 0;
    let mut folders: Vec<PathBuf> = roots.cloned().collect();
    while let Some(folder) = folders.pop() {
        // A directory that we cannot list cannot be listed by a run of the same user either.
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            visited += 1;
            if visited > MAX_VISITED || matched_paths.len() > MAX_MATCHES {
                return None;
            }
            let path = entry.path();
            // Links are not followed: their target has a name of its own.
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if globs.iter().any(|glob| glob.matches(&path)) {
                matched_paths.push(path);
            } else if is_folder {
                folders.push(path);
            }
        }
    }
    Some(matched_paths)
}
