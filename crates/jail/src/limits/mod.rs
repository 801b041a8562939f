//! What a run may use, and the cage that holds it to that.
//!
//! A control group holds the whole tree, whatever it forks. Where there is none to be had, limits per process and a
//! watch over the total stand in. They are advisory: a run can exceed them for a moment, and the result says so.

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

/// The most that one run may use; `None` leaves it to the host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Of all its processes together, swap included.
    pub memory_bytes: Option<u64>,
    /// Threads count too, as they do for the kernel.
    pub processes: Option<u64>,
    /// Of one process.
    pub open_files: Option<u64>,
    /// The same, as far as a process does not ask for more: some programs count on a small number.
    #[serde(default)]
    pub usual_files: Option<u64>,
    /// Of one file.
    pub file_bytes: Option<u64>,
    /// Of one process.
    pub cpu_seconds: Option<u64>,
}

/// How the totals are enforced: a word for the result. Ordered from the strongest down.
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
    pub fn name(self) -> &'static str {
        match self {
            Means::CgroupV2 => "cgroup2",
            Means::CgroupV1 => "cgroup1",
            Means::Rlimits => "rlimits",
        }
    }

    /// Whether the totals are watched rather than enforced.
    pub fn is_advisory(self) -> bool {
        self == Means::Rlimits
    }
}

impl fmt::Display for Means {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}
