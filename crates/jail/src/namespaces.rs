//! The namespaces of a session: made once, joined by each of its runs.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, WaitOptions};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};
use serde::{Deserialize, Serialize};

use crate::fault::{Fault, InLayer, Layer};
use crate::limits;
use crate::packet::Channel;
use crate::sys::{self, Fork};

/// How the namespaces of profile `default` are come by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// In a user namespace of our own: needs no privilege.
    Namespaces,
    /// Through the system's bubblewrap, where only that may make user namespaces.
    Bwrap,
    /// As root, where user namespaces are switched off.
    Root,
}

impl Tier {
    pub fn name(self) -> &'static str {
        match self {
            Tier::Namespaces => "namespaces",
            Tier::Root => "root",
            Tier::Bwrap => "bwrap",
        }
    }
}

/// Moves this process into namespaces of a session: users, mounts, SysV and POSIX queues, host name. What the session may
/// leave in them is limited.
pub fn enter(tier: Tier) -> Result<(), Fault> {
    let session = UnshareFlags::NEWNS | UnshareFlags::NEWUTS;
    // We stay who we are, and are nobody else: one user, one group.
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    match tier {
        // As root none of users is needed, and bubblewrap has made one around us.
        Tier::Root | Tier::Bwrap => {
            sys::unshare(session | UnshareFlags::NEWIPC)
                .in_layer(Layer::Namespaces, "make namespaces")?;
        }
        Tier::Namespaces if user == 0 => make_users(session | UnshareFlags::NEWIPC, user, group)?,
        Tier::Namespaces => {
            // Only the root of the user namespace that one for queues belongs to may limit what is in it. So we are root
            // in one of our own first, and ourselves again in a second one inside it.
            make_users(UnshareFlags::NEWIPC, 0, 0)?;
            make_users(session, user, group)?;
        }
    }
    limits::limit_session(tier != Tier::Root);
    Ok(())
}

/// What a server's root is called in a run that is a sandbox itself.
const ORDINARY: u32 = 1000;

/// Lets this process make user namespaces after it has given up every capability. Root cannot: the kernel wants a
/// capability of whoever gives root to another namespace. So root gets another number first, in a namespace in between.
pub fn be_ordinary() -> Result<(), Fault> {
    match rustix::process::geteuid().is_root() {
        true => make_users(UnshareFlags::empty(), ORDINARY, ORDINARY),
        false => Ok(()),
    }
}

/// A user namespace, and others with it, in which this process's user and group have these numbers.
fn make_users(others: UnshareFlags, user: u32, group: u32) -> Result<(), Fault> {
    let (outer_user, outer_group) =
        (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    sys::unshare(UnshareFlags::NEWUSER | others)
        .in_layer(Layer::UserNamespace, "make a user namespace")?;
    let write = |file: &str, text: String| {
        fs::write(format!("/proc/self/{file}"), text)
            .in_layer(Layer::UserNamespace, format!("write {file}"))
    };
    write("setgroups", "deny".to_owned())?;
    write("uid_map", format!("{user} {outer_user} 1"))?;
    write("gid_map", format!("{group} {outer_group} 1"))
}

/// Makes a network that ends at its own loopback. The process itself stays in the one it has.
pub fn make_network() -> Result<OwnedFd, Fault> {
    let layer = Layer::Network;
    let (ours, theirs) = Channel::pair().in_layer(layer, "open a channel")?;
    match sys::fork(0).in_layer(layer, "fork")? {
        Fork::Child => {
            drop(ours);
            let made = become_network();
            let handed = made.and_then(|network| {
                theirs
                    .send(&None::<Fault>, &[network.as_fd()])
                    .in_layer(layer, "hand the network over")
            });
            // A descriptor can be refused where a message is not: the user's count of descriptors in transit is full.
            let told = handed.or_else(|fault| theirs.send(&Some(fault), &[]));
            sys::leave(i32::from(told.is_err()));
        }
        Fork::Parent(child) => {
            drop(theirs);
            let answer = ours.receive::<Option<Fault>>().in_layer(layer, "hear of the network");
            let ended = reap(child);
            match answer? {
                Some((None, mut fds)) if fds.len() == 1 => Ok(fds.remove(0)),
                Some((Some(fault), _)) => Err(fault),
                _ => Err(Fault::other(
                    layer,
                    "make a network",
                    format!("the process that makes it was lost: {ended}"),
                )),
            }
        }
    }
}

/// Moves this process into a new network that ends at its own loopback, and holds it.
pub fn become_network() -> Result<OwnedFd, Fault> {
    sys::unshare(UnshareFlags::NEWNET).in_layer(Layer::Network, "make a network namespace")?;
    sys::loopback_up().in_layer(Layer::Network, "bring the loopback up")?;
    let link = fs::File::open("/proc/self/ns/net").in_layer(Layer::Network, "hold the network")?;
    Ok(link.into())
}

/// Waits for a child to end, and says how it did.
fn reap(child: Pid) -> String {
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

/// A socket that lives in another network than the process that asked for it, handed over through the channel.
pub fn hand_out_socket(network: &OwnedFd, ipv6: bool, to: &Channel) -> Result<(), Fault> {
    join_network(network)?;
    let family = if ipv6 { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .in_layer(Layer::Network, "make a socket")?;
    to.send(&(), &[socket.as_fd()]).in_layer(Layer::Network, "hand a socket out")
}

pub fn join_network(network: &OwnedFd) -> Result<(), Fault> {
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
        .in_layer(Layer::Network, "join the session's network")
}

/// Where a run finds the proxy: a listener in its own network, which the server accepts on. All of 127.0.0.0/8 leads to
/// it, so that a run which acts for several can have an address for each; and there is nothing but loopback in there.
pub fn listen() -> Result<(TcpListener, u16), Fault> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))
        .in_layer(Layer::Network, "open the proxy's port")?;
    let port = listener.local_addr().in_layer(Layer::Network, "find the proxy's port")?.port();
    Ok((listener, port))
}
