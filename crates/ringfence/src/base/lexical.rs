//! Lexical path operations, for paths that need not exist. Nothing here follows symlinks, so the
//! result does not say which file a name leads to.

use std::path::{Component, Path, PathBuf};

/// Resolves `.` and `..` lexically; a relative path starts at `base`.
pub fn normalize_path(base: &Path, path: &Path) -> PathBuf {
    let mut normalized = PathBuf::new();
    for part in base.join(path).components() {
        match part {
            Component::ParentDir => drop(normalized.pop()),
            Component::CurDir => {}
            part => normalized.push(part),
        }
    }
    normalized
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_are_resolved_by_their_text() {
        for (path, expected) in [
            ("a/./b/../c", "/w/a/c"),
            ("/x/../y", "/y"),
            ("../../..", "/"),
            (".", "/w"),
            ("", "/w"),
        ] {
            assert_eq!(
                normalize_path(Path::new("/w"), Path::new(path)),
                Path::new(expected),
                "{path}"
            );
        }
    }
}
