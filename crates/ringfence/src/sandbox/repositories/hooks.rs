//! Where git looks for hooks, and the files there.

use std::path::PathBuf;

use super::ask::GitSettings;

/// Maximum number of hooks that are looked at in one directory.
const MAX_HOOKS: usize = 256;

/// Returns where git looks for hooks now, and where it would look with nothing configured.
pub fn hook_directories(settings: &GitSettings) -> Vec<PathBuf> {
    vec![settings.hooks.clone(), settings.common_dir.join("hooks")]
}

/// Returns the files in every hooks directory.
pub fn hook_files(settings: &GitSettings) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for directory in hook_directories(settings) {
        let entries = std::fs::read_dir(&directory).into_iter().flatten().flatten();
        // git never runs its own examples.
        let is_example =
            |path: &PathBuf| path.extension().is_some_and(|extension| extension == "sample");
        files.extend(
            entries.take(MAX_HOOKS).map(|entry| entry.path()).filter(|path| !is_example(path)),
        );
    }
    files.sort();
    files.dedup();
    files
}
