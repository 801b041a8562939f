//! `escalate = "wider"`: another sandbox with more in it, and still a sandbox.

use std::io::{Read, Write};
use std::net::TcpListener;

use serde_json::json;

use super::{Serving, result};
use crate::escape::{Cx, Mode, Profile, User, is_root};
use crate::support::place::visible_folder;
use crate::support::subset::assert_holds;
use crate::support::{Approve, DEADLINE, SESSIONS, Transport, eventually};

fn serving(wider: &str) -> Serving {
    let serving = Serving::new(Transport::Stdio);
    let (out, net) = (serving.pattern("out"), serving.pattern("net"));
    serving.tool("net", "#!/bin/sh\nexec \"$@\"\n");
    let serving = serving.config(&format!(
        "[policy]\nescalate = \"wider\"\nescalate_risky = \"outside\"\n[policy.wider]\n{wider}"
    ));
    serving.rules(&[
        (&out, "allow"),
        (&net, "allow"),
        ("[\"cksum\"]", "forbidden"),
        ("[\"md5sum\"]", "prompt"),
    ])
}

#[test]
fn a_directory_can_be_written_that_the_sandbox_cannot_write() {
    let place = visible_folder().join(format!("wider-{}", std::process::id()));
    std::fs::create_dir_all(&place).unwrap();
    let shown = place.display().to_string();
    let serving = serving(&format!("writable = [{shown:?}]"));
    let mut server = serving.options.clone().spawn();
    let mut client = server.connect(SESSIONS);
    let script = format!(
        "touch {shown}/plain 2>/dev/null; echo $?; $OUT touch {shown}/wide; echo $?; $OUT touch $M 2>/dev/null; echo $?; $OUT touch /etc/x 2>/dev/null; echo $?
         a=$(readlink /proc/self/ns/mnt); b=$($OUT readlink /proc/self/ns/mnt); [ $a != $b ]; echo $?; echo inside > f; $OUT cat f; $OUT sh -c 'exit 9'; echo $?"
    );
    let message = client.call("shell.exec", serving.script(&script));
    let own = std::fs::read_dir(&place)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let made: Vec<String> = own.collect();
    std::fs::remove_dir_all(&place).unwrap();
    assert_eq!(result(&message)["stdout"], "1\n0\n1\n1\n0\ninside\n9\n", "{message}");
    assert_eq!(made, ["wide"]);
    assert!(!serving.marker().exists());
}

#[test]
fn an_address_is_reached_that_the_sandbox_cannot_reach() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 1024]).unwrap();
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nhost")
            .unwrap();
    });
    let serving = serving(&format!("allow_addresses = [\"127.0.0.1:{port}\"]"));
    let mut server = serving.options.clone().spawn();
    let mut client = server.connect(SESSIONS);
    let get = format!("curl -s -m 5 --noproxy '' http://127.0.0.1:{port}/");
    let script = format!(
        "{get}; echo $?; $OUT {get}; echo; $OUT curl -s -m 5 --noproxy '' -o /dev/null -w '%{{http_code}}' http://169.254.169.254/; echo"
    );
    let message = client.call("shell.exec", serving.script(&script));
    let said = result(&message)["stdout"].as_str().unwrap().to_owned();
    assert!(said.starts_with("7\nhost\n"), "{message}");
    answering.join().unwrap();
    assert!(!said.ends_with("200\n"), "{message}");
}

/// In there everything is judged as everywhere, and nothing leads further out.
#[test]
fn what_is_forbidden_is_forbidden_there_too() {
    let serving = serving("allow_network = true");
    let mut server = serving.options.clone().spawn();
    let mut client = server.connect(SESSIONS);
    let script = "$OUT cksum /etc/hostname; echo $?; $OUT sh -c 'cksum /etc/hostname'; echo $?; $OUT md5sum /etc/hostname >/dev/null; echo $?
        a=$($OUT readlink /proc/self/ns/mnt); b=$($OUT $OUT readlink /proc/self/ns/mnt); [ \"$a\" != \"$(readlink /proc/self/ns/mnt)\" ]; echo $?; $OUT $OUT touch $M 2>/dev/null; echo $?";
    let message = client.call("shell.exec", serving.script(script));
    let result = result(&message);
    assert_eq!(result["stdout"], "1\n1\n0\n0\n1\n", "{message}");
    assert_eq!(
        result["stderr"].as_str().unwrap().matches("forbidden: because of forbidden").count(),
        2,
        "{message}"
    );
    assert!(!serving.marker().exists());
}

/// `ringfence sandbox` has one sandbox: what would go to a wider one does not go outside instead.
#[test]
fn a_sandbox_without_a_wider_one_lets_nothing_out_instead() {
    let user = if is_root() { User::Root } else { User::Own };
    let cx = Cx::new(Mode { user, profile: Some(Profile::Default) });
    let mut place = super::Place::new(&cx);
    let who = if is_root() { "escalate_as = \"nobody\"\n" } else { "" };
    place.config =
        format!("[policy]\nescalate = \"wider\"\n{who}[policy.wider]\nallow_network = true\n");
    let run = place.bash("$OUT touch $M; echo $?");
    assert_ne!(super::said(&run), "0\n", "{run:?}");
    assert!(!std::path::Path::new(&place.marker()).exists(), "{run:?}");
}

/// A wider sandbox is an ordinary run with another profile: what its proxy decides is on record, and a rule of the
/// network closes a host there as everywhere.
#[test]
fn network_decisions_are_on_record_and_rules_hold() {
    let serving = serving("allow_domains = [\"closed.test\", \"open.test\"]");
    let mut rules = std::fs::read_to_string(serving.rules_file()).unwrap();
    rules.push_str(
        "network_rule(host = \"closed.test\", protocol = \"https\", decision = \"deny\")\n",
    );
    std::fs::write(serving.rules_file(), rules).unwrap();
    let mut server = serving.options.clone().spawn();
    let mut client = server.connect(SESSIONS);
    let get = |host: &str| {
        format!("$OUT curl -s -m 5 --noproxy '' -o /dev/null https://{host}/ 2>/dev/null")
    };
    let script =
        format!("{}; {}; {}; true", get("closed.test"), get("elsewhere.example"), get("open.test"));
    let message = client.call("shell.exec", serving.script(&script));
    let stop = &server.stops(1)[0];
    let events = server.events("network");
    let trace = &stop["trace_id"];
    let expected = json!([
        {"host": "closed.test", "allowed": false, "reason": "denied", "trace_id": trace},
        {"host": "elsewhere.example", "allowed": false, "trace_id": trace},
        {"host": "open.test", "trace_id": trace},
    ]);
    assert_holds(expected, &json!(events));
    let denials = json!([
        {"kind": "network", "name": "closed.test:443", "count": 1},
        {"kind": "network", "name": "elsewhere.example:443", "count": 1},
    ]);
    assert_holds(denials.clone(), &result(&message)["sandbox"]["denials"]);
    assert_holds(denials, &stop["denials"]);
}

#[test]
fn denials_and_execs_are_on_record() {
    for listed in [false, true] {
        let serving = serving("allow_network = true");
        let options = serving.options.clone();
        let mut server =
            if listed { options.arg("--audit-execs").spawn() } else { options.spawn() };
        let mut client = server.connect(SESSIONS);
        let script = "$OUT sh -c 'unshare -r true; cksum /etc/hostname; stat / >/dev/null; true' 2>/dev/null; unshare -r true 2>/dev/null; true";
        let message = client.call("shell.exec", serving.script(script));
        let stop = &server.stops(1)[0];
        let denials = json!([
            {"kind": "syscall", "name": "unshare", "count": 2},
            {"kind": "exec", "name": "cksum", "count": 1},
        ]);
        assert_eq!(result(&message)["sandbox"]["denials"], denials, "{message}");
        assert_eq!(stop["denials"], denials);
        let events = server.events("exec");
        let refused = json!([{"path": "/usr/bin/cksum", "by": "rule", "ran": "refused", "verdict": "forbidden", "trace_id": stop["trace_id"]}]);
        assert_holds(refused, &json!(events));
        // Inside: bash and unshare. In the wider one: sh, unshare and stat; the tool itself is what the rule allowed.
        assert_eq!(
            (&stop["execs"]["count"], &stop["execs"]["unlisted"]),
            (&json!(5), &json!(null)),
            "{events:#?}"
        );
        let unnamed: Vec<_> = events.iter().filter(|event| event["by"] == "nobody").collect();
        assert_eq!(unnamed.len(), if listed { 5 } else { 0 });
        assert_eq!(
            unnamed.iter().filter(|event| event["ran"] == "wider").count(),
            if listed { 3 } else { 0 },
            "{events:#?}"
        );
    }
}

/// The record of a wider run is whole, too, when its call is ended while it ignores that.
#[test]
fn a_wider_run_that_ignores_sigterm_is_on_record() {
    for by_deadline in [false, true] {
        let serving = serving("allow_network = true").config("[limits]\ngrace_ms = 300");
        let mut server = serving.options.clone().spawn();
        let mut client = server.connect(SESSIONS);
        let stubborn = "unshare -r true; trap \"\" TERM; touch ready; while :; do sleep 0.05; done";
        let mut arguments =
            serving.script(&format!("trap '' TERM; $OUT bash -c '{stubborn}'; sleep 300"));
        if by_deadline {
            arguments["timeout_ms"] = json!(1500);
        }
        let id = client.start_call("shell.exec", &arguments);
        eventually(DEADLINE, "it ignores SIGTERM", || server.workspace().join("ready").exists());
        if !by_deadline {
            client.cancel(&id);
        }
        let stop = &server.stops(1)[0];
        assert_holds(
            json!({"denials": [{"kind": "syscall", "name": "unshare", "count": 1}], "report": null}),
            stop,
        );
        assert!(stop["execs"]["count"].as_u64() >= Some(5), "{stop}");
    }
}

/// Someone is asked about what a rule asks about, and a no is a no.
#[test]
fn a_rule_that_asks_is_asked_there_too() {
    for (approve, said) in [(Approve::Once, "0\n"), (Approve::Decline, "1\n")] {
        let serving = serving("allow_network = true");
        let mut server = serving.options.clone().spawn();
        let mut client = server.connect(SESSIONS);
        client.approve = approve;
        let script = "$OUT sh -c 'md5sum /etc/hostname' >/dev/null 2>&1; echo $?";
        let message = client.call("shell.exec", serving.script(script));
        assert_eq!(result(&message)["stdout"], said, "{message}");
        let [question] = &client.questions[..] else { panic!("{:?}", client.questions) };
        assert!(
            question["message"].as_str().unwrap().contains("in the wider sandbox"),
            "{question}"
        );
        let ran = if said == "0\n" { "wider" } else { "refused" };
        assert_holds(
            json!([{"path": "/usr/bin/md5sum", "ran": ran}]),
            &json!(server.events("exec")),
        );
    }
}
