//! Attempts that concern namespaces.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, OpenTreeFlags, fsconfig_create, fsmount, fsopen,
    open_tree,
};
use rustix::thread::UnshareFlags;

use super::{AttemptResult, attempt_in_child, not_refused_error};
use crate::error::{Layer, LayerContext, SandboxError};
use crate::sys::{self, NOSUID, RDONLY};

/// Basis on which the other namespaces are created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamespaceBase {
    UserNamespace,
    /// Without user namespaces; only root can do this.
    Root,
}

impl NamespaceBase {
    fn enter(self) -> Result<(), SandboxError> {
        if self == NamespaceBase::UserNamespace {
            enter_user_namespace()?;
        }
        Ok(())
    }
}

/// Creates a user namespace and then maps the ids, because some hosts allow the first step and
/// refuse the second.
pub fn enter_user_namespace() -> AttemptResult {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    sys::unshare(UnshareFlags::NEWUSER).in_layer(Layer::UserNamespace, "make a user namespace")?;
    let write = |file: &str, text: String| {
        fs::write(format!("/proc/self/{file}"), text)
            .in_layer(Layer::UserNamespace, format!("write {file}"))
    };
    write("setgroups", "deny".to_owned())?;
    write("uid_map", format!("{user} {user} 1"))?;
    write("gid_map", format!("{group} {group} 1"))?;
    Ok(String::new())
}

/// Creates a mount namespace without a user namespace.
pub fn unshare_mounts_as_root() -> AttemptResult {
    sys::unshare(UnshareFlags::NEWNS).in_layer(Layer::Mounts, "make a mount namespace")?;
    Ok(String::new())
}

/// Makes a read-only copy of all mounts, which must refuse a write that would otherwise be allowed.
pub fn copy_mounts_read_only(base: NamespaceBase, scratch: &Path) -> AttemptResult {
    let layer = Layer::Mounts;
    base.enter()?;
    sys::unshare(UnshareFlags::NEWNS).in_layer(layer, "make a mount namespace")?;
    let tree_flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE;
    let tree = open_tree(CWD, "/", tree_flags).in_layer(layer, "copy the mounts")?;
    sys::mount_setattr(tree.as_fd(), RDONLY | NOSUID, true)
        .in_layer(layer, "make the copy read-only")?;
    let path_in_copy = scratch.strip_prefix("/").unwrap_or(scratch).join("copy");
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    match openat(&tree, &path_in_copy, flags, Mode::from_raw_mode(0o600)) {
        Err(Errno::ROFS) => Ok(String::new()),
        Err(errno) => Err(errno).in_layer(layer, "write to the copy"),
        Ok(_) => Err(not_refused_error(layer, "write to the copy")),
    }
}

/// Creates a pid namespace, in which the first process must have pid 1.
pub fn enter_pid_namespace(base: NamespaceBase) -> AttemptResult {
    base.enter()?;
    attempt_in_child(libc::CLONE_NEWPID, expect_pid_one)
}

fn expect_pid_one() -> AttemptResult {
    match rustix::process::getpid().is_init() {
        true => Ok(String::new()),
        false => Err(SandboxError::from_message(
            Layer::Namespaces,
            "be process 1 of the namespace",
            "the process has another pid",
        )),
    }
}

/// Mounts a fresh /proc, which must show the new pid namespace, with this process as the first.
pub fn mount_proc(base: NamespaceBase) -> AttemptResult {
    base.enter()?;
    attempt_in_child(libc::CLONE_NEWPID | libc::CLONE_NEWNS, || {
        let layer = Layer::Proc;
        let fs = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC).in_layer(layer, "open a new /proc")?;
        fsconfig_create(fs.as_fd()).in_layer(layer, "make a new /proc")?;
        let flags = MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let proc = fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)
            .in_layer(layer, "mount a new /proc")?;
        let self_link = rustix::fs::readlinkat(&proc, "self", Vec::new())
            .in_layer(layer, "read the new /proc")?;
        match self_link.as_bytes() {
            b"1" => Ok(String::new()),
            _ => Err(SandboxError::from_message(
                layer,
                "read the new /proc",
                "it shows other processes",
            )),
        }
    })
}

/// Creates a network namespace that has a loopback interface and no route out.
pub fn make_isolated_network(base: NamespaceBase) -> AttemptResult {
    let layer = Layer::Network;
    base.enter()?;
    let network = crate::namespaces::create_network()?;
    crate::namespaces::join_network(&network)?;
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).in_layer(layer, "listen on the loopback")?;
    let address = listener.local_addr().in_layer(layer, "listen on the loopback")?;
    TcpStream::connect(address).in_layer(layer, "use the loopback")?;
    // An address reserved for documentation: no host answers there, but a route to it would be
    // found if one existed.
    let route_attempt = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
        .and_then(|socket| socket.connect(("192.0.2.1", 9)));
    match route_attempt {
        Err(_) => Ok(String::new()),
        Ok(()) => Err(not_refused_error(layer, "find a route out")),
    }
}
