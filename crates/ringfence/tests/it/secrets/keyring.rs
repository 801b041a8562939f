//! The system's keyring: a real one, on a bus of its own.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};

use serde_json::{Value, json};

use super::{error_of, secret_with, serving, set, text};
use crate::support::server::Scratch;
use crate::support::{SESSIONS, Transport};

/// A session bus with gnome-keyring on it. Both go when its input is closed.
struct Session {
    child: Child,
    input: Option<ChildStdin>,
    address: String,
}

impl Session {
    fn start(scratch: &Scratch) -> Session {
        let home = scratch.path().join("home");
        let script = "eval \"$(printf 'password' | gnome-keyring-daemon --unlock --components=secrets)\"\n\
                      echo \"$DBUS_SESSION_BUS_ADDRESS\"\ncat >/dev/null\nkill \"$GNOME_KEYRING_PID\" 2>/dev/null; true";
        let mut child = Command::new("dbus-run-session")
            .args(["--", "sh", "-c", script])
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", &home)
            .env("XDG_RUNTIME_DIR", scratch.path().join("tmp"))
            .current_dir(&home)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("dbus-run-session: see conformance/packages.sh");
        let input = child.stdin.take();
        let mut address = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut address).unwrap();
        Session { child, input, address: address.trim().to_owned() }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

#[test]
fn the_systems_keyring_is_asked_for_what_the_store_does_not_have() {
    let serving = serving(
        Transport::Stdio,
        "import os; print(os.environ['A'] == 'value-in-the-keyring', os.environ['A'], os.environ['B'] == 'value-in-the-store')",
        "env = { A = \"${secret:RING}\", B = \"${secret:DB}\" }\nrequires_approval = false",
    );
    let scratch = serving.scratch.clone();
    let session = Session::start(&scratch);
    let env = [("DBUS_SESSION_BUS_ADDRESS", session.address.as_str())];
    let ring = |words: &[&str], input: &str| secret_with(&scratch, words, input, &env);
    set(&scratch, "DB", "value-in-the-store");
    let stored = ring(&["set", "RING", "--keyring"], "value-in-the-keyring\n");
    assert!(stored.status.success(), "{stored:?}");
    // Of one that is in both the store's counts.
    assert!(text(&ring(&["set", "DB", "--keyring"], "another-value")).contains("takes precedence"));
    let options = serving.options.clone().env(env[0].0, env[0].1);
    let mut server = options.clone().spawn();
    let message = server.connect(SESSIONS).call("tool", json!({"mode": "x"}));
    assert_eq!(
        message["result"]["structuredContent"]["stdout"], "True [secret:RING] True\n",
        "{message:#}"
    );

    let listed: Value = serde_json::from_slice(&ring(&["list", "--json"], "").stdout).unwrap();
    let place = |name: &str| {
        let rows = listed["secrets"].as_array().unwrap();
        rows.iter().find(|row| row["name"] == name).map(|row| row["place"].clone())
    };
    assert_eq!(
        (place("RING"), place("DB")),
        (Some(json!("keyring")), Some(json!("store"))),
        "{listed:#}"
    );
    assert!(!listed.to_string().contains("value-in"), "{listed:#}");

    assert!(ring(&["rm", "RING", "--keyring"], "").status.success());
    assert!(!ring(&["rm", "RING", "--keyring"], "").status.success());
    let mut server = options.clone().spawn();
    let message = server.connect(SESSIONS).call("tool", json!({"mode": "x"}));
    assert_eq!(error_of(&message)["reason"], "missing_secret", "{message:#}");
    // A session whose keyring is gone, and an operator who wants none.
    drop(session);
    let mut server = options.clone().spawn();
    let message = server.connect(SESSIONS).call("tool", json!({"mode": "x"}));
    assert_eq!(error_of(&message)["reason"], "secret_store", "{message:#}");
    server.wait_for_log("the keyring cannot be used");
    let mut server = options.config("[secrets]\nkeyring = false").spawn();
    let message = server.connect(SESSIONS).call("tool", json!({"mode": "x"}));
    assert_eq!(error_of(&message)["reason"], "missing_secret", "{message:#}");
}
