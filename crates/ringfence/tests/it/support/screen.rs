//! A command at a terminal of 80 columns: what is on its screen, and what is typed there.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use super::DEADLINE;

pub struct Screen {
    script: Child,
    keyboard: ChildStdin,
    output: Receiver<Vec<u8>>,
    seen: String,
    /// How much of it has been waited for.
    passed: usize,
}

impl Screen {
    /// Starts a command, with its own environment and directory, at a new terminal.
    pub fn start(command: &Command) -> Screen {
        let quote =
            |text: &std::ffi::OsStr| format!("'{}'", text.to_str().unwrap().replace('\'', r"'\''"));
        let words = std::iter::once(command.get_program()).chain(command.get_args()).map(quote);
        let line = format!("stty cols 80 rows 24; exec {}", words.collect::<Vec<_>>().join(" "));
        let env = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
        let mut script = Command::new("script")
            .args(["-q", "-e", "-c", &line, "/dev/null"])
            .env_clear()
            .env("TERM", "xterm")
            .env("SHELL", "/bin/sh")
            .envs(env)
            .current_dir(command.get_current_dir().unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script runs");
        let mut stdout = script.stdout.take().unwrap();
        let (sender, output) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = stdout.read(&mut bytes) {
                if sender.send(bytes[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        let keyboard = script.stdin.take().unwrap();
        Screen { keyboard, script, output, seen: String::new(), passed: 0 }
    }

    /// Waits until this is on the screen, after everything that was waited for before.
    #[track_caller]
    pub fn wait_for(&mut self, text: &str) {
        let until = Instant::now() + DEADLINE;
        loop {
            if let Some(at) = self.seen[self.passed..].find(text) {
                self.passed += at + text.len();
                return;
            }
            match self.output.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(_) => panic!("{text:?} is not on the screen: {}", self.seen),
            }
        }
    }

    pub fn type_line(&mut self, line: &str) {
        self.keyboard.write_all(format!("{line}\r").as_bytes()).unwrap();
        self.keyboard.flush().unwrap();
    }

    /// Waits for the end; the exit code, and all that was on the screen.
    #[track_caller]
    pub fn finish(mut self) -> (i32, String) {
        let until = Instant::now() + DEADLINE;
        while let Ok(bytes) =
            self.output.recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            self.seen.push_str(&String::from_utf8_lossy(&bytes));
        }
        assert!(Instant::now() < until, "it does not end: {}", self.seen);
        let code = self.script.wait().unwrap().code().unwrap();
        (code, std::mem::take(&mut self.seen).replace("\r\n", "\n"))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

/// Runs a command at a terminal to its end, with nothing typed.
#[track_caller]
pub fn at_screen(command: &Command) -> (i32, String) {
    Screen::start(command).finish()
}

/// The lines that are wider than the terminal, without colours.
pub fn wide_lines(screen: &str) -> Vec<String> {
    let mut plain = screen.to_owned();
    while let Some(start) = plain.find("\u{1b}[") {
        let end = plain[start + 2..].find(|c: char| c.is_ascii_alphabetic()).unwrap();
        plain.replace_range(start..start + 2 + end + 1, "");
    }
    plain.lines().filter(|line| line.chars().count() > 80).map(str::to_owned).collect()
}
