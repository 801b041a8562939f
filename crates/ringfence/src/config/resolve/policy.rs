//! `[policy]`: which rules there are, and what becomes of what they allow.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;

use super::codex_home::{self, RulesDirs};
use super::{Layers, Picker};
use crate::base::{Error, Result};
use crate::config::env::Env;
use crate::config::parse::raw;
use crate::config::{Sandbox, ToolSet};

/// Where a command runs that a rule allows, or a human does whom a rule had asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Escalate {
    /// In the sandbox, like everything else
    Off,
    /// In the wider sandbox of [policy.wider]
    Wider,
    /// Outside the sandbox
    Outside,
}

impl Escalate {
    pub fn name(self) -> &'static str {
        match self {
            Escalate::Off => "off",
            Escalate::Wider => "wider",
            Escalate::Outside => "outside",
        }
    }
}

/// What an `allow` means for a command with more words than the rule, unless the program is known to be harmless with any
/// arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum EscalateRisky {
    /// Ask whether it runs outside or inside; where no one can be asked it runs inside
    Ask,
    /// Run it inside the sandbox
    Inside,
    /// Run it where `escalate` says, without asking
    Outside,
}

impl EscalateRisky {
    pub fn name(self) -> &'static str {
        match self {
            EscalateRisky::Ask => "ask",
            EscalateRisky::Inside => "inside",
            EscalateRisky::Outside => "outside",
        }
    }
}

/// Whether to ask about commands that are known to destroy, where no rule speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Heuristics {
    /// Only rules ask
    Off,
    /// A forced removal is asked for
    Prompt,
}

impl Heuristics {
    pub fn name(self) -> &'static str {
        match self {
            Heuristics::Off => "off",
            Heuristics::Prompt => "prompt",
        }
    }
}

#[derive(Debug, Clone)]
pub struct Policy {
    /// Where Codex keeps its rules, and files that were named beside.
    pub rules_dirs: RulesDirs,
    pub rules: Vec<PathBuf>,
    pub escalate: Escalate,
    pub escalate_risky: EscalateRisky,
    /// The user that commands outside run as, where the server runs as root.
    pub escalate_as: Option<String>,
    /// Variables that a command keeps on its way out.
    pub escalate_env: Vec<String>,
    pub heuristics: Heuristics,
    /// False leaves execs unwatched; then there may be no rules.
    pub intercept: bool,
    /// Every exec that no rule names goes into the log one by one.
    pub audit_execs: bool,
    /// What `wider` means.
    pub wider: Option<Box<Sandbox>>,
}

/// What the command line says about it.
#[derive(Debug, Clone, Default)]
pub struct PolicyFlags {
    pub rules: Vec<PathBuf>,
    pub escalate: Option<Escalate>,
    pub escalate_risky: Option<EscalateRisky>,
    pub audit_execs: bool,
}

pub fn resolve(
    p: &mut Picker<'_>,
    (flags, env): (&PolicyFlags, &Env),
    (file, defaults): (&raw::Policy, &raw::Policy),
    (tools, sandbox, workspace): (ToolSet, &Sandbox, Option<&Path>),
) -> Result<Policy> {
    let named: Vec<PathBuf> =
        file.rules.iter().flatten().map(|path| p.file_path(path)).collect::<Result<_>>()?;
    let from_here = |path: &PathBuf| super::place::absolute(path, env.cwd.as_deref(), None);
    let flagged: Vec<PathBuf> = flags.rules.iter().map(from_here).collect::<Result<_>>()?;
    let rules = Layers {
        flag: (!flagged.is_empty())
            .then(|| (named.iter().chain(&flagged).cloned().collect(), "--rules")),
        ..Layers::file_only((!named.is_empty()).then(|| named.clone()), Some(Vec::new()))
    };
    let show = |all: &Vec<PathBuf>| {
        all.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    };
    let rules = p.pick("policy.rules", rules, show)?.0;
    // A drop-in for a shell whose rules have always meant that is the operator's word for it.
    let usual = if tools == ToolSet::Shell { Some(Escalate::Outside) } else { defaults.escalate };
    let escalate = Layers {
        flag: flags.escalate.map(|escalate| (escalate, "--escalate")),
        ..Layers::file_only(file.escalate, usual)
    };
    let escalate =
        p.pick("policy.escalate", escalate, |escalate: &Escalate| escalate.name().to_owned())?.0;
    let risky = Layers {
        flag: flags.escalate_risky.map(|risky| (risky, "--escalate-risky")),
        ..Layers::file_only(file.escalate_risky, defaults.escalate_risky)
    };
    let escalate_risky =
        p.pick("policy.escalate_risky", risky, |risky: &EscalateRisky| risky.name().to_owned())?.0;
    let wider = file.wider.as_ref().map(|wider| widen(p, sandbox, wider)).transpose()?;
    if escalate == Escalate::Wider && wider.is_none() {
        return Err(Error::invalid_arguments("`escalate = \"wider\"` does not say how wide")
            .with("key", "policy.escalate")
            .hint("Add [policy.wider] with `allow_domains`, `allow_network` or `writable`."));
    }
    let audit_execs = Layers {
        flag: flags.audit_execs.then_some((true, "--audit-execs")),
        ..Layers::file_only(file.audit_execs, defaults.audit_execs)
    };
    let heuristics = Layers::file_only(file.heuristics, defaults.heuristics);
    let words = |all: &Vec<String>| all.join(", ");
    let escalate_as = Layers::file_only(file.escalate_as.clone(), None);
    Ok(Policy {
        rules_dirs: codex_home::rules_dirs(env, workspace),
        rules,
        escalate,
        escalate_risky,
        escalate_as: p
            .pick_optional("policy.escalate_as", escalate_as, String::clone)
            .map(|(name, _)| name),
        escalate_env: p
            .pick(
                "policy.escalate_env",
                Layers::file_only(file.escalate_env.clone(), Some(Vec::new())),
                words,
            )?
            .0,
        heuristics: p
            .pick("policy.heuristics", heuristics, |word: &Heuristics| word.name().to_owned())?
            .0,
        intercept: p
            .pick(
                "policy.intercept",
                Layers::file_only(file.intercept, defaults.intercept),
                bool::to_string,
            )?
            .0,
        audit_execs: p.pick("policy.audit_execs", audit_execs, bool::to_string)?.0,
        wider: wider.map(Box::new),
    })
}

/// The sandbox, with more of what is named and all of the rest.
fn widen(p: &Picker<'_>, sandbox: &Sandbox, wider: &raw::Wider) -> Result<Sandbox> {
    let mut wide = sandbox.clone();
    wide.allow_network |= wider.allow_network.unwrap_or(false);
    wide.allow_domains.extend(wider.allow_domains.iter().flatten().cloned());
    wide.allow_addresses.extend(wider.allow_addresses.iter().flatten().cloned());
    for path in wider.writable.iter().flatten() {
        wide.writable.push(p.file_path(path)?);
    }
    if wide.allow_network {
        // Nothing is filtered any more, so nothing can be left out.
        wide.deny_domains.clear();
    }
    Ok(wide)
}
