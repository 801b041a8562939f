//! What a session may leave behind its runs: files and terminals in memory, and stored outputs.

use serde_json::{Value, json};

use crate::support::subset::assert_holds;
use crate::support::{Client, Options, SESSIONS, Transport};

fn stdout(client: &mut Client, command: &str) -> String {
    let message = client.call("shell.exec", json!({ "command": command }));
    let result = &message["result"]["structuredContent"];
    assert_eq!(result["exit_code"], 0, "{message}");
    result["stdout"].as_str().unwrap().to_owned()
}

/// Empty files take no bytes. What one run leaves counts for the next one.
#[test]
fn the_files_that_a_session_leaves_in_memory_are_counted() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    let fill = "import os\nn = 0\ntry:\n    while n < 20000:\n        os.mknod(f'/run/{os.getpid()}-{n}'); n += 1\nexcept OSError as error:\n    print(n, error.strerror)";
    let said = stdout(&mut client, &format!("python3 -c \"{fill}\""));
    assert!(said.ends_with("No space left on device\n"), "{said}");
    let said = stdout(&mut client, "touch /run/another 2>&1; touch /tmp/another && echo elsewhere");
    assert!(said.contains("No space left on device") && said.ends_with("elsewhere\n"), "{said}");
}

#[test]
fn a_session_has_a_bounded_number_of_terminals() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    let fill = "import os\nheld = []\ntry:\n    while len(held) < 1000: held.append(os.open('/dev/ptmx', os.O_RDWR))\nexcept OSError as error:\n    print(len(held), error.strerror)";
    let said = stdout(&mut client, &format!("python3 -c \"{fill}\""));
    assert_eq!(said, "256 No space left on device\n");
}

/// A command that says more than is kept of one output.
const LONG: &str = "head -c 1100000 /dev/zero | tr '\\0' x";

fn store(client: &mut Client) -> String {
    let message = client.call("shell.exec", json!({ "command": LONG }));
    message["result"]["structuredContent"]["output"]
        .as_str()
        .unwrap_or_else(|| panic!("{message}"))
        .to_owned()
}

fn read(client: &mut Client, handle: &str) -> Value {
    client.call("file.read", json!({"path": handle, "max_bytes": 1000}))["result"].clone()
}

#[test]
fn the_oldest_stored_outputs_are_dropped_and_their_handles_say_so() {
    let mut server = Options::new(Transport::Stdio).config("[limits]\noutput_file_mb = 1").spawn();
    let mut client = server.connect(SESSIONS);
    let handles: Vec<String> = (0..18).map(|_| store(&mut client)).collect();
    let (dropped, kept) = handles.split_at(2);
    for handle in dropped {
        let reply = read(&mut client, handle);
        let error = &reply["structuredContent"]["error"];
        assert_holds(
            json!({"kind": "not_found", "reason": "output_dropped", "message": "*", "hint": "*"}),
            error,
        );
    }
    for handle in kept {
        let reply = read(&mut client, handle);
        assert!(
            reply["content"][0]["text"].as_str().is_some_and(|text| text.contains("xxxx")),
            "{reply}"
        );
    }
    let sessions = std::fs::read_dir(server.root().join("outputs"))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let files =
        sessions.filter(|path| path.is_dir()).flat_map(|dir| std::fs::read_dir(dir).unwrap());
    assert_eq!(files.map(|file| file.unwrap().metadata().unwrap().len()).sum::<u64>(), 16 << 20);
}
