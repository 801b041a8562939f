//! Resolves the path to a file step by step: every directory, link and name that it leads through.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

/// As many links as the kernel follows.
const MAX_LINKS: usize = 40;

/// A name in a directory to watch; without a name, every entry of the directory.
pub type WatchPoint = (PathBuf, Option<OsString>);

/// Returns every name on the path to a file whose change would lead elsewhere: each link, the file
/// itself, or the first name that does not exist yet.
pub fn watch_points(path: &Path) -> Vec<WatchPoint> {
    let redirecting_steps = walk_path(path).into_iter().filter(|step| step.can_redirect);
    redirecting_steps.map(|step| (step.directory, Some(step.name))).collect()
}

/// Returns every directory in which the path to a file uses a name: a process that can write to one
/// of them decides where the path leads.
pub(super) fn path_directories(path: &Path) -> Vec<PathBuf> {
    walk_path(path).into_iter().map(|step| step.directory).collect()
}

struct ChainStep {
    /// Free of symbolic links.
    directory: PathBuf,
    name: OsString,
    /// False for a directory that is merely passed through.
    can_redirect: bool,
}

fn walk_path(path: &Path) -> Vec<ChainStep> {
    let parts = |path: &Path| -> Vec<OsString> {
        let names = path
            .components()
            .filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
        names.map(|part| part.as_os_str().to_owned()).collect()
    };
    let mut steps: Vec<ChainStep> = Vec::new();
    let mut link_count = 0;
    let mut directory = PathBuf::from("/");
    let mut remaining = VecDeque::from(parts(path));
    while let Some(name) = remaining.pop_front() {
        if name == ".." {
            directory.pop();
            continue;
        }
        let next_path = directory.join(&name);
        let metadata = std::fs::symlink_metadata(&next_path);
        let can_redirect =
            remaining.is_empty() || !metadata.as_ref().is_ok_and(std::fs::Metadata::is_dir);
        steps.push(ChainStep { directory: directory.clone(), name, can_redirect });
        if !can_redirect {
            directory = next_path;
            continue;
        }
        link_count += 1;
        match std::fs::read_link(&next_path) {
            Ok(target) if link_count <= MAX_LINKS => {
                if target.is_absolute() {
                    directory = PathBuf::from("/");
                }
                parts(&target).into_iter().rev().for_each(|part| remaining.push_front(part));
            }
            _ => break,
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::scratch::Scratch;
    use super::*;

    #[test]
    fn every_turn_on_the_way_is_watched() {
        let scratch = Scratch::new();
        let at = scratch.path().canonicalize().unwrap();
        let spot = |folder: &str, name: &str| (at.join(folder), Some(OsString::from(name)));
        // As a cluster mounts it: a link to a link in the same directory, swapped as one.
        scratch.file("etc/..1/config.toml", "x");
        symlink("..1", at.join("etc/..data")).unwrap();
        symlink("..data/config.toml", at.join("etc/config.toml")).unwrap();
        let found = watch_points(&at.join("etc/config.toml"));
        assert_eq!(
            found,
            [spot("etc", "config.toml"), spot("etc", "..data"), spot("etc/..1", "config.toml")]
        );
        // What is not there yet is waited for, name by name.
        assert_eq!(
            watch_points(&at.join("home/.config/ringfence/config.toml")),
            [spot("", "home")]
        );
        scratch.dir("home/.config");
        assert_eq!(
            watch_points(&at.join("home/.config/ringfence/config.toml")),
            [spot("home/.config", "ringfence")]
        );
        // A ring of links has an end.
        symlink("b", at.join("a")).unwrap();
        symlink("a", at.join("b")).unwrap();
        assert!(watch_points(&at.join("a/x")).len() <= MAX_LINKS + 1);
    }

    #[test]
    fn every_directory_is_told_even_one_that_is_left_again() {
        let scratch = Scratch::new();
        let at = scratch.path().canonicalize().unwrap();
        scratch.file("etc/config.toml", "x");
        scratch.dir("project/deep");
        let found = path_directories(&at.join("project/deep/../../etc/config.toml"));
        assert!(
            found.contains(&at.join("project")) && found.contains(&at.join("etc")),
            "{found:?}"
        );
        // What lies beside does not matter, nor what is in it.
        let found = path_directories(&at.join("project/../etc/config.toml"));
        assert!(!found.contains(&at.join("project")), "{found:?}");
    }
}
