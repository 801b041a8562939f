//! `[policy]`: rules files, and how commands that they allow are run.

use std::path::{Path, PathBuf};

use super::codex_home::{self, RulesDirs};
use super::{Layers, SettingPicker};
use crate::base::{Error, Result};
use crate::config::env::ProcessEnv;
use crate::config::parse::raw;
use crate::config::values::{EscalationMode, HeuristicsMode, RiskyEscalation};
use crate::config::{SandboxSettings, ToolSet};

/// Resolved `[policy]`.
#[derive(Debug, Clone)]
pub struct PolicySettings {
    /// Directories with Codex's rules; `rules` are files named in addition.
    pub rules_dirs: RulesDirs,
    pub rules: Vec<PathBuf>,
    pub escalate: EscalationMode,
    pub escalate_risky: RiskyEscalation,
    /// User that commands outside the sandbox run as, if the server runs as root.
    pub escalate_as: Option<String>,
    /// Variables that a command keeps when it leaves the sandbox.
    pub escalate_env: Vec<String>,
    pub heuristics: HeuristicsMode,
    /// False turns exec interception off; then there may be no rules.
    pub intercept: bool,
    /// Every exec that no rule names is recorded individually.
    pub audit_execs: bool,
    /// The sandbox for `escalate = "wider"`.
    pub wider: Option<Box<SandboxSettings>>,
}

/// Values from the command line.
#[derive(Debug, Clone, Default)]
pub struct PolicyFlags {
    pub rules: Vec<PathBuf>,
    pub escalate: Option<EscalationMode>,
    pub escalate_risky: Option<RiskyEscalation>,
    pub audit_execs: bool,
}

/// Settings outside `[policy]` that it depends on.
pub struct PolicyContext<'a> {
    pub tools: ToolSet,
    pub sandbox: &'a SandboxSettings,
    pub workspace: Option<&'a Path>,
}

/// Resolves `[policy]`.
pub fn resolve_policy(
    picker: &mut SettingPicker<'_>,
    flags: &PolicyFlags,
    env: &ProcessEnv,
    file: &raw::PolicySection,
    defaults: &raw::PolicySection,
    context: PolicyContext<'_>,
) -> Result<PolicySettings> {
    let PolicyContext { tools, sandbox, workspace } = context;
    let file_rules: Vec<PathBuf> = file
        .rules
        .iter()
        .flatten()
        .map(|path| picker.resolve_file_path(path))
        .collect::<Result<_>>()?;
    let to_absolute =
        |path: &PathBuf| super::directories::make_absolute(path, env.cwd.as_deref(), None);
    let flag_rules: Vec<PathBuf> = flags.rules.iter().map(to_absolute).collect::<Result<_>>()?;
    let rules = Layers {
        flag: (!flag_rules.is_empty())
            .then(|| (file_rules.iter().chain(&flag_rules).cloned().collect(), "--rules")),
        ..Layers::file_only((!file_rules.is_empty()).then(|| file_rules.clone()), Some(Vec::new()))
    };
    let join_paths = |all: &Vec<PathBuf>| {
        all.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    };
    let rules = picker.pick("policy.rules", rules, join_paths)?.0;
    // With `tools = "shell"` the server replaces a shell tool whose rules have always meant this,
    // so choosing that set is the operator's consent.
    let default_escalate =
        if tools == ToolSet::Shell { Some(EscalationMode::Outside) } else { defaults.escalate };
    let escalate = Layers {
        flag: flags.escalate.map(|escalate| (escalate, "--escalate")),
        ..Layers::file_only(file.escalate, default_escalate)
    };
    let escalate = picker
        .pick("policy.escalate", escalate, |escalate: &EscalationMode| escalate.name().to_owned())?
        .0;
    let risky = Layers {
        flag: flags.escalate_risky.map(|risky| (risky, "--escalate-risky")),
        ..Layers::file_only(file.escalate_risky, defaults.escalate_risky)
    };
    let escalate_risky = picker
        .pick("policy.escalate_risky", risky, |risky: &RiskyEscalation| risky.name().to_owned())?
        .0;
    let wider =
        file.wider.as_ref().map(|wider| widen_sandbox(picker, sandbox, wider)).transpose()?;
    if escalate == EscalationMode::Wider && wider.is_none() {
        return Err(Error::invalid_arguments(
            "`escalate = \"wider\"` needs a section [policy.wider]",
        )
        .with_fact("key", "policy.escalate")
        .with_hint("Add [policy.wider] with `allow_domains`, `allow_network` or `writable`."));
    }
    let audit_execs = Layers {
        flag: flags.audit_execs.then_some((true, "--audit-execs")),
        ..Layers::file_only(file.audit_execs, defaults.audit_execs)
    };
    let heuristics = Layers::file_only(file.heuristics, defaults.heuristics);
    let join_names = |all: &Vec<String>| all.join(", ");
    let escalate_as = Layers::file_only(file.escalate_as.clone(), None);
    Ok(PolicySettings {
        rules_dirs: codex_home::find_rules_dirs(env, workspace),
        rules,
        escalate,
        escalate_risky,
        escalate_as: picker
            .pick_optional("policy.escalate_as", escalate_as, String::clone)
            .map(|(name, _)| name),
        escalate_env: picker
            .pick(
                "policy.escalate_env",
                Layers::file_only(file.escalate_env.clone(), Some(Vec::new())),
                join_names,
            )?
            .0,
        heuristics: picker
            .pick("policy.heuristics", heuristics, |mode: &HeuristicsMode| mode.name().to_owned())?
            .0,
        intercept: picker
            .pick(
                "policy.intercept",
                Layers::file_only(file.intercept, defaults.intercept),
                bool::to_string,
            )?
            .0,
        audit_execs: picker.pick("policy.audit_execs", audit_execs, bool::to_string)?.0,
        wider: wider.map(Box::new),
    })
}

/// Returns the sandbox with the additional access, and otherwise unchanged.
fn widen_sandbox(
    picker: &SettingPicker<'_>,
    sandbox: &SandboxSettings,
    wider: &raw::WiderSection,
) -> Result<SandboxSettings> {
    let mut widened = sandbox.clone();
    widened.allow_network |= wider.allow_network.unwrap_or(false);
    widened.allow_domains.extend(wider.allow_domains.iter().flatten().cloned());
    widened.allow_addresses.extend(wider.allow_addresses.iter().flatten().cloned());
    for path in wider.writable.iter().flatten() {
        widened.writable.push(picker.resolve_file_path(path)?);
    }
    if widened.allow_network {
        // Nothing is filtered any more, so no name can be blocked.
        widened.deny_domains.clear();
    }
    Ok(widened)
}
