//! Complete check of a config: errors in the files themselves, and those that only the sandbox
//! profiles, the network lists and the tools detect.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::path::Path;

use super::Registry;
use crate::base::{Error, Result};
use crate::config::{
    self, CommandTool, Config, ConfigCheck, ConfigFlags, FindingSeverity, ProcessEnv, command_key,
};
use crate::net::AllowList;
use crate::sandbox::profile;

/// Checks the config that these flags and this environment select.
pub fn check_config(flags: &ConfigFlags, env: &ProcessEnv) -> Result<ConfigCheck> {
    let mut look = config::check_config(flags, env)?;
    let Some(config) = &look.config else { return Ok(look) };
    let mut errors = find_list_errors(config);
    let mut warnings = Vec::new();
    // A profile reports only the first of its bad lists; all of them have been reported above.
    let reported: BTreeSet<String> = errors.iter().map(|(key, _)| key.clone()).collect();
    // The keys are sorted, so those below `home` follow it and one lookup finds them. A scan per
    // entry would be quadratic.
    let is_reported = |home: &str| {
        reported
            .range::<str, _>((Bound::Included(home), Bound::Unbounded))
            .next()
            .is_some_and(|key| key.starts_with(home))
    };
    if let Err(error) = profile::check_profile(config)
        && !is_reported("sandbox.")
    {
        errors.push((key_from_error(&error, "sandbox"), error));
    }
    let mut registry = Registry::new(config);
    for (entry, error) in std::mem::take(&mut registry.failed_commands) {
        let home = command_key(&entry.name);
        if !is_reported(&format!("{home}.")) {
            errors.push((to_entry_key(&key_from_error(&error, ""), &home), error));
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
        look.add_finding(FindingSeverity::Error, &key, error.message_chain(), hint);
    }
    for key in warnings {
        let hint = "Add its directory to `cwd` under [surface], or see `surface.arguments`.";
        look.add_finding(
            FindingSeverity::Warning,
            &key,
            "the tool is not listed: it is outside of what [surface] allows",
            hint,
        );
    }
    look.sort_findings();
    Ok(look)
}

/// Returns the key that an error names, or `other`.
fn key_from_error(error: &Error, other: &str) -> String {
    error.get_fact("key").and_then(|key| key.as_str()).unwrap_or(other).to_owned()
}

/// Translates a key of the sandbox into the key of an entry.
fn to_entry_key(key: &str, home: &str) -> String {
    match key {
        "sandbox.profile" => format!("{home}.sandbox_profile"),
        "" => home.to_owned(),
        _ => format!("{home}.{}", key.trim_start_matches("sandbox.")),
    }
}

/// Returns the workspace if it is known and matters for this entry. Over HTTP each principal has
/// its own, and a relative `cwd` is inside it.
fn known_workspace<'a>(config: &'a Config, entry: &CommandTool) -> Option<&'a Path> {
    let named = config
        .settings
        .iter()
        .any(|setting| setting.key == "workspace" && setting.origin.is_explicit());
    match &entry.cwd {
        Some(cwd) if cwd.is_absolute() && !named => None,
        _ => Some(config.workspace.as_deref().unwrap_or(Path::new("/workspace"))),
    }
}

/// Returns all errors in lists of names and addresses, with their keys.
fn find_list_errors(config: &Config) -> Vec<(String, Error)> {
    let mut wrong = Vec::new();
    let mut add = |home: &str, skip: [usize; 2], found: Vec<(&'static str, usize, Error)>| {
        for (list, at, error) in found {
            // A wider list starts with the entries that it extends, which have been checked above.
            let before = if list == "allow_addresses" { skip[1] } else { skip[0] };
            wrong.extend(at.checked_sub(before).map(|at| (format!("{home}.{list}[{at}]"), error)));
        }
    };
    let sandbox = &config.sandbox;
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
        let skip = [sandbox.allow_domains.len(), sandbox.allow_addresses.len()];
        add(
            "policy.wider",
            skip,
            AllowList::find_errors(&wider.allow_domains, &[], &wider.allow_addresses),
        );
    }
    for entry in config.commands.iter() {
        add(
            &command_key(&entry.name),
            [0, 0],
            AllowList::find_errors(&entry.allow_domains, &[], &entry.allow_addresses),
        );
    }
    wrong
}

#[cfg(test)]
mod tests;
