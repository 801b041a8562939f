//! Selects what must be protected so that git on the host executes nothing that a run has created.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use jail::paths_to_cover;
use jail::rights::{
    ProtectedPath, Rights, StandIn, StandInText, protected_in_repository, protected_in_worktree,
};

use super::ask::{GitSettings, RepositoryAnswer, RepositoryQuery};
use super::find;
use super::hooks::{hook_directories, hook_files};
use crate::base::{Error, Result, lexical};

/// Maximum number of worktrees that are examined one by one.
const MAX_WORKTREES: usize = 64;
/// Error reason for hooks that cannot be covered.
pub const UNPROTECTABLE: &str = "hooks_path";
const EMPTY_FILE: StandIn = StandIn::File(StandInText::Empty);

/// Returns what to cover in a workspace that is not a repository, so that it cannot be made one:
/// with `.git`, or as a bare one, which needs a `HEAD`.
pub fn cover_without_repository(rights: &Rights) -> Vec<ProtectedPath> {
    let exists = |name: &str| !find::is_vacant(&rights.workspace.join(name));
    let protect =
        |name: &str, stand_in| ProtectedPath { path: rights.workspace.join(name), stand_in };
    match (exists(".git"), exists("HEAD")) {
        (true, _) => Vec::new(),
        (false, true) => vec![protect(".git", StandIn::Directory)],
        (false, false) => vec![protect(".git", StandIn::Directory), protect("HEAD", EMPTY_FILE)],
    }
}

/// Returns every path of one repository that makes git run a program or read other settings, as far
/// as runs can write it.
pub fn cover_repository(
    rights: &Rights,
    home: Option<&Path>,
    answer: &RepositoryAnswer,
    warnings: &mut Vec<String>,
) -> Result<Vec<ProtectedPath>> {
    let mut covered = match &answer.query {
        _ if answer.is_certain() => Vec::new(),
        // A directory that may become a repository, or a broken one; and the `.git` of a work tree.
        RepositoryQuery::GitDir(path) => protected_in_repository(path),
        RepositoryQuery::WorkTree(_) => vec![answer.query.as_protected()],
    };
    let Some(settings) = &answer.settings else { return Ok(covered) };
    if let RepositoryQuery::WorkTree(top) = &answer.query {
        // A run could change a file that names a repository elsewhere so that it names another one.
        let pointer = top.join(".git");
        if pointer.symlink_metadata().is_ok_and(|metadata| !metadata.is_dir()) {
            covered.push(ProtectedPath { path: pointer, stand_in: StandIn::Directory });
        }
    }
    covered.extend(protected_in_repository(&settings.common_dir));
    if settings.git_dir != settings.common_dir {
        covered.extend(protected_in_worktree(&settings.git_dir));
    }
    let work_trees = settings.common_dir.join("worktrees");
    let own: Vec<PathBuf> = std::fs::read_dir(&work_trees)
        .into_iter()
        .flatten()
        .flatten()
        .take(MAX_WORKTREES + 1)
        .map(|own| own.path())
        .collect();
    // A work tree has its own submodules, next to those of its repository.
    let mut with_submodules = vec![&settings.common_dir, &settings.git_dir];
    match own.len() <= MAX_WORKTREES {
        true => {
            covered.extend(own.iter().flat_map(|own| protected_in_worktree(own)));
            with_submodules.extend(&own);
        }
        // A run may have created most of them to hide the others behind.
        false => covered.push(ProtectedPath { path: work_trees, stand_in: StandIn::Directory }),
    }
    let unreadable =
        with_submodules.into_iter().filter(|dir| find::submodule_repositories(dir).is_none());
    covered.extend(
        unreadable
            .map(|dir| ProtectedPath { path: dir.join("modules"), stand_in: StandIn::Directory }),
    );
    let protect_file = |path: PathBuf| ProtectedPath { path, stand_in: EMPTY_FILE };
    covered.extend(settings.entries.iter().map(|(file, ..)| file.clone()).map(protect_file));
    covered.extend(included_files(settings, home).into_iter().map(protect_file));
    let top = hook_base(answer, settings);
    let is_own = answer.query_path() == rights.workspace
        || rights.workspace.starts_with(answer.query_path());
    for hooks in
        hook_directories(settings).into_iter().chain(configured_hooks(settings, &top, home))
    {
        let is_inside = [&top, &settings.git_dir, &settings.common_dir]
            .iter()
            .any(|dir| hooks.starts_with(dir));
        let contains_root = rights.writable_roots().any(|root| root.starts_with(&hooks));
        match (is_own, contains_root) {
            (true, true) => return Err(unprotectable_hooks(&hooks)),
            // A repository that a run has created must not close the user's directories, nor stop
            // later runs.
            (false, true) => warnings.push(format!(
                "hooks of {} cannot be protected",
                super::display_path(rights, answer.query_path())
            )),
            (false, false) if !is_inside => {}
            _ => covered.push(ProtectedPath { path: hooks, stand_in: StandIn::Directory }),
        }
    }
    // A hook is often a link to a script of the project.
    let linked_hooks = hook_files(settings).into_iter().filter(|file| file.is_symlink());
    covered.extend(linked_hooks.filter_map(|file| file.canonicalize().ok()).map(protect_file));
    let mut covered: Vec<ProtectedPath> = covered.into_iter().flat_map(paths_to_cover).collect();
    covered
        .retain(|protected| rights.writable_roots().any(|root| protected.path.starts_with(root)));
    Ok(covered)
}

/// Returns the directory from which relative paths of hooks start: the top of the work tree, which
/// a bare repository does not have.
fn hook_base(answer: &RepositoryAnswer, settings: &GitSettings) -> PathBuf {
    match (&settings.top, &answer.query) {
        (Some(top), _) | (None, RepositoryQuery::WorkTree(top)) => top.clone(),
        (None, RepositoryQuery::GitDir(_)) => settings.git_dir.clone(),
    }
}

/// Returns every hooks directory that some file configures, whether it takes precedence now or not.
fn configured_hooks(settings: &GitSettings, base: &Path, home: Option<&Path>) -> Vec<PathBuf> {
    let values =
        settings.entries.iter().filter(|(_, key, _)| key.eq_ignore_ascii_case("core.hookspath"));
    let directories = values.filter_map(|(_, _, value)| expand_path(base, value, home));
    // husky's directory of this name calls what is next to it.
    let outer_directory = |path: PathBuf| match path.file_name().is_some_and(|name| name == "_") {
        true => path.parent().map(Path::to_owned).unwrap_or(path),
        false => path,
    };
    directories.map(outer_directory).collect()
}

/// Returns every file that settings include, whether the condition is true now or not: a run can
/// make it true.
fn included_files(settings: &GitSettings, home: Option<&Path>) -> Vec<PathBuf> {
    let is_include = |key: &str| {
        let key = key.to_ascii_lowercase();
        (key.starts_with("include.") || key.starts_with("includeif.")) && key.ends_with(".path")
    };
    let includes = settings.entries.iter().filter(|(_, key, _)| is_include(key));
    includes.filter_map(|(file, _, value)| expand_path(file.parent()?, value, home)).collect()
}

/// Expands a path as git does. `~user` is another user's home, which no run can write.
fn expand_path(base: &Path, value: &[u8], home: Option<&Path>) -> Option<PathBuf> {
    let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
    match value.strip_prefix(b"~/") {
        _ if value.is_empty() => None,
        Some(relative_path) => Some(lexical::normalize_path(home?, &path(relative_path))),
        None if value.starts_with(b"~") => None,
        None => Some(lexical::normalize_path(base, &path(value))),
    }
}

fn unprotectable_hooks(hooks: &Path) -> Error {
    Error::permission_denied(
        UNPROTECTABLE,
        "git looks for hooks in a directory that runs must be able to write",
    )
    .with_hint(
        "Set `core.hooksPath` of the repository to a directory of its own, such as `.githooks`.",
    )
    .with_source(hooks.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(entries: &[(&str, &str, &str)]) -> RepositoryAnswer {
        let entry = |(file, key, value): &(&str, &str, &str)| {
            (PathBuf::from(file), (*key).to_owned(), value.as_bytes().to_vec())
        };
        RepositoryAnswer {
            query: RepositoryQuery::WorkTree("/w".into()),
            settings: Some(GitSettings {
                git_dir: "/w/.git".into(),
                common_dir: "/w/.git".into(),
                hooks: "/w/.git/hooks".into(),
                top: None,
                entries: entries.iter().map(entry).collect(),
            }),
            is_complete: true,
            submodules: Vec::new(),
            work_trees: Vec::new(),
        }
    }

    fn paths(entries: &[(&str, &str, &str)]) -> Result<Vec<String>> {
        let rights = Rights { workspace: "/w".into(), ..Rights::default() };
        let covered = cover_repository(
            &rights,
            Some(Path::new("/home/me")),
            &answer(entries),
            &mut Vec::new(),
        )?;
        Ok(covered.into_iter().map(|protected| protected.path.display().to_string()).collect())
    }

    #[test]
    fn every_file_that_git_reads_and_every_directory_of_hooks_is_covered() {
        let found = paths(&[
            ("/home/me/.gitconfig", "core.hookspath", ".githooks"),
            ("/w/.git/config", "core.hookspath", "scripts/../tools/hooks"),
            ("/w/.git/config", "include.path", "../shared.inc"),
            ("/w/.git/config", "includeif.onbranch:x.path", "/w/later.inc"),
            ("/w/shared.inc", "user.name", "me"),
            ("/w/.git/config", "include.path", "~/elsewhere"),
        ])
        .unwrap();
        for path in [
            "/w/.githooks",
            "/w/tools/hooks",
            "/w/shared.inc",
            "/w/later.inc",
            "/w/.git/config",
            "/w/.git/hooks",
        ] {
            assert!(found.iter().any(|known| known == path), "{path}: {found:?}");
        }
        assert!(found.iter().all(|path| path.starts_with("/w/")), "{found:?}");
    }

    #[test]
    fn hooks_in_the_workspace_itself_cannot_be_covered() {
        for value in [".", "/w", "/", "sub/.."] {
            let error = paths(&[("/w/.git/config", "core.hookspath", value)]).unwrap_err();
            assert_eq!(error.reason_name(), Some(UNPROTECTABLE), "{value}");
        }
    }
}
