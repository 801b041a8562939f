//! Limits of a single run: set up before its first process starts and removed after the last one
//! has ended.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::process::{Pid, getpid};

use super::cgroup::{
    CgroupJoiner, CgroupLocations, CgroupName, ControlGroup, create_legacy, create_unified,
    create_unlimited_group,
};
use super::usage_watch::UsageWatch;
use super::{LimitMechanism, ResourceLimits};

/// How long dropping the limits waits for killed processes to exit. Only a process stuck in the
/// kernel takes longer.
const KILL_WAIT: Duration = Duration::from_secs(2);
const ADVISORY_HINT: &str = "limits are advisory; to enforce them, start the server with `systemd-run --user --scope`, \
                    or in a container with a writable cgroup v2";

/// Limits that apply to everything inside together, including all child processes. Dropping it
/// kills them.
#[derive(Debug)]
pub struct RunLimits {
    mechanism: LimitMechanism,
    downgrade_reason: Option<String>,
    limits: ResourceLimits,
    /// The first one is used to kill the run.
    groups: Vec<ControlGroup>,
    usage_watch: Option<UsageWatch>,
    /// A fork of the supervisor inherits this value and must not end the run when it drops its
    /// copy.
    owner: Pid,
}

impl RunLimits {
    /// Sets up the strongest mechanism that this host offers. Never fails: [`RunLimits::mechanism`]
    /// reports which one is in use.
    pub fn new(run_name: &str, limits: &ResourceLimits) -> RunLimits {
        RunLimits::new_at_most(run_name, limits, LimitMechanism::CgroupV2)
    }

    /// Like [`RunLimits::new`], but uses nothing stronger than `strongest`.
    pub fn new_at_most(
        run_name: &str,
        limits: &ResourceLimits,
        strongest: LimitMechanism,
    ) -> RunLimits {
        RunLimits::build_with(
            &CgroupLocations::read().unwrap_or_default(),
            run_name,
            limits,
            strongest,
        )
    }

    /// Like [`RunLimits::new`], but in cgroup hierarchies that were opened before they became
    /// unreachable.
    pub fn new_in(
        locations: &CgroupLocations,
        run_name: &str,
        limits: &ResourceLimits,
    ) -> RunLimits {
        RunLimits::build_with(locations, run_name, limits, LimitMechanism::CgroupV2)
    }

    fn build_with(
        locations: &CgroupLocations,
        run_name: &str,
        limits: &ResourceLimits,
        mechanism: LimitMechanism,
    ) -> RunLimits {
        let mut reasons = Vec::new();
        let (mechanism, groups) =
            choose_mechanism(locations, run_name, limits, mechanism, &mut reasons);
        if mechanism.is_advisory() {
            reasons.push(ADVISORY_HINT.to_owned());
        }
        let downgrade_reason = (!reasons.is_empty()).then(|| reasons.join("; "));
        RunLimits {
            mechanism,
            downgrade_reason,
            limits: limits.clone(),
            groups,
            usage_watch: None,
            owner: getpid(),
        }
    }

    /// Returns the mechanism that enforces these limits.
    pub fn mechanism(&self) -> LimitMechanism {
        self.mechanism
    }

    /// Returns why no stronger mechanism is available, and what to do about it.
    pub fn downgrade_reason(&self) -> Option<&str> {
        self.downgrade_reason.as_deref()
    }

    /// Moves a process in while it waits, before it has children or threads. This costs about ten
    /// milliseconds on an idle machine; a child that can enter on its own uses
    /// [`RunLimits::open_joiner`] instead.
    pub fn add_process(&self, pid: Pid) -> io::Result<()> {
        self.groups.iter().try_for_each(|group| group.add_process(pid)).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("could not apply the limits to process {pid}: {error}"),
            )
        })
    }

    /// Opens the descriptors with which a child moves itself in.
    pub fn open_joiner(&self) -> io::Result<CgroupJoiner> {
        CgroupJoiner::open(&self.groups)
    }

    /// Returns a descriptor for `clone3` with `CLONE_INTO_CGROUP`, which takes a tenth of a
    /// millisecond: the child starts inside the group and need not move. Not available in cgroup
    /// v1.
    pub fn open_directory(&self) -> Option<OwnedFd> {
        if self.mechanism == LimitMechanism::CgroupV1 {
            None
        } else {
            self.groups.first()?.open_directory().ok()
        }
    }

    /// Kills all processes inside, and returns whether that succeeded. Nothing can be started
    /// inside afterwards.
    pub fn kill_all(&self) -> bool {
        self.groups.first().is_some_and(ControlGroup::kill_all)
    }

    /// Returns whether no process is left inside, or `None` if that cannot be determined.
    pub fn is_empty(&self) -> Option<bool> {
        self.groups.first()?.is_empty().ok()
    }

    /// Polls the totals four times a second and calls `on_exceeded` once when they are exceeded.
    /// Does nothing if the kernel enforces the limits.
    pub fn watch_usage(
        &mut self,
        list_pids: impl Fn() -> Vec<Pid> + Send + 'static,
        on_exceeded: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        if self.mechanism.is_advisory()
            && (self.limits.memory_bytes.is_some() || self.limits.processes.is_some())
        {
            self.usage_watch = Some(UsageWatch::start(&self.limits, list_pids, on_exceeded)?);
        }
        Ok(())
    }

    /// Returns whether a process of the run was killed because the memory limit was reached.
    pub fn was_out_of_memory(&self) -> bool {
        self.usage_watch.as_ref().is_some_and(UsageWatch::exceeded_memory)
            || self.has_count(&[("memory.events", "oom_kill"), ("memory.oom_control", "oom_kill")])
    }

    /// Returns whether a fork was refused. Without a control group a refusal leaves no trace; then
    /// this is true only if the run was ended for exceeding the limit.
    pub fn hit_process_limit(&self) -> bool {
        self.usage_watch.as_ref().is_some_and(UsageWatch::exceeded_processes)
            || self.has_count(&[("pids.events", "max")])
    }

    /// Returns whether any of these `(file, key)` counters is above zero in any group.
    fn has_count(&self, counters: &[(&str, &str)]) -> bool {
        self.groups
            .iter()
            .any(|group| counters.iter().any(|(file, key)| group.read_count(file, key) > 0))
    }
}

impl Drop for RunLimits {
    fn drop(&mut self) {
        if self.owner != getpid() {
            // The watching thread does not exist in the fork, so there is nothing to join.
            std::mem::forget(self.usage_watch.take());
            return;
        }
        self.usage_watch = None;
        let Some(first) = self.groups.first() else { return };
        if !first.remove_when_empty(Duration::ZERO) {
            self.kill_all();
            for group in &self.groups {
                group.remove_when_empty(KILL_WAIT);
            }
        }
    }
}

/// Tries the mechanisms from the strongest down to the first that works, and records why each
/// stronger one failed.
fn choose_mechanism(
    locations: &CgroupLocations,
    run_name: &str,
    limits: &ResourceLimits,
    strongest: LimitMechanism,
    reasons: &mut Vec<String>,
) -> (LimitMechanism, Vec<ControlGroup>) {
    let name = match CgroupName::new(run_name) {
        Ok(name) => name,
        Err(error) => {
            reasons.push(format!("cannot read /proc: {error}"));
            return (LimitMechanism::Rlimits, Vec::new());
        }
    };
    if strongest <= LimitMechanism::CgroupV2 {
        match create_unified(locations, &name, limits) {
            Ok(group) => return (LimitMechanism::CgroupV2, vec![group]),
            Err(reason) => reasons.push(reason),
        }
    }
    if strongest <= LimitMechanism::CgroupV1 {
        match create_legacy(locations, &name, limits) {
            Ok(groups) => return (LimitMechanism::CgroupV1, groups),
            Err(reason) => reasons.push(reason),
        }
    }
    (LimitMechanism::Rlimits, create_unlimited_group(locations, &name).into_iter().collect())
}
