//! `ringfence config` and what `doctor` and `serve` say of a config, with the real binary.

use std::path::PathBuf;
use std::process::Output;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::support::server::{Scratch, ringfence};
use crate::support::subset::assert_holds;
use crate::support::{Options, Transport};

const BAD: &str = r#"[approval]
expiry = 3

[mcp.lint]
command = "no-such-linter"
args = ["{fiel}"]

[mcp.lint.input_schema]
type = "object"
properties.file.type = "string"

[mcp.fetch]
command = "sh"
allow_domains = ["docs.example.com", "https://x.example/"]
requires_approval = false
env = { API_TOKEN = "hunter2-hunter2" }
"#;

const GOOD: &str = r#"tools = "all"

[approval]
terminal = true

[mcp.lint]
command = "sh"
args = ["-c", "true", "--password=hunter2-hunter2", "--token", "hunter2-hunter2"]
env = { A = "b", URL = "https://u:hunter2-hunter2@h/", DB_PASSWORD = "hunter2-hunter2", KEY = "${LINT_KEY}", OTHER = "${NOT_THERE}" }
"#;

fn with(text: &str) -> (Arc<Scratch>, PathBuf) {
    let scratch = Scratch::new();
    let file = scratch.path().join("config.toml");
    std::fs::write(&file, text).unwrap();
    (scratch, file)
}

fn run(scratch: &Scratch, words: &[&str]) -> Output {
    let root = scratch.path().join("root");
    let mut command = ringfence(scratch);
    command
        .arg("config")
        .args(words)
        .env("SANDBOX_ROOT", root)
        .env("LINT_KEY", "planted-planted")
        .output()
        .unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn check_tells_everything_with_its_place() {
    let (scratch, file) = with(BAD);
    let name = file.to_str().unwrap();
    for words in [vec!["check", name], vec!["check", "--config", name]] {
        let output = run(&scratch, &words);
        assert_eq!(output.status.code(), Some(64));
        let said = text(&output);
        for part in [
            &*format!(
                "error: {name}:2:1: there is no key `expiry` here\n2 | expiry = 3\n  | ^^^^^^\nhint: Did you mean `expiry_s`?\n"
            ),
            &format!(
                "error: {name}:6:9: `{{fiel}}` is not a property in `input_schema`\n6 | args = [\"{{fiel}}\"]\n  |         ^^^^^^^^\nhint: Did you mean `{{file}}`?\n"
            ),
            &format!("error: {name}:14:38: entry 2 of `allow_domains`"),
            &format!(
                "warning: {name}:15:21: approval is still required. It may use the network.\n"
            ),
            &format!("warning: {name}:16:21: `API_TOKEN` looks like a secret"),
            &format!("{name}: 3 errors, 2 warnings, 1 tool\n"),
        ] {
            assert!(said.contains(part), "{part}\nis not in\n{said}");
        }
        assert!(!said.contains("hunter2"), "{said}");
    }
    let output = run(&scratch, &["check", "--json", name]);
    assert_eq!(output.status.code(), Some(64));
    let data: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_holds(
        json!({"file": name, "ok": false, "errors": 3, "warnings": 2, "findings": [
            {"severity": "error", "line": 2, "column": 1, "key": "approval.expiry", "hint": "Did you mean `expiry_s`?"},
            {"severity": "error", "line": 6, "column": 9, "key": "mcp.lint.args[0]"},
            {"severity": "error", "line": 14, "column": 38, "key": "mcp.fetch.allow_domains[1]"},
            {"severity": "warning", "line": 15, "column": 21, "key": "mcp.fetch.requires_approval"},
            {"severity": "warning", "line": 16, "column": 21, "key": "mcp.fetch.env.API_TOKEN"},
        ]}),
        &data,
    );
    assert!(!data.to_string().contains("hunter2"));
}

#[test]
fn check_ends_well_where_a_file_can_be_used() {
    let (scratch, file) = with("[mcp.lint]\ncommand = \"sh\"\n");
    let output = run(&scratch, &["check", "--strict", file.to_str().unwrap()]);
    assert_eq!(
        (output.status.code(), text(&output)),
        (Some(0), format!("{}: no errors, no warnings, 1 tool\n", file.display()))
    );
    // A warning counts where one says so.
    std::fs::write(&file, "[mcp.lint]\ncommand = \"no-such-linter\"\n").unwrap();
    assert_eq!(run(&scratch, &["check", file.to_str().unwrap()]).status.code(), Some(0));
    assert_eq!(
        run(&scratch, &["check", "--strict", file.to_str().unwrap()]).status.code(),
        Some(64)
    );
    // Without a file there is nothing to find; a named one must be there.
    let output = run(&scratch, &["check"]);
    assert_eq!(
        (output.status.code(), text(&output)),
        (Some(0), "no config file; defaults are used\n".to_owned())
    );
    assert_eq!(run(&scratch, &["check", "/nonexistent.toml"]).status.code(), Some(66));
    // Where one stands does not matter.
    let home = scratch.path().join("home");
    let output = ringfence(&scratch)
        .args(["config", "check", file.to_str().unwrap()])
        .current_dir(home)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
}

#[test]
fn show_tells_every_value_and_who_set_it() {
    let (scratch, file) = with(GOOD);
    let name = file.to_str().unwrap();
    let workspace = scratch.path().join("workspace");
    let output =
        run(&scratch, &["show", "--config", name, "--workspace", workspace.to_str().unwrap()]);
    let said = text(&output);
    assert_eq!(output.status.code(), Some(0));
    let line = |start: &str| {
        let found = said.lines().find(|line| line.starts_with(&format!("{start} = ")));
        let found = found.unwrap_or_else(|| panic!("{start} is not in\n{said}"));
        found.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line("tools"), "tools = \"all\" (config.toml:1)");
    assert_eq!(line("approval.terminal"), "approval.terminal = true (config.toml:4)");
    assert_eq!(line("approval.expiry_s"), "approval.expiry_s = 300 (default)");
    assert_eq!(
        line("root"),
        format!("root = \"{}\" (SANDBOX_ROOT)", scratch.path().join("root").display())
    );
    assert_eq!(line("workspace"), format!("workspace = \"{}\" (--workspace)", workspace.display()));
    assert_eq!(line("browser.program"), "browser.program = - (not set)");
    assert_eq!(line("mcp.lint.command"), "mcp.lint.command = \"sh\" (config.toml:7)");
    assert_eq!(line("mcp.lint.timeout_ms"), "mcp.lint.timeout_ms = 120000 (default)");
    assert_eq!(line("mcp.lint.requires_approval"), "mcp.lint.requires_approval = true (default)");
    assert_eq!(line("log.format"), "log.format = \"pretty\" (default)");
    assert!(
        said.contains("${LINT_KEY}  set  (for lint)")
            && said.contains("${NOT_THERE}  missing  (for lint)"),
        "{said}"
    );
    for secret in ["hunter2", "planted"] {
        assert!(!said.contains(secret), "{said}");
    }
    // Origins stand below each other.
    let widths: Vec<usize> = said
        .lines()
        .filter(|line| line.starts_with("limits."))
        .map(|line| line.find("  (").unwrap())
        .collect();
    assert!(
        widths.len() == 5
            && said
                .lines()
                .filter(|line| line.starts_with("limits."))
                .map(|line| line.rfind('(').unwrap())
                .collect::<std::collections::BTreeSet<_>>()
                .len()
                == 1,
        "{said}"
    );

    let some = text(&run(&scratch, &["show", "--config", name, "approval", "mcp.lint.args"]));
    assert_eq!(some.lines().filter(|line| line.contains(" = ")).count(), 4, "{some}");
    let unknown = run(&scratch, &["show", "--config", name, "aproval"]);
    assert_eq!(unknown.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("Did you mean `approval`?"));

    let output = run(&scratch, &["show", "--json", "--config", name]);
    let data: Value = serde_json::from_slice(&output.stdout).unwrap();
    let find =
        |key: &str| data["keys"].as_array().unwrap().iter().find(|one| one["key"] == key).unwrap();
    assert_eq!(
        find("approval.terminal"),
        &json!({"key": "approval.terminal", "value": true, "origin": {"from": "file", "file": name, "line": 4}})
    );
    assert_eq!(
        find("mcp.lint.args"),
        &json!({"key": "mcp.lint.args", "value": ["-c", "true", "--password=[redacted]", "--token", "[redacted]"], "origin": {"from": "file", "file": name, "line": 8}})
    );
    assert_eq!(find("surface.allow")["value"], json!(["*"]));
    assert_eq!(find("root")["origin"], json!({"from": "environment", "name": "SANDBOX_ROOT"}));
    assert_eq!(
        data["secrets"],
        json!([
            {"name": "${LINT_KEY}", "state": "set", "tools": ["lint"]}, {"name": "${NOT_THERE}", "state": "missing", "tools": ["lint"]},
        ])
    );
    assert!(!data.to_string().contains("hunter2") && !data.to_string().contains("planted"));
}

#[test]
fn schema_is_one_that_editors_take() {
    let (scratch, _) = with("");
    let schema: Value = serde_json::from_slice(&run(&scratch, &["schema"]).stdout).unwrap();
    assert_eq!(schema["$schema"], "http://json-schema.org/draft-07/schema#");
    let validator = jsonschema::validator_for(&schema).unwrap();
    let value = |text: &str| toml::from_str::<Value>(text).unwrap();
    assert!(validator.is_valid(&value(GOOD)));
    assert!(!validator.is_valid(&value(BAD)));
    assert_eq!(schema["properties"]["limits"]["properties"]["grace_ms"]["maximum"], 60_000);
    assert_eq!(
        schema["properties"]["mcp"]["additionalProperties"]["properties"]["timeout_ms"]["default"],
        120_000
    );
}

#[test]
fn serve_refuses_a_mistake_and_goes_on_without_a_tool() {
    let refused =
        Options::new(Transport::Stdio).config("[approval]\nexpiry = 3\nterminal = 1\n").refuse();
    assert_eq!(refused.status.code(), Some(64));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("config.toml:2:1: there is no key `expiry` here"), "{said}");
    assert!(said.contains("There are 2 such errors: run `ringfence config check`."), "{said}");

    let missing = "[policy]\nrules = [\"/nonexistent/x.rules\"]\n";
    let refused = Options::new(Transport::Stdio).config(missing).refuse();
    assert_eq!(refused.status.code(), Some(64));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("error: the rules file /nonexistent/x.rules does not exist\n"), "{said}");

    let mut server = Options::new(Transport::Stdio)
        .config("[mcp.good]\ncommand = \"true\"\n[mcp.bad]\ncommand = \"true\"\ntimeout = 5\n")
        .spawn();
    let mut client = server.connect(crate::support::SESSIONS);
    let names = client.request("tools/list", json!({}))["result"].to_string();
    assert!(names.contains("\"good\"") && !names.contains("\"bad\""), "{names}");
    let log = server.log();
    assert!(
        log.contains("`bad`") && log.contains("config.toml:5:1: there is no key `timeout` here"),
        "{log}"
    );
}

#[test]
fn doctor_names_what_is_wrong_with_the_config() {
    let (scratch, file) = with(BAD);
    let output =
        ringfence(&scratch).args(["doctor", "--json", "--config"]).arg(&file).output().unwrap();
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows: Vec<&Value> =
        found["health"].as_array().unwrap().iter().filter(|row| row["name"] == "config").collect();
    assert_eq!(rows.len(), 5, "{rows:#?}");
    assert!(
        rows[0]["text"].as_str().unwrap().contains(":2:1: there is no key `expiry` here"),
        "{rows:#?}"
    );
    assert_eq!(rows[0]["fix"], "Did you mean `expiry_s`?");
    assert!(!found.to_string().contains("hunter2"));
}

/// A warning about a value of the upstreams file names that file, not a table of config.toml.
#[test]
fn check_names_the_upstreams_file_and_its_keys() {
    let (scratch, config) = with("[upstream.git]\nenv = { OWN = \"${secret:OWN_KEY}\" }\n");
    let folder = scratch.path().join("upstreams");
    std::fs::create_dir(&folder).unwrap();
    let file = folder.join("upstreams.json");
    let transport =
        json!({"type": "stdio", "command": "git-mcp", "env": {"TOKEN": "${secret:GIT_KEY}"}});
    let remote =
        json!({"type": "http", "url": "https://docs.example/mcp", "headers": {"X": "${DOCS_KEY}"}});
    let servers = json!({
        "git": {"trust": "trusted", "transport": transport},
        "docs": {"trust": "trusted", "transport": remote},
    });
    std::fs::write(&file, serde_json::to_string_pretty(&json!({"servers": servers})).unwrap())
        .unwrap();
    let (file, config) = (file.to_str().unwrap(), config.to_str().unwrap());
    let said = text(&run(&scratch, &["check", config, "--upstreams", file]));
    let line = |value: &str| {
        let text = std::fs::read_to_string(file).unwrap();
        text.lines().position(|line| line.contains(value)).unwrap() + 1
    };
    for part in [
        format!(
            "warning: {file}:{}: servers.git.transport.env.TOKEN: `${{secret:GIT_KEY}}`: the secret `GIT_KEY` is not set\nhint: ",
            line("GIT_KEY")
        ),
        format!(
            "warning: {file}:{}: servers.docs.transport.headers.X: `${{DOCS_KEY}}`: the secret `DOCS_KEY` is not set\nhint: ",
            line("DOCS_KEY")
        ),
        format!("warning: {config}:2:15: `${{secret:OWN_KEY}}`: the secret `OWN_KEY` is not set\n"),
        format!("{config}: no errors, "),
        format!("\n{file}: 2 servers\n"),
    ] {
        assert!(said.contains(&part), "{part} is not in:\n{said}");
    }
    let output = run(&scratch, &["check", "--upstreams", file]);
    assert_eq!(output.status.code(), Some(0));
    let said = text(&output);
    let end = format!("no config file; defaults are used\n{file}: 2 servers\n");
    assert!(said.ends_with(&end), "{said}");
    let found = run(&scratch, &["check", "--json", "--upstreams", file]);
    let found: Value = serde_json::from_slice(&found.stdout).unwrap();
    assert_holds(
        json!({"upstreams": {"file": file, "servers": 2}, "findings": [
            {"file": file, "line": line("GIT_KEY"), "key": "servers.git.transport.env.TOKEN"},
        ]}),
        &found,
    );
}
