//! The zygote: one small process per session that holds the session's namespaces and forks a supervisor for each run.
//!
//! It is our own binary, started again with [`ARGUMENT`], an empty environment and its channel to the server as
//! standard input. It has one thread, so forking it is safe, and no exec stands between a call and its run. When it
//! dies, its supervisors and their runs die with it; when the server does, it waits for them and goes.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    DumpableBehavior, Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, set_dumpable_behavior, wait,
};
use serde::{Deserialize, Serialize};

use crate::fault::{Fault, InLayer, Layer};
use crate::limits::Places;
use crate::mounts;
use crate::namespaces::{self, Tier};
use crate::packet::Channel;
use crate::rights::Rights;
use crate::supervisor;
use crate::sys::{self, Fork};

/// The first argument that makes our binary a zygote.
pub const ARGUMENT: &str = "__zygote";

/// What the server asks for at first: the ground that every run of the session stands on.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ground {
    pub rights: Rights,
    pub tier: Tier,
}

/// What the server asks for afterwards: a supervisor, which takes the descriptor that comes along as its control
/// socket, or a socket in one of the session's networks, handed over through that descriptor.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    /// Which of the session's networks the run joins: runs that may reach different things have different ones, so
    /// that none can use another's proxy. `None` is the host's.
    pub network: Option<u32>,
    /// There will be no other run, so the zygote becomes the supervisor itself.
    #[serde(default)]
    pub last: bool,
    /// A socket, in place of a supervisor. Its family: 4 or 6.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<u8>,
}

/// What a supervisor has of its session.
pub struct Session<'a> {
    pub network: Option<&'a OwnedFd>,
    pub places: &'a Places,
}

/// The answer to a [`Ground`].
pub type Laid = Result<(), Fault>;

/// Runs as a zygote until the server is gone.
pub fn run() -> ExitCode {
    crate::close_on_exec();
    let Ok(channel) = take_channel() else { return ExitCode::FAILURE };
    serve(channel)
}

/// Forks a zygote off this process, which has one thread, and gives the channel to it. For a command that runs once
/// and has nothing to hide from it.
pub fn fork_off() -> std::io::Result<Channel> {
    let (ours, theirs) = Channel::pair()?;
    match sys::fork(0)? {
        Fork::Parent(_) => Ok(ours),
        Fork::Child => {
            drop(ours);
            // The other ends of what the parent holds would never close.
            let (stdin, stdout, stderr) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
            if sys::close_all_but(&[stdin.as_fd(), stdout.as_fd(), stderr.as_fd(), theirs.as_fd()])
                .is_err()
            {
                sys::leave(1);
            }
            // Leaves without running what the parent has set up for its own end.
            let code = serve(theirs);
            sys::leave(i32::from(code != ExitCode::SUCCESS))
        }
    }
}

fn serve(channel: Channel) -> ExitCode {
    let ground = match channel.receive_long::<Ground>() {
        Ok(Some((ground, _))) => ground,
        _ => return ExitCode::FAILURE,
    };
    match lay(&ground) {
        Ok(mut held) => {
            if channel.send(&Laid::Ok(()), &[]).is_err() {
                return ExitCode::FAILURE;
            }
            held.serve(channel)
        }
        Err(fault) => {
            let _ = channel.send(&Laid::Err(fault), &[]);
            ExitCode::FAILURE
        }
    }
}

/// Moves the channel off standard input, to a descriptor that no child inherits.
fn take_channel() -> std::io::Result<Channel> {
    let channel = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    // Our own binary, when bubblewrap has started us from there.
    rustix::stdio::dup2_stdout(&null)?;
    Ok(Channel::from(channel))
}

struct Held {
    networks: HashMap<u32, OwnedFd>,
    places: Places,
    /// Children that have not been reaped.
    children: Vec<OwnedFd>,
}

fn lay(ground: &Ground) -> Result<Held, Fault> {
    // Away from the server's terminal and group first, so that nothing that follows has them.
    let _ = rustix::process::setsid();
    // Where limits are kept is found while the host's tree is still to be seen.
    let places = Places::hold();
    namespaces::enter(ground.tier)?;
    mounts::build_ground(&ground.rights)?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).in_layer(Layer::Namespaces, "hide")?;
    Ok(Held { networks: HashMap::new(), places, children: Vec::new() })
}

impl Held {
    fn serve(&mut self, channel: Channel) -> ExitCode {
        while let Ok(Some((order, mut fds))) = self.next(&channel) {
            let Some(control) = fds.pop().map(UnixStream::from) else { continue };
            if order.last {
                drop(channel);
                return self.supervise_last(control, order.network);
            }
            let network = self.network(order.network);
            if let Some(family) = order.socket {
                // Without an answer the server knows that there is none.
                if network.is_ok() {
                    self.hand_out_socket(control, order.network, family == 6);
                }
                continue;
            }
            match network.and_then(|()| sys::fork(0).in_layer(Layer::Namespaces, "fork")) {
                Ok(Fork::Child) => {
                    drop(channel);
                    return self.supervise(control, order.network);
                }
                Ok(Fork::Parent(child)) => self.watch(child),
                Err(fault) => supervisor::refuse(control, fault),
            }
        }
        // The server is gone, and each supervisor has seen it: they end their runs and go, and then we do.
        reap(WaitOptions::empty());
        ExitCode::SUCCESS
    }

    /// The next order. Whoever ends meanwhile is reaped: a session may be idle for long.
    fn next(&mut self, channel: &Channel) -> std::io::Result<Option<(Order, Vec<OwnedFd>)>> {
        loop {
            let mut watched = vec![PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN)];
            watched.extend(
                self.children
                    .iter()
                    .map(|child| PollFd::from_borrowed_fd(child.as_fd(), PollFlags::IN)),
            );
            match poll(&mut watched, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            let ended: Vec<bool> =
                watched.iter().skip(1).map(|child| !child.revents().is_empty()).collect();
            let is_called = !watched[0].revents().is_empty();
            if ended.contains(&true) {
                reap(WaitOptions::NOHANG);
                let mut ended = ended.into_iter();
                self.children.retain(|_| !ended.next().unwrap_or_default());
            }
            if is_called {
                return channel.receive();
            }
        }
    }

    fn watch(&mut self, child: Pid) {
        // One that cannot be watched is reaped with the next that can.
        self.children.extend(pidfd_open(child, PidfdFlags::empty()));
    }

    fn network(&mut self, key: Option<u32>) -> Result<(), Fault> {
        if let Some(key) = key
            && !self.networks.contains_key(&key)
        {
            self.networks.insert(key, namespaces::make_network()?);
        }
        Ok(())
    }

    /// By a child: who has joined a network without privileges cannot come back.
    fn hand_out_socket(&mut self, to: UnixStream, network: Option<u32>, ipv6: bool) {
        let Some(network) = network.and_then(|key| self.networks.get(&key)) else { return };
        match sys::fork(0) {
            Ok(Fork::Child) => {
                let handed =
                    namespaces::hand_out_socket(network, ipv6, &Channel::from(OwnedFd::from(to)));
                sys::leave(i32::from(handed.is_err()));
            }
            Ok(Fork::Parent(child)) => self.watch(child),
            // Without an answer the server knows that there is none.
            Err(_) => {}
        }
    }

    /// Nobody else will need the network, so it is made where it is used, and nothing is forked.
    fn supervise_last(&mut self, control: UnixStream, key: Option<u32>) -> ExitCode {
        if let Some(key) = key {
            match namespaces::become_network() {
                Ok(network) => drop(self.networks.insert(key, network)),
                Err(fault) => {
                    supervisor::refuse(control, fault);
                    return ExitCode::FAILURE;
                }
            }
        }
        let network = key.and_then(|key| self.networks.get(&key));
        supervisor::supervise(control, Some(Session { network, places: &self.places }))
    }

    fn supervise(&self, control: UnixStream, network: Option<u32>) -> ExitCode {
        if rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).is_err() {
            return ExitCode::FAILURE;
        }
        let network = network.and_then(|key| self.networks.get(&key));
        supervisor::supervise(control, Some(Session { network, places: &self.places }))
    }
}

fn reap(how: WaitOptions) {
    while let Ok(Some(_)) | Err(rustix::io::Errno::INTR) = wait(how) {}
}
