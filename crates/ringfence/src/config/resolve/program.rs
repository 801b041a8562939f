//! Checks whether a command's program can be started on this host.

use std::path::{Path, PathBuf};

use jail::shebang;
use rustix::fs::Access;

use crate::config::{CommandTool, Config, ProfileSetting, SideEffect};

/// Host directories that no sandboxed run sees: each session has its own instead.
pub const REPLACED_DIRECTORIES: &[&str] = &["/tmp", "/var/tmp", "/run"];

/// Reason why a program cannot be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProgramError {
    Missing,
    NotExecutable,
    /// It is a script, and this interpreter does not exist.
    NoInterpreter(String),
    /// It is in this directory, which the sandbox replaces.
    Replaced(&'static str),
}

impl ProgramError {
    /// Completes "the program …".
    pub fn describe(&self) -> String {
        match self {
            ProgramError::Missing => "was not found".to_owned(),
            ProgramError::NotExecutable => "is not an executable file".to_owned(),
            ProgramError::NoInterpreter(name) => {
                format!("is a script for `{}`, which was not found", name.escape_debug())
            }
            ProgramError::Replaced(directory) => {
                format!("is in {directory}, but the sandbox has a {directory} of its own")
            }
        }
    }
}

/// How a command's program is looked up and run.
pub struct ProgramSearch {
    /// It runs in a sandbox, where only the paths listed below are the host's inside replaced
    /// directories.
    pub is_sandboxed: bool,
    pub host_paths: Vec<PathBuf>,
}

impl Config {
    /// Returns how the program of this command is looked up.
    pub fn program_search(&self, entry: &CommandTool) -> ProgramSearch {
        let profile = entry.access.effective_profile(self.default_sandbox.profile);
        let writable = self
            .default_sandbox
            .writable
            .iter()
            .filter(|_| entry.access.has_effect(SideEffect::FilesystemWrite));
        let host_paths = self.workspace.iter().chain(writable).chain([&self.root]);
        ProgramSearch {
            is_sandboxed: profile == ProfileSetting::Default,
            host_paths: host_paths.cloned().collect(),
        }
    }
}

impl ProgramSearch {
    /// Returns why this command cannot be started, as far as can be found out without running it.
    /// `search_dirs` are the absolute directories of its PATH.
    pub fn find_error(&self, command: &str, search_dirs: &[PathBuf]) -> Option<ProgramError> {
        let path = match command.contains('/') {
            true => PathBuf::from(command),
            false => match find_on_path(command, search_dirs) {
                Some(path) => path,
                None => return Some(ProgramError::Missing),
            },
        };
        if !is_executable(&path) {
            return Some(if path.exists() {
                ProgramError::NotExecutable
            } else {
                ProgramError::Missing
            });
        }
        self.replaced_directory(&path)
            .map(ProgramError::Replaced)
            .or_else(|| interpreter_error(&path, search_dirs))
    }

    fn replaced_directory(&self, path: &Path) -> Option<&'static str> {
        let is_shared = self.host_paths.iter().any(|host_path| path.starts_with(host_path));
        let directory = REPLACED_DIRECTORIES.iter().find(|directory| path.starts_with(directory));
        directory.copied().filter(|_| self.is_sandboxed && !is_shared)
    }
}

fn interpreter_error(path: &Path, search_dirs: &[PathBuf]) -> Option<ProgramError> {
    let shebang_words = shebang::read_shebang(path)?;
    let (interpreter, rest) = shebang_words.split_first()?;
    if !is_executable(Path::new(interpreter)) {
        return Some(ProgramError::NoInterpreter(interpreter.clone()));
    }
    // `env` looks up the next word that is neither an option nor a variable.
    let is_env = Path::new(interpreter).file_name().is_some_and(|name| name == "env");
    let program = rest.iter().flat_map(|rest| rest.split_whitespace());
    let program =
        program.filter(|word| !word.starts_with('-') && !word.contains('=')).find(|_| is_env)?;
    let exists = program.contains('/') || find_on_path(program, search_dirs).is_some();
    (!exists).then(|| ProgramError::NoInterpreter(program.to_owned()))
}

fn find_on_path(name: &str, search_dirs: &[PathBuf]) -> Option<PathBuf> {
    search_dirs.iter().map(|folder| folder.join(name)).find(|file| is_executable(file))
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::config::scratch::Scratch;

    #[test]
    fn what_keeps_a_program_from_starting_is_named() {
        let scratch = Scratch::new();
        let script = |name: &str, text: &str, mode: u32| {
            let path = scratch.file(name, text);
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            path.display().to_string()
        };
        let folders = [PathBuf::from("/usr/bin"), PathBuf::from("/bin")];
        let shared = scratch.file("anything", "").parent().unwrap().to_owned();
        let search = ProgramSearch { is_sandboxed: true, host_paths: vec![shared] };
        let find_error = |command: &str| search.find_error(command, &folders);
        assert_eq!(find_error("sh"), None);
        assert_eq!(find_error("no-such-program"), Some(ProgramError::Missing));
        assert_eq!(find_error("/nowhere/tool"), Some(ProgramError::Missing));
        assert_eq!(find_error("/usr"), Some(ProgramError::NotExecutable));
        assert_eq!(
            find_error(&script("plain", "#!/bin/sh\n", 0o644)),
            Some(ProgramError::NotExecutable)
        );
        assert_eq!(find_error(&script("good", "#!/bin/sh\n", 0o755)), None);
        assert_eq!(find_error(&script("env", "#!/usr/bin/env -S A=1 sh -e\n", 0o755)), None);
        let missing = |name: &str| Some(ProgramError::NoInterpreter(name.to_owned()));
        assert_eq!(find_error(&script("old", "#!/opt/python9\n", 0o755)), missing("/opt/python9"));
        assert_eq!(find_error(&script("dos", "#!/bin/sh\r\n", 0o755)), missing("/bin/sh\r"));
        assert_eq!(
            find_error(&script("lost", "#!/usr/bin/env python9\n", 0o755)),
            missing("python9")
        );
    }

    #[test]
    fn a_program_in_a_directory_that_the_sandbox_replaces_is_named() {
        let file = std::env::temp_dir().join(crate::base::ids::short_id("program"));
        std::fs::write(&file, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut search = ProgramSearch { is_sandboxed: true, host_paths: Vec::new() };
        let command = file.display().to_string();
        let expected =
            REPLACED_DIRECTORIES.iter().find(|directory| file.starts_with(directory)).copied();
        assert_eq!(search.find_error(&command, &[]), expected.map(ProgramError::Replaced));
        search.is_sandboxed = false;
        assert_eq!(search.find_error(&command, &[]), None);
        std::fs::remove_file(&file).unwrap();
    }
}
