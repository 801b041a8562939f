//! Access rights of a run: a plain value that both the file tools and the sandbox enforce.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Access rights of a run. All paths are absolute and free of symbolic links.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rights {
    /// The project directory that tools and runs work in.
    pub workspace: PathBuf,
    /// The workspace is read-only as well.
    #[serde(default)]
    pub read_only: bool,
    /// Directory that HOME points to; keeps the caches of ordinary programs between runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<PathBuf>,
    /// Directory for temporary files that only runs use, where /tmp is the host's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scratch: Option<PathBuf>,
    /// Other writable directories. For a run, these can be inside directories that are otherwise
    /// read-only.
    #[serde(default)]
    pub writable: Vec<PathBuf>,
    /// Directories that the session may write but this run may only read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub read_only_dirs: Vec<PathBuf>,
    /// Read-only paths inside the writable directories, whether they exist or not.
    #[serde(default)]
    pub protected: Vec<ProtectedPath>,
    /// Paths that the operator releases from the list of control files and from the protection for
    /// git. They have no effect on `protected`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unprotected: Vec<PathBuf>,
    /// Directories that git treats as a repository (`.git`). Everything in them that makes git run
    /// a program is protected.
    #[serde(default)]
    pub repositories: Vec<PathBuf>,
    /// Paths that git would execute or include, as determined by the server. If absent, whole
    /// repositories are read-only, so that a caller that forgets to determine them gets fewer
    /// rights, not more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_protected: Option<Vec<ProtectedPath>>,
    /// Directories that stay readable inside hidden or private ones. No run may write them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub readable: Vec<PathBuf>,
    /// Paths that cannot even be read.
    #[serde(default)]
    pub hidden: Vec<PathBuf>,
    /// Directories of which this run sees only a few selected paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partial_covers: Vec<PartialCover>,
    /// Network access of the run.
    #[serde(default)]
    pub network: NetworkAccess,
    /// The run may create its own namespaces and mounts, for a program that is a sandbox itself.
    /// This gives up Landlock's file rules, under which no mount can be made; existing mounts still
    /// cannot be removed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub nested: bool,
}

/// Network access of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkAccess {
    /// The session's own network namespace, which has only a loopback interface.
    #[default]
    Off,
    /// A network namespace of the run's own, with a proxy as the only way out.
    Proxied,
    /// The host's network.
    All,
}

impl NetworkAccess {
    /// Returns the name used in the configuration and in results.
    pub fn name(self) -> &'static str {
        match self {
            NetworkAccess::Off => "off",
            NetworkAccess::Proxied => "proxied",
            NetworkAccess::All => "all",
        }
    }
}

/// A read-only path inside a writable directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProtectedPath {
    pub path: PathBuf,
    /// Created where the path does not exist.
    pub stand_in: StandIn,
}

/// A directory that is hidden except for some paths in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartialCover {
    pub path: PathBuf,
    /// Paths inside that stay visible.
    pub keep: Vec<PathBuf>,
}

/// Placeholder for a protected path that does not exist, so that no run can create it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StandIn {
    /// No placeholder: a run may create the path, and it is protected from the next run on.
    Nothing,
    /// An empty directory.
    Directory,
    /// A file with exactly this text, which programs outside may read in the meantime.
    File(StandInText),
}

/// Contents of a stand-in file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StandInText {
    Empty,
    /// `commondir` must name a directory: `.` means the same as a missing file.
    Dot,
}

impl StandInText {
    /// Returns the text.
    pub fn as_bytes(self) -> &'static [u8] {
        match self {
            StandInText::Empty => b"",
            StandInText::Dot => b".\n",
        }
    }
}

/// Names in a git repository that make git run a program.
const REPOSITORY_NAMES: &[(&str, StandIn)] = &[
    ("hooks", StandIn::Directory),
    ("config", StandIn::File(StandInText::Empty)),
    ("config.worktree", StandIn::File(StandInText::Empty)),
    // It would redirect git to another directory for all of the above.
    ("commondir", StandIn::File(StandInText::Dot)),
];

/// Names in the directory that a repository keeps for a worktree that make git run a program. A
/// directory is treated as one because of its location and never because of its contents, which a
/// run may have written.
const WORKTREE_NAMES: &[(&str, StandIn)] = &[
    ("commondir", StandIn::File(StandInText::Empty)),
    ("gitdir", StandIn::File(StandInText::Empty)),
    ("config.worktree", StandIn::File(StandInText::Empty)),
    ("config", StandIn::File(StandInText::Empty)),
    ("hooks", StandIn::Directory),
];

/// Directories in a git repository whose subdirectories are repositories or parts of one.
const NESTED_GIT_DIRECTORIES: &[&str] = &["modules", "worktrees"];

impl Rights {
    /// Returns all writable directories, the workspace first.
    pub fn writable_roots(&self) -> impl Iterator<Item = &Path> {
        let workspace = (!self.read_only).then_some(self.workspace.as_path());
        let home_and_scratch = self.home.iter().chain(&self.scratch);
        workspace.into_iter().chain(home_and_scratch.chain(&self.writable).map(PathBuf::as_path))
    }

    /// Returns whether no run may change this path. Names are compared case-insensitively, because
    /// some file systems are case-insensitive.
    pub fn protects_path(&self, path: &Path) -> bool {
        let contains_path =
            |protected: &ProtectedPath| components_below(path, &protected.path).is_some();
        self.protected.iter().any(contains_path)
            || !self.is_released(path) && self.protects_for_git(path)
    }

    fn protects_for_git(&self, path: &Path) -> bool {
        let mut in_repositories =
            self.repositories.iter().filter_map(|repository| components_below(path, repository));
        self.git_protected
            .iter()
            .flatten()
            .any(|known| components_below(path, &known.path).is_some())
            || in_repositories.any(|rest| makes_git_run_programs(&rest))
            || components_below(path, &self.workspace)
                .is_some_and(|names| is_in_nested_repository(&names))
    }

    /// Returns whether the operator released a path that would otherwise be protected.
    pub fn is_released(&self, path: &Path) -> bool {
        self.unprotected.iter().any(|released| path.starts_with(released))
    }
}

/// Returns the paths that make git run programs in this repository.
pub fn protected_in_repository(repository: &Path) -> Vec<ProtectedPath> {
    protect_names_in(repository, REPOSITORY_NAMES)
}

/// Returns the paths that make git run programs in a worktree's directory inside its repository.
pub fn protected_in_worktree(worktree_dir: &Path) -> Vec<ProtectedPath> {
    protect_names_in(worktree_dir, WORKTREE_NAMES)
}

fn protect_names_in(directory: &Path, names: &[(&str, StandIn)]) -> Vec<ProtectedPath> {
    let protect = |(name, stand_in): &(&str, StandIn)| ProtectedPath {
        path: directory.join(name),
        stand_in: *stand_in,
    };
    names.iter().map(protect).collect()
}

/// Returns whether a path would make git run programs in a repository at any depth, even if that
/// repository does not exist yet.
fn is_in_nested_repository(names: &[&OsStr]) -> bool {
    let mut git_entries =
        names.iter().enumerate().filter(|(_, name)| name.eq_ignore_ascii_case(".git"));
    // A `.git` further down may be a file that refers to a repository anywhere.
    git_entries.any(|(index, _)| {
        makes_git_run_programs(&names[index + 1..]) || index > 0 && index + 1 == names.len()
    })
}

/// Returns whether a path inside a repository makes git run programs. The directories of submodules
/// and worktrees inside it use the same names, and new ones may be created, so they are recognized
/// by name.
fn makes_git_run_programs(names: &[&OsStr]) -> bool {
    let is_named = |name: &OsStr, known: &str| name.eq_ignore_ascii_case(known);
    let runs_programs =
        |name: &OsStr| REPOSITORY_NAMES.iter().any(|(known, _)| is_named(name, known));
    match names {
        [directory, _, inner @ ..]
            if NESTED_GIT_DIRECTORIES.iter().any(|known| is_named(directory, known)) =>
        {
            inner.iter().any(|name| runs_programs(name) || is_named(name, "gitdir"))
        }
        // It has no effect in the repository itself, but was formerly taken as the sign of a
        // worktree.
        [name] if is_named(name, "gitdir") => true,
        [name, ..] => runs_programs(name),
        [] => false,
    }
}

/// Returns the components that lead from `start` to `path`, if `path` is below it. Ignores case.
fn components_below<'p>(path: &'p Path, start: &Path) -> Option<Vec<&'p OsStr>> {
    let mut components = path.components();
    let is_same = |part| match (components.next(), part) {
        (Some(Component::Normal(here)), Component::Normal(there)) => {
            here.eq_ignore_ascii_case(there)
        }
        (here, there) => here == Some(there),
    };
    start.components().all(is_same).then(|| components.as_path().iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_agents_and_git_is_protected_and_the_rest_is_not() {
        let mut rights = Rights { workspace: "/w".into(), ..Rights::default() };
        rights.protect_control_files();
        rights.repositories.push("/w/.git".into());
        for path in [
            "/w/.codex",
            "/w/.codex/config.toml",
            "/w/.CODEX/x",
            "/w/.agents/a/b",
            "/w/.git/config",
            "/w/.git/Config",
            "/w/.git/hooks/pre-commit",
            "/w/.git/commondir",
            "/w/.git/modules/sub/config",
            "/w/.git/modules/deep/sub/hooks/x",
            "/w/.git/worktrees/one/config.worktree",
            "/w/.git/worktrees/one/gitdir",
            "/w/a/b/.git/hooks/pre-commit",
            "/w/a/.git/config",
        ] {
            assert!(rights.protects_path(Path::new(path)), "{path}");
        }
        for path in [
            "/w",
            "/w/.codexx",
            "/w/a/.codex",
            "/w/.git",
            "/w/.git/index",
            "/w/.git/config.lock",
            "/w/.git/refs/heads/config",
            "/w/.git/modules/sub/index",
            "/w/config",
        ] {
            assert!(!rights.protects_path(Path::new(path)), "{path}");
        }
    }
}
