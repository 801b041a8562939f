//! Version 1: a hierarchy for each controller, open to root alone.

use super::super::Limits;
use super::{Group, Name, Places, sweep};

/// A group for each of them below our own, processes first: that one is needed for killing in any case.
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
        // Memory and swap together, in this order because it may not be the smaller one. A kernel that does not
        // count swap can at least be told to leave it alone.
        if set(&memory, "memory.memsw.limit_in_bytes", bytes).is_err() {
            let _ = set(&memory, "memory.swappiness", 0);
        }
        // Buffers of TCP are counted apart, and only once they have a limit. Newer kernels may come without it.
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
