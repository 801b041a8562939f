//! Control files: paths in a workspace from which agents, editors and shells outside the sandbox
//! take instructions.
//!
//! A run that could write them would make a program outside run its commands. The list is data, in
//! `steering.list`.

use std::path::Path;

use crate::protect::paths_to_cover;
use crate::rights::{ProtectedPath, Rights, StandIn};

const CONTROL_FILE_LIST: &str = include_str!("steering.list");
const IF_PRESENT: &str = "if present";

/// Returns every name on the list, relative to the workspace, and the stand-in to create if it is
/// missing.
///
/// The stand-in is an empty directory even for a file: git ignores an empty directory, while an
/// empty file would be committed by the next `git add`.
pub fn list_names() -> impl Iterator<Item = (&'static Path, StandIn)> {
    let entries =
        CONTROL_FILE_LIST.lines().filter_map(|line| line.split('#').next()).map(str::trim);
    entries.filter(|entry| !entry.is_empty()).map(|entry| match entry.strip_suffix(IF_PRESENT) {
        Some(name) => (Path::new(name.trim_end()), StandIn::Nothing),
        None => (Path::new(entry), StandIn::Directory),
    })
}

impl Rights {
    /// Protects the control files in the workspace, except those that the operator released.
    pub fn protect_control_files(&mut self) {
        let control_files = list_names()
            .map(|(name, stand_in)| ProtectedPath { path: self.workspace.join(name), stand_in });
        let unreleased: Vec<ProtectedPath> =
            control_files.filter(|protected| !self.is_released(&protected.path)).collect();
        self.protected.extend(unreleased.into_iter().flat_map(paths_to_cover));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_a_reason_and_is_protected() {
        let rights = |unprotected: &[&str]| {
            let unprotected = unprotected.iter().map(Into::into).collect();
            let mut rights = Rights { workspace: "/w".into(), unprotected, ..Rights::default() };
            rights.protect_control_files();
            rights
        };
        let entries =
            CONTROL_FILE_LIST.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        for line in entries.clone() {
            assert!(
                line.split_once('#').is_some_and(|(_, reason)| reason.contains(": ")),
                "{line}"
            );
        }
        assert_eq!(list_names().count(), entries.count());
        let protects = |rights: &Rights, path: &str| rights.protects_path(Path::new(path));
        for path in [
            "/w/.claude/settings.json",
            "/w/.mcp.json",
            "/w/.vscode/tasks.json",
            "/w/.ENVRC",
            "/w/.idea",
        ] {
            assert!(protects(&rights(&[]), path), "{path}");
        }
        // A parent directory is not protected itself.
        for path in ["/w/.vscode", "/w/.vscode/launch.json", "/w/sub/.mcp.json"] {
            assert!(!protects(&rights(&[]), path), "{path}");
        }
        let less = rights(&["/w/.vscode", "/w/.mcp.json"]);
        assert!(!protects(&less, "/w/.vscode/tasks.json") && !protects(&less, "/w/.mcp.json"));
        assert!(protects(&less, "/w/.claude"));
    }
}
