//! What the browser reaches, and what it must not: it is in the fence as everything else is.

use std::net::{TcpListener, UdpSocket};

use serde_json::{Value, json};

use super::{Stage, refused};
use crate::support::server::Scratch;
use crate::support::subset::assert_holds;
use crate::support::{Approve, Options, SESSIONS, Transport};

/// A server of the host's, and whether anybody came.
fn ear() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

#[test]
fn localhost_is_the_sessions_own_and_never_the_hosts() {
    let mut stage = Stage::new();
    let (listener, port) = ear();
    for host in ["127.0.0.1", "localhost", "some.localhost"] {
        let opened = stage.ask("browser.navigate", json!({"url": format!("http://{host}:8000/")}));
        assert_eq!(opened["title"], "Home", "{host}");
        let error =
            stage.refuse("browser.navigate", json!({"url": format!("http://{host}:{port}/")}));
        assert_holds(json!({"kind": "unavailable", "reason": "navigation_failed"}), &error);
    }
    // Nor by anything that a page does.
    stage.go("/");
    let tries = format!(
        "const at = '127.0.0.1:{port}';
         const later = new Promise(done => setTimeout(done, 300));
         new Image().src = 'http://' + at + '/x.png';
         const frame = document.createElement('iframe'); frame.src = 'http://' + at; document.body.append(frame);
         const socket = new Promise(done => {{ const s = new WebSocket('ws://' + at); s.onopen = () => done('open'); s.onerror = () => done('failed') }});
         navigator.sendBeacon('http://' + at + '/beacon', 'x');
         const fetched = fetch('http://' + at, {{mode: 'no-cors'}}).then(r => 'answer ' + r.type, () => 'failed');
         const [a, b] = await Promise.all([socket, fetched]); await later; [a, b]"
    );
    let said = stage.eval(&tries);
    assert_eq!(said[0], "failed");
    assert!(listener.accept().is_err(), "the host was reached");
    // The fence hides the work from it, too.
    assert!(stage.server.workspace().join("site.py").exists());
    for pid in super::life::processes(&stage) {
        let seen = format!(
            "/proc/{pid}/root{}",
            stage.server.workspace().canonicalize().unwrap().join("site.py").display()
        );
        assert!(!std::path::Path::new(&seen).exists(), "{seen}");
    }
}

#[test]
fn no_datagram_leaves_a_page() {
    let mut stage = Stage::new();
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    let port = socket.local_addr().unwrap().port();
    stage.go("/");
    let script = format!(
        "const peer = new RTCPeerConnection({{iceServers: [{{urls: ['stun:127.0.0.1:{port}', 'stun:localhost:{port}']}}]}});
         peer.createDataChannel('x'); await peer.setLocalDescription(await peer.createOffer());
         const found = []; peer.onicecandidate = e => e.candidate && found.push(e.candidate.candidate);
         await new Promise(done => setTimeout(done, 700)); found.length"
    );
    stage.eval(&script);
    assert!(socket.recv_from(&mut [0; 2000]).is_err(), "a datagram got out");
}

/// Not for a human to allow either.
#[test]
fn private_and_metadata_addresses_are_refused_whatever_leads_there() {
    let mut stage = Stage::new();
    let addresses = [
        "169.254.169.254",
        "10.0.0.1",
        "192.168.1.1",
        "172.16.0.1",
        "100.100.100.200",
        "0.0.0.0",
        "[fd00:ec2::254]",
        "[::ffff:169.254.169.254]",
        "[fe80::1]",
    ];
    for address in addresses {
        let error = stage.refuse(
            "browser.navigate",
            json!({"url": format!("http://{address}/latest/meta-data/")}),
        );
        assert_holds(json!({"kind": "permission_denied", "reason": "blocked_by_policy"}), &error);
    }
    for disguised in
        ["http://2852039166/", "http://0xa9.254.169.254/", "http://0251.0376.0251.0376/"]
    {
        assert_eq!(
            stage.refuse("browser.navigate", json!({"url": disguised}))["kind"],
            "invalid_arguments"
        );
    }
    // By a redirect: "http://169.254.169.254/latest", and with the address as one number.
    for path in ["/to/aHR0cDovLzE2OS4yNTQuMTY5LjI1NC9sYXRlc3Q=", "/to/aHR0cDovLzI4NTIwMzkxNjYv"] {
        let url = stage.at(path);
        let error = stage.refuse("browser.navigate", json!({"url": url}));
        assert_holds(json!({"kind": "permission_denied", "reason": "blocked_by_policy"}), &error);
    }
    // By what a page loads.
    stage.go("/");
    let script = "fetch('http://169.254.169.254/', {mode: 'no-cors'}).then(() => 0, () => 0).then(() => fetch('https://10.1.2.3/').catch(() => 0))";
    stage.eval(script);
    let logs = stage.ask("browser.logs", json!({"kinds": ["blocked"]}));
    let blocked = logs["blocked"].as_array().unwrap();
    for place in ["169.254.169.254:80", "10.1.2.3:443"] {
        assert!(blocked.iter().any(|entry| entry["url"] == place), "{place} in {logs:#}");
    }
    assert!(stage.client.questions.is_empty(), "nobody was asked");
    let decided: Vec<Value> = stage.server.events("network");
    let refused = decided
        .iter()
        .find(|event| event["host"] == "10.1.2.3")
        .unwrap_or_else(|| panic!("{decided:#?}"));
    assert_holds(
        json!({"allowed": false, "port": 443, "via": "connect", "tool": "browser.eval"}),
        refused,
    );
}

#[test]
fn another_host_is_asked_for_by_name_and_only_once_when_trusted() {
    let mut stage = Stage::new();
    let url = json!({"url": "http://nowhere.invalid:8080/x"});
    stage.client.approve = Approve::Decline;
    assert_eq!(stage.refuse("browser.navigate", url.clone())["kind"], "approval_denied");
    assert_eq!(stage.client.questions.len(), 1);
    let asked = stage.client.questions[0]["message"].as_str().unwrap().to_owned();
    assert!(asked.starts_with("Allow `nowhere.invalid:8080`?"), "{asked}");
    stage.client.approve = Approve::Session;
    for _ in 0..2 {
        // Let through, and there is no such name.
        assert_eq!(stage.refuse("browser.navigate", url.clone())["reason"], "navigation_failed");
    }
    assert_eq!(stage.client.questions.len(), 2);
    // A yes for one host is a yes for no other, and not for another port.
    stage.client.approve = Approve::Decline;
    for other in ["http://nowhere.invalid/", "http://elsewhere.invalid:8080/"] {
        assert_eq!(
            stage.refuse("browser.navigate", json!({"url": other}))["kind"],
            "approval_denied",
            "{other}"
        );
    }
    // What a page loads by itself asks nobody, and is blocked.
    stage.go("/");
    let questions = stage.client.questions.len();
    stage.eval("fetch('http://elsewhere.invalid/').catch(() => 0)");
    let logs = stage.ask("browser.logs", json!({}));
    assert!(logs["blocked"].to_string().contains("elsewhere.invalid:80"), "{logs:#}");
    assert_eq!(stage.client.questions.len(), questions);
}

#[test]
fn what_the_operator_allows_is_not_asked_for() {
    let allowed = "[sandbox]\nallow_domains = [\"nowhere.invalid\", \"never.invalid\"]\ndeny_domains = [\"never.invalid\"]";
    let mut stage = Stage::with(Options::new(Transport::Stdio).config(allowed));
    let error = stage.refuse("browser.navigate", json!({"url": "http://nowhere.invalid/"}));
    assert_eq!(error["reason"], "navigation_failed");
    let error = stage.refuse("browser.navigate", json!({"url": "http://never.invalid/"}));
    assert_eq!(error["reason"], "blocked_by_policy", "{error:#}");
    assert!(stage.client.questions.is_empty());
    assert_eq!(stage.go("/")["title"], "Home");
}

/// Also what a page loads, what the operator has allowed, and what a human has said yes to before.
#[test]
fn what_a_rule_denies_is_closed_to_pages() {
    let scratch = Scratch::new();
    let file = scratch.path().join("house.rules");
    let rule = |host: &str| {
        format!("network_rule(host = \"{host}\", protocol = \"https\", decision = \"deny\")\n")
    };
    std::fs::write(&file, rule("never.invalid")).unwrap();
    let allowed = "[sandbox]\nallow_domains = [\"never.invalid\", \"later.invalid\"]";
    let options = Options::new(Transport::Stdio).on(&scratch).config(allowed);
    let mut stage = Stage::with(options.arg("--rules").arg(file.to_str().unwrap()));
    let denied = stage.refuse("browser.navigate", json!({"url": "http://never.invalid/"}));
    assert_eq!(denied["reason"], "blocked_by_policy", "{denied:#}");
    stage.go("/");
    let fetch = |host: &str| format!("fetch('http://{host}/').catch(() => 0)");
    stage.eval(&fetch("never.invalid"));
    stage.eval(&fetch("later.invalid"));
    let blocked = stage.ask("browser.logs", json!({"kinds": ["blocked"]}))["blocked"].to_string();
    assert!(
        blocked.contains("never.invalid:80") && !blocked.contains("later.invalid"),
        "{blocked}"
    );
    // Rules that change hold for the pages that are there.
    std::fs::write(&file, rule("later.invalid")).unwrap();
    stage.eval(&fetch("later.invalid"));
    let blocked = stage.ask("browser.logs", json!({"kinds": ["blocked"]}))["blocked"].to_string();
    assert!(blocked.contains("later.invalid:80"), "{blocked}");
    assert!(stage.client.questions.is_empty());
}

/// An open network is for commands. Pages have the public part of it, and of the rest what is listed.
#[test]
fn with_an_open_network_pages_reach_no_private_address_that_is_not_listed() {
    let (listener, port) = ear();
    let listed = TcpListener::bind("127.0.0.1:0").unwrap();
    let open = listed.local_addr().unwrap();
    let config = format!("[sandbox]\nallow_network = true\nallow_addresses = [\"{open}\"]");
    let mut server = Options::new(Transport::Stdio).config(&config).spawn();
    let mut client = server.connect(SESSIONS);
    for place in [format!("127.0.0.1:{port}"), format!("localhost:{port}"), "10.0.0.1".to_owned()] {
        let error =
            refused(&mut client, "browser.navigate", json!({"url": format!("http://{place}/")}));
        assert_eq!(error["reason"], "blocked_by_policy", "{place}: {error:#}");
    }
    assert!(listener.accept().is_err(), "the host was reached");
    let answer = std::thread::spawn(move || {
        let (mut stream, _) = listed.accept().unwrap();
        let mut head = [0; 4096];
        let _ = std::io::Read::read(&mut stream, &mut head).unwrap();
        let page = "<title>Listed</title>";
        let reply = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n{page}",
            page.len()
        );
        std::io::Write::write_all(&mut stream, reply.as_bytes()).unwrap();
    });
    let opened = client.call("browser.navigate", json!({"url": format!("http://{open}/")}));
    assert_eq!(opened["result"]["structuredContent"]["title"], "Listed", "{opened:#}");
    answer.join().unwrap();
}

#[test]
fn without_a_browser_the_tools_say_how_to_get_one() {
    let missing = "[browser]\nprogram = \"/nowhere/chromium\"";
    let mut server = Options::new(Transport::Stdio).config(missing).spawn();
    let mut client = server.connect(crate::support::SESSIONS);
    let error = refused(&mut client, "browser.navigate", json!({"url": "http://localhost/"}));
    assert_holds(json!({"kind": "unavailable", "reason": "browser_missing"}), &error);
    assert!(
        error["hint"].as_str().unwrap().contains("apt install chromium-headless-shell"),
        "{error:#}"
    );
    let known = client.request("mcp.capabilities", json!({}))["result"]["tools"].clone();
    let tool = known
        .as_array()
        .unwrap()
        .iter()
        .find(|tool| tool["name"] == "browser.navigate")
        .unwrap()
        .clone();
    assert_eq!(tool["permission"]["allow"], false, "{tool:#}");
}

#[test]
fn doctor_names_the_browser() {
    let scratch = crate::support::server::Scratch::new();
    let found = |config: &str| {
        std::fs::write(scratch.path().join("config.toml"), config).unwrap();
        let mut doctor = crate::support::server::ringfence(&scratch);
        doctor.args(["doctor", "--json", "--root"]).arg(scratch.path().join("root"));
        let said = doctor.arg("--config").arg(scratch.path().join("config.toml")).output().unwrap();
        let said: Value = serde_json::from_slice(&said.stdout).unwrap();
        said["health"]
            .as_array()
            .unwrap()
            .iter()
            .find(|line| line["name"] == "browser")
            .cloned()
            .unwrap()
    };
    let ok = found("");
    assert_eq!(ok["outcome"], "ok", "{ok}");
    assert!(ok["text"].as_str().unwrap().contains("chromium-headless-shell"), "{ok}");
    let missing = found("[browser]\nprogram = \"/nowhere/chromium\"");
    assert_eq!(missing["outcome"], "refused", "{missing}");
    assert!(missing["fix"].as_str().unwrap().contains("apt install"), "{missing}");
}

/// Rules hold for the processes of the browser as for any other, and what they ran is on record when it ends.
#[test]
fn rules_hold_for_the_browsers_own_processes() {
    let scratch = Scratch::new();
    let file = scratch.path().join("house.rules");
    let rule = |decision: &str| {
        format!("prefix_rule(pattern=[\"chromium-headless-shell\"], decision=\"{decision}\")\n")
    };
    std::fs::write(&file, rule("forbidden")).unwrap();
    let options =
        Options::new(Transport::Stdio).on(&scratch).arg("--rules").arg(file.to_str().unwrap());
    let mut server = options.spawn();
    let mut client = server.connect(SESSIONS);
    let refused = client.call("browser.navigate", json!({"url": "about:blank"}));
    assert_eq!(refused["result"]["isError"], true, "{refused}");
    std::fs::write(&file, "").unwrap();
    let opened = client.call("browser.navigate", json!({"url": "about:blank"}));
    assert_eq!(opened["result"]["isError"], false, "{opened}");
    client.hang_up();
    server.ended();
    let execs = server.events("exec");
    assert!(
        execs.iter().any(|exec| exec["verdict"] == "forbidden" && exec["ran"] == "refused"),
        "{execs:#?}"
    );
    let ends = server.events("run.stop");
    assert!(ends.iter().any(|end| end["execs"]["count"].as_u64() > Some(0)), "{ends:#?}");
}
