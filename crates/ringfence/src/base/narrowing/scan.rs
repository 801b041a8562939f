//! What a client's patterns name in the places that a run may write. Elsewhere files do not come and go by a run's
//! hand.

use std::path::PathBuf;

use crate::base::glob::Glob;

/// Entries that are looked at, and matches that are hidden one by one.
const VISITED: usize = 200_000;
const MATCHES: usize = 1_000;

/// Everything that is named, an outer one in place of what lies in it; `None` when there is too much to look at.
pub fn matching<'r>(
    roots: impl Iterator<Item = &'r PathBuf>,
    globs: &[Glob],
) -> Option<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut visited = 0;
    let mut folders: Vec<PathBuf> = roots.cloned().collect();
    while let Some(folder) = folders.pop() {
        // What cannot be listed by us cannot be by a run of the same user.
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            visited += 1;
            if visited > VISITED || found.len() > MATCHES {
                return None;
            }
            let path = entry.path();
            // A link is not followed: what it leads to has a name of its own.
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if globs.iter().any(|glob| glob.matches(&path)) {
                found.push(path);
            } else if is_folder {
                folders.push(path);
            }
        }
    }
    Some(found)
}
