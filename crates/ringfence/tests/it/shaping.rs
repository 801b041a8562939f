//! What a client may choose for its session: where its commands start, and a few of their variables.

use serde_json::{Value, json};

use crate::support::subset::assert_holds;
use crate::support::{Client, Options, SESSIONS, Server, Transport, on_every_transport};

const UPDATE: &str = "ringfence/session/update";
const SHOW: &str = "[mcp.show]\ncommand = \"sh\"\nargs = [\"-c\", \"pwd; echo $MODE $TOKEN_X\"]\nenv = { MODE = \"entry\" }\nrequires_approval = false\n";
const LETS: &str = "[session]\ncwd_override = true\nenv_overrides = [\"MODE\", \"X_*\", \"TOKEN_X\", \"PATH\", \"LD_*\", \"GIT_*\"]\n";

fn lets(options: Options) -> Options {
    options.config(LETS).config(SHOW)
}

fn shown(client: &mut Client, server: &Server, meta: Option<Value>) -> String {
    let mut params = json!({"name": "show", "arguments": {}});
    if let Some(meta) = meta {
        params["_meta"] = meta;
    }
    let id = client.start("tools/call", params);
    let message = client.wait(&id);
    assert_eq!(message["result"]["isError"], false, "{message:#}");
    let workspace = server.workspace().canonicalize().unwrap().display().to_string();
    message["result"]["structuredContent"]["stdout"]
        .as_str()
        .unwrap()
        .replace(&workspace, "W")
        .replace('\n', " ")
        .trim()
        .to_owned()
}

#[test]
fn nothing_can_be_set_unless_the_operator_lists_it() {
    on_every_transport(
        |options| options.config(SHOW),
        |server, client| {
            shown(client, server, None);
            for (params, what) in [
                (json!({"cwd_override": "."}), "cwd_override"),
                (json!({"env_overrides": {"MODE": "x"}}), "MODE"),
            ] {
                let refused = client.request(UPDATE, params);
                assert_holds(
                    json!({"kind": "permission_denied", "reason": "override_not_allowed"}),
                    &refused["error"]["data"],
                );
                assert!(
                    refused["error"]["message"].as_str().unwrap().contains(what),
                    "{refused:#}"
                );
            }
            let meta = json!({"dev.ringfence/env_overrides": {"MODE": "x"}});
            let id =
                client.start("tools/call", json!({"name": "show", "arguments": {}, "_meta": meta}));
            let message = client.wait(&id);
            assert_eq!(
                message["result"]["structuredContent"]["error"]["reason"], "override_not_allowed",
                "{message:#}"
            );
            assert_eq!(shown(client, server, None), "W entry");
        },
    );
}

#[test]
fn a_session_is_shaped_and_only_that_one() {
    on_every_transport(lets, |server, client| {
        std::fs::create_dir_all(server.workspace().join("sub/deep")).unwrap();
        assert_eq!(shown(client, server, None), "W entry");
        let answer = client.request(
            UPDATE,
            json!({"cwd_override": "sub", "env_overrides": {"MODE": "session", "X_1": "1"}}),
        );
        assert_eq!(answer["result"]["env_overrides"], json!(["MODE", "X_1"]), "{answer:#}");
        assert_eq!(answer["result"]["cwd_override"], "sub");
        assert_eq!(shown(client, server, None), "W/sub session");
        // With a call, for that call.
        let meta = json!({"dev.ringfence/cwd_override": "sub/deep", "dev.ringfence/env_overrides": {"MODE": "call"}});
        assert_eq!(shown(client, server, Some(meta)), "W/sub/deep call");
        assert_eq!(shown(client, server, None), "W/sub session");
        // Our own commands start there as well.
        let message = client.call("shell.exec", json!({"command": "basename $PWD; echo $MODE"}));
        assert_eq!(
            message["result"]["structuredContent"]["stdout"], "sub\nsession\n",
            "{message:#}"
        );
        assert_holds(
            json!({"cwd_override": "sub", "env_overrides": ["MODE", "X_1"]}),
            &message["result"]["_meta"]["dev.ringfence/overrides"],
        );
        // It is shown before anybody calls.
        let list = client.request("tools/list", json!({}));
        let tool = list["result"]["tools"]
            .as_array()
            .unwrap()
            .iter()
            .find(|tool| tool["name"] == "show")
            .unwrap();
        let defaults = &tool["_meta"]["dev.ringfence/session_defaults"];
        assert_holds(json!({"overrides": true, "env": {"MODE": "session", "X_1": "1"}}), defaults);
        assert!(defaults["cwd"].as_str().unwrap().ends_with("/sub"), "{defaults}");
        if client.transport != Transport::Stdio {
            let mut other = server.connect(client.version);
            assert_eq!(shown(&mut other, server, None), "W entry");
        }
        // What is not named stays, null takes it back.
        client.request(UPDATE, json!({"cwd_override": null}));
        assert_eq!(shown(client, server, None), "W session");
        client.request(UPDATE, json!({"env_overrides": null}));
        assert_eq!(shown(client, server, None), "W entry");
    });
}

#[test]
fn it_never_leaves_the_workspace_and_never_loads_code() {
    on_every_transport(lets, |server, client| {
        shown(client, server, None);
        std::os::unix::fs::symlink("/etc", server.workspace().join("out")).unwrap();
        for (params, reason) in [
            (json!({"cwd_override": ".."}), "outside_workspace"),
            (json!({"cwd_override": "/etc"}), "outside_workspace"),
            (json!({"cwd_override": "out"}), "outside_workspace"),
            (json!({"env_overrides": {"PATH": "/x"}}), "env_name"),
            (json!({"env_overrides": {"LD_PRELOAD": "x"}}), "env_name"),
            (json!({"env_overrides": {"GIT_SSH": "x"}}), "env_name"),
            (json!({"env_overrides": {"OTHER": "x"}}), "override_not_allowed"),
        ] {
            let refused = client.request(UPDATE, params.clone());
            assert_eq!(refused["error"]["data"]["reason"], reason, "{params}: {refused:#}");
        }
        for params in [
            json!({"cwd": "x"}),
            json!({"cwd_override": 5}),
            json!({"env_overrides": ["A"]}),
            json!({"env_overrides": {"X_1": 1}}),
        ] {
            let refused = client.request(UPDATE, params.clone());
            assert_eq!(
                refused["error"]["data"]["kind"], "invalid_arguments",
                "{params}: {refused:#}"
            );
        }
        // An update is taken whole or not at all.
        client.request(UPDATE, json!({"env_overrides": {"MODE": "x"}, "cwd_override": ".."}));
        assert_eq!(shown(client, server, None), "W entry");
    });
}

#[test]
fn headers_count_for_their_request() {
    let mut server = lets(Options::new(Transport::Http)).spawn();
    std::fs::create_dir(server.workspace().join("sub")).unwrap();
    let client = server.connect(SESSIONS);
    let call = |headers: &[(&str, &str)]| {
        let message = json!({"jsonrpc": "2.0", "id": "h", "method": "tools/call", "params": {"name": "show", "arguments": {}}});
        let mut request = client.post_request(message.to_string().as_bytes(), Some(&message));
        for (name, value) in headers {
            request = request.header(name, value);
        }
        request.fetch(server.address()).message()["result"]["structuredContent"].clone()
    };
    let out = |answer: &Value| answer["stdout"].as_str().unwrap_or_default().trim_end().to_owned();
    let shaped = call(&[
        ("Ringfence-Cwd-Override", "sub"),
        ("Ringfence-Env-Overrides", "{\"MODE\": \"header\"}"),
    ]);
    assert!(out(&shaped).ends_with("/sub\nheader"), "{shaped:#}");
    assert!(out(&call(&[])).ends_with("/workspace\nentry"));
    for (header, value, reason) in [
        ("Ringfence-Cwd-Override", "/etc", json!("outside_workspace")),
        ("Ringfence-Env-Overrides", "{\"LD_AUDIT\": \"x\"}", json!("env_name")),
        ("Ringfence-Env-Overrides", "MODE=x", Value::Null),
    ] {
        let refused = call(&[(header, value)]);
        assert_eq!(refused["error"]["reason"], reason, "{refused:#}");
        assert_ne!(refused["error"]["kind"], Value::Null);
    }
}

#[test]
fn prompts_and_the_log_say_what_was_chosen_and_no_secret() {
    let (mut server, value) = (
        Options::new(Transport::Stdio)
            .config("[session]\nenv_overrides = [\"MY_*\", \"STAGE\"]\n[mcp.asks]\ncommand = \"true\"\nside_effects = [\"filesystem_write\"]")
            .spawn(),
        "hunter2-hunter2",
    );
    let mut client = server.connect(SESSIONS);
    let answer =
        client.request(UPDATE, json!({"env_overrides": {"MY_TOKEN": value, "STAGE": "blue"}}));
    assert!(!answer.to_string().contains(value));
    let message = client.call("asks", json!({}));
    let text = client.questions[0]["message"].as_str().unwrap();
    assert!(
        text.contains("STAGE=blue") && text.contains("MY_TOKEN (set)") && !text.contains(value),
        "{text}"
    );
    assert!(!message.to_string().contains(value) && !server.log().contains(value));
    let stop = &server.stops(1)[0];
    assert_eq!(stop["overrides"]["env_overrides"], json!(["MY_TOKEN", "STAGE"]), "{stop:#}");
    assert!(!Value::from(server.audit()).to_string().contains(value));
    let list = client.request("tools/list", json!({})).to_string();
    assert!(!list.contains(value));
}
