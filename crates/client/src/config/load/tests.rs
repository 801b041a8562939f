//! Loading: precedence, merging across sources, and the source that an error names.

use serde_json::json;

use super::super::TransportConfig;
use super::super::scratch::Scratch;
use super::*;

/// A stdio server `shared` with this command, and a server of its own with the same name.
fn source_text(name: &str) -> String {
    let server = |command: &str| {
        let transport = json!({"type": "stdio", "command": command});
        json!({"trust": "trusted", "transport": transport})
    };
    json!({"servers": {"shared": server(name), name: server(name)}}).to_string()
}

fn read_command(loaded: &LoadedConfig, server: &str) -> Option<String> {
    match &loaded.config.servers.get(server)?.transport {
        TransportConfig::Stdio(stdio) => Some(stdio.command.clone()),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn load_error(options: &LoadOptions) -> String {
    let error = load_config(options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.hint().is_some_and(|hint| hint.ends_with('.')), "{error:?}");
    error.message().to_owned()
}

/// Every combination of the five sources.
#[test]
fn sources_take_precedence_in_order() {
    let scratch = Scratch::new();
    let cwd = scratch.dir("project/src");
    let argument = scratch.file("argument.json", source_text("argument"));
    let env_path = scratch.file("env-path.json", source_text("env-path"));
    for combination in 0..32_u8 {
        let has = |bit: u8| combination & (1 << bit) != 0;
        let discovered = scratch.path().join("project/codex-toolloop.mcp.json");
        let _ = std::fs::remove_file(&discovered);
        if has(0) {
            scratch.file("project/codex-toolloop.mcp.json", source_text("discovered"));
        }
        let options = LoadOptions {
            overrides: has(4).then(|| serde_json::from_str(&source_text("overrides")).unwrap()),
            path: has(2).then(|| argument.clone()),
            cwd: cwd.clone(),
            env: EnvSource {
                config_path: has(1).then(|| env_path.clone()),
                config_json: has(3).then(|| source_text("env-json").into()),
            },
        };
        let file = match (has(2), has(1), has(0)) {
            (true, _, _) => Some((&argument, FileOrigin::Argument, "argument")),
            (_, true, _) => Some((&env_path, FileOrigin::EnvironmentPath, "env-path")),
            (_, _, true) => Some((&discovered, FileOrigin::Discovered, "discovered")),
            _ => None,
        };
        let file_origin =
            file.map(|(path, found, _)| ConfigOrigin::File { path: path.clone(), found });
        let expected: Vec<(ConfigOrigin, &str)> =
            (has(4).then_some((ConfigOrigin::Overrides, "overrides")).into_iter())
                .chain(has(3).then_some((ConfigOrigin::EnvironmentJson, "env-json")))
                .chain(file_origin.zip(file.map(|(_, _, name)| name)))
                .collect();

        let loaded = load_config(&options).unwrap();
        let origins: Vec<ConfigOrigin> =
            expected.iter().map(|(origin, _)| origin.clone()).collect();
        assert_eq!(loaded.sources, origins, "{combination:05b}");
        assert_eq!(loaded.path.as_ref(), file.map(|(path, _, _)| path), "{combination:05b}");
        let winner = expected.first().map(|(_, name)| (*name).to_owned());
        assert_eq!(read_command(&loaded, "shared"), winner, "{combination:05b}");
        let mut servers: Vec<&str> = expected.iter().map(|(_, name)| *name).collect();
        servers.extend(winner.is_some().then_some("shared"));
        servers.sort_unstable();
        assert!(loaded.config.servers.keys().eq(servers), "{combination:05b}");
    }
}

#[test]
fn empty_variables_are_ignored() {
    let scratch = Scratch::new();
    let discovered = scratch.file("codex-toolloop.mcp.json", source_text("discovered"));
    let env = EnvSource { config_path: Some("".into()), config_json: Some("".into()) };
    let loaded = load_config(&LoadOptions { env, ..LoadOptions::new(scratch.path()) }).unwrap();
    let found = FileOrigin::Discovered;
    assert_eq!(loaded.sources, [ConfigOrigin::File { path: discovered, found }]);
}

#[test]
fn relative_paths_start_at_the_working_directory() {
    let scratch = Scratch::new();
    let file = scratch.file("a/custom.json", source_text("x"));
    let by_argument =
        LoadOptions { path: Some("custom.json".into()), ..LoadOptions::new(scratch.dir("a")) };
    let env = EnvSource { config_path: Some("a/custom.json".into()), config_json: None };
    let by_variable = LoadOptions { env, ..LoadOptions::new(scratch.path()) };
    for options in [by_argument, by_variable] {
        assert_eq!(load_config(&options).unwrap().path.as_ref(), Some(&file));
    }
}

#[test]
fn a_given_path_that_does_not_exist_is_an_error() {
    let scratch = Scratch::new();
    // Neither of the other files may take its place.
    scratch.file("codex-toolloop.mcp.json", "{}");
    let existing = scratch.file("other.json", "{}");
    let missing = scratch.path().join("missing.json");
    let env = EnvSource { config_path: Some(existing), config_json: None };
    let options =
        LoadOptions { path: Some(missing.clone()), env, ..LoadOptions::new(scratch.path()) };
    assert_eq!(
        load_error(&options),
        format!("{}: the file does not exist (path given by the caller)", missing.display())
    );
    let env = EnvSource { config_path: Some(missing.clone()), config_json: None };
    let error = load_config(&LoadOptions { env, ..LoadOptions::new(scratch.path()) }).unwrap_err();
    assert_eq!(
        error.message(),
        format!(
            "{}: the file does not exist (path given by CODEX_TOOLLOOP_MCP_CONFIG_PATH)",
            missing.display()
        )
    );
    assert_eq!(error.hint(), Some("Correct or unset CODEX_TOOLLOOP_MCP_CONFIG_PATH."));
}

#[test]
fn a_directory_is_not_read() {
    let scratch = Scratch::new();
    let options = LoadOptions { path: Some(".".into()), ..LoadOptions::new(scratch.path()) };
    let message = load_error(&options);
    assert!(message.ends_with("it is not a regular file"), "{message}");
}

#[test]
fn a_file_larger_than_one_mebibyte_is_rejected_even_if_it_is_not_text() {
    let scratch = Scratch::new();
    for bytes in [vec![b' '; MAX_CONFIG_BYTES + 1], vec![0xff; MAX_CONFIG_BYTES * 2]] {
        let file = scratch.file("codex-toolloop.mcp.json", bytes);
        assert_eq!(
            load_error(&LoadOptions::new(scratch.path())),
            format!("{}: the configuration is larger than 1 MiB", file.display())
        );
    }
}

#[test]
fn text_that_is_not_utf8_is_rejected() {
    use std::os::unix::ffi::OsStringExt;

    let scratch = Scratch::new();
    let file = scratch.file("codex-toolloop.mcp.json", b"{\"\xff\": 1}");
    let message = format!("{}: this is not UTF-8 text", file.display());
    assert_eq!(load_error(&LoadOptions::new(scratch.path())), message);

    let json = Some(OsString::from_vec(b"{\"\xff\": 1}".to_vec()));
    let env = EnvSource { config_path: None, config_json: json };
    assert_eq!(
        load_error(&LoadOptions { env, ..LoadOptions::new("/nonexistent") }),
        "CODEX_TOOLLOOP_MCP_CONFIG_JSON: this is not UTF-8 text"
    );
}

fn env_json(text: &str) -> EnvSource {
    EnvSource { config_path: None, config_json: Some(text.into()) }
}

const HTTP_SERVER: &str = r#"{
  "servers": {
    "repo": {
      "trust": "untrusted",
      "transport": {
        "type": "http",
        "url": "https://example.com/mcp",
        "headers": { "X-A": "file", "X-B": "file" }
      }
    }
  },
  "bundles": {
    "read": { "serverId": "repo", "mode": "direct", "allowTools": ["a", "b"] }
  }
}"#;

#[test]
fn partial_sources_are_merged_before_validation() {
    let scratch = Scratch::new();
    scratch.file("codex-toolloop.mcp.json", HTTP_SERVER);
    let options = LoadOptions {
        env: env_json(r#"{"servers": {"repo": {"transport": {"headers": {"X-A": "env"}}}}}"#),
        overrides: Some(json!({
            "servers": {"repo": {"trust": "trusted"}},
            "bundles": {"read": {"allowTools": ["c"]}},
        })),
        ..LoadOptions::new(scratch.path())
    };
    let config = load_config(&options).unwrap().config;
    let server = &config.servers["repo"];
    assert_eq!(server.trust, super::super::TrustLevel::Trusted);
    let remote = server.transport.as_remote().unwrap();
    assert_eq!(remote.url.as_str(), "https://example.com/mcp");
    let header = |name: &str| remote.headers[name].as_str();
    assert_eq!([header("X-A"), header("X-B")], ["env", "file"]);
    let allowed = ["a", "b", "c"].map(|tool| config.bundles["read"].allows(tool));
    assert_eq!(allowed, [false, false, true]);
}

#[test]
fn a_changed_transport_type_replaces_the_whole_transport() {
    let scratch = Scratch::new();
    scratch.file("codex-toolloop.mcp.json", HTTP_SERVER);
    let transport = json!({"type": "stdio", "command": "serve"});
    let options = LoadOptions {
        overrides: Some(json!({"servers": {"repo": {"transport": transport}}})),
        ..LoadOptions::new(scratch.path())
    };
    assert_eq!(read_command(&load_config(&options).unwrap(), "repo").as_deref(), Some("serve"));
}

#[test]
fn an_error_names_the_source_of_the_offending_value() {
    let scratch = Scratch::new();
    let text = HTTP_SERVER.replace("https://example.com/mcp", "ftp://example.com");
    let file = scratch.file("codex-toolloop.mcp.json", text);
    let options = LoadOptions {
        env: env_json("{\n\"servers\": {\"repo\": {\"trust\": 1}}}"),
        overrides: Some(json!({"bundles": {"read": {"mode": "fast"}}})),
        ..LoadOptions::new(scratch.path())
    };
    let message = load_error(&options);
    let lines: Vec<&str> = message.lines().collect();
    let starts = [
        format!("{}:7: servers.repo.transport.url: this URL must start", file.display()),
        "CODEX_TOOLLOOP_MCP_CONFIG_JSON: servers.repo.trust: this must be text".to_owned(),
        "overrides: bundles.read.mode: \"fast\" is not a valid value".to_owned(),
    ];
    assert_eq!(lines.len(), starts.len(), "{message}");
    for (line, start) in lines.iter().zip(&starts) {
        assert!(line.starts_with(start), "{message}");
    }
}

#[test]
fn a_key_that_no_source_sets_is_reported_in_the_file() {
    let scratch = Scratch::new();
    let text = "{\"servers\":\n{\"repo\": {\"transport\": {\"type\": \"http\"}}}}";
    let file = scratch.file("codex-toolloop.mcp.json", text);
    let server = json!({"trust": "trusted", "transport": {"type": "http"}});
    let options = LoadOptions {
        overrides: Some(json!({"servers": {"repo": server}})),
        ..LoadOptions::new(scratch.path())
    };
    assert_eq!(
        load_error(&options),
        format!("{}:2: servers.repo.transport.url: this key is missing", file.display())
    );
}

#[test]
fn an_overridden_value_is_not_an_error() {
    let scratch = Scratch::new();
    scratch.file("codex-toolloop.mcp.json", HTTP_SERVER.replace("https:", "ftp:"));
    let transport = json!({"url": "https://example.org"});
    let options = LoadOptions {
        overrides: Some(json!({"servers": {"repo": {"transport": transport}}})),
        ..LoadOptions::new(scratch.path())
    };
    assert!(load_config(&options).is_ok());
}

#[test]
fn similar_ids_in_two_sources_are_an_error_in_the_later_one() {
    let scratch = Scratch::new();
    let file = scratch.file("codex-toolloop.mcp.json", source_text("my_server"));
    let env = env_json(&source_text("My-Server"));
    let message = load_error(&LoadOptions { env, ..LoadOptions::new(scratch.path()) });
    assert!(
        message.starts_with("CODEX_TOOLLOOP_MCP_CONFIG_JSON: servers.My-Server: this id differs"),
        "{message} {file:?}"
    );
}

#[test]
fn a_syntax_error_hides_missing_keys_but_no_other_syntax_error() {
    let scratch = Scratch::new();
    let file = scratch.file("codex-toolloop.mcp.json", "{\n\n,}");
    let options = LoadOptions {
        env: env_json("{"),
        overrides: Some(json!({"servers": {"repo": {"trust": "trusted"}}})),
        ..LoadOptions::new(scratch.path())
    };
    let message = load_error(&options);
    let lines: Vec<&str> = message.lines().collect();
    assert_eq!(lines.len(), 2, "{message}");
    let start = format!("{}:3: this is not valid JSON: ", file.display());
    assert!(lines[0].starts_with(&start), "{message}");
    assert!(lines[1].starts_with("CODEX_TOOLLOOP_MCP_CONFIG_JSON: this is not"), "{message}");
}

#[test]
fn the_working_directory_of_a_server_starts_at_its_source() {
    let scratch = Scratch::new();
    let server = |cwd: &str| {
        let transport = json!({"type": "stdio", "command": "x", "cwd": cwd});
        json!({"trust": "trusted", "transport": transport})
    };
    let text = json!({"servers": {"file": server("sub"), "absolute": server("/srv")}});
    scratch.file(".codex-toolloop/mcp.json", text.to_string());
    let options = LoadOptions {
        env: env_json(&json!({"servers": {"env": server("sub")}}).to_string()),
        overrides: Some(json!({"servers": {"overrides": server("sub")}})),
        ..LoadOptions::new(scratch.dir("project"))
    };
    let config = load_config(&options).unwrap().config;
    for (id, expected) in [
        ("file", scratch.path().join(".codex-toolloop/sub")),
        ("absolute", PathBuf::from("/srv")),
        ("env", scratch.path().join("project/sub")),
        ("overrides", scratch.path().join("project/sub")),
    ] {
        let TransportConfig::Stdio(stdio) = &config.servers[id].transport else { panic!("{id}") };
        assert_eq!(stdio.cwd, Some(expected), "{id}");
    }
}

#[test]
fn an_empty_working_directory_is_an_error() {
    let message = load_error(&LoadOptions::new(""));
    assert!(message.starts_with("cannot resolve the working directory"), "{message}");
}

#[test]
fn debug_output_of_the_options_shows_no_value() {
    let options = LoadOptions {
        env: env_json("hunter2"),
        overrides: Some(json!({"a": "hunter2"})),
        ..LoadOptions::new("/work")
    };
    let shown = format!("{options:?}");
    assert!(shown.contains("/work") && !shown.contains("hunter2"), "{shown}");
}

#[test]
fn contents_that_were_read_are_used_and_nothing_else_is() {
    let scratch = Scratch::new();
    let path = scratch.file("a/codex-toolloop.mcp.json", source_text("changed-later"));
    let file = ConfigContents {
        path: path.clone(),
        found: FileOrigin::Discovered,
        bytes: source_text("as-read").into_bytes(),
    };
    let cwd = scratch.dir("a");
    let json = OsString::from(source_text("env-json"));
    let loaded = load_contents(Some(&file), Some(&json), &cwd).unwrap();
    assert_eq!(read_command(&loaded, "as-read").as_deref(), Some("as-read"));
    assert_eq!(read_command(&loaded, "shared").as_deref(), Some("env-json"));
    assert_eq!(read_command(&loaded, "changed-later"), None);
    assert_eq!(loaded.path, Some(path));
    // Without contents, no file is searched for.
    let loaded = load_contents(None, None, &cwd).unwrap();
    assert_eq!((loaded.config, loaded.path), (ClientConfig::default(), None));
    let file = ConfigContents { bytes: vec![b' '; MAX_CONFIG_BYTES + 1], ..file };
    let error = load_contents(Some(&file), None, &cwd).unwrap_err();
    assert!(error.message().contains("codex-toolloop.mcp.json"), "{error}");
    assert!(!format!("{file:?}").contains("bytes"), "{file:?}");
}

#[test]
fn keys_have_the_location_of_the_source_that_set_them() {
    let scratch = Scratch::new();
    let path = scratch.path().join("mcp.json");
    let text = "{\"servers\": {\n\"git\": {\"trust\": \"trusted\",\n\"transport\": \
        {\"type\": \"stdio\", \"command\": \"git\",\n\"env\": {\"A\": \"1\",\n\"B.C\": \"2\"}}}}}";
    let found = FileOrigin::Argument;
    let file = ConfigContents { path: path.clone(), found, bytes: text.into() };
    let json =
        OsString::from(r#"{"servers": {"git": {"transport": {"env": {"A": "3", "D": "4"}}}}}"#);
    let locations = load_contents(Some(&file), Some(&json), scratch.path()).unwrap().locations;
    let env = |name| ["servers", "git", "transport", "env", name];
    let file_prefix = format!("{}:5: servers.git.transport.env.\"B.C\"", path.display());
    assert_eq!(locations.describe_key(&env("B.C")), file_prefix);
    assert_eq!(locations.find_origin(&env("B.C")), Some(&ConfigOrigin::File { path, found }));
    for name in ["A", "D"] {
        let expected = format!("{CONFIG_JSON_VARIABLE}: servers.git.transport.env.{name}");
        assert_eq!(locations.describe_key(&env(name)), expected);
        assert_eq!(locations.find_origin(&env(name)), Some(&ConfigOrigin::EnvironmentJson));
    }
    assert_eq!(locations.describe_key(&["bundles"]), "bundles");
    assert_eq!(locations.find_origin(&["bundles"]), None);
}
