//! Tests the whole sandbox by running a program in it, for each profile and each tier.

use jail::error::{self, SandboxError};
use jail::namespaces::Tier;
use jail::probe::{HostSettings, ProbeOutcome, ProbeResult, SandboxFeature};
use rustix::io::Errno;
use serde::Serialize;

use super::canary::{Canary, CanaryResults, CanaryTask};
use super::fixes;
use super::workspace::TrialWorkspace;
use crate::config::ProfileSetting;
use crate::sandbox::self_test::{self, SelfTestOutcome};

/// Result of one trial of the whole sandbox.
#[derive(Serialize)]
pub struct TrialResult {
    pub profile: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<String>,
    /// True if runs of this profile use this tier; the others are tried for information only.
    pub used: bool,
    pub outcome: ProbeOutcome,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
    /// How resource limits are applied in it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub limits: String,
    /// Attempts made from inside, and whether each succeeded.
    pub canaries: CanaryResults,
}

impl TrialResult {
    /// Returns whether the sandbox started but let something through that it must refuse.
    pub fn has_leak(&self) -> bool {
        self.canaries
            .iter()
            .any(|(canary, succeeded)| *succeeded && describe_failure(*canary, true).is_some())
    }
}

/// Tries every tier of `default`, and `contained`.
pub fn run_trials(
    trial_workspace: &TrialWorkspace,
    host: &HostSettings,
    layers: &[ProbeResult],
) -> Vec<TrialResult> {
    // First as an ordinary run does it, which selects its tier automatically.
    let mut default_trial = try_profile(trial_workspace, host, ProfileSetting::Default, None);
    default_trial.used = default_trial.outcome == ProbeOutcome::Ok;
    let mut trials = Vec::new();
    for tier in Tier::ALL {
        let used = default_trial.used && default_trial.tier.as_deref() == Some(tier.name());
        trials.push(match self_test::available_tiers().contains(tier) {
            _ if used => continue,
            true => try_profile(trial_workspace, host, ProfileSetting::Default, Some(*tier)),
            false => skipped_trial(*tier, layers),
        });
    }
    // If it was refused, the tier that refused it is already in the list.
    if default_trial.used {
        trials.insert(0, default_trial);
    }
    let contained = try_profile(trial_workspace, host, ProfileSetting::Contained, None);
    trials.push(TrialResult { used: contained.outcome == ProbeOutcome::Ok, ..contained });
    trials
}

fn skipped_trial(tier: Tier, layers: &[ProbeResult]) -> TrialResult {
    let bwrap = layers.iter().find(|probe| probe.part == SandboxFeature::Bwrap);
    let text = match (tier, bwrap) {
        (Tier::Mounts, _) => "only for kernels without Landlock 3",
        _ if !jail::has_required_landlock() => "needs Landlock 3",
        (Tier::Root, _) => "only for root",
        (_, Some(probe)) if probe.outcome == ProbeOutcome::NotTried => probe.text.as_str(),
        _ => "runs do not use this tier here",
    };
    TrialResult {
        tier: Some(tier.name().to_owned()),
        ..new_trial(ProfileSetting::Default, ProbeOutcome::NotTried, text.to_owned())
    }
}

fn new_trial(profile: ProfileSetting, outcome: ProbeOutcome, text: String) -> TrialResult {
    let (profile, canaries) = (profile.name(), CanaryResults::new());
    TrialResult {
        profile,
        tier: None,
        used: false,
        outcome,
        text,
        fix: None,
        limits: String::new(),
        canaries,
    }
}

fn try_profile(
    trial_workspace: &TrialWorkspace,
    host: &HostSettings,
    profile: ProfileSetting,
    tier: Option<Tier>,
) -> TrialResult {
    let mut trial = match run_canaries(trial_workspace, profile, tier) {
        Ok(SelfTestOutcome::Ran { tier, limits, output }) => {
            judge_canaries(trial_workspace, profile, tier, limits, &output)
        }
        Ok(SelfTestOutcome::Refused(sandbox_error)) => {
            refused_trial(profile, tier, &sandbox_error, host)
        }
        Ok(SelfTestOutcome::Failed(text)) => new_trial(profile, ProbeOutcome::Refused, text),
        Err(error) => new_trial(
            profile,
            ProbeOutcome::Refused,
            format!("the trial could not be run: {error}"),
        ),
    };
    trial.tier = trial.tier.or_else(|| tier.map(|tier| tier.name().to_owned()));
    trial
}

fn run_canaries(
    trial_workspace: &TrialWorkspace,
    profile: ProfileSetting,
    tier: Option<Tier>,
) -> std::io::Result<SelfTestOutcome> {
    // Do not test what a profile does not promise.
    let task = match profile {
        ProfileSetting::Default => trial_workspace.task.clone(),
        _ => {
            let process = Some(rustix::process::getpid().as_raw_nonzero().get());
            CanaryTask { protected: None, hidden: None, process, ..trial_workspace.task.clone() }
        }
    };
    let task = serde_json::to_string(&task)?;
    match trial_workspace.trial.run_self(profile, tier, &["doctor", "--canary", &task])? {
        // Something may prevent only our own binary from running in there; retry with another
        // program.
        SelfTestOutcome::Refused(sandbox_error) if sandbox_error.layer == error::Layer::Program => {
            trial_workspace.trial.run(profile, tier, &["/bin/true".into()])
        }
        outcome => Ok(outcome),
    }
}

fn judge_canaries(
    trial_workspace: &TrialWorkspace,
    profile: ProfileSetting,
    tier: Option<String>,
    limits: String,
    output: &[u8],
) -> TrialResult {
    let mut canaries: CanaryResults = serde_json::from_slice(output).unwrap_or_default();
    // Trust what is observed from outside, not what the program reports.
    let wrote_outside = trial_workspace.remove_written();
    if wrote_outside || canaries.contains_key(&Canary::WriteOutside) {
        canaries.insert(Canary::WriteOutside, wrote_outside);
    }
    if trial_workspace.was_reached() {
        canaries.insert(Canary::ReachNetwork, true);
    }
    let failures: Vec<String> = canaries
        .iter()
        .filter_map(|(canary, succeeded)| describe_failure(*canary, *succeeded))
        .collect();
    let (outcome, text) = match (failures.is_empty(), canaries.is_empty()) {
        (false, _) => (ProbeOutcome::Refused, failures.join("; ")),
        (true, true) => {
            (ProbeOutcome::Ok, "/bin/true ran; the canaries could not be started".to_owned())
        }
        (true, false) => (ProbeOutcome::Ok, format!("{} canaries", canaries.len())),
    };
    TrialResult { tier, limits, canaries, ..new_trial(profile, outcome, text) }
}

fn describe_failure(canary: Canary, succeeded: bool) -> Option<String> {
    match (canary, succeeded) {
        (Canary::UseHome, true) => None,
        (Canary::UseHome, false) => Some(format!("a run cannot {}", canary.name())),
        // Promised only if Landlock is new enough to scope signals.
        (Canary::SignalOutside, _) | (_, false) => None,
        (_, true) => Some(format!("a run can {}", canary.name())),
    }
}

fn refused_trial(
    profile: ProfileSetting,
    tier: Option<Tier>,
    error: &SandboxError,
    host: &HostSettings,
) -> TrialResult {
    let fix = match tier {
        Some(Tier::Root) if error.errno == Some(Errno::PERM.raw_os_error()) => Some(
            "this root user lacks CAP_SYS_ADMIN, which is needed without user namespaces: fix user namespaces instead."
                .to_owned(),
        ),
        _ => fixes::part_for_layer(error.layer).map(|part| fixes::suggest_fix(part, error.errno, host)),
    };
    TrialResult { fix, ..new_trial(profile, ProbeOutcome::Refused, error.to_string()) }
}
