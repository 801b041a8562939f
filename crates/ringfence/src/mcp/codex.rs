//! What Codex tells about itself, as far as it decides whom we can ask.
//!
//! Codex answers questions by itself in two cases: it accepts them when its own sandbox and its approvals are off,
//! and it declines them when it runs without a person (`codex exec`). In both it says so, in `_meta` of each call to
//! a server that declares the capability, or by `codex/sandbox-state/update` in older versions.

use rmcp::model::{ExperimentalCapabilities, RequestMetaObject};
use serde_json::{Value, json};

pub const UPDATE: &str = "codex/sandbox-state/update";
const STATES: [&str; 2] = ["codex/sandbox-state", "codex/sandbox-state-meta"];

/// Declared so that Codex tells us; only the presence of the keys counts.
pub fn capabilities() -> ExperimentalCapabilities {
    let declared = json!({"codex/sandbox-state": {"version": "1.0.0"}, "codex/sandbox-state-meta": {}});
    serde_json::from_value(declared).unwrap_or_default()
}

/// Whether the client that sent this `_meta` answers without a person.
pub fn answers_unseen(meta: &RequestMetaObject) -> bool {
    let turn = meta.get("x-codex-turn-metadata");
    let says = |key: &str, value: &str| turn.and_then(|turn| turn.get(key)).is_some_and(|found| found == value);
    says("turn_trigger", "exec")
        || says("sandbox_mode", "danger-full-access")
        || STATES.iter().filter_map(|key| meta.get(*key)).any(is_unfenced)
}

/// Whether a sandbox state says that there is no sandbox. What cannot be read counts as none.
pub fn is_unfenced(state: &Value) -> bool {
    let kind = |key: &str| state.get(key).map(|policy| policy.get("type").and_then(Value::as_str).unwrap_or_default());
    match (kind("permissionProfile"), kind("sandboxPolicy")) {
        (Some(profile), _) => !matches!(profile, "managed" | "external"),
        (None, Some(policy)) => !matches!(policy, "read-only" | "workspace-write" | "external-sandbox"),
        (None, None) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_sandbox_we_can_read_counts_as_one() {
        for fenced in [
            json!({"sandboxPolicy": {"type": "read-only"}}),
            json!({"sandboxPolicy": {"type": "workspace-write", "network_access": false}, "sandboxCwd": "/x"}),
            json!({"sandboxPolicy": {"type": "danger-full-access"}, "permissionProfile": {"type": "managed"}}),
            json!({"permissionProfile": {"type": "external", "network": "restricted"}}),
        ] {
            assert!(!is_unfenced(&fenced), "{fenced}");
        }
        for unfenced in [
            json!({"sandboxPolicy": {"type": "danger-full-access"}}),
            json!({"permissionProfile": {"type": "disabled"}}),
            json!({"permissionProfile": {"type": "something new"}}),
            json!({"sandboxPolicy": "read-only"}),
            json!({}),
            json!(null),
        ] {
            assert!(is_unfenced(&unfenced), "{unfenced}");
        }
    }
}
