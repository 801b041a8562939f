//! What a call puts into the words of a command.

use serde_json::json;

use super::{error_of, said, with};
use crate::support::subset::assert_holds;

const SHOW: &str = r#"
[mcp.show]
command = "/usr/bin/python3"
args = ["-c", "import sys, json; print(json.dumps(sys.argv[1:]))", "--path={path}", "--n={n}", "{{x}}", "--", "{words}"]
requires_approval = false

[mcp.show.input_schema]
type = "object"
additionalProperties = false
required = ["path"]

[mcp.show.input_schema.properties]
path = { type = "string" }
n = { type = "integer", minimum = 1 }
words = { type = "array", items = { type = "string" } }
"#;

#[test]
fn each_argument_is_one_word_and_no_shell_reads_it() {
    let (server, mut client) = with(SHOW);
    let hostile = "a b; touch ran $(touch ran) `touch ran` ' \" \n *";
    let message =
        client.call("show", json!({"path": hostile, "n": 3, "words": ["-x", "two words"]}));
    let argv: Vec<String> = serde_json::from_str(said(&message)).unwrap();
    assert_eq!(argv, [&format!("--path={hostile}"), "--n=3", "{x}", "--", "-x", "two words"]);
    assert!(!server.workspace().join("ran").exists());
}

#[test]
fn a_missing_optional_argument_drops_its_word() {
    let (_server, mut client) = with(SHOW);
    let message = client.call("show", json!({"path": "p"}));
    assert_eq!(said(&message), "[\"--path=p\", \"{x}\", \"--\"]\n");
}

#[test]
fn arguments_that_do_not_fit_the_schema_run_nothing_and_get_the_schema() {
    let (server, mut client) = with(SHOW);
    for wrong in [
        json!({}),
        json!({"path": 5}),
        json!({"path": "p", "n": 0}),
        json!({"path": "p", "other": 1}),
    ] {
        let message = client.call("show", wrong.clone());
        let error = error_of(&message);
        assert_holds(
            json!({"kind": "invalid_arguments", "reason": "schema", "hint": "*", "trace_id": "*"}),
            error,
        );
        assert_eq!(error["schema"]["required"], json!(["path"]), "{wrong}: {message:#}");
    }
    assert_eq!(server.events("call.start").len(), 0);
}

#[test]
fn defaults_of_the_schema_hold() {
    let (_server, mut client) = with(
        "[mcp.count]\ncommand = \"echo\"\nargs = [\"{n}\"]\nrequires_approval = false\n\
         input_schema = '{\"type\": \"object\", \"properties\": {\"n\": {\"type\": \"integer\", \"default\": 7}}}'",
    );
    assert_eq!(said(&client.call("count", json!({}))), "7\n");
    assert_eq!(said(&client.call("count", json!({"n": 2}))), "2\n");
}

#[test]
fn arguments_come_as_json_on_standard_input() {
    let (_server, mut client) =
        with("[mcp.cat]\ncommand = \"cat\"\nstdin = \"json\"\nrequires_approval = false");
    let arguments = json!({"a": ["ü", 1, null], "b": {"c": "\n"}});
    let message = client.call("cat", arguments.clone());
    assert_eq!(serde_json::from_str::<serde_json::Value>(said(&message)).unwrap(), arguments);
}

#[test]
fn without_stdin_there_is_nothing_to_read() {
    let (_server, mut client) = with("[mcp.cat]\ncommand = \"cat\"\nrequires_approval = false");
    assert_eq!(said(&client.call("cat", json!({}))), "");
    assert_eq!(error_of(&client.call("cat", json!({"a": 1})))["reason"], "schema");
}

#[test]
fn a_command_that_fails_is_a_result_with_its_exit_code() {
    let (_server, mut client) = with(
        "[mcp.no]\ncommand = \"sh\"\nargs = [\"-c\", \"echo oh >&2; exit 3\"]\nrequires_approval = false",
    );
    let message = client.call("no", json!({}));
    assert_holds(
        json!({"isError": false, "structuredContent": {"status": "failed", "exit_code": 3, "stderr": "oh\n"}}),
        &message["result"],
    );
}

#[test]
fn a_command_that_cannot_be_started_is_internal_and_tells_no_path() {
    let (server, mut client) = with(
        "[mcp.gone]\ncommand = \"/opt/nowhere/tool\"\nrequires_approval = false\n\
         [mcp.dir]\ncommand = \"/usr\"\nrequires_approval = false",
    );
    for tool in ["gone", "dir"] {
        let message = client.call(tool, json!({}));
        assert_holds(
            json!({"kind": "internal", "reason": "spawn_failed", "stderr": "*", "hint": "*", "trace_id": "*"}),
            error_of(&message),
        );
        let text = message.to_string();
        assert!(!text.contains("/opt/nowhere") && !text.contains("\"/usr"), "{text}");
    }
    server.wait_for_log("/opt/nowhere/tool");
}

#[test]
fn the_directory_is_the_entrys_else_the_workspace() {
    let (server, mut client) = with(
        "[mcp.here]\ncommand = \"pwd\"\nrequires_approval = false\n[mcp.there]\ncommand = \"pwd\"\ncwd = \"sub\"\nrequires_approval = false",
    );
    std::fs::create_dir(server.workspace().join("sub")).unwrap();
    let workspace = server.workspace().canonicalize().unwrap();
    assert_eq!(said(&client.call("here", json!({}))).trim(), workspace.display().to_string());
    assert_eq!(
        said(&client.call("there", json!({}))).trim(),
        workspace.join("sub").display().to_string()
    );
}

#[test]
fn the_environment_is_the_entrys_over_a_scrubbed_baseline() {
    let mut server = crate::support::Options::new(crate::support::Transport::Stdio)
        .env("SERVERS_OWN", "must-not-pass")
        .env("LANG", "C")
        .config("[mcp.env]\ncommand = \"env\"\nenv = { LANG = \"xx\", PATH = \"/usr/bin:/bin\", MINE = \"1\", HOME = \"/tmp\" }\nrequires_approval = false")
        .spawn();
    let mut client = server.connect(crate::support::SESSIONS);
    let message = client.call("env", json!({}));
    let lines: Vec<&str> = said(&message).lines().collect();
    for line in ["LANG=xx", "PATH=/usr/bin:/bin", "MINE=1", "HOME=/tmp"] {
        assert!(lines.contains(&line), "{line} in {lines:?}");
    }
    assert!(!said(&message).contains("must-not-pass"));
}

#[test]
fn its_time_is_the_smallest_that_anybody_gives() {
    let (_server, mut client) = with(
        "[limits]\ntimeout_ms = 60000\ngrace_ms = 100\n\
         [mcp.slow]\ncommand = \"sh\"\nargs = [\"-c\", \"echo begun; sleep 60\"]\ntimeout_ms = 300\nrequires_approval = false",
    );
    let message = client.call("slow", json!({}));
    assert_holds(
        json!({"isError": true, "structuredContent": {"status": "timed_out", "stdout": "begun\n", "error": {"kind": "deadline_exceeded"}}}),
        &message["result"],
    );
}
