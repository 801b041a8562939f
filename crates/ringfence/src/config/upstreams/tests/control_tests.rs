//! The upstreams file, the lock file and the list of trusted files: where they must not be, and
//! what their change does.

use super::*;
use crate::config::{ConfigSource, prepare_root};

const EMPTY: &str = "{}";

#[test]
fn no_workspace_contains_the_file_or_its_lock_file() {
    let operator = Operator::new();
    let file = operator.0.file("project/sub/up.json", EMPTY);
    let flags = ConfigFlags { upstreams: Some(file), ..operator.flags() };
    let error = operator.resolve_error(&flags);
    assert!(error.message().ends_with("that contains the upstreams file"), "{error}");
    // A link out of the workspace can be replaced there.
    let target = operator.0.file("etc/up.json", EMPTY);
    let link = operator.path("project/link.json");
    std::os::unix::fs::symlink(&target, &link).unwrap();
    let flags = ConfigFlags { upstreams: Some(link), ..operator.flags() };
    assert!(operator.resolve_error(&flags).message().contains("the upstreams file"));
    // A lock file that leads into the workspace.
    std::os::unix::fs::symlink(operator.0.file("project/x", ""), operator.path("etc/mcp.lock"))
        .unwrap();
    let flags = ConfigFlags { upstreams: Some(target), ..operator.flags() };
    let error = operator.resolve_error(&flags);
    assert!(error.message().contains("the lock file of the upstreams"), "{error}");
}

#[test]
fn no_writable_directory_contains_the_files() {
    let operator = Operator::new();
    let writable = |name: &str| {
        let path = operator.path(name).display().to_string();
        operator.configure(&format!("[sandbox]\nwritable = ['{path}']\n"));
    };
    let flags = operator.upstreams(&json!({"git": stdio("git")}));
    writable("etc");
    let error = operator.resolve_error(&flags);
    assert!(error.message().contains("could replace the upstreams file"), "{error}");
    // The list of trusted files, below the root, once a project has a file.
    operator.0.dir("root/upstreams");
    writable("root/upstreams");
    operator.resolve(&operator.flags()).unwrap();
    operator.0.file("project/codex-toolloop.mcp.json", EMPTY);
    let error = operator.resolve_error(&operator.flags());
    assert!(error.message().contains("could replace the list of trusted upstreams"), "{error}");
}

#[test]
fn the_file_is_hidden_from_runs_and_a_discovered_one_is_not() {
    let operator = Operator::new();
    let flags = operator.upstreams(&json!({}));
    let config = operator.resolve(&flags).unwrap();
    assert!(config.private_paths.contains(&operator.path("etc/up.json")), "{config:?}");
    assert!(!config.private_paths.contains(&operator.path("etc/mcp.lock")));
    let file = operator.0.file("project/codex-toolloop.mcp.json", EMPTY);
    trust_file(&operator.path("root"), &file).unwrap();
    let config = operator.resolve(&operator.flags()).unwrap();
    assert_eq!(config.upstreams.file, Some(file.clone()));
    assert!(!config.private_paths.contains(&file));
}

#[test]
fn a_root_inside_the_workspace_may_have_a_list_of_trusted_files() {
    let operator = Operator::new();
    let root = operator.0.dir("project/root");
    let file = operator.0.file("project/codex-toolloop.mcp.json", EMPTY);
    trust_file(&root, &file).unwrap();
    let flags = ConfigFlags {
        workspace: Some(operator.path("project")),
        root: Some(root.clone()),
        ..ConfigFlags::default()
    };
    let config = operator.resolve(&flags).unwrap();
    assert_eq!((config.closed_paths, &config.upstreams.file), (vec![root], &Some(file)));
}

#[test]
fn a_change_of_any_file_is_seen_and_a_broken_one_keeps_the_last_good_config() {
    let operator = Operator::new();
    let flags = operator.upstreams(&json!({"git": stdio("git")}));
    let source = ConfigSource::new(flags, operator.env(&[]));
    let (first, stamps) = source.resolve_first();
    let first = first.unwrap();
    assert!(!stamps.have_changed());
    operator.0.file("etc/mcp.lock", r#"{"version": 1, "servers": {}}"#);
    assert!(stamps.have_changed(), "a new lock file is seen");
    let (second, stamps) = source.resolve_again(&first, &first, &stamps);
    assert!(second.is_ok() && !stamps.have_changed());
    operator.upstreams(&json!({"git": stdio("git"), "more": stdio("more")}));
    assert!(stamps.have_changed());
    let (third, stamps) = source.resolve_again(&first, &first, &stamps);
    assert_eq!(server_ids(&third.unwrap()), ["git", "more"]);
    operator.0.file("etc/up.json", "{");
    let (broken, _) = source.resolve_again(&first, &first, &stamps);
    assert!(broken.unwrap_err().message().contains("up.json"));
}

#[test]
fn trusting_a_file_is_seen() {
    let operator = Operator::new();
    let text = json!({"servers": {"git": stdio("git")}}).to_string();
    let file = operator.0.file("project/codex-toolloop.mcp.json", &text);
    let source = ConfigSource::new(operator.flags(), operator.env(&[]));
    let (first, stamps) = source.resolve_first();
    let first = first.unwrap();
    assert!(first.upstreams.servers.is_empty());
    trust_file(&operator.path("root"), &file).unwrap();
    assert!(stamps.have_changed());
    let (second, _) = source.resolve_again(&first, &first, &stamps);
    assert_eq!(server_ids(&second.unwrap()), ["git"]);
}

#[test]
fn the_directory_of_a_lock_file_below_the_root_is_created_at_the_start() {
    let operator = Operator::new();
    let file = operator.0.file("project/codex-toolloop.mcp.json", EMPTY);
    let root = operator.path("root");
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(&root, permissions).unwrap();
    trust_file(&root, &file).unwrap();
    let config = operator.resolve(&operator.flags()).unwrap();
    let lock_path = config.upstreams.lock_path.clone().unwrap();
    assert!(!lock_path.parent().unwrap().exists());
    prepare_root(&config).unwrap();
    config.upstreams.lock.write(&lock_path).unwrap();
}
