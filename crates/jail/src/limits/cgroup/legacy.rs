//! Control groups version 1: one hierarchy per controller, writable by root only.

use super::super::Limits;
use super::{Group, Name, Places, sweep};

/// Creates a group below our own for each controller. The pids group comes first, because it is
/// always needed to kill the run.
pub(in crate::limits) fn create(
    places: &Places,
    name: &Name,
    limits: &Limits,
) -> Result<Vec<Group>, String> {
    let processes = below_own(places, name, "pids")?;
    if let Some(most) = limits.processes {
        set(&processes, "pids.max", most)?;
    }
    let mut groups = vec![processes];
    if let Some(bytes) = limits.memory_bytes {
        let memory = below_own(places, name, "memory")?;
        set(&memory, "memory.limit_in_bytes", bytes)?;
        // Limit for memory plus swap. It must be set second, because it may not be below the memory
        // limit. A kernel that does not account for swap can at least be told not to use it.
        if set(&memory, "memory.memsw.limit_in_bytes", bytes).is_err() {
            let _ = set(&memory, "memory.swappiness", 0);
        }
        // TCP buffers are counted separately, and only once they have a limit. Newer kernels may
        // lack this file.
        let _ = set(&memory, "memory.kmem.tcp.limit_in_bytes", bytes);
        groups.push(memory);
    }
    Ok(groups)
}

fn below_own(places: &Places, name: &Name, controller: &str) -> Result<Group, String> {
    let own =
        places.of(controller).ok_or_else(|| format!("cgroup v1 has no {controller} controller"))?;
    sweep(&own, name);
    Group::create(&own, name).map_err(|error| format!("cgroup v1 {controller}: {error}"))
}

fn set(group: &Group, file: &str, value: u64) -> Result<(), String> {
    group.set(file, &value.to_string()).map_err(|error| format!("cgroup v1 {file}: {error}"))
}
