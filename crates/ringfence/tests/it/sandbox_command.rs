//! `ringfence sandbox` and signals: it passes them on, waits for the end of its run and ends as the run did.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::process::{marker, with_argument};
use crate::support::server::{Scratch, ringfence};
use crate::support::subset::assert_holds;
use crate::support::{DEADLINE, eventually};

struct Sandbox {
    scratch: Arc<Scratch>,
    child: Child,
}

impl Sandbox {
    /// Starts a script and waits until it says that it is ready. `through` is what the sandbox is started by.
    fn start(through: &[&str], profile: &str, script: &str) -> Sandbox {
        let scratch = Scratch::new();
        let config = scratch.path().join("config.toml");
        std::fs::write(&config, "[limits]\ngrace_ms = 500\n").unwrap();
        let mut command = ringfence(&scratch);
        if let Some((first, rest)) = through.split_first() {
            let binary = command.get_program().to_owned();
            let env: Vec<_> = command
                .get_envs()
                .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())))
                .collect();
            command = std::process::Command::new(first);
            command
                .args(rest)
                .arg(binary)
                .env_clear()
                .envs(env)
                .current_dir(scratch.path().join("workspace"));
        }
        command.args(["sandbox", "--profile", profile, "--root"]).arg(scratch.path().join("root"));
        command.arg("--config").arg(config).arg("--report").arg(scratch.path().join("report.json"));
        command
            .args(["--", "bash", "-c", script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0);
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Sandbox { scratch, child }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn code(&mut self) -> Option<i32> {
        let mut status = None;
        eventually(DEADLINE, "it ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code()
    }

    fn report(&self) -> Value {
        serde_json::from_slice(&std::fs::read(self.scratch.path().join("report.json")).unwrap())
            .unwrap()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const PROFILES: [&str; 3] = ["default", "contained", "none"];

#[test]
fn a_signal_is_passed_on_and_its_status_comes_back() {
    for profile in PROFILES {
        for (signal, name) in [(Signal::TERM, "TERM"), (Signal::INT, "INT"), (Signal::HUP, "HUP")] {
            // It handles the signal, takes its time, and ends with a status of its own.
            let script = format!(
                "trap 'sleep 0.2; touch handled; exit 7' {name}; echo ready; while :; do sleep 0.02; done"
            );
            let mut sandbox = Sandbox::start(&[], profile, &script);
            sandbox.signal(signal);
            assert_eq!(sandbox.code(), Some(7), "{profile} {name}");
            assert!(sandbox.scratch.path().join("workspace/handled").exists(), "{profile} {name}");
        }
    }
}

#[test]
fn a_run_that_dies_of_the_signal_is_told_by_the_exit_code() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129)] {
        let mut sandbox = Sandbox::start(&[], "default", "echo ready; exec sleep 300");
        sandbox.signal(signal);
        assert_eq!(sandbox.code(), Some(code));
    }
}

#[test]
fn a_run_that_ignores_the_signal_is_killed_after_the_grace_and_reported() {
    for profile in PROFILES {
        let marker = marker();
        let script = format!(
            "unshare -r true; trap '' TERM; (setsid sleep {marker} &); echo ready; while :; do sleep 0.05; done"
        );
        let mut sandbox = Sandbox::start(&[], profile, &script);
        eventually(DEADLINE, "its child runs", || !with_argument(&marker).is_empty());
        let begun = Instant::now();
        sandbox.signal(Signal::TERM);
        assert_eq!(sandbox.code(), Some(137), "{profile}");
        assert!(begun.elapsed() >= Duration::from_millis(450), "{profile}: it had its grace");
        assert!(with_argument(&marker).is_empty(), "{profile}: nothing lives on when it ends");
        if profile != "none" {
            assert_holds(json!({"signal": 9, "denials": [{"name": "unshare"}]}), &sandbox.report());
        }
    }
}

/// `nohup ringfence sandbox` lives on when its terminal goes, as any other program does.
#[test]
fn a_signal_that_was_ignored_before_is_ignored() {
    let through = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"];
    let script = "echo ready; until [ -e go ]; do sleep 0.02; done; exit 5";
    let mut sandbox = Sandbox::start(&through, "default", script);
    sandbox.signal(Signal::HUP);
    std::fs::write(sandbox.scratch.path().join("workspace/go"), "").unwrap();
    assert_eq!(sandbox.code(), Some(5));
}

#[test]
#[cfg(not(target_os = "macos"))]
fn a_profile_for_macos_is_not_offered_and_refused_with_its_reason() {
    let scratch = Scratch::new();
    let help = ringfence(&scratch).args(["sandbox", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(help.contains("contained") && !help.contains("seatbelt"), "{help}");
    let run = ringfence(&scratch)
        .args(["sandbox", "--profile", "seatbelt", "--root"])
        .arg(scratch.path().join("root"))
        .args(["--", "true"])
        .output()
        .unwrap();
    let said = String::from_utf8(run.stderr).unwrap();
    assert!(!run.status.success() && said.contains("`seatbelt` is for macOS"), "{said}");
}
