//! What an entry leaves behind is for the same entry of the same caller, and goes when it does.

use serde_json::{Value, json};

use super::{error_of, listed, names, said, with};
use crate::support::{Approve, DEADLINE, Options, SESSIONS, Server, Transport, eventually};

fn edit(server: &Server, text: &str) {
    std::fs::write(server.scratch.path().join("config.toml"), text).unwrap();
}

fn keeps(more: &str) -> String {
    format!(
        "[mcp.keeps]\ncommand = \"sh\"\nargs = [\"-c\", \"cat ~/note 2>/dev/null; echo left > ~/note\"]\nrequires_approval = false\n{more}"
    )
}

#[test]
fn another_definition_has_another_home() {
    let (server, mut client) = with(&keeps(""));
    assert_eq!(said(&client.call("keeps", json!({}))), "");
    assert_eq!(said(&client.call("keeps", json!({}))), "left\n");
    edit(&server, &keeps("env = { A = \"1\" }\n"));
    assert_eq!(said(&client.call("keeps", json!({}))), "");
    edit(&server, &keeps(""));
    assert_eq!(said(&client.call("keeps", json!({}))), "left\n", "the same again");
}

/// Processes that the server has started and that still live.
fn children(server: &Server) -> usize {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|one| one.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
        let rest = stat.rsplit_once(')').unwrap().1.split_whitespace().collect::<Vec<_>>();
        rest[0] != "Z" && rest[1] == server.pid().to_string()
    })
    .count()
}

#[test]
fn the_fence_of_an_entry_goes_with_it() {
    let (server, mut client) = with(&keeps(""));
    let before = children(&server);
    said(&client.call("keeps", json!({})));
    assert!(children(&server) > before);
    edit(&server, "");
    assert!(!names(&mut client).contains(&"keeps".to_owned()));
    eventually(DEADLINE, "the fence is gone", || children(&server) == before);
    edit(&server, &keeps(""));
    said(&client.call("keeps", json!({})));
    edit(&server, &keeps("").replace("mcp.keeps", "mcp.renamed"));
    said(&client.call("renamed", json!({})));
    eventually(DEADLINE, "one fence is left", || children(&server) == before + 1);
}

#[test]
fn discovery_says_what_the_list_says() {
    let config = "[surface]\ncwd = [\"src\"]\ndeny = [\"quiet*\"]\n[mcp.inside]\ncommand = \"true\"\ncwd = \"src\"\n[mcp.elsewhere]\ncommand = \"true\"\n[mcp.quiet]\ncommand = \"true\"\ntimeout = 1\n[mcp.quieter]\ncommand = \"true\"\nallow_domains = [\"no name\"]\n[mcp.loud]\ncommand = \"true\"\ntimeout = 1\n";
    for version in [SESSIONS, crate::support::MODERN] {
        let mut server = Options::new(Transport::Http).config(config).spawn();
        let mut client = server.client(version);
        let hello = client.shake_hands().to_string();
        assert!(hello.contains("inside") && !hello.contains("elsewhere"), "{hello}");
        let all = client.request("mcp.capabilities", json!({}))["result"]["config"].clone();
        let dropped: Vec<&Value> =
            all["dropped"].as_array().unwrap().iter().map(|one| &one["tool"]).collect();
        assert_eq!(dropped, [&json!("loud")], "{all:#}");
    }
}

#[test]
fn trust_is_for_what_was_shaped_alike() {
    let (server, mut client) = with(
        "[session]\ncwd_override = true\nenv_overrides = [\"MODE\"]\n[mcp.asks]\ncommand = \"sh\"\nargs = [\"-c\", \"echo $MODE\"]\nside_effects = [\"filesystem_write\"]\n",
    );
    std::fs::create_dir(server.workspace().join("sub")).unwrap();
    client.approve = Approve::Session;
    said(&client.call("asks", json!({})));
    client.approve = Approve::Decline;
    said(&client.call("asks", json!({})));
    for update in [
        json!({"env_overrides": {"MODE": "x"}}),
        json!({"env_overrides": null, "cwd_override": "sub"}),
    ] {
        client.request("ringfence/session/update", update.clone());
        let message = client.call("asks", json!({}));
        assert_eq!(error_of(&message)["kind"], "approval_denied", "{update}: {message:#}");
    }
    client.request("ringfence/session/update", json!({"cwd_override": null}));
    said(&client.call("asks", json!({})));
}

#[test]
fn a_password_in_an_address_is_not_shown() {
    let (_server, mut client) = with(
        "[mcp.db]\ncommand = \"true\"\nenv = { URL = \"postgres://me:hunter2@db.example/x\", DB_PASS = \"hunter2\", MY_PWD = \"hunter2\" }\n",
    );
    let tool =
        listed(&mut client).into_iter().find(|tool| tool["name"] == "db").unwrap().to_string();
    assert!(tool.contains("db.example/x") && !tool.contains("hunter2"), "{tool}");
    said(&client.call("db", json!({})));
    let question = client.questions[0]["message"].as_str().unwrap();
    assert!(question.contains("db.example/x") && !question.contains("hunter2"), "{question}");
}

#[test]
fn a_name_is_denied_in_either_spelling() {
    let (server, mut client) = with(
        "[surface]\nallow = [\"file_*\", \"shell\", \"a_b\"]\ndeny = [\"file_write\", \"nonesuch\"]\n[mcp.a_b]\ncommand = \"true\"\n",
    );
    let listed = names(&mut client);
    assert!(
        !listed.contains(&"file.write".to_owned()) && listed.contains(&"file.read".to_owned()),
        "{listed:?}"
    );
    assert!(listed.contains(&"a_b".to_owned()), "{listed:?}");
    assert_eq!(client.call("file_write", json!({}))["error"]["data"]["kind"], "unknown_tool");
    server.wait_for_log("`nonesuch` matches no tool");
}

#[test]
fn what_decides_what_runs_is_not_a_clients_to_set() {
    let (_server, mut client) = with(
        "[session]\nenv_overrides = [\"P*\", \"R*\", \"HTTPS_*\", \"https_*\", \"SSL_*\", \"DOTNET_*\", \"T*\", \"SHELL\", \"XDG_*\", \"MODE\"]\n",
    );
    for name in [
        "PYTHONWARNINGS",
        "PIP_INDEX_URL",
        "PYTEST_ADDOPTS",
        "RUSTFLAGS",
        "HTTPS_PROXY",
        "https_proxy",
        "SSL_CERT_FILE",
        "DOTNET_STARTUP_HOOKS",
        "TMPDIR",
        "TAR_OPTIONS",
        "SHELL",
        "XDG_DATA_HOME",
        "RIPGREP_CONFIG_PATH",
    ] {
        let refused =
            client.request("ringfence/session/update", json!({"env_overrides": {name: "x"}}));
        assert_eq!(refused["error"]["data"]["reason"], "env_name", "{name}: {refused:#}");
    }
    let taken = client.request(
        "ringfence/session/update",
        json!({"env_overrides": {"MODE": "x", "PROFILE": "y"}}),
    );
    assert_eq!(taken["result"]["env_overrides"], json!(["MODE", "PROFILE"]), "{taken:#}");
    // A call sets what it likes of these for itself, where everybody sees it.
    let message = client
        .call("shell.exec", json!({"command": "echo $RUSTFLAGS", "env": {"RUSTFLAGS": "-g"}}));
    assert_eq!(said(&message), "-g\n");
}
