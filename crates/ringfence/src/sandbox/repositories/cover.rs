//! What has to be protected so that git on the host executes nothing of a run's making.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use jail::rights::{Protected, Rights, StandIn, Text, repository_names, worktree_names};

use super::ask::{Answer, Question, Settings};
use super::{find, is_writable};
use crate::base::{Error, Result, lexical};

const EMPTY_FILE: StandIn = StandIn::File(Text::Empty);

/// For a workspace that is no repository: none can be made of it, with `.git` or as a bare one, which needs a `HEAD`.
pub fn without_repository(rights: &Rights) -> Vec<Protected> {
    let exists = |name: &str| !find::is_vacant(&rights.workspace.join(name));
    let protect = |name: &str, stand_in| Protected { path: rights.workspace.join(name), stand_in };
    match (exists(".git"), exists("HEAD")) {
        (true, _) => Vec::new(),
        (false, true) => vec![protect(".git", StandIn::Directory)],
        (false, false) => vec![protect(".git", StandIn::Directory), protect("HEAD", EMPTY_FILE)],
    }
}

/// Everything of one repository that makes git run a program or read other settings, as far as runs can write it.
pub fn covered(rights: &Rights, home: Option<&Path>, answer: &Answer) -> Result<Vec<Protected>> {
    let Some(settings) = &answer.settings else {
        // A directory that may become a repository, or a broken one; and the `.git` of a work tree.
        return Ok(match &answer.question {
            Question::GitDir(path) => repository_names(path),
            Question::WorkTree(_) => vec![answer.question.closed()],
        });
    };
    let mut all = Vec::new();
    if let Question::WorkTree(top) = &answer.question {
        // A file that names a repository elsewhere would name another one.
        let pointer = top.join(".git");
        if pointer.symlink_metadata().is_ok_and(|found| !found.is_dir()) {
            all.push(Protected { path: pointer, stand_in: StandIn::Directory });
        }
    }
    all.extend(repository_names(&settings.common_dir));
    if settings.git_dir != settings.common_dir {
        all.extend(worktree_names(&settings.git_dir));
    }
    let work_trees = std::fs::read_dir(settings.common_dir.join("worktrees")).into_iter().flatten().flatten();
    all.extend(work_trees.flat_map(|entry| worktree_names(&entry.path())));
    if find::modules(&settings.common_dir).is_none() {
        all.push(Protected { path: settings.common_dir.join("modules"), stand_in: StandIn::Directory });
    }
    let protect_file = |path: PathBuf| Protected { path, stand_in: EMPTY_FILE };
    all.extend(settings.entries.iter().map(|(file, ..)| file.clone()).map(protect_file));
    all.extend(included(settings, home).into_iter().map(protect_file));
    let top = work_tree(answer, settings);
    for hooks in hooks(settings).into_iter().chain(configured_hooks(settings, &top, home)) {
        if rights.writable_roots().any(|root| root.starts_with(&hooks)) {
            return Err(unprotectable(&hooks));
        }
        all.push(Protected { path: hooks, stand_in: StandIn::Directory });
    }
    all.retain(|protected| is_writable(rights, &protected.path));
    Ok(all)
}

/// Where git looks for hooks now, and where it would look with nothing configured.
pub fn hooks(settings: &Settings) -> Vec<PathBuf> {
    vec![settings.hooks.clone(), settings.common_dir.join("hooks")]
}

/// Relative paths of hooks start from the top of the work tree, which a bare repository has none of.
fn work_tree(answer: &Answer, settings: &Settings) -> PathBuf {
    match &answer.question {
        Question::WorkTree(top) => top.clone(),
        Question::GitDir(_) => settings.git_dir.clone(),
    }
}

/// Every directory of hooks that some file configures, whether it takes precedence now or not.
fn configured_hooks(settings: &Settings, top: &Path, home: Option<&Path>) -> Vec<PathBuf> {
    let values = settings.entries.iter().filter(|(_, key, _)| key.eq_ignore_ascii_case("core.hookspath"));
    values.filter_map(|(_, _, value)| expand(top, value, home)).collect()
}

/// Every file that settings include, whether the condition holds now or not: a run can make it hold.
fn included(settings: &Settings, home: Option<&Path>) -> Vec<PathBuf> {
    let is_include = |key: &str| {
        let key = key.to_ascii_lowercase();
        (key.starts_with("include.") || key.starts_with("includeif.")) && key.ends_with(".path")
    };
    let includes = settings.entries.iter().filter(|(_, key, _)| is_include(key));
    includes.filter_map(|(file, _, value)| expand(file.parent()?, value, home)).collect()
}

/// A path as git reads it. `~user` is another user's home, which no run can write.
fn expand(base: &Path, value: &[u8], home: Option<&Path>) -> Option<PathBuf> {
    let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
    match value.strip_prefix(b"~/") {
        _ if value.is_empty() => None,
        Some(below) => Some(lexical::normalize(home?, &path(below))),
        None if value.starts_with(b"~") => None,
        None => Some(lexical::normalize(base, &path(value))),
    }
}

fn unprotectable(hooks: &Path) -> Error {
    Error::permission_denied("sandbox", "git looks for hooks in a directory that runs have to write")
        .hint("Set `core.hooksPath` of the repository to a directory of its own, such as `.githooks`.")
        .source(hooks.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(entries: &[(&str, &str, &str)]) -> Answer {
        let entry = |(file, key, value): &(&str, &str, &str)| {
            (PathBuf::from(file), (*key).to_owned(), value.as_bytes().to_vec())
        };
        Answer {
            question: Question::WorkTree("/w".into()),
            settings: Some(Settings {
                git_dir: "/w/.git".into(),
                common_dir: "/w/.git".into(),
                hooks: "/w/.git/hooks".into(),
                entries: entries.iter().map(entry).collect(),
            }),
            links: Vec::new(),
            work_trees: Vec::new(),
        }
    }

    fn paths(entries: &[(&str, &str, &str)]) -> Result<Vec<String>> {
        let rights = Rights { workspace: "/w".into(), ..Rights::default() };
        let covered = covered(&rights, Some(Path::new("/home/me")), &answer(entries))?;
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
        for path in
            ["/w/.githooks", "/w/tools/hooks", "/w/shared.inc", "/w/later.inc", "/w/.git/config", "/w/.git/hooks"]
        {
            assert!(found.iter().any(|known| known == path), "{path}: {found:?}");
        }
        assert!(found.iter().all(|path| path.starts_with("/w/")), "{found:?}");
    }

    #[test]
    fn hooks_in_the_workspace_itself_cannot_be_covered() {
        for value in [".", "/w", "/", "sub/.."] {
            let error = paths(&[("/w/.git/config", "core.hookspath", value)]).unwrap_err();
            assert_eq!(error.reason_name(), Some("sandbox"), "{value}");
        }
    }
}
