//! Follows a name that a process uses to an open descriptor, as the kernel does for that process.
//!
//! This is the only way from a name to a file here. The text that the kernel gives for a file
//! (`readlink` of `/proc/PID/cwd`, a line of `/proc/PID/maps`) identifies nothing: that of a
//! deleted file ends in ` (deleted)`, and anyone can give that name to another file. So links in
//! `/proc` are opened themselves, and a file is identified by the device and inode of its
//! descriptor.
//!
//! Every error means the same: the file is not identified. Callers must not distinguish errors.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, PROC_SUPER_MAGIC, StatxFlags, fstat, fstatfs, openat,
    readlink, readlinkat, statx,
};

use super::wire::FileIdentity;

/// Most links that the kernel follows in one name.
const MAX_LINKS: usize = 40;
/// Inode number of the root of every procfs.
const PROC_ROOT_INODE: u64 = 1;
/// Suffix that the kernel adds to the path of a deleted file.
const DELETED: &str = " (deleted)";

const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// Device and inode of a file.
pub type DeviceInode = (u64, u64);

/// Returns the device and inode of an open file.
pub fn identify_file(descriptor: impl AsFd) -> io::Result<DeviceInode> {
    let stat = fstat(descriptor)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Opens `/proc/PID/exe`, `cwd` or `root`: the file itself, whatever its name is by now.
pub fn open_link(process: i32, link: &str) -> io::Result<OwnedFd> {
    Ok(openat(CWD, format!("/proc/{process}/{link}"), PATH_ONLY, Mode::empty())?)
}

/// Opens the file that `name` leads to for the process, from its own root and working directory.
pub fn open_name(process: i32, name: &[u8]) -> io::Result<OwnedFd> {
    if name.is_empty() {
        return Err(io::Error::other("the name is empty"));
    }
    let root = open_link(process, "root")?;
    let start = if name.starts_with(b"/") { root.try_clone()? } else { open_link(process, "cwd")? };
    let mut walk = NameWalk {
        process,
        root,
        current: start,
        own_entry: None,
        pending: Vec::new(),
        links_followed: 0,
    };
    walk.push_components(name);
    while let Some(component) = walk.pending.pop() {
        walk.follow_component(&component)?;
    }
    Ok(walk.current)
}

/// Describes the file behind a descriptor, with the path that rules and messages use for it.
/// Nothing is ever opened by that path without comparing.
pub fn describe_file(process: i32, descriptor: &OwnedFd) -> io::Result<FileIdentity> {
    let (device, inode) = identify_file(descriptor)?;
    let link_target = readlink(format!("/proc/self/fd/{}", descriptor.as_raw_fd()), Vec::new())?;
    let mut path =
        PathBuf::from(OsStr::from_bytes(link_target.as_bytes())).to_string_lossy().into_owned();
    if path.ends_with(DELETED) {
        // The suffix is either the kernel's remark or part of the file's own name.
        let is_own_name = open_name(process, link_target.as_bytes()).and_then(identify_file).ok()
            == Some((device, inode));
        if !is_own_name {
            path.truncate(path.len() - DELETED.len());
        }
    }
    Ok(FileIdentity { path, device, inode })
}

/// State of following a name to a file.
struct NameWalk {
    process: i32,
    root: OwnedFd,
    current: OwnedFd,
    /// Set once the name has gone through `/proc/self`: the directory that replaces it here, and
    /// the procfs that it was in.
    own_entry: Option<(DeviceInode, OwnedFd)>,
    /// Components still to follow, the next one last.
    pending: Vec<Vec<u8>>,
    links_followed: usize,
}

impl NameWalk {
    fn push_components(&mut self, name: &[u8]) {
        let components = name
            .split(|byte| *byte == b'/')
            .filter(|component| !component.is_empty() && *component != b".");
        self.pending.extend(components.rev().map(<[u8]>::to_vec));
    }

    fn follow_component(&mut self, component: &[u8]) -> io::Result<()> {
        if component == b".." {
            return self.follow_parent();
        }
        let next = openat(&self.current, component, PATH_ONLY | OFlags::NOFOLLOW, Mode::empty())?;
        if FileType::from_raw_mode(fstat(&next)?.st_mode) != FileType::Symlink {
            self.current = next;
            return Ok(());
        }
        self.links_followed += 1;
        if self.links_followed > MAX_LINKS {
            return Err(io::Error::from_raw_os_error(libc::ELOOP));
        }
        if fstatfs(&next)?.f_type == PROC_SUPER_MAGIC {
            if fstat(&self.current)?.st_ino != PROC_ROOT_INODE {
                // A link of a process leads to the file itself; its text may lead elsewhere.
                self.current = openat(&self.current, component, PATH_ONLY, Mode::empty())?;
                return Ok(());
            }
            match component {
                b"self" => return self.enter_own_entry(""),
                b"thread-self" => return self.enter_own_entry(&format!("/task/{}", self.process)),
                _ => {}
            }
        }
        let link_target = readlinkat(&next, "", Vec::new())?;
        if link_target.as_bytes().starts_with(b"/") {
            self.current = self.root.try_clone()?;
        }
        self.push_components(link_target.as_bytes());
        Ok(())
    }

    /// Enters the process's own directory in procfs. The kernel resolves `self` for the reader,
    /// which would be us. At an exec the process has one thread, whose id is the pid.
    fn enter_own_entry(&mut self, subpath: &str) -> io::Result<()> {
        let entry = open_link(self.process, "")?;
        let directory =
            openat(CWD, format!("/proc/{}{subpath}", self.process), PATH_ONLY, Mode::empty())?;
        let procfs = std::mem::replace(&mut self.current, directory);
        self.own_entry = Some((identify_file(&entry)?, procfs));
        Ok(())
    }

    fn follow_parent(&mut self) -> io::Result<()> {
        if is_same_directory(&self.current, &self.root)? {
            return Ok(());
        }
        let current = identify_file(&self.current)?;
        // Our own procfs may list other processes than the one that the name came from.
        let parent = match &self.own_entry {
            Some((entry, procfs)) if *entry == current => procfs.try_clone()?,
            _ => openat(&self.current, "..", PATH_ONLY | OFlags::DIRECTORY, Mode::empty())?,
        };
        self.current = parent;
        Ok(())
    }
}

/// Returns whether both are the same directory on the same mount: a directory that is mounted twice
/// has two parents.
fn is_same_directory(one: &OwnedFd, other: &OwnedFd) -> io::Result<bool> {
    if identify_file(one)? != identify_file(other)? {
        return Ok(false);
    }
    let mount_id = |descriptor: &OwnedFd| -> io::Result<u64> {
        let stat = statx(descriptor, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
        match StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::MNT_ID) {
            true => Ok(stat.stx_mnt_id),
            false => Err(io::Error::other("the kernel does not report mount ids")),
        }
    };
    Ok(mount_id(one)? == mount_id(other)?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::path::Path;
    use std::process::{Child, Command, Stdio};

    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path =
                std::env::temp_dir().join(format!("jail-resolve-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Scratch(path.canonicalize().unwrap())
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// A process in a directory, with a file as its standard input, until it is dropped.
    struct Idle(Child);

    impl Idle {
        fn new(directory: &Path, input: &Path) -> Idle {
            let input = fs::File::open(input).unwrap();
            let mut command = Command::new("sleep");
            Idle(
                command
                    .arg("600")
                    .current_dir(directory)
                    .stdin(input)
                    .stdout(Stdio::null())
                    .spawn()
                    .unwrap(),
            )
        }

        fn leads_to(&self, name: impl AsRef<OsStr>) -> Option<DeviceInode> {
            let process = i32::try_from(self.0.id()).unwrap();
            open_name(process, name.as_ref().as_bytes()).and_then(identify_file).ok()
        }
    }

    impl Drop for Idle {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn known(path: &Path) -> Option<DeviceInode> {
        fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
    }

    #[test]
    fn a_name_leads_where_it_leads_the_process() {
        let scratch = Scratch::new("names");
        let (file, sub) = (scratch.0.join("file"), scratch.0.join("sub"));
        fs::write(&file, "x").unwrap();
        fs::create_dir(&sub).unwrap();
        symlink("../file", sub.join("relative")).unwrap();
        symlink(&file, sub.join("absolute")).unwrap();
        symlink("/proc/self/cwd/relative", sub.join("through-proc")).unwrap();
        symlink("loop", sub.join("loop")).unwrap();
        let idle = Idle::new(&sub, &file);
        let own = format!("/proc/{}/fd/0", idle.0.id());
        let up = format!("/proc/self/../{}/fd/0", idle.0.id());
        for name in [
            "../file",
            "./relative",
            "absolute",
            "through-proc",
            "/proc/self/fd/0",
            "/proc/thread-self/fd/0",
            "/dev/fd/0",
            "/dev/stdin",
            "/proc/self/cwd/../file",
            &own,
            &up,
            &format!("/../..{}", file.display()),
        ] {
            assert_eq!(idle.leads_to(name), known(&file), "{name}");
        }
        for name in ["", "loop", "absent", "../file/x", "/proc/self/fd/77"] {
            assert_eq!(idle.leads_to(name), None, "{name}");
        }
    }

    #[test]
    fn a_directory_that_is_gone_is_not_the_one_of_its_text() {
        let scratch = Scratch::new("gone");
        let (gone, other) = (scratch.0.join("d"), scratch.0.join("other"));
        fs::create_dir(&gone).unwrap();
        fs::create_dir_all(other.join("sub")).unwrap();
        for path in [scratch.0.join("file"), other.join("file")] {
            fs::write(path, "x").unwrap();
        }
        symlink("other/sub", scratch.0.join("d (deleted)")).unwrap();
        let idle = Idle::new(&gone, &scratch.0.join("file"));
        fs::remove_dir(&gone).unwrap();
        assert_eq!(idle.leads_to("../file"), known(&scratch.0.join("file")));
    }

    #[test]
    fn a_file_is_called_deleted_only_where_that_is_its_name() {
        let scratch = Scratch::new("deleted");
        let path_of = |name: &str, is_removed: bool| {
            let path = scratch.0.join(name);
            fs::write(&path, "x").unwrap();
            let file = OwnedFd::from(fs::File::open(&path).unwrap());
            if is_removed {
                fs::remove_file(&path).unwrap();
            }
            let process = rustix::process::getpid().as_raw_nonzero().get();
            describe_file(process, &file).unwrap().path.rsplit('/').next().unwrap().to_owned()
        };
        assert_eq!(path_of("a (deleted)", false), "a (deleted)");
        assert_eq!(path_of("b", true), "b");
        // The name of the one that is gone now belongs to another.
        fs::write(scratch.0.join("c (deleted)"), "y").unwrap();
        assert_eq!(path_of("c", true), "c");
        assert_eq!(path_of("e (deleted)", true), "e (deleted)");
    }
}
