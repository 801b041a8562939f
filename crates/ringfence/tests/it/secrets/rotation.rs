//! Values change while the server runs: a call that comes after the change has the new one.

use serde_json::json;

use super::{env_file, error_of, files_with, holds, secret, serving, set};
use crate::support::matrix::eras;
use crate::support::{Approve, DEADLINE, eventually};

/// Says which of the values it has, without saying the value, and then the value.
const SCRIPT: &str = "import hashlib, os, sys, time
print(*(hashlib.sha256(os.environ[name].encode()).hexdigest()[:8] for name in ('A', 'B')), flush=True)
while sys.argv[1] == 'wait' and not os.path.exists('go'):
    time.sleep(0.01)
print(os.environ['A'], os.environ['B'])";

const KEYS: &str = "env = { A = \"${ROTATED}\", B = \"${secret:DB}\" }\nrequires_approval = false";

fn mark(value: &str) -> String {
    let hash = std::process::Command::new("sh")
        .args(["-c", "printf %s \"$1\" | sha256sum | cut -c1-8", "sh", value])
        .output()
        .unwrap();
    String::from_utf8(hash.stdout).unwrap().trim().to_owned()
}

#[test]
fn later_calls_have_the_new_value_and_running_ones_the_old() {
    for cell in eras() {
        let serving = serving(cell.transport, SCRIPT, KEYS).config("[secrets]\nenv_file = \"env\"");
        let scratch = serving.scratch.clone();
        env_file(&scratch, "ROTATED=first-value-of-a\n");
        let mut server = serving.options.clone().env("RINGFENCE_LOG", "trace").spawn();
        let mut client = server.connect(cell.version);
        client.approve = Approve::Never;
        // There is no store yet: it is made under the eyes of the server.
        assert_eq!(
            error_of(&client.call("tool", json!({"mode": "x"})))["reason"],
            "missing_secret"
        );
        let mut told = |a: &str, b: &str| {
            let message = client.call("tool", json!({"mode": "x"}));
            let said = format!("{} {}\n[secret:ROTATED] [secret:DB]\n", mark(a), mark(b));
            assert_eq!(message["result"]["structuredContent"]["stdout"], said, "{message:#}");
        };
        set(&scratch, "DB", "first-value-of-b");
        told("first-value-of-a", "first-value-of-b");
        set(&scratch, "DB", "second-value-of-b");
        told("first-value-of-a", "second-value-of-b");
        // In place, and by another file in its place.
        env_file(&scratch, "ROTATED=second-value-of-a\n");
        told("second-value-of-a", "second-value-of-b");
        let fresh = env_file(&scratch, "ROTATED=second-value-of-a\n");
        std::fs::rename(&fresh, scratch.path().join("env.old")).unwrap();
        std::fs::copy(scratch.path().join("env.old"), scratch.path().join("env.new")).unwrap();
        std::fs::write(scratch.path().join("env.new"), "ROTATED=third-value-of-a\n").unwrap();
        std::fs::rename(scratch.path().join("env.new"), &fresh).unwrap();
        told("third-value-of-a", "second-value-of-b");

        // One that runs keeps what it began with; the old value is still found when it says it.
        let arguments = json!({"mode": "wait"});
        let id = client.start_call("tool", &arguments);
        eventually(DEADLINE, "it runs", || server.events("call.start").len() == 5);
        set(&scratch, "DB", "third-value-of-b");
        let message = client.call("tool", json!({"mode": "x"}));
        assert!(message.to_string().contains(&mark("third-value-of-b")), "{message:#}");
        std::fs::write(scratch.path().join("workspace/go"), "").unwrap();
        let message = client.finish(id, "tool", &arguments);
        let said = format!(
            "{} {}\n[secret:ROTATED] [secret:DB]\n",
            mark("third-value-of-a"),
            mark("second-value-of-b")
        );
        assert_eq!(message["result"]["structuredContent"]["stdout"], said, "{message:#}");

        // One that is taken away, and an env file that has become unfit.
        assert!(secret(&scratch, &["rm", "DB"], "").status.success());
        assert_eq!(
            error_of(&client.call("tool", json!({"mode": "x"})))["reason"],
            "missing_secret"
        );
        env_file(&scratch, "ROTATED=\"never closed\n");
        set(&scratch, "DB", "first-value-of-b");
        assert_eq!(error_of(&client.call("tool", json!({"mode": "x"})))["reason"], "secret_store");
        let values = ["first-value-of", "second-value-of", "third-value-of"];
        assert!(
            !holds(server.log().as_bytes(), &values)
                && !holds(&client.heard.lock().unwrap(), &values)
        );
        let found = files_with(scratch.path(), &values);
        assert_eq!(found, [scratch.path().join("env.old")], "the one that was planted");
    }
}
