//! Where a piece of work is done: a home, a root and a workspace that belong to the user who does it.

use std::fmt;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use super::Work;
use super::run::{Run, run};
use crate::support::place::{visible_binary, visible_folder};
use crate::support::server::Scratch;

/// The user and group that stand for anybody without privilege. They need no line in /etc/passwd.
const NOBODY_SPECIAL: u32 = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    Root,
    /// Another user when root runs the tests, otherwise whoever does.
    User,
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

impl Who {
    /// The user to change to, where that is needed.
    fn change(self) -> Option<u32> {
        (self == Who::User && is_root()).then_some(NOBODY_SPECIAL)
    }
}

pub struct Place {
    scratch: Arc<Scratch>,
    who: Who,
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.scratch.path().display(), self.who)
    }
}

/// Makes the place and prepares the work in it. None where this user cannot do this work; the output says why.
pub fn prepare(work: &Work, who: Who) -> Option<Place> {
    if who == Who::Root && !is_root() {
        println!("NOT RUN: only root can see what root sees");
        return None;
    }
    let place = Place { scratch: Scratch::within(&folder(work)), who };
    place.make(work);
    for program in &work.needs {
        let there = place
            .command("sh", &place.path("place"))
            .args(["-c", "command -v \"$0\"", program])
            .output();
        let there = there.unwrap().status.success();
        if !there && work.own_toolchain && who.change().is_some() {
            println!("NOT RUN: {program} lies where another user cannot read it");
            return None;
        }
        assert!(
            there,
            "{program} is missing: conformance/packages.sh installs what the tests need"
        );
    }
    place.run_preparation(work);
    Some(place)
}

/// Not in `/tmp`, where nobody's home is: the fence has a `/tmp` of its own, and what is special about that is not
/// what these tests are about.
fn folder(work: &Work) -> PathBuf {
    if work.in_tmp { std::env::temp_dir() } else { visible_folder().to_owned() }
}

impl Place {
    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    fn workspace(&self, work: &Work) -> PathBuf {
        self.path("place").join(work.workspace)
    }

    fn make(&self, work: &Work) {
        let first = self.path("place/ws");
        std::fs::create_dir_all(&first).unwrap();
        for (name, text) in &work.files {
            std::fs::write(first.join(name), text).unwrap();
        }
        let identity = "[user]\n\tname = A Worker\n\temail = worker@example.org\n";
        std::fs::write(self.path("home/.gitconfig"), identity).unwrap();
        let Some(id) = self.who.change() else { return };
        let ours = ["root", "home", "home/.gitconfig", "tmp", "place", "place/ws"]
            .map(|name| self.path(name));
        for path in ours.into_iter().chain(work.files.iter().map(|(name, _)| first.join(name))) {
            chown(path, Some(id), Some(id)).unwrap();
        }
    }

    fn run_preparation(&self, work: &Work) {
        let mut command = self.command("bash", &self.path("place/ws"));
        let output = command.args(["-euo", "pipefail", "-c", &work.prepare]).output().unwrap();
        assert!(
            output.status.success(),
            "the preparation failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        self.copy("place", "prepared");
    }

    /// With everything as it is: owners, times, links.
    fn copy(&self, from: &str, to: &str) {
        let status = Command::new("cp").arg("-a").arg(self.path(from)).arg(self.path(to)).status();
        assert!(status.unwrap().success(), "cp -a {from} {to}");
    }

    /// A program in the surroundings that the fence gives as well, so that only the fence makes a difference.
    fn command(&self, program: impl AsRef<Path>, folder: &Path) -> Command {
        let mut command = Command::new(program.as_ref());
        let user = if self.who == Who::Root { "root" } else { "worker" };
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.path("home"))
            .envs([
                ("USER", user),
                ("LOGNAME", user),
                ("SHELL", "/bin/bash"),
                ("TERM", "xterm-256color"),
            ])
            .envs([("LANG", "C.UTF-8"), ("LC_NUMERIC", "C.UTF-8"), ("TZ", "Asia/Kolkata")])
            .current_dir(folder);
        if let Some(toolchains) = toolchains() {
            command.env("RUSTUP_HOME", toolchains);
        }
        if let Some(id) = self.who.change() {
            // The standard library drops the supplementary groups along with them.
            command.uid(id).gid(id);
        }
        command
    }

    pub fn bare(&self, work: &Work) -> Run {
        let mut command = self.command(&work.command[0], &self.workspace(work));
        command.args(&work.command[1..]);
        let ended = run(command, &work.stdin);
        let ended = ended.left(&self.workspace(work), &work.untidy);
        std::fs::remove_dir_all(self.path("place")).unwrap();
        self.copy("prepared", "place");
        ended
    }

    pub fn fenced(&self, work: &Work) -> Run {
        let workspace = self.workspace(work);
        let mut command = self.command(visible_binary(), &workspace);
        command
            .arg("sandbox")
            .arg("--root")
            .arg(self.path("root"))
            .arg("--workspace")
            .arg(&workspace);
        command.arg("--").args(&work.command);
        run(command, &work.stdin).left(&workspace, &work.untidy)
    }
}

/// Where rustup keeps its toolchains; by default that is in the home of whoever runs the tests.
fn toolchains() -> Option<PathBuf> {
    let named = std::env::var_os("RUSTUP_HOME").map(PathBuf::from);
    let folder =
        named.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".rustup")))?;
    folder.exists().then_some(folder)
}
