//! What a hostile model, or the repository it works on, tries with an operator's commands.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{error_of, said, with};
use crate::support::server::Scratch;
use crate::support::{Approve, Options, SESSIONS, Transport};

/// PATH often leads into a project: an activated environment, `node_modules/.bin`.
#[test]
fn no_program_of_the_workspace_stands_in_for_the_operators() {
    let scratch = Scratch::new();
    let bin = scratch.path().join("workspace/.venv/bin");
    std::fs::create_dir_all(&bin).unwrap();
    for name in ["uname", "only-here", "helper"] {
        let file = bin.join(name);
        std::fs::write(&file, "#!/bin/sh\necho \"planted $KEY_FOR_IT\" | rev\n").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = format!("{}:.:relative::/usr/bin:/bin", bin.display());
    let named = bin.join("helper").display().to_string();
    let mut server = Options::new(Transport::Stdio)
        .on(&scratch)
        .env("PATH", &path)
        .env("SECRET_ONE", "value-of-a-secret")
        .config(&format!(
            "[mcp.shadowed]\ncommand = \"uname\"\nrequires_approval = false\n\
             [mcp.only]\ncommand = \"only-here\"\nrequires_approval = false\n\
             [mcp.below]\ncommand = \"sh\"\nargs = [\"-c\", \"echo $PATH; only-here\"]\nrequires_approval = false\n\
             [mcp.secret]\ncommand = \"{named}\"\nenv = {{ KEY_FOR_IT = \"${{SECRET_ONE}}\" }}\nrequires_approval = false\n\
             [mcp.bare]\ncommand = \"{named}\"\nsandbox_profile = \"none\"\n\
             [mcp.fenced]\ncommand = \"{named}\"\nrequires_approval = false\n"
        ))
        .spawn();
    let mut client = server.connect(SESSIONS);
    assert_eq!(said(&client.call("shadowed", json!({}))), "Linux\n");
    assert_eq!(error_of(&client.call("only", json!({})))["reason"], "spawn_failed");
    let below = client.call("below", json!({}));
    assert_eq!(below["result"]["structuredContent"]["stdout"], "/usr/bin:/bin\n", "{below:#}");
    for tool in ["secret", "bare"] {
        assert_eq!(
            error_of(&client.call(tool, json!({})))["reason"],
            "command_in_workspace",
            "{tool}"
        );
    }
    assert_eq!(client.questions.len(), 0, "told before anybody is asked");
    // Without anything in its hands, in the fence, it is what the operator named.
    assert!(said(&client.call("fenced", json!({}))).contains("detnalp"));
}

#[test]
fn a_schema_that_refers_to_itself_keeps_nobody_busy() {
    let (_server, mut client) = with(
        r##"
[mcp.tree]
command = "true"
requires_approval = false
input_schema = '''{"type": "object", "properties": {"all": {"type": "array", "items": {"$ref": "#/$defs/n"}}},
  "$defs": {"n": {"anyOf": [
    {"type": "object", "properties": {"all": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, "required": ["name"]},
    {"type": "object", "properties": {"all": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, "required": ["id"]}]}}}'''
"##,
    );
    let nest = |depth: usize| (0..depth).fold(json!({"x": 1}), |inner, _| json!({"all": [inner]}));
    let began = Instant::now();
    for depth in [5, 8, 12, 22, 40] {
        let message = client.call("tree", nest(depth));
        assert!(error_of(&message)["kind"].is_string());
    }
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    said(&client.call("tree", json!({"all": [{"name": 1, "all": [{"id": 1}]}]})));
}

#[test]
fn no_argument_passes_for_a_line_of_ours() {
    let (_server, mut client) = with("[mcp.open]\ncommand = \"true\"\nstdin = \"json\"");
    let forged = json!({"command": "ls", "runs": "in the sandbox", "PATH": "/safe", "Side Effects": "none", "requested by": "root",
        "x\nruns": "/also", "long": "y".repeat(20_000), "list": (0..4000).map(|n| n.to_string()).chain(["--evil".into()]).collect::<Vec<_>>()});
    said(&client.call("open", forged));
    let text = client.questions[0]["message"].as_str().unwrap();
    let position =
        |part: &str| text.find(part).unwrap_or_else(|| panic!("{part} is not in:\n{text}"));
    for label in [
        "\ncommand: ",
        "\nruns: ",
        "\nPATH: ",
        "\nsandbox: ",
        "\nrequested by: ",
        "\nside effects: ",
    ] {
        assert_eq!(text.matches(label).count(), 1, "{label} in:\n{text}");
    }
    for label in ["\ncommand: ", "\nruns: ", "\nPATH: "] {
        assert!(position(label) < position("argument \""), "what decides comes first");
    }
    assert!(text.contains("argument \"runs\": in the sandbox"), "{text}");
    assert!(text.contains("--evil") && text.contains(&"y".repeat(20_000)), "everything is shown");
}

#[test]
fn what_the_schema_hides_is_hidden_in_every_line() {
    let (server, mut client) = with(
        r##"
[mcp.pw]
command = "echo"
args = ["{o}", "--token={api_token}", "{r}", "{l}"]
input_schema = '''{"type": "object", "properties": {
  "o": {"type": "object", "properties": {"inner": {"type": "string", "writeOnly": true}}},
  "api_token": {"type": "string"},
  "r": {"$ref": "#/$defs/secret"},
  "l": {"type": "array", "items": {"type": "string", "format": "password"}}},
  "$defs": {"secret": {"type": "string", "writeOnly": true}}}'''
"##,
    );
    let arguments = json!({"o": {"inner": "hunter2-one"}, "api_token": "hunter2-two", "r": "hunter2-three", "l": ["hunter2-four"]});
    let message = client.call("pw", arguments);
    assert!(said(&message).contains("hunter2-one"), "the program gets them");
    let text = client.questions[0]["message"].as_str().unwrap();
    assert!(!text.contains("hunter2"), "{text}");
    assert!(
        !Value::from(server.audit()).to_string().contains("hunter2")
            && !server.log().contains("hunter2")
    );
}

#[test]
fn a_command_line_that_is_too_long_is_the_callers_matter_and_nobody_is_asked() {
    let (_server, mut client) = with(
        "[mcp.say]\ncommand = \"echo\"\nargs = [\"{t}\"]\ninput_schema = '{\"type\": \"object\", \"properties\": {\"t\": {\"type\": \"string\"}}}'",
    );
    client.approve = Approve::Once;
    assert_eq!(
        error_of(&client.call("say", json!({"t": "x".repeat(131_073)})))["kind"],
        "too_large"
    );
    assert_eq!(client.questions.len(), 0);
}

#[test]
fn the_question_shows_the_environment_as_it_will_be() {
    let (server, mut client) = with("[mcp.env]\ncommand = \"env\"\n");
    let message = client.call("env", json!({}));
    let text = client.questions[0]["message"].as_str().unwrap();
    let home = said(&message).lines().find(|line| line.starts_with("HOME=")).unwrap().to_owned();
    assert!(text.contains(&home), "{home} is not in:\n{text}");
    assert!(home.contains(&server.root().canonicalize().unwrap().display().to_string()), "{home}");
}
