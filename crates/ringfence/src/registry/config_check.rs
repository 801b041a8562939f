//! Complete check of a config: errors in the files themselves, and those that only the sandbox
//! profiles, the network lists and the tools detect.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::path::Path;

use super::Registry;
use crate::base::{Error, Result};
use crate::config::{
    self, CommandTool, Config, ConfigCheck, ConfigFlags, FindingSeverity, ProcessEnv, command_key,
    upstream_key,
};
use crate::net::AllowList;
use crate::rulebook::RuleLocations;
use crate::sandbox::{SandboxConfig, profile};

/// Checks the config that these flags and this environment select.
pub fn check_config(flags: &ConfigFlags, env: &ProcessEnv) -> Result<ConfigCheck> {
    let mut check = config::check_config(flags, env)?;
    let Some(config) = &check.config else { return Ok(check) };
    let mut errors = find_list_errors(config);
    let mut warnings = Vec::new();
    // A profile reports only the first of its bad lists; all of them have been reported above.
    let reported: BTreeSet<String> = errors.iter().map(|(key, _)| key.clone()).collect();
    // The keys are sorted, so those below `key_prefix` follow it and one lookup finds them. A scan
    // per entry would be quadratic.
    let is_reported = |key_prefix: &str| {
        reported
            .range::<str, _>((Bound::Included(key_prefix), Bound::Unbounded))
            .next()
            .is_some_and(|key| key.starts_with(key_prefix))
    };
    if let Err(error) = profile::check_profile(&SandboxConfig::from_config(config))
        && !is_reported("sandbox.")
    {
        errors.push((key_from_error(&error, "sandbox"), error));
    }
    if let Err(error) = RuleLocations::from_config(config).check_named_files() {
        errors.push((key_from_error(&error, "policy.rules"), error));
    }
    let mut registry = Registry::new(config, &std::sync::Arc::default());
    for (entry, error) in std::mem::take(&mut registry.failed_commands) {
        let key_prefix = command_key(&entry.name);
        if !is_reported(&format!("{key_prefix}.")) {
            errors.push((to_entry_key(&key_from_error(&error, ""), &key_prefix), error));
        }
    }
    for entry in config.commands.iter() {
        warnings.extend(
            registry.get(&entry.name).filter(|tool| tool.spec().name == entry.name).and_then(
                |tool| {
                    let workspace = known_workspace(config, entry)?;
                    (!tool.is_offered_in(workspace))
                        .then(|| format!("{}.cwd", command_key(&entry.name)))
                },
            ),
        );
    }
    for (key, error) in errors {
        let hint = error.hint_text().unwrap_or_else(|| error.kind().default_hint()).to_owned();
        check.add_finding(FindingSeverity::Error, &key, error.message_chain(), hint);
    }
    for key in warnings {
        let hint = "Add its directory to `cwd` under [surface], or see `surface.arguments`.";
        check.add_finding(
            FindingSeverity::Warning,
            &key,
            "the tool is not listed: it is outside of what [surface] allows",
            hint,
        );
    }
    check.sort_findings();
    Ok(check)
}

/// Returns the key that an error names, or `default_key`.
fn key_from_error(error: &Error, default_key: &str) -> String {
    error.get_fact("key").and_then(|key| key.as_str()).unwrap_or(default_key).to_owned()
}

/// Translates a key of the sandbox into the key of an entry.
fn to_entry_key(key: &str, entry_key: &str) -> String {
    match key {
        "sandbox.profile" => format!("{entry_key}.sandbox_profile"),
        "" => entry_key.to_owned(),
        _ => format!("{entry_key}.{}", key.trim_start_matches("sandbox.")),
    }
}

/// Returns the workspace if it is known and matters for this entry. Over HTTP each principal has
/// its own, and a relative `cwd` is inside it.
fn known_workspace<'a>(config: &'a Config, entry: &CommandTool) -> Option<&'a Path> {
    let is_workspace_explicit = config
        .settings
        .iter()
        .any(|setting| setting.key == "workspace" && setting.origin.is_explicit());
    match &entry.cwd {
        Some(cwd) if cwd.is_absolute() && !is_workspace_explicit => None,
        _ => Some(config.workspace.as_deref().unwrap_or(Path::new("/workspace"))),
    }
}

/// Returns all errors in lists of names and addresses, with their keys.
fn find_list_errors(config: &Config) -> Vec<(String, Error)> {
    let mut errors = Vec::new();
    let mut add = |key_prefix: &str,
                   inherited_counts: [usize; 2],
                   list_errors: Vec<(&'static str, usize, Error)>| {
        for (list, index, error) in list_errors {
            // A wider list starts with the entries that it extends, which have been checked above.
            let inherited_count =
                if list == "allow_addresses" { inherited_counts[1] } else { inherited_counts[0] };
            errors.extend(
                index
                    .checked_sub(inherited_count)
                    .map(|index| (format!("{key_prefix}.{list}[{index}]"), error)),
            );
        }
    };
    let sandbox = &config.default_sandbox;
    add(
        "sandbox",
        [0, 0],
        AllowList::find_errors(
            &sandbox.allow_domains,
            &sandbox.deny_domains,
            &sandbox.allow_addresses,
        ),
    );
    if let Some(wider) = &config.policy.wider {
        let inherited_counts = [sandbox.allow_domains.len(), sandbox.allow_addresses.len()];
        add(
            "policy.wider",
            inherited_counts,
            AllowList::find_errors(&wider.allow_domains, &[], &wider.allow_addresses),
        );
    }
    for entry in config.commands.iter() {
        add(
            &command_key(&entry.name),
            [0, 0],
            AllowList::find_errors(&entry.access.allow_domains, &[], &entry.access.allow_addresses),
        );
    }
    for server in config.upstreams.servers.values() {
        let access = &server.access;
        add(
            &upstream_key(&server.id),
            [0, 0],
            AllowList::find_errors(&access.allow_domains, &[], &access.allow_addresses),
        );
    }
    errors
}

#[cfg(test)]
mod tests;
