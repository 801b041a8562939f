//! `[upstream.<id>]`: values, errors at their lines, and what a check reports.

use super::*;
use crate::config::values::SideEffect;
use crate::config::{ProfileSetting, check_config, schema, show_config};

/// Resolves a stdio server `git` and a remote server `docs` with this config.toml.
fn resolve_with(text: &str) -> Result<Config> {
    let operator = Operator::new();
    operator.configure(text);
    operator.resolve(&operator.upstreams(&json!({"git": stdio("git"), "docs": remote()})))
}

fn git_with(lines: &str) -> Arc<UpstreamServer> {
    let config = resolve_with(&format!("[upstream.git]\n{lines}")).unwrap();
    Arc::clone(&config.upstreams.servers["git"])
}

/// The message and hint of the error, without the path of the file.
#[track_caller]
fn error_with(text: &str) -> (String, String) {
    let error = resolve_with(text).unwrap_err();
    let message = error.message();
    let place = message.find("config.toml:").unwrap_or_else(|| panic!("no place in {message}"));
    assert!(message.contains('^'), "no picture in {message}");
    let line = message[place + "config.toml:".len()..].lines().next().unwrap();
    (line.to_owned(), error.hint_text().unwrap().to_owned())
}

#[test]
fn a_server_without_a_table_has_the_defaults() {
    let config = resolve_with("").unwrap();
    let git = &config.upstreams.servers["git"];
    assert_eq!(git.access, DeclaredAccess::default());
    assert_eq!((git.approval, git.share), (UpstreamApproval::Auto, UpstreamShare::Session));
    assert!(!git.allows_sampling && git.cwd.is_none() && git.env.is_empty());
    let seconds = [git.call_timeout, git.start_timeout, git.idle_timeout].map(|one| one.as_secs());
    assert_eq!(seconds, [120, 30, 300]);
    assert_eq!(git.config_table(), "[upstream.git]");
    let config = resolve_with("[surface]\ndefault_timeout_ms = 7\n").unwrap();
    assert_eq!(config.upstreams.servers["git"].call_timeout, Duration::from_millis(7));
}

#[test]
fn every_key_of_the_table_has_its_effect() {
    let git = git_with(
        "sandbox_profile = \"none\"\nallow_network = true\nallow_domains = [\"a.b\"]\n\
         allow_addresses = [\"1.2.3.4:5\"]\nside_effects = [\"filesystem_write\"]\ncwd = \"src\"\n\
         env = { A = \"b\" }\napproval = \"always\"\nshare = \"principal\"\nsampling = true\n\
         timeout_ms = 1\nstart_timeout_ms = 2\nidle_s = 3\n",
    );
    let access = DeclaredAccess {
        profile: ProfileSetting::None,
        allow_network: true,
        allow_domains: vec!["a.b".to_owned()],
        allow_addresses: vec!["1.2.3.4:5".to_owned()],
        side_effects: vec![SideEffect::FilesystemWrite],
    };
    assert_eq!(git.access, access);
    assert_eq!(git.cwd, Some(PathBuf::from("src")));
    assert_eq!(git.env[0].1.text, "b");
    assert_eq!((git.approval, git.share), (UpstreamApproval::Always, UpstreamShare::Principal));
    assert!(git.allows_sampling);
    let millis = [git.call_timeout, git.start_timeout, git.idle_timeout].map(|one| one.as_millis());
    assert_eq!(millis, [1, 2, 3000]);
}

#[test]
fn the_directory_of_the_table_takes_precedence_over_that_of_the_file() {
    let operator = Operator::new();
    let flags = operator.upstreams(&json!({"git": {"trust": "trusted", "transport":
        {"type": "stdio", "command": "x", "cwd": "/srv/git"}}}));
    let cwd = |text: &str| {
        operator.configure(text);
        operator.resolve(&flags).unwrap().upstreams.servers["git"].cwd.clone()
    };
    assert_eq!(cwd(""), Some(PathBuf::from("/srv/git")));
    assert_eq!(cwd("[upstream.git]\ncwd = \"sub\"\n"), Some(PathBuf::from("sub")));
}

#[test]
fn a_table_needs_a_server() {
    let (message, hint) = error_with("\n[upstream.gti]\nshare = \"session\"\n");
    assert_eq!(message, "2:11: there is no server `gti`");
    assert_eq!(hint, "Did you mean `git`?");
    let (message, hint) = error_with("[upstream.weather]\n");
    assert_eq!(message, "1:11: there is no server `weather`");
    assert_eq!(hint, "Configured servers: docs, git.");
}

#[test]
fn in_a_project_without_the_server_its_table_is_a_warning() {
    let operator = Operator::new();
    operator.configure("[upstream.git]\nshare = \"session\"\n");
    let config = operator.resolve(&operator.flags()).unwrap();
    assert!(config.upstreams.servers.is_empty());
    let check = check_config(&operator.flags(), &operator.env(&[])).unwrap();
    let messages: Vec<&str> = check.findings.iter().map(|one| one.message.as_str()).collect();
    assert_eq!(messages, ["there is no server `git` in this project"]);
    // Over HTTP there are no projects.
    let flags = ConfigFlags { http: Some("0".to_owned()), ..operator.flags() };
    let error = operator.resolve_error(&flags);
    let hint = "No servers are configured: name their file with `upstreams`.";
    assert_eq!(error.hint_text(), Some(hint), "{error}");
}

#[test]
fn a_remote_server_has_no_sandbox_variables_or_directory() {
    for line in [
        "sandbox_profile = \"default\"",
        "allow_network = false",
        "allow_domains = []",
        "allow_addresses = []",
        "side_effects = []",
        "cwd = \".\"",
        "env = { A = \"b\" }",
    ] {
        let (message, _) = error_with(&format!("[upstream.docs]\nshare = \"session\"\n{line}\n"));
        let key = line.split(' ').next().unwrap();
        assert!(message.starts_with("3:"), "{message}");
        assert!(message.ends_with(&format!("`{key}` has no effect: `docs` is a remote server")));
    }
    let table = "[upstream.docs]\napproval = \"always\"\nsampling = true\ntimeout_ms = 1\n\
                 start_timeout_ms = 1\nidle_s = 1\nshare = \"principal\"\n";
    resolve_with(table).unwrap();
}

#[test]
fn calls_go_without_approval_only_if_the_sandbox_confines_them() {
    assert_eq!(git_with("approval = \"never\"").approval, UpstreamApproval::Never);
    let (message, hint) = error_with("[upstream.docs]\napproval = \"never\"\n");
    assert!(message.starts_with("2:12: calls of `docs` need a human's approval."), "{message}");
    assert!(hint.contains("\"auto\" or \"always\""), "{hint}");
    for line in [
        "sandbox_profile = \"none\"",
        "allow_network = true",
        "allow_domains = [\"a.b\"]",
        "allow_addresses = [\"1.2.3.4:5\"]",
        "side_effects = [\"network\"]",
        "side_effects = [\"filesystem_write\"]",
    ] {
        let (message, _) = error_with(&format!("[upstream.git]\n{line}\napproval = \"never\"\n"));
        assert!(message.starts_with("3:12: calls of `git` need a human's"), "{line}: {message}");
    }
}

#[test]
fn other_wrong_values_are_errors_at_their_lines() {
    for (lines, expected) in [
        ("sandbox_profile = \"contained\"", "2:19: `contained` hides nothing"),
        ("cwd = \"../x\"", "2:7: the directory leaves the workspace"),
        ("env = { A = \"${\" }", "2:13: `${` has no `}`"),
        ("env = { \"A=B\" = \"x\" }", "2:17: `A=B` is not a valid name of a variable"),
        ("aproval = \"never\"", "2:1: there is no key `aproval` here"),
        ("approval = \"sometimes\"", "2:12: `sometimes` is not a value of this key"),
        ("idle_s = 0", "2:10: 0 is not a number from 1 to 86400"),
        ("share = 3", "2:9: `share` must be text, not integer `3`"),
    ] {
        let (message, _) = error_with(&format!("[upstream.git]\n{lines}\n"));
        assert!(message.starts_with(expected), "{expected}: {message}");
    }
    resolve_with(
        "[sandbox]\nprofile = \"contained\"\n[upstream.git]\nsandbox_profile = \"contained\"\n",
    )
    .unwrap();
    let error = resolve_with("upstream = 3\n").unwrap_err();
    assert!(error.message().contains("1:1: `upstream` is not a table"), "{error}");
    let error = resolve_with("[upstream]\ngit = 3\n").unwrap_err();
    assert!(error.message().contains("2:1: settings of a server are a table"), "{error}");
    let error = resolve_with("[upstreams.git]\nshare = \"session\"\n").unwrap_err();
    assert!(error.hint_text().unwrap().contains("[upstream.<id>]"), "{error}");
}

#[test]
fn a_value_of_a_variable_is_not_repeated_in_an_error() {
    let error = resolve_with("[upstream.git]\nenv = { A = \"hunter2${\" }\n").unwrap_err();
    assert!(!error.message().contains("hunter2"), "{error}");
}

#[test]
fn a_check_reports_all_problems_of_tables_and_of_the_file() {
    let operator = Operator::new();
    operator
        .configure("[upstream.gti]\n[upstream.docs]\ncwd = \".\"\napproval = \"never\"\n[mcp.a]\n");
    let flags = operator.upstreams(&json!({"git": stdio("git"), "docs": remote()}));
    let messages = |flags: &ConfigFlags| -> Vec<String> {
        let check = check_config(flags, &operator.env(&[])).unwrap();
        check.findings.iter().map(|finding| finding.to_line()).collect()
    };
    let found = messages(&flags);
    let expected = ["`gti`", "`cwd` has no effect", "need a human's approval", "no `command`"];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (line, words) in found.iter().zip(expected) {
        assert!(line.contains(words), "{words}: {line}");
    }
    // An error in the file does not hide those in the rest.
    operator.configure("[mcp.a]\n[upstream.git]\n");
    let flags = operator.upstreams(&json!({"git": {"trust": "yes"}}));
    let found = messages(&flags);
    assert!(!found.iter().any(|line| line.contains("no server")), "{found:#?}");
    assert!(found.iter().any(|line| line.contains("up.json:1: servers.git.trust")), "{found:#?}");
    assert!(found.iter().any(|line| line.contains("no `command`")), "{found:#?}");
}

#[test]
fn a_check_warns_about_missing_secrets_plain_http_and_untrusted_files() {
    let operator = Operator::new();
    operator.configure("[upstream.git]\nenv = { TOKEN = \"${secret:UPSTREAM_TEST_NONE}\" }\n");
    let flags = operator.upstreams(&json!({"git": stdio("git"), "docs": {"trust": "trusted",
        "transport": {"type": "http", "url": "http://a.example/", "headers":
            {"Authorization": "Bearer x"}}}}));
    let messages = |flags: &ConfigFlags| -> Vec<String> {
        let check = check_config(flags, &operator.env(&[])).unwrap();
        check.findings.iter().map(|one| format!("{} {}", one.to_line(), one.hint)).collect()
    };
    let found = messages(&flags).join("\n");
    for words in ["UPSTREAM_TEST_NONE", "requests to a.example are not encrypted", "looks like a"] {
        assert!(found.contains(words), "{words}: {found}");
    }
    operator.configure("");
    operator.0.file("project/codex-toolloop.mcp.json", "{}");
    let found = messages(&operator.flags()).join("\n");
    assert!(
        found.contains("are not used") && found.contains("ringfence upstream trust"),
        "{found}"
    );
}

#[test]
fn settings_of_servers_are_shown_with_their_lines() {
    let operator = Operator::new();
    operator
        .configure("[upstream.git]\nshare = \"principal\"\nenv = { API_TOKEN = \"hunter2\" }\n");
    let flags = operator.upstreams(&json!({"git": stdio("git"), "docs": remote()}));
    let listing = show_config(&flags, &operator.env(&[])).unwrap();
    let find = |key: &str| listing.keys.iter().find(|shown| shown.key == key).unwrap();
    assert_eq!(find("upstream.git.share").value, Some(json!("principal")));
    assert_eq!(find("upstream.git.share").line, Some(2));
    assert_eq!(find("upstream.git.env").value, Some(json!({"API_TOKEN": "set"})));
    assert_eq!(find("upstream.git.idle_s").origin, SettingOrigin::Default);
    assert_eq!(find("upstream.docs.env").value, None);
    assert_eq!(find("upstreams").origin, SettingOrigin::Flag("--upstreams"));
}

#[test]
fn the_schema_has_the_defaults_of_a_server() {
    let keys = schema::list_upstream_keys();
    let default = |path: &str| {
        let key = keys.iter().find(|key| key.path == path).unwrap();
        key.schema.get("default").cloned().unwrap_or_else(|| panic!("{path} has no default"))
    };
    assert_eq!(keys.len(), 17);
    assert_eq!(default("oauth_scopes"), json!([]));
    assert_eq!(default("oauth_private_addresses"), json!(false));
    assert_eq!(default("timeout_ms"), json!(120_000));
    assert_eq!(default("start_timeout_ms"), json!(30_000));
    assert_eq!(default("idle_s"), json!(300));
    assert_eq!(default("approval"), json!("auto"));
    assert_eq!(default("share"), json!("session"));
    assert_eq!(default("sandbox_profile"), json!("default"));
    let optional = ["oauth_client_id", "oauth_client_secret"];
    let others = keys.iter().filter(|key| !optional.contains(&key.path.as_str()));
    others.for_each(|key| drop(default(&key.path)));
}

#[test]
fn a_fingerprint_contains_everything_that_decides_what_a_server_is() {
    let base = git_with("").trust_fingerprint();
    assert_eq!(base, git_with("approval = \"always\"\nidle_s = 1").trust_fingerprint());
    for lines in [
        "cwd = \"src\"",
        "env = { A = \"b\" }",
        "sandbox_profile = \"none\"",
        "allow_domains = [\"a.b\"]",
        "side_effects = [\"filesystem_write\"]",
        "share = \"principal\"",
        "sampling = true",
    ] {
        assert_ne!(base, git_with(lines).trust_fingerprint(), "{lines}");
    }
    let operator = Operator::new();
    let of = |server: Value| {
        let flags = operator.upstreams(&json!({ "git": server }));
        operator.resolve(&flags).unwrap().upstreams.servers["git"].trust_fingerprint()
    };
    let transport = |more: Value| {
        let mut transport = json!({"type": "http", "url": "https://a.example/"});
        transport.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"trust": "trusted", "transport": transport})
    };
    let values = [
        of(stdio("git")),
        of(stdio("other")),
        of(json!({"trust": "untrusted", "transport": {"type": "stdio", "command": "git"}})),
        of(json!({"trust": "trusted", "transport":
            {"type": "stdio", "command": "git", "args": ["x"]}})),
        of(transport(json!({}))),
        of(transport(json!({"type": "sse"}))),
        of(transport(json!({"url": "https://b.example/"}))),
        of(transport(json!({"headers": {"X-A": "1"}}))),
        of(transport(json!({"authProviderId": "oauth"}))),
    ];
    for (index, value) in values.iter().enumerate() {
        assert!(!values[..index].contains(value), "{value}");
    }
}

/// Resolves a server `docs` with logins, with these keys in its table.
fn resolve_login(lines: &str) -> Result<Config> {
    let operator = Operator::new();
    operator.configure(&format!("[upstream.docs]\n{lines}\n"));
    let mut docs = remote();
    docs["transport"]["authProviderId"] = json!("oauth");
    operator.resolve(&operator.upstreams(&json!({"docs": docs})))
}

#[test]
fn a_server_with_logins_has_their_settings() {
    let server = |lines: &str| Arc::clone(&resolve_login(lines).unwrap().upstreams.servers["docs"]);
    let (plain, mut fingerprints) = (server(""), Vec::new());
    assert_eq!(plain.login, Some(UpstreamLogin::default()));
    let lines = [
        "oauth_client_id = \"known\"",
        "oauth_client_secret = \"${secret:DOCS}\"",
        "oauth_scopes = [\"read\", \"mcp:tools\"]",
        "oauth_private_addresses = true",
    ];
    for count in 0..=lines.len() {
        fingerprints.push(server(&lines[..count].join("\n")).trust_fingerprint().to_string());
    }
    fingerprints.dedup();
    assert_eq!(fingerprints.len(), lines.len() + 1, "each key changes what the server is");
    let login = server(&lines.join("\n")).login.clone().unwrap();
    assert_eq!(login.client_id.as_deref(), Some("known"));
    assert_eq!(login.scopes, ["read", "mcp:tools"]);
    assert!(login.allows_private_addresses);
    let refs: Vec<String> =
        server(&lines.join("\n")).secret_refs().map(|one| one.name().to_owned()).collect();
    assert_eq!(refs, ["DOCS"]);
}

#[test]
fn wrong_settings_of_logins_are_refused_at_their_line() {
    for (lines, message) in [
        ("oauth_client_id = \"\"", "2:19: that is not a valid client id"),
        ("oauth_scopes = [\"a b\"]", "2:16: \"a b\" is not a valid scope"),
        ("oauth_client_secret = \"${X}\"", "2:23: a client secret needs a client"),
        (
            "oauth_client_id = \"a\"\noauth_client_secret = \"hunter22\"",
            "3:23: a client secret must not be in the config file",
        ),
        (
            "oauth_client_id = \"a\"\noauth_client_secret = \"x${X}\"",
            "3:23: a client secret must not be in the config file",
        ),
    ] {
        let error = resolve_login(lines).unwrap_err();
        assert!(error.message().contains(message), "{lines}: {error}");
        assert!(!error.message().contains("hunter22"), "{error}");
    }
}

#[test]
fn a_server_without_logins_has_no_settings_of_them() {
    for line in [
        "oauth_client_id = \"x\"",
        "oauth_client_secret = \"${X}\"",
        "oauth_scopes = []",
        "oauth_private_addresses = false",
    ] {
        for id in ["docs", "git"] {
            let (message, hint) = error_with(&format!("[upstream.{id}]\n{line}\n"));
            let key = line.split(' ').next().unwrap();
            assert!(message.starts_with("2:") && message.contains(key), "{message}");
            assert!(
                message.contains("needs no login") && hint.contains("authProviderId"),
                "{hint}"
            );
        }
    }
}

#[test]
fn no_server_can_have_our_name() {
    let operator = Operator::new();
    for id in ["ringfence", "Ringfence", "RING-FENCE", "_ringfence_"] {
        let error = operator.resolve_error(&operator.upstreams(&json!({id: stdio("git")})));
        let message = error.message();
        assert!(message.contains(id) && message.contains("is reserved"), "{message}");
    }
    let flags = operator.upstreams(&json!({"ringfence-docs": stdio("git")}));
    assert_eq!(server_ids(&operator.resolve(&flags).unwrap()), ["ringfence-docs"]);
}
