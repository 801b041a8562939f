//! Settings that a reload leaves as they are, until the server is restarted.

use std::collections::BTreeMap;

use crate::config::{AuthKey, Config};

/// Keys that are fixed while a server runs: sockets, directories and sandboxes have been created
/// from them.
const FIXED_KEYS: &[&str] = &[
    "root",
    "workspace",
    "shared_workspace",
    "http.",
    "auth.",
    "approval.terminal",
    "sandbox.",
    "policy.",
    "log.",
    "limits.message_mb",
    "limits.audit_rotate_mb",
];

/// Restores what cannot change while the server runs, and returns the keys that would have changed.
pub(super) fn restore_fixed_settings(
    config: &mut Config,
    initial: &Config,
    current: &Config,
) -> Vec<&'static str> {
    let is_fixed = |key: &str| {
        FIXED_KEYS.iter().any(|fixed_key| {
            key == *fixed_key || (fixed_key.ends_with('.') && key.starts_with(fixed_key))
        })
    };
    let rows = |config: &Config| -> BTreeMap<&'static str, String> {
        let rows = config.settings.iter().filter(|row| is_fixed(row.key));
        rows.map(|row| (row.key, row.value.clone())).collect()
    };
    let (before, after) = (rows(initial), rows(config));
    let all_keys = before.keys().chain(after.keys().filter(|key| !before.contains_key(*key)));
    // The port that was configured is not always the one that was assigned.
    let mut changed_keys: Vec<&'static str> = all_keys
        .filter(|key| **key != "http.listen" && before.get(*key) != after.get(*key))
        .copied()
        .collect();
    // Settings without a row of their own.
    for (name, is_same) in [
        ("policy", format!("{:?}", initial.policy) == format!("{:?}", config.policy)),
        ("auth.jwt_secret_file", jwt_secret(initial) == jwt_secret(config)),
        ("auth", format!("{:?}", initial.auth) == format!("{:?}", config.auth)),
    ] {
        if !is_same && !changed_keys.iter().any(|key| key.starts_with(name)) {
            changed_keys.push(name);
        }
    }
    config.settings.retain(|row| !is_fixed(row.key));
    config.settings.extend(initial.settings.iter().filter(|row| is_fixed(row.key)).cloned());
    config.root.clone_from(&initial.root);
    config.workspace.clone_from(&initial.workspace);
    config.shared_workspace = initial.shared_workspace;
    config.closed_paths.clone_from(&initial.closed_paths);
    config.http = initial.http.clone();
    config.auth = initial.auth.clone();
    config.approval.allows_terminal = initial.approval.allows_terminal;
    config.default_sandbox = initial.default_sandbox.clone();
    config.policy = initial.policy.clone();
    config.limits.message_bytes = initial.limits.message_bytes;
    config.limits.audit_rotate_bytes = initial.limits.audit_rotate_bytes;
    config.log = initial.log.clone();
    // Files that were private may still be in use, and a replaced secret is still a secret.
    config
        .private_paths
        .extend(initial.private_paths.iter().chain(&current.private_paths).cloned());
    config.private_paths.sort();
    config.private_paths.dedup();
    changed_keys
}

pub(super) fn jwt_secret(config: &Config) -> Option<&[u8]> {
    match &config.auth.as_ref()?.key {
        AuthKey::Secret(secret) => Some(secret.expose()),
        AuthKey::PublicPem(_) => None,
    }
}
