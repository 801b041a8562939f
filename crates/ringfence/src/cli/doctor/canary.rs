//! Inside a fence: tries what it must refuse, and what it must allow.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use crate::config::Env;
use crate::config::env::HOME;
use crate::sandbox::trial;

/// What is tried.
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
    /// The one that has to succeed.
    UseHome,
}

impl Canary {
    pub fn name(self) -> &'static str {
        match self {
            Canary::WriteOutside => "write outside the workspace",
            Canary::WriteProtected => "write to a protected path",
            Canary::ReadHidden => "read a hidden file",
            Canary::ReachNetwork => "reach a server of the host",
            Canary::HavePrivileges => "have or gain privileges",
            Canary::SignalOutside => "signal a process outside",
            Canary::RunForbidden => "run what a rule forbids",
            Canary::UseHome => "use its own home",
        }
    }
}

/// Whether each succeeded.
pub type Came = BTreeMap<Canary, bool>;

/// All of it is the user's own, so that only the fence can refuse it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Task {
    pub write: Vec<PathBuf>,
    pub protected: Option<PathBuf>,
    pub hidden: Option<PathBuf>,
    pub reach: Option<SocketAddr>,
    /// A process outside, by a number that means the same inside.
    pub process: Option<i32>,
    /// Whether a rule forbids [`FORBIDDEN`].
    #[serde(default)]
    pub ruled: bool,
}

/// The name of a program that the trials' own rule forbids.
pub const FORBIDDEN: &str = "ringfence-forbidden-canary";

pub fn run(task: &str, out: &mut impl Write) -> io::Result<()> {
    let came = attempt(&serde_json::from_str(task)?);
    writeln!(out, "{}", serde_json::to_string(&came)?)
}

fn attempt(task: &Task) -> Came {
    let mut came = Came::new();
    let writes = |path: &PathBuf| File::create_new(path).is_ok();
    // Whether it came to anything is seen from outside: a /tmp of the run's own takes what never gets there.
    came.extend((!task.write.is_empty()).then(|| {
        (Canary::WriteOutside, task.write.iter().filter(|path| writes(path)).count() > 0)
    }));
    if let Some(path) = &task.protected {
        came.insert(Canary::WriteProtected, writes(path));
    }
    if let Some(path) = &task.hidden {
        came.insert(Canary::ReadHidden, std::fs::read(path).is_ok_and(|bytes| !bytes.is_empty()));
    }
    if let Some(address) = &task.reach {
        came.insert(
            Canary::ReachNetwork,
            TcpStream::connect_timeout(address, Duration::from_secs(2)).is_ok(),
        );
    }
    if let Some(pid) = task.process.and_then(Pid::from_raw) {
        came.insert(Canary::SignalOutside, rustix::process::test_kill_process(pid).is_ok());
    }
    if task.ruled {
        came.insert(Canary::RunForbidden, runs_forbidden());
    }
    came.insert(Canary::HavePrivileges, has_privileges());
    came.insert(Canary::UseHome, uses_home());
    came
}

fn has_privileges() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let none = |name: &str| value(name).is_some_and(|bits| bits.bytes().all(|bit| bit == b'0'));
    !(none("CapEff:") && none("CapPrm:") && value("NoNewPrivs:") == Some("1"))
}

/// A harmless program under the forbidden name.
fn runs_forbidden() -> bool {
    let env = Env::of_process();
    let Some(link) = env.absolute(HOME).map(|home| home.join(FORBIDDEN)) else { return false };
    let _ = std::fs::remove_file(&link);
    let made = std::os::unix::fs::symlink("/bin/true", &link);
    let ran = made.and_then(|()| trial::run_inside(&link));
    let _ = std::fs::remove_file(&link);
    ran.unwrap_or(false)
}

fn uses_home() -> bool {
    let env = Env::of_process();
    let Some(file) = env.absolute(HOME).map(|home| home.join(".ringfence-doctor")) else {
        return false;
    };
    let made = File::create(&file).is_ok();
    let _ = std::fs::remove_file(file);
    made
}
