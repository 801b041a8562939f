//! An `allow` never makes a command worse: what a rule lets out and cannot leave runs in the sandbox.

use serde_json::{Value, json};

use super::{Serving, result};
use crate::escape::is_root;
use crate::support::subset::assert_holds;
use crate::support::{Client, SESSIONS, Server, Transport};

/// `[policy]` of a server that may not let anything out: root without a user to become, or a user who names another.
pub fn unable_to_leave() -> &'static str {
    if is_root() { "[policy]\n" } else { "[policy]\nescalate_as = \"nobody\"\n" }
}

/// `[policy]` of a server that may.
pub fn able_to_leave() -> &'static str {
    if is_root() { "[policy]\nescalate_as = \"nobody\"\n" } else { "[policy]\n" }
}

/// What the one shell answers, as the JSON of its text block.
fn shell(client: &mut Client, server: &Server, command: &str) -> Value {
    let arguments = json!({"command": command, "workdir": server.workspace(), "login": false});
    let message = client.call("shell", arguments);
    let text = message["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{message}"));
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn the_one_shell_runs_an_allowed_mkdir_where_no_one_can_be_asked() {
    let serving = Serving::new(Transport::Stdio).config(able_to_leave()).rules(&[("[\"mkdir\"]", "allow")]);
    let mut server = serving.options.clone().arg("--tools").arg("shell").spawn();
    let mut client = server.client(SESSIONS);
    client.capabilities = json!({});
    client.shake_hands();
    let said = shell(&mut client, &server, "mkdir -p x");
    assert_eq!(said["exit_code"], 0, "{said}");
    assert!(server.workspace().join("x").is_dir(), "{said}");
    assert!(said["output"].as_str().unwrap().contains("no one can be asked"), "{said}");
    let events = server.events("exec");
    assert_holds(json!({"verdict": "allow", "ran": "inside", "why": "~no one can be asked"}), &events[0]);
}

#[test]
fn a_server_that_cannot_let_anything_out_runs_what_is_allowed_inside() {
    let serving = Serving::new(Transport::Stdio).config(unable_to_leave()).rules(&[("[\"id\"]", "allow")]);
    let mut server = serving.options.clone().arg("--escalate").arg("outside").spawn();
    let mut client = server.connect(SESSIONS);
    let message = client.call("shell.exec", json!({"command": "id -u"}));
    let result = result(&message);
    assert_eq!(result["exit_code"], 0, "{message}");
    let kept = json!([{"command": "id", "why": "~escalate_as", "count": 1}]);
    assert_holds(kept, &result["kept_inside"]);
    assert!(client.questions.is_empty(), "{:?}", client.questions);
    assert_holds(json!([{"verdict": "allow", "ran": "inside", "why": "~escalate_as"}]), &json!(server.events("exec")));
}
