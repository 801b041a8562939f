//! Location of this process in the cgroup hierarchies, as directories.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};

use super::read_file;

/// The contents of `/proc/self/mountinfo` and `/proc/self/cgroup`, which together give the
/// location.
#[derive(Debug, Default)]
pub struct CgroupLocations {
    mountinfo: String,
    membership: String,
    /// Mount points opened in advance, so that they stay reachable after the root has changed.
    opened_mounts: Vec<(PathBuf, OwnedFd)>,
}

impl CgroupLocations {
    pub(in crate::limits) fn read() -> io::Result<CgroupLocations> {
        let (mountinfo_path, membership_path) =
            (Path::new("/proc/self/mountinfo"), Path::new("/proc/self/cgroup"));
        Ok(CgroupLocations {
            mountinfo: read_file(mountinfo_path)?,
            membership: read_file(membership_path)?,
            opened_mounts: Vec::new(),
        })
    }

    /// Records the current locations and opens them, for a process that is about to change its
    /// root: it and its forks can still write to them. Without /proc there are none.
    pub fn open_current() -> CgroupLocations {
        let mut locations = CgroupLocations::read().unwrap_or_default();
        let mount_points: BTreeSet<PathBuf> =
            locations.mountinfo.lines().filter_map(cgroup_mount).collect();
        for mount_point in mount_points {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            if let Ok(fd) = openat(CWD, &mount_point, flags, Mode::empty()) {
                locations.opened_mounts.push((mount_point, fd));
            }
        }
        locations
    }

    /// Returns the path under which a mount point is reachable.
    fn reachable_path(&self, mount_point: PathBuf) -> PathBuf {
        match self.opened_mounts.iter().find(|(opened_point, _)| *opened_point == mount_point) {
            Some((_, fd)) => PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd())),
            None => mount_point,
        }
    }

    /// Returns our own group in the version 2 hierarchy, and the mount point of that hierarchy.
    pub(in crate::limits) fn own_v2_group(&self) -> Option<(PathBuf, PathBuf)> {
        self.find_hierarchy(|controllers| controllers.is_empty(), |kind, _| kind == "cgroup2")
    }

    /// Returns our own group in the version 1 hierarchy that has this controller.
    pub(in crate::limits) fn own_v1_group(&self, controller: &str) -> Option<PathBuf> {
        let lists_controller = |list: &str| list.split(',').any(|name| name == controller);
        self.find_hierarchy(lists_controller, |kind, options| {
            kind == "cgroup" && lists_controller(options)
        })
        .map(|(own, _)| own)
    }

    /// Returns the directory of our own group and its mount point, for the first hierarchy that
    /// both conditions accept.
    fn find_hierarchy(
        &self,
        accepts_controllers: impl Fn(&str) -> bool,
        mount: impl Fn(&str, &str) -> bool,
    ) -> Option<(PathBuf, PathBuf)> {
        let group_path = self.membership.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            accepts_controllers(fields.next()?).then(|| fields.next()).flatten()
        })?;
        // The group is outside our cgroup namespace or was removed; it has no directory.
        if group_path.ends_with(" (deleted)")
            || Path::new(group_path).components().any(|part| part == Component::ParentDir)
        {
            return None;
        }
        self.mountinfo.lines().find_map(|line| {
            let (mount_fields, filesystem_fields) = line.split_once(" - ")?;
            let (mount_fields, filesystem_fields): (Vec<&str>, Vec<&str>) =
                (mount_fields.split(' ').collect(), filesystem_fields.split(' ').collect());
            if !mount(filesystem_fields.first()?, filesystem_fields.get(2)?) {
                return None;
            }
            // A container may see its own group mounted as if it were the root.
            let below =
                Path::new(group_path).strip_prefix(decode_octal(mount_fields.get(3)?)).ok()?;
            let mount = self.reachable_path(PathBuf::from(decode_octal(mount_fields.get(4)?)));
            Some((
                if below.as_os_str().is_empty() { mount.clone() } else { mount.join(below) },
                mount,
            ))
        })
    }
}

/// Returns the mount point if a line of `mountinfo` describes a cgroup mount.
fn cgroup_mount(line: &str) -> Option<PathBuf> {
    let (mount_fields, filesystem_fields) = line.split_once(" - ")?;
    filesystem_fields.starts_with("cgroup").then(|| {
        mount_fields.split(' ').nth(4).map(|mount_point| PathBuf::from(decode_octal(mount_point)))
    })?
}

/// Decodes the four characters that `mountinfo` writes in octal.
fn decode_octal(field: &str) -> String {
    field.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(mounts: &str, groups: &str) -> CgroupLocations {
        CgroupLocations {
            mountinfo: mounts.to_owned(),
            membership: groups.to_owned(),
            opened_mounts: Vec::new(),
        }
    }

    const HYBRID: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n\
        36 31 0:32 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

    #[test]
    fn each_hierarchy_is_found_where_it_is_mounted() {
        let here = places(HYBRID, "4:memory:/a/b:c\n2:cpu,cpuacct:/\n0::/x\n");
        assert_eq!(here.own_v1_group("memory"), Some("/sys/fs/cgroup/memory/a/b:c".into()));
        assert_eq!(here.own_v1_group("cpuacct"), Some("/sys/fs/cgroup/cpu,cpuacct".into()));
        assert_eq!(here.own_v1_group("pids"), None);
        assert_eq!(
            here.own_v2_group(),
            Some(("/sys/fs/cgroup/unified/x".into(), "/sys/fs/cgroup/unified".into()))
        );
    }

    #[test]
    fn a_container_sees_its_own_group_as_the_root() {
        let mounts = "9 1 0:3 /docker/ab /sys/fs/cgroup ro - cgroup2 cgroup rw,nsdelegate\n";
        let own = |group| places(mounts, group).own_v2_group().map(|(own, _)| own);
        assert_eq!(own("0::/docker/ab\n"), Some("/sys/fs/cgroup".into()));
        assert_eq!(own("0::/docker/ab/sub\n"), Some("/sys/fs/cgroup/sub".into()));
        assert_eq!(own("0::/docker/abc\n"), None, "a longer name is another group");
    }

    #[test]
    fn what_has_no_directory_is_not_guessed() {
        assert_eq!(places(HYBRID, "0::/../outside\n").own_v2_group(), None);
        assert_eq!(places(HYBRID, "0::/gone (deleted)\n").own_v2_group(), None);
        assert_eq!(places("", "0::/\n").own_v2_group(), None);
        assert_eq!(places(HYBRID, "").own_v2_group(), None);
    }

    #[test]
    fn a_mount_point_with_a_space_is_read_back() {
        let mounts = "9 1 0:3 / /mnt/a\\040b\\134c rw - cgroup2 cgroup rw\n";
        assert_eq!(
            places(mounts, "0::/\n").own_v2_group().map(|(own, _)| own),
            Some("/mnt/a b\\c".into())
        );
    }
}
