//! What is on record of the execs of a call, and which rules a call is held to.

use serde_json::{Value, json};

use super::{Serving, result};
use crate::escape::is_root;
use crate::support::subset::assert_holds;
use crate::support::{Approve, Client, DEADLINE, MODERN, SESSIONS, Transport, eventually, server};

fn serving() -> Serving {
    let serving = Serving::new(Transport::Stdio).outside_unasked();
    let out = serving.pattern("out");
    serving.rules(&[(&out, "allow"), ("[\"cksum\"]", "forbidden"), ("[\"md5sum\"]", "prompt")])
}

#[test]
fn every_decision_of_a_rule_is_a_line_under_the_calls_trace() {
    let serving = serving();
    let mut server = serving.options.clone().spawn();
    let mut client = server.connect(SESSIONS);
    let script = "$OUT true --token hunter2; cksum /etc/hostname; md5sum --password=hunter2 /etc/hostname; cd /tmp; $OUT true; true";
    client.call("shell.exec", serving.script(script));
    let stop = &server.stops(1)[0];
    let events = server.events("exec");
    let file = serving.rules_file().display().to_string();
    let rule = |line: u32| json!({"file": file, "line": line, "prefix": "*"});
    let out = serving.scratch.path().join("tools/out");
    let expected = json!([
        {"rule": rule(1), "verdict": "allow", "recognised": "itself", "by": "rule", "ran": "outside", "script": out, "trace_id": stop["trace_id"], "pid": "*"},
        {"rule": rule(2), "verdict": "forbidden", "by": "rule", "ran": "refused", "path": "/usr/bin/cksum", "command": ["cksum", "/etc/hostname"], "trace_id": stop["trace_id"]},
        {"rule": rule(3), "verdict": "prompt", "by": "client", "ran": "outside", "path": "/usr/bin/md5sum", "command": ["md5sum", "--password=[redacted]", "/etc/hostname"], "trace_id": stop["trace_id"]},
        {"rule": rule(1), "verdict": "allow", "by": "rule", "ran": "inside", "why": "~directory", "trace_id": stop["trace_id"]},
    ]);
    assert_eq!(events.len(), 4, "{events:#?}");
    assert_holds(expected, &json!(events));
    assert!(
        !json!(server.audit()).to_string().contains("--password=hunter2"),
        "a secret is on record"
    );
    assert!(!json!(events).to_string().contains("hunter2"), "a secret is on record: {events:#?}");
    // The shell itself is one, and what the last tool started inside; nothing else was started that no rule names.
    assert_holds(json!({"execs": {"count": 2, "digest": "~blake3:"}}), stop);
    assert_eq!(server::verify(&serving.scratch).0, 0);
}

#[test]
fn execs_that_no_rule_names_are_summed_and_listed_on_demand() {
    let script = "for i in 1 2 3; do stat / > /dev/null; done; stat --token=hunter2 / 2>/dev/null; cksum / 2>/dev/null; true";
    let mut digests = Vec::new();
    for listed in [false, true] {
        let serving = serving();
        let options = serving.options.clone();
        let mut server =
            if listed { options.arg("--audit-execs").spawn() } else { options.spawn() };
        let mut client = server.connect(SESSIONS);
        client.call("shell.exec", json!({"command": script}));
        let stop = server.stops(1)[0].clone();
        assert_eq!(stop["execs"]["count"], 5, "{stop}");
        digests.push(stop["execs"]["digest"].clone());
        let events = server.events("exec");
        let unnamed: Vec<&Value> = events.iter().filter(|event| event["by"] == "nobody").collect();
        assert_eq!(unnamed.len(), if listed { 5 } else { 0 }, "{events:#?}");
        assert_eq!(events.len(), unnamed.len() + 1);
        for event in &unnamed[..] {
            assert_holds(
                json!({"ran": "inside", "path": "*", "command": "*", "trace_id": stop["trace_id"]}),
                event,
            );
        }
        // The script of the shell itself is code, and shown; a word that is a secret's is not.
        let words = unnamed.iter().filter(|event| event["path"] != "/usr/bin/bash");
        assert!(!json!(words.collect::<Vec<_>>()).to_string().contains("hunter2"));
        assert_eq!(server::verify(&serving.scratch).0, 0);
    }
    assert_ne!(digests[0], digests[1], "process ids are part of the list");
}

#[test]
fn rules_are_read_anew_for_the_next_call() {
    let serving = serving();
    let mut server = serving.options.clone().spawn();
    let mut client = server.connect(SESSIONS);
    let ask = serving.script("stat / >/dev/null; echo $?; $OUT readlink /proc/self/ns/mnt");
    let own = std::fs::read_link("/proc/self/ns/mnt").unwrap().display().to_string();
    assert_eq!(result(&client.call("shell.exec", ask.clone()))["stdout"], format!("0\n{own}\n"));
    serving.write_rules(&[("[\"stat\"]", "forbidden")]);
    let message = client.call("shell.exec", ask.clone());
    let said = result(&message)["stdout"].as_str().unwrap().to_owned();
    assert!(said.starts_with("1\n") && !said.contains(&own), "{message}");
    assert_holds(
        json!([{"kind": "exec", "name": "stat", "count": 1}]),
        &result(&message)["sandbox"]["denials"],
    );
    serving.write_rules(&[]);
    let message = client.call("shell.exec", ask);
    assert!(result(&message)["stdout"].as_str().unwrap().starts_with("0\n"), "{message}");
}

#[test]
fn a_running_call_keeps_the_rules_that_it_started_with() {
    let serving = serving();
    let mut server = serving.options.clone().spawn();
    let mut client = server.connect(SESSIONS);
    let wait = "touch up; until [ -e go ]; do sleep 0.01; done; cksum / 2>/dev/null; echo $?; stat / >/dev/null; echo $?; $OUT readlink /proc/self/ns/mnt";
    let id = client.start_call("shell.exec", &serving.script(wait));
    eventually(DEADLINE, "it runs", || server.workspace().join("up").exists());
    serving.write_rules(&[("[\"stat\"]", "forbidden")]);
    let other = client.call("shell.exec", json!({"command": "stat / > /dev/null; echo $?"}));
    assert_eq!(result(&other)["stdout"], "1\n", "{other}");
    std::fs::write(server.workspace().join("go"), "").unwrap();
    let message = client.wait(&id);
    let own = std::fs::read_link("/proc/self/ns/mnt").unwrap().display().to_string();
    assert_eq!(result(&message)["stdout"], format!("1\n0\n{own}\n"), "{message}");
}

/// Of a broken file what it forbids still holds, and nothing leaves, whatever other files say.
#[test]
fn a_broken_rules_file_lets_nothing_out_and_says_so() {
    let serving = serving();
    let folder = serving.scratch.path().join("home/.codex/rules");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(
        folder.join("default.rules"),
        "prefix_rule(pattern = [\"stat\"], decision = \"forbidden\")\nprefix_rule(pattern = [\n",
    )
    .unwrap();
    let mut server = serving.options.clone().spawn();
    let mut client = server.connect(SESSIONS);
    let ask = serving.script("$OUT touch $M; echo $?; cksum / 2>/dev/null; echo $?");
    let message = client.call("shell.exec", ask.clone());
    assert_eq!(result(&message)["stdout"], "1\n1\n", "{message}");
    assert!(!serving.marker().exists());
    eventually(DEADLINE, "the log says so", || {
        server.log().contains("default.rules") && server.log().contains("until this is fixed")
    });
    let told = client.request("mcp.capabilities", json!({}))["result"]["policy"].clone();
    assert_holds(
        json!({"escalate": "off", "broken": [{"file": "default.rules", "line": "*", "message": "*"}]}),
        &told,
    );
    // A prompt is still asked, and runs inside.
    let asked =
        client.call("shell.exec", json!({"command": "md5sum /etc/hostname > /dev/null; echo $?"}));
    assert_eq!(result(&asked)["stdout"], "0\n", "{asked}");
    assert!(
        client.questions[0]["message"].as_str().unwrap().contains("in the sandbox"),
        "{:?}",
        client.questions
    );
    assert_holds(
        json!({"verdict": "prompt", "ran": "inside"}),
        server.events("exec").last().unwrap(),
    );
    std::fs::remove_file(folder.join("default.rules")).unwrap();
    assert_eq!(result(&client.call("shell.exec", ask))["stdout"], "0\n1\n");
    assert!(serving.marker().exists());
    let told = client.request("mcp.capabilities", json!({}))["result"]["policy"].clone();
    assert_holds(json!({"escalate": "outside", "broken": []}), &told);
}

/// A run that causes more decisions than are written does not get anything out unwritten.
#[test]
fn what_leaves_is_on_record_however_much_was_before() {
    if std::env::var_os("RINGFENCE_PROOF").is_none() {
        return println!("without RINGFENCE_PROOF ten thousand execs take too long");
    }
    let serving = serving();
    let mut server = serving.options.clone().spawn();
    let mut client = server.connect(SESSIONS);
    let script = "for i in $(seq 3400); do /usr/bin/cksum; done 2> /dev/null";
    let script = format!("({script}) & ({script}) & ({script}) & wait; $OUT touch $M");
    let id = client.start_call("shell.exec", &serving.script(&script));
    eventually(DEADLINE * 8, "it gets to its end", || serving.marker().exists());
    client.wait(&id);
    let events = server.events("exec");
    assert!(
        events.iter().any(|event| event["ran"] == "outside"),
        "{} events, and none of what left",
        events.len()
    );
}

/// Rules of the project may only tighten.
#[test]
fn a_project_lets_nothing_out() {
    let serving = Serving::new(Transport::Stdio).outside();
    let folder = serving.scratch.path().join("workspace/.codex/rules");
    std::fs::create_dir_all(&folder).unwrap();
    let rules = format!(
        "prefix_rule(pattern = {}, decision = \"allow\")\nprefix_rule(pattern = [\"stat\"], decision = \"forbidden\")\n",
        serving.pattern("out")
    );
    std::fs::write(folder.join("project.rules"), rules).unwrap();
    let mut server = serving.options.clone().spawn();
    let mut client = server.connect(SESSIONS);
    let message = client.call(
        "shell.exec",
        serving.script(
            "$OUT touch $M 2>/dev/null; stat / >/dev/null; echo $?; echo x >> .codex/rules/project.rules; echo $?",
        ),
    );
    assert_eq!(result(&message)["stdout"], "1\n1\n", "{message}");
    assert!(!serving.marker().exists());
}

/// What a project asks about is asked, and a yes to it is a yes to running it where everything runs.
#[test]
fn a_question_of_the_project_is_no_way_out() {
    let serving = Serving::new(Transport::Stdio).outside();
    let folder = serving.scratch.path().join("workspace/.codex/rules");
    std::fs::create_dir_all(&folder).unwrap();
    let rules =
        format!("prefix_rule(pattern = {}, decision = \"prompt\")\n", serving.pattern("out"));
    std::fs::write(folder.join("project.rules"), rules).unwrap();
    let mut server = serving.options.clone().spawn();
    let mut client = server.connect(SESSIONS);
    let message =
        client.call("shell.exec", serving.script("$OUT readlink /proc/self/ns/mnt; $OUT touch $M"));
    assert_eq!(client.questions.len(), 2, "{message}");
    assert!(
        client.questions[0]["message"].as_str().unwrap().contains("in the sandbox"),
        "{:?}",
        client.questions
    );
    let own = std::fs::read_link("/proc/self/ns/mnt").unwrap().display().to_string();
    assert_ne!(result(&message)["stdout"], format!("{own}\n"), "{message}");
    assert!(!serving.marker().exists());
}

/// The drop-in for a shell whose rules have always meant that: outside is its default, and the log lists what leaves.
#[test]
fn the_one_shell_lets_out_by_default() {
    let serving = Serving::new(Transport::Stdio);
    let out = serving.pattern("out");
    let who = if is_root() { "escalate_as = \"nobody\"\n" } else { "" };
    let policy = format!("[policy]\n{who}escalate_risky = \"outside\"\n");
    let serving = serving.config(&policy).rules(&[(&out, "allow")]);
    for version in [SESSIONS, MODERN] {
        let mut server = serving.options.clone().arg("--tools").arg("shell").spawn();
        let mut client = server.connect(version);
        client.approve = Approve::Decline;
        let mut arguments = serving.script("$OUT readlink /proc/self/ns/mnt");
        arguments["workdir"] = json!(server.workspace());
        let message = client.call("shell", arguments);
        let own = std::fs::read_link("/proc/self/ns/mnt").unwrap().display().to_string();
        assert!(
            message["result"]["content"][0]["text"].as_str().unwrap().contains(&own),
            "{message}"
        );
        eventually(DEADLINE, "the log lists what leaves", || server.log().contains("runs outside"));
    }
}

/// Each decision as codex-shell-tool-mcp documents it, in the tool that replaces it.
#[test]
fn the_one_shell_does_what_each_decision_says() {
    let serving = Serving::new(Transport::Stdio);
    let who = if is_root() { "escalate_as = \"nobody\"\n" } else { "" };
    let policy = format!("[policy]\n{who}escalate_risky = \"outside\"\n");
    let (allowed, asked) = (serving.pattern("out"), serving.pattern("asked"));
    // Not the same bytes as the other tool: a rule covers copies of its file.
    serving.tool("asked", "#!/bin/sh\ncase $# in 0) exit 2;; *) exec \"$@\";; esac\n");
    let serving = serving.config(&policy).rules(&[
        (&allowed, "allow"),
        (&asked, "prompt"),
        ("[\"cksum\"]", "forbidden"),
    ]);
    let own = std::fs::read_link("/proc/self/ns/mnt").unwrap().display().to_string();
    let mut server = serving.options.clone().arg("--tools").arg("shell").spawn();
    let mut client = server.connect(SESSIONS);
    let run = |client: &mut Client, script: &str| {
        let mut arguments = serving.script(script);
        arguments["workdir"] = json!(server.workspace());
        let message = client.call("shell", arguments);
        let text = message["result"]["content"][0]["text"].as_str().unwrap().to_owned();
        serde_json::from_str::<Value>(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    };
    let namespace = "readlink /proc/self/ns/mnt";
    // Allowed: outside, without a question.
    let said = run(&mut client, &format!("$OUT {namespace}"));
    assert_holds(json!({"exit_code": 0, "output": format!("{own}\n")}), &said);
    assert!(client.questions.is_empty(), "{:?}", client.questions);
    // Asked about: outside after a yes, not at all after a no.
    let said = run(&mut client, &format!("$TOOLS/asked {namespace}"));
    assert_holds(json!({"exit_code": 0, "output": format!("{own}\n")}), &said);
    client.approve = Approve::Decline;
    let said = run(&mut client, "$TOOLS/asked touch $M");
    assert_holds(json!({"exit_code": 1, "output": "~not allowed"}), &said);
    assert!(!serving.marker().exists());
    assert_eq!(client.questions.len(), 2);
    // Forbidden: exit code 1 and a message; on standard error, which the shell's output contains.
    let said = run(&mut client, "cksum /etc/hostname 2>/dev/null");
    assert_holds(json!({"exit_code": 1, "output": ""}), &said);
    let said = run(&mut client, "cksum /etc/hostname");
    assert_holds(json!({"exit_code": 1, "output": "~forbidden: because of forbidden"}), &said);
    // Named by no rule: as it is, in the sandbox.
    let said = run(&mut client, &format!("{namespace}; touch $M; echo $?"));
    let output = said["output"].as_str().unwrap();
    assert!(output.starts_with("mnt:[") && !output.contains(&own), "{said}");
    assert!(output.contains("Read-only file system") && !serving.marker().exists(), "{said}");
    assert_eq!(client.questions.len(), 2, "{:?}", client.questions);
}
