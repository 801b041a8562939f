//! Paths by their text alone, for those that need not exist: nothing is followed, so nothing here says what a name
//! leads to.

use std::path::{Component, Path, PathBuf};

/// Resolves `.` and `..` by their text; a relative path starts at `base`.
pub fn normalize(base: &Path, path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in base.join(path).components() {
        match part {
            Component::ParentDir => drop(normal.pop()),
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
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
            assert_eq!(normalize(Path::new("/w"), Path::new(path)), Path::new(expected), "{path}");
        }
    }
}
