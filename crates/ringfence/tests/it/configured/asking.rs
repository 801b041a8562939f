//! Who is asked about an entry, and what an answer is good for.

use serde_json::{Value, json};

use super::{error_of, said, with};
use crate::support::matrix::on_every_transport;
use crate::support::{Approve, Client, Options};

const ENTRIES: &str = r#"
[mcp.asks]
command = "true"

[mcp.silent]
command = "true"
requires_approval = false

[mcp.writes]
command = "true"
requires_approval = false
side_effects = ["filesystem_write"]

[mcp.net]
command = "true"
requires_approval = false
side_effects = ["network"]

[mcp.all]
command = "true"
requires_approval = false
allow_network = true

[mcp.domains]
command = "true"
requires_approval = false
allow_domains = ["example.com"]

[mcp.addresses]
command = "true"
requires_approval = false
allow_addresses = ["127.0.0.1:9"]

[mcp.bare]
command = "true"
requires_approval = false
sandbox_profile = "none"
"#;

#[test]
fn an_entry_asks_unless_it_says_not_to_and_a_risky_one_always_does() {
    let (_server, mut client) = with(ENTRIES);
    for (tool, asks) in [
        ("asks", true),
        ("silent", false),
        ("writes", true),
        ("net", true),
        ("all", true),
        ("domains", true),
        ("addresses", true),
        ("bare", true),
    ] {
        let before = client.questions.len();
        said(&client.call(tool, json!({})));
        assert_eq!(client.questions.len() - before, usize::from(asks), "{tool}");
    }
}

#[test]
fn what_the_operator_wants_of_our_tools_is_not_about_theirs() {
    let (_server, mut client) = with(&format!("[approval]\nown_tools = \"always\"\n{ENTRIES}"));
    said(&client.call("silent", json!({})));
    assert_eq!(client.questions.len(), 0);
    client.call("file.list", json!({}));
    assert_eq!(client.questions.len(), 1);
}

#[test]
fn trust_is_for_one_tool_in_one_session() {
    on_every_transport(
        |options: Options| options.config(ENTRIES),
        |server, client| {
            client.approve = Approve::Session;
            said(&client.call("writes", json!({})));
            client.approve = Approve::Decline;
            said(&client.call("writes", json!({})));
            assert_eq!(
                error_of(&client.call("net", json!({})))["kind"],
                "approval_denied",
                "another tool"
            );
            // Standard input serves one client, and its session is the process.
            if client.transport == crate::support::Transport::Stdio {
                return;
            }
            let mut other: Client = server.connect(client.version);
            other.approve = Approve::Decline;
            assert_eq!(
                error_of(&other.call("writes", json!({})))["kind"],
                "approval_denied",
                "another session"
            );
        },
    );
}

#[test]
fn a_question_shows_what_decides_and_no_secret() {
    let mut server = Options::new(crate::support::Transport::Stdio)
        .env("DEPLOY_KEY", "hunter2-hunter2")
        .config(
            r#"
[mcp.deploy]
command = "echo"
args = ["--to={where}", "--pin={pin}", "--as=${DEPLOY_KEY}"]
cwd = "sub"
description = "Puts it out there. Slowly."
side_effects = ["filesystem_write", "network"]
env = { STAGE = "blue", API_TOKEN = "${DEPLOY_KEY}", URL = "https://u:${DEPLOY_KEY}@h/" }
secret_args = ["pin"]

[mcp.deploy.input_schema]
type = "object"

[mcp.deploy.input_schema.properties]
where = { type = "string" }
pin = { type = "string" }
word = { type = "string", format = "password" }
note = { type = "object", properties = { inner = { type = "string", writeOnly = true } } }
"#,
        )
        .spawn();
    std::fs::create_dir(server.workspace().join("sub")).unwrap();
    let mut client = server.connect(crate::support::SESSIONS);
    let arguments = json!({"where": "moon", "pin": "4711-secret", "word": "sesame-open", "note": {"inner": "hush-hush-x"}});
    let message = client.call("deploy", arguments);
    assert_eq!(message["result"]["isError"], false, "{message:#}");
    let text = client.questions[0]["message"].as_str().unwrap().to_owned();
    let cwd = server.workspace().canonicalize().unwrap().join("sub").display().to_string();
    for part in [
        "Allow `deploy`?",
        "Puts it out there",
        "moon",
        "--to=moon",
        "'--pin=[not shown, 11 characters given by this call]'",
        "'--as=[secret DEPLOY_KEY]'",
        "STAGE=blue",
        "API_TOKEN (set)",
        "URL=https://u:${DEPLOY_KEY}@h/",
        "filesystem_write, network",
        "sandbox: default",
        "local in session",
        &cwd,
    ] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
    for secret in ["hunter2-hunter2", "4711-secret", "sesame-open", "hush-hush-x"] {
        assert!(!text.contains(secret), "{secret} is in:\n{text}");
        let audit = Value::from(server.audit()).to_string();
        assert!(!audit.contains(secret) && !server.log().contains(secret));
    }
}

#[test]
fn a_missing_secret_is_told_before_anybody_is_asked() {
    let (server, mut client) =
        with("[mcp.q]\ncommand = \"true\"\nenv = { A = \"${secret:NOT_THERE}\" }");
    let message = client.call("q", json!({}));
    let error = error_of(&message);
    assert_eq!(
        (error["kind"].as_str(), error["reason"].as_str()),
        (Some("unauthenticated"), Some("missing_secret"))
    );
    assert!(error["message"].as_str().unwrap().contains("NOT_THERE"));
    assert_eq!(client.questions.len(), 0);
    assert_eq!(server.events("call.start").len(), 0);
}
