//! Namespaces of a session: created once, joined by each of its runs.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, WaitOptions};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};
use serde::{Deserialize, Serialize};

use crate::error::{Layer, LayerContext, SandboxError};
use crate::limits;
use crate::packet::PacketChannel;
use crate::sys::{self, ForkResult};

/// Method of obtaining the namespaces of profile `default`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// In our own user namespace: needs no privilege.
    Namespaces,
    /// Through the system's bubblewrap, where only bubblewrap may create user namespaces.
    Bwrap,
    /// As root, where user namespaces are disabled.
    Root,
    /// In our own user namespace, on a kernel whose Landlock is missing or older than version 3:
    /// the mounts alone decide what can be written. No nested sandbox, because it could mount.
    Mounts,
}

impl Tier {
    /// All tiers.
    pub const ALL: &[Tier] = &[Tier::Namespaces, Tier::Bwrap, Tier::Root, Tier::Mounts];

    /// Returns the tier's name for reports.
    pub fn name(self) -> &'static str {
        match self {
            Tier::Namespaces => "namespaces",
            Tier::Root => "root",
            Tier::Bwrap => "bwrap",
            Tier::Mounts => "mounts",
        }
    }
}

/// Moves this process into a session's namespaces: users, mounts, SysV and POSIX queues, host name.
/// Also limits what the session may leave in them.
pub fn enter_session_namespaces(tier: Tier) -> Result<(), SandboxError> {
    let session_flags = UnshareFlags::NEWNS | UnshareFlags::NEWUTS;
    // Only this one user and one group are mapped: we stay who we are and can become no one else.
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    match tier {
        // Root needs no user namespace, and bubblewrap has already created one around us.
        Tier::Root | Tier::Bwrap => {
            sys::unshare(session_flags | UnshareFlags::NEWIPC)
                .in_layer(Layer::Namespaces, "create namespaces")?;
        }
        Tier::Namespaces | Tier::Mounts if user == 0 => {
            create_user_namespace(session_flags | UnshareFlags::NEWIPC, user, group)?
        }
        Tier::Namespaces | Tier::Mounts => {
            // Only root of the user namespace that owns an IPC namespace may limit what is in it.
            // So we become root in a first user namespace, and ourselves again in a second one
            // inside it.
            create_user_namespace(UnshareFlags::NEWIPC, 0, 0)?;
            create_user_namespace(session_flags, user, group)?;
        }
    }
    limits::limit_session(tier != Tier::Root);
    Ok(())
}

/// User and group number that a server's root has in a run that is a sandbox itself.
const ORDINARY_ID: u32 = 1000;

/// Lets this process create user namespaces after it has dropped every capability. Root cannot: the
/// kernel requires a capability of a process that maps root into another namespace. So root gets
/// another number first, in a namespace in between.
pub fn become_ordinary_user() -> Result<(), SandboxError> {
    match rustix::process::geteuid().is_root() {
        true => create_user_namespace(UnshareFlags::empty(), ORDINARY_ID, ORDINARY_ID),
        false => Ok(()),
    }
}

/// Creates a user namespace, and `other_flags` with it, in which this process's user and group have
/// these numbers.
fn create_user_namespace(
    other_flags: UnshareFlags,
    user: u32,
    group: u32,
) -> Result<(), SandboxError> {
    let (outer_user, outer_group) =
        (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    sys::unshare(UnshareFlags::NEWUSER | other_flags)
        .in_layer(Layer::UserNamespace, "create a user namespace")?;
    let write = |file: &str, text: String| {
        fs::write(format!("/proc/self/{file}"), text)
            .in_layer(Layer::UserNamespace, format!("write {file}"))
    };
    write("setgroups", "deny".to_owned())?;
    write("uid_map", format!("{user} {outer_user} 1"))?;
    write("gid_map", format!("{group} {outer_group} 1"))
}

/// Creates a network that ends at its own loopback. This process stays in the network it is in.
pub fn create_network() -> Result<OwnedFd, SandboxError> {
    let layer = Layer::Network;
    let (parent_channel, child_channel) =
        PacketChannel::pair().in_layer(layer, "open a channel")?;
    match sys::fork(0).in_layer(layer, "fork")? {
        ForkResult::Child => {
            drop(parent_channel);
            let created = enter_new_network();
            let sent = created.and_then(|network| {
                child_channel
                    .send(&None::<SandboxError>, &[network.as_fd()])
                    .in_layer(layer, "hand the network over")
            });
            // A packet with a descriptor can be refused where one without is not: when the user has
            // too many descriptors in transit.
            let reported = sent.or_else(|error| child_channel.send(&Some(error), &[]));
            sys::exit_now(i32::from(reported.is_err()));
        }
        ForkResult::Parent(child) => {
            drop(child_channel);
            let answer = parent_channel
                .receive::<Option<SandboxError>>()
                .in_layer(layer, "receive the network");
            let child_exit = reap_child(child);
            match answer? {
                Some((None, mut fds)) if fds.len() == 1 => Ok(fds.remove(0)),
                Some((Some(error), _)) => Err(error),
                _ => Err(SandboxError::from_message(
                    layer,
                    "create a network",
                    format!("the process that creates it was lost: {child_exit}"),
                )),
            }
        }
    }
}

/// Moves this process into a new network that ends at its own loopback, and returns a handle to it.
pub fn enter_new_network() -> Result<OwnedFd, SandboxError> {
    sys::unshare(UnshareFlags::NEWNET).in_layer(Layer::Network, "create a network namespace")?;
    sys::bring_loopback_up().in_layer(Layer::Network, "bring the loopback up")?;
    let link = fs::File::open("/proc/self/ns/net")
        .in_layer(Layer::Network, "open the network namespace")?;
    Ok(link.into())
}

/// Waits for a child to end, and describes how it ended.
fn reap_child(child: Pid) -> String {
    match rustix::io::retry_on_intr(|| rustix::process::waitpid(Some(child), WaitOptions::empty()))
    {
        Ok(Some((_, status))) => match (status.terminating_signal(), status.exit_status()) {
            (Some(signal), _) => format!("killed by signal {signal}"),
            (None, Some(code)) => format!("it exited with status {code}"),
            (None, None) => "it ended for an unknown reason".to_owned(),
        },
        Ok(None) => "it has not ended".to_owned(),
        Err(errno) => format!("it cannot be waited for: {errno}"),
    }
}

/// Sends a socket that belongs to `network` to a process that is in another network.
pub fn send_network_socket(
    network: &OwnedFd,
    ipv6: bool,
    channel: &PacketChannel,
) -> Result<(), SandboxError> {
    join_network(network)?;
    let family = if ipv6 { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .in_layer(Layer::Network, "create a socket")?;
    channel.send(&(), &[socket.as_fd()]).in_layer(Layer::Network, "send a socket")
}

/// Moves this process into one of the session's networks.
pub fn join_network(network: &OwnedFd) -> Result<(), SandboxError> {
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
        .in_layer(Layer::Network, "join the session's network")
}

/// Opens the port at which a run reaches the proxy: a listener in the run's own network, on which
/// the server accepts connections. All of 127.0.0.0/8 leads to it, so that a run which acts for
/// several others can use one address for each. Nothing but loopback exists in that network.
pub fn open_proxy_listener() -> Result<(TcpListener, u16), SandboxError> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))
        .in_layer(Layer::Network, "open the proxy's port")?;
    let port = listener.local_addr().in_layer(Layer::Network, "find the proxy's port")?.port();
    Ok((listener, port))
}
