//! Questions that a rule raises while a command runs: what they show, what an answer is good for, and what happens
//! to the run meanwhile.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::escalate::{Serving, result};
use crate::support::matrix::eras;
use crate::support::place::visible_folder;
use crate::support::process::{marker, wait_for_death};
use crate::support::server::ringfence;
use crate::support::subset::assert_holds;
use crate::support::{Approve, Client, DEADLINE, MODERN, SESSIONS, Server, Transport, eventually};

/// Rules that ask about the operator's `out`, about `md5sum` and about `sleep`, and let them out.
fn asking(transport: Transport) -> Serving {
    let serving = Serving::new(transport).config("limits.grace_ms = 200").outside();
    let out = serving.pattern("out");
    serving.rules(&[(&out, "prompt"), ("[\"md5sum\"]", "prompt"), ("[\"sleep\"]", "prompt")])
}

fn start(serving: &Serving, version: &'static str) -> (Server, Client) {
    let mut server = serving.options.clone().spawn();
    let client = server.connect(version);
    (server, client)
}

fn text(question: &Value) -> &str {
    question["message"].as_str().unwrap()
}

fn line<'a>(question: &'a Value, name: &str) -> &'a str {
    let found = text(question).lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    found.unwrap_or_else(|| panic!("there is no `{name}` in {}", text(question)))
}

#[test]
fn a_question_shows_everything_that_decides_and_no_secret() {
    for cell in eras() {
        let serving = asking(cell.transport);
        let (server, mut client) = start(&serving, cell.version);
        let script = "mkdir -p 'a b'; cd 'a b'; export ADDED=value URL=ftp://me:hunter2@host/x MY_TOKEN=hunter2 PATH=/usr/bin:/bin; unset LANG
            bash -c 'md5sum --api-key=hunter2 --token hunter2 \"two words\"; true'; $OUT true; true";
        client.call("shell.exec", serving.script(script));
        let [first, second] = &client.questions[..] else { panic!("{:?}", client.questions) };
        assert!(
            text(first)
                .lines()
                .next()
                .unwrap()
                .ends_with(
                    "lines; read all of them before you answer) A rule requires approval: because of prompt"
                )
                && text(first).starts_with("Allow `md5sum "),
            "{first}"
        );
        assert_eq!(line(first, "program"), "/usr/bin/md5sum");
        assert_eq!(
            line(first, "command"),
            "md5sum '--api-key=[redacted]' --token '[redacted]' 'two words'"
        );
        let directory = server.workspace().canonicalize().unwrap().join("a b");
        let lines: Vec<&str> = text(first).lines().collect();
        assert!(lines[1].starts_with("command: md5sum "), "{first}");
        assert!(lines[2].starts_with("runs: outside the sandbox, "), "{first}");
        assert!(lines[2].ends_with(&format!("; directory: {}", directory.display())), "{first}");
        // Outside it is not the path that the command has set.
        assert!(lines[3].starts_with("PATH: /") && lines[3] != "PATH: /usr/bin:/bin", "{first}");
        assert!(lines[0].contains(&format!("({} lines; read all ", lines.len())), "{first}");
        for part in [
            "+ADDED=value",
            "+URL=ftp://[redacted]@host/x",
            "+MY_TOKEN=[redacted]",
            "+PATH=/usr/bin:/bin",
        ] {
            assert!(line(first, "environment").contains(part), "{part}: {first}");
        }
        assert!(line(first, "called by").matches("bash(").count() >= 2, "{first}");
        assert_eq!(
            line(first, "rule"),
            "test.rules:2",
            "clients need not know where rules are kept"
        );
        assert!(line(first, "runs").starts_with("outside the sandbox"), "{first}");
        assert_eq!(
            line(second, "script"),
            serving.scratch.path().join("tools/out").to_str().unwrap()
        );
        let told =
            json!([client.questions, server.events("exec"), server.events("approval")]).to_string();
        // The script itself is the call's argument, and the client wrote it.
        assert!(!told.contains("hunter2"), "{told}");
    }
}

#[test]
fn a_yes_lets_it_out_and_a_no_ends_it_alone() {
    for cell in eras() {
        let serving = asking(cell.transport);
        let (server, mut client) = start(&serving, cell.version);
        let own = std::fs::read_link("/proc/self/ns/mnt").unwrap().display().to_string();
        let message =
            client.call("shell.exec", serving.script("$OUT readlink /proc/self/ns/mnt; echo $?"));
        assert_eq!(result(&message)["stdout"], format!("{own}\n0\n"), "{message}");
        for answer in [Approve::Decline, Approve::Cancel] {
            client.approve = answer;
            let message =
                client.call("shell.exec", serving.script("$OUT touch $M; echo $?; echo on"));
            let result = result(&message);
            assert_eq!(result["stdout"], "1\non\n", "{message}");
            assert_holds(json!("~: not allowed: "), &result["stderr"]);
            let name = serving.scratch.path().join("tools/out");
            assert_holds(
                json!([{"kind": "exec", "name": name, "count": 1}]),
                &result["sandbox"]["denials"],
            );
        }
        assert!(!serving.marker().exists());
        let expected = json!([
            {"verdict": "prompt", "by": "client", "ran": "outside"},
            {"verdict": "prompt", "by": "approval", "ran": "refused"},
            {"verdict": "prompt", "by": "approval", "ran": "refused"},
        ]);
        assert_holds(expected, &json!(server.events("exec")));
        assert_holds(
            json!([{"outcome": "approved", "by": "client"}, {"outcome": "denied"}]),
            &json!(server.events("approval")),
        );
    }
}

/// Trust is for the very file with the very words, in this session.
#[test]
fn trust_is_for_the_same_words_of_the_same_file() {
    for version in [SESSIONS, MODERN] {
        let serving = asking(Transport::Http);
        let (mut server, mut client) = start(&serving, version);
        client.approve = Approve::Session;
        let ask = |client: &mut Client, script: &str| {
            let before = client.questions.len();
            client.call("shell.exec", serving.script(script));
            client.questions.len() - before
        };
        assert_eq!(ask(&mut client, "md5sum /etc/hostname; md5sum /etc/hostname"), 1);
        assert_eq!(ask(&mut client, "md5sum /etc/hostname"), 0, "another call of the session");
        assert_eq!(ask(&mut client, "md5sum /etc/hostname /etc/passwd"), 1, "other words");
        assert_eq!(ask(&mut client, "md5sum -- /etc/hostname"), 1, "other words");
        assert_eq!(
            ask(
                &mut client,
                "cp /usr/bin/md5sum .; ./md5sum /etc/hostname; (exec -a md5sum ./md5sum /etc/hostname)"
            ),
            2,
            "another file"
        );
        let mut other = server.connect(version);
        assert_eq!(ask(&mut other, "md5sum /etc/hostname"), 1, "another session");
        serving.write_rules(&[
            ("[\"true\"]", "prompt"),
            ("[\"true\"]", "prompt"),
            ("[\"true\"]", "prompt"),
            ("[\"md5sum\"]", "prompt"),
        ]);
        assert_eq!(ask(&mut client, "md5sum /etc/hostname"), 1, "another rule");
    }
}

/// A script is known by its interpreter and its words, and those of two scripts can be the same.
#[test]
fn trust_in_a_script_inside_is_not_trust_in_one_that_leaves() {
    let serving = Serving::new(Transport::Stdio).outside();
    let folder = visible_folder().join(format!("trust-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let tool = folder.join("deploy");
    std::fs::write(&tool, "#!/bin/sh\nreadlink /proc/self/ns/mnt\n").unwrap();
    std::fs::set_permissions(&tool, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let rules = format!(
        "host_executable(name = \"deploy\", paths = [{tool:?}])\nprefix_rule(pattern = [\"deploy\"], decision = \"prompt\")\n"
    );
    std::fs::write(serving.rules_file(), &rules).unwrap();
    let file = serving.rules_file();
    let mut server = serving.options.clone().arg("--rules").arg(file.to_str().unwrap()).spawn();
    let mut client = server.connect(SESSIONS);
    client.approve = Approve::Session;
    let first = client.call(
        "shell.exec",
        json!({"command": "printf '#!/bin/sh\necho planted\n' > deploy; chmod +x deploy; ./deploy"}),
    );
    assert_eq!(result(&first)["stdout"], "planted\n", "{first}");
    assert!(
        line(&client.questions[0], "runs").starts_with("in the sandbox"),
        "{:?}",
        client.questions
    );
    client.approve = Approve::Decline;
    let second = client.call(
        "shell.exec",
        json!({"command": format!("cd {}; ./deploy; echo $?", folder.display())}),
    );
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(client.questions.len(), 2, "the real one was not asked about: {second}");
    assert_eq!(result(&second)["stdout"], "1\n", "{second}");
}

#[test]
fn silence_is_a_no() {
    let serving = asking(Transport::Http).config("[approval]\nexpiry_s = 1");
    let (server, mut client) = start(&serving, SESSIONS);
    client.approve = Approve::Never;
    let message = client.call("shell.exec", serving.script("$OUT touch $M; echo $?"));
    assert_eq!(result(&message)["stdout"], "1\n", "{message}");
    assert_holds(json!("~no one answered"), &result(&message)["stderr"]);
    assert_holds(
        json!([{"outcome": "expired", "by": "nobody"}]),
        &json!(server.events("approval")),
    );
    assert!(!serving.marker().exists());
    let mut modern = serving.options.clone().spawn();
    let mut client = modern.connect(MODERN);
    client.approve = Approve::Never;
    let marker = marker();
    let message = client.call(
        "shell.exec",
        serving.script(&format!(
            "/usr/bin/perl -e 'sleep $ARGV[0]' {marker} & $OUT touch $M; echo $? > code; wait"
        )),
    );
    assert_eq!(message["result"]["resultType"], "input_required", "{message}");
    wait_for_death(&marker, DEADLINE);
    assert!(!serving.marker().exists());
    // The other server's call is on record beside it.
    eventually(DEADLINE, "it is on record", || {
        modern.events("call.stop").iter().any(|stop| stop["status"] == "cancelled")
    });
}

#[test]
fn nobody_to_ask_is_a_no_with_a_hint() {
    for version in [SESSIONS, MODERN] {
        let serving = asking(Transport::Stdio);
        let mut server = serving.options.clone().spawn();
        let mut client = server.client(version);
        client.capabilities = json!({});
        client.shake_hands();
        let message = client.call("shell.exec", serving.script("$OUT touch $M; echo $?"));
        assert_eq!(result(&message)["stdout"], "1\n", "{message}");
        let said = result(&message)["stderr"].as_str().unwrap();
        assert!(
            said.contains("no one can be asked") && said.contains("ringfence approvals"),
            "{said}"
        );
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(!serving.marker().exists());
        assert_holds(
            json!([{"outcome": "denied", "by": "nobody"}]),
            &json!(server.events("approval")),
        );
    }
}

/// As many as anybody reads wait; the rest are denied at once, and those that wait are none the worse.
#[test]
fn more_than_thirty_two_questions_do_not_wait() {
    let serving = asking(Transport::Stdio);
    let (server, mut client) = start(&serving, SESSIONS);
    client.approve = Approve::Never;
    let script = "for i in $(seq 40); do ( md5sum /etc/hostname > /dev/null 2>> errors; echo $? >> codes ) & done; wait; sort codes | uniq -c";
    let id = client.start_call("shell.exec", &serving.script(script));
    let mut asked = Vec::new();
    for _ in 0..32 {
        asked.push(client.wait_question().0);
    }
    let codes = || std::fs::read_to_string(server.workspace().join("codes")).unwrap_or_default();
    eventually(DEADLINE, "the others are denied", || codes().lines().count() == 8);
    client.drain();
    assert!(client.unanswered.is_empty());
    for id in &asked {
        client.reply(id, Approve::Once.answer().unwrap());
    }
    let message = client.wait(&id);
    let counts: Vec<String> = result(&message)["stdout"]
        .as_str()
        .unwrap()
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(counts, ["32 0", "8 1"], "{message}");
    let errors = std::fs::read_to_string(server.workspace().join("errors")).unwrap();
    assert_eq!(errors.matches("too many questions").count(), 8, "{errors}");
    let limited = server.events("approval").iter().filter(|event| event["by"] == "limit").count();
    assert_eq!(limited, 8);
}

#[test]
fn several_at_once_are_answered_in_any_order() {
    let serving = asking(Transport::Sse);
    let (_server, mut client) = start(&serving, "2025-06-18");
    client.approve = Approve::Never;
    let id = client.start_call(
        "shell.exec",
        &serving.script(
            "for i in 1 2 3 4; do ( $OUT echo yes-$i 2>/dev/null || echo no-$i ) & done; wait",
        ),
    );
    let mut asked: Vec<(Value, Value)> = (0..4).map(|_| client.wait_question()).collect();
    asked.reverse();
    let mut expected = BTreeSet::new();
    for (at, (id, question)) in asked.iter().enumerate() {
        let number = line(question, "command").rsplit('-').next().unwrap();
        let (answer, word) =
            if at % 2 == 0 { (Approve::Once, "yes") } else { (Approve::Decline, "no") };
        expected.insert(format!("{word}-{number}"));
        client.reply(id, answer.answer().unwrap());
    }
    let message = client.wait(&id);
    let said: BTreeSet<String> =
        result(&message)["stdout"].as_str().unwrap().lines().map(str::to_owned).collect();
    assert_eq!(said, expected, "{message}");
}

/// The call's time is the command's; what a human takes to decide is not in it.
#[test]
fn the_clock_stands_still_while_somebody_decides() {
    let serving = asking(Transport::Stdio);
    let (_server, mut client) = start(&serving, SESSIONS);
    client.approve = Approve::Never;
    let mut arguments = serving.script("$OUT echo out; echo on");
    arguments["timeout_ms"] = json!(1500);
    let id = client.start_call("shell.exec", &arguments);
    let (asked, _) = client.wait_question();
    let until = Instant::now() + Duration::from_millis(2500);
    eventually(DEADLINE, "more time has passed than the call has", || Instant::now() > until);
    client.reply(&asked, Approve::Once.answer().unwrap());
    let message = client.wait(&id);
    assert_eq!(result(&message)["stdout"], "out\non\n", "{message}");
    let mut arguments = serving.script("$OUT sh -c 'while :; do :; done'");
    arguments["timeout_ms"] = json!(1000);
    client.approve = Approve::Once;
    let message = client.call("shell.exec", arguments);
    assert_eq!(
        result(&message)["error"]["kind"],
        "deadline_exceeded",
        "it runs on once it is allowed: {message}"
    );
}

fn pending(server: &Server) -> usize {
    let output = ringfence(&server.scratch)
        .args(["approvals", "--json", "--root"])
        .arg(server.root())
        .output()
        .unwrap();
    let value: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    value["pending"].as_array().map_or(0, Vec::len)
}

/// On 2026-07-28 the call is parked: everything that is open goes into one round, and the run goes on where it was.
#[test]
fn a_parked_call_puts_all_open_questions_into_one_round() {
    for transport in [Transport::Stdio, Transport::Http, Transport::Sse] {
        let serving = asking(transport).config("[approval]\nterminal = true");
        let (server, mut client) = start(&serving, MODERN);
        let arguments =
            serving.script("echo begun >> begun; for i in 1 2 3 4 5; do $OUT echo out-$i & done; wait; $OUT echo last");
        client.approve = Approve::Never;
        let first = client.call("shell.exec", arguments.clone());
        assert_eq!(first["result"]["resultType"], "input_required", "{first}");
        eventually(DEADLINE, "all wait", || pending(&server) == 5);
        let round =
            client.retry("shell.exec", &arguments, &first["result"]["requestState"], json!({}));
        let asked = round["result"]["inputRequests"].as_object().unwrap().clone();
        assert_eq!(asked.len(), 5, "{round}");
        let commands: BTreeSet<String> = asked
            .values()
            .map(|question| line(&question["params"], "command").to_owned())
            .collect();
        assert_eq!(commands.len(), 5);
        let answers: Map<String, Value> =
            asked.keys().map(|key| (key.clone(), Approve::Once.answer().unwrap())).collect();
        let next = client.retry(
            "shell.exec",
            &arguments,
            &round["result"]["requestState"],
            Value::Object(answers),
        );
        let asked = next["result"]["inputRequests"].as_object().unwrap().clone();
        assert_eq!(asked.len(), 1, "{next}");
        let answers: Map<String, Value> =
            asked.keys().map(|key| (key.clone(), Approve::Decline.answer().unwrap())).collect();
        let last = client.retry(
            "shell.exec",
            &arguments,
            &next["result"]["requestState"],
            Value::Object(answers),
        );
        let mut said: Vec<&str> = result(&last)["stdout"].as_str().unwrap().lines().collect();
        said.sort_unstable();
        assert_eq!(said, ["out-1", "out-2", "out-3", "out-4", "out-5"], "{last}");
        assert_eq!(result(&last)["exit_code"], 1);
        assert_eq!(std::fs::read_to_string(server.workspace().join("begun")).unwrap(), "begun\n");
        assert_eq!(server.events("call.start").len(), 1);
    }
}

/// A process that is gone needs no answer any more; its question is taken back, and a late yes starts nothing.
#[test]
fn a_question_of_a_process_that_is_gone_is_taken_back() {
    let serving = asking(Transport::Http).config("[approval]\nterminal = true");
    let (server, mut client) = start(&serving, SESSIONS);
    client.listen();
    client.approve = Approve::Never;
    let script = "$OUT touch $M & p=$!; until [ -e go ]; do sleep 0 2>/dev/null; read -t 0.01 < <(:); done; kill -9 $p; wait $p; echo $?; until [ -e end ]; do read -t 0.01 < <(:); done";
    // Nothing here may be what a rule asks about but the one.
    let script = script.replace("sleep 0 2>/dev/null; ", "");
    let id = client.start_call("shell.exec", &serving.script(&script));
    let (asked, _) = client.wait_question();
    assert_eq!(pending(&server), 1);
    std::fs::write(server.workspace().join("go"), "").unwrap();
    eventually(DEADLINE, "nothing is asked any more", || pending(&server) == 0);
    client.reply(&asked, Approve::Once.answer().unwrap());
    std::fs::write(server.workspace().join("end"), "").unwrap();
    let message = client.wait(&id);
    assert_eq!(result(&message)["stdout"], "137\n", "{message}");
    assert!(!serving.marker().exists());
}

#[test]
fn a_call_that_is_cancelled_takes_its_questions_back() {
    let serving = asking(Transport::Http).config("[approval]\nterminal = true");
    let (server, mut client) = start(&serving, SESSIONS);
    client.listen();
    client.approve = Approve::Never;
    let id = client
        .start_call("shell.exec", &serving.script("$OUT touch $M & md5sum /etc/hostname & wait"));
    let first = client.wait_question().0;
    client.wait_question();
    client.cancel(&id);
    eventually(DEADLINE, "nothing is asked any more", || pending(&server) == 0);
    assert_eq!(server.stops(1)[0]["status"], "cancelled");
    client.reply(&first, Approve::Once.answer().unwrap());
    assert_eq!(client.request("ping", json!({}))["result"], json!({}));
    assert!(!serving.marker().exists());
}

/// Where nothing leaves, a question is about running it at all.
#[test]
fn a_question_is_asked_though_nothing_leaves() {
    let serving = Serving::new(Transport::Stdio)
        .rules(&[("[\"md5sum\"]", "prompt"), ("[\"stat\"]", "allow")]);
    let (server, mut client) = start(&serving, SESSIONS);
    let message = client.call(
        "shell.exec",
        serving.script("md5sum /etc/hostname > /dev/null; echo $?; stat / > /dev/null; echo $?"),
    );
    assert_eq!(result(&message)["stdout"], "0\n0\n", "{message}");
    assert_eq!(client.questions.len(), 1);
    let place = line(&client.questions[0], "runs");
    assert!(
        place.starts_with("in the sandbox (nothing leaves the sandbox); directory: /"),
        "{place}"
    );
    assert!(line(&client.questions[0], "PATH").starts_with('/'));
    assert_holds(
        json!([{"verdict": "prompt", "ran": "inside"}, {"verdict": "allow", "ran": "inside"}]),
        &json!(server.events("exec")),
    );
}

/// What is allowed with fewer words than it has is asked about, unless it is harmless with any.
#[test]
fn more_than_a_rule_says_is_asked_about() {
    let serving = Serving::new(Transport::Stdio).outside();
    let serving = serving.rules(&[
        ("[\"touch\"]", "allow"),
        ("[\"cat\"]", "allow"),
        ("[\"basename\"]", "allow"),
    ]);
    let (_server, mut client) = start(&serving, SESSIONS);
    client.approve = Approve::Decline;
    let script =
        "touch $M; echo $?; cat /etc/hostname > /dev/null; echo $?; basename /a/b; echo $?";
    let message = client.call("shell.exec", serving.script(script));
    assert_eq!(result(&message)["stdout"], "1\n1\nb\n0\n", "{message}");
    assert_eq!(client.questions.len(), 2);
    for (question, reason) in
        client.questions.iter().zip(["writes, replaces", "not known to be harmless"])
    {
        let text = text(question);
        assert!(
            text.contains("outside the sandbox with more than its rule says")
                && text.contains(reason),
            "{question}"
        );
    }
    assert!(!serving.marker().exists());
    client.approve = Approve::Once;
    let message = client.call("shell.exec", serving.script("touch $M; echo $?"));
    assert_eq!(result(&message)["stdout"], "0\n", "{message}");
    assert!(serving.marker().exists());
}
