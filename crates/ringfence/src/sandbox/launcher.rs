//! Starts this binary again, as a supervisor or as a zygote.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use jail::supervisor;
use tokio::process::{Child, Command};

use super::start_error::cannot_start;
use super::zygote;
use crate::base::Result;

/// Starts this binary again, with an argument that selects its role.
#[derive(Debug, Clone)]
pub struct Launcher {
    program: PathBuf,
}

impl Launcher {
    /// Starts our own binary, which stays the running version even if its file is replaced.
    pub fn from_current_exe() -> Self {
        Launcher::new("/proc/self/exe")
    }

    /// Starts this program instead of our own binary.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Launcher { program: program.into() }
    }

    pub(super) fn program_path(&self) -> &Path {
        &self.program
    }

    /// Builds the command with an empty environment: ours holds what neither a run nor its helpers
    /// need to know.
    pub(super) fn build_command(&self, argument: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(argument).env_clear();
        command
    }

    /// Starts a supervisor as our own child. Returns the socket on which it waits for its spec.
    pub(super) fn start_supervisor(&self) -> Result<(UnixStream, Child)> {
        let (server_end, supervisor_end) = zygote::control_pair()?;
        let child = self
            .build_command(supervisor::ARGUMENT)
            .stdin(Stdio::from(OwnedFd::from(supervisor_end)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| cannot_start("the supervisor", &error))?;
        Ok((server_end, child))
    }
}
