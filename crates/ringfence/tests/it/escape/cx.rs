//! One attack in one mode: its directories, its user, and the processes outside that it is aimed at.

use std::fmt;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Signal, kill_process};

use super::fence::{Fence, as_user, python};
use super::{Live, Run};
use crate::support::place::visible_folder;
use crate::support::process;
use crate::support::server::Scratch;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum User {
    Root,
    /// An ordinary user, when root runs the tests.
    Other,
    /// Whoever runs the tests.
    Own,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    Default,
    Contained,
}

/// Without a profile there is no fence at all.
#[derive(Clone, Copy)]
pub struct Mode {
    pub user: User,
    pub profile: Option<Profile>,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = if self.user == User::Root { "root" } else { "user" };
        let profile = match self.profile {
            Some(Profile::Default) => "default",
            Some(Profile::Contained) => "contained",
            None => "no fence",
        };
        write!(f, "{user}/{profile}")
    }
}

/// The ordinary user's number. It needs no entry anywhere.
pub const ORDINARY: u32 = 1000;

pub struct Cx {
    pub mode: Mode,
    scratch: Arc<Scratch>,
    markers: Mutex<Vec<String>>,
}

impl Cx {
    pub fn new(mode: Mode) -> Self {
        let cx = Cx { mode, scratch: Scratch::within(visible_folder()), markers: Mutex::default() };
        cx.give(cx.scratch.path());
        for part in ["root", "workspace", "home", "tmp", "outside"] {
            cx.folder(&cx.path(part));
        }
        cx
    }

    /// For a server in the same directories.
    pub fn scratch(&self) -> Arc<Scratch> {
        Arc::clone(&self.scratch)
    }

    /// A path in this attack's own directory.
    pub fn path(&self, name: &str) -> String {
        self.scratch.path().join(name).to_str().unwrap().to_owned()
    }

    pub fn workspace(&self, name: &str) -> String {
        self.path(&format!("workspace/{name}"))
    }

    /// A file outside the workspace that the attacker owns.
    pub fn outside(&self, name: &str, text: &str) -> String {
        self.file(&self.path(&format!("outside/{name}")), text)
    }

    pub fn inside(&self, name: &str, text: &str) -> String {
        self.file(&self.workspace(name), text)
    }

    pub fn file(&self, path: &str, text: &str) -> String {
        self.folder(Path::new(path).parent().unwrap().to_str().unwrap());
        std::fs::write(path, text).unwrap();
        self.give(Path::new(path));
        path.to_owned()
    }

    /// A directory, its missing parents too, in the hands of the attacker.
    pub fn folder(&self, path: &str) -> String {
        let missing: Vec<&Path> =
            Path::new(path).ancestors().take_while(|folder| !folder.exists()).collect();
        std::fs::create_dir_all(path).unwrap();
        missing.iter().for_each(|folder| self.give(folder));
        self.give(Path::new(path));
        path.to_owned()
    }

    fn give(&self, path: &Path) {
        if self.mode.user == User::Other && path.starts_with(self.scratch.path()) {
            chown(path, Some(ORDINARY), Some(ORDINARY)).unwrap();
        }
    }

    /// Words that stand nowhere else.
    pub fn secret(&self) -> String {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        format!("secret-{}-{}-end", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
    }

    pub fn fence(&self) -> Fence<'_> {
        Fence::new(self)
    }

    pub fn python(&self, script: &str, args: &[&str]) -> Run {
        self.fence().python(script, args)
    }

    pub fn bash(&self, script: &str, args: &[&str]) -> Run {
        self.fence().bash(script, args)
    }

    /// A program of the same user outside any fence.
    pub fn bystander(&self, script: &str, args: &[&str]) -> Live {
        let mut command = as_user(self);
        command.arg(python()).args(["-I", "-S", "-c"]).arg(super::fence::probe(script)).args(args);
        Live::start(command, self.mode.to_string())
    }

    /// A process of the same user outside, for the attack to aim at.
    pub fn victim(&self) -> Victim {
        let marker = self.marker();
        let mut command = as_user(self);
        command.args(["sleep", &marker]).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().unwrap();
        // It is the victim only once the wrapper that changes the user has become `sleep`.
        crate::support::eventually(crate::support::DEADLINE, "the victim sleeps", || {
            std::fs::read(format!("/proc/{}/cmdline", child.id()))
                .is_ok_and(|line| line.starts_with(b"sleep"))
        });
        Victim { child, marker }
    }

    /// A word to find processes by. Those that still carry it at the end are ended.
    pub fn marker(&self) -> String {
        let marker = process::marker();
        self.markers.lock().unwrap().push(marker.clone());
        marker
    }

    /// A program for the attack, in the workspace.
    pub fn compile(&self, name: &str, source: &str) -> String {
        let (from, to) = (self.inside(&format!("{name}.c"), source), self.workspace(name));
        let output = Command::new("cc").args(["-O1", "-w", "-o", &to, &from]).output();
        let output = output.expect("a C compiler (`cc`) is needed for this attack");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        to
    }

    pub fn is_default(&self) -> bool {
        self.mode.profile != Some(Profile::Contained)
    }

    pub fn is_fenced(&self) -> bool {
        self.mode.profile.is_some()
    }
}

impl Drop for Cx {
    fn drop(&mut self) {
        for pid in
            self.markers.lock().unwrap().iter().flat_map(|marker| process::with_argument(marker))
        {
            let _ = kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL);
        }
    }
}

pub struct Victim {
    child: Child,
    pub marker: String,
}

impl Victim {
    pub fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// An error, as `lives` gives it, as soon as it is dead; it is waited for.
    pub fn dies(&mut self) -> super::Effect {
        let until = std::time::Instant::now() + crate::support::DEADLINE;
        while self.lives().is_ok() && std::time::Instant::now() < until {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        self.lives()
    }

    pub fn lives(&mut self) -> super::Effect {
        super::held(self.child.try_wait().unwrap().is_none(), "the process outside is dead")
    }

    /// A line of `/proc/PID/NAME` that tells how the process is treated.
    pub fn fact(&self, name: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{name}", self.child.id())).unwrap()
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
