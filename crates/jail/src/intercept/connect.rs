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

use super::{DenialLog, unix_diag};
use crate::metadata::is_metadata_address;
use crate::sys::{self, PendingCall};

/// Size of the largest possible address, `sockaddr_storage`.
const MAX_ADDRESS_BYTES: usize = 128;
/// Offset of the path in a unix address.
const UNIX_PATH_OFFSET: usize = 2;

/// First netlink port to try, counting down, if the port equal to the caller's pid is taken. No
/// process has a pid this high.
const NETLINK_FREE_PORTS: u32 = u32::MAX - 4096;
/// How many of these numbers are tried.
const NETLINK_PORT_TRIES: u32 = 256;

/// Function that lists the processes of a run.
pub type ProcessLister = Box<dyn Fn() -> Vec<Pid> + Send + Sync>;

/// Restrictions on what a run's connections may reach, and the namespaces to connect from.
pub struct ConnectPolicy {
    /// The run's mounts, through which paths are looked up.
    pub mounts: Option<OwnedFd>,
    /// The run's network, if it is not the host's.
    pub network: Option<OwnedFd>,
    /// With the host's network, a socket with a path must be on one of these file systems, which
    /// only the session uses, or one of the run's processes must listen on it.
    pub private_devices: Vec<u64>,
    /// Lists the run's processes.
    pub processes: Option<ProcessLister>,
    /// Ports of this host that stay closed, whatever else the run may reach: the server's own.
    pub closed_ports: Vec<u16>,
    /// The run is a sandbox itself and creates namespaces for that.
    pub nested: bool,
}

/// The run as seen by a supervisor thread that has entered its namespaces.
pub struct EnteredRun {
    /// The host's /proc, since the run's own shows other pids.
    pub(super) proc: OwnedFd,
    /// The run is a sandbox itself.
    pub(super) nested: bool,
    has_own_network: bool,
    private_devices: Vec<u64>,
    processes: Option<ProcessLister>,
    closed_ports: Vec<u16>,
}

/// Reason why a connection was not made. `denial` is set if the supervisor refused it, and `None`
/// if the kernel did.
pub struct ConnectRefusal {
    pub errno: i32,
    pub denial: Option<(&'static str, String)>,
}

impl ConnectRefusal {
    /// Records the denial, if it is one. Returns the error number for the caller.
    pub fn record_denial(self, denials: &DenialLog) -> i32 {
        if let Some((kind, name)) = self.denial {
            denials.add(kind, &name);
        }
        self.errno
    }
}

impl From<io::Error> for ConnectRefusal {
    fn from(error: io::Error) -> ConnectRefusal {
        ConnectRefusal { errno: error.raw_os_error().unwrap_or(libc::EACCES), denial: None }
    }
}

impl From<Errno> for ConnectRefusal {
    fn from(errno: Errno) -> ConnectRefusal {
        ConnectRefusal { errno: errno.raw_os_error(), denial: None }
    }
}

fn deny_connect(kind: &'static str, name: impl Into<String>) -> ConnectRefusal {
    ConnectRefusal { errno: libc::EPERM, denial: Some((kind, name.into())) }
}

impl ConnectPolicy {
    /// Moves this thread into the run's namespaces. Other threads of the supervisor stay where they
    /// are.
    pub(super) fn enter_run(self) -> io::Result<EnteredRun> {
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
        let own_fds = openat(
            &proc,
            "thread-self/fd",
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        rustix::process::fchdir(own_fds)?;
        Ok(EnteredRun {
            proc,
            nested: self.nested,
            has_own_network: self.network.is_some(),
            private_devices: self.private_devices,
            processes: self.processes,
            closed_ports: self.closed_ports,
        })
    }
}

/// A socket and an address that were checked together.
pub struct PreparedConnect {
    socket: OwnedFd,
    address: Vec<u8>,
    /// The object that the address names by its descriptor number, which must stay open.
    _socket_file: Option<OwnedFd>,
    /// Destination to report as denied if it is unreachable; set only if the run has its own
    /// network namespace.
    destination: Option<SocketAddr>,
}

/// Directories at which a caller's paths start.
struct PathBase {
    directory: OwnedFd,
    /// The caller's own root, if it is not the run's.
    root: Option<OwnedFd>,
}

impl PathBase {
    fn open_path(&self, path: &Path) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        match &self.root {
            Some(root) if path.is_absolute() => {
                openat2(root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT)
            }
            _ => openat(&self.directory, path, flags, Mode::empty()),
        }
    }
}

impl PreparedConnect {
    /// Returns a number that identifies the socket while it is open.
    pub fn socket_inode(&self) -> u64 {
        fstat(&self.socket).map_or(0, |found| found.st_ino)
    }

    /// Connects. A destination that the run's own network cannot reach is a denial.
    pub fn connect(&self) -> Result<(), ConnectRefusal> {
        sys::connect_socket(self.socket.as_fd(), &self.address).map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(libc::EACCES);
            let is_outside = matches!(errno, libc::ENETUNREACH | libc::EHOSTUNREACH);
            let unreachable_address = self.destination.filter(|_| is_outside);
            ConnectRefusal {
                errno,
                denial: unreachable_address.map(|address| ("network", address.to_string())),
            }
        })
    }
}

impl EnteredRun {
    /// Copies the caller's address and socket, and checks both.
    pub fn prepare_connect(
        &self,
        listener: &OwnedFd,
        call: &PendingCall,
    ) -> Result<PreparedConnect, ConnectRefusal> {
        let [fd, pointer, length, ..] = call.args;
        let length = usize::try_from(length as u32).unwrap_or(usize::MAX);
        if !(2..=MAX_ADDRESS_BYTES).contains(&length) {
            return Err(ConnectRefusal { errno: libc::EINVAL, denial: None });
        }
        let thread = i32::try_from(call.thread)
            .ok()
            .and_then(Pid::from_raw)
            .ok_or(ConnectRefusal { errno: libc::ESRCH, denial: None })?;
        let mut address = vec![0; length];
        let memory =
            self.open_in_proc(&format!("{}/mem", thread.as_raw_nonzero()), OFlags::RDONLY)?;
        File::from(memory)
            .read_exact_at(&mut address, pointer)
            .map_err(|_| ConnectRefusal { errno: libc::EFAULT, denial: None })?;
        let socket = pidfd_getfd(self.open_process(thread)?, fd as i32, PidfdGetfdFlags::empty())?;
        let path_base = PathBase {
            directory: self
                .open_in_proc(&format!("{}/cwd", thread.as_raw_nonzero()), OFlags::PATH)?,
            // A nested sandbox has a tree of mounts of its own.
            root: match self.nested {
                true => Some(
                    self.open_in_proc(&format!("{}/root", thread.as_raw_nonzero()), OFlags::PATH)?,
                ),
                false => None,
            },
        };
        // All of this belongs to the caller only if it still waits; otherwise its pid may be
        // another's by now.
        if !sys::is_still_pending(listener.as_fd(), call.id) {
            return Err(ConnectRefusal { errno: libc::ESRCH, denial: None });
        }
        let prepared = PreparedConnect { socket, address, _socket_file: None, destination: None };
        match rustix::net::sockopt::socket_domain(&prepared.socket)? {
            AddressFamily::UNIX => self.check_unix(prepared, &path_base),
            AddressFamily::INET | AddressFamily::INET6 => self.check_inet(prepared),
            AddressFamily::NETLINK => self.check_netlink(prepared, thread),
            // The filter allows no other family. A run that has obtained such a socket anyway must
            // not use it with our rights.
            other => Err(deny_connect("connect", format!("a socket of family {}", other.as_raw()))),
        }
    }

    fn open_in_proc(&self, name: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        openat(&self.proc, name, flags | OFlags::CLOEXEC, Mode::empty())
    }

    /// Opens the process of a thread. A thread may have its own descriptor table; then the main
    /// thread's socket with that number is connected instead. It belongs to the same run, so no
    /// access is gained.
    fn open_process(&self, thread: Pid) -> Result<OwnedFd, ConnectRefusal> {
        let process = self.read_status_field(thread, "Tgid:")?.parse().ok();
        let process = process
            .and_then(Pid::from_raw)
            .ok_or(ConnectRefusal { errno: libc::ESRCH, denial: None })?;
        Ok(pidfd_open(process, PidfdFlags::empty())?)
    }

    /// Returns the value that the kernel reports for a thread under this label.
    fn read_status_field(&self, thread: Pid, label: &str) -> Result<String, ConnectRefusal> {
        let status =
            self.open_in_proc(&format!("{}/status", thread.as_raw_nonzero()), OFlags::RDONLY)?;
        let status = io::read_to_string(File::from(status))?;
        let value = status
            .lines()
            .find_map(|line| line.strip_prefix(label))
            .map(|rest| rest.trim().to_owned());
        value.ok_or(ConnectRefusal { errno: libc::ESRCH, denial: None })
    }

    /// Checks an internet connection.
    fn check_inet(&self, prepared: PreparedConnect) -> Result<PreparedConnect, ConnectRefusal> {
        match parse_socket_addr(&prepared.address) {
            // Port 0 only asks for the route: resolvers sort addresses by it.
            Some(address) if self.has_own_network => Ok(PreparedConnect {
                destination: Some(address).filter(|address| address.port() != 0),
                ..prepared
            }),
            Some(address) if self.is_closed(address.ip(), address.port()) => {
                Err(deny_connect("network", address.to_string()))
            }
            _ => Ok(prepared),
        }
    }

    /// Returns whether a destination stays closed to a run with the host's network: where clouds
    /// hand out credentials, and our own server.
    fn is_closed(&self, ip: IpAddr, port: u16) -> bool {
        is_metadata_address(ip) || self.closed_ports.contains(&port) && is_local(ip.to_canonical())
    }

    /// Checks a netlink connection. The kernel checks whether the process that connects may address
    /// other processes and groups. Here that is the supervisor, which may do more than the run, so
    /// the kernel itself is the only peer allowed.
    fn check_netlink(
        &self,
        prepared: PreparedConnect,
        thread: Pid,
    ) -> Result<PreparedConnect, ConnectRefusal> {
        match NetlinkPeer::parse(&prepared.address) {
            // The kernel handles such an address in its own way, and does not connect.
            None => Ok(prepared),
            Some(NetlinkPeer { port: 0, groups: 0 }) => {
                self.bind_netlink_port(&prepared.socket, thread)?;
                Ok(prepared)
            }
            Some(_) => Err(deny_connect("connect", "netlink")),
        }
    }

    /// Gives a netlink socket its port number. Otherwise the connection would do so, and use the
    /// supervisor's.
    fn bind_netlink_port(&self, socket: &OwnedFd, thread: Pid) -> Result<(), ConnectRefusal> {
        let address = SocketAddrNetlink::try_from(rustix::net::getsockname(socket)?)?;
        if address.pid() != 0 {
            return Ok(());
        }
        // The same choice as the kernel's: the number of the process or, if another socket has
        // that, one that no process has.
        let own_port = self
            .read_status_field(thread, "NStgid:")?
            .split_whitespace()
            .last()
            .and_then(|port| port.parse().ok());
        let free_ports = (0..NETLINK_PORT_TRIES).map(|step| NETLINK_FREE_PORTS - step);
        for port in own_port.into_iter().chain(free_ports) {
            match rustix::net::bind(socket, &SocketAddrNetlink::new(port, 0)) {
                Err(Errno::ADDRINUSE) => {}
                other => return Ok(other?),
            }
        }
        Err(Errno::ADDRINUSE.into())
    }

    /// Checks a unix connection, and replaces the path in its address with the socket that was
    /// found there.
    fn check_unix(
        &self,
        mut prepared: PreparedConnect,
        path_base: &PathBase,
    ) -> Result<PreparedConnect, ConnectRefusal> {
        let family = u16::from_ne_bytes([prepared.address[0], prepared.address[1]]);
        if i32::from(family) != libc::AF_UNIX {
            // The kernel handles such an address in its own way, and does not connect.
            return Ok(prepared);
        }
        let path = &prepared.address[UNIX_PATH_OFFSET..];
        match path.first() {
            None => return Ok(prepared),
            // Abstract names belong to a network namespace.
            Some(0) if self.has_own_network => return Ok(prepared),
            Some(0) => return Err(deny_connect("connect", String::from_utf8_lossy(&path[1..]))),
            Some(_) => {}
        }
        let path = path.split(|byte| *byte == 0).next().unwrap_or_default();
        let shown_path = String::from_utf8_lossy(path).into_owned();
        let path = Path::new(OsStr::from_bytes(path));
        let socket_file = path_base.open_path(path)?;
        let stat = fstat(&socket_file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
            return Err(ConnectRefusal { errno: libc::ECONNREFUSED, denial: None });
        }
        if !self.is_session_socket(&stat)? {
            return Err(deny_connect("connect", shown_path));
        }
        let name = socket_file.as_raw_fd().to_string();
        prepared.address = (libc::AF_UNIX as u16)
            .to_ne_bytes()
            .into_iter()
            .chain(name.bytes())
            .chain([0])
            .collect();
        prepared._socket_file = Some(socket_file);
        Ok(prepared)
    }

    /// Returns whether the session itself listens on the socket. Other sockets may exist in the
    /// workspace, and anyone may listen on those.
    fn is_session_socket(&self, stat: &Stat) -> io::Result<bool> {
        if self.has_own_network {
            return Ok(unix_diag::find_listener(stat.st_dev, stat.st_ino)?.is_some());
        }
        if self.private_devices.contains(&stat.st_dev) {
            return Ok(true);
        }
        let Some(processes) = &self.processes else { return Ok(false) };
        let Some(socket) = unix_diag::find_listener(stat.st_dev, stat.st_ino)? else {
            return Ok(false);
        };
        Ok(processes().into_iter().any(|process| self.has_open(process, socket)))
    }

    fn has_open(&self, process: Pid, socket: u32) -> bool {
        let socket_link = format!("socket:[{socket}]");
        let entries =
            std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| std::fs::read_link(entry.path()).ok())
            .any(|link| link.as_os_str() == socket_link.as_str())
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
    fn parse(address: &[u8]) -> Option<NetlinkPeer> {
        let read_u32 = |offset: usize| {
            Some(u32::from_ne_bytes(address.get(offset..offset + 4)?.try_into().ok()?))
        };
        let family = i32::from(u16::from_ne_bytes([*address.first()?, *address.get(1)?]));
        (family == libc::AF_NETLINK)
            .then_some(NetlinkPeer { port: read_u32(4)?, groups: read_u32(8)? })
    }
}

/// Returns whether an address is one of this machine's: only those can be bound to.
fn is_local(ip: IpAddr) -> bool {
    ip.is_loopback() || ip.is_unspecified() || std::net::UdpSocket::bind((ip, 0)).is_ok()
}

/// Parses an internet address; `None` if the kernel will not accept it.
fn parse_socket_addr(address: &[u8]) -> Option<SocketAddr> {
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
