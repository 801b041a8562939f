//! Messages between server and supervisor: one JSON object per line over a stream socket.
//!
//! The first line is the [`RunSpec`], with the run's stdin, stdout, stderr and working directory as
//! descriptors. So the directory that was checked is the directory that is used, whatever happens
//! to its name meanwhile.

use std::io::{self, BufRead, BufReader, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::{Deserialize, Serialize};

use super::LeftBehind;
use crate::error::SandboxError;
use crate::intercept::{Denial, exec};
use crate::launch::SandboxProfile;
use crate::limits::ResourceLimits;
use crate::namespaces::Tier;
use crate::rights::Rights;

/// Largest spec: far above what an exec accepts (2 MiB of arguments and environment on Linux), far
/// below what would do harm.
const MAX_SPEC_BYTES: usize = 16 << 20;
/// Size of the first piece, which travels with the descriptors and must fit an empty socket buffer
/// without waiting.
const FIRST_PIECE_BYTES: usize = 16 << 10;
const MAX_FDS: usize = 9;

/// Specification of what to run. The environment is exact: nothing is added to it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunSpec {
    pub program: String,
    pub args: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv0: Option<String>,
    pub env: Vec<(String, String)>,
    /// Working directory as the run sees it. It must be the directory whose descriptor is attached.
    pub cwd: PathBuf,
    /// Time between SIGTERM and SIGKILL.
    pub grace_ms: u64,
    pub fence: SandboxProfile,
    #[serde(default)]
    pub rights: Rights,
    #[serde(default)]
    pub limits: ResourceLimits,
    /// Variables that tell programs about the proxy: [`PORT_PLACEHOLDER`](crate::PORT_PLACEHOLDER)
    /// in a value becomes its port. If not empty, a listener is opened in the run's network and
    /// handed out through the fifth descriptor.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub proxy_env: Vec<(String, String)>,
    /// Ports of this host that stay closed to a run that has the host's network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shut_ports: Vec<u16>,
    /// Rules by which the run's execs are judged. Without them execs are not watched; only explicit
    /// trust justifies that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<exec::wire::ExecRules>,
    /// User to switch to, for a program that runs without a sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<RunUser>,
}

impl RunSpec {
    /// Returns what decides how the run is set up.
    pub fn basis(&self) -> RunBasis {
        RunBasis {
            fence: self.fence,
            rights: self.rights.clone(),
            limits: self.limits.clone(),
            has_proxy: !self.proxy_env.is_empty(),
            watches_execs: self.exec.is_some(),
        }
    }
}

/// What decides how a run is set up, whatever its command is. With it a run can be prepared before
/// its command is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunBasis {
    pub fence: SandboxProfile,
    pub rights: Rights,
    pub limits: ResourceLimits,
    /// A listener for its proxy is opened in the run's network.
    pub has_proxy: bool,
    /// Its execs are watched.
    pub watches_execs: bool,
}

/// User of the host, with all its groups.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunUser {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// Descriptors that not every run has, in the order in which they are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OptionalFd {
    Handout,
    Notices,
    Log,
    Program,
    Line,
}

/// A spec, with the names of the optional descriptors that are attached to it.
#[derive(Serialize)]
struct SpecMessage<'a> {
    spec: &'a RunSpec,
    with: Vec<OptionalFd>,
}

/// The same message, on the receiving side.
#[derive(Deserialize)]
struct ReceivedSpec {
    spec: RunSpec,
    with: Vec<OptionalFd>,
}

/// Request from the server after the spec. Closing the socket requests the end with SIGTERM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SupervisorCommand {
    /// Send this signal to every process, and SIGKILL after the grace period.
    End(i32),
    /// Send a signal to the main process and its group.
    Signal(i32),
}

/// Report from the supervisor. The end of the stream means that nothing of the run is left; if no
/// [`SupervisorReport::Over`] came before it, the supervisor was lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SupervisorReport {
    Started(i32),
    Failed(SandboxError),
    /// The main process has ended and others have not: everything known so far. The rest follows
    /// with `Over`.
    Exited(RunExit),
    /// The final report: one for each run that was started, however it ended.
    Over(RunExit),
}

/// How the main process ended, what it left running, and what was seen of the run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunExit {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    pub left_behind: usize,
    /// Names of at most a few of the processes left behind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// Actions that the run was refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub denials: Vec<Denial>,
    /// How the session got its namespaces, if it has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<Tier>,
    /// How the limits were enforced.
    #[serde(default)]
    pub limits: String,
    /// True if the run was ended because all its processes together used too much memory.
    #[serde(default)]
    pub out_of_memory: bool,
    /// Number of programs it ran that no rule names, if they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execs: Option<u64>,
}

/// Descriptors that accompany a spec.
pub struct RunFds<F> {
    pub stdin: F,
    pub stdout: F,
    pub stderr: F,
    /// An `O_PATH` descriptor is enough.
    pub cwd: F,
    /// Channel through which the proxy's listener is handed out.
    pub proxy_channel: Option<F>,
    /// Channel on which execs are reported and asked about.
    pub exec_channel: Option<F>,
    /// File for the execs that no rule names.
    pub exec_log: Option<F>,
    /// The program itself, opened, in place of a name.
    pub program_file: Option<F>,
    /// The program's own driver socket, in addition to its standard streams.
    pub driver_socket: Option<F>,
}

/// Encodes one message as a line.
pub fn encode_line<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

/// Sends the descriptors and the beginning of the spec without waiting, on a socket that nothing
/// was written to yet. Returns the rest, which remains to be written.
pub fn send_spec(
    socket: BorrowedFd<'_>,
    spec: &RunSpec,
    fds: &RunFds<BorrowedFd<'_>>,
) -> io::Result<Vec<u8>> {
    let extra = [
        (OptionalFd::Handout, fds.proxy_channel),
        (OptionalFd::Notices, fds.exec_channel),
        (OptionalFd::Log, fds.exec_log),
        (OptionalFd::Program, fds.program_file),
        (OptionalFd::Line, fds.driver_socket),
    ];
    let (with, extra): (Vec<_>, Vec<_>) =
        extra.into_iter().filter_map(|(name, fd)| fd.map(|fd| (name, fd))).unzip();
    let mut line = encode_line(&SpecMessage { spec, with })?;
    if line.len() > MAX_SPEC_BYTES {
        return Err(io::Error::from(io::ErrorKind::ArgumentListTooLong));
    }
    let fds: Vec<_> =
        [fds.stdin, fds.stdout, fds.stderr, fds.cwd].into_iter().chain(extra).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::Error::other("no room for the descriptors"));
    }
    let first_piece = &line[..line.len().min(FIRST_PIECE_BYTES)];
    let sent = rustix::net::sendmsg(
        socket,
        &[IoSlice::new(first_piece)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    Ok(line.split_off(sent))
}

/// Receives the spec and its descriptors; `None` when the server went away without sending one.
pub(super) fn receive_spec(socket: &UnixStream) -> io::Result<Option<(RunSpec, RunFds<OwnedFd>)>> {
    let mut line = vec![0; FIRST_PIECE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(socket.as_fd(), &mut [IoSliceMut::new(&mut line)], &mut control, flags)
    })?;
    if received.bytes == 0 {
        return Ok(None);
    }
    line.truncate(received.bytes);
    let fds: Vec<OwnedFd> = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        })
        .flatten()
        .collect();
    let mut fds = fds.into_iter();
    let (Some(stdin), Some(stdout), Some(stderr), Some(cwd)) =
        (fds.next(), fds.next(), fds.next(), fds.next())
    else {
        return Err(io::Error::other("the descriptors are missing"));
    };
    if line.last() != Some(&b'\n') {
        // Nothing follows the spec before our first report, so reading ahead loses nothing.
        BufReader::new(socket.take((MAX_SPEC_BYTES - line.len()) as u64))
            .read_until(b'\n', &mut line)?;
    }
    let ReceivedSpec { spec, with } = serde_json::from_slice(&line)?;
    let mut run_fds = RunFds {
        stdin,
        stdout,
        stderr,
        cwd,
        proxy_channel: None,
        exec_channel: None,
        exec_log: None,
        program_file: None,
        driver_socket: None,
    };
    for name in with {
        *match name {
            OptionalFd::Handout => &mut run_fds.proxy_channel,
            OptionalFd::Notices => &mut run_fds.exec_channel,
            OptionalFd::Log => &mut run_fds.exec_log,
            OptionalFd::Program => &mut run_fds.program_file,
            OptionalFd::Line => &mut run_fds.driver_socket,
        } = fds.next();
    }
    Ok(Some((spec, run_fds)))
}

/// Command from the supervisor to the run's init.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InitCommand {
    /// Begin to set up the run.
    Go,
    /// Mount these covers, and open this working directory. It must be the directory whose
    /// descriptor is attached.
    Cover { covers: Vec<PathBuf>, cwd: PathBuf },
    /// Ask every process of the run to end, with this signal.
    Terminate(i32),
    /// Send a signal to the main process and its group.
    Signal(i32),
}

/// Report from the run's init to the supervisor.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InitReport {
    /// The run is prepared. Comes with the run's mount namespace; with its network namespace and its
    /// resolver's socket if it has its own network; and with the proxy's listener if it has one.
    Prepared {
        has_network: bool,
        proxy_port: Option<u16>,
    },
    /// The covers are mounted. Comes with the working directory, as the run sees it.
    Covered,
    Failed(SandboxError),
    /// How the main process ended, and what it left behind.
    Ended {
        code: Option<i32>,
        signal: Option<i32>,
        left: LeftBehind,
    },
}
