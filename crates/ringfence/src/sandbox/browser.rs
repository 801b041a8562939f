//! A browser in the fence.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::net::UnixStream;
use tokio::process::{Child, Command};

use super::launch::Launcher;
use crate::base::ids::short;
use crate::base::{Error, Result};
use crate::config::Config;
use crate::session::Session;

pub struct BrowserRun {
    pub line: Option<UnixStream>,
    pub dir: PathBuf,
    _child: Child,
}

impl BrowserRun {
    pub fn proxy_for(&self, _session: &Session) -> Option<String> {
        None
    }
}

impl Drop for BrowserRun {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

pub async fn start(config: &Config, _launcher: &Launcher, program: &Path, args: &[String]) -> Result<BrowserRun> {
    let failed = |error: std::io::Error| Error::internal("the browser could not be started").source(error);
    let dir = config.root.join("browsers").join(short("b"));
    std::fs::create_dir_all(&dir).map_err(failed)?;
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(failed)?;
    ours.set_nonblocking(true).map_err(failed)?;
    let child = Command::new("/bin/sh")
        .args(["-c", "exec \"$@\" 3<&0 4>&1 0</dev/null 1>/dev/null", "sh"])
        .arg(program)
        .args(args)
        .arg(format!("--user-data-dir={}", dir.display()))
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs.try_clone().map_err(failed)?)))
        .stdout(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    Ok(BrowserRun { line: Some(UnixStream::from_std(ours).map_err(failed)?), dir, _child: child })
}
