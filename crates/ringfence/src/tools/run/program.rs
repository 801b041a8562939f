//! Finds the program of an entry. Never accepts one that an agent could have put there, because
//! PATH often includes project directories.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::base::workspace::Workspace;
use crate::base::{Error, Kind, Result};
use crate::config::{ProgramError, ProgramSearch};
use crate::sandbox::env;
use crate::tools::code::exec::runtimes::{find_on_path, search_path};

/// Program as an entry names it.
pub struct ProgramEntry<'a> {
    /// Name or path.
    pub command: &'a str,
    /// PATH, if the entry sets it.
    pub path: Option<&'a str>,
    /// The program gets secrets or runs without a sandbox.
    pub is_privileged: bool,
}

/// Returns the absolute path of the program.
pub fn find_program(entry: &ProgramEntry<'_>, workspace: &Workspace) -> Result<PathBuf> {
    let command_path = Path::new(entry.command);
    if command_path.is_absolute() {
        // The operator named this path, so it may be in the workspace; but then it must not get
        // secrets or run without a sandbox.
        return match entry.is_privileged && is_agent_writable(command_path, workspace) {
            false => Ok(command_path.to_owned()),
            true => Err(Error::permission_denied("command_in_workspace", "the command of this tool is in a place where an agent can change it")
                .with_hint("Have the operator move it out of the workspace, or remove `sandbox_profile = \"none\"` and the secrets.")),
        };
    }
    let path = match entry.path {
        Some(path) => path.to_owned(),
        None => get_variable(&base_env(workspace)?, "PATH"),
    };
    find_on_path(entry.command, &path, |file| !is_agent_writable(file, workspace)).ok_or_else(
        || {
            Error::new(Kind::Internal, "the program is not on PATH")
                .with_reason("spawn_failed")
                .with_source(format!(
                    "{}: not found in the directories of PATH that no agent can write to",
                    entry.command
                ))
        },
    )
}

/// Returns why the entry's program cannot be started on this host, as far as can be told without
/// starting it.
pub fn diagnose_program(entry: &ProgramEntry<'_>, search: &ProgramSearch) -> Option<ProgramError> {
    let path = entry.path.unwrap_or_else(|| search_path());
    let directories: Vec<PathBuf> =
        std::env::split_paths(path).filter(|directory| directory.is_absolute()).collect();
    search.find_error(entry.command, &directories)
}

/// Returns the program's name, which a caller may know; its location is not disclosed.
pub fn program_name(command: &str) -> String {
    let file = Path::new(command).file_name();
    file.map_or_else(|| command.to_owned(), |name| name.to_string_lossy().into_owned())
}

/// Returns the environment that every entry starts from. Its PATH contains only directories that no
/// agent can write to.
pub fn base_env(workspace: &Workspace) -> Result<Vec<(String, String)>> {
    let mut env = env::build(&[])?;
    for (_, path) in env.iter_mut().filter(|(name, _)| name == "PATH") {
        let safe_dirs: Vec<PathBuf> = std::env::split_paths(path.as_str())
            .filter(|directory| directory.is_absolute() && !is_agent_writable(directory, workspace))
            .collect();
        *path = std::env::join_paths(safe_dirs)
            .unwrap_or_else(|_| OsString::from(env::DEFAULT_PATH))
            .to_string_lossy()
            .into_owned();
    }
    Ok(env)
}

fn get_variable(env: &[(String, String)], name: &str) -> String {
    env.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone()).unwrap_or_default()
}

/// Returns whether any run in this workspace could have changed this path, as written or as
/// resolved.
fn is_agent_writable(path: &Path, workspace: &Workspace) -> bool {
    let rights = workspace.rights();
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let writable_dirs = || {
        [&rights.workspace]
            .into_iter()
            .chain(&rights.home)
            .chain(&rights.writable)
            .map(PathBuf::as_path)
    };
    writable_dirs()
        .chain([workspace.path()])
        .any(|dir| path.starts_with(dir) || real.starts_with(dir))
}
