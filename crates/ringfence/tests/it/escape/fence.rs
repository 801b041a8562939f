//! `ringfence sandbox` around an attack.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use super::cx::ORDINARY;
use super::{Cx, Live, Profile, Run, User};
use crate::support::place::visible_binary;

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const PRELUDE: &str = include_str!("probes/prelude.py");
const TERMINAL: &str = include_str!("probes/terminal.py");

pub struct Fence<'a> {
    cx: &'a Cx,
    /// What the shell that starts the fence does first.
    before: String,
    /// What is on the terminal that the fence is started from, if there is one.
    terminal: Option<&'static str>,
    workspace: Option<String>,
    args: Vec<String>,
    env: Vec<(String, String)>,
    cwd: String,
    dies: bool,
}

impl<'a> Fence<'a> {
    pub fn new(cx: &'a Cx) -> Self {
        let workspace = cx.path("workspace");
        Fence {
            cx,
            before: String::new(),
            terminal: None,
            workspace: Some(workspace.clone()),
            args: vec![],
            env: vec![],
            cwd: workspace,
            dies: false,
        }
    }

    pub fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|arg| (*arg).to_owned()));
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn cwd(mut self, folder: &str) -> Self {
        folder.clone_into(&mut self.cwd);
        self
    }

    /// Another workspace, or the one that is found without being told.
    pub fn workspace(mut self, folder: Option<&str>) -> Self {
        self.workspace = folder.map(str::to_owned);
        self
    }

    /// Shell commands that run outside, in the process that then becomes the fence: descriptors are opened here.
    pub fn before(mut self, script: &str) -> Self {
        script.clone_into(&mut self.before);
        self
    }

    /// Starts it from a terminal, with nothing on standard input.
    pub fn beside_a_terminal(mut self) -> Self {
        self.terminal = Some("beside");
        self
    }

    /// Starts it from a terminal that is its standard input.
    pub fn on_a_terminal(mut self) -> Self {
        self.terminal = Some("typed");
        self
    }

    /// The attack need not live to its end.
    pub fn dies(mut self) -> Self {
        self.dies = true;
        self
    }

    pub fn python(self, script: &str, args: &[&str]) -> Run {
        self.start_python(script, args).end()
    }

    pub fn bash(self, script: &str, args: &[&str]) -> Run {
        let script = format!("echo begun\n{script}\nprintf '\\nended\\n'\n");
        self.start(&[&["bash", "-c", &script, "bash"], args].concat()).end()
    }

    pub fn start_python(self, script: &str, args: &[&str]) -> Live {
        let script = probe(script);
        self.start(&[&[python(), "-I", "-S", "-c", &script], args].concat())
    }

    pub fn start(self, attack: &[&str]) -> Live {
        let mut command = as_user(self.cx);
        if let Some(kind) = self.terminal {
            command.args([python(), "-I", "-S", "-c", TERMINAL, kind]);
        }
        command.args(["bash", "-c", &format!("{}\nexec \"$@\"", self.before), "bash"]);
        self.put_up(&mut command);
        command
            .args(attack)
            .current_dir(&self.cwd)
            .envs(self.env.iter().map(|(name, value)| (name, value)));
        let live = Live::start(command, self.cx.mode.to_string());
        if self.dies { live.may_die() } else { live }
    }

    fn put_up(&self, command: &mut Command) {
        let profile = match self.cx.mode.profile {
            Some(Profile::Default) => "default",
            Some(Profile::Contained) => "contained",
            None => return,
        };
        command.arg(visible_binary()).args([
            "sandbox",
            "--root",
            &self.cx.path("root"),
            "--profile",
            profile,
        ]);
        // Another way to the same namespaces has to hold all the same.
        if let (Ok(tier), "default") = (std::env::var("RINGFENCE_TIER"), profile) {
            command.args(["--tier", &tier]);
        }
        if let Some(workspace) = &self.workspace {
            command.args(["--workspace", workspace]);
        }
        command.args(&self.args).arg("--");
    }
}

/// A command in the workspace as the user whose attack this is, with little in its environment.
pub fn as_user(cx: &Cx) -> Command {
    let mut command = Command::new("env");
    if cx.mode.user == User::Other {
        let id = ORDINARY.to_string();
        command = Command::new("setpriv");
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups"]);
    }
    command
        .env_clear()
        .env("PATH", PATH)
        .env("HOME", cx.path("home"))
        .env("TMPDIR", cx.path("tmp"));
    command.current_dir(cx.path("workspace"));
    command
}

/// A probe says that it has begun and that it has ended, so that one that never ran is not taken for one that failed.
pub fn probe(script: &str) -> String {
    format!("{PRELUDE}\n{script}\nsay('ended')\n")
}

/// The system's own Python: one in a home directory is out of reach for others.
pub fn python() -> &'static str {
    static FOUND: OnceLock<String> = OnceLock::new();
    FOUND.get_or_init(|| {
        let found = PATH
            .split(':')
            .map(|folder| format!("{folder}/python3"))
            .find(|file| Path::new(file).exists());
        found.expect("python3 is needed for the attacks, in one of the system's directories")
    })
}
