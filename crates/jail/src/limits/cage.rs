//! The cage of one run: made before its first process, and gone with its last.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::process::{Pid, getpid};

use super::cgroup::{Door, Group, Name, Places, create_bare, create_legacy, create_unified};
use super::poll::Watch;
use super::{Limits, Means};

/// How long the end of a cage waits for processes that were killed. Only one that hangs in the kernel takes longer.
const DEATH: Duration = Duration::from_secs(2);
const HINT: &str = "limits are advisory; to enforce them, start the server with `systemd-run --user --scope`, \
                    or in a container with a writable cgroup v2";

/// Everything that enters it is held to the limits together, with all its children. Dropping it kills them.
#[derive(Debug)]
pub struct Cage {
    means: Means,
    why: Option<String>,
    limits: Limits,
    /// The first of them is the one to kill through.
    groups: Vec<Group>,
    watch: Option<Watch>,
    /// A fork of the supervisor has this value too, and must not end the run when it drops it.
    owner: Pid,
}

impl Cage {
    /// The strongest cage that this host gives us. It never fails: [`Cage::means`] says where it landed.
    pub fn new(run: &str, limits: &Limits) -> Cage {
        Cage::at_most(run, limits, Means::CgroupV2)
    }

    /// The same, leaving out what is stronger than `means`.
    pub fn at_most(run: &str, limits: &Limits, means: Means) -> Cage {
        Cage::build(&Places::read().unwrap_or_default(), run, limits, means)
    }

    /// The same, in places that were held before they went out of sight.
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

    pub fn means(&self) -> Means {
        self.means
    }

    /// Why nothing stronger was to be had, and what to do about it.
    pub fn why(&self) -> Option<&str> {
        self.why.as_deref()
    }

    /// Puts a process in while it waits, before it has children or threads of its own. This costs some ten
    /// milliseconds on an idle machine: a child that can enter by itself uses [`Cage::door`].
    pub fn add(&self, pid: Pid) -> io::Result<()> {
        self.groups.iter().try_for_each(|group| group.add(pid)).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("process {pid} could not be put under its limits: {error}"),
            )
        })
    }

    /// The way in for a child that enters by itself.
    pub fn door(&self) -> io::Result<Door> {
        Door::open(&self.groups)
    }

    /// For `clone3` with `CLONE_INTO_CGROUP`, which costs a tenth of a millisecond: the child is born inside, and
    /// needs no door. Version 1 has no such thing.
    pub fn directory(&self) -> Option<OwnedFd> {
        if self.means == Means::CgroupV1 { None } else { self.groups.first()?.directory().ok() }
    }

    /// Kills everything inside; whether it did. Nothing can be started in it afterwards.
    pub fn kill(&self) -> bool {
        self.groups.first().is_some_and(Group::kill)
    }

    /// Whether nothing lives inside, where that can be told.
    pub fn is_empty(&self) -> Option<bool> {
        self.groups.first()?.is_empty().ok()
    }

    /// Looks at the totals four times a second and calls `end` once when they are exceeded. Where the kernel does the
    /// same at once, it does nothing.
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

    /// Whether a process of the run was killed for want of memory.
    pub fn was_out_of_memory(&self) -> bool {
        self.watch.as_ref().is_some_and(Watch::saw_memory)
            || self.counts(&[("memory.events", "oom_kill"), ("memory.oom_control", "oom_kill")])
    }

    /// Whether a fork was refused. Without a control group a refusal leaves no trace, and only a run that was ended
    /// for it is known.
    pub fn hit_process_limit(&self) -> bool {
        self.watch.as_ref().is_some_and(Watch::saw_processes)
            || self.counts(&[("pids.events", "max")])
    }

    fn counts(&self, places: &[(&str, &str)]) -> bool {
        self.groups.iter().any(|group| places.iter().any(|(file, key)| group.count(file, key) > 0))
    }
}

impl Drop for Cage {
    fn drop(&mut self) {
        if self.owner != getpid() {
            // The thread that watches is not in the fork, so there is nothing to wait for either.
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

/// From the strongest means down to the one that holds, noting what was missing on the way.
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
            missed.push(format!("/proc cannot be read: {error}"));
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
