//! Values are planted, programs do all they can to have them shown, and then everything that was written is searched.

use serde_json::{Value, json};

use super::{env_file, files_with, holds, serving, set};
use crate::support::matrix::eras;
use crate::support::{Approve, SESSIONS, Transport};

/// With quotes of every kind: whoever quotes it for a shell or for JSON must not make it another text.
const STORED: &str = "st0red-\"value\"-of-'the'-database";
const FROM_FILE: &str = "f1le-value\\of-the-rotation";
const FROM_ENV: &str = "env1r0nment-value";
/// Begins as another ends, so that what is left of the one could show the other.
const OVERLAPPING: &str = "environment-begins-here";
const VALUES: [&str; 4] = [STORED, FROM_FILE, FROM_ENV, OVERLAPPING];

const SCRIPT: &str = r"
import os, subprocess, sys, time
mode = sys.argv[1]
values = [os.environ[name] for name in ('DB_PASSWORD', 'ROTATED', 'PLAIN_NAME', 'OTHER')]
assert all(len(value) > 8 for value in values) and values[0] in sys.argv[2]
def say(to, text):
    os.write(to, text.encode())
if mode == 'pieces':
    for byte in ''.join('<' + value + '>' for value in values) + '\n':
        for to in (1, 2):
            say(to, byte)
        time.sleep(0.0005)
if mode == 'lines':
    for value in values:
        print('value:', value, flush=True)
        print('value:', value, file=sys.stderr, flush=True)
        time.sleep(0.15)
if mode == 'much':
    for at in range(6000):
        print(at, values[at % 4], values[0] + values[1])
if mode == 'fail':
    sys.exit('it failed with ' + values[0])
if mode == 'hang':
    print('so far:', values[0], values[1][:-1], flush=True)
    say(1, values[2][:5])
    time.sleep(0.1)
    say(1, values[2][5:])
    time.sleep(600)
if mode == 'write':
    open('kept-' + str(len(values)), 'w').write('nothing secret')
if mode == 'start':
    subprocess.run(['md5sum', values[0], '--plain=' + values[2]])
    subprocess.run(['/usr/bin/echo', values[0]])
if mode == 'missing':
    open('/nonexistent/' + values[3])
";

const KEYS: &str = r#"
streaming = true
timeout_ms = 1500
side_effects = ["filesystem_write"]
env = { DB_PASSWORD = "${secret:DB}", ROTATED = "${ROTATED}", PLAIN_NAME = "${PLAIN}", OTHER = "${secret:OTHER}" }
"#;

#[test]
fn no_value_of_a_secret_is_in_anything_that_was_written() {
    for cell in eras().filter(|cell| cell.transport == Transport::Stdio) {
        let serving = serving(cell.transport, SCRIPT, KEYS)
            .config("[secrets]\nenv_file = \"env\"\n[limits]\ngrace_ms = 200\n[log]\nfile = \"log\"\nformat = \"json\"\nlevel = \"trace\"")
            .rules(&[("[\"md5sum\"]", "forbidden")]);
        let config =
            serving.options.config.replace("\"{mode}\"]", "\"{mode}\", \"password=${secret:DB}\"]");
        let scratch = serving.scratch.clone();
        let planted = env_file(&scratch, &format!("ROTATED='{FROM_FILE}'\n"));
        set(&scratch, "DB", STORED);
        set(&scratch, "OTHER", OVERLAPPING);
        let mut options = serving.options.clone().arg("--audit-execs").env("PLAIN", FROM_ENV);
        options.config = config;
        let mut server = options.spawn();
        let mut client = server.connect(cell.version);
        // Asked once: the answer to a question of 2026-07-28 is another request, and has no progress.
        client.approve = Approve::Session;
        let mut call = |tool: &str, arguments: Value| {
            let params =
                json!({"name": tool, "arguments": arguments, "_meta": {"progressToken": "p"}});
            let id = client.start("tools/call", params);
            client.finish(id, tool, &arguments)
        };

        let shown: String =
            ["DB", "ROTATED", "PLAIN", "OTHER"].map(|name| format!("<[secret:{name}]>")).concat();
        let pieces = call("tool", json!({"mode": "pieces"}));
        let result = &pieces["result"]["structuredContent"];
        assert_eq!(
            (&result["stdout"], &result["stderr"]),
            (&json!(format!("{shown}\n")), &json!(format!("{shown}\n")))
        );
        // Counts are those of the program.
        let written: usize = VALUES.iter().map(|value| value.len() + 2).sum::<usize>() + 1;
        assert_eq!(
            (&result["stdout_bytes"], &result["stderr_bytes"]),
            (&json!(written), &json!(written))
        );

        call("tool", json!({"mode": "lines"}));
        let much = call("tool", json!({"mode": "much"}));
        let output = much["result"]["structuredContent"]["output"]
            .as_str()
            .unwrap_or_else(|| panic!("{much:#}"));
        let stored = call("file.read", json!({"path": output}));
        assert!(stored.to_string().contains("[secret:DB][secret:ROTATED]"), "{stored:#}");
        let failed = call("tool", json!({"mode": "fail"}));
        assert_eq!(
            failed["result"]["structuredContent"]["stderr"], "it failed with [secret:DB]\n",
            "{failed:#}"
        );
        let hung = call("tool", json!({"mode": "hang"})).to_string();
        assert!(
            hung.contains("deadline_exceeded") && hung.contains("so far: [secret:DB] "),
            "{hung}"
        );
        assert!(hung.contains("[secret:PLAIN]"), "{hung}");
        call("tool", json!({"mode": "write"}));
        let started = call("tool", json!({"mode": "start"})).to_string();
        assert!(started.contains("[secret:DB]"), "{started}");
        let missing = call("tool", json!({"mode": "missing"})).to_string();
        assert!(missing.contains("/nonexistent/[secret:OTHER]"), "{missing}");

        // What is in a file comes back without them too, however it is read.
        let file = scratch.path().join("workspace/has-them");
        std::fs::write(&file, VALUES.join("\n")).unwrap();
        for (tool, arguments) in [
            ("file.read", json!({"path": "has-them"})),
            ("file.search", json!({"pattern": "value"})),
            ("shell.exec", json!({"command": "cat has-them; cat has-them >&2; exit 3"})),
            (
                "code.exec",
                json!({"language": "python", "code": "print(open('has-them').read()); open('has-them').read()"}),
            ),
        ] {
            let message = call(tool, arguments);
            assert!(message.to_string().contains("[secret:"), "{tool}: {message:#}");
        }
        let listed = client.request("tools/list", json!({}));
        assert!(
            listed.to_string().contains("${secret:OTHER}"),
            "the list shows what it is, not what it holds: {listed:#}"
        );
        // The question shows that there is one.
        let questions = json!(client.questions).to_string();
        assert!(
            questions.contains("DB_PASSWORD (set)") && questions.contains("PLAIN_NAME"),
            "{questions}"
        );
        assert!(
            client.notifications.iter().any(|one| one.to_string().contains("[secret:ROTATED]")),
            "there was progress"
        );

        let stops = server.stops(13);
        assert_eq!(stops[0]["stdout_bytes"], written, "{:#}", stops[0]);
        let execs = server.events("exec");
        assert!(
            execs.iter().any(|exec| exec["command"].to_string().contains("[secret:DB]")),
            "{execs:#?}"
        );
        let log = std::fs::read_to_string(scratch.path().join("log")).unwrap();
        assert_eq!(log.matches("a call ended").count(), 13, "{log}");
        let heard = client.heard.lock().unwrap().clone();
        // As it stands in JSON, where quotes and backslashes have one more.
        let quoted = VALUES.map(|value| json!(value).to_string().trim_matches('"').to_owned());
        let all: Vec<&str> = VALUES.into_iter().chain(quoted.iter().map(String::as_str)).collect();
        assert!(!holds(&heard, &all), "the client was told");
        assert!(!holds(server.log().as_bytes(), &all), "it is in the log");
        let mut found = files_with(scratch.path(), &all);
        found.sort();
        // Where they were planted, and nowhere else: the search can find them.
        assert_eq!(found, [planted, file]);
        drop(client);
        assert!(!holds(server.log().as_bytes(), &all));
    }
}

/// The words and the variables of a program that a rule asks about are its own, whatever it put there.
#[test]
fn a_question_about_a_program_shows_no_value_of_a_secret() {
    let serving = serving(Transport::Stdio, "", "env = { A = \"${secret:DB}\" }")
        .config("[limits]\ngrace_ms = 200")
        .outside()
        .rules(&[("[\"md5sum\"]", "prompt")]);
    set(&serving.scratch, "DB", STORED);
    std::fs::write(serving.scratch.path().join("workspace/has-it"), STORED).unwrap();
    let mut server = serving.options.spawn();
    let mut client = server.connect(SESSIONS);
    client.approve = Approve::Decline;
    // The first question is cut within the value.
    let script = "md5sum $(printf %0100d 1) \"$(cat has-it)\"; export PLAIN=\"x $(cat has-it)\"; md5sum \"$(cat has-it)\" \"a$(cat has-it)b\"; true";
    client.call("shell.exec", json!({"command": script}));
    let question = json!(client.questions).to_string();
    assert!(question.contains("[secret:DB]") && question.contains("a[secret:DB]b"), "{question}");
    let told = format!("{question}{}{}", json!(server.audit()), server.log());
    let quoted = json!(STORED).to_string();
    assert!(!holds(told.as_bytes(), &[STORED, quoted.trim_matches('"'), "st0red"]), "{told}");
}
