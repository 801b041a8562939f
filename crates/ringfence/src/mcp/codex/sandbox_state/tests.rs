use serde_json::json;

use super::*;

macro_rules! generations {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/sandbox_state/", $name, ".json"))),)*]
    };
}

const GENERATIONS: &[(&str, &str)] = generations! {
    "0_64_notification" "0_76_request" "0_97_bwrap" "0_115_landlock"
    "0_121_meta" "0_125_both" "0_142_profile" "0_163_two_keys"
};

fn writes(narrowing: &ClientSandbox) -> Vec<&ClientAccessPath> {
    let entries = narrowing.files.iter().flat_map(|files| &files.entries);
    entries.filter(|entry| entry.access == ClientAccess::Write).map(|entry| &entry.path).collect()
}

#[test]
fn all_eight_generations_say_the_same() {
    assert_eq!(GENERATIONS.len(), 8);
    for (name, text) in GENERATIONS {
        let fixture: Value =
            serde_json::from_str(&text.replace("${WS}", "/home/user/my%20project")).unwrap();
        let read_only = read_state(&fixture["read_only"]).unwrap();
        assert!(writes(&read_only).is_empty(), "{name}");
        assert_eq!(
            (read_only.mode.as_str(), read_only.allows_network, read_only.unsandboxed),
            ("read-only", false, false)
        );
        let write = read_state(&fixture["workspace_write"]).unwrap();
        assert_eq!(
            (write.mode.as_str(), write.allows_network, write.unsandboxed),
            ("workspace-write", false, false),
            "{name}"
        );
        assert!(
            writes(&write).contains(&&ClientAccessPath::Project("".into())),
            "{name}: {write:?}"
        );
        let cwd = write.files.unwrap().cwd.unwrap();
        let decoded =
            fixture["workspace_write"]["sandboxCwd"].as_str().unwrap().starts_with("file:");
        let expected = if decoded { "/home/user/my project" } else { "/home/user/my%20project" };
        assert_eq!(cwd, Path::new(expected), "{name}");
        let off = read_state(&fixture["off"]).unwrap();
        assert!(off.files.is_none() && off.allows_network && off.unsandboxed, "{name}");
    }
}

#[test]
fn the_newer_form_counts_where_both_are() {
    let state = json!({"sandboxPolicy": {"type": "danger-full-access"},
        "permissionProfile": {"type": "managed", "network": "restricted",
            "file_system": {"type": "restricted", "entries": [{"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"}]}}});
    let narrowing = read_state(&state).unwrap();
    assert!(!narrowing.unsandboxed && !narrowing.allows_network && writes(&narrowing).is_empty());
}

#[test]
fn an_outer_sandbox_leaves_files_to_ours_and_says_something_about_the_network() {
    for (state, network) in [
        (json!({"sandboxPolicy": {"type": "external-sandbox"}}), false),
        (
            json!({"sandboxPolicy": {"type": "external-sandbox", "network_access": "restricted"}}),
            false,
        ),
        (json!({"sandboxPolicy": {"type": "external-sandbox", "network_access": "enabled"}}), true),
        (json!({"permissionProfile": {"type": "external", "network": "enabled"}}), true),
        (
            json!({"permissionProfile": {"type": "managed", "network": "enabled", "file_system": {"type": "unrestricted"}}}),
            true,
        ),
    ] {
        let narrowing = read_state(&state).unwrap();
        assert!(narrowing.files.is_none() && !narrowing.unsandboxed, "{state}");
        assert_eq!(narrowing.allows_network, network, "{state}");
    }
}

/// The example of the shell tool's own documentation, which says nothing of a directory.
#[test]
fn the_documented_example_is_read() {
    let narrowing = read_state(&json!({"sandboxPolicy": {"type": "workspace-write",
        "writable_roots": ["/home/user/code/codex"], "network_access": false, "exclude_tmpdir_env_var": false,
        "exclude_slash_tmp": false}}))
    .unwrap();
    assert_eq!(narrowing.files.as_ref().unwrap().cwd, None);
    let project = ClientAccessPath::Project("".into());
    assert_eq!(
        writes(&narrowing),
        [
            &project,
            &ClientAccessPath::Path("/home/user/code/codex".into()),
            &ClientAccessPath::Path("/tmp".into())
        ]
    );
}

#[test]
fn restricted_reads_are_those_that_are_listed() {
    let narrowing = read_state(&json!({"sandboxCwd": "/p", "sandboxPolicy": {"type": "read-only", "access":
        {"type": "restricted", "include_platform_defaults": true, "readable_roots": ["/opt/sdk"]}}}))
    .unwrap();
    let entries = narrowing.files.unwrap().entries;
    let reads = |place: ClientAccessPath| {
        entries.iter().any(|entry| entry.path == place && entry.access == ClientAccess::Read)
    };
    assert!(
        reads(ClientAccessPath::Path("/opt/sdk".into()))
            && reads(ClientAccessPath::Project("".into()))
            && reads(ClientAccessPath::Path("/usr".into()))
    );
    assert!(!reads(ClientAccessPath::Path("/".into())));
}

#[test]
fn the_form_before_types_is_read() {
    let narrowing = read_state(&json!({"permissionProfile": {"network": {"enabled": true},
        "file_system": {"read": ["/"], "write": ["/p"]}}}))
    .unwrap();
    assert!(narrowing.allows_network);
    assert_eq!(writes(&narrowing), [&ClientAccessPath::Path("/p".into())]);
}

fn managed(entry: Value) -> ReadResult<ClientSandbox> {
    let root = json!({"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"});
    read_state(&json!({"permissionProfile": {"type": "managed", "network": "restricted",
        "file_system": {"type": "restricted", "entries": [root, entry]}}}))
}

#[test]
fn what_a_later_version_adds_is_ignored_and_told_as_long_as_it_denies_nothing() {
    let kind = managed(
        json!({"path": {"type": "special", "value": {"kind": "cloud", "path": "x"}}, "access": "write"}),
    );
    assert_eq!(kind.unwrap().ignored, ["the special path `cloud` is unknown"]);
    let form =
        managed(json!({"path": {"type": "regex", "regex": ".*"}, "access": "write"})).unwrap();
    assert_eq!(form.ignored, ["an entry of an unknown kind"]);
    assert!(writes(&form).is_empty());
    assert!(managed(json!({"path": {"type": "regex", "regex": ".*"}, "access": "deny"})).is_err());
    let access =
        managed(json!({"path": {"type": "path", "path": "/p/x"}, "access": "append"})).unwrap();
    assert_eq!(access.files.unwrap().entries[1].access, ClientAccess::Deny);
    let alias =
        managed(json!({"path": {"type": "path", "path": "/p/x"}, "access": "none"})).unwrap();
    assert_eq!(alias.files.unwrap().entries[1].access, ClientAccess::Deny);
    let more = read_state(
        &json!({"sandboxPolicy": {"type": "read-only", "new": 1}, "useSomething": {"new": true}}),
    );
    assert_eq!(more.unwrap().mode, "read-only");
}

#[test]
fn patterns_that_deny_are_kept() {
    let narrowing = managed(
        json!({"path": {"type": "glob_pattern", "pattern": "/p/**/*.env"}, "access": "deny"}),
    )
    .unwrap();
    assert_eq!(narrowing.files.unwrap().denied_globs, [Glob::parse("/p/**/*.env").unwrap()]);
}

#[test]
fn what_cannot_be_understood_is_an_error() {
    for state in [
        json!(null),
        json!({}),
        json!("read-only"),
        json!({"sandboxPolicy": "read-only"}),
        json!({"sandboxPolicy": {"type": "something-new"}}),
        json!({"sandboxPolicy": {"type": "workspace-write", "writable_roots": ["relative"]}}),
        json!({"sandboxPolicy": {"type": "workspace-write", "writable_roots": ["/a/../b"]}}),
        json!({"sandboxPolicy": {"type": "workspace-write", "writable_roots": "/a"}}),
        json!({"sandboxPolicy": {"type": "read-only", "access": {"type": "something-new"}}}),
        json!({"sandboxPolicy": {"type": "read-only"}, "sandboxCwd": "relative"}),
        json!({"sandboxPolicy": {"type": "read-only"}, "sandboxCwd": "file://elsewhere/p"}),
        json!({"sandboxPolicy": {"type": "read-only"}, "sandboxCwd": "file:///p%zz"}),
        json!({"sandboxPolicy": {"type": "read-only"}, "sandboxCwd": 3}),
        json!({"permissionProfile": {"type": "something-new"}}),
        json!({"permissionProfile": {"type": "managed", "network": "enabled"}}),
        json!({"permissionProfile": {"type": "managed", "file_system": {"type": "something-new"}}}),
        json!({"permissionProfile": {"type": "managed", "file_system": {"type": "restricted"}}}),
        json!({"permissionProfile": "disabled", "sandboxPolicy": {"type": "danger-full-access"}}),
    ] {
        assert!(read_state(&state).is_err(), "{state}");
    }
    assert!(
        managed(json!({"path": {"type": "glob_pattern", "pattern": "/p/[a"}, "access": "deny"}))
            .is_err()
    );
    assert!(managed(json!({"path": {"type": "path", "path": "p"}, "access": "read"})).is_err());
    let many: Vec<Value> = (0..2000)
        .map(|at| json!({"path": {"type": "path", "path": format!("/{at}")}, "access": "read"}))
        .collect();
    assert!(
        read_state(
            &json!({"permissionProfile": {"type": "managed", "file_system": {"type": "restricted", "entries": many}}})
        )
        .is_err()
    );
}
