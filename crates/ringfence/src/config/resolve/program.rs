//! Checks whether a command's program can be started on this host.

use std::path::{Path, PathBuf};

use jail::shebang;
use rustix::fs::Access;

use crate::config::{Config, Entry, Profile};

/// Host directories that no sandboxed run sees: each session has its own instead.
pub const REPLACED_DIRECTORIES: &[&str] = &["/tmp", "/var/tmp", "/run"];

/// Reason why a program cannot be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProgramFault {
    Missing,
    NotExecutable,
    /// It is a script, and this interpreter does not exist.
    NoInterpreter(String),
    /// It is in this directory, which the sandbox replaces.
    Replaced(&'static str),
}

impl ProgramFault {
    /// Completes "the program …".
    pub fn describe(&self) -> String {
        match self {
            ProgramFault::Missing => "was not found".to_owned(),
            ProgramFault::NotExecutable => "is not an executable file".to_owned(),
            ProgramFault::NoInterpreter(name) => {
                format!("is a script for `{}`, which was not found", name.escape_debug())
            }
            ProgramFault::Replaced(directory) => {
                format!("is in {directory}, but the sandbox has a {directory} of its own")
            }
        }
    }
}

/// How a command's program is looked up and run.
pub struct ProgramSearch<'a> {
    /// The absolute directories of PATH.
    pub folders: &'a [PathBuf],
    /// It runs in a sandbox, where only the paths listed below are the host's inside replaced
    /// directories.
    pub sandboxed: bool,
    pub shared: Vec<&'a Path>,
}

impl Config {
    /// Returns how the program of this command is looked up in these directories.
    pub fn program_search<'a>(
        &'a self,
        entry: &Entry,
        folders: &'a [PathBuf],
    ) -> ProgramSearch<'a> {
        let shared = self.workspace.iter().chain(&self.sandbox.writable).chain([&self.root]);
        ProgramSearch {
            folders,
            sandboxed: entry.profile_beside(self.sandbox.profile) == Profile::Default,
            shared: shared.map(PathBuf::as_path).collect(),
        }
    }
}

impl ProgramSearch<'_> {
    /// Returns why this command cannot be started, as far as can be found out without running it.
    pub fn fault(&self, command: &str) -> Option<ProgramFault> {
        let path = match command.contains('/') {
            true => PathBuf::from(command),
            false => match self.on_path(command) {
                Some(path) => path,
                None => return Some(ProgramFault::Missing),
            },
        };
        if !is_program(&path) {
            return Some(if path.exists() {
                ProgramFault::NotExecutable
            } else {
                ProgramFault::Missing
            });
        }
        self.replaced(&path).map(ProgramFault::Replaced).or_else(|| self.interpreter_fault(&path))
    }

    fn on_path(&self, name: &str) -> Option<PathBuf> {
        self.folders.iter().map(|folder| folder.join(name)).find(|file| is_program(file))
    }

    fn replaced(&self, path: &Path) -> Option<&'static str> {
        let is_shared = self.shared.iter().any(|place| path.starts_with(place));
        let directory = REPLACED_DIRECTORIES.iter().find(|directory| path.starts_with(directory));
        directory.copied().filter(|_| self.sandboxed && !is_shared)
    }

    fn interpreter_fault(&self, path: &Path) -> Option<ProgramFault> {
        let line = shebang::read_shebang(path)?;
        let (interpreter, rest) = line.split_first()?;
        if !is_program(Path::new(interpreter)) {
            return Some(ProgramFault::NoInterpreter(interpreter.clone()));
        }
        // `env` looks up the next word that is neither an option nor a variable.
        let is_env = Path::new(interpreter).file_name().is_some_and(|name| name == "env");
        let named = rest.iter().flat_map(|rest| rest.split_whitespace());
        let named =
            named.filter(|word| !word.starts_with('-') && !word.contains('=')).find(|_| is_env)?;
        let is_there = named.contains('/') || self.on_path(named).is_some();
        (!is_there).then(|| ProgramFault::NoInterpreter(named.to_owned()))
    }
}

fn is_program(path: &Path) -> bool {
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
        let search = ProgramSearch { folders: &folders, sandboxed: true, shared: vec![&shared] };
        assert_eq!(search.fault("sh"), None);
        assert_eq!(search.fault("no-such-program"), Some(ProgramFault::Missing));
        assert_eq!(search.fault("/nowhere/tool"), Some(ProgramFault::Missing));
        assert_eq!(search.fault("/usr"), Some(ProgramFault::NotExecutable));
        assert_eq!(
            search.fault(&script("plain", "#!/bin/sh\n", 0o644)),
            Some(ProgramFault::NotExecutable)
        );
        assert_eq!(search.fault(&script("good", "#!/bin/sh\n", 0o755)), None);
        assert_eq!(search.fault(&script("env", "#!/usr/bin/env -S A=1 sh -e\n", 0o755)), None);
        let missing = |name: &str| Some(ProgramFault::NoInterpreter(name.to_owned()));
        assert_eq!(
            search.fault(&script("old", "#!/opt/python9\n", 0o755)),
            missing("/opt/python9")
        );
        assert_eq!(search.fault(&script("dos", "#!/bin/sh\r\n", 0o755)), missing("/bin/sh\r"));
        assert_eq!(
            search.fault(&script("lost", "#!/usr/bin/env python9\n", 0o755)),
            missing("python9")
        );
    }

    #[test]
    fn a_program_in_a_directory_that_the_sandbox_replaces_is_named() {
        let file = std::env::temp_dir().join(crate::base::ids::short("program"));
        std::fs::write(&file, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut search = ProgramSearch { folders: &[], sandboxed: true, shared: Vec::new() };
        let command = file.display().to_string();
        let expected =
            REPLACED_DIRECTORIES.iter().find(|directory| file.starts_with(directory)).copied();
        assert_eq!(search.fault(&command), expected.map(ProgramFault::Replaced));
        search.sandboxed = false;
        assert_eq!(search.fault(&command), None);
        std::fs::remove_file(&file).unwrap();
    }
}
