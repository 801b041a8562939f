//! Builds the file system that a run sees.
//!
//! All work is done on descriptors with the new mount API (`open_tree`, `move_mount`,
//! `mount_setattr`), never on path names, which a running program could replace between check and
//! use.
//!
//! The session root is built once per session: the host's system read-only, private `/tmp`, `/run`
//! and `/dev`, covers over hidden paths, and the writable directories opened. Each run starts from
//! a copy of it and adds what belongs to that run alone: `/proc`, the covers over protected paths,
//! and any restrictions narrower than the session's.

mod run_restrictions;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatVfsMountFlags, StatxAttributes,
    StatxFlags, fstat, fstatvfs, mkdirat, openat, openat2, statx, symlinkat,
};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount,
    fsopen, mount_change, move_mount, open_tree, unmount,
};

use crate::error::{Layer, LayerContext, SandboxError};
use crate::rights::Rights;
use crate::sys::{self, NODEV, NOEXEC, NOSUID, RDONLY};

/// Directories that are private to a session (a fresh tmpfs each), with mode and size limits.
const PRIVATE_DIRECTORIES: &[(&str, &str, TmpfsSize)] = &[
    ("/tmp", "1777", TmpfsSize { max_bytes: "2g", max_files: "512k" }),
    ("/var/tmp", "1777", TmpfsSize { max_bytes: "512m", max_files: "128k" }),
    ("/run", "0755", TmpfsSize { max_bytes: "64m", max_files: "16k" }),
];
const SHM_SIZE: TmpfsSize = TmpfsSize { max_bytes: "512m", max_files: "64k" };
/// Size of a tmpfs for names and mount points only: large enough for directory entries and links,
/// far too small to store file contents.
const NAMES_ONLY_SIZE: TmpfsSize = TmpfsSize { max_bytes: "64k", max_files: "4k" };
/// Maximum number of pseudo-terminals per session. The kernel has only a few thousand for the whole
/// machine.
const MAX_TERMINALS: &str = "256";

/// Size limits of a tmpfs. Empty files, directories and links use no tmpfs blocks but about 1 KiB
/// of kernel memory each, so their number is limited separately.
struct TmpfsSize {
    max_bytes: &'static str,
    max_files: &'static str,
}

/// Entries in the private `/dev`: the directory for a run's own `resolv.conf`, and the empty
/// directory and file that are mounted over hidden paths.
const RESOLVER_DIRECTORY: &str = ".resolver";
const HIDDEN_DIRECTORY: &str = ".hidden";
const HIDDEN_FILE: &str = ".hidden-file";

pub const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Network interfaces of the namespace in which `/sys` was mounted; each entry links to a directory
/// of its device.
const NETWORK_INTERFACES: &str = "/sys/class/net";
/// Directory of the interfaces that have no hardware device (virtual machines, containers,
/// tunnels), including ones that appear later.
const VIRTUAL_INTERFACES: &str = "/sys/devices/virtual/net";

const DEVICES: &[&str] = &["null", "zero", "full", "random", "urandom", "tty"];
const DEVICE_LINKS: &[(&str, &str)] = &[
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];

/// Entries of `/proc` that uid 0 can write without any capability, because it owns the files.
const PROC_COVERS: &[&str] = &["sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi"];

/// Builds the session root and makes it the root of this process, which must be alone in its mount
/// namespace.
pub fn build_session_root(rights: &Rights) -> Result<(), SandboxError> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .in_mounts("make the mounts private")?;
    let host_root =
        openat(CWD, "/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .in_mounts("open /")?;
    // Copied before anything is covered, from the tree as the host sees it.
    let opened = clone_opened(&host_root, rights)?;
    let resolv_conf = clone_resolv_conf(&host_root);
    let root =
        clone_tree(host_root.as_fd(), true, RDONLY | NOSUID).in_mounts("copy the mount tree")?;
    attach_mount(&root, &host_root).in_mounts("attach the copied tree")?;

    let tree = MountTree { root };
    let mut covers: Vec<OwnedFd> = Vec::new();
    for (path, mode, size) in PRIVATE_DIRECTORIES {
        if let Some(mount_point) = tree.open(Path::new(path)).in_mounts(*path)? {
            attach_mount(&make_tmpfs(mode, size, NOSUID | NODEV).in_mounts(*path)?, &mount_point)
                .in_mounts(*path)?;
        }
    }
    mount_devices(&tree, &host_root)?;
    for (path, source) in resolv_conf {
        let mount_point =
            tree.make_mount_point(&path, true).in_mounts(path.display().to_string())?;
        attach_mount(&source, &mount_point).in_mounts(path.display().to_string())?;
    }
    // Work from the outside in: an opened directory may be inside a hidden one, and the reverse.
    let mut steps: Vec<(PathBuf, Option<OwnedFd>)> =
        opened.into_iter().map(|(path, it)| (path, Some(it))).collect();
    steps.extend(hidden_in_session_root(rights).map(|path| (path.clone(), None)));
    steps.sort_by(|one, other| one.0.cmp(&other.0));
    for (path, source) in steps {
        let path_text = path.display().to_string();
        match source {
            Some(source) => {
                attach_mount(&source, &tree.make_mount_point(&path, false).in_mounts(&path_text)?)
                    .in_mounts(&path_text)?
            }
            None if contains_opened(rights, &path) => {
                covers.extend(hide_around_opened(&tree, &path).in_mounts(&path_text)?)
            }
            None => hide_path(&tree, &path).in_mounts(&path_text)?,
        }
    }
    for cover in covers {
        sys::mount_setattr(cover.as_fd(), RDONLY, false).in_mounts("make a cover read-only")?;
    }
    tree.switch_root().in_mounts("switch to the new root")
}

/// Returns the paths that are hidden for the whole session: all except those inside an opened
/// directory, since these may change from run to run. A hidden path that itself contains an opened
/// directory is included, because covering it later would cover that directory as well.
fn hidden_in_session_root(rights: &Rights) -> impl Iterator<Item = &PathBuf> {
    let is_outside_roots =
        |path: &Path| !opened_directories(rights).any(|root| path.starts_with(root));
    rights.hidden.iter().filter(move |path| is_outside_roots(path) || contains_opened(rights, path))
}

/// Returns whether an opened directory is `path` itself or inside it.
pub fn contains_opened(rights: &Rights, path: &Path) -> bool {
    opened_directories(rights).any(|root| root.starts_with(path))
}

/// Adds the mounts of a single run that depend on nothing that may change before its program
/// starts. The process must be alone in its mount and pid namespaces.
///
/// `resolv_conf` is set for a run with its own network namespace.
pub fn build_run_mounts(rights: &Rights, resolv_conf: Option<&str>) -> Result<(), SandboxError> {
    let tree = MountTree::current()?;
    mount_proc(&tree, rights.nested)?;
    if let Some(text) = resolv_conf {
        mount_resolv_conf(&tree, text).in_mounts(RESOLV_CONF)?;
        hide_host_interfaces(&tree).in_mounts(NETWORK_INTERFACES)?;
    }
    Ok(())
}

/// Adds the mounts that restrict a single run: the covers over protected paths, and whatever the
/// run may not see or write although its session may. They are made when the command of the run is
/// known, because they depend on what exists by then.
pub fn restrict_run(rights: &Rights, covers: &[PathBuf]) -> Result<(), SandboxError> {
    let tree = MountTree::current()?;
    run_restrictions::cover_partially(&tree, rights)?;
    let mut reopened = run_restrictions::clone_reopened(&tree, rights, covers)?;
    run_restrictions::make_read_only(&tree, rights)?;
    let mut pinned: Vec<PathBuf> = Vec::new();
    for path in covers {
        let path_text = || path.display().to_string();
        reopened.attach_up_to(&tree, path)?;
        pin_ancestors(&tree, rights, path, &mut pinned).in_layer(Layer::Protected, path_text())?;
        let mount_point = tree.open_no_follow(path).in_layer(Layer::Protected, path_text())?;
        let copy = clone_tree(mount_point.as_fd(), true, RDONLY | NOSUID)
            .in_layer(Layer::Protected, path_text())?;
        attach_mount(&copy, &mount_point).in_layer(Layer::Protected, path_text())?;
    }
    reopened.attach_rest(&tree)?;
    // A hidden path that contains an opened directory was covered when the session root was built;
    // covering it now would hide that directory too.
    for path in rights.hidden.iter().filter(|path| !contains_opened(rights, path)) {
        let path_text = || path.display().to_string();
        let in_opened = opened_directories(rights).any(|root| path.starts_with(root));
        match tree.open(path).in_mounts(path_text())? {
            // Already covered by the session root.
            Some(mount_point)
                if !in_opened && is_covered_by_us(&tree, &mount_point).in_mounts(path_text())? => {}
            // It is inside an opened directory, or was created after the session root was built.
            Some(_) => {
                pin_ancestors(&tree, rights, path, &mut pinned).in_mounts(path_text())?;
                hide_path(&tree, path).in_mounts(path_text())?;
            }
            None => {}
        }
    }
    if rights.nested {
        // A nested sandbox works on a copy of this tree, and covers that are restored later must
        // propagate to it.
        mount_change("/", MountPropagationFlags::SHARED | MountPropagationFlags::REC)
            .in_mounts("share the mount tree")?;
    }
    Ok(())
}

/// Restores the cover over a protected path if it is gone, and returns whether it was gone. Also
/// restores the mount points on the directories between the writable root and that path.
pub fn restore_cover(rights: &Rights, path: &Path) -> io::Result<bool> {
    let root = openat(CWD, "/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let tree = MountTree { root };
    for ancestor in ancestors_in_root(rights, path) {
        let target = tree.open_without_links(ancestor)?;
        if !is_mount_point(&target)? {
            attach_mount(&clone_tree(target.as_fd(), true, NOSUID)?, &target)?;
        }
    }
    let target = tree.open_no_follow(path)?;
    if fstatvfs(&target)?.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Ok(false);
    }
    attach_mount(&clone_tree(target.as_fd(), true, RDONLY | NOSUID)?, &target)?;
    Ok(true)
}

/// Covers a hidden path again if its cover is gone, and returns whether it was gone.
pub fn restore_hidden(path: &Path) -> io::Result<bool> {
    let root = openat(CWD, "/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let tree = MountTree { root };
    match tree.open(path)? {
        Some(target) if !is_mount_point(&target)? => hide_path(&tree, path).map(|()| true),
        _ => Ok(false),
    }
}

fn is_mount_point(object: &OwnedFd) -> rustix::io::Result<bool> {
    let stat = statx(object, "", AtFlags::EMPTY_PATH, StatxFlags::empty())?;
    Ok(stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Returns whether our own cover is mounted here. A mount point of the host does not count.
fn is_covered_by_us(tree: &MountTree, object: &OwnedFd) -> rustix::io::Result<bool> {
    for name in [HIDDEN_DIRECTORY, HIDDEN_FILE] {
        if is_same_object(
            object.as_fd(),
            tree.open_without_links(&Path::new("/dev").join(name))?.as_fd(),
        )? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the directories that are opened for the session: the writable roots, the workspace even
/// if it is read-only, and what stays readable inside hidden directories.
fn opened_directories(rights: &Rights) -> impl Iterator<Item = &Path> {
    let readable = rights.readable.iter().map(PathBuf::as_path);
    rights.writable_roots().chain([rights.workspace.as_path()]).chain(readable)
}

/// Attributes an error to the mount layer.
trait MountContext<T> {
    fn in_mounts(self, what: impl Into<String>) -> Result<T, SandboxError>;
}

impl<T, E: Into<io::Error>> MountContext<T> for Result<T, E> {
    fn in_mounts(self, what: impl Into<String>) -> Result<T, SandboxError> {
        self.in_layer(Layer::Mounts, what)
    }
}

/// A mount tree in which paths are resolved; resolution never leaves its root.
struct MountTree {
    root: OwnedFd,
}

impl MountTree {
    /// Opens the mount tree of this process.
    fn current() -> Result<MountTree, SandboxError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(MountTree { root: openat(CWD, "/", flags, Mode::empty()).in_mounts("open /")? })
    }

    /// Opens a path, following symbolic links inside the tree. Returns `None` if it does not exist
    /// or cannot be reached.
    fn open(&self, path: &Path) -> rustix::io::Result<Option<OwnedFd>> {
        match open_beneath(&self.root, path, ResolveFlags::empty()) {
            Ok(fd) => Ok(Some(fd)),
            // It may exist, but a run has the same user as this process and cannot reach it either.
            Err(
                Errno::NOENT | Errno::NOTDIR | Errno::ACCESS | Errno::LOOP | Errno::NAMETOOLONG,
            ) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Opens a path and fails if any component is a symbolic link.
    fn open_without_links(&self, path: &Path) -> rustix::io::Result<OwnedFd> {
        open_beneath(&self.root, path, ResolveFlags::NO_SYMLINKS)
    }

    /// Opens the object at a path even if it is a symbolic link itself; fails if any component
    /// before it is one.
    fn open_no_follow(&self, path: &Path) -> rustix::io::Result<OwnedFd> {
        let resolve =
            ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
        openat2(
            &self.root,
            path,
            OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
            resolve,
        )
    }

    /// Opens a path to mount on. If a cover hides the way to it, the missing directories are
    /// created inside the cover.
    fn make_mount_point(&self, path: &Path, is_file: bool) -> io::Result<OwnedFd> {
        if let Ok(fd) = self.open_without_links(path) {
            return Ok(fd);
        }
        let mut names = path.iter().skip(1).peekable();
        let mut current_path = PathBuf::from("/");
        let mut directory = openat(
            &self.root,
            ".",
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        while let Some(name) = names.next() {
            current_path.push(name);
            match names.peek() {
                None if is_file => create_empty_file(&directory, name)?,
                _ => match mkdirat(&directory, name, Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(Errno::EXIST | Errno::ROFS) => {}
                    Err(errno) => return Err(errno.into()),
                },
            }
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let next = openat(&directory, name, flags, Mode::empty())?;
            directory = match names.peek() {
                // In a directory that runs can write, a run could rename this component and put
                // another tree in its place, and the next run's mounts would land there. A mount
                // point cannot be renamed.
                Some(_) if is_in_private_directory(&current_path) && !is_mount_point(&next)? => {
                    attach_mount(&clone_tree(next.as_fd(), false, NOSUID | NODEV)?, &next)?;
                    openat(&directory, name, flags, Mode::empty())?
                }
                _ => next,
            };
        }
        Ok(directory)
    }

    fn switch_root(&self) -> rustix::io::Result<()> {
        rustix::process::fchdir(&self.root)?;
        // The old root ends up stacked on top of the new one; detach it.
        rustix::process::pivot_root(".", ".")?;
        unmount(".", UnmountFlags::DETACH)?;
        rustix::process::chdir("/")
    }
}

/// Returns whether a path is inside one of the session's private directories. Directories above
/// those belong to the host, and a copy of them would expose what the private directory covers.
fn is_in_private_directory(path: &Path) -> bool {
    PRIVATE_DIRECTORIES
        .iter()
        .any(|(private, ..)| path.starts_with(private) && path != Path::new(private))
}

/// Opens `path` below `root` without leaving it and without following magic links such as
/// `/proc/self/fd`.
fn open_beneath(
    root: &OwnedFd,
    path: &Path,
    extra_flags: ResolveFlags,
) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | extra_flags;
    openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// Creates an empty file to mount over.
fn create_empty_file(directory: &OwnedFd, name: &OsStr) -> rustix::io::Result<()> {
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(directory, name, flags, Mode::from_raw_mode(0o666)).map(drop)
}

/// Returns a detached copy of what is mounted at `source`, with the flags set.
fn clone_tree(source: BorrowedFd<'_>, recursive: bool, flags: u64) -> io::Result<OwnedFd> {
    let mut tree_flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    if recursive {
        tree_flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    let tree = open_tree(source, "", tree_flags)?;
    sys::mount_setattr(tree.as_fd(), flags, recursive)?;
    Ok(tree)
}

/// Mounts a detached tree at `mount_point`.
fn attach_mount(mount: &OwnedFd, mount_point: &OwnedFd) -> rustix::io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", mount_point, "", flags)
}

fn make_tmpfs(mode: &str, size: &TmpfsSize, flags: u64) -> io::Result<OwnedFd> {
    let options = [("mode", mode), ("size", size.max_bytes), ("nr_inodes", size.max_files)];
    make_file_system("tmpfs", &options, &[], flags)
}

/// Creates a detached file system of this type; `switches` are options without a value.
fn make_file_system(
    kind: &str,
    options: &[(&str, &str)],
    switches: &[&str],
    flags: u64,
) -> io::Result<OwnedFd> {
    let fs = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        fsconfig_set_string(fs.as_fd(), *key, *value)?;
    }
    for switch in switches {
        fsconfig_set_flag(fs.as_fd(), *switch)?;
    }
    fsconfig_create(fs.as_fd())?;
    let flags = MountAttrFlags::from_bits_retain(flags as u32);
    Ok(fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)?)
}

/// Returns copies of the opened directories as the host sees them, outer directories first.
fn clone_opened(
    host_root: &OwnedFd,
    rights: &Rights,
) -> Result<Vec<(PathBuf, OwnedFd)>, SandboxError> {
    let mut paths: Vec<PathBuf> = opened_directories(rights).map(Path::to_owned).collect();
    paths.sort();
    paths.dedup();
    let mut sources = Vec::new();
    for path in paths {
        let directory = open_beneath(host_root, &path, ResolveFlags::NO_SYMLINKS)
            .in_mounts(path.display().to_string())?;
        // Each run makes its own restrictions to what is writable; this one is for all of them.
        let read_only = if rights.readable.contains(&path) { RDONLY } else { 0 };
        let source = clone_tree(directory.as_fd(), true, NOSUID | NODEV | read_only)
            .in_mounts(path.display().to_string())?;
        sources.push((path, source));
    }
    Ok(sources)
}

/// Returns the single files from private directories that programs still need: the file behind
/// `/etc/resolv.conf`, which is often in `/run`.
fn clone_resolv_conf(host_root: &OwnedFd) -> Vec<(PathBuf, OwnedFd)> {
    let Ok(target) = std::fs::canonicalize(RESOLV_CONF) else { return Vec::new() };
    if !PRIVATE_DIRECTORIES.iter().any(|(path, ..)| target.starts_with(path)) {
        return Vec::new();
    }
    let source =
        open_beneath(host_root, &target, ResolveFlags::NO_SYMLINKS).map_err(io::Error::from);
    let source =
        source.and_then(|place| clone_tree(place.as_fd(), false, RDONLY | NOSUID | NODEV | NOEXEC));
    source.map(|source| (target, source)).into_iter().collect()
}

/// Mounts a private `/dev` that has only harmless devices, its own pseudo-terminals and its own
/// shared memory.
fn mount_devices(tree: &MountTree, host_root: &OwnedFd) -> Result<(), SandboxError> {
    let Some(mount_point) = tree.open(Path::new("/dev")).in_mounts("/dev")? else { return Ok(()) };
    let dev = make_tmpfs("0755", &NAMES_ONLY_SIZE, NOSUID | NOEXEC).in_mounts("/dev")?;
    for name in DEVICES {
        create_empty_file(&dev, OsStr::new(name)).in_mounts(format!("/dev/{name}"))?;
    }
    for (name, mode) in
        [("pts", 0o755), ("shm", 0o755), (RESOLVER_DIRECTORY, 0o755), (HIDDEN_DIRECTORY, 0o000)]
    {
        mkdirat(&dev, name, Mode::from_raw_mode(mode)).in_mounts(format!("/dev/{name}"))?;
    }
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    drop(openat(&dev, HIDDEN_FILE, flags, Mode::empty()).in_mounts("/dev")?);
    for (name, target) in DEVICE_LINKS {
        symlinkat(*target, &dev, *name).in_mounts(format!("/dev/{name}"))?;
    }
    attach_mount(&dev, &mount_point).in_mounts("/dev")?;
    let open_entry = |name: &str| openat(&dev, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    for name in DEVICES {
        let device_path = format!("/dev/{name}");
        // A host may lack a device; the entry then stays an empty file.
        if let Ok(source) =
            open_beneath(host_root, Path::new(&device_path), ResolveFlags::NO_SYMLINKS)
        {
            let copy =
                clone_tree(source.as_fd(), false, NOSUID | NOEXEC).in_mounts(&device_path)?;
            attach_mount(&copy, &open_entry(name).in_mounts(&device_path)?)
                .in_mounts(&device_path)?;
        }
    }
    let options = [("ptmxmode", "0666"), ("mode", "620"), ("max", MAX_TERMINALS)];
    let pts = make_file_system("devpts", &options, &["newinstance"], NOSUID | NOEXEC);
    attach_mount(&pts.in_mounts("/dev/pts")?, &open_entry("pts").in_mounts("/dev/pts")?)
        .in_mounts("/dev/pts")?;
    let shm = make_tmpfs("1777", &SHM_SIZE, NOSUID | NODEV).in_mounts("/dev/shm")?;
    attach_mount(&shm, &open_entry("shm").in_mounts("/dev/shm")?).in_mounts("/dev/shm")?;
    sys::mount_setattr(dev.as_fd(), RDONLY, false).in_mounts("/dev")
}

/// Covers a path so that nothing in it can be read, by mounting an unreadable object from `/dev`
/// over it.
fn hide_path(tree: &MountTree, path: &Path) -> io::Result<()> {
    let Some(target) = tree.open(path)? else { return Ok(()) };
    let empty = match FileType::from_raw_mode(fstat(&target)?.st_mode) {
        FileType::Directory => HIDDEN_DIRECTORY,
        _ => HIDDEN_FILE,
    };
    let empty = tree.open_without_links(&Path::new("/dev").join(empty))?;
    Ok(attach_mount(&clone_tree(empty.as_fd(), false, RDONLY | NOSUID | NODEV | NOEXEC)?, &target)?)
}

/// Covers a directory that contains an opened directory. The cover stays writable for now, because
/// the path to that directory must still be created in it.
fn hide_around_opened(tree: &MountTree, path: &Path) -> io::Result<Option<OwnedFd>> {
    let Some(target) = tree.open(path)? else { return Ok(None) };
    let cover = make_tmpfs("0711", &NAMES_ONLY_SIZE, NOSUID | NODEV | NOEXEC)?;
    attach_mount(&cover, &target)?;
    Ok(Some(cover))
}

/// Mounts a fresh `/proc`, which shows only the run's own processes. It is read-only: uid 0 owns the
/// files of the first process of the run, which is ours. A nested sandbox has to write to it, and
/// only its kernel controls are read-only then.
fn mount_proc(tree: &MountTree, nested: bool) -> Result<(), SandboxError> {
    let flags = NOSUID | NODEV | NOEXEC;
    let proc = make_file_system("proc", &[], &[], if nested { flags } else { flags | RDONLY })
        .in_layer(Layer::Proc, "mount /proc")?;
    let Some(mount_point) = tree.open(Path::new("/proc")).in_layer(Layer::Proc, "open /proc")?
    else {
        return Ok(());
    };
    attach_mount(&proc, &mount_point).in_layer(Layer::Proc, "attach /proc")?;
    for name in PROC_COVERS {
        let opened =
            openat(&proc, *name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
        let entry = match opened {
            Ok(entry) => entry,
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(errno).in_layer(Layer::Proc, *name),
        };
        let copy = clone_tree(entry.as_fd(), true, RDONLY | NOSUID | NODEV | NOEXEC)
            .in_layer(Layer::Proc, *name)?;
        attach_mount(&copy, &entry).in_layer(Layer::Proc, *name)?;
    }
    Ok(())
}

/// Points name lookups at the run's own resolver. If the host has no `resolv.conf`, there is
/// nothing to mount over, and programs fall back to their defaults.
fn mount_resolv_conf(tree: &MountTree, text: &str) -> io::Result<()> {
    let Some(mount_point) = tree.open(Path::new(RESOLV_CONF))? else { return Ok(()) };
    let directory = tree.open_without_links(&Path::new("/dev").join(RESOLVER_DIRECTORY))?;
    let tmpfs = make_tmpfs("0755", &NAMES_ONLY_SIZE, NOSUID | NODEV | NOEXEC)?;
    // `open_tree` cannot copy a file from a tree that is not attached.
    attach_mount(&tmpfs, &directory)?;
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = openat(&tmpfs, "resolv.conf", flags, Mode::from_raw_mode(0o644))?;
    File::from(file).write_all(text.as_bytes())?;
    sys::mount_setattr(tmpfs.as_fd(), RDONLY, false)?;
    let file = openat(&tmpfs, "resolv.conf", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    Ok(attach_mount(
        &clone_tree(file.as_fd(), false, RDONLY | NOSUID | NODEV | NOEXEC)?,
        &mount_point,
    )?)
}

/// Hides the host's network interfaces (names, addresses, counters) from a run with its own network
/// namespace. Mounting a fresh `/sys` would show the run's own interfaces instead, but the kernel
/// forbids that in a container that has parts of `/sys` covered.
fn hide_host_interfaces(tree: &MountTree) -> io::Result<()> {
    let mut directories =
        vec![PathBuf::from(NETWORK_INTERFACES), PathBuf::from(VIRTUAL_INTERFACES)];
    let links = match tree.open(Path::new(NETWORK_INTERFACES))? {
        Some(_) => std::fs::read_dir(NETWORK_INTERFACES)?,
        None => return Ok(()),
    };
    // Each interface is in the `net` directory of its device.
    let devices = links
        .filter_map(|link| link.ok()?.path().canonicalize().ok()?.parent().map(Path::to_owned));
    directories.extend(
        devices.filter(|directory| {
            directory.starts_with("/sys/devices") && directory.ends_with("net")
        }),
    );
    directories.sort();
    directories.dedup();
    directories.iter().try_for_each(|directory| hide_path(tree, directory))
}

/// Turns every directory between the writable root and a protected path into a mount point. A mount
/// point cannot be renamed, so the protected path cannot be moved away together with a directory
/// above it.
fn pin_ancestors(
    tree: &MountTree,
    rights: &Rights,
    path: &Path,
    pinned: &mut Vec<PathBuf>,
) -> io::Result<()> {
    for ancestor in ancestors_in_root(rights, path) {
        if !pinned.iter().any(|known| known == ancestor) {
            let directory = tree.open_without_links(ancestor)?;
            attach_mount(&clone_tree(directory.as_fd(), true, NOSUID)?, &directory)?;
            pinned.push(ancestor.to_owned());
        }
    }
    Ok(())
}

/// Returns the directories between the innermost writable root and `path`, outermost first.
pub fn ancestors_in_root<'p>(rights: &Rights, path: &'p Path) -> Vec<&'p Path> {
    let roots = rights.writable_roots().filter(|root| path.starts_with(root));
    let Some(root) = roots.max_by_key(|root| root.as_os_str().len()) else { return Vec::new() };
    let mut above: Vec<&Path> =
        path.ancestors().skip(1).take_while(|above| *above != root).collect();
    above.reverse();
    above
}

/// Returns whether both descriptors refer to the same object, even if seen through different
/// mounts.
pub fn is_same_object(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    let (one, other) = (fstat(one)?, fstat(other)?);
    Ok((one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
}

/// Opens the working directory of a run, as the run sees it.
pub fn open_working_directory(path: &Path) -> rustix::io::Result<OwnedFd> {
    // The server has already resolved this path; a link found now was put there by a run.
    let resolve = ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
    openat2(CWD, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty(), resolve)
}
