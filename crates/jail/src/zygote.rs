//! The zygote: one small process per session that holds the session's namespaces and forks a
//! supervisor for each run.
//!
//! It is our own binary, executed again with [`ARGUMENT`], an empty environment and its channel to
//! the server as standard input. It has one thread, so forking it is safe, and a run starts without
//! an exec of our binary in between. When the zygote dies, its supervisors and their runs die with
//! it. When the server dies, the zygote waits for them and exits.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    DumpableBehavior, Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, set_dumpable_behavior, wait,
};
use serde::{Deserialize, Serialize};

use crate::error::{Layer, LayerContext, SandboxError};
use crate::limits::CgroupLocations;
use crate::mounts;
use crate::namespaces::{self, Tier};
use crate::packet::PacketChannel;
use crate::rights::Rights;
use crate::supervisor::{self, RunBasis, SessionResources};
use crate::sys::{self, ForkResult};

/// First argument that makes our binary run as a zygote.
pub const ARGUMENT: &str = "__zygote";

/// First request from the server: sets up the session root, which all runs of the session share.
#[derive(Debug, Serialize, Deserialize)]
pub struct SessionSetup {
    pub rights: Rights,
    pub tier: Tier,
}

/// Later request from the server: for a supervisor, which takes the attached descriptor as its
/// control socket, or for a socket in one of the session's networks, sent back through that
/// descriptor.
#[derive(Debug, Serialize, Deserialize)]
pub struct ZygoteRequest {
    /// Key of the session's network that the run joins. Runs with different network rights have
    /// different networks, so that none can use another's proxy. `None` is the host's network.
    pub network: Option<u32>,
    /// What the run may do, so that it can be prepared before the supervisor has its spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basis: Option<Box<RunBasis>>,
    /// No other run will follow, so the zygote becomes the supervisor itself.
    #[serde(default)]
    pub last: bool,
    /// Asks for a socket instead of a supervisor. The value is its family: 4 or 6.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<u8>,
}

/// Answer to a [`SessionSetup`].
pub type SetupResult = Result<(), SandboxError>;

/// Runs as a zygote until the server is gone.
pub fn run() -> ExitCode {
    crate::mark_close_on_exec();
    let Ok(channel) = take_server_channel() else { return ExitCode::FAILURE };
    serve_session(channel)
}

/// Forks a zygote off this process, which must have one thread, and returns the channel to it. For
/// a command that runs once and has nothing to hide from its zygote.
pub fn fork_zygote() -> std::io::Result<PacketChannel> {
    let (parent_channel, child_channel) = PacketChannel::pair()?;
    match sys::fork(0)? {
        ForkResult::Parent(_) => Ok(parent_channel),
        ForkResult::Child => {
            drop(parent_channel);
            // Held open here, the parent's pipes and sockets would never close at their other ends.
            let (stdin, stdout, stderr) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
            if sys::close_all_except(&[
                stdin.as_fd(),
                stdout.as_fd(),
                stderr.as_fd(),
                child_channel.as_fd(),
            ])
            .is_err()
            {
                sys::exit_now(1);
            }
            // Exit without running what the parent registered for its own exit.
            let code = serve_session(child_channel);
            sys::exit_now(i32::from(code != ExitCode::SUCCESS))
        }
    }
}

/// Sets up the session that the first message asks for, then serves requests until the server is
/// gone.
fn serve_session(channel: PacketChannel) -> ExitCode {
    let setup = match channel.receive::<SessionSetup>() {
        Ok(Some((setup, _))) => setup,
        _ => return ExitCode::FAILURE,
    };
    match set_up_session(&setup) {
        Ok(mut state) => {
            if channel.send(&SetupResult::Ok(()), &[]).is_err() {
                return ExitCode::FAILURE;
            }
            state.serve_requests(channel)
        }
        Err(error) => {
            let _ = channel.send(&SetupResult::Err(error), &[]);
            ExitCode::FAILURE
        }
    }
}

/// Moves the channel off standard input, to a descriptor that no child inherits.
fn take_server_channel() -> std::io::Result<PacketChannel> {
    let channel = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    // When bubblewrap has started us, standard output is the descriptor of our own binary.
    rustix::stdio::dup2_stdout(&null)?;
    Ok(PacketChannel::from(channel))
}

/// State of a zygote whose session is set up.
struct ZygoteState {
    tier: Tier,
    networks: HashMap<u32, OwnedFd>,
    cgroup_locations: CgroupLocations,
    /// Pidfds of children that have not been reaped.
    children: Vec<OwnedFd>,
}

/// Sets up the session's namespaces and its session root.
fn set_up_session(setup: &SessionSetup) -> Result<ZygoteState, SandboxError> {
    // Detach from the server's terminal and process group first, so that no run has them.
    let _ = rustix::process::setsid();
    // Control groups are opened while the host's file system is still visible.
    let cgroup_locations = CgroupLocations::open_current();
    namespaces::enter_session_namespaces(setup.tier)?;
    mounts::build_session_root(&setup.rights)?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .in_layer(Layer::Namespaces, "become non-dumpable")?;
    Ok(ZygoteState {
        tier: setup.tier,
        networks: HashMap::new(),
        cgroup_locations,
        children: Vec::new(),
    })
}

impl ZygoteState {
    fn serve_requests(&mut self, channel: PacketChannel) -> ExitCode {
        while let Ok(Some((request, mut fds))) = self.next_request(&channel) {
            let Some(control) = fds.pop().map(UnixStream::from) else { continue };
            if request.last {
                drop(channel);
                return self.supervise_last_run(control, request);
            }
            let network = self.ensure_network(request.network);
            if let Some(family) = request.socket {
                // On failure nothing is sent, which the server takes as a failure.
                if network.is_ok() {
                    self.send_network_socket(control, request.network, family == 6);
                }
                continue;
            }
            match network.and_then(|()| sys::fork(0).in_layer(Layer::Namespaces, "fork")) {
                Ok(ForkResult::Child) => {
                    drop(channel);
                    return self.supervise_run(control, request);
                }
                Ok(ForkResult::Parent(child)) => self.watch_child(child),
                Err(error) => supervisor::report_failure(control, error),
            }
        }
        // The server is gone. Every supervisor has seen that too and ends its run; wait for all of
        // them.
        reap_children(WaitOptions::empty());
        ExitCode::SUCCESS
    }

    /// Waits for the next request. Reaps children that end meanwhile, since a session may be idle
    /// for a long time.
    fn next_request(
        &mut self,
        channel: &PacketChannel,
    ) -> std::io::Result<Option<(ZygoteRequest, Vec<OwnedFd>)>> {
        loop {
            let mut poll_fds = vec![PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN)];
            poll_fds.extend(
                self.children
                    .iter()
                    .map(|child| PollFd::from_borrowed_fd(child.as_fd(), PollFlags::IN)),
            );
            match poll(&mut poll_fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            let ended: Vec<bool> =
                poll_fds.iter().skip(1).map(|child| !child.revents().is_empty()).collect();
            let has_request = !poll_fds[0].revents().is_empty();
            if ended.contains(&true) {
                reap_children(WaitOptions::NOHANG);
                let mut ended = ended.into_iter();
                self.children.retain(|_| !ended.next().unwrap_or_default());
            }
            if has_request {
                return channel.receive();
            }
        }
    }

    fn watch_child(&mut self, child: Pid) {
        // A child without a pidfd is reaped with the next child that has one.
        self.children.extend(pidfd_open(child, PidfdFlags::empty()));
    }

    /// Creates the network with this key, unless it exists.
    fn ensure_network(&mut self, key: Option<u32>) -> Result<(), SandboxError> {
        if let Some(key) = key
            && !self.networks.contains_key(&key)
        {
            self.networks.insert(key, namespaces::create_network()?);
        }
        Ok(())
    }

    /// Sends a socket of the network. A child does this, because a process that has joined a
    /// network without privileges cannot come back.
    fn send_network_socket(&mut self, reply_socket: UnixStream, network: Option<u32>, ipv6: bool) {
        let Some(network) = network.and_then(|key| self.networks.get(&key)) else { return };
        match sys::fork(0) {
            Ok(ForkResult::Child) => {
                let sent = namespaces::send_network_socket(
                    network,
                    ipv6,
                    &PacketChannel::from(OwnedFd::from(reply_socket)),
                );
                sys::exit_now(i32::from(sent.is_err()));
            }
            Ok(ForkResult::Parent(child)) => self.watch_child(child),
            // On failure nothing is sent, which the server takes as a failure.
            Err(_) => {}
        }
    }

    /// Becomes the supervisor of the session's last run. No other process will need a network that
    /// does not exist yet, so it is created right here and nothing is forked.
    fn supervise_last_run(&mut self, control: UnixStream, request: ZygoteRequest) -> ExitCode {
        if let Some(key) = request.network.filter(|key| !self.networks.contains_key(key)) {
            match namespaces::enter_new_network() {
                Ok(network) => drop(self.networks.insert(key, network)),
                Err(error) => {
                    supervisor::report_failure(control, error);
                    return ExitCode::FAILURE;
                }
            }
        }
        self.become_supervisor(control, request)
    }

    fn supervise_run(&self, control: UnixStream, request: ZygoteRequest) -> ExitCode {
        if rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).is_err() {
            return ExitCode::FAILURE;
        }
        self.become_supervisor(control, request)
    }

    fn become_supervisor(&self, control: UnixStream, request: ZygoteRequest) -> ExitCode {
        let session = SessionResources {
            network: request.network.and_then(|key| self.networks.get(&key)),
            cgroup_locations: &self.cgroup_locations,
            tier: self.tier,
        };
        supervisor::supervise_run(control, Some(session), request.basis.map(|basis| *basis))
    }
}

fn reap_children(options: WaitOptions) {
    while let Ok(Some(_)) | Err(rustix::io::Errno::INTR) = wait(options) {}
}
