//! A run that is made to see whether the fence holds: `ringfence sandbox` itself, in a process of its own, around
//! our own binary. What this finds is what any other run would have found.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use jail::fault::{Fault, Layer};
use jail::namespaces::Tier;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::Deserialize;

use super::tier;
use crate::config::Profile;

/// The ways to namespaces that there are.
pub const TIERS: &[Tier] = &[Tier::Namespaces, Tier::Bwrap, Tier::Root];
/// A run takes milliseconds; one that has not ended by now hangs.
const PATIENCE: Duration = Duration::from_secs(30);
/// Of what a run has to say.
const SAID: u64 = 64 * 1024;

/// The ways that a run of this user tries, in their order.
pub fn tiers() -> Vec<Tier> {
    tier::tiers()
}

/// What the trials have in common.
pub struct Trial {
    /// Flags of `ringfence sandbox` that say where.
    pub place: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
    pub directory: PathBuf,
    /// Where the run's report goes.
    pub report: PathBuf,
}

/// How a trial went.
pub enum Ended {
    /// With what the program wrote.
    Ran { tier: Option<String>, limits: String, output: Vec<u8> },
    /// The fence, or its program, could not be started.
    Refused(Fault),
    /// It did not come to a fence: these are the words for a person.
    Failed(String),
}

#[derive(Deserialize)]
struct Report {
    #[serde(default)]
    tier: Option<String>,
    #[serde(default)]
    limits: String,
    #[serde(default)]
    exit_code: Option<i32>,
    #[serde(default)]
    fault: Option<Fault>,
}

impl Trial {
    /// Runs our own binary with these arguments. It is handed over as standard input and run from there, so that it
    /// need not lie where a run can see it.
    pub fn own<S: AsRef<OsStr>>(
        &self,
        profile: Profile,
        tier: Option<Tier>,
        args: &[S],
    ) -> io::Result<Ended> {
        let mut command = vec![OsString::from("/proc/self/fd/0")];
        command.extend(args.iter().map(|arg| arg.as_ref().to_owned()));
        self.run(profile, tier, &command)
    }

    pub fn run(
        &self,
        profile: Profile,
        tier: Option<Tier>,
        program: &[OsString],
    ) -> io::Result<Ended> {
        let _ = std::fs::remove_file(&self.report);
        let mut command = Command::new("/proc/self/exe");
        command.arg("sandbox").args(&self.place).args(["--profile", profile.name()]);
        if let Some(tier) = tier {
            command.args(["--tier", tier.name()]);
        }
        command.arg("--report").arg(&self.report).arg("--").args(program);
        command
            .env_clear()
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .current_dir(&self.directory);
        command.stdin(File::open("/proc/self/exe")?).stdout(Stdio::piped()).stderr(Stdio::piped());
        let (code, output, said) = finish(command.spawn()?)?;
        Ok(judge(code, output, &said, &self.report))
    }
}

/// Runs a program from inside a fence, and says whether it did what it does.
pub fn run_inside(program: &Path) -> io::Result<bool> {
    let null = || Stdio::null();
    Ok(Command::new(program).stdin(null()).stdout(null()).stderr(null()).status()?.success())
}

/// Waits for it, but not for ever. What it says fits into a pipe.
fn finish(mut child: Child) -> io::Result<(Option<i32>, Vec<u8>, String)> {
    let pid = i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| io::Error::other("no pid"))?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let patience = Timespec { tv_sec: PATIENCE.as_secs().try_into().unwrap_or(30), tv_nsec: 0 };
    let ended = rustix::io::retry_on_intr(|| {
        poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&patience))
    });
    if ended? == 0 {
        child.kill()?;
    }
    let code = child.wait()?.code();
    let (mut output, mut said) = (Vec::new(), Vec::new());
    if let Some(stdout) = child.stdout.take() {
        stdout.take(SAID).read_to_end(&mut output)?;
    }
    if let Some(stderr) = child.stderr.take() {
        stderr.take(SAID).read_to_end(&mut said)?;
    }
    Ok((code, output, String::from_utf8_lossy(&said).into_owned()))
}

fn judge(code: Option<i32>, output: Vec<u8>, said: &str, report: &Path) -> Ended {
    let report =
        std::fs::read(report).ok().and_then(|text| serde_json::from_slice::<Report>(&text).ok());
    match report {
        Some(Report { fault: Some(fault), .. }) => Ended::Refused(fault),
        Some(Report { exit_code: Some(0), tier, limits, .. }) if code == Some(0) => {
            Ended::Ran { tier, limits, output }
        }
        Some(_) => {
            Ended::Refused(Fault::other(Layer::Canary, "run a program", "it was killed or failed"))
        }
        None if code.is_none() => Ended::Failed("a run in the fence did not end".to_owned()),
        None => Ended::Failed(
            said.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned(),
        ),
    }
}
