//! Which program an entry means. Never one that an agent could have put there: a PATH often leads into a project.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::base::workspace::Workspace;
use crate::base::{Error, Kind, Result};
use crate::config::{Config, Entry, Profile, ProgramFault};
use crate::sandbox::env;
use crate::tools::code::code_exec::runtimes::{on_path, search_path};

/// The program, by its absolute path.
pub fn find(entry: &Entry, workspace: &Workspace) -> Result<PathBuf> {
    let named = Path::new(&entry.command);
    if named.is_absolute() {
        // The operator has named it, so it may be; but not with anything in its hands that is not the agent's.
        let is_trusted = entry.profile == Profile::None || entry.refs().next().is_some();
        return match is_trusted && is_writable(named, workspace) {
            false => Ok(named.to_owned()),
            true => Err(Error::permission_denied("command_in_workspace", "the command of this tool lies where an agent can change it")
                .hint("Have the operator move it out of the workspace, or take `sandbox_profile = \"none\"` and the secrets away.")),
        };
    }
    let path = match own_path(entry) {
        Some(path) => path,
        None => variable(&baseline(workspace)?, "PATH"),
    };
    on_path(&entry.command, &path, |file| !is_writable(file, workspace)).ok_or_else(|| {
        Error::new(Kind::Internal, "the program is not on PATH").reason("spawn_failed").source(
            format!(
                "{}: not found in the directories of PATH that no agent can write to",
                entry.command
            ),
        )
    })
}

/// Why the entry's program cannot be started on this host, as far as one look tells.
pub fn fault(entry: &Entry, config: &Config) -> Option<ProgramFault> {
    let path = own_path(entry).unwrap_or_else(search_path);
    let folders: Vec<PathBuf> =
        std::env::split_paths(&path).filter(|folder| folder.is_absolute()).collect();
    config.program_search(entry, &folders).fault(&entry.command)
}

/// The program's name, which a caller may know; where it lies is the operator's matter.
pub fn name(entry: &Entry) -> String {
    let file = Path::new(&entry.command).file_name();
    file.map_or_else(|| entry.command.clone(), |name| name.to_string_lossy().into_owned())
}

fn own_path(entry: &Entry) -> Option<String> {
    entry.env.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.text.clone())
}

/// What every entry's environment starts from: programs are looked for where no agent can put any.
pub fn baseline(workspace: &Workspace) -> Result<Vec<(String, String)>> {
    let mut env = env::build(&[])?;
    for (_, path) in env.iter_mut().filter(|(name, _)| name == "PATH") {
        let kept: Vec<PathBuf> = std::env::split_paths(path.as_str())
            .filter(|folder| folder.is_absolute() && !is_writable(folder, workspace))
            .collect();
        *path = std::env::join_paths(kept)
            .unwrap_or_else(|_| OsString::from(env::DEFAULT_PATH))
            .to_string_lossy()
            .into_owned();
    }
    Ok(env)
}

fn variable(env: &[(String, String)], name: &str) -> String {
    env.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone()).unwrap_or_default()
}

/// Whether some run of this workspace could have changed what lies there, by its name or by where that leads.
fn is_writable(path: &Path, workspace: &Workspace) -> bool {
    let rights = workspace.rights();
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let places = || {
        [&rights.workspace]
            .into_iter()
            .chain(&rights.home)
            .chain(&rights.writable)
            .map(PathBuf::as_path)
    };
    places()
        .chain([workspace.path()])
        .any(|place| path.starts_with(place) || real.starts_with(place))
}
