//! Resource limits of a run, and the mechanisms that enforce them.
//!
//! A control group limits the whole process tree, whatever it forks. Where none is available,
//! per-process rlimits and a thread that polls the totals take its place. These are advisory: a run
//! can exceed them briefly, and the result says so.

mod cage;
mod cgroup;
mod poll;
mod rlimits;
mod session;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use cage::Cage;
pub use cgroup::{Door, Places};
pub use rlimits::{raise_files, set_file_limit, set_rlimits, usual_files};
pub(crate) use session::limit_session;

/// Maximum resources of one run; `None` leaves the host's limit in place.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// For all processes of the run together, including swap.
    pub memory_bytes: Option<u64>,
    /// Threads count as well, as they do in the kernel.
    pub processes: Option<u64>,
    /// Hard limit per process.
    pub open_files: Option<u64>,
    /// Soft limit per process, which a process may raise up to `open_files`: some programs rely on
    /// a small value.
    #[serde(default)]
    pub usual_files: Option<u64>,
    /// Per file.
    pub file_bytes: Option<u64>,
    /// Per process.
    pub cpu_seconds: Option<u64>,
}

/// Mechanism that enforces the totals, as reported in the result. Ordered from strongest to
/// weakest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Means {
    #[serde(rename = "cgroup2")]
    CgroupV2,
    #[serde(rename = "cgroup1")]
    CgroupV1,
    #[serde(rename = "rlimits")]
    Rlimits,
}

impl Means {
    /// Returns the name used in results.
    pub fn name(self) -> &'static str {
        match self {
            Means::CgroupV2 => "cgroup2",
            Means::CgroupV1 => "cgroup1",
            Means::Rlimits => "rlimits",
        }
    }

    /// Returns whether the totals are only polled instead of enforced by the kernel.
    pub fn is_advisory(self) -> bool {
        self == Means::Rlimits
    }
}

impl fmt::Display for Means {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}
