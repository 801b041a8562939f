//! Asks an installed program for its version, for commands that a human runs.
//!
//! It is started as it would be at a prompt, without a sandbox: the user runs it anyway. A program
//! that a project names must never be passed here.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};

/// Programs written for Node need a second or two on a busy machine.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
const MAX_ANSWER_BYTES: usize = 4096;

/// Returns the first of these programs in the directories of `search_path`. Relative directories
/// are skipped: they depend on where the command is run, which may be a project.
pub fn find_program(names: &[&str], search_path: Option<&OsStr>) -> Option<PathBuf> {
    let directories: Vec<PathBuf> =
        search_path.map(|path| std::env::split_paths(path).collect()).unwrap_or_default();
    let is_program = |path: &PathBuf| {
        path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    let absolute = directories.iter().filter(|directory| directory.is_absolute());
    absolute.flat_map(|directory| names.iter().map(|name| directory.join(name))).find(is_program)
}

/// Runs `program --version` and returns the first line of its output, or `None` if it fails or does
/// not answer in time.
pub fn query_version(program: &Path) -> Option<String> {
    let mut child = Command::new(program)
        .arg("--version")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .ok()?;
    let answer = child.stdout.take().and_then(|mut stdout| read_answer(&mut stdout));
    // A launcher may have left its program behind. The group still exists: its leader was not
    // reaped.
    let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
    let _ = child.wait();
    let text = String::from_utf8(answer?).ok()?;
    Some(text.lines().next()?.trim().to_owned()).filter(|line| !line.is_empty())
}

/// Reads until the output ends, or has a whole line.
fn read_answer(stdout: &mut std::process::ChildStdout) -> Option<Vec<u8>> {
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    let mut answer = Vec::new();
    while !answer.contains(&b'\n') && answer.len() < MAX_ANSWER_BYTES {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        if poll(&mut [PollFd::new(&*stdout, PollFlags::IN)], Some(&timeout)).ok()? == 0 {
            return None;
        }
        let mut buffer = [0; 512];
        match stdout.read(&mut buffer).ok()? {
            0 => break,
            count => answer.extend_from_slice(&buffer[..count]),
        }
    }
    Some(answer)
}
