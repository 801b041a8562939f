//! Sources of servers, and trust, through the whole resolution.

mod control_tests;
mod table_tests;

use std::path::Path;

use serde_json::json;

use super::*;
use crate::base::{Error, Result};
use crate::config::scratch::Scratch;
use crate::config::trusted_files::{trust_file, trusted_list_path};
use crate::config::{Config, ConfigFlags, ProcessEnv, SettingOrigin, resolve_config};
use crate::redact::known_secrets;

/// An operator with a home, a project and a directory of their own.
struct Operator(Scratch);

impl Operator {
    fn new() -> Operator {
        let scratch = Scratch::new();
        for name in ["home", "project", "root", "etc"] {
            scratch.dir(name);
        }
        Operator(scratch)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn env(&self, more: &[(&str, &str)]) -> ProcessEnv {
        let home = self.path("home").display().to_string();
        let all = [("HOME", home.as_str())].into_iter().chain(more.iter().copied());
        ProcessEnv::new(
            all.map(|(name, value)| (name.to_owned(), value.to_owned())),
            self.path("project"),
        )
    }

    fn flags(&self) -> ConfigFlags {
        let root = self.path("root");
        ConfigFlags { root: Some(root), ..ConfigFlags::default() }
    }

    /// Writes config.toml.
    fn configure(&self, text: &str) {
        self.0.file("home/.config/ringfence/config.toml", text);
    }

    /// Writes an upstreams file that the operator names.
    fn upstreams(&self, servers: &Value) -> ConfigFlags {
        let text = json!({ "servers": servers }).to_string();
        let file = self.0.file("etc/up.json", &text);
        ConfigFlags { upstreams: Some(file), ..self.flags() }
    }

    fn resolve(&self, flags: &ConfigFlags) -> Result<Config> {
        resolve_config(flags, &self.env(&[]))
    }

    #[track_caller]
    fn resolve_error(&self, flags: &ConfigFlags) -> Error {
        match self.resolve(flags) {
            Ok(config) => panic!("{:?}", config.upstreams),
            Err(error) => error,
        }
    }
}

fn stdio(command: &str) -> Value {
    json!({"trust": "trusted", "transport": {"type": "stdio", "command": command}})
}

fn remote() -> Value {
    json!({"trust": "trusted", "transport": {"type": "http", "url": "https://a.example/mcp"}})
}

fn server_ids(config: &Config) -> Vec<&str> {
    config.upstreams.servers.keys().map(String::as_str).collect()
}

#[test]
fn without_servers_nothing_is_read_or_watched() {
    let operator = Operator::new();
    operator.0.file("root/upstreams/trusted.json", "broken");
    operator.0.file("root/upstreams/mcp.lock", "broken");
    let config = operator.resolve(&operator.flags()).unwrap();
    let upstreams = &config.upstreams;
    assert!(upstreams.servers.is_empty() && upstreams.bundles.is_empty());
    assert_eq!((&upstreams.file, &upstreams.lock_path), (&None, &None));
    assert!(upstreams.untrusted_file.is_none() && upstreams.watched_files.is_empty());
    assert!(config.settings.iter().all(|setting| setting.key != "upstreams"));
}

#[test]
fn flag_over_variable_over_key_over_discovery_and_json_over_all() {
    let operator = Operator::new();
    let write = |name: &str, id: &str| {
        let servers = json!({"servers": {id: stdio(id), "shared": stdio(id)}});
        operator.0.file(name, &servers.to_string())
    };
    let discovered = write("project/codex-toolloop.mcp.json", "found");
    trust_file(&operator.path("root"), &discovered).unwrap();
    let config = operator.resolve(&operator.flags()).unwrap();
    assert_eq!(server_ids(&config), ["found", "shared"]);
    write("home/.config/ringfence/key.json", "key");
    operator.configure("upstreams = \"key.json\"\n");
    let config = operator.resolve(&operator.flags()).unwrap();
    assert_eq!(server_ids(&config), ["key", "shared"]);
    let variable = write("etc/variable.json", "variable").display().to_string();
    let env = [("CODEX_TOOLLOOP_MCP_CONFIG_PATH", variable.as_str())];
    let config = resolve_config(&operator.flags(), &operator.env(&env)).unwrap();
    assert_eq!(server_ids(&config), ["shared", "variable"]);
    let flag = write("etc/flag.json", "flag");
    let flags = ConfigFlags { upstreams: Some(flag.clone()), ..operator.flags() };
    let config = resolve_config(&flags, &operator.env(&env)).unwrap();
    assert_eq!(server_ids(&config), ["flag", "shared"]);
    assert_eq!(config.upstreams.file, Some(flag));
    assert_eq!(config.upstreams.lock_path, Some(operator.path("etc/mcp.lock")));
    let setting = config.settings.iter().find(|setting| setting.key == "upstreams").unwrap();
    assert_eq!(setting.origin, SettingOrigin::Flag("--upstreams"));
    let text = json!({"servers": {"shared": stdio("json")}}).to_string();
    let env = [("CODEX_TOOLLOOP_MCP_CONFIG_JSON", text.as_str())];
    let config = resolve_config(&flags, &operator.env(&env)).unwrap();
    assert_eq!(server_ids(&config), ["flag", "shared"]);
    let TransportConfig::Stdio(shared) = &config.upstreams.servers["shared"].server.transport
    else {
        panic!("{config:?}");
    };
    assert_eq!(shared.command, "json");
}

#[test]
fn servers_of_the_environment_alone_have_their_lock_file_below_the_root() {
    let operator = Operator::new();
    let text = json!({"servers": {"git": stdio("git")}}).to_string();
    let env = operator.env(&[("CODEX_TOOLLOOP_MCP_CONFIG_JSON", &text)]);
    let config = resolve_config(&operator.flags(), &env).unwrap();
    assert_eq!(server_ids(&config), ["git"]);
    assert_eq!(config.upstreams.file, None);
    assert_eq!(config.upstreams.lock_path, Some(operator.path("root/upstreams/mcp.lock")));
}

#[test]
fn a_discovered_file_is_used_only_if_exactly_its_bytes_are_trusted() {
    let operator = Operator::new();
    let text = json!({"servers": {"git": stdio("git")}}).to_string();
    let file = operator.0.file("project/.codex-toolloop/mcp.json", &text);
    let list = trusted_list_path(&operator.path("root"));
    let resolve = || operator.resolve(&operator.flags()).unwrap().upstreams;
    let upstreams = resolve();
    assert!(upstreams.servers.is_empty() && upstreams.file.is_none());
    assert_eq!(upstreams.lock_path, None);
    assert_eq!(upstreams.untrusted_file, Some(file.clone()));
    assert_eq!(upstreams.watched_files, [file.clone(), list.clone()]);
    trust_file(&operator.path("root"), &file).unwrap();
    let upstreams = resolve();
    assert_eq!(upstreams.servers.len(), 1);
    assert_eq!((&upstreams.file, &upstreams.untrusted_file), (&Some(file.clone()), &None));
    let lock_path = upstreams.lock_path.clone().unwrap();
    assert!(lock_path.starts_with(operator.path("root/upstreams")), "{lock_path:?}");
    assert_eq!(upstreams.watched_files, [file.clone(), list, lock_path]);
    std::fs::write(&file, format!("{text} ")).unwrap();
    assert_eq!(resolve().untrusted_file, Some(file.clone()));
    std::fs::write(&file, &text).unwrap();
    assert_eq!(resolve().untrusted_file, None);
    // Over HTTP, workspaces belong to callers.
    let workspace = Some(operator.path("project"));
    let flags = ConfigFlags { http: Some("0".to_owned()), workspace, ..operator.flags() };
    let upstreams = operator.resolve(&flags).unwrap().upstreams;
    assert!(upstreams.servers.is_empty() && upstreams.watched_files.is_empty());
}

#[test]
fn projects_have_lock_files_of_their_own() {
    let operator = Operator::new();
    let text = json!({"servers": {"git": stdio("git")}}).to_string();
    let lock_path = |project: &str| {
        let file = operator.0.file(&format!("{project}/codex-toolloop.mcp.json"), &text);
        trust_file(&operator.path("root"), &file).unwrap();
        let workspace = Some(operator.path(project));
        let flags = ConfigFlags { workspace, ..operator.flags() };
        operator.resolve(&flags).unwrap().upstreams.lock_path.clone().unwrap()
    };
    assert_ne!(lock_path("one"), lock_path("two"));
}

#[test]
fn a_broken_discovered_file_does_not_prevent_the_start() {
    let operator = Operator::new();
    let file = operator.0.file("project/codex-toolloop.mcp.json", "{");
    let config = operator.resolve(&operator.flags()).unwrap();
    assert_eq!(config.upstreams.untrusted_file, Some(file));
    // But a broken list of trusted files does: it could hide what was trusted.
    operator.0.file("root/upstreams/trusted.json", "[\n");
    let error = operator.resolve_error(&operator.flags());
    assert!(error.message().contains("root/upstreams/trusted.json"), "{error}");
    assert!(error.message().contains("line"), "{error}");
}

#[test]
fn only_the_operators_files_name_secrets() {
    let operator = Operator::new();
    let transport = |env: Value| json!({"type": "stdio", "command": "x", "env": env});
    let server = |env: Value| json!({"git": {"trust": "trusted", "transport": transport(env)}});
    let write = |env: Value| {
        let text = json!({"servers": server(env)}).to_string();
        operator.0.file("project/codex-toolloop.mcp.json", &text)
    };
    let root = operator.path("root");
    for value in ["${HOME}", "x${secret:TOKEN}"] {
        let file = write(json!({"TOKEN": value}));
        let error = trust_file(&root, &file).unwrap_err();
        let place =
            "codex-toolloop.mcp.json:1: servers.git.transport.env.TOKEN: a file in a project";
        assert!(error.message().contains(place), "{error}");
        assert!(!error.message().contains(value), "{error}");
        // Even if its hash is on the list.
        let bytes = std::fs::read(&file).unwrap();
        let list =
            json!({file.to_str().unwrap(): super::super::trusted_files::hash_contents(&bytes)});
        operator.0.file("root/upstreams/trusted.json", &list.to_string());
        let error = operator.resolve_error(&operator.flags());
        assert!(error.message().contains(place), "{error}");
    }
    trust_file(&root, &write(json!({"TOKEN": "a$b", "PLAIN": "$${x}"}))).unwrap();
    // The operator's JSON may name them, on top of the project's file.
    let text = json!({"servers": {"git": {"transport": {"env": {"TOKEN": "${HOME}"}}}}});
    let env = operator.env(&[("CODEX_TOOLLOOP_MCP_CONFIG_JSON", &text.to_string())]);
    let config = resolve_config(&operator.flags(), &env).unwrap();
    assert_eq!(config.upstreams.servers["git"].secret_refs().count(), 1);
}

#[test]
fn variables_and_headers_are_templates_whose_secrets_are_redacted() {
    let operator = Operator::new();
    operator.configure("[upstream.git]\nenv = { B = \"${UPSTREAM_TEST_B}\", C = \"c\" }\n");
    let flags = operator.upstreams(&json!({
        "git": {"trust": "trusted", "transport": {"type": "stdio", "command": "x",
            "env": {"A": "a-${UPSTREAM_TEST_A}", "B": "${UPSTREAM_TEST_UNUSED}"}}},
        "docs": {"trust": "untrusted", "transport": {"type": "sse", "url": "https://a.example",
            "headers": {"Authorization": "Bearer ${UPSTREAM_TEST_H}"}}},
    }));
    let env = operator.env(&[
        ("UPSTREAM_TEST_A", "value-of-upstream-a"),
        ("UPSTREAM_TEST_B", "value-of-upstream-b"),
        ("UPSTREAM_TEST_H", "value-of-upstream-header"),
    ]);
    let config = resolve_config(&flags, &env).unwrap();
    let git = &config.upstreams.servers["git"];
    let texts: Vec<(&str, &str)> =
        git.env.iter().map(|(name, value)| (name.as_str(), value.text.as_str())).collect();
    assert_eq!(texts, [("A", "a-${UPSTREAM_TEST_A}"), ("B", "${UPSTREAM_TEST_B}"), ("C", "c")]);
    let docs = &config.upstreams.servers["docs"];
    assert!(!docs.is_stdio() && git.is_stdio());
    assert_eq!(docs.headers[0].1.text, "Bearer ${UPSTREAM_TEST_H}");
    for secret_ref in git.secret_refs().chain(docs.secret_refs()) {
        config.secrets.get(secret_ref).unwrap();
    }
    let output = "value-of-upstream-a value-of-upstream-b value-of-upstream-header";
    assert!(!known_secrets::redact_str(output).contains("upstream"), "all three are redacted");
}

#[test]
fn values_of_the_file_are_in_templates_only_and_not_in_debug_output() {
    let operator = Operator::new();
    let flags = operator.upstreams(&json!({
        "git": {"trust": "trusted", "transport":
            {"type": "stdio", "command": "x", "env": {"A": "hunter2"}}},
        "docs": {"trust": "trusted", "transport":
            {"type": "http", "url": "https://a.example", "headers": {"X-Key": "hunter2"}}},
    }));
    let upstreams = operator.resolve(&flags).unwrap().upstreams;
    assert!(!format!("{upstreams:#?}").contains("hunter2"));
    assert_eq!(upstreams.servers["docs"].headers[0].1.text, "hunter2");
    match &upstreams.servers["docs"].server.transport {
        TransportConfig::Http(remote) => assert!(remote.headers.is_empty()),
        other => panic!("{other:?}"),
    }
    match &upstreams.servers["git"].server.transport {
        TransportConfig::Stdio(stdio) => assert!(stdio.env.is_empty()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn errors_in_the_file_name_file_line_and_key() {
    let operator = Operator::new();
    for (text, expected) in [
        ("{\n\"servers\": {\n\"a b\": {}}}", "up.json:3: servers.\"a b\""),
        ("{\n", "up.json"),
        (
            "{\"servers\": {\"a\": {\"trust\": \"trusted\", \"transport\": {\"type\": \"stdio\",\n\
             \"command\": \"x\", \"env\": {\n\"T\": \"${T\"}}}}}",
            "up.json:3: servers.a.transport.env.T: `${` has no `}`",
        ),
        (
            "{\"servers\": {\"a\": {\"trust\": \"trusted\", \"transport\": {\"type\": \"http\",\n\
             \"url\": \"https://a.example\",\n\"authProviderId\": \"corp\"}}}}",
            "up.json:3: servers.a.transport.authProviderId: there is no auth provider \"corp\"",
        ),
    ] {
        let file = operator.0.file("etc/up.json", text);
        let flags = ConfigFlags { upstreams: Some(file), ..operator.flags() };
        let error = operator.resolve_error(&flags);
        assert!(error.message().contains(expected), "{expected}: {error}");
        assert!(error.hint_text().is_some_and(|hint| !hint.is_empty()), "{error}");
    }
    let provider = |id: &str| {
        json!({"a": {"trust": "trusted", "transport":
            {"type": "http", "url": "https://a.example", "authProviderId": id}}})
    };
    let error = operator.resolve_error(&operator.upstreams(&provider("corp")));
    assert_eq!(error.hint_text(), Some("The only one is \"oauth\"."));
    operator.resolve(&operator.upstreams(&provider("oauth"))).unwrap();
    let flags = ConfigFlags { upstreams: Some("/nonexistent/up.json".into()), ..operator.flags() };
    let error = operator.resolve_error(&flags);
    assert!(error.message().contains("/nonexistent/up.json does not exist"), "{error}");
}

#[test]
fn a_file_that_anyone_can_write_or_that_is_no_file_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let operator = Operator::new();
    let flags = operator.upstreams(&json!({}));
    let file = flags.upstreams.clone().unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o646)).unwrap();
    let error = operator.resolve_error(&flags);
    assert!(error.message().ends_with("is writable by everyone"), "{error}");
    let directory = ConfigFlags { upstreams: Some(operator.path("etc")), ..operator.flags() };
    let error = operator.resolve_error(&directory);
    assert!(error.message().ends_with("is not a regular file"), "{error}");
}

/// Whoever can write the directory or the lock file decides what is accepted.
#[test]
fn a_directory_or_a_lock_file_that_anyone_can_write_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let operator = Operator::new();
    let flags = operator.upstreams(&json!({"git": stdio("git")}));
    let set_mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let assert_refused = |flags: &ConfigFlags, path: &Path| {
        let error = operator.resolve_error(flags);
        let message = error.message();
        let path = path.display().to_string();
        assert!(message.contains(&path) && message.contains("writable by everyone"), "{error}");
        assert!(error.hint_text().unwrap().contains("chmod o-w"), "{error}");
    };
    let lock = operator.0.file("etc/mcp.lock", r#"{"version": 1, "servers": {}}"#);
    set_mode(&lock, 0o666);
    assert_refused(&flags, &lock);
    set_mode(&lock, 0o644);
    operator.resolve(&flags).unwrap();
    let directory = operator.path("etc");
    set_mode(&directory, 0o777);
    assert_refused(&flags, &directory);
    // A link is as safe as the directory of its target.
    let link = operator.path("home/link.json");
    std::os::unix::fs::symlink(operator.path("etc/up.json"), &link).unwrap();
    let by_link = ConfigFlags { upstreams: Some(link), ..operator.flags() };
    assert_refused(&by_link, &directory);
    // No one else can replace a file in a directory such as /tmp.
    set_mode(&directory, 0o1777);
    operator.resolve(&flags).unwrap();
}

#[test]
fn the_lock_file_is_read_with_the_config_and_a_broken_one_is_an_error() {
    let operator = Operator::new();
    let flags = operator.upstreams(&json!({"git": stdio("git")}));
    let locked = json!({"version": 1, "servers": {"git":
        {"identity": {"name": "git"}, "tools": {"log": {"name": "log"}}}}});
    operator.0.file("etc/mcp.lock", &locked.to_string());
    let config = operator.resolve(&flags).unwrap();
    assert!(config.upstreams.lock.servers["git"].tools.contains_key("log"));
    operator.0.file("etc/mcp.lock", "{\"version\": 1,\n\"servers\": 3}");
    let error = operator.resolve_error(&flags);
    let message = error.message();
    assert!(message.contains("etc/mcp.lock") && message.contains("line 2"), "{error}");
    assert!(error.hint_text().unwrap().contains("ringfence upstream accept"), "{error}");
}
