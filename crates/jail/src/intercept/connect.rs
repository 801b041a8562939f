//! Makes `connect` calls on behalf of the caller.
//!
//! The supervisor copies the caller's socket and address, checks the copies and connects the
//! copies. The caller's own memory is never read again after the check, because another thread may
//! have changed it.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat, openat2};
use rustix::io::Errno;
use rustix::net::AddressFamily;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use super::{Denials, diag};
use crate::metadata::is_metadata;
use crate::sys::{self, Notification};

/// Size of the largest possible address, `sockaddr_storage`.
const ADDRESS: usize = 128;
/// Offset of the path in a unix address.
const PATH_AT: usize = 2;

/// Port numbers for netlink sockets that cannot have their process's number start here and count
/// down.
const NETLINK_NAMELESS: u32 = u32::MAX - 4096;
/// How many of these numbers are tried.
const NETLINK_NAMES: u32 = 256;

/// Function that lists the processes of a run.
pub type Processes = Box<dyn Fn() -> Vec<Pid> + Send + Sync>;

/// Restrictions on what a run's connections may reach, and the namespaces to connect from.
pub struct Reach {
    /// The run's mounts, through which paths are looked up.
    pub mounts: Option<OwnedFd>,
    /// The run's network, if it is not the host's.
    pub network: Option<OwnedFd>,
    /// With the host's network, a socket with a path must be on one of these file systems, which
    /// only the session uses, or one of the run's processes must listen on it.
    pub private_devices: Vec<u64>,
    /// Lists the run's processes.
    pub processes: Option<Processes>,
    /// Ports of this host that stay closed, whatever else the run may reach: the server's own.
    pub shut_ports: Vec<u16>,
    /// The run is a sandbox itself and creates namespaces for that.
    pub nested: bool,
}

/// The run as seen by a supervisor thread that has entered its namespaces.
pub struct Place {
    /// The host's /proc, since the run's own shows other pids.
    pub(super) proc: OwnedFd,
    /// The run is a sandbox itself.
    pub(super) nested: bool,
    own_network: bool,
    private_devices: Vec<u64>,
    processes: Option<Processes>,
    shut_ports: Vec<u16>,
}

/// Reason for not making a connection. `denied` is set when we are the ones who refuse.
pub struct Refusal {
    pub errno: i32,
    pub denied: Option<(&'static str, String)>,
}

impl Refusal {
    /// Records the denial, if it is one. Returns the error number for the caller.
    pub fn note(self, denials: &Denials) -> i32 {
        if let Some((kind, name)) = self.denied {
            denials.add(kind, &name);
        }
        self.errno
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Refusal {
        Refusal { errno: error.raw_os_error().unwrap_or(libc::EACCES), denied: None }
    }
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Refusal {
        Refusal { errno: errno.raw_os_error(), denied: None }
    }
}

fn denied(kind: &'static str, name: impl Into<String>) -> Refusal {
    Refusal { errno: libc::EPERM, denied: Some((kind, name.into())) }
}

impl Reach {
    /// Moves this thread into the run's namespaces. Other threads of the supervisor stay where they
    /// are.
    pub(super) fn enter(self) -> io::Result<Place> {
        let proc = openat(
            rustix::fs::CWD,
            "/proc",
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        sys::unshare(UnshareFlags::FS)?;
        if let Some(mounts) = &self.mounts {
            move_into_link_name_space(mounts.as_fd(), Some(LinkNameSpaceType::Mount))?;
        }
        if let Some(network) = &self.network {
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
        }
        // In the directory of our own descriptors, a descriptor's number is a path to that very
        // object.
        let own = openat(
            &proc,
            "thread-self/fd",
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        rustix::process::fchdir(own)?;
        Ok(Place {
            proc,
            nested: self.nested,
            own_network: self.network.is_some(),
            private_devices: self.private_devices,
            processes: self.processes,
            shut_ports: self.shut_ports,
        })
    }
}

/// A socket and an address that were checked together.
pub struct Ready {
    socket: OwnedFd,
    address: Vec<u8>,
    /// The object that the address names by its descriptor number, which must stay open.
    _held: Option<OwnedFd>,
    /// The destination, in a network that has no way out.
    wanted: Option<SocketAddr>,
}

/// Directories at which a caller's paths start.
struct Base {
    directory: OwnedFd,
    /// The caller's own root, if it is not the run's.
    root: Option<OwnedFd>,
}

impl Base {
    fn open(&self, path: &Path) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        match &self.root {
            Some(root) if path.is_absolute() => {
                openat2(root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT)
            }
            _ => openat(&self.directory, path, flags, Mode::empty()),
        }
    }
}

impl Ready {
    /// Returns a number that identifies the socket while it is open.
    pub fn number(&self) -> u64 {
        fstat(&self.socket).map_or(0, |found| found.st_ino)
    }

    /// Connects. A destination that the run's own network cannot reach is a denial.
    pub fn connect(&self) -> Result<(), Refusal> {
        sys::connect(self.socket.as_fd(), &self.address).map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(libc::EACCES);
            let is_outside = matches!(errno, libc::ENETUNREACH | libc::EHOSTUNREACH);
            let wanted = self.wanted.filter(|_| is_outside);
            Refusal { errno, denied: wanted.map(|address| ("network", address.to_string())) }
        })
    }
}

impl Place {
    /// Copies the caller's address and socket, and checks both.
    pub fn prepare(&self, listener: &OwnedFd, call: &Notification) -> Result<Ready, Refusal> {
        let [fd, pointer, length, ..] = call.args;
        let length = usize::try_from(length as u32).unwrap_or(usize::MAX);
        if !(2..=ADDRESS).contains(&length) {
            return Err(Refusal { errno: libc::EINVAL, denied: None });
        }
        let thread = i32::try_from(call.thread)
            .ok()
            .and_then(Pid::from_raw)
            .ok_or(Refusal { errno: libc::ESRCH, denied: None })?;
        let mut address = vec![0; length];
        let memory = self.open(&format!("{}/mem", thread.as_raw_nonzero()), OFlags::RDONLY)?;
        File::from(memory)
            .read_exact_at(&mut address, pointer)
            .map_err(|_| Refusal { errno: libc::EFAULT, denied: None })?;
        let socket = pidfd_getfd(self.process_of(thread)?, fd as i32, PidfdGetfdFlags::empty())?;
        let base = Base {
            directory: self.open(&format!("{}/cwd", thread.as_raw_nonzero()), OFlags::PATH)?,
            // A nested sandbox has a tree of mounts of its own.
            root: match self.nested {
                true => {
                    Some(self.open(&format!("{}/root", thread.as_raw_nonzero()), OFlags::PATH)?)
                }
                false => None,
            },
        };
        // All of this belongs to the caller only if it still waits; otherwise its pid may be
        // another's by now.
        if !sys::still_waits(listener.as_fd(), call.id) {
            return Err(Refusal { errno: libc::ESRCH, denied: None });
        }
        let ready = Ready { socket, address, _held: None, wanted: None };
        match rustix::net::sockopt::socket_domain(&ready.socket)? {
            AddressFamily::UNIX => self.unix(ready, &base),
            AddressFamily::INET | AddressFamily::INET6 => self.inet(ready),
            AddressFamily::NETLINK => self.netlink(ready, thread),
            // The filter allows no other family. A run that has obtained such a socket anyway must
            // not use it with our rights.
            other => Err(denied("connect", format!("a socket of family {}", other.as_raw()))),
        }
    }

    fn open(&self, name: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        openat(&self.proc, name, flags | OFlags::CLOEXEC, Mode::empty())
    }

    /// Opens the process of a thread. A thread may have its own descriptor table; then the main
    /// thread's socket is connected, which is the run's just as much.
    fn process_of(&self, thread: Pid) -> Result<OwnedFd, Refusal> {
        let process = self.status_of(thread, "Tgid:")?.parse().ok();
        let process =
            process.and_then(Pid::from_raw).ok_or(Refusal { errno: libc::ESRCH, denied: None })?;
        Ok(pidfd_open(process, PidfdFlags::empty())?)
    }

    /// Returns the value that the kernel reports for a thread under this label.
    fn status_of(&self, thread: Pid, word: &str) -> Result<String, Refusal> {
        let status = self.open(&format!("{}/status", thread.as_raw_nonzero()), OFlags::RDONLY)?;
        let status = io::read_to_string(File::from(status))?;
        let found = status
            .lines()
            .find_map(|line| line.strip_prefix(word))
            .map(|rest| rest.trim().to_owned());
        found.ok_or(Refusal { errno: libc::ESRCH, denied: None })
    }

    /// Checks an internet connection.
    fn inet(&self, ready: Ready) -> Result<Ready, Refusal> {
        match target(&ready.address) {
            // Port 0 only asks for the route: resolvers sort addresses by it.
            Some(address) if self.own_network => {
                Ok(Ready { wanted: Some(address).filter(|address| address.port() != 0), ..ready })
            }
            Some(address) if self.is_shut(address.ip(), address.port()) => {
                Err(denied("network", address.to_string()))
            }
            _ => Ok(ready),
        }
    }

    /// Returns whether a destination stays closed to a run with the host's network: where clouds
    /// hand out credentials, and our own server.
    fn is_shut(&self, ip: IpAddr, port: u16) -> bool {
        is_metadata(ip) || self.shut_ports.contains(&port) && is_local(ip.to_canonical())
    }

    /// Checks a netlink connection. The kernel checks whether the process that connects may address
    /// other processes and groups. Here that is the supervisor, which may do more than the run, so
    /// the kernel itself is the only peer allowed.
    fn netlink(&self, ready: Ready, thread: Pid) -> Result<Ready, Refusal> {
        match NetlinkPeer::read(&ready.address) {
            // The kernel handles such an address in its own way, and does not connect.
            None => Ok(ready),
            Some(NetlinkPeer { port: 0, groups: 0 }) => {
                self.name_netlink(&ready.socket, thread)?;
                Ok(ready)
            }
            Some(_) => Err(denied("connect", "netlink")),
        }
    }

    /// Gives a netlink socket its port number. Otherwise the connection would do so, and use the
    /// supervisor's.
    fn name_netlink(&self, socket: &OwnedFd, thread: Pid) -> Result<(), Refusal> {
        let address = SocketAddrNetlink::try_from(rustix::net::getsockname(socket)?)?;
        if address.pid() != 0 {
            return Ok(());
        }
        // The same choice as the kernel's: the number of the process or, if another socket has
        // that, one that no process has.
        let own = self
            .status_of(thread, "NStgid:")?
            .split_whitespace()
            .last()
            .and_then(|number| number.parse().ok());
        let others = (0..NETLINK_NAMES).map(|step| NETLINK_NAMELESS - step);
        for number in own.into_iter().chain(others) {
            match rustix::net::bind(socket, &SocketAddrNetlink::new(number, 0)) {
                Err(Errno::ADDRINUSE) => {}
                other => return Ok(other?),
            }
        }
        Err(Errno::ADDRINUSE.into())
    }

    /// Checks a unix connection, and replaces the path in its address with the socket that was
    /// found there.
    fn unix(&self, mut ready: Ready, base: &Base) -> Result<Ready, Refusal> {
        let family = u16::from_ne_bytes([ready.address[0], ready.address[1]]);
        if i32::from(family) != libc::AF_UNIX {
            // The kernel handles such an address in its own way, and does not connect.
            return Ok(ready);
        }
        let path = &ready.address[PATH_AT..];
        match path.first() {
            None => return Ok(ready),
            // Abstract names belong to a network namespace.
            Some(0) if self.own_network => return Ok(ready),
            Some(0) => return Err(denied("connect", String::from_utf8_lossy(&path[1..]))),
            Some(_) => {}
        }
        let path = path.split(|byte| *byte == 0).next().unwrap_or_default();
        let shown = String::from_utf8_lossy(path).into_owned();
        let path = Path::new(OsStr::from_bytes(path));
        let object = base.open(path)?;
        let stat = fstat(&object)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
            return Err(Refusal { errno: libc::ECONNREFUSED, denied: None });
        }
        if !self.is_own(&stat)? {
            return Err(denied("connect", shown));
        }
        let name = object.as_raw_fd().to_string();
        ready.address = (libc::AF_UNIX as u16)
            .to_ne_bytes()
            .into_iter()
            .chain(name.bytes())
            .chain([0])
            .collect();
        ready._held = Some(object);
        Ok(ready)
    }

    /// Returns whether the session itself listens on the socket. Other sockets may exist in the
    /// workspace, and anyone may listen on those.
    fn is_own(&self, stat: &Stat) -> io::Result<bool> {
        if self.own_network {
            return Ok(diag::listener(stat.st_dev, stat.st_ino)?.is_some());
        }
        if self.private_devices.contains(&stat.st_dev) {
            return Ok(true);
        }
        let Some(processes) = &self.processes else { return Ok(false) };
        let Some(socket) = diag::listener(stat.st_dev, stat.st_ino)? else { return Ok(false) };
        Ok(processes().into_iter().any(|process| self.has_open(process, socket)))
    }

    fn has_open(&self, process: Pid, socket: u32) -> bool {
        let wanted = format!("socket:[{socket}]");
        let entries =
            std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| std::fs::read_link(entry.path()).ok())
            .any(|link| link.as_os_str() == wanted.as_str())
    }
}

/// Destination of a netlink address: a socket by its port number, of which 0 is the kernel, and
/// groups.
struct NetlinkPeer {
    port: u32,
    groups: u32,
}

impl NetlinkPeer {
    /// Parses an address; `None` if the kernel will not accept it.
    fn read(address: &[u8]) -> Option<NetlinkPeer> {
        let word = |at: usize| Some(u32::from_ne_bytes(address.get(at..at + 4)?.try_into().ok()?));
        let family = i32::from(u16::from_ne_bytes([*address.first()?, *address.get(1)?]));
        (family == libc::AF_NETLINK).then_some(NetlinkPeer { port: word(4)?, groups: word(8)? })
    }
}

/// Returns whether an address is one of this machine's: only those can be bound to.
fn is_local(ip: IpAddr) -> bool {
    ip.is_loopback() || ip.is_unspecified() || std::net::UdpSocket::bind((ip, 0)).is_ok()
}

/// Parses an internet address; `None` if the kernel will not accept it.
fn target(address: &[u8]) -> Option<SocketAddr> {
    let family = i32::from(u16::from_ne_bytes([*address.first()?, *address.get(1)?]));
    let port = u16::from_be_bytes([*address.get(2)?, *address.get(3)?]);
    match family {
        libc::AF_INET => {
            let octets: [u8; 4] = address.get(4..8)?.try_into().ok()?;
            Some(SocketAddr::from((octets, port)))
        }
        libc::AF_INET6 => {
            let octets: [u8; 16] = address.get(8..24)?.try_into().ok()?;
            Some(SocketAddr::from((octets, port)))
        }
        _ => None,
    }
}
