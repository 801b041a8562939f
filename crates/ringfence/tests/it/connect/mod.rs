//! `ringfence connect` and `disconnect` on the real binary, in a home of its own.

mod asked;
mod clients;
mod codex;
mod files;
mod generated;
mod listed;
mod restored;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use serde_json::Value;

use crate::support::server::{Scratch, binary, ringfence};

/// A user's home, an empty project, and a PATH without any client.
pub struct Place {
    scratch: Arc<Scratch>,
}

/// What a command said, and how it ended.
#[derive(Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Place {
    pub fn new() -> Place {
        let scratch = Scratch::new();
        std::fs::create_dir_all(scratch.path().join("bin")).unwrap();
        Place { scratch }
    }

    pub fn home(&self, path: &str) -> PathBuf {
        self.scratch.path().join("home").join(path)
    }

    pub fn project(&self, path: &str) -> PathBuf {
        self.scratch.path().join("workspace").join(path)
    }

    pub fn command(&self, args: &str) -> Command {
        let mut command = ringfence(&self.scratch);
        command.env("PATH", self.scratch.path().join("bin"));
        command.args(args.split_whitespace());
        command
    }

    pub fn run(&self, args: &str) -> Said {
        Said::from(self.command(args).output().unwrap())
    }

    /// Runs a command that must succeed.
    pub fn done(&self, args: &str) -> String {
        let said = self.run(args);
        assert_eq!(said.code, Some(0), "{args}: {said:?}");
        said.stdout
    }

    /// Installs a program that prints this version.
    pub fn install(&self, name: &str, version: &str) {
        use std::os::unix::fs::PermissionsExt;
        let path = self.scratch.path().join("bin").join(name);
        std::fs::write(&path, format!("#!/bin/sh\necho '{version}'\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    pub fn path(&self) -> &Path {
        self.scratch.path()
    }
}

impl From<Output> for Said {
    fn from(output: Output) -> Said {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Said {
            code: output.status.code(),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }
}

pub fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

pub fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub fn read_toml(path: &Path) -> Value {
    let table: toml::Table = toml::from_str(&read(path)).unwrap();
    serde_json::to_value(table).unwrap()
}

pub fn read_json(path: &Path) -> Value {
    serde_json::from_str(&read(path)).unwrap()
}

/// The path that a client has to start.
pub fn executable() -> String {
    binary().canonicalize().unwrap().to_str().unwrap().to_owned()
}

/// Names of the files in a directory, sorted.
pub fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
