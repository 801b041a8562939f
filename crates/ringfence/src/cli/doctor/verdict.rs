//! Derives the verdict from the trials: which profile a run gets here, and which promises hold.

use jail::rights::NetworkAccess;
use serde::Serialize;

use super::canary::Canary;
use super::trials::TrialResult;
use crate::config::ProfileSetting;

/// Conclusion about this host.
#[derive(Serialize)]
pub struct HostVerdict {
    pub exit_code: u8,
    /// True if a run with this config would start now and the sandbox would hold.
    pub ready: bool,
    /// Profile that the config asks for.
    pub configured: &'static str,
    /// Profile that runs get here; `None` if every run is refused.
    pub profile: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<String>,
    /// Profile that works here and can be configured instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offered: Option<&'static str>,
    pub sentence: String,
    /// Promises of the profile, or of the offered one.
    pub promises: Vec<ProfilePromise>,
    /// Promises of `default` that this profile does not make.
    pub not_promised: Vec<&'static str>,
    /// How limits are applied; `limits_enforced` is true if the kernel enforces them.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub limits: String,
    pub limits_enforced: bool,
}

/// One promise of a profile.
#[derive(Serialize)]
pub struct ProfilePromise {
    pub text: &'static str,
    /// True if a canary saw the refusal; otherwise the promise relies on layers that were tested.
    pub seen: bool,
}

const CANARY_PROMISES: &[(Canary, &str, &str)] = &[
    (
        Canary::WriteOutside,
        "only the workspace, its HOME, private /tmp, /var/tmp, /run and /dev/shm, and the directories in `writable` can be written",
        "files outside the workspace, its HOME, its TMPDIR and the directories in `writable` cannot be written, created or removed",
    ),
    (
        Canary::WriteProtected,
        "protected paths (.codex, .claude, .mcp.json, git hooks and settings, ...) are read-only, except those in `unprotect`",
        "",
    ),
    (Canary::ReadHidden, "credential stores and the server's own files cannot be read", ""),
    (
        Canary::HavePrivileges,
        "no privileges: no capabilities, no setuid, no namespaces",
        "no privileges: no capabilities, no setuid, no namespaces",
    ),
    (
        Canary::RunForbidden,
        "every program in a run is checked against the rules, whatever started it",
        "every program in a run is checked against the rules, whatever started it",
    ),
];

const CONTAINED_GAPS: &[&str] = &[
    "protected paths inside the workspace, .git hooks among them",
    "hidden paths: a run can read everything you can read",
    "modes, owners and times of files outside",
    "its own /tmp and its own localhost",
    "a network restricted to allowed names",
    "hiding the processes outside",
];

/// Judges the trials. `configured` is the profile that the config asks for, if the config is
/// usable.
pub fn judge_host(
    trials: &[TrialResult],
    configured: Option<ProfileSetting>,
    network: NetworkAccess,
) -> HostVerdict {
    let find_used = |profile: ProfileSetting| {
        trials.iter().find(|trial| trial.used && trial.profile == profile.name())
    };
    let (default, contained) =
        (find_used(ProfileSetting::Default), find_used(ProfileSetting::Contained));
    let usable = configured.is_some();
    let configured = configured.unwrap_or(ProfileSetting::Default);
    let configured_trial = match configured {
        ProfileSetting::Contained => contained,
        ProfileSetting::Default | ProfileSetting::Seatbelt => default,
        ProfileSetting::None => None,
    };
    let offered = (configured_trial.is_none() && default.is_none()).then_some(contained).flatten();
    let shown_trial = configured_trial.or(offered);
    let profile = match configured {
        ProfileSetting::None => Some(ProfileSetting::None.name()),
        _ => configured_trial.map(|trial| trial.profile),
    };
    HostVerdict {
        exit_code: match (default, contained) {
            (Some(_), _) => 0,
            (None, Some(_)) => 1,
            (None, None) => 2,
        },
        ready: usable && profile.is_some(),
        configured: configured.name(),
        profile,
        tier: configured_trial.and_then(|trial| trial.tier.clone()),
        offered: offered.map(|trial| trial.profile),
        sentence: match (usable, trials.iter().find(|trial| trial.has_leak())) {
            // The sandbox lets something through without noticing.
            (_, Some(trial)) => format!(
                "`{}` starts here but does not hold (see `no` above). Do not rely on it, and report it as described in SECURITY.md.",
                trial.profile
            ),
            (true, None) => verdict_sentence(configured, configured_trial, default, contained),
            (false, None) => format!(
                "nothing starts until the config or root is fixed (see `no` above). The host itself: {}",
                verdict_sentence(configured, configured_trial, default, contained)
            ),
        },
        promises: shown_trial.map(|trial| list_promises(trial, network)).unwrap_or_default(),
        not_promised: match shown_trial {
            Some(trial) if trial.profile == ProfileSetting::Contained.name() => {
                CONTAINED_GAPS.to_vec()
            }
            _ => Vec::new(),
        },
        limits: shown_trial.map(|trial| trial.limits.clone()).unwrap_or_default(),
        limits_enforced: shown_trial.is_some_and(|trial| trial.limits.starts_with("cgroup")),
    }
}

fn verdict_sentence(
    configured: ProfileSetting,
    configured_trial: Option<&TrialResult>,
    default: Option<&TrialResult>,
    contained: Option<&TrialResult>,
) -> String {
    let tier_text = |trial: &TrialResult| match trial.tier.as_deref() {
        Some("namespaces") => ", in its own namespaces",
        Some("root") => ", as root without user namespaces",
        Some("bwrap") => ", through bubblewrap",
        Some("mounts") => {
            ", in the tier `mounts`: this kernel has no Landlock 3, so the mounts alone keep files from being written"
        }
        _ => "",
    };
    match (configured, configured_trial, default, contained) {
        (ProfileSetting::None, _, Some(_), _) => {
            "the config says `none`: runs have no sandbox, and each needs approval. `default` works here.".to_owned()
        }
        (ProfileSetting::None, ..) => "the config says `none`: runs have no sandbox, and each needs approval.".to_owned(),
        (_, Some(trial), ..) => format!("`{}` works here{}.", trial.profile, tier_text(trial)),
        (ProfileSetting::Contained, None, Some(_), _) => {
            "`contained` does not work here, so every run is refused. `default` works and promises more.".to_owned()
        }
        (_, None, _, Some(_)) => "`default` does not work here, so every run is refused until what is marked `no` is fixed. \
                                  `contained` works and promises less: to use it, set `profile = \"contained\"` under `[sandbox]`."
            .to_owned(),
        _ => "no profile works here; every run is refused until what is marked `no` is fixed.".to_owned(),
    }
}

fn list_promises(trial: &TrialResult, network: NetworkAccess) -> Vec<ProfilePromise> {
    let is_default = trial.profile == ProfileSetting::Default.name();
    let is_verified = |canary: Canary| trial.canaries.get(&canary) == Some(&false);
    let mut promises: Vec<ProfilePromise> = Vec::new();
    for (canary, text, contained_text) in CANARY_PROMISES {
        let text = if is_default { text } else { contained_text };
        // Without exec interception nothing is promised about execs.
        let is_tested = *canary != Canary::RunForbidden || trial.canaries.contains_key(canary);
        if !text.is_empty() && is_tested {
            promises.push(ProfilePromise { text, seen: is_verified(*canary) });
        }
    }
    let network_promise = match network {
        NetworkAccess::Off => "no network connections leave the sandbox",
        NetworkAccess::Proxied => {
            "network access only to names and addresses that the config allows"
        }
        NetworkAccess::All => {
            "the host's network, as configured; only other kinds of sockets are refused"
        }
    };
    promises.push(ProfilePromise {
        text: network_promise,
        seen: network != NetworkAccess::All && is_verified(Canary::ReachNetwork),
    });
    let process_promise = match (is_default, is_verified(Canary::SignalOutside)) {
        (true, _) => "processes outside cannot be seen, signalled or traced",
        (false, true) => "processes outside cannot be signalled or traced",
        (false, false) => "processes outside cannot be traced",
    };
    promises
        .push(ProfilePromise { text: process_promise, seen: is_verified(Canary::SignalOutside) });
    promises.push(ProfilePromise { text: "every process of a run ends with it", seen: false });
    promises
}
