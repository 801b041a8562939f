//! One bad text for each kind of mistake, and what the error says about it.

use super::super::TransportConfig;
use super::*;
use crate::ErrorKind;

/// Server and bundle that are valid, to be broken by each test.
const SERVER: &str =
    r#""trust": "trusted", "transport": {"type": "http", "url": "https://example.com/mcp"}"#;

#[track_caller]
fn parse_lines(text: &str) -> Vec<String> {
    match parse_config(text) {
        Ok(config) => panic!("{text} is accepted: {config:?}"),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
            let hint = error.hint().unwrap_or_default();
            assert!(hint.ends_with('.') || hint.ends_with("..."), "{error:?}");
            let lines = error.message().lines().map(str::to_owned);
            match error.message().lines().count() {
                // So that a table row can expect words of the hint as well.
                1 => lines.map(|line| format!("{line}. {hint}")).collect(),
                _ => lines.collect(),
            }
        }
    }
}

/// Asserts that a text has exactly one problem, at this path and with these words.
#[track_caller]
fn assert_problem(text: &str, path: &str, words: &[&str]) {
    let lines = parse_lines(text);
    let start = if path.is_empty() { "line 1: ".to_owned() } else { format!("line 1: {path}: ") };
    assert!(lines.len() == 1 && lines[0].starts_with(&start), "{text}\n{lines:#?}");
    for word in words {
        assert!(lines[0].contains(word), "`{word}` is missing\n{text}\n{lines:#?}");
    }
}

fn with_server(keys: &str) -> String {
    format!(r#"{{"servers": {{"repo": {{{keys}}}}}}}"#)
}

fn with_transport(keys: &str) -> String {
    with_server(&format!(r#""trust": "trusted", "transport": {{{keys}}}"#))
}

fn with_bundle(trust: &str, keys: &str) -> String {
    let server = SERVER.replace("\"trusted\"", &format!("{trust:?}"));
    format!(r#"{{"servers": {{"repo": {{{server}}}}}, "bundles": {{"read": {{{keys}}}}}}}"#)
}

#[test]
fn the_example_of_the_contract_is_accepted() {
    let config = parse_config(
        r#"{
          "servers": {
            "repo": {
              "trust": "trusted",
              "transport": { "type": "http", "url": "http://localhost:4010/mcp" }
            }
          },
          "bundles": {
            "repoRead": {
              "serverId": "repo", "mode": "direct", "allowTools": ["readFile", "search"]
            }
          }
        }"#,
    )
    .unwrap();
    let server = &config.servers["repo"];
    assert_eq!(server.trust, TrustLevel::Trusted);
    let remote = server.transport.as_remote().unwrap();
    assert_eq!(remote.url.as_str(), "http://localhost:4010/mcp");
    assert!(remote.headers.is_empty() && remote.auth_provider_id.is_none());
    let bundle = &config.bundles["repoRead"];
    assert_eq!((bundle.server_id.as_str(), bundle.mode), ("repo", BundleMode::Direct));
    assert!(bundle.allows("search") && !bundle.allows("write") && bundle.deny_tools.is_empty());
}

#[test]
fn every_key_is_read() {
    let config = parse_config(
        r#"{"servers": {
            "a": {"trust": "untrusted", "transport": {"type": "sse", "url": "https://a.example/",
                "headers": {"X-Key": "v"}, "authProviderId": "corp"}},
            "b": {"trust": "trusted", "transport": {"type": "stdio", "command": "serve",
                "args": ["-v", ""], "cwd": "sub", "env": {"A": "", "B": "x=y"}}}
        }, "bundles": {
            "m": {"serverId": "a", "mode": "meta", "allowTools": ["x", "y"], "denyTools": ["y"]}
        }}"#,
    )
    .unwrap();
    let TransportConfig::Sse(remote) = &config.servers["a"].transport else { panic!("{config:?}") };
    assert_eq!(config.servers["a"].trust, TrustLevel::Untrusted);
    assert_eq!(remote.headers["X-Key"], "v");
    assert_eq!(remote.auth_provider_id.as_deref(), Some("corp"));
    let TransportConfig::Stdio(stdio) = &config.servers["b"].transport else {
        panic!("{config:?}")
    };
    assert_eq!(
        (stdio.command.as_str(), stdio.args.as_slice()),
        ("serve", &["-v", ""].map(str::to_owned)[..])
    );
    assert_eq!(stdio.cwd.as_deref(), Some(std::path::Path::new("sub")));
    assert_eq!(stdio.env["B"], "x=y");
    let bundle = &config.bundles["m"];
    assert_eq!(bundle.mode, BundleMode::Meta);
    assert!(bundle.allows("x") && !bundle.allows("y"));
}

#[test]
fn an_empty_object_is_an_empty_configuration() {
    assert_eq!(parse_config("{}").unwrap(), ClientConfig::default());
}

#[test]
fn unknown_keys_are_rejected_with_the_valid_ones() {
    for (text, path, words) in [
        (r#"{"server": {}}"#.to_owned(), "server", "Valid keys: servers, bundles."),
        (r#"{"a.b": 1}"#.to_owned(), "\"a.b\"", "Valid keys: servers, bundles."),
        (
            with_server(&format!(r#"{SERVER}, "Trust": 1"#)),
            "servers.repo.Trust",
            "Valid keys: trust, transport.",
        ),
        (
            with_transport(r#""type": "http", "url": "https://a", "command": "x""#),
            "servers.repo.transport.command",
            "Valid keys: type, url, headers, authProviderId.",
        ),
        (
            with_transport(r#""type": "stdio", "command": "x", "url": "https://a""#),
            "servers.repo.transport.url",
            "Valid keys: type, command, args, cwd, env.",
        ),
        (
            with_bundle("trusted", r#""serverId": "repo", "mode": "meta", "denytools": []"#),
            "bundles.read.denytools",
            "Valid keys: serverId, mode, allowTools, denyTools.",
        ),
    ] {
        assert_problem(&text, path, &["there is no such key", words]);
    }
}

#[test]
fn values_of_the_wrong_type_are_named_in_plain_words() {
    let http = |keys: &str| with_transport(&format!(r#""type": "http", {keys}"#));
    let stdio = |keys: &str| with_transport(&format!(r#""type": "stdio", {keys}"#));
    let bundle = |keys: &str| with_bundle("trusted", keys);
    for (text, path, words) in [
        ("[]".to_owned(), "", "the configuration must be an object, not a list"),
        (r#"{"servers": []}"#.to_owned(), "servers", "this must be an object, not a list"),
        (r#"{"bundles": "x"}"#.to_owned(), "bundles", "this must be an object, not text"),
        (r#"{"servers": {"a": 1}}"#.to_owned(), "servers.a", "an object, not a number"),
        (r#"{"bundles": {"a": null}}"#.to_owned(), "bundles.a", "an object, not null"),
        (
            with_server(r#""trust": "trusted", "transport": "http""#),
            "servers.repo.transport",
            "an object, not text",
        ),
        (with_transport(r#""type": 1"#), "servers.repo.transport.type", "text, not a number"),
        (http(r#""url": ["x"]"#), "servers.repo.transport.url", "text, not a list"),
        (
            http(r#""url": "https://a", "headers": [1]"#),
            "servers.repo.transport.headers",
            "an object, not a list",
        ),
        (
            http(r#""url": "https://a", "headers": {"X-A": true}"#),
            "servers.repo.transport.headers.X-A",
            "text, not a boolean",
        ),
        (
            http(r#""url": "https://a", "authProviderId": {}"#),
            "servers.repo.transport.authProviderId",
            "text, not an object",
        ),
        (stdio(r#""command": false"#), "servers.repo.transport.command", "text, not a boolean"),
        (
            stdio(r#""command": "x", "args": "-v""#),
            "servers.repo.transport.args",
            "a list, not text",
        ),
        (
            stdio(r#""command": "x", "args": ["a", 2]"#),
            "servers.repo.transport.args[1]",
            "text, not a number",
        ),
        (
            stdio(r#""command": "x", "cwd": null"#),
            "servers.repo.transport.cwd",
            "text, not null. Give it a value, or remove the key.",
        ),
        (
            stdio(r#""command": "x", "env": {"A": 1.5}"#),
            "servers.repo.transport.env.A",
            "text, not a number",
        ),
        (bundle(r#""serverId": 1, "mode": "meta""#), "bundles.read.serverId", "text, not a number"),
        (
            bundle(r#""serverId": "repo", "mode": "meta", "allowTools": {}"#),
            "bundles.read.allowTools",
            "a list, not an object",
        ),
        (
            bundle(r#""serverId": "repo", "mode": "meta", "denyTools": [[]]"#),
            "bundles.read.denyTools[0]",
            "text, not a list",
        ),
    ] {
        assert_problem(&text, path, &[words]);
    }
}

#[test]
fn missing_keys_are_named() {
    for (text, path) in [
        (with_server(r#""transport": {"type": "stdio", "command": "x"}"#), "servers.repo.trust"),
        (with_server(r#""trust": "trusted""#), "servers.repo.transport"),
        (with_transport(""), "servers.repo.transport.type"),
        (with_transport(r#""type": "http""#), "servers.repo.transport.url"),
        (with_transport(r#""type": "sse""#), "servers.repo.transport.url"),
        (with_transport(r#""type": "stdio""#), "servers.repo.transport.command"),
        (with_bundle("trusted", r#""mode": "meta""#), "bundles.read.serverId"),
        (with_bundle("trusted", r#""serverId": "repo""#), "bundles.read.mode"),
    ] {
        assert_problem(&text, path, &["this key is missing"]);
    }
}

#[test]
fn unknown_words_are_rejected_with_the_valid_ones() {
    for (text, path, words) in [
        (
            with_server(&SERVER.replace("trusted", "Trusted")),
            "servers.repo.trust",
            ["\"Trusted\" is not", "Valid values: trusted, untrusted."],
        ),
        (
            with_transport(r#""type": "ws", "url": 1"#),
            "servers.repo.transport.type",
            ["\"ws\" is not", "Valid values: http, sse, stdio."],
        ),
        (
            with_bundle("trusted", r#""serverId": "repo", "mode": """#),
            "bundles.read.mode",
            ["\"\" is not", "Valid values: direct, meta."],
        ),
    ] {
        assert_problem(&text, path, &words);
    }
}

#[test]
fn duplicate_keys_are_rejected() {
    for (text, path) in [
        (r#"{"servers": {}, "servers": {}}"#.to_owned(), "servers"),
        (format!(r#"{{"servers": {{"a": {{{SERVER}}}, "a": {{{SERVER}}}}}}}"#), "servers.a"),
        (with_server(&format!(r#"{SERVER}, "trust": "trusted""#)), "servers.repo.trust"),
        (
            with_transport(r#""type": "stdio", "command": "x", "env": {"A": "1", "A": "1"}"#),
            "servers.repo.transport.env.A",
        ),
    ] {
        assert_problem(&text, path, &["this key is set twice"]);
    }
}

#[test]
fn urls_that_are_not_plain_are_rejected_and_not_shown() {
    for (url, words) in [
        ("hunter2", "not a valid URL"),
        ("", "not a valid URL"),
        ("https://", "not a valid URL"),
        ("ftp://hunter2/", "must start with http:// or https://"),
        ("file:///hunter2", "must start with http:// or https://"),
        ("https://hunter2@example.com/", "user name or password"),
        ("https://:hunter2@example.com/", "user name or password"),
        ("https://example.com/#hunter2", "fragment"),
        ("https://example.com/#", "fragment"),
        (" https://example.com/", "white space"),
        ("https://exa\\nmple.com/", "white space"),
    ] {
        for transport in ["http", "sse"] {
            let text = with_transport(&format!(r#""type": "{transport}", "url": "{url}""#));
            assert_problem(&text, "servers.repo.transport.url", &[words]);
            assert!(!parse_lines(&text).concat().contains("hunter2"), "{url}");
        }
    }
}

#[test]
fn headers_that_http_does_not_allow_are_rejected_and_not_shown() {
    let path = "servers.repo.transport.headers";
    for (header, path, words) in [
        (r#""": "hunter2""#, format!("{path}.\"\""), "not a valid header name"),
        (r#""X A": "hunter2""#, format!("{path}.\"X A\""), "not a valid header name"),
        (r#""X:A": "hunter2""#, format!("{path}.\"X:A\""), "not a valid header name"),
        (r#""X-A": "hunter2\r\nX-B: 1""#, format!("{path}.X-A"), "not a valid header value"),
        (r#""X-A": "hunter2\u0000""#, format!("{path}.X-A"), "not a valid header value"),
        (r#""X-A": "hunter2", "x-a": "hunter2""#, format!("{path}.x-a"), "in a different case"),
    ] {
        let keys = format!(r#""type": "http", "url": "https://a", "headers": {{{header}}}"#);
        let text = with_transport(&keys);
        assert_problem(&text, &path, &[words]);
        assert!(!parse_lines(&text).concat().contains("hunter2"), "{header}");
    }
}

#[test]
fn headers_of_the_protocol_are_rejected_in_any_case() {
    for name in [
        "content-type",
        "accept",
        "host",
        "content-length",
        "mcp-session-id",
        "mcp-protocol-version",
        "mcp-method",
        "mcp-name",
        "transfer-encoding",
        "connection",
        "Content-Type",
        "MCP-Session-Id",
        "HOST",
    ] {
        let keys = format!(r#""type": "sse", "url": "https://a", "headers": {{"{name}": "x"}}"#);
        let path = format!("servers.repo.transport.headers.{name}");
        assert_problem(&with_transport(&keys), &path, &["belongs to the protocol"]);
    }
}

#[test]
fn commands_that_cannot_be_started_are_rejected_and_values_not_shown() {
    let path = |key: &str| format!("servers.repo.transport.{key}");
    for (keys, path, words) in [
        (r#""command": """#, path("command"), "must not be empty"),
        (r#""command": "a\u0000hunter2""#, path("command"), "NUL"),
        (r#""command": "x", "args": ["a", "\u0000hunter2"]"#, path("args[1]"), "NUL"),
        (r#""command": "x", "cwd": """#, path("cwd"), "must not be empty"),
        (r#""command": "x", "cwd": "/a\u0000""#, path("cwd"), "NUL"),
        (r#""command": "x", "env": {"A": "hunter2\u0000"}"#, path("env.A"), "NUL"),
        (r#""command": "x", "env": {"": "hunter2"}"#, path("env.\"\""), "variable name"),
        (r#""command": "x", "env": {"A=B": "hunter2"}"#, path("env.\"A=B\""), "variable name"),
        (r#""command": "x", "env": {"A\u0000": ""}"#, path("env.\"A\\0\""), "variable name"),
    ] {
        let text = with_transport(&format!(r#""type": "stdio", {keys}"#));
        assert_problem(&text, &path, &[words]);
        assert!(!parse_lines(&text).concat().contains("hunter2"), "{keys}");
    }
}

#[test]
fn an_empty_auth_provider_id_is_rejected() {
    let text = with_transport(r#""type": "http", "url": "https://a", "authProviderId": """#);
    assert_problem(&text, "servers.repo.transport.authProviderId", &["must not be empty"]);
}

#[test]
fn server_ids_are_limited() {
    let parse_id = |id: &str| {
        let id = serde_json::to_string(id).unwrap();
        parse_config(&format!(r#"{{"servers": {{{id}: {{{SERVER}}}}}}}"#))
    };
    for id in ["a", "A-b_9", "-", "_", &"x".repeat(32)] {
        assert!(parse_id(id).is_ok(), "{id}");
    }
    for (id, words) in [
        ("", "not a valid server id"),
        ("a.b", "not a valid server id"),
        ("a b", "not a valid server id"),
        ("ä", "not a valid server id"),
        (&"x".repeat(33), "not a valid server id"),
        ("a__b", "must not contain `__`"),
    ] {
        let error = parse_id(id).unwrap_err();
        assert!(error.message().contains(words), "{id}: {error}");
        assert_eq!(error.message().lines().count(), 1, "{id}: {error}");
    }
}

#[test]
fn server_ids_that_look_the_same_are_rejected() {
    for (one, two) in [("repo", "Repo"), ("a-b", "a_b"), ("A-B", "a_b")] {
        let text =
            format!(r#"{{"servers": {{"{two}": {{{SERVER}}},{}"{one}": {{{SERVER}}}}}}}"#, "\n");
        let lines = parse_lines(&text);
        // The one that was written last is reported, whatever the order of the names.
        let start = format!("line 2: servers.{one}: this id differs from `servers.{two}` only in");
        assert!(lines.len() == 1 && lines[0].starts_with(&start), "{lines:?}");
    }
}

#[test]
fn bundle_ids_are_limited() {
    let parse_id = |id: &str| {
        let keys = r#""serverId": "repo", "mode": "meta""#;
        parse_config(&with_bundle("trusted", keys).replace("\"read\"", &format!("{id:?}")))
    };
    for id in ["a", "A.b_9-c", "a__b", &"x".repeat(64)] {
        assert!(parse_id(id).is_ok(), "{id}");
    }
    for id in ["", "a/b", "ä", &"x".repeat(65)] {
        let error = parse_id(id).unwrap_err();
        assert!(error.message().contains("not a valid bundle id"), "{id}: {error}");
    }
}

#[test]
fn a_bundle_must_name_a_configured_server() {
    let text = with_bundle("trusted", r#""serverId": "Repo", "mode": "meta""#);
    let words = ["there is no server \"Repo\"", "Configured servers: repo."];
    assert_problem(&text, "bundles.read.serverId", &words);
}

#[test]
fn a_bundle_of_a_broken_server_is_not_reported() {
    let text = with_bundle("secret", r#""serverId": "repo", "mode": "meta""#);
    assert_problem(&text, "servers.repo.trust", &["\"secret\" is not a valid value"]);
    let text = r#"{"servers": 1, "bundles": {"b": {"serverId": "a", "mode": "meta"}}}"#;
    assert_problem(text, "servers", &["must be an object"]);
}

#[test]
fn an_allow_list_must_not_be_empty() {
    for trust in ["trusted", "untrusted"] {
        let text = with_bundle(trust, r#""serverId": "repo", "mode": "meta", "allowTools": []"#);
        assert_problem(&text, "bundles.read.allowTools", &["must not be empty"]);
    }
}

#[test]
fn tool_names_must_not_be_empty() {
    for key in ["allowTools", "denyTools"] {
        let keys = format!(r#""serverId": "repo", "mode": "meta", "{key}": ["a", ""]"#);
        let path = format!("bundles.read.{key}[1]");
        assert_problem(&with_bundle("trusted", &keys), &path, &["must not be empty"]);
    }
}

#[test]
fn a_bundle_of_an_untrusted_server_needs_an_allow_list() {
    for deny in ["", r#", "denyTools": ["x"]"#] {
        let keys = format!(r#""serverId": "repo", "mode": "direct"{deny}"#);
        let words = ["this key is missing", "\"repo\" is untrusted"];
        assert_problem(&with_bundle("untrusted", &keys), "bundles.read.allowTools", &words);
        assert!(parse_config(&with_bundle("trusted", &keys)).is_ok());
    }
}

#[test]
fn all_problems_of_a_text_are_found_in_one_pass() {
    let lines = parse_lines(
        r#"{
  "servers": {
    "one": { "trust": 1, "transport": { "type": "http", "url": "x",
      "headers": { "Host": "a", "X A": "b" } } },
    "two": { "transport": { "type": "stdio",
      "args": [1, "a", 2], "env": { "=": "" } } }
  },
  "bundles": {
    "b": { "serverId": "three",
      "allowTools": [] }
  },
  "extra": true
}"#,
    );
    let found: Vec<&str> = lines.iter().filter_map(|line| line.split(": ").nth(1)).collect();
    assert_eq!(
        found,
        [
            "servers.one.trust",
            "servers.one.transport.url",
            "servers.one.transport.headers.Host",
            "servers.one.transport.headers.\"X A\"",
            "servers.two.trust",
            "servers.two.transport.command",
            "servers.two.transport.args[0]",
            "servers.two.transport.args[2]",
            "servers.two.transport.env.\"=\"",
            "bundles.b.mode",
            "bundles.b.serverId",
            "bundles.b.allowTools",
            "extra",
        ]
    );
    let numbers = lines.iter().filter_map(|line| line.split(": ").next());
    let expected = [3, 3, 4, 4, 5, 5, 6, 6, 6, 9, 9, 10, 12].map(|line| format!("line {line}"));
    assert!(numbers.eq(expected), "{lines:#?}");
}
