//! Limits of a single run: set up before its first process starts and removed after the last one
//! has ended.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::process::{Pid, getpid};

use super::cgroup::{Door, Group, Name, Places, create_bare, create_legacy, create_unified};
use super::poll::Watch;
use super::{Limits, Means};

/// How long dropping the limits waits for killed processes to exit. Only a process stuck in the
/// kernel takes longer.
const DEATH: Duration = Duration::from_secs(2);
const HINT: &str = "limits are advisory; to enforce them, start the server with `systemd-run --user --scope`, \
                    or in a container with a writable cgroup v2";

/// Limits that apply to everything inside together, including all child processes. Dropping it
/// kills them.
#[derive(Debug)]
pub struct Cage {
    means: Means,
    why: Option<String>,
    limits: Limits,
    /// The first one is used to kill the run.
    groups: Vec<Group>,
    watch: Option<Watch>,
    /// A fork of the supervisor inherits this value and must not end the run when it drops its
    /// copy.
    owner: Pid,
}

impl Cage {
    /// Sets up the strongest mechanism that this host offers. Never fails: [`Cage::means`] reports
    /// which one is in use.
    pub fn new(run: &str, limits: &Limits) -> Cage {
        Cage::at_most(run, limits, Means::CgroupV2)
    }

    /// Like [`Cage::new`], but uses nothing stronger than `means`.
    pub fn at_most(run: &str, limits: &Limits, means: Means) -> Cage {
        Cage::build(&Places::read().unwrap_or_default(), run, limits, means)
    }

    /// Like [`Cage::new`], but in cgroup hierarchies that were opened before they became
    /// unreachable.
    pub fn within(places: &Places, run: &str, limits: &Limits) -> Cage {
        Cage::build(places, run, limits, Means::CgroupV2)
    }

    fn build(places: &Places, run: &str, limits: &Limits, means: Means) -> Cage {
        let mut missed = Vec::new();
        let (means, groups) = climb_down(places, run, limits, means, &mut missed);
        if means.is_advisory() {
            missed.push(HINT.to_owned());
        }
        let why = (!missed.is_empty()).then(|| missed.join("; "));
        Cage { means, why, limits: limits.clone(), groups, watch: None, owner: getpid() }
    }

    /// Returns the mechanism that enforces these limits.
    pub fn means(&self) -> Means {
        self.means
    }

    /// Returns why no stronger mechanism is available, and what to do about it.
    pub fn why(&self) -> Option<&str> {
        self.why.as_deref()
    }

    /// Moves a process in while it waits, before it has children or threads. This costs about ten
    /// milliseconds on an idle machine; a child that can enter on its own uses [`Cage::door`]
    /// instead.
    pub fn add(&self, pid: Pid) -> io::Result<()> {
        self.groups.iter().try_for_each(|group| group.add(pid)).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("could not apply the limits to process {pid}: {error}"),
            )
        })
    }

    /// Opens the descriptors with which a child moves itself in.
    pub fn door(&self) -> io::Result<Door> {
        Door::open(&self.groups)
    }

    /// Returns a descriptor for `clone3` with `CLONE_INTO_CGROUP`, which takes a tenth of a
    /// millisecond: the child starts inside the group and need not move. Not available in cgroup
    /// v1.
    pub fn directory(&self) -> Option<OwnedFd> {
        if self.means == Means::CgroupV1 { None } else { self.groups.first()?.directory().ok() }
    }

    /// Kills all processes inside, and returns whether that succeeded. Nothing can be started
    /// inside afterwards.
    pub fn kill(&self) -> bool {
        self.groups.first().is_some_and(Group::kill)
    }

    /// Returns whether no process is left inside, or `None` if that cannot be determined.
    pub fn is_empty(&self) -> Option<bool> {
        self.groups.first()?.is_empty().ok()
    }

    /// Polls the totals four times a second and calls `end` once when they are exceeded. Does
    /// nothing if the kernel enforces the limits.
    pub fn watch(
        &mut self,
        list: impl Fn() -> Vec<Pid> + Send + 'static,
        end: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        if self.means.is_advisory()
            && (self.limits.memory_bytes.is_some() || self.limits.processes.is_some())
        {
            self.watch = Some(Watch::start(&self.limits, list, end)?);
        }
        Ok(())
    }

    /// Returns whether a process of the run was killed because the memory limit was reached.
    pub fn was_out_of_memory(&self) -> bool {
        self.watch.as_ref().is_some_and(Watch::saw_memory)
            || self.counts(&[("memory.events", "oom_kill"), ("memory.oom_control", "oom_kill")])
    }

    /// Returns whether a fork was refused. Without a control group a refusal leaves no trace; then
    /// this is true only if the run was ended for exceeding the limit.
    pub fn hit_process_limit(&self) -> bool {
        self.watch.as_ref().is_some_and(Watch::saw_processes)
            || self.counts(&[("pids.events", "max")])
    }

    /// Returns whether any of these `(file, key)` counters is above zero in any group.
    fn counts(&self, places: &[(&str, &str)]) -> bool {
        self.groups.iter().any(|group| places.iter().any(|(file, key)| group.count(file, key) > 0))
    }
}

impl Drop for Cage {
    fn drop(&mut self) {
        if self.owner != getpid() {
            // The watching thread does not exist in the fork, so there is nothing to join.
            std::mem::forget(self.watch.take());
            return;
        }
        self.watch = None;
        let Some(first) = self.groups.first() else { return };
        if !first.remove_when_empty(Duration::ZERO) {
            self.kill();
            for group in &self.groups {
                group.remove_when_empty(DEATH);
            }
        }
    }
}

/// Tries the mechanisms from the strongest down to the first that works, and records why each
/// stronger one failed.
fn climb_down(
    places: &Places,
    run: &str,
    limits: &Limits,
    highest: Means,
    missed: &mut Vec<String>,
) -> (Means, Vec<Group>) {
    let name = match Name::new(run) {
        Ok(name) => name,
        Err(error) => {
            missed.push(format!("cannot read /proc: {error}"));
            return (Means::Rlimits, Vec::new());
        }
    };
    if highest <= Means::CgroupV2 {
        match create_unified(places, &name, limits) {
            Ok(group) => return (Means::CgroupV2, vec![group]),
            Err(reason) => missed.push(reason),
        }
    }
    if highest <= Means::CgroupV1 {
        match create_legacy(places, &name, limits) {
            Ok(groups) => return (Means::CgroupV1, groups),
            Err(reason) => missed.push(reason),
        }
    }
    (Means::Rlimits, create_bare(places, &name).into_iter().collect())
}
