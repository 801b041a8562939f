//! Commands that a rule lets out of the sandbox: that they run as if they had been exec'd, that they end with the call,
//! and that nothing leaves with them but what the rule's owner meant.
//!
//! Each test runs as root, whose commands leave as `nobody`, and as an ordinary user; a test that is not run by root
//! runs as whoever runs it. Attacks run without a sandbox too, where they must get through.

mod apart;
mod attacks;
mod ends;
mod git;
mod inside;
mod like_exec;
mod nested;
mod record;
mod table;
mod wider;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::escape::{Cx, Mode, Profile, Run, User, is_root};
use crate::support::place::visible_folder;
use crate::support::server::Scratch;
use crate::support::{Options, Transport};

/// Whom commands of root leave as.
pub const NOBODY: &str = "nobody";
const NOBODY_ID: u32 = 65534;

/// One run with rules, and the directory outside that everybody may write.
pub struct Place<'a> {
    pub cx: &'a Cx,
    pub config: String,
    pub rules: String,
    args: Vec<String>,
    env: Vec<(String, String)>,
}

/// What the operator's own tool says: it runs its arguments, outside when it is let out.
const TOOL: &str = "#!/bin/sh\nexec \"$@\"\n";

impl<'a> Place<'a> {
    /// A place where the operator's `out` is let out, whatever it is told to run: the operator answers for its arguments.
    pub fn new(cx: &'a Cx) -> Self {
        let place = Place {
            cx,
            config: format!("{}{UNASKED}", escalating(is_root() && cx.mode.user == User::Root)),
            rules: String::new(),
            args: vec![],
            env: vec![],
        };
        open_to_all(cx.path("outside"));
        let out = place.tool("out", TOOL);
        place.allow(&format!("[{out:?}]"))
    }

    /// An operator's program, where no run can write.
    pub fn tool(&self, name: &str, text: &str) -> String {
        let path = self.cx.file(&self.cx.path(&format!("tools/{name}")), text);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    pub fn allow(self, pattern: &str) -> Self {
        self.rule(pattern, "allow")
    }

    pub fn rule(mut self, pattern: &str, decision: &str) -> Self {
        self.rules
            .push_str(&format!("prefix_rule(pattern = {pattern}, decision = {decision:?})\n"));
        self
    }

    /// The same with the default of `escalate_risky`: a rule answers for the words that it names.
    pub fn asking(mut self) -> Self {
        self.config = self.config.replace(UNASKED, "");
        self
    }

    /// Adds lines to `[policy]`.
    pub fn policy(mut self, lines: &str) -> Self {
        self.config.push_str(lines);
        self.config.push('\n');
        self
    }

    pub fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|arg| (*arg).to_owned()));
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Runs a script with `$OUT` the operator's tool, `$OUTSIDE` the directory outside, `$TOOLS` that of the tools.
    pub fn bash(&self, script: &str) -> Run {
        self.fence().bash(&format!("{}\n{script}", self.names()), &[])
    }

    pub fn python(&self, script: &str) -> Run {
        let names = format!("OUT = {:?}\nOUTSIDE = {:?}\n", self.out(), self.cx.path("outside"));
        self.fence().python(&format!("{names}{script}"), &[])
    }

    pub fn names(&self) -> String {
        let (out, outside, tools) = (self.out(), self.cx.path("outside"), self.cx.path("tools"));
        format!("OUT={out} OUTSIDE={outside} TOOLS={tools} M={outside}/marker")
    }

    pub fn fence(&self) -> crate::escape::Fence<'_> {
        let config = self.cx.file(&self.cx.path("config.toml"), &self.config);
        let rules = self.cx.file(&self.cx.path("test.rules"), &self.rules);
        let mut fence = self.cx.fence().args(&["--config", &config, "--rules", &rules]);
        for arg in &self.args {
            fence = fence.args(&[arg]);
        }
        for (name, value) in &self.env {
            fence = fence.env(name, value);
        }
        fence
    }

    pub fn out(&self) -> String {
        self.cx.path("tools/out")
    }

    pub fn marker(&self) -> String {
        self.cx.path("outside/marker")
    }
}

/// A line of `[policy]` by which an `allow` covers every argument.
const UNASKED: &str = "escalate_risky = \"outside\"\n";

/// `[policy]` for a server or a sandbox of root, or of anybody else.
pub fn escalating(root: bool) -> String {
    let who = if root { format!("escalate_as = {NOBODY:?}\n") } else { String::new() };
    format!("[policy]\nescalate = \"outside\"\n{who}")
}

pub fn open_to_all(path: impl AsRef<Path>) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
}

/// As root and as an ordinary user, or as whoever runs this.
pub fn as_everybody(test: impl Fn(Place<'_>)) {
    let users: &[User] = if is_root() { &[User::Root, User::Other] } else { &[User::Own] };
    for user in users {
        let cx = Cx::new(Mode { user: *user, profile: Some(Profile::Default) });
        test(Place::new(&cx));
    }
}

/// What a run said, without the words of the harness.
pub fn said(run: &Run) -> String {
    let own = |line: &&str| !["begun", "ended", ""].contains(line);
    run.stdout.lines().filter(own).map(|line| format!("{line}\n")).collect()
}

/// A server whose rules let things out, with the operator's `out` among them.
pub struct Serving {
    pub scratch: Arc<Scratch>,
    pub options: Options,
}

impl Serving {
    pub fn new(transport: Transport) -> Serving {
        // Not in /tmp: the run has one of its own, and has to see the tools.
        let scratch = Scratch::within(visible_folder());
        for (name, mode) in [("outside", 0o777), ("workspace", 0o777), ("tools", 0o755)] {
            let path = scratch.path().join(name);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let options = Options::new(transport).on(&scratch);
        let serving = Serving { scratch, options };
        serving.tool("out", TOOL);
        serving
    }

    pub fn tool(&self, name: &str, text: &str) -> String {
        let path = self.scratch.path().join("tools").join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// The words for a rule on the operator's tool of this name.
    pub fn pattern(&self, name: &str) -> String {
        format!("[{:?}]", self.scratch.path().join("tools").join(name))
    }

    pub fn rules_file(&self) -> PathBuf {
        self.scratch.path().join("test.rules")
    }

    /// Rules as pairs of words and decision.
    pub fn rules(self, rules: &[(&str, &str)]) -> Serving {
        self.write_rules(rules);
        let file = self.rules_file();
        Serving { options: self.options.arg("--rules").arg(file.to_str().unwrap()), ..self }
    }

    pub fn write_rules(&self, rules: &[(&str, &str)]) {
        let line = |(words, decision): &(&str, &str)| {
            format!(
                "prefix_rule(pattern = {words}, decision = {decision:?}, justification = \"because of {decision}\")\n"
            )
        };
        std::fs::write(self.rules_file(), rules.iter().map(line).collect::<String>()).unwrap();
    }

    pub fn config(self, lines: &str) -> Serving {
        Serving { options: self.options.config(lines), ..self }
    }

    pub fn outside(self) -> Serving {
        self.config(&escalating(is_root()))
    }

    /// The same, and an `allow` covers every argument.
    pub fn outside_unasked(self) -> Serving {
        self.config(&format!("{}{UNASKED}", escalating(is_root())))
    }

    pub fn names(&self) -> String {
        let path = self.scratch.path().display();
        format!(
            "OUT={path}/tools/out TOOLS={path}/tools OUTSIDE={path}/outside M={path}/outside/marker"
        )
    }

    pub fn script(&self, script: &str) -> Value {
        json!({"command": format!("{}\n{script}", self.names())})
    }

    pub fn marker(&self) -> PathBuf {
        self.scratch.path().join("outside/marker")
    }
}

/// What a call of `shell.exec` came to.
#[track_caller]
pub fn result(message: &Value) -> &Value {
    let result = &message["result"]["structuredContent"];
    assert!(result.is_object(), "{message:#}");
    result
}
