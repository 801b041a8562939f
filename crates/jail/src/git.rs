//! Finds the repository that a workspace belongs to, in the way git does.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::rights::{ProtectedPath, Rights, StandIn};

/// Read limit for a pointer file: far more than any path needs, and more than most git configs.
const MAX_POINTER_BYTES: u64 = 64 << 10;

impl Rights {
    /// Adds the workspace's repository to the rights. A worktree's repository is outside the
    /// workspace and becomes writable, because otherwise nothing could be committed.
    pub fn include_repository(&mut self) {
        let pointer = self.workspace.join(".git");
        let is_file = fs::symlink_metadata(&pointer).is_ok_and(|found| found.is_file());
        if !is_file {
            return self.repositories.push(pointer);
        }
        if let Some(repository) = find_worktree_repository(&self.workspace) {
            if !repository.starts_with(&self.workspace) {
                self.writable.push(repository.clone());
            }
            self.repositories.push(repository);
        }
        self.protected.push(ProtectedPath { path: pointer, stand_in: StandIn::Directory });
    }
}

/// Returns the repository of which `workspace` is a worktree. A `.git` file may come out of an
/// archive and name any path, so the repository must name this very workspace in turn: only the
/// repository's owner can write that.
fn find_worktree_repository(workspace: &Path) -> Option<PathBuf> {
    let text = read_pointer_file(&workspace.join(".git"))?;
    let worktree_dir = workspace.join(text.strip_prefix("gitdir:")?.trim()).canonicalize().ok()?;
    let repository = worktree_dir
        .join(read_pointer_file(&worktree_dir.join("commondir"))?.trim())
        .canonicalize()
        .ok()?;
    let back_link = worktree_dir.join(read_pointer_file(&worktree_dir.join("gitdir"))?.trim());
    let names_workspace =
        back_link.parent()?.canonicalize().ok()? == workspace && back_link.file_name()? == ".git";
    let is_repository = repository.join("HEAD").is_file() && repository.join("objects").is_dir();
    (names_workspace && is_repository && worktree_dir.parent()? == repository.join("worktrees"))
        .then_some(repository)
}

/// Reads a small file that an archive may have put there: follows no symlink and does not block on
/// a pipe.
fn read_pointer_file(path: &Path) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = fs::File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    let mut text = String::new();
    let is_regular = file.metadata().ok()?.is_file();
    is_regular.then_some(file)?.take(MAX_POINTER_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = std::env::temp_dir().join(format!("jail-git-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Scratch(path.canonicalize().unwrap())
        }

        fn write(&self, path: &str, text: &str) -> &Self {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
            self
        }

        fn rights(&self, workspace: &str) -> Rights {
            let mut rights = Rights { workspace: self.0.join(workspace), ..Rights::default() };
            fs::create_dir_all(&rights.workspace).unwrap();
            rights.include_repository();
            rights
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_worktrees_repository_is_taken_in_only_when_it_names_the_workspace() {
        let scratch = Scratch::new("worktree");
        fs::create_dir_all(scratch.0.join("main/.git/objects")).unwrap();
        scratch.write("main/.git/HEAD", "ref: refs/heads/main\n");
        scratch.write(
            "tree/.git",
            &format!("gitdir: {}/main/.git/worktrees/tree\n", scratch.0.display()),
        );
        scratch.write("main/.git/worktrees/tree/commondir", "../..\n");
        scratch.write(
            "main/.git/worktrees/tree/gitdir",
            &format!("{}/tree/.git\n", scratch.0.display()),
        );
        let rights = scratch.rights("tree");
        assert_eq!(rights.writable, [scratch.0.join("main/.git")]);
        assert_eq!(rights.repositories, [scratch.0.join("main/.git")]);
        assert!(rights.protects_path(&scratch.0.join("tree/.git")));
        // Another directory that merely says so is given nothing.
        scratch.write(
            "thief/.git",
            &format!("gitdir: {}/main/.git/worktrees/tree\n", scratch.0.display()),
        );
        let rights = scratch.rights("thief");
        assert_eq!((rights.writable, rights.repositories), (vec![], vec![]));
    }

    #[test]
    fn a_workspace_without_a_repository_cannot_be_given_one() {
        let scratch = Scratch::new("none");
        let rights = scratch.rights("plain");
        assert_eq!(rights.repositories, [scratch.0.join("plain/.git")]);
        let rights = scratch.write("odd/.git", "gitdir: /etc\n").rights("odd");
        assert_eq!((rights.writable, rights.repositories), (vec![], vec![]));
    }
}
