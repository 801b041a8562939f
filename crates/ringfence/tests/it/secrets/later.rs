//! A file that becomes private while sessions and their fences are there already.

use serde_json::json;

use super::{env_file, serving};
use crate::escalate::result;
use crate::support::matrix::eras;
use crate::support::{Approve, Client};

const SCRIPT: &str = "import os, sys\nprint(open(sys.argv[1]).read() if os.path.exists(sys.argv[1]) else 'nothing')";

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
            let shell = client.call("shell.exec", json!({"command": format!("cat {} || true", path.display())}));
            let tool = client.call("tool", json!({"mode": path}));
            [&shell, &tool].map(|answer| result(answer)["stdout"].as_str().unwrap().contains("four"))
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
