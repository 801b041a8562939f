//! Control groups version 1: one hierarchy per controller, writable by root only.

use super::super::ResourceLimits;
use super::{CgroupLocations, CgroupName, ControlGroup, remove_stale_groups};

/// Creates a group below our own for each controller. The pids group comes first, because it is
/// always needed to kill the run.
pub(in crate::limits) fn create_groups(
    locations: &CgroupLocations,
    name: &CgroupName,
    limits: &ResourceLimits,
) -> Result<Vec<ControlGroup>, String> {
    let pids_group = create_below_own(locations, name, "pids")?;
    if let Some(maximum) = limits.processes {
        write_limit(&pids_group, "pids.max", maximum)?;
    }
    let mut groups = vec![pids_group];
    if let Some(bytes) = limits.memory_bytes {
        let memory_group = create_below_own(locations, name, "memory")?;
        write_limit(&memory_group, "memory.limit_in_bytes", bytes)?;
        // Limit for memory plus swap. It must be set second, because it may not be below the memory
        // limit. A kernel that does not account for swap can at least be told not to use it.
        if write_limit(&memory_group, "memory.memsw.limit_in_bytes", bytes).is_err() {
            let _ = write_limit(&memory_group, "memory.swappiness", 0);
        }
        // TCP buffers are counted separately, and only once they have a limit. Newer kernels may
        // lack this file.
        let _ = write_limit(&memory_group, "memory.kmem.tcp.limit_in_bytes", bytes);
        groups.push(memory_group);
    }
    Ok(groups)
}

fn create_below_own(
    locations: &CgroupLocations,
    name: &CgroupName,
    controller: &str,
) -> Result<ControlGroup, String> {
    let own_group = locations
        .own_v1_group(controller)
        .ok_or_else(|| format!("cgroup v1 has no {controller} controller"))?;
    remove_stale_groups(&own_group, name);
    ControlGroup::create_below(&own_group, name)
        .map_err(|error| format!("cgroup v1 {controller}: {error}"))
}

fn write_limit(group: &ControlGroup, file: &str, value: u64) -> Result<(), String> {
    group.write_file(file, &value.to_string()).map_err(|error| format!("cgroup v1 {file}: {error}"))
}
