//! Search for a configuration file.

use std::path::{Path, PathBuf};

/// File names in the order of preference within one directory.
const FILE_NAMES: [&str; 2] = ["codex-toolloop.mcp.json", ".codex-toolloop/mcp.json"];

/// Returns the first configuration file in `cwd` or in a directory above it.
///
/// Each directory is searched for `codex-toolloop.mcp.json` and then for `.codex-toolloop/mcp.json`
/// before its parent. Anything but a regular file or a link to one is skipped.
pub fn discover_config_path(cwd: &Path) -> Option<PathBuf> {
    // The lexical parents of a path with `..` or links are not the directories above it.
    let cwd = cwd.canonicalize().ok()?;
    cwd.ancestors()
        .flat_map(|directory| FILE_NAMES.map(|name| directory.join(name)))
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::super::scratch::Scratch;
    use super::*;

    #[test]
    fn the_nearest_directory_wins() {
        let scratch = Scratch::new();
        scratch.file("a/codex-toolloop.mcp.json", "{}");
        let near = scratch.file("a/b/.codex-toolloop/mcp.json", "{}");
        assert_eq!(discover_config_path(&scratch.dir("a/b/c")), Some(near));
    }

    #[test]
    fn the_plain_file_wins_in_one_directory() {
        let scratch = Scratch::new();
        scratch.file(".codex-toolloop/mcp.json", "{}");
        let plain = scratch.file("codex-toolloop.mcp.json", "{}");
        assert_eq!(discover_config_path(scratch.path()), Some(plain));
    }

    #[test]
    fn a_directory_is_not_a_file() {
        let scratch = Scratch::new();
        scratch.dir("a/codex-toolloop.mcp.json");
        let hidden = scratch.file("a/.codex-toolloop/mcp.json", "{}");
        assert_eq!(discover_config_path(&scratch.dir("a")), Some(hidden));
    }

    #[test]
    fn a_broken_link_is_skipped() {
        let scratch = Scratch::new();
        let above = scratch.file("codex-toolloop.mcp.json", "{}");
        let dir = scratch.dir("a");
        std::os::unix::fs::symlink("nowhere", dir.join("codex-toolloop.mcp.json")).unwrap();
        assert_eq!(discover_config_path(&dir), Some(above));
    }

    #[test]
    fn a_socket_is_skipped() {
        let scratch = Scratch::new();
        let above = scratch.file("codex-toolloop.mcp.json", "{}");
        let dir = scratch.dir("a");
        let socket = std::os::unix::net::UnixListener::bind(dir.join("codex-toolloop.mcp.json"));
        assert_eq!(discover_config_path(&dir), Some(above));
        drop(socket.unwrap());
    }

    #[test]
    fn parents_are_those_of_the_real_directory() {
        let scratch = Scratch::new();
        scratch.file("a/b/codex-toolloop.mcp.json", "{}");
        let expected = scratch.file("a/codex-toolloop.mcp.json", "{}");
        assert_eq!(discover_config_path(&scratch.dir("a/b").join("..")), Some(expected));
    }

    #[test]
    fn a_missing_directory_has_no_file() {
        let scratch = Scratch::new();
        scratch.file("codex-toolloop.mcp.json", "{}");
        assert_eq!(discover_config_path(&scratch.path().join("missing")), None);
    }
}
