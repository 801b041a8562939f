//! Runs inside the sandbox and attempts what the sandbox must refuse, and what it must allow.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use crate::config::ProcessEnv;
use crate::config::env::HOME;
use crate::sandbox::self_test;

/// Attempt made from inside the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Canary {
    WriteOutside,
    WriteProtected,
    ReadHidden,
    ReachNetwork,
    HavePrivileges,
    SignalOutside,
    RunForbidden,
    /// The only attempt that must succeed.
    UseHome,
}

impl Canary {
    /// Returns the attempt as a phrase that completes "a run can …".
    pub fn name(self) -> &'static str {
        match self {
            Canary::WriteOutside => "write outside the workspace",
            Canary::WriteProtected => "write to a protected path",
            Canary::ReadHidden => "read a hidden file",
            Canary::ReachNetwork => "reach a server on the host",
            Canary::HavePrivileges => "have or gain privileges",
            Canary::SignalOutside => "signal a process outside",
            Canary::RunForbidden => "run a program that a rule forbids",
            Canary::UseHome => "use its own home",
        }
    }
}

/// Attempts made, and whether each succeeded.
pub type CanaryResults = BTreeMap<Canary, bool>;

/// Targets of the attempts. All of them belong to the user, so that only the sandbox can refuse
/// access.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct CanaryTask {
    pub write: Vec<PathBuf>,
    pub protected: Option<PathBuf>,
    pub hidden: Option<PathBuf>,
    pub reach: Option<SocketAddr>,
    /// Process outside the sandbox, by a pid that means the same inside.
    pub process: Option<i32>,
    /// True if a rule forbids [`FORBIDDEN`].
    #[serde(default)]
    pub ruled: bool,
}

/// Name of a program that the trials' own rule forbids.
pub const FORBIDDEN: &str = "ringfence-forbidden-canary";

/// Makes the attempts described by `task` (JSON) and prints their results as JSON.
pub fn run(task: &str, out: &mut impl Write) -> io::Result<()> {
    let results = try_canaries(&serde_json::from_str(task)?);
    writeln!(out, "{}", serde_json::to_string(&results)?)
}

fn try_canaries(task: &CanaryTask) -> CanaryResults {
    let mut results = CanaryResults::new();
    let can_write = |path: &PathBuf| File::create_new(path).is_ok();
    // The result is checked again from outside: a write to a private /tmp of the run succeeds here
    // but never reaches the host.
    results.extend((!task.write.is_empty()).then(|| {
        (Canary::WriteOutside, task.write.iter().filter(|path| can_write(path)).count() > 0)
    }));
    if let Some(path) = &task.protected {
        results.insert(Canary::WriteProtected, can_write(path));
    }
    if let Some(path) = &task.hidden {
        results
            .insert(Canary::ReadHidden, std::fs::read(path).is_ok_and(|bytes| !bytes.is_empty()));
    }
    if let Some(address) = &task.reach {
        results.insert(
            Canary::ReachNetwork,
            TcpStream::connect_timeout(address, Duration::from_secs(2)).is_ok(),
        );
    }
    if let Some(pid) = task.process.and_then(Pid::from_raw) {
        results.insert(Canary::SignalOutside, rustix::process::test_kill_process(pid).is_ok());
    }
    if task.ruled {
        results.insert(Canary::RunForbidden, runs_forbidden());
    }
    results.insert(Canary::HavePrivileges, has_privileges());
    results.insert(Canary::UseHome, uses_home());
    results
}

fn has_privileges() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let is_zero = |name: &str| value(name).is_some_and(|bits| bits.bytes().all(|bit| bit == b'0'));
    !(is_zero("CapEff:") && is_zero("CapPrm:") && value("NoNewPrivs:") == Some("1"))
}

/// Runs a harmless program under the forbidden name and returns whether it ran.
fn runs_forbidden() -> bool {
    let env = ProcessEnv::from_process();
    let Some(link) = env.get_absolute(HOME).map(|home| home.join(FORBIDDEN)) else { return false };
    let _ = std::fs::remove_file(&link);
    let link_result = std::os::unix::fs::symlink("/bin/true", &link);
    let run_result = link_result.and_then(|()| self_test::run_inside(&link));
    let _ = std::fs::remove_file(&link);
    run_result.unwrap_or(false)
}

fn uses_home() -> bool {
    let env = ProcessEnv::from_process();
    let Some(file) = env.get_absolute(HOME).map(|home| home.join(".ringfence-doctor")) else {
        return false;
    };
    let created = File::create(&file).is_ok();
    let _ = std::fs::remove_file(file);
    created
}
