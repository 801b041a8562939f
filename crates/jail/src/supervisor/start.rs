//! Starting a run: the supervisor's side of it.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use rustix::process;

use super::tree::Tree;
use super::{Fds, Run, Spec};
use crate::fault::{Fault, InLayer, Layer};
use crate::init::{self, Birth, News, Word};
use crate::intercept::{self, Denials, Reach};
use crate::keep::Keeper;
use crate::launch::{self, Fence, Said, Step};
use crate::limits::Cage;
use crate::packet::Channel;
use crate::protect::Guard;
use crate::sys::{self, Fork};
use crate::zygote::Session;

const NAMESPACES: libc::c_int = libc::CLONE_NEWNS | libc::CLONE_NEWPID;

/// Starts a run in its own namespaces, on the ground of its session.
pub(super) fn in_namespaces(spec: &Spec, mut fds: Fds<OwnedFd>, session: &Session<'_>) -> Result<(Run, i32), Fault> {
    let guard = Guard::take(&spec.rights).map_err(|unprotected| {
        let path = unprotected.path.display();
        Fault::new(Layer::Protected, format!("protect {path}"), &unprotected.why)
    })?;
    let cage = Cage::within(session.places, "run", &spec.limits);
    let door = cage.door().in_layer(Layer::Limits, "open the way to the run's limits")?;
    let handout = fds.handout.take();
    let (talk, theirs) = Channel::pair().in_layer(Layer::Namespaces, "open a channel")?;
    let (child, childs) = Channel::pair().in_layer(Layer::Namespaces, "open a channel")?;
    let first = match sys::fork(NAMESPACES).in_layer(Layer::Namespaces, "make namespaces for the run")? {
        Fork::Child => {
            drop((talk, child, handout));
            // What stands in for missing paths is not this process's to remove.
            let covers = guard.covers.clone();
            std::mem::forget(guard);
            let birth = Birth {
                spec,
                covers: &covers,
                network: session.network,
                means: cage.means(),
                door,
                talk: theirs,
                child: childs,
            };
            init::run(birth, fds)
        }
        Fork::Parent(first) => first,
    };
    drop((fds, theirs, childs, door));
    let denials = Denials::default();
    let tree = Tree::Namespace { first, talk };
    let run = Run { tree, grace: Duration::from_millis(spec.grace_ms), denials, cage, guard };
    let Tree::Namespace { talk, .. } = &run.tree else { return Err(lost()) };
    talk.send(&Word::Go, &[]).in_layer(Layer::Namespaces, "let the run begin")?;
    let reach = hear_ready(talk, handout, spec)?;
    let keeper = Keeper::new(&spec.rights, &run.guard.covers);
    accompany(&child, Some((reach, keeper)), &run.denials)?;
    Ok((run, first.as_raw_nonzero().get()))
}

fn lost() -> Fault {
    Fault::other(Layer::Namespaces, "start the run", "its first process was lost")
}

/// Waits for the first process to have put up what belongs to the run.
fn hear_ready(talk: &Channel, handout: Option<OwnedFd>, spec: &Spec) -> Result<Reach, Fault> {
    let news = talk.receive::<News>().in_layer(Layer::Namespaces, "hear of the run")?;
    let (network, listener, fds) = match news {
        Some((News::Ready { network, listener }, fds)) => (network, listener, fds),
        Some((News::Failed(fault), _)) => return Err(fault),
        _ => return Err(lost()),
    };
    let mut fds = fds.into_iter();
    let mounts = fds.next();
    let network = if network { fds.next() } else { None };
    if let (true, Some(listener), Some(handout)) = (listener, fds.next(), handout) {
        let handout = Channel::from(handout);
        handout.send(&(), &[listener.as_fd()]).in_layer(Layer::Network, "hand the proxy's port out")?;
    }
    let shut_ports = spec.shut_ports.clone();
    Ok(Reach { mounts, network, private_devices: private_devices(), processes: None, shut_ports })
}

/// The file systems that only this session has.
fn private_devices() -> Vec<u64> {
    let device = |path| std::fs::metadata(path).ok().map(|found| found.dev());
    ["/tmp", "/var/tmp", "/run", "/dev/shm"].into_iter().filter_map(device).collect()
}

/// Goes along with the process that becomes the program, until it is that.
fn accompany(child: &Channel, mut reach: Option<(Reach, Keeper)>, denials: &Denials) -> Result<(), Fault> {
    let filtered = |reach: &Option<(Reach, Keeper)>| reach.is_none();
    loop {
        match child.receive::<Said>().in_layer(Layer::Program, "hear of the program")? {
            // The canary's own attempt came to us, or the filter is not what it should be.
            None if filtered(&reach) && !denials.forgive("syscall", launch::CANARY) => {
                return Err(Fault::other(Layer::Canary, "be asked", "the filter did not leave a call to us"));
            }
            None => return Ok(()),
            Some((Said::Failed(fault), _)) => return Err(fault),
            Some((Said::Listening, mut fds)) => {
                let (Some(listener), Some((reach, keeper))) = (fds.pop(), reach.take()) else { return Err(lost()) };
                intercept::answer(listener, reach, keeper, denials.clone())
                    .in_layer(Layer::Seccomp, "listen to the run")?;
                child.send(&true, &[]).in_layer(Layer::Seccomp, "let the program begin")?;
            }
        }
    }
}

/// Starts a run without namespaces: this process is the one that every orphan falls back to.
pub(super) fn on_the_host(spec: &Spec, fds: Fds<OwnedFd>) -> Result<(Run, i32), Fault> {
    if spec.fence == Fence::Default {
        return Err(Fault::other(Layer::Namespaces, "start the run", "it has no session"));
    }
    process::set_child_subreaper(Some(process::getpid())).in_layer(Layer::Namespaces, "own every orphan")?;
    let cage = Cage::new("run", &spec.limits);
    let door = cage.door().in_layer(Layer::Limits, "open the way to the run's limits")?;
    let (child, childs) = Channel::pair().in_layer(Layer::Program, "open a channel")?;
    let main = match sys::fork(0).in_layer(Layer::Program, "fork")? {
        Fork::Child => {
            drop(child);
            let (means, directory) = (cage.means(), fds.cwd.try_clone());
            let Ok(directory) = directory else { sys::leave(125) };
            launch::become_program(Step { spec, means, door: Some(door), directory, port: None, talk: &childs }, fds)
        }
        Fork::Parent(main) => main,
    };
    drop((fds, childs, door));
    let denials = Denials::default();
    let tree = Tree::Walked { main };
    let run = Run { tree, grace: Duration::from_millis(spec.grace_ms), denials, cage, guard: Guard::default() };
    let reach = Reach {
        mounts: None,
        network: None,
        private_devices: Vec::new(),
        processes: Some(Box::new(run.tree.lister())),
        shut_ports: spec.shut_ports.clone(),
    };
    match accompany(&child, Some((reach, Keeper::of_nothing())), &run.denials) {
        Ok(()) => Ok((run, main.as_raw_nonzero().get())),
        Err(fault) => {
            run.tree.kill();
            Err(fault)
        }
    }
}
