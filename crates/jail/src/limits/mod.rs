//! Resource limits of a run, and the mechanisms that enforce them.
//!
//! A control group limits the whole process tree, whatever it forks. Where none is available,
//! per-process rlimits and a thread that polls the totals take its place. These are advisory: a run
//! can exceed them briefly, and the result says so.

mod cgroup;
mod rlimits;
mod run_limits;
mod session;
mod usage_watch;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use cgroup::{CgroupJoiner, CgroupLocations};
pub use rlimits::{initial_file_limit, raise_file_limit, set_file_limit, set_rlimits};
pub use run_limits::RunLimits;
pub(crate) use session::limit_session;

/// Maximum resources of one run; `None` leaves the host's limit in place.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceLimits {
    /// For all processes of the run together, including swap.
    pub memory_bytes: Option<u64>,
    /// Threads count as well, as they do in the kernel.
    pub processes: Option<u64>,
    /// Hard limit per process.
    pub open_files: Option<u64>,
    /// Soft limit per process, which a process may raise up to `open_files`: some programs rely on
    /// a small value.
    #[serde(default)]
    pub soft_open_files: Option<u64>,
    /// Per file.
    pub file_bytes: Option<u64>,
    /// Per process.
    pub cpu_seconds: Option<u64>,
}

/// Mechanism that enforces the totals, as reported in the result. Ordered from strongest to
/// weakest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LimitMechanism {
    #[serde(rename = "cgroup2")]
    CgroupV2,
    #[serde(rename = "cgroup1")]
    CgroupV1,
    #[serde(rename = "rlimits")]
    Rlimits,
}

impl LimitMechanism {
    /// Returns the name used in results.
    pub fn name(self) -> &'static str {
        match self {
            LimitMechanism::CgroupV2 => "cgroup2",
            LimitMechanism::CgroupV1 => "cgroup1",
            LimitMechanism::Rlimits => "rlimits",
        }
    }

    /// Returns whether the totals are only polled instead of enforced by the kernel.
    pub fn is_advisory(self) -> bool {
        self == LimitMechanism::Rlimits
    }
}

impl fmt::Display for LimitMechanism {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}
