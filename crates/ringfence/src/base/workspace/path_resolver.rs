//! Resolves the links in many paths that share their directories, each directory once.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

/// Canonical forms that were found so far. They are as old as this value: create one for each task.
#[derive(Default)]
pub(super) struct PathResolver {
    known_directories: HashMap<PathBuf, ResolvedPath>,
}

#[derive(Clone)]
struct ResolvedPath {
    path: PathBuf,
    exists: bool,
}

impl PathResolver {
    /// Returns the canonical form of a path whose last components may not exist yet.
    pub(super) fn resolve(&mut self, path: &Path) -> PathBuf {
        let is_plain =
            |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
        match path.is_absolute() && path.components().all(is_plain) {
            true => self.resolve_plain(path).path,
            false => resolve_alone(path),
        }
    }

    fn resolve_plain(&mut self, path: &Path) -> ResolvedPath {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return ResolvedPath { path: path.to_owned(), exists: true };
        };
        let directory = match self.known_directories.get(parent) {
            Some(directory) => directory.clone(),
            None => {
                let directory = self.resolve_plain(parent);
                self.known_directories.insert(parent.to_owned(), directory.clone());
                directory
            }
        };
        let joined = directory.path.join(name);
        if !directory.exists {
            return ResolvedPath { path: joined, exists: false };
        }
        match std::fs::symlink_metadata(&joined) {
            Ok(metadata) if metadata.is_symlink() => match std::fs::canonicalize(&joined) {
                Ok(target) => ResolvedPath { path: target, exists: true },
                // A link to what does not exist is itself what is named.
                Err(_) => ResolvedPath { path: joined, exists: false },
            },
            metadata => ResolvedPath { path: joined, exists: metadata.is_ok() },
        }
    }
}

fn resolve_alone(path: &Path) -> PathBuf {
    let mut missing_names = Vec::new();
    let mut ancestor = path;
    loop {
        if let Ok(canonical) = std::fs::canonicalize(ancestor) {
            return missing_names.iter().rev().fold(canonical, |path, name| path.join(name));
        }
        match (ancestor.parent(), ancestor.components().next_back()) {
            (Some(parent), Some(Component::Normal(name))) => {
                missing_names.push(name);
                ancestor = parent;
            }
            _ => return path.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::config::scratch::Scratch;

    #[test]
    fn the_result_is_that_of_resolving_each_path_alone() {
        let scratch = Scratch::new();
        let base = scratch.path();
        std::fs::create_dir_all(base.join("real/inner")).unwrap();
        std::fs::write(base.join("real/file"), "").unwrap();
        symlink(base.join("real"), base.join("link")).unwrap();
        symlink("../real/inner", base.join("real/relative")).unwrap();
        symlink(base.join("nowhere/x"), base.join("dangling")).unwrap();
        symlink("loop", base.join("loop")).unwrap();
        let mut resolver = PathResolver::default();
        for name in [
            "",
            "real",
            "real/inner",
            "real/inner/new/x",
            "real/file",
            "real/file/x",
            "link",
            "link/inner",
            "link/file",
            "link/new/a/b",
            "link/relative/x",
            "real/relative/y",
            "dangling",
            "dangling/x/y",
            "loop",
            "loop/x",
            "missing/a",
            "link/../real/inner",
            "missing/../x",
            "./real",
        ] {
            let path = base.join(name);
            assert_eq!(resolver.resolve(&path), resolve_alone(&path), "{name}");
        }
        for path in ["/", "/etc/passwd", "relative/x", "", "/proc/self/x"] {
            assert_eq!(resolver.resolve(Path::new(path)), resolve_alone(Path::new(path)), "{path}");
        }
    }
}
