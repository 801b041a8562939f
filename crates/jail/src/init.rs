//! The first process of a run's own pid namespace. It puts up what belongs to the run, starts the program, reaps
//! every orphan and tells how it went. When it dies, for whatever reason, the kernel kills everything in there.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Pid, Signal, WaitOptions, WaitStatus, getpid, set_child_subreaper, set_dumpable_behavior,
    set_parent_process_death_signal, wait,
};
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags};
use serde::{Deserialize, Serialize};

use crate::fault::{Fault, InLayer, Layer};
use crate::launch::{self, Step};
use crate::limits::{Door, Means};
use crate::mounts;
use crate::namespaces;
use crate::packet::Channel;
use crate::resolver;
use crate::supervisor::{Fds, Left, Spec, tree};
use crate::sys::{self, Fork};

/// What the supervisor has to say to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    /// It is where it shall be; now it may begin.
    Go,
    /// Everything is asked to end.
    Terminate,
    /// A signal for the main process and its group.
    Signal(i32),
}

/// What it has to say to the supervisor.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum News {
    /// With the run's mount namespace; its network namespace and the socket of its resolver when the network is its
    /// own; and the proxy's listener when it has one.
    Ready {
        network: bool,
        listener: bool,
    },
    Failed(Fault),
    /// How the main process ended, and what it has left behind.
    Ended {
        code: Option<i32>,
        signal: Option<i32>,
        left: Left,
    },
}

/// Everything it needs, as the supervisor leaves it by forking.
pub struct Birth<'a> {
    pub spec: &'a Spec,
    pub covers: &'a [PathBuf],
    pub network: Option<&'a OwnedFd>,
    pub means: Means,
    /// The way to the run's limits.
    pub door: Door,
    /// To the supervisor, from this process.
    pub talk: Channel,
    /// To the supervisor, from the process that becomes the program.
    pub child: Channel,
}

/// Lives until the run is over.
pub fn run(birth: Birth<'_>, fds: Fds<OwnedFd>) -> ! {
    let talk = birth.talk;
    let begun =
        set_parent_process_death_signal(Some(Signal::KILL)).in_layer(Layer::Namespaces, "die with the supervisor");
    match (begun, talk.receive::<Word>()) {
        (Ok(()), Ok(Some((Word::Go, _)))) => {}
        // The supervisor is gone already.
        _ => sys::leave(125),
    }
    let door = birth.door;
    let entered = door.enter().in_layer(Layer::Limits, "put the run under its limits").and_then(|()| {
        // After that, so that the run finds itself at the top of its own tree of control groups.
        sys::unshare(UnshareFlags::NEWCGROUP).in_layer(Layer::Namespaces, "make a namespace for control groups")
    });
    drop(door);
    let started = entered
        .and_then(|()| prepare(birth.spec, birth.covers, birth.network, &fds, &talk))
        .and_then(|(directory, port)| Ok((directory, port, sys::fork(0).in_layer(Layer::Program, "fork")?)));
    match started {
        Ok((directory, port, Fork::Child)) => {
            drop(talk);
            let step = Step { spec: birth.spec, means: birth.means, door: None, directory, port, talk: &birth.child };
            launch::become_program(step, fds)
        }
        Ok((directory, _, Fork::Parent(main))) => {
            drop((fds, birth.child, directory));
            reap(main, talk, Around::Everything)
        }
        Err(fault) => {
            let _ = talk.send(&News::Failed(fault), &[]);
            sys::leave(125)
        }
    }
}

/// The same for a run without namespaces, as far as there is anything to do: orphans fall back to this process.
pub fn reap_on_the_host(spec: &Spec, means: Means, door: Door, talk: Channel, child: Channel, fds: Fds<OwnedFd>) -> ! {
    // It does not die with the supervisor: it hears of its end, and ends the tree first.
    let begun = set_child_subreaper(Some(getpid())).in_layer(Layer::Namespaces, "own every orphan");
    let forked = begun.and_then(|()| {
        let directory = fds.cwd.try_clone().in_layer(Layer::Directory, "keep the working directory")?;
        Ok((directory, sys::fork(0).in_layer(Layer::Program, "fork")?))
    });
    match forked {
        Ok((directory, Fork::Child)) => {
            drop(talk);
            launch::become_program(Step { spec, means, door: Some(door), directory, port: None, talk: &child }, fds)
        }
        Ok((directory, Fork::Parent(main))) => {
            drop((fds, child, directory, door));
            reap(main, talk, Around::Below)
        }
        Err(fault) => {
            let _ = talk.send(&News::Failed(fault), &[]);
            sys::leave(125)
        }
    }
}

/// What there is beside the main process, for the one that reaps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Around {
    /// Every process it can see.
    Everything,
    /// Those below it.
    Below,
}

fn prepare(
    spec: &Spec,
    covers: &[PathBuf],
    network: Option<&OwnedFd>,
    fds: &Fds<OwnedFd>,
    talk: &Channel,
) -> Result<(OwnedFd, Option<u16>), Fault> {
    let (mut proxy, mut names) = (None, None);
    if let Some(network) = network {
        namespaces::join_network(network)?;
        names = Some(resolver::bind().in_layer(Layer::Network, "open the resolver's port")?);
        if !spec.proxy_env.is_empty() {
            proxy = Some(namespaces::listen()?);
        }
    }
    let resolv_conf = names.as_ref().map(|(_, address)| resolver::settings(*address));
    mounts::build_run(&spec.rights, covers, resolv_conf.as_deref())?;
    let directory = mounts::open_directory(&spec.cwd).in_layer(Layer::Directory, "open the working directory")?;
    // The descriptor leads through the host's mounts and must not be used; it only says which directory was meant.
    if !mounts::is_same(directory.as_fd(), fds.cwd.as_fd())
        .in_layer(Layer::Directory, "look at the working directory")?
    {
        return Err(Fault::other(Layer::Directory, "open the working directory", "it is not the one that was checked"));
    }
    let own = |name: &str| std::fs::File::open(format!("/proc/self/ns/{name}")).in_layer(Layer::Namespaces, name);
    let mut handed = vec![OwnedFd::from(own("mnt")?)];
    if network.is_some() {
        handed.push(own("net")?.into());
    }
    handed.extend(names.map(|(socket, _)| OwnedFd::from(socket)));
    let port = proxy.as_ref().map(|(_, port)| *port);
    let listener = proxy.is_some();
    handed.extend(proxy.map(|(listener, _)| OwnedFd::from(listener)));
    let borrowed: Vec<_> = handed.iter().map(AsFd::as_fd).collect();
    let news = News::Ready { network: network.is_some(), listener };
    talk.send(&news, &borrowed).in_layer(Layer::Namespaces, "tell the supervisor")?;
    Ok((directory, port))
}

/// Reaps until nobody is left, and passes on what the supervisor says meanwhile.
fn reap(main: Pid, talk: Channel, around: Around) -> ! {
    // Nobody inside shall read or trace this process, which the kernel lets do more than any other in here.
    let hidden = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let none = CapabilitySet::empty();
    let weak =
        rustix::thread::set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none });
    if hidden.is_err() || weak.is_err() {
        sys::leave(125);
    }
    let ours = talk.as_fd().try_clone_to_owned().map(Channel::from);
    let Ok(ours) = ours else { sys::leave(125) };
    // What the supervisor had open is open here as well, and is none of this process's business.
    if sys::close_all_but(&[talk.as_fd(), ours.as_fd()]).is_err() {
        sys::leave(125);
    }
    if std::thread::Builder::new().spawn(move || listen(main, &talk, around)).is_err() {
        sys::leave(125);
    }
    let mut ended: Option<WaitStatus> = None;
    loop {
        // With the end of the main process in hand, one look decides whether anything else lives: every process in
        // here has a living ancestor that is our child, or is our child itself.
        let options = if ended.is_some() { WaitOptions::NOHANG } else { WaitOptions::empty() };
        match wait(options) {
            Ok(Some((pid, status))) if pid == main => ended = Some(status),
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => tell(&ours, ended.take(), Some(around)),
            Err(_) => {
                tell(&ours, ended.take(), None);
                sys::leave(0)
            }
        }
    }
}

fn tell(talk: &Channel, ended: Option<WaitStatus>, around: Option<Around>) {
    let Some(status) = ended else { return };
    let left = match around {
        None => Left::Nothing,
        Some(Around::Everything) => Left::behind(tree::all_but_us()),
        Some(Around::Below) => Left::behind(tree::living(getpid())),
    };
    let news = News::Ended { code: status.exit_status(), signal: status.terminating_signal(), left };
    // A supervisor that does not hear it is gone, and so are we when it is.
    let _ = talk.send(&news, &[]);
}

fn listen(main: Pid, talk: &Channel, around: Around) {
    while let Ok(Some((word, _))) = talk.receive::<Word>() {
        match word {
            Word::Terminate if around == Around::Everything => {
                // A stopped process is woken, so that it can end.
                let _ = sys::kill_everything(libc::SIGTERM);
                let _ = sys::kill_everything(libc::SIGCONT);
            }
            Word::Signal(signal) => drop(sys::trace::signal(-main.as_raw_nonzero().get(), signal)),
            Word::Go | Word::Terminate => {}
        }
    }
    // The supervisor is gone, and in a namespace everything goes with this process.
    if around == Around::Below {
        tree::kill(getpid());
    }
    sys::leave(0)
}
