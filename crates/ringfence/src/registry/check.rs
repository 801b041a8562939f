//! Everything that is wrong with a config: what it shows by itself, and what only those know who work with it.

use crate::base::{Error, Result};
use crate::config::{self, Config, Env, Flags, Look, Severity, entry_key};
use crate::net::Allow;
use crate::sandbox::profile;

/// Looks at the config that these flags and this environment name.
pub fn check(flags: &Flags, env: &Env) -> Result<Look> {
    let mut look = config::look(flags, env)?;
    let Some(config) = &look.config else { return Ok(look) };
    let lists = lists(config);
    // The profile refuses the first of them, and we have them all.
    let refused =
        if lists.iter().any(|(key, _)| key.starts_with("sandbox.")) { Ok(()) } else { profile::check(config) };
    for (key, error) in lists {
        let hint = error.hint_text().unwrap_or_default().to_owned();
        look.find(Severity::Error, &key, error.message(), hint);
    }
    if let Err(error) = refused {
        look.refuse(&error);
    }
    look.sort();
    Ok(look)
}

/// What is wrong with lists of names and addresses, and where.
fn lists(config: &Config) -> Vec<(String, Error)> {
    let mut wrong = Vec::new();
    let mut add = |home: &str, skip: [usize; 2], found: Vec<(&'static str, usize, Error)>| {
        for (list, at, error) in found {
            // What is wider begins with what it widens.
            let before = if list == "allow_addresses" { skip[1] } else { skip[0] };
            wrong.extend(at.checked_sub(before).map(|at| (format!("{home}.{list}[{at}]"), error)));
        }
    };
    let sandbox = &config.sandbox;
    add("sandbox", [0, 0], Allow::faults(&sandbox.allow_domains, &sandbox.deny_domains, &sandbox.allow_addresses));
    if let Some(wider) = &config.policy.wider {
        let skip = [sandbox.allow_domains.len(), sandbox.allow_addresses.len()];
        add("policy.wider", skip, Allow::faults(&wider.allow_domains, &[], &wider.allow_addresses));
    }
    for entry in &config.entries {
        add(&entry_key(&entry.name), [0, 0], Allow::faults(&entry.allow_domains, &[], &entry.allow_addresses));
    }
    wrong
}
