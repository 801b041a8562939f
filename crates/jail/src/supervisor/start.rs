//! Starts a run, from the supervisor's side.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use rustix::process;

use super::tree::Tree;
use super::{Fds, Run, Spec};
use crate::fault::{Fault, InLayer, Layer};
use crate::init::{self, Birth, News, Word};
use crate::intercept::{self, Denials, Reach, exec};
use crate::keep::Keeper;
use crate::launch::{self, Fence, Said, Step};
use crate::limits::Cage;
use crate::packet::Channel;
use crate::protect::Guard;
use crate::resolver;
use crate::sys::{self, Fork};
use crate::zygote::Session;

const NAMESPACES: libc::c_int = libc::CLONE_NEWNS | libc::CLONE_NEWPID;

/// Starts a run in its own namespaces, inside the root of its session.
pub(super) fn in_namespaces(
    spec: &Spec,
    mut fds: Fds<OwnedFd>,
    session: &Session<'_>,
) -> Result<(Run, i32), Fault> {
    let guard = Guard::take(&spec.rights).map_err(|unprotected| {
        let path = unprotected.path.display();
        Fault::new(Layer::Protected, format!("protect {path}"), &unprotected.why)
    })?;
    let cage = Cage::within(session.places, "run", &spec.limits);
    let door = cage.door().in_layer(Layer::Limits, "open the run's limits")?;
    let handout = fds.handout.take();
    let denials = Denials::default();
    let exec = terms(spec, &mut fds, &denials);
    let (talk, theirs) = Channel::pair().in_layer(Layer::Namespaces, "open a channel")?;
    let (child, childs) = Channel::pair().in_layer(Layer::Namespaces, "open a channel")?;
    let first =
        match sys::fork(NAMESPACES).in_layer(Layer::Namespaces, "create namespaces for the run")? {
            Fork::Child => {
                drop((talk, child, handout, exec));
                // The stand-ins for missing paths belong to the supervisor; this process must not
                // remove them.
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
    let tree = Tree::Namespace { first, talk };
    let mut run = Run {
        tree,
        grace: Duration::from_millis(spec.grace_ms),
        denials,
        cage,
        guard,
        watch: None,
    };
    let Tree::Namespace { talk, .. } = &run.tree else { return Err(lost()) };
    talk.send(&Word::Go, &[]).in_layer(Layer::Namespaces, "let the run start")?;
    let reach = hear_ready(talk, handout, spec, &run.denials)?;
    let keeper = Keeper::new(&spec.rights, &run.guard.covers);
    accompany(&child, Post { reach, keeper, exec }, &mut run)?;
    Ok((run, first.as_raw_nonzero().get()))
}

fn lost() -> Fault {
    Fault::other(Layer::Namespaces, "start the run", "its first process was lost")
}

/// Waits until the run's init has set up what belongs to the run, and takes the descriptors it
/// sends.
fn hear_ready(
    talk: &Channel,
    handout: Option<OwnedFd>,
    spec: &Spec,
    denials: &Denials,
) -> Result<Reach, Fault> {
    let news = talk.receive::<News>().in_layer(Layer::Namespaces, "wait for the run's init")?;
    let (network, listener, fds) = match news {
        Some((News::Ready { network, listener }, fds)) => (network, listener, fds),
        Some((News::Failed(fault), _)) => return Err(fault),
        _ => return Err(lost()),
    };
    let mut fds = fds.into_iter();
    let mounts = fds.next();
    let (network, names) = if network { (fds.next(), fds.next()) } else { (None, None) };
    if let Some(socket) = names {
        resolver::serve(socket.into(), denials.clone())
            .in_layer(Layer::Network, "serve the resolver")?;
    }
    if let (true, Some(listener), Some(handout)) = (listener, fds.next(), handout) {
        let handout = Channel::from(handout);
        handout
            .send(&(), &[listener.as_fd()])
            .in_layer(Layer::Network, "hand out the proxy's listener")?;
    }
    let shut_ports = spec.shut_ports.clone();
    let nested = spec.rights.nested;
    Ok(Reach {
        mounts,
        network,
        private_devices: private_devices(),
        processes: None,
        shut_ports,
        nested,
    })
}

/// Lists the devices of the file systems that only this session has.
fn private_devices() -> Vec<u64> {
    let device = |path| std::fs::metadata(path).ok().map(|found| found.dev());
    ["/tmp", "/var/tmp", "/run", "/dev/shm"].into_iter().filter_map(device).collect()
}

/// Everything that answers the run's system calls, kept until the listener for them arrives.
struct Post {
    reach: Reach,
    keeper: Keeper,
    exec: Option<exec::Terms>,
}

/// Builds what is needed to judge execs, if they are judged.
fn terms(spec: &Spec, fds: &mut Fds<OwnedFd>, denials: &Denials) -> Option<exec::Terms> {
    let (notices, log) = (fds.notices.take().map(Channel::from), fds.log.take());
    let rules = spec.exec.clone()?;
    Some(exec::Terms { rules, notices, log, denials: denials.clone() })
}

/// Serves the process that becomes the program until it has become the program.
fn accompany(child: &Channel, post: Post, run: &mut Run) -> Result<(), Fault> {
    let mut post = Some(post);
    loop {
        match child.receive::<Said>().in_layer(Layer::Program, "wait for the program")? {
            // The canary's own attempt has to arrive here; otherwise the filter is not what it
            // should be.
            None if post.is_none() && !run.denials.forgive("syscall", launch::CANARY) => {
                return Err(Fault::other(
                    Layer::Canary,
                    "receive the canary's call",
                    "the filter did not pass it to the supervisor",
                ));
            }
            None => return Ok(()),
            Some((Said::Failed(_), _)) if run.denials.has("exec", exec::UNWATCHABLE) => {
                return Err(Fault::other(Layer::Exec, "watch the program", "tracing was refused"));
            }
            Some((Said::Failed(fault), _)) => return Err(fault),
            Some((Said::Listening, mut fds)) => {
                let (Some(listener), Some(post)) = (fds.pop(), post.take()) else {
                    return Err(lost());
                };
                let Post { reach, keeper, exec } = post;
                run.watch = intercept::answer(listener, reach, keeper, run.denials.clone(), exec)
                    .in_layer(Layer::Seccomp, "serve the run's system calls")?;
                child.send(&true, &[]).in_layer(Layer::Seccomp, "let the program start")?;
            }
        }
    }
}

/// Starts a run without namespaces. With a sandbox its orphans are reparented to our child,
/// which leaves us free to trace; without one they are reparented to us.
pub(super) fn on_the_host(spec: &Spec, mut fds: Fds<OwnedFd>) -> Result<(Run, i32), Fault> {
    let fenced = match spec.fence {
        Fence::Default => {
            return Err(Fault::other(Layer::Namespaces, "start the run", "it has no session"));
        }
        Fence::Contained => true,
        Fence::None => false,
    };
    let cage = Cage::new("run", &spec.limits);
    let door = cage.door().in_layer(Layer::Limits, "open the run's limits")?;
    let denials = Denials::default();
    let exec = terms(spec, &mut fds, &denials);
    let (talk, theirs) = Channel::pair().in_layer(Layer::Program, "open a channel")?;
    let (child, childs) = Channel::pair().in_layer(Layer::Program, "open a channel")?;
    if !fenced {
        process::set_child_subreaper(Some(process::getpid()))
            .in_layer(Layer::Namespaces, "become a subreaper")?;
    }
    let first = match sys::fork(0).in_layer(Layer::Program, "fork")? {
        Fork::Child => {
            drop((child, talk, exec));
            let means = cage.means();
            if fenced {
                init::reap_on_the_host(spec, means, door, theirs, childs, fds)
            }
            let Ok(directory) = fds.cwd.try_clone() else { sys::leave(125) };
            launch::become_program(
                Step {
                    spec,
                    means,
                    door: Some(door),
                    directory,
                    covers: &[],
                    port: None,
                    talk: &childs,
                },
                fds,
            )
        }
        Fork::Parent(first) => first,
    };
    drop((fds, childs, theirs, door));
    let tree = if fenced { Tree::Beneath { first, talk } } else { Tree::Walked { main: first } };
    let grace = Duration::from_millis(spec.grace_ms);
    let mut run = Run { tree, grace, denials, cage, guard: Guard::default(), watch: None };
    let reach = Reach {
        mounts: None,
        network: None,
        private_devices: Vec::new(),
        processes: Some(Box::new(run.tree.lister())),
        shut_ports: spec.shut_ports.clone(),
        nested: false,
    };
    match accompany(&child, Post { reach, keeper: Keeper::of_nothing(), exec }, &mut run) {
        Ok(()) => Ok((run, first.as_raw_nonzero().get())),
        Err(fault) => {
            run.tree.kill();
            Err(fault)
        }
    }
}
