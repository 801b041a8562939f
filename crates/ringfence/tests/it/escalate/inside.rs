//! An `allow` never makes a command worse: what a rule lets out and cannot leave runs in the sandbox.

use serde_json::{Value, json};

use super::{Serving, result};
use crate::escape::is_root;
use crate::support::server::Scratch;
use crate::support::subset::assert_holds;
use crate::support::{
    Client, DEADLINE, SESSIONS, Server, Transport, eventually, on_every_transport,
};

/// `[policy]` of a server that may not let anything out: root without a user to become, or a user who names another.
pub fn unable_to_leave() -> &'static str {
    if is_root() { "[policy]\n" } else { "[policy]\nescalate_as = \"nobody\"\n" }
}

/// `[policy]` of a server that may.
pub fn able_to_leave() -> &'static str {
    if is_root() { "[policy]\nescalate_as = \"nobody\"\n" } else { "[policy]\n" }
}

/// What the one shell answers, as the JSON of its text block.
fn shell(client: &mut Client, server: &Server, command: &str) -> Value {
    let arguments = json!({"command": command, "workdir": server.workspace(), "login": false});
    let message = client.call("shell", arguments);
    let text =
        message["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{message}"));
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn the_one_shell_runs_an_allowed_mkdir_where_no_one_can_be_asked() {
    let serving =
        Serving::new(Transport::Stdio).config(able_to_leave()).rules(&[("[\"mkdir\"]", "allow")]);
    let mut server = serving.options.clone().arg("--tools").arg("shell").spawn();
    let mut client = server.client(SESSIONS);
    client.capabilities = json!({});
    client.shake_hands();
    let said = shell(&mut client, &server, "mkdir -p x");
    assert_eq!(said["exit_code"], 0, "{said}");
    assert!(server.workspace().join("x").is_dir(), "{said}");
    assert!(said["output"].as_str().unwrap().contains("no one can be asked"), "{said}");
    let events = server.events("exec");
    assert_holds(
        json!({"verdict": "allow", "ran": "inside", "why": "~no one can be asked"}),
        &events[0],
    );
}

#[test]
fn a_server_that_cannot_let_anything_out_runs_what_is_allowed_inside() {
    let serving =
        Serving::new(Transport::Stdio).config(unable_to_leave()).rules(&[("[\"id\"]", "allow")]);
    let mut server = serving.options.clone().arg("--escalate").arg("outside").spawn();
    let mut client = server.connect(SESSIONS);
    let message = client.call("shell.exec", json!({"command": "id -u"}));
    let result = result(&message);
    assert_eq!(result["exit_code"], 0, "{message}");
    let kept = json!([{"command": "id", "why": "~escalate_as", "count": 1}]);
    assert_holds(kept, &result["kept_inside"]);
    assert!(client.questions.is_empty(), "{:?}", client.questions);
    assert_holds(
        json!([{"verdict": "allow", "ran": "inside", "why": "~escalate_as"}]),
        &json!(server.events("exec")),
    );
}

/// Whatever carries the call, the result lists what stayed and the record says why.
#[test]
fn what_stayed_is_in_the_result_on_every_transport() {
    on_every_transport(
        |options| {
            let scratch = Scratch::new();
            let rules = scratch.path().join("test.rules");
            std::fs::write(&rules, "prefix_rule(pattern = [\"mkdir\"], decision = \"allow\")\n")
                .unwrap();
            let policy = format!("{}escalate = \"outside\"\n", unable_to_leave());
            options.on(&scratch).config(&policy).arg("--rules").arg(rules.to_str().unwrap())
        },
        |server, client| {
            for name in ["a", "b"] {
                let message = client
                    .call("shell.exec", json!({"command": format!("mkdir {name}; mkdir {name}2")}));
                let result = result(&message);
                assert_eq!(result["exit_code"], 0, "{message}");
                let kept = json!([{"command": "mkdir", "why": "~escalate_as", "count": 2}]);
                assert_eq!(result["kept_inside"].as_array().map(Vec::len), Some(1), "{message}");
                assert_holds(kept, &result["kept_inside"]);
                let text = message["result"]["content"][0]["text"].as_str().unwrap();
                assert!(
                    text.contains("note: `mkdir` ran inside the sandbox (2 times): "),
                    "{text}"
                );
            }
            assert!(
                server
                    .events("exec")
                    .iter()
                    .all(|event| event["why"].is_string() && event["ran"] == "inside")
            );
        },
    );
}

/// A shell that lives on tells with each command what stayed since the last one.
#[test]
fn a_shell_session_lists_what_stayed_since_the_last_command() {
    let serving =
        Serving::new(Transport::Stdio).config(unable_to_leave()).rules(&[("[\"mkdir\"]", "allow")]);
    let mut server = serving.options.clone().arg("--escalate").arg("outside").spawn();
    let mut client = server.connect(SESSIONS);
    let first = client.call("shell.exec", json!({"command": "mkdir a", "session": "new"}));
    assert_holds(json!([{"command": "mkdir", "count": 1}]), &result(&first)["kept_inside"]);
    let session = result(&first)["session"].clone();
    let second = client.call("shell.exec", json!({"command": "echo plain", "session": session}));
    assert!(result(&second)["kept_inside"].is_null(), "{second}");
    let third = client.call("shell.exec", json!({"command": "mkdir b", "session": session}));
    assert_holds(json!([{"command": "mkdir", "count": 1}]), &result(&third)["kept_inside"]);
}

/// A question is read whole, so a command of many words is not asked about. It is not refused for that either.
#[test]
fn an_allowed_command_that_is_too_long_for_a_question_runs_inside() {
    let serving = Serving::new(Transport::Stdio).outside_unasked();
    let out = serving.pattern("out");
    let serving = serving.rules(&[(&out, "allow"), ("[\"stat\"]", "prompt")]);
    let mut server = serving.options.clone().spawn();
    let mut client = server.connect(SESSIONS);
    let message = client.call(
        "shell.exec",
        serving.script(
            "long=$(printf x%.0s {1..20000}); $OUT true $long; echo $?; stat $long; echo $?",
        ),
    );
    assert_eq!(result(&message)["stdout"], "0\n126\n", "{message}");
    assert_holds(json!([{"why": "~too many words"}]), &result(&message)["kept_inside"]);
    let events = server.events("exec");
    assert_holds(
        json!([{"verdict": "allow", "ran": "inside", "why": "~too many words"}]),
        &json!(events),
    );
    assert!(client.questions.is_empty(), "{:?}", client.questions);
}

/// So many processes of a run wait at a time; the next that is allowed does not wait.
#[test]
fn an_allowed_command_beyond_the_most_that_wait_runs_inside() {
    let serving = Serving::new(Transport::Stdio).outside_unasked();
    let (out, slow) = (serving.pattern("out"), serving.pattern("slow"));
    // Only outside, and until the marker is there, which no one inside can make.
    serving.tool(
        "slow",
        "#!/bin/sh\ntouch \"$1/up-$2\"; until [ -e \"$1/go\" ]; do sleep 0.05; done\n",
    );
    let serving = serving.rules(&[(&out, "allow"), (&slow, "allow")]);
    let mut server = serving.options.clone().spawn();
    let mut client = server.connect(SESSIONS);
    let script = "for i in $(seq 64); do $TOOLS/slow $OUTSIDE $i & done
        until [ $(ls $OUTSIDE | grep -c up-) = 64 ]; do sleep 0.05; done
        $OUT readlink /proc/self/ns/mnt; touch full; wait";
    let id = client.start_call("shell.exec", &serving.script(script));
    eventually(DEADLINE * 4, "all of them wait and one more has run", || {
        server.workspace().join("full").exists()
    });
    std::fs::write(serving.scratch.path().join("outside/go"), "").unwrap();
    let message = client.wait(&id);
    let own = std::fs::read_link("/proc/self/ns/mnt").unwrap().display().to_string();
    let said = result(&message)["stdout"].as_str().unwrap();
    assert!(said.starts_with("mnt:[") && said.trim() != own, "{message}");
    assert_holds(
        json!([{"why": "~already waiting for an answer", "count": 1}]),
        &result(&message)["kept_inside"],
    );
}

/// A program that the user outside cannot run has not begun, and so it begins inside.
#[test]
fn an_allowed_command_that_does_not_start_outside_runs_inside() {
    if !is_root() {
        return println!("not root: whoever can run it inside can run it outside");
    }
    let serving = Serving::new(Transport::Stdio).outside();
    let own = std::path::PathBuf::from(serving.tool("own", ""));
    std::fs::copy("/usr/bin/true", &own).unwrap();
    std::fs::set_permissions(&own, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let pattern = serving.pattern("own");
    let serving = serving.rules(&[(&pattern, "allow")]);
    let mut server = serving.options.clone().spawn();
    let mut client = server.connect(SESSIONS);
    let message = client.call("shell.exec", serving.script("$TOOLS/own; echo $?"));
    assert_eq!(result(&message)["stdout"], "0\n", "{message}");
    assert_holds(
        json!([{"why": "~could not be started outside"}]),
        &result(&message)["kept_inside"],
    );
    let ran: Vec<Value> = server.events("exec").iter().map(|event| event["ran"].clone()).collect();
    assert_eq!(ran, ["outside", "inside"], "what was tried is on record too");
}

/// A commit inside needs a repository that can be written. It stays so where no rule can let git out.
#[test]
fn a_rule_on_git_closes_no_repository_where_nothing_can_leave() {
    let setup =
        "git init -q . && git config user.name it && git config user.email it@example.invalid";
    let commit =
        "echo x >> f && git add f && git commit -q -m one && git log --format=%s | head -n 1";
    for (policy, asked) in [(unable_to_leave(), true), (able_to_leave(), false)] {
        let serving =
            Serving::new(Transport::Stdio).config(policy).rules(&[("[\"git\"]", "allow")]);
        let status = std::process::Command::new("sh")
            .args(["-c", setup])
            .current_dir(serving.scratch.path().join("workspace"))
            .status();
        assert!(status.unwrap().success());
        let mut server = serving.options.clone().arg("--escalate").arg("outside").spawn();
        let mut client = server.client(SESSIONS);
        if !asked {
            client.capabilities = json!({});
        }
        client.shake_hands();
        let message = client.call("shell.exec", json!({"command": commit}));
        assert_eq!(result(&message)["stdout"], "one\n", "{policy}: {message}");
        assert_holds(json!([{"command": "git"}]), &result(&message)["kept_inside"]);
        assert!(client.questions.is_empty(), "{:?}", client.questions);
    }
}

/// Where no rule lets git out, the run writes what the server reads to find the repository: a pipe makes it wait for
/// nobody, and a file without end fills no memory.
#[test]
fn files_of_a_repository_that_are_pipes_or_endless_hold_nothing_up() {
    let serving = Serving::new(Transport::Stdio).outside_unasked();
    let out = serving.pattern("out");
    let serving = serving.rules(&[(&out, "allow")]);
    let workspace = serving.scratch.path().join("workspace");
    let made = std::process::Command::new("git").args(["init", "-q"]).arg(&workspace).status();
    assert!(made.unwrap().success());
    let mut server = serving.options.clone().spawn();
    let mut client = server.connect(SESSIONS);
    for made in [
        "mkfifo .git/index",
        "mkfifo .git/commondir",
        "truncate -s 3G .git/index",
        "ln -s /dev/zero .git/index",
    ] {
        let script = format!(
            "rm -f .git/index .git/commondir; {made}; $OUT echo ran; echo $?; rm -f .git/index .git/commondir"
        );
        let message = client.call("shell.exec", serving.script(&script));
        assert_eq!(result(&message)["stdout"], "ran\n0\n", "{made}: {message}");
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 1 << 20, "{peak} KiB");
}

/// Once a call could write all of a repository, git does not trust it outside for as long as the server lives.
#[test]
fn git_does_not_leave_from_a_repository_that_an_earlier_call_could_write() {
    let serving = Serving::new(Transport::Http).outside().rules(&[("[\"git\"]", "allow")]);
    let made = std::process::Command::new("git")
        .args(["init", "-q"])
        .arg(serving.scratch.path().join("workspace"))
        .status();
    assert!(made.unwrap().success());
    let mut server = serving.options.clone().spawn();
    let mut headless = server.client(SESSIONS);
    headless.capabilities = json!({});
    headless.shake_hands();
    let first = headless.call(
        "shell.exec",
        json!({"command": "touch .git/planted; git --version >/dev/null; echo $?"}),
    );
    assert_eq!(result(&first)["stdout"], "0\n", "{first}");
    let mut client = server.connect(SESSIONS);
    let second = client.call(
        "shell.exec",
        json!({"command": "touch .git/more 2>/dev/null; echo $?; git --version >/dev/null; echo $?"}),
    );
    assert_eq!(result(&second)["stdout"], "1\n0\n", "{second}");
    assert_holds(
        json!([{"command": "git", "why": "~an earlier call could write"}]),
        &result(&second)["kept_inside"],
    );
}

#[test]
fn the_log_counts_at_start_up_what_asks_or_stays_inside() {
    let log = |policy: &str, args: &[&str]| {
        let serving = Serving::new(Transport::Stdio).config(policy);
        let serving = serving.rules(&[
            ("[\"mkdir\"]", "allow"),
            ("[\"id\"]", "allow"),
            ("[\"git\", \"push\"]", "allow"),
            ("[\"ls\"]", "allow"),
        ]);
        let mut server = serving.options.clone().args(&["--tools", "shell"]).args(args).spawn();
        let client = server.connect(SESSIONS);
        eventually(DEADLINE, "the log counts the rules", || {
            // The last line: the sum, and where there is none, the last rule.
            server.log().contains("`allow` rules") || server.log().contains("`ls` runs outside (")
        });
        drop(client);
        server.log()
    };
    let told = log(able_to_leave(), &[]);
    for part in [
        "3 of 4 `allow` rules",
        "name every word of it in the rule",
        "need approval first, and run inside the sandbox if no one can be asked",
        "escalate_risky",
        "`mkdir` needs approval first",
        "`id` runs outside",
        "`git push` runs outside as written; with more words it needs approval first",
        "`ls` runs outside as written; with more words it needs approval first",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let told = log(able_to_leave(), &["--escalate-risky", "inside"]);
    assert!(
        told.contains("than the rule run inside the sandbox")
            && told.contains("`mkdir` runs inside"),
        "{told}"
    );
    let told = log(able_to_leave(), &["--escalate-risky", "outside"]);
    assert!(told.contains("`mkdir` runs outside") && !told.contains("3 of 4"), "{told}");
    let told = log(unable_to_leave(), &[]);
    assert!(
        told.contains("commands that match the 4 `allow` rules run inside")
            && told.contains("escalate_as"),
        "{told}"
    );
    assert_eq!(told.matches("escalate_as").count(), 1, "once: {told}");
    assert!(!told.contains("runs outside"), "{told}");
}
