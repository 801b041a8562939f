//! Descriptors in transit: sent, and received by no one. The kernel keeps one count of them for all programs of a user,
//! and every start of a run passes some.

use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;
use std::sync::Arc;

use serde_json::json;

use crate::support::place::{visible_binary, visible_folder};
use crate::support::server::Scratch;
use crate::support::{Client, DEADLINE, Options, SESSIONS, Transport, eventually};

/// What the server and everything it starts may have open: few, so that the count is full at once.
const FILES: u32 = 4096;

/// Sends as many as it may, says so by a file, and holds them.
const FILL: &str = r"
import os, resource, signal, socket, sys
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
held = []
try:
    while True:
        held.append(socket.socketpair())
        for _ in range(20):
            socket.send_fds(held[-1][0], [b'x'], [0] * 250)
except OSError as error:
    with open('partial' + sys.argv[1], 'w') as file:
        file.write(f'{error.errno} {most}')
    os.rename('partial' + sys.argv[1], 'full' + sys.argv[1])
signal.pause()
";

/// A user of whom nothing else runs, where the tests are root's: what is filled here is nobody else's.
fn unused_user() -> Option<u32> {
    rustix::process::geteuid().is_root().then(|| 2_000_000 + std::process::id())
}

fn give(scratch: &Scratch, user: Option<u32>) {
    for part in ["", "root", "workspace", "home", "tmp"] {
        chown(scratch.path().join(part), user, user).unwrap();
    }
}

/// Something that starts the binary as that user, with few files.
fn wrapper(scratch: &Scratch, user: Option<u32>) -> std::path::PathBuf {
    let become_user = user
        .map(|id| format!("setpriv --reuid {id} --regid {id} --clear-groups"))
        .unwrap_or_default();
    let file = scratch.path().join("limited");
    let binary = visible_binary().display();
    std::fs::write(
        &file,
        format!("#!/bin/sh\nexec {become_user} prlimit --nofile={FILES} '{binary}' \"$@\"\n"),
    )
    .unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    file
}

fn echo(client: &mut Client) -> serde_json::Value {
    client.call("shell.exec", json!({"command": "echo started"}))["result"]["structuredContent"]
        .clone()
}

#[test]
fn runs_that_fill_the_count_of_descriptors_stop_no_other_run() {
    let scratch: Arc<Scratch> = Scratch::within(visible_folder());
    let user = unused_user();
    let program = wrapper(&scratch, user);
    give(&scratch, user);
    let mut server = Options::new(Transport::Stdio).on(&scratch).through(program.clone()).spawn();
    let mut client = server.connect(SESSIONS);
    for number in ["1", "2", "3"] {
        let argv = ["/usr/bin/python3", "-I", "-S", "-c", FILL, number];
        client.call("shell.exec", json!({"argv": argv, "yield_ms": 0}));
        let full = scratch.path().join("workspace").join(format!("full{number}"));
        eventually(DEADLINE, "the run has sent all that it may", || full.exists());
        let said = std::fs::read_to_string(full).unwrap();
        let (errno, most) = said.split_once(' ').unwrap();
        assert_eq!(errno, rustix::io::Errno::TOOMANYREFS.raw_os_error().to_string(), "{said}");
        assert!(most.parse::<u32>().unwrap() < FILES, "a run has as many as the server: {said}");
    }
    let result = echo(&mut client);
    assert_eq!(result["stdout"], "started\n", "in a session that has run something: {result}");
    // A session of its own, with a zygote and a network that are yet to be made.
    let mut other = Options::new(Transport::Stdio).on(&scratch).through(program.clone()).spawn();
    let result = echo(&mut other.connect(SESSIONS));
    assert_eq!(result["stdout"], "started\n", "in a new session: {result}");
    let mut command = Command::new(program);
    command.args(["sandbox", "--root"]).arg(scratch.path().join("root")).arg("--workspace");
    command.arg(scratch.path().join("workspace")).args(["--", "echo", "started"]);
    let output = command.env("HOME", scratch.path().join("home")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "started\n", "{output:?}");
}
