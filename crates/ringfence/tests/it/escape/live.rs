//! A program that runs, and what it said when it has ended.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use super::{Effect, held};
use crate::support::{DEADLINE, eventually};

pub struct Live {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    errors: Receiver<String>,
    seen: String,
    mode: String,
    may_die: bool,
}

impl Live {
    pub fn start(mut command: Command, mode: String) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the command starts");
        let (line, lines) = channel();
        let stdout = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            for bytes in BufReader::new(stdout).split(b'\n').map_while(Result::ok) {
                let _ = line.send(String::from_utf8_lossy(&bytes).into_owned());
            }
        });
        let (error, errors) = channel();
        let mut stderr = child.stderr.take().unwrap();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = stderr.read_to_end(&mut bytes);
            let _ = error.send(String::from_utf8_lossy(&bytes).into_owned());
        });
        let stdin = child.stdin.take();
        Live { child, stdin, lines, errors, seen: String::new(), mode, may_die: false }
    }

    pub fn may_die(mut self) -> Self {
        self.may_die = true;
        self
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a line that begins so, and gives the rest of it.
    pub fn wait_for(&mut self, start: &str) -> String {
        loop {
            let Ok(line) = self.lines.recv_timeout(DEADLINE) else {
                let _ = self.child.kill();
                let errors = self.errors.recv_timeout(DEADLINE).unwrap_or_default();
                panic!("[{}] no line begins with {start:?}:\n{}{errors}", self.mode, self.seen)
            };
            self.seen.push_str(&line);
            self.seen.push('\n');
            if let Some(rest) = line.strip_prefix(start) {
                return rest.trim().to_owned();
            }
        }
    }

    pub fn tell(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(format!("{line}\n").as_bytes()).and_then(|()| stdin.flush()).unwrap();
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn end(mut self) -> Run {
        drop(self.stdin.take());
        let mut status = None;
        eventually(DEADLINE, &format!("[{}] the attack ends", self.mode), || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        // What it left behind may hold the pipe open: that is for the test to find.
        while let Ok(line) = self.lines.recv_timeout(DEADLINE / 5) {
            self.seen.push_str(&line);
            self.seen.push('\n');
        }
        let errors = self.errors.recv_timeout(DEADLINE / 5).unwrap_or_default();
        let code = status.and_then(|status| status.code());
        let run = Run { stdout: std::mem::take(&mut self.seen), stderr: errors, code };
        let has = |line: &str| run.stdout.lines().any(|other| other == line);
        assert!(has("begun"), "[{}] the attack never began: {run:?}", self.mode);
        assert!(
            self.may_die || has("ended"),
            "[{}] the attack did not come to its end: {run:?}",
            self.mode
        );
        run
    }

    /// For a fence that may refuse to go up at all: whether the attack began.
    pub fn end_unless_refused(mut self) -> bool {
        drop(self.stdin.take());
        eventually(DEADLINE, "the command ends", || self.child.try_wait().unwrap().is_some());
        self.lines.try_iter().any(|line| line == "begun")
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Debug)]
pub struct Run {
    pub stdout: String,
    pub stderr: String,
    pub code: Option<i32>,
}

impl Run {
    /// What the probe said after this word.
    pub fn word(&self, name: &str) -> &str {
        let line = self.stdout.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("nothing was said of {name}: {self:?}"))
    }

    /// No attempt of the probe's worked.
    pub fn refused(&self) -> Effect {
        let tries: Vec<&str> =
            self.stdout.lines().filter_map(|line| line.strip_prefix("tried ")).collect();
        assert!(!tries.is_empty(), "nothing was tried: {self:?}");
        let worked: Vec<&str> = tries.into_iter().filter(|line| line.ends_with(" ok")).collect();
        held(worked.is_empty(), format!("these worked: {worked:?}"))
    }

    /// Every attempt ended with this error.
    pub fn refused_with(&self, error: &str) -> Effect {
        self.refused()?;
        let other: Vec<&str> = self
            .stdout
            .lines()
            .filter(|line| line.starts_with("tried ") && !line.ends_with(error))
            .collect();
        held(other.is_empty(), format!("not {error}: {other:?}"))
    }

    pub fn knows_nothing_of(&self, secret: &str) -> Effect {
        let told = self.stdout.contains(secret) || self.stderr.contains(secret);
        held(!told, format!("the secret came out: {}", self.stdout))
    }
}
