//! Codex does not pass CODEX_HOME on to the servers that it starts: their rules are found all the same.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::support::server::{Scratch, binary, ringfence};
use crate::support::{DEADLINE, Options, SESSIONS, Server, Transport, eventually};

/// A home of Codex with a rule against `uname`, and Codex's helpers as it lays them out.
struct Home {
    scratch: Arc<Scratch>,
    path: PathBuf,
}

impl Home {
    fn at(place: &str) -> Home {
        let scratch = Scratch::new();
        let path = scratch.path().canonicalize().unwrap().join(place);
        std::fs::create_dir_all(path.join("rules")).unwrap();
        std::fs::create_dir_all(path.join("tmp/arg0-linux/codex-arg0Ab12")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let rule = "prefix_rule(pattern = [\"uname\"], decision = \"forbidden\")\n";
        std::fs::write(path.join("rules/default.rules"), rule).unwrap();
        Home { scratch, path }
    }

    /// PATH as Codex gives it to a server.
    fn search_path(&self) -> String {
        format!("{}:/usr/bin:/bin", self.path.join("tmp/arg0-linux/codex-arg0Ab12").display())
    }

    fn options(&self) -> Options {
        Options::new(Transport::Stdio).on(&self.scratch).env("RINGFENCE_LOG", "info")
    }

    fn is_forbidden(&self, server: &mut Server) -> bool {
        let mut client = server.connect(SESSIONS);
        let message = client.call("shell.exec", json!({"command": "uname"}));
        let code = &message["result"]["structuredContent"]["exit_code"];
        assert!([json!(0), json!(1)].contains(code), "{message}");
        *code == json!(1)
    }

    fn doctor(&self) -> Vec<Value> {
        let output = ringfence(&self.scratch)
            .env("PATH", self.search_path())
            .args(["doctor", "--json"])
            .output();
        let told: Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
        fn rows(value: &Value, found: &mut Vec<Value>) {
            match value {
                Value::Array(items) => items.iter().for_each(|item| rows(item, found)),
                Value::Object(row) if row.get("name") == Some(&json!("rules")) => {
                    found.push(value.clone())
                }
                Value::Object(row) => row.values().for_each(|item| rows(item, found)),
                _ => {}
            }
        }
        let mut found = Vec::new();
        rows(&told, &mut found);
        found
    }
}

#[test]
fn the_helpers_on_the_search_path_lead_to_the_rules_of_the_client() {
    let home = Home::at("elsewhere");
    let mut server = home.options().env("PATH", &home.search_path()).spawn();
    assert!(home.is_forbidden(&mut server), "{}", server.log());
    let file = home.path.join("rules/default.rules").display().to_string();
    eventually(DEADLINE, "the log names the file", || {
        server.log().contains(&format!("files in effect: {file}"))
    });
    let told = home.doctor();
    assert!(told.iter().any(|row| row["text"].as_str().unwrap().contains(&file)), "{told:?}");
}

/// Where Codex itself is the client, its environment says it. It has the other end of the server's standard input.
#[test]
fn the_environment_of_codex_leads_to_its_rules() {
    let home = Home::at("elsewhere");
    let codex = home.scratch.path().join("codex");
    let text = format!(
        "#!/bin/bash\ncat | env -u CODEX_HOME {} \"$@\"\nexit ${{PIPESTATUS[1]}}\n",
        binary().display()
    );
    std::fs::write(&codex, text).unwrap();
    std::fs::set_permissions(&codex, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut server =
        home.options().env("CODEX_HOME", home.path.to_str().unwrap()).through(codex).spawn();
    assert!(home.is_forbidden(&mut server), "{}", server.log());
}

#[test]
fn what_the_operator_sets_counts_before_what_codex_reveals() {
    let home = Home::at("elsewhere");
    let other = home.scratch.path().join("tmp").display().to_string();
    let mut server =
        home.options().env("PATH", &home.search_path()).env("CODEX_HOME", &other).spawn();
    assert!(!home.is_forbidden(&mut server), "{}", server.log());
    eventually(DEADLINE, "the log warns", || {
        server.log().contains("WARN")
            && server.log().contains("are ignored")
            && server.log().contains("elsewhere/rules")
    });
}

/// Nothing in a workspace is configuration, and whoever expects otherwise is told.
#[test]
fn a_home_in_the_workspace_gives_no_rules() {
    let home = Home::at("workspace/.home");
    let mut server = home.options().env("PATH", &home.search_path()).spawn();
    assert!(!home.is_forbidden(&mut server), "{}", server.log());
    eventually(DEADLINE, "the log warns", || {
        server.log().contains("are ignored") && server.log().contains("workspace/.home/rules")
    });
}

#[test]
fn a_server_without_rules_says_where_it_looked() {
    let home = Home::at("elsewhere");
    std::fs::remove_file(home.path.join("rules/default.rules")).unwrap();
    let mut server =
        home.options().env("PATH", &home.search_path()).arg("--tools").arg("shell").spawn();
    let _client = server.connect(SESSIONS);
    let place = home.path.join("rules/*.rules").display().to_string();
    eventually(DEADLINE, "the log says so", || {
        server.log().contains("WARN")
            && server.log().contains("none were found in")
            && server.log().contains(&place)
    });
    let told = home.doctor();
    assert!(
        told.iter().any(|row| row["text"]
            .as_str()
            .unwrap()
            .contains(&format!("none in /etc/codex/rules/*.rules, {place}"))),
        "{told:?}"
    );
}
