//! Control groups version 2: a single hierarchy, parts of which are delegated to users.
//!
//! A group either contains processes or passes controllers on to child groups. So a group with
//! limits is created next to our own group and not inside it.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use super::super::ResourceLimits;
use super::{
    CgroupLocations, CgroupName, ControlGroup, read_file, remove_stale_groups, write_value,
};

const SERVICE_HINT: &str = "set Delegate=yes and DelegateSubgroup=server in the unit";

/// Creates a group with these limits.
pub(in crate::limits) fn create_group(
    locations: &CgroupLocations,
    name: &CgroupName,
    limits: &ResourceLimits,
) -> Result<ControlGroup, String> {
    let (own_group, mount_point) = locations.own_v2_group().ok_or("cgroup v2 is not mounted")?;
    let parent = find_parent(&own_group, &mount_point, &wanted_controllers(limits))?;
    let group = create_below(&parent, name)?;
    // A group outside our own must not get more than our own group was given.
    let is_sibling = parent != own_group;
    let cap_limit =
        |limit: u64, file| if is_sibling { limit.min(own_limit(&own_group, file)) } else { limit };
    if let Some(bytes) = limits.memory_bytes {
        write_limit(&group, "memory.max", cap_limit(bytes, "memory.max"))?;
        // Missing if the kernel has no swap.
        let _ = write_limit(&group, "memory.swap.max", 0);
    }
    if let Some(maximum) = limits.processes {
        write_limit(&group, "pids.max", cap_limit(maximum, "pids.max"))?;
    }
    Ok(group)
}

/// Creates a group without limits, used only to kill the run and to see whether it is empty.
pub(in crate::limits) fn create_unlimited_group(
    locations: &CgroupLocations,
    name: &CgroupName,
) -> Result<ControlGroup, String> {
    let (own_group, _) = locations.own_v2_group().ok_or("cgroup v2 is not mounted")?;
    create_below(&own_group, name)
}

/// Returns the controllers that these limits need.
fn wanted_controllers(limits: &ResourceLimits) -> Vec<&'static str> {
    let memory = limits.memory_bytes.map(|_| "memory");
    memory.into_iter().chain(limits.processes.map(|_| "pids")).collect()
}

/// Returns the group in which a new child group gets all wanted controllers, and enables them there
/// if necessary.
fn find_parent(
    own_group: &Path,
    mount_point: &Path,
    controllers: &[&'static str],
) -> Result<PathBuf, String> {
    let parent = own_group.parent().filter(|_| own_group != mount_point);
    // No group has more controllers than its parent. On most hosts without them this check is all
    // that it costs.
    if let Some(name) =
        first_missing(parent.unwrap_or(own_group), "cgroup.controllers", controllers)
    {
        return Err(format!("cgroup v2 has no {name} controller here"));
    }
    if first_missing(own_group, "cgroup.subtree_control", controllers).is_none() {
        return Ok(own_group.to_owned());
    }
    // Only the root group has no type file; it alone may contain processes and pass controllers on.
    if !own_group.join("cgroup.type").exists() {
        return enable_controllers(own_group, controllers);
    }
    if own_group.extension().is_some_and(|kind| kind == "service") {
        // Stopping a service kills the processes in its group, so none of them may be placed
        // outside it.
        return Err(format!(
            "cgroup v2: the service runs directly in the unit's group: {SERVICE_HINT}"
        ));
    }
    let parent = parent.ok_or("cgroup v2: this container has a single group")?;
    match first_missing(parent, "cgroup.subtree_control", controllers) {
        None => Ok(parent.to_owned()),
        Some(_) => enable_controllers(parent, controllers),
    }
}

/// Enables the controllers for child groups. The kernel refuses if the group contains processes.
fn enable_controllers(parent: &Path, controllers: &[&'static str]) -> Result<PathBuf, String> {
    let changes: Vec<String> = controllers.iter().map(|name| format!("+{name}")).collect();
    let result = write_value(&parent.join("cgroup.subtree_control"), &changes.join(" "));
    result.map(|()| parent.to_owned()).map_err(|error| format!("cgroup v2 controllers: {error}"))
}

/// Returns the first wanted word that the file does not list.
fn first_missing(group: &Path, file: &str, controllers: &[&'static str]) -> Option<&'static str> {
    let text = read_file(&group.join(file)).unwrap_or_default();
    controllers
        .iter()
        .find(|name| !text.split_ascii_whitespace().any(|word| word == **name))
        .copied()
}

/// Creates a group below `parent`, after removing dead ones.
fn create_below(parent: &Path, name: &CgroupName) -> Result<ControlGroup, String> {
    // Moving a process also requires write access here; it is better to find out now than when a
    // process waits.
    access(parent.join("cgroup.procs"), Access::WRITE_OK)
        .map_err(|error| format!("cgroup v2: {error}"))?;
    remove_stale_groups(parent, name);
    ControlGroup::create_below(parent, name).map_err(|error| format!("cgroup v2: {error}"))
}

/// Returns the limit of our own group, or `u64::MAX` if it has none.
fn own_limit(own_group: &Path, file: &str) -> u64 {
    read_file(&own_group.join(file))
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(u64::MAX)
}

fn write_limit(group: &ControlGroup, file: &str, value: u64) -> Result<(), String> {
    group.write_file(file, &value.to_string()).map_err(|error| format!("cgroup v2 {file}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A fake cgroup tree of plain files, because not every host has these controllers.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str) -> Tree {
            let path =
                std::env::temp_dir().join(format!("ringfence-tree-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            Tree(path)
        }

        fn group(&self, path: &str, controllers: &str, passed_on: &str, is_root: bool) -> PathBuf {
            let path = if path.is_empty() { self.0.clone() } else { self.0.join(path) };
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("cgroup.controllers"), controllers).unwrap();
            fs::write(path.join("cgroup.subtree_control"), passed_on).unwrap();
            fs::write(path.join("cgroup.procs"), "").unwrap();
            if !is_root {
                fs::write(path.join("cgroup.type"), "domain\n").unwrap();
            }
            path
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const BOTH: [&str; 2] = ["memory", "pids"];

    #[test]
    fn a_cage_stands_beside_a_scope_whose_parent_passes_the_controllers_on() {
        let tree = Tree::new("beside");
        let slice = tree.group("app.slice", "cpu memory pids\n", "memory pids\n", false);
        let own = tree.group("app.slice/term.scope", "memory pids\n", "\n", false);
        assert_eq!(find_parent(&own, &tree.0, &BOTH), Ok(slice));
        assert_eq!(find_parent(&own, &tree.0, &[]), Ok(own), "nothing to hold needs no controller");
    }

    #[test]
    fn a_service_is_left_only_when_it_was_split() {
        let tree = Tree::new("service");
        let unit = tree.group("system.slice/x.service", "memory pids\n", "\n", false);
        tree.group("system.slice", "memory pids\n", "memory pids\n", false);
        let refused = find_parent(&unit, &tree.0, &BOTH).unwrap_err();
        assert!(refused.contains(SERVICE_HINT), "{refused}");
        let own = tree.group("system.slice/x.service/server", "\n", "\n", false);
        assert_eq!(find_parent(&own, &tree.0, &BOTH), Ok(unit.clone()));
        assert_eq!(
            fs::read_to_string(unit.join("cgroup.subtree_control")).unwrap(),
            "+memory +pids"
        );
    }

    #[test]
    fn a_missing_controller_is_named() {
        let tree = Tree::new("missing");
        let root = tree.group("", "hugetlb memory\n", "\n", true);
        assert_eq!(
            find_parent(&root, &tree.0, &BOTH),
            Err("cgroup v2 has no pids controller here".to_owned())
        );
        assert_eq!(find_parent(&root, &tree.0, &["memory"]), Ok(root));
    }

    #[test]
    fn a_container_with_a_single_group_has_no_room() {
        let tree = Tree::new("container");
        let own = tree.group("", "memory pids\n", "\n", false);
        assert!(find_parent(&own, &tree.0, &BOTH).unwrap_err().contains("single group"));
    }

    #[test]
    fn a_cage_beside_our_group_gets_no_more_than_our_group_has() {
        let tree = Tree::new("ceiling");
        let own = tree.group("x.scope", "", "", false);
        fs::write(own.join("pids.max"), "40\n").unwrap();
        fs::write(own.join("memory.max"), "max\n").unwrap();
        assert_eq!((own_limit(&own, "pids.max"), own_limit(&own, "memory.max")), (40, u64::MAX));
    }
}
