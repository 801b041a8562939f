//! git outside the sandbox: selects the repository that it may work on.
//!
//! git runs what a repository's configuration and hooks say, and searches for that repository from
//! the directory it is called in. A run can create one in any directory that it may write. So git
//! is given an explicit repository, whose every file was closed to the run.

use std::io;
use std::path::{Path, PathBuf};

use jail::rights::{ProtectedPath, Rights, StandIn};
use policy::{Decision, RuleTable};

use super::bounded_read::read_bounded;
use super::gitlinks;

/// Returns whether a rule lets git leave the sandbox.
pub fn escalates_git(table: &RuleTable) -> bool {
    let is_git = |program: &str| matches!(program.rsplit('/').next(), Some(name) if name == "git" || name.starts_with("git-"));
    table.prefixes.iter().any(|rule| rule.decision < Decision::Forbidden && is_git(&rule.program))
}

/// Closes the whole repository to the run, not only what makes git run code.
pub fn close_repository(rights: &mut Rights) {
    let git_dir = rights.workspace.join(".git");
    // A worktree's repository is elsewhere and listed as writable on its own: close it too.
    let (linked_repositories, remaining) = std::mem::take(&mut rights.writable)
        .into_iter()
        .partition(|path| rights.repositories.contains(path));
    rights.writable = remaining;
    rights.read_only_dirs.extend::<Vec<PathBuf>>(linked_repositories);
    for path in [git_dir]
        .into_iter()
        .chain(rights.repositories.clone())
        .filter(|path| !rights.read_only_dirs.contains(path))
    {
        if !rights.protected.iter().any(|known| known.path == path) {
            rights.protected.push(ProtectedPath { path, stand_in: StandIn::Directory });
        }
    }
}

/// Returns whether [`close_repository`] was applied to these rights.
pub fn is_repository_closed(rights: &Rights) -> bool {
    let git_dir = rights.workspace.join(".git");
    rights.read_only_dirs.contains(&git_dir)
        || rights.protected.iter().any(|known| known.path == git_dir)
}

/// Commands that work on their own repository whichever one git is given, or on the given one
/// although another is meant: with `GIT_DIR` set, `git init DIR` initialises that repository again
/// and reports success.
const OTHER_REPOSITORY_COMMANDS: [(&str, &str); 4] = [
    ("init", "creates a repository"),
    ("init-db", "creates a repository"),
    ("clone", "creates a repository"),
    ("submodule", "works on the repositories of submodules"),
];

/// Checks that git works on the repository that it is given; `command` is the first word after its
/// name. Only git knows what an option before the subcommand means: `-C` and `--git-dir` choose a
/// repository.
pub fn check_command(command: &str) -> Result<(), String> {
    if command.starts_with('-') {
        return Err(
            "an option before the subcommand of git can choose another repository".to_owned()
        );
    }
    match OTHER_REPOSITORY_COMMANDS.iter().find(|(name, _)| *name == command) {
        Some((name, effect)) => Err(format!(
            "`git {name}` {effect}, but git outside the sandbox works only on the workspace's own"
        )),
        None => Ok(()),
    }
}

/// Commands that look into no submodule when the settings say so. All others do in any case.
const SUBMODULE_SAFE_COMMANDS: [&str; 3] = ["push", "fetch", "ls-remote"];

/// Returns the variables that name git's repository, so that it searches for none.
pub fn repository_env(
    rights: &Rights,
    cwd: &Path,
    command: &str,
) -> Result<Vec<(String, String)>, String> {
    let variables = select_repository(rights, cwd)?;
    let git_dir =
        variables.iter().find(|(name, _)| name == "GIT_DIR").map(|(_, path)| Path::new(path));
    match git_dir {
        Some(git_dir) if !SUBMODULE_SAFE_COMMANDS.contains(&command) && gitlinks::may_have_submodules(git_dir) => {
            Err(format!("`git {command}` looks into submodules, and those are not closed to the sandbox"))
        }
        Some(git_dir) if may_include_files(git_dir) => {
            Err("the settings of its repository include other files, which may not be closed to the sandbox".to_owned())
        }
        _ => Ok(variables),
    }
}

fn select_repository(rights: &Rights, cwd: &Path) -> Result<Vec<(String, String)>, String> {
    let in_writable = |path: &Path| rights.writable_roots().any(|root| path.starts_with(root));
    // A sandbox with a separate directory for temporary files has no mounts, and nothing in the
    // workspace can be closed.
    if rights.scratch.is_some() && in_writable(cwd) {
        return Err("a repository cannot be closed to a sandbox without namespaces".to_owned());
    }
    let work_tree = cwd.ancestors().find(|dir| dir.join(".git").symlink_metadata().is_ok());
    match work_tree {
        Some(work_tree) if work_tree == rights.workspace || !in_writable(work_tree) => {
            let variable = |name: &str, path: &Path| (name.to_owned(), path.display().to_string());
            let repository = work_tree.join(".git");
            let kind = repository.symlink_metadata().map(|metadata| metadata.file_type());
            match kind {
                Ok(kind) if kind.is_dir() => Ok(quiet_settings()
                    .chain([variable("GIT_DIR", &repository), variable("GIT_WORK_TREE", work_tree)])
                    .collect()),
                // A work tree of a repository elsewhere. Its file is closed to the run as the
                // directory would be, but git would search for it from where it is called, and find
                // what was put nearer in the meantime.
                Ok(kind) if kind.is_file() => {
                    let git_dir = linked_git_dir(&repository).ok_or_else(|| {
                        format!("{} does not name a repository", repository.display())
                    })?;
                    let is_included =
                        rights.repositories.iter().any(|known| git_dir.starts_with(known));
                    match in_writable(&git_dir) && !is_included {
                        true => Err(format!(
                            "the repository in {} is not closed to the sandbox",
                            git_dir.display()
                        )),
                        false => Ok(quiet_settings()
                            .chain([
                                variable("GIT_DIR", &git_dir),
                                variable("GIT_WORK_TREE", work_tree),
                            ])
                            .collect()),
                    }
                }
                _ => Err(format!("{} is neither a directory nor a file", repository.display())),
            }
        }
        Some(work_tree) => {
            Err(format!("the repository in {} is not closed to the sandbox", work_tree.display()))
        }
        // Where no repository exists, the run may not create one either: this is true for the
        // workspace itself and for everything outside. But the workspace could be made to look like
        // one, so git is given the path where it would have to be.
        None if cwd == rights.workspace => Ok(quiet_settings()
            .chain([("GIT_DIR".to_owned(), cwd.join(".git").display().to_string())])
            .collect()),
        None if !in_writable(cwd) => Ok(quiet_settings().collect()),
        None => Err(format!("{} is not in a repository", cwd.display())),
    }
}

/// Returns the variables for a program that may call git where no repository is closed to the run.
pub fn env_without_repository() -> Vec<(String, String)> {
    quiet_settings().chain([("GIT_DIR".to_owned(), "/dev/null".to_owned())]).collect()
}

/// Size limit, far above any path and any settings that a person writes.
const MAX_SETTINGS_BYTES: u64 = 1 << 20;

/// Returns whether its settings include other files. True also if that is unknown.
fn may_include_files(git_dir: &Path) -> bool {
    includes_files(git_dir).unwrap_or(true)
}

fn includes_files(git_dir: &Path) -> io::Result<bool> {
    let common_dir = match read_bounded(&git_dir.join("commondir"), MAX_SETTINGS_BYTES)? {
        Some(text) => git_dir.join(String::from_utf8_lossy(&text).trim()),
        None => git_dir.to_owned(),
    };
    for file in [git_dir, &common_dir]
        .into_iter()
        .flat_map(|dir| ["config", "config.worktree"].map(|name| dir.join(name)))
    {
        let text =
            read_bounded(&file, MAX_SETTINGS_BYTES)?.unwrap_or_default().to_ascii_lowercase();
        // `[include]` and `[includeIf "…"]`: nothing may precede the name.
        if text.windows(b"[include".len()).any(|part| part == b"[include") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the directory that a work tree's `.git` file names.
fn linked_git_dir(pointer: &Path) -> Option<PathBuf> {
    let text = String::from_utf8(read_bounded(pointer, MAX_SETTINGS_BYTES).ok()??).ok()?;
    pointer.parent()?.join(text.strip_prefix("gitdir:")?.trim()).canonicalize().ok()
}

/// Returns settings that turn off hooks and the file watcher. These are programs, and those of a
/// repository are mostly scripts that run what is in the work tree, where the sandbox can write.
/// Outside they must not run.
fn quiet_settings() -> impl Iterator<Item = (String, String)> {
    let config = [
        ("core.hooksPath", "/dev/null"),
        ("core.fsmonitor", "false"),
        // A submodule's directory is in the work tree too.
        ("fetch.recurseSubmodules", "false"),
        ("push.recurseSubmodules", "no"),
        ("submodule.recurse", "false"),
    ];
    let count = ("GIT_CONFIG_COUNT".to_owned(), config.len().to_string());
    let pairs = config.into_iter().enumerate().flat_map(|(index, (key, value))| {
        [
            (format!("GIT_CONFIG_KEY_{index}"), key.to_owned()),
            (format!("GIT_CONFIG_VALUE_{index}"), value.to_owned()),
        ]
    });
    [count].into_iter().chain(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_is_about_another_repository_is_known() {
        for command in ["init", "init-db", "clone", "submodule", "-C", "--git-dir=x", "-c"] {
            assert!(check_command(command).is_err(), "{command}");
        }
        for command in ["", "push", "commit", "worktree", "status"] {
            assert!(check_command(command).is_ok(), "{command}");
        }
    }

    #[test]
    fn a_pipe_a_link_and_a_long_file_are_not_read() {
        let base = std::env::temp_dir().join(format!("ringfence-bounded-{}", std::process::id()));
        std::fs::create_dir_all(&base).unwrap();
        let (pipe, link, long, short) =
            (base.join("pipe"), base.join("link"), base.join("long"), base.join("short"));
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
        std::fs::write(&short, "x").unwrap();
        std::os::unix::fs::symlink(&short, &link).unwrap();
        std::fs::File::create(&long).unwrap().set_len(1 << 40).unwrap();
        for path in [&pipe, &link, &long, &base] {
            assert!(read_bounded(path, 10).is_err(), "{}", path.display());
        }
        assert_eq!(read_bounded(&short, 1).unwrap(), Some(b"x".to_vec()));
        assert!(read_bounded(&short, 0).is_err());
        assert_eq!(read_bounded(&base.join("absent"), 10).unwrap(), None);
        // Settings that cannot be read may include others.
        assert!(!may_include_files(&base));
        std::fs::rename(&pipe, base.join("config.worktree")).unwrap();
        assert!(may_include_files(&base));
        std::fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn only_a_repository_that_is_closed_to_the_run_is_used() {
        let base = std::env::temp_dir().join(format!("ringfence-git-{}", std::process::id()));
        let (ws, sub, plain) = (base.join("ws"), base.join("ws/sub"), base.join("ws/plain"));
        for dir in [ws.join(".git"), sub.join(".git"), plain.clone()] {
            std::fs::create_dir_all(dir).unwrap();
        }
        let rights = Rights { workspace: ws.clone(), ..Rights::default() };
        let told = repository_env(&rights, &plain, "push").unwrap();
        assert!(
            told.contains(&("GIT_DIR".to_owned(), ws.join(".git").display().to_string())),
            "{told:?}"
        );
        assert!(repository_env(&rights, &sub, "push").unwrap_err().contains("sub"));
        std::fs::remove_dir(ws.join(".git")).unwrap();
        let told = repository_env(&rights, &ws, "fetch").unwrap();
        assert!(!told.iter().any(|(name, _)| name == "GIT_WORK_TREE"), "{told:?}");
        assert!(
            repository_env(&rights, &plain, "push").unwrap_err().contains("is not in a repository")
        );
        std::fs::remove_dir_all(base).unwrap();
    }
}
