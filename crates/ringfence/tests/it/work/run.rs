//! One run of a command to its end: how it ended, what it said and what it left.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

/// Long, for a machine that does much else; nothing here takes a tenth of it alone.
const PATIENCE: Duration = Duration::from_secs(120);

pub struct Run {
    /// The exit code, or 128 and the signal that ended it, as a shell has it.
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// Every file left in the workspace: its name, kind, mode and number of links.
    pub files: BTreeSet<String>,
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes).into_owned();
            let (head, long) = text
                .char_indices()
                .nth(4000)
                .map_or((&text[..], false), |(at, _)| (&text[..at], true));
            format!(
                "{}{head}{}",
                if long { "(the beginning) " } else { "" },
                if long { "…" } else { "" }
            )
        };
        write!(
            f,
            "ended with {}\n--- stdout\n{}\n--- stderr\n{}",
            self.code,
            shown(&self.stdout),
            shown(&self.stderr)
        )
    }
}

/// Runs it in a process group of its own, which is killed when it takes too long.
pub fn run(mut command: Command, stdin: &[u8]) -> Run {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child =
        command.spawn().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
    let group = Pid::from_child(&child);
    let (mut input, stdin) = (child.stdin.take().unwrap(), stdin.to_vec());
    // It may end without having read all: that is its affair.
    std::thread::spawn(move || input.write_all(&stdin));
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let (ended, end) = channel();
    std::thread::spawn(move || {
        let errors = std::thread::spawn(move || everything(&mut err));
        let stdout = everything(&mut out);
        let status = child.wait().unwrap();
        let code = status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(-1);
        let _ = ended.send(Run {
            code,
            stdout,
            stderr: errors.join().unwrap(),
            files: BTreeSet::new(),
        });
    });
    end.recv_timeout(PATIENCE).unwrap_or_else(|_| {
        let _ = kill_process_group(group, Signal::KILL);
        panic!("{command:?} did not end within {PATIENCE:?}")
    })
}

fn everything(from: &mut impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes).unwrap();
    bytes
}

impl Run {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&[&self.stdout[..], &self.stderr[..]].concat()).into_owned()
    }

    /// Notes what is in the workspace now. Sizes are in the output where they matter.
    pub fn left(mut self, workspace: &Path, untidy: &[&str]) -> Self {
        let mut folders = vec![workspace.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).unwrap().map(Result::unwrap) {
                let path = entry.path();
                let about = path.symlink_metadata().unwrap();
                let name = path.strip_prefix(workspace).unwrap().to_owned();
                // The number of links of a folder is its file system's own affair.
                let links = if about.is_dir() { 1 } else { about.nlink() };
                self.files.insert(format!("{} {:o} {links}", name.display(), about.mode()));
                if about.is_dir() && !untidy.iter().any(|folder| name == Path::new(folder)) {
                    folders.push(path);
                }
            }
        }
        self
    }

    /// What another run did in another way.
    pub fn difference(&self, other: &Run) -> Option<String> {
        if self.code != other.code {
            return Some(format!("it ends with {}, not {}", other.code, self.code));
        }
        if self.stdout != other.stdout {
            return Some("its standard output".into());
        }
        if self.stderr != other.stderr {
            return Some("its standard error".into());
        }
        let gone: Vec<_> = self.files.difference(&other.files).collect();
        let new: Vec<_> = other.files.difference(&self.files).collect();
        (!gone.is_empty() || !new.is_empty()).then(|| format!("the files: {gone:?} became {new:?}"))
    }
}
