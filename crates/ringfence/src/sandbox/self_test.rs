//! Self-test of the sandbox: runs `ringfence sandbox` itself, in a separate process, around our own
//! binary. Its findings apply to any other run.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use jail::error::{Layer, SandboxError};
use jail::namespaces::Tier;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::Deserialize;

use super::tier;
use crate::config::ProfileSetting;

/// Time limit. A run takes milliseconds; one that has not ended by now hangs.
const RUN_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum bytes read of each stream of a run.
const MAX_OUTPUT_BYTES: u64 = 64 * 1024;

/// Returns the tiers that a run of this user tries, in order.
pub fn available_tiers() -> Vec<Tier> {
    tier::available_tiers()
}

/// Settings that the self-test runs have in common.
pub struct SelfTest {
    /// Flags of `ringfence sandbox` that select workspace, root and config.
    pub location_flags: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
    pub working_dir: PathBuf,
    /// File for the run's report.
    pub report: PathBuf,
}

/// Outcome of a self-test run.
pub enum SelfTestOutcome {
    /// The program ran; holds its output.
    Ran { tier: Option<String>, limits: String, output: Vec<u8> },
    /// The sandbox, or its program, could not be started.
    Refused(SandboxError),
    /// The run did not get as far as a sandbox; holds a message for the user.
    Failed(String),
}

#[derive(Deserialize)]
struct SelfTestReport {
    #[serde(default)]
    tier: Option<String>,
    #[serde(default)]
    limits: String,
    #[serde(default)]
    exit_code: Option<i32>,
    #[serde(default)]
    fault: Option<SandboxError>,
}

impl SelfTest {
    /// Runs our own binary with these arguments. It is passed as standard input and run from there,
    /// so that it need not be in a place that a run can see.
    pub fn run_self<S: AsRef<OsStr>>(
        &self,
        profile: ProfileSetting,
        tier: Option<Tier>,
        args: &[S],
    ) -> io::Result<SelfTestOutcome> {
        let mut command = vec![OsString::from("/proc/self/fd/0")];
        command.extend(args.iter().map(|arg| arg.as_ref().to_owned()));
        self.run(profile, tier, &command)
    }

    /// Runs a program in the sandbox, under this profile and tier.
    pub fn run(
        &self,
        profile: ProfileSetting,
        tier: Option<Tier>,
        program: &[OsString],
    ) -> io::Result<SelfTestOutcome> {
        let _ = std::fs::remove_file(&self.report);
        let mut command = Command::new("/proc/self/exe");
        command.arg("sandbox").args(&self.location_flags).args(["--profile", profile.name()]);
        if let Some(tier) = tier {
            command.args(["--tier", tier.name()]);
        }
        command.arg("--report").arg(&self.report).arg("--").args(program);
        command
            .env_clear()
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .current_dir(&self.working_dir);
        command.stdin(File::open("/proc/self/exe")?).stdout(Stdio::piped()).stderr(Stdio::piped());
        let (code, output, error_output) = wait_for_exit(command.spawn()?)?;
        Ok(judge_outcome(code, output, &error_output, &self.report))
    }
}

/// Runs a program from inside a sandbox, and returns whether it succeeded.
pub fn run_inside(program: &Path) -> io::Result<bool> {
    let null = || Stdio::null();
    Ok(Command::new(program).stdin(null()).stdout(null()).stderr(null()).status()?.success())
}

/// Waits for the process, up to a time limit. Its output fits into a pipe.
fn wait_for_exit(mut child: Child) -> io::Result<(Option<i32>, Vec<u8>, String)> {
    let pid = i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| io::Error::other("no pid"))?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let timeout = Timespec { tv_sec: RUN_TIMEOUT.as_secs().try_into().unwrap_or(30), tv_nsec: 0 };
    let poll_result = rustix::io::retry_on_intr(|| {
        poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&timeout))
    });
    if poll_result? == 0 {
        child.kill()?;
    }
    let code = child.wait()?.code();
    let (mut output, mut error_output) = (Vec::new(), Vec::new());
    if let Some(stdout) = child.stdout.take() {
        stdout.take(MAX_OUTPUT_BYTES).read_to_end(&mut output)?;
    }
    if let Some(stderr) = child.stderr.take() {
        stderr.take(MAX_OUTPUT_BYTES).read_to_end(&mut error_output)?;
    }
    Ok((code, output, String::from_utf8_lossy(&error_output).into_owned()))
}

fn judge_outcome(
    code: Option<i32>,
    output: Vec<u8>,
    error_output: &str,
    report: &Path,
) -> SelfTestOutcome {
    let report = std::fs::read(report)
        .ok()
        .and_then(|text| serde_json::from_slice::<SelfTestReport>(&text).ok());
    match report {
        Some(SelfTestReport { fault: Some(error), .. }) => SelfTestOutcome::Refused(error),
        Some(SelfTestReport { exit_code: Some(0), tier, limits, .. }) if code == Some(0) => {
            SelfTestOutcome::Ran { tier, limits, output }
        }
        Some(_) => SelfTestOutcome::Refused(SandboxError::from_message(
            Layer::Canary,
            "run a program",
            "it was killed or failed",
        )),
        None if code.is_none() => {
            SelfTestOutcome::Failed("a run in the sandbox did not end".to_owned())
        }
        None => SelfTestOutcome::Failed(
            error_output
                .lines()
                .next()
                .unwrap_or_default()
                .trim_start_matches("error: ")
                .to_owned(),
        ),
    }
}
