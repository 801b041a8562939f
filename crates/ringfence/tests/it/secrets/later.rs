//! A file that becomes private while sessions and their fences are there already.

use serde_json::json;

use super::{env_file, serving};
use crate::escalate::result;
use crate::support::matrix::eras;
use crate::support::{Approve, Client, DEADLINE, SESSIONS, Transport, eventually};

const SCRIPT: &str =
    "import os, sys\nprint(open(sys.argv[1]).read() if os.path.exists(sys.argv[1]) else 'nothing')";

#[test]
fn an_env_file_named_later_is_hidden_in_sessions_that_are_there() {
    for cell in eras() {
        let serving = serving(cell.transport, SCRIPT, "requires_approval = false");
        let scratch = serving.scratch.clone();
        // No value of a secret yet, so that what is read can be told from what is not shown.
        let path = env_file(&scratch, "A_TOKEN=four\n");
        let mut server = serving.options.clone().spawn();
        let mut client = server.connect(cell.version);
        client.approve = Approve::Never;
        let read = |client: &mut Client| {
            let shell = client
                .call("shell.exec", json!({"command": format!("cat {} || true", path.display())}));
            let tool = client.call("tool", json!({"mode": path}));
            [&shell, &tool]
                .map(|answer| result(answer)["stdout"].as_str().unwrap().contains("four"))
        };
        assert_eq!(read(&mut client), [true, true], "nobody has said that it is private");
        let config = scratch.path().join("config.toml");
        let text = std::fs::read_to_string(&config).unwrap();
        std::fs::write(&config, format!("{text}[secrets]\nenv_file = \"env\"\n")).unwrap();
        assert_eq!(read(&mut client), [false, false]);
        // It stays so when it is not named any more.
        std::fs::write(&config, text).unwrap();
        assert_eq!(read(&mut client), [false, false]);
    }
}

/// By a rename, as rotation does it: the file that was covered is not the one that is there.
#[test]
fn a_run_that_goes_on_sees_no_value_that_is_put_in_place() {
    let serving =
        serving(Transport::Stdio, SCRIPT, "").config("[secrets]\nenv_file = \"keys/env\"");
    let scratch = serving.scratch.clone();
    let keys = scratch.path().join("keys");
    std::fs::create_dir(&keys).unwrap();
    let put = |name: &str, text: &str| {
        std::fs::rename(env_file(&scratch, text), keys.join(name)).unwrap()
    };
    put("env", "A_TOKEN=four\n");
    let mut server = serving.options.clone().spawn();
    let mut client = server.connect(SESSIONS);
    let look = format!("cat {0}/env {0}/new", keys.display());
    let script = format!(
        "touch begun; while [ ! -e go ]; do {look}; done 2>/dev/null; {look}; ls {}",
        keys.display()
    );
    let arguments = json!({"command": script});
    let id = client.start_call("shell.exec", &arguments);
    eventually(DEADLINE, "it runs", || server.workspace().join("begun").exists());
    put("new", "A_TOKEN=five\n");
    std::fs::rename(keys.join("new"), keys.join("env")).unwrap();
    put("new", "A_TOKEN=six\n");
    std::fs::write(server.workspace().join("go"), "").unwrap();
    let answer = client.finish(id, "shell.exec", &arguments);
    assert!(!result(&answer)["stdout"].as_str().unwrap().contains("A_TOKEN"), "{answer:#}");
}
