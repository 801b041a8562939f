//! What a run may touch: one plain value that the file tools and the fence are both held to.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

/// All paths are absolute and without symbolic links.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rights {
    pub workspace: PathBuf,
    /// The workspace, too, may only be read.
    #[serde(default)]
    pub read_only: bool,
    /// Where HOME points: caches of ordinary programs, kept between runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<PathBuf>,
    /// A directory for temporary files that nobody but runs uses, where /tmp is the host's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scratch: Option<PathBuf>,
    /// Other places that may be written. In a run, also parts of what it may otherwise only read.
    #[serde(default)]
    pub writable: Vec<PathBuf>,
    /// Places that the session may write and this run may only read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub closed: Vec<PathBuf>,
    /// Places inside the writable ones that may only be read, whether they exist or not.
    #[serde(default)]
    pub protected: Vec<Protected>,
    /// What of the list, and of what is protected for git, the operator leaves to runs. `protected` is not asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unprotected: Vec<PathBuf>,
    /// Directories that git takes for a repository (`.git`): what makes git run a program there is protected.
    #[serde(default)]
    pub repositories: Vec<PathBuf>,
    /// What git would execute or include, as the server has found out. Without it, nothing of a repository may be
    /// written: whoever forgets to ask gets less, not more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_git: Option<Vec<Protected>>,
    /// Places that may not even be read.
    #[serde(default)]
    pub hidden: Vec<PathBuf>,
    /// Places of which this run sees nothing but a few others inside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub veils: Vec<Veil>,
    #[serde(default)]
    pub network: Network,
    /// It may make namespaces and mounts of its own, for a program that is a sandbox itself. Landlock's hold on files
    /// goes with it, since no mount can be made under that; mounts that are there cannot be taken away all the same.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub nested: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// The session's own network, which ends at its loopback.
    #[default]
    Off,
    /// A network of the run's own, with a proxy as the only way out.
    Proxied,
    /// The host's.
    All,
}

impl Network {
    pub fn name(self) -> &'static str {
        match self {
            Network::Off => "off",
            Network::Proxied => "proxied",
            Network::All => "all",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Protected {
    pub path: PathBuf,
    pub stand_in: StandIn,
}

/// A place that is hidden, but for what is kept of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Veil {
    pub path: PathBuf,
    pub keep: Vec<PathBuf>,
}

/// What holds the place of a protected path that does not exist, so that nobody can create it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StandIn {
    /// A run may create it, and it is protected from the next run on.
    Nothing,
    Directory,
    /// With exactly this text, for files that somebody outside may read meanwhile.
    File(Text),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Text {
    Empty,
    /// `commondir` must name a directory: `.` is what its absence means.
    Dot,
}

impl Text {
    pub fn bytes(self) -> &'static [u8] {
        match self {
            Text::Empty => b"",
            Text::Dot => b".\n",
        }
    }
}

/// What makes git run a program, in every directory that git takes for a repository.
const GIT: &[(&str, StandIn)] = &[
    ("hooks", StandIn::Directory),
    ("config", StandIn::File(Text::Empty)),
    ("config.worktree", StandIn::File(Text::Empty)),
    // It would move all of the above elsewhere.
    ("commondir", StandIn::File(Text::Dot)),
];

/// What makes git run a program in a work tree's own directory of its repository. What makes it one is where it lies,
/// never what is in it: that may be a run's own doing.
const GIT_WORKTREE: &[(&str, StandIn)] = &[
    ("commondir", StandIn::File(Text::Empty)),
    ("gitdir", StandIn::File(Text::Empty)),
    ("config.worktree", StandIn::File(Text::Empty)),
    ("config", StandIn::File(Text::Empty)),
    ("hooks", StandIn::Directory),
];

/// Directories of git whose subdirectories are repositories, or parts of one.
const GIT_NESTS: &[&str] = &["modules", "worktrees"];

impl Rights {
    /// Everything that may be written, the workspace first.
    pub fn writable_roots(&self) -> impl Iterator<Item = &Path> {
        let workspace = (!self.read_only).then_some(self.workspace.as_path());
        let own = self.home.iter().chain(&self.scratch);
        workspace.into_iter().chain(own.chain(&self.writable).map(PathBuf::as_path))
    }

    /// Whether a path may be changed by nobody inside. Names are compared without regard to case, since some file
    /// systems do not regard it either.
    pub fn protects(&self, path: &Path) -> bool {
        let is_in = |protected: &Protected| below(path, &protected.path).is_some();
        self.protected.iter().any(is_in)
            || !self.is_unprotected(path) && self.protects_for_git(path)
    }

    fn protects_for_git(&self, path: &Path) -> bool {
        let mut in_repositories =
            self.repositories.iter().filter_map(|repository| below(path, repository));
        self.for_git.iter().flatten().any(|known| below(path, &known.path).is_some())
            || in_repositories.any(|rest| makes_git_run(&rest))
            || below(path, &self.workspace).is_some_and(|names| is_in_nested_repository(&names))
    }

    /// Whether the operator leaves it to runs, though it would be protected.
    pub fn is_unprotected(&self, path: &Path) -> bool {
        self.unprotected.iter().any(|open| path.starts_with(open))
    }
}

/// What makes git run programs in the repository in this directory.
pub fn repository_names(repository: &Path) -> Vec<Protected> {
    names_in(repository, GIT)
}

/// The same for a work tree's own directory in its repository.
pub fn worktree_names(own: &Path) -> Vec<Protected> {
    names_in(own, GIT_WORKTREE)
}

fn names_in(directory: &Path, names: &[(&str, StandIn)]) -> Vec<Protected> {
    let protect = |(name, stand_in): &(&str, StandIn)| Protected {
        path: directory.join(name),
        stand_in: *stand_in,
    };
    names.iter().map(protect).collect()
}

/// Whether a path makes git run programs in a repository at any depth, of which there may be none yet.
fn is_in_nested_repository(names: &[&OsStr]) -> bool {
    let mut starts = names.iter().enumerate().filter(|(_, name)| name.eq_ignore_ascii_case(".git"));
    // A `.git` further down may be a file that names a repository anywhere.
    starts.any(|(at, _)| makes_git_run(&names[at + 1..]) || at > 0 && at + 1 == names.len())
}

/// Whether a path in a repository's directory makes git run programs. A submodule's or worktree's own directory in
/// there has the same names, and new ones may come, so they are told by their names.
fn makes_git_run(names: &[&OsStr]) -> bool {
    let is = |name: &OsStr, known: &str| name.eq_ignore_ascii_case(known);
    let runs = |name: &OsStr| GIT.iter().any(|(known, _)| is(name, known));
    match names {
        [nest, _, inner @ ..] if GIT_NESTS.iter().any(|known| is(nest, known)) => {
            inner.iter().any(|name| runs(name) || is(name, "gitdir"))
        }
        // Nothing in the repository itself, but it was taken for the sign of a worktree once.
        [name] if is(name, "gitdir") => true,
        [name, ..] => runs(name),
        [] => false,
    }
}

/// The names that lead from `start` to `path`, if it lies there.
fn below<'p>(path: &'p Path, start: &Path) -> Option<Vec<&'p OsStr>> {
    let mut parts = path.components();
    let same = |part| match (parts.next(), part) {
        (Some(Component::Normal(here)), Component::Normal(there)) => {
            here.eq_ignore_ascii_case(there)
        }
        (here, there) => here == Some(there),
    };
    start.components().all(same).then(|| parts.as_path().iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_agents_and_git_is_protected_and_the_rest_is_not() {
        let mut rights = Rights { workspace: "/w".into(), ..Rights::default() };
        rights.protect_steering();
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
            assert!(rights.protects(Path::new(path)), "{path}");
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
            assert!(!rights.protects(Path::new(path)), "{path}");
        }
    }
}
