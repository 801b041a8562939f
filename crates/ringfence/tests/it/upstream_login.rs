//! `ringfence auth` and the calls that need it, against an authorization server and an MCP server on loopback. The
//! test plays the browser.

mod authority;

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use serde_json::{Value, json};

use self::authority::Authority;
use crate::support::http::Request;
use crate::support::server::{Scratch, audit, ringfence, verify};
use crate::support::{Client, DEADLINE, Options, SESSIONS, Transport, eventually, token};

const HINT: &str = "Have the operator run `ringfence auth login docs`.";

/// The authority, and a root whose upstreams file names it.
struct Gateway {
    authority: Authority,
    scratch: Arc<Scratch>,
}

impl Gateway {
    fn new() -> Gateway {
        let gateway = Gateway { authority: Authority::start(), scratch: Scratch::new() };
        gateway.write_upstreams(&gateway.authority.base);
        gateway
    }

    /// A gateway whose server was accepted before it wanted a login.
    fn accepted() -> Gateway {
        let gateway = Gateway::new();
        gateway.authority.with(|state| state.is_open = true);
        let output = gateway.command(&["upstream", "accept", "docs", "--yes"]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        gateway.authority.with(|state| state.is_open = false);
        gateway
    }

    fn write_upstreams(&self, base: &str) {
        let file = json!({
            "servers": {"docs": {"trust": "trusted", "transport":
                {"type": "http", "url": format!("{base}/mcp"), "authProviderId": "oauth"}}},
            "bundles": {"docs": {"serverId": "docs", "mode": "direct"}},
        });
        std::fs::write(self.upstreams(), file.to_string()).unwrap();
    }

    fn upstreams(&self) -> PathBuf {
        self.scratch.path().join("upstreams.json")
    }

    fn options(&self, transport: Transport) -> Options {
        let upstreams = self.upstreams().display().to_string();
        Options::new(transport).on(&self.scratch).args(&["--upstreams", &upstreams])
    }

    /// `ringfence …` with the places of this gateway.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = ringfence(&self.scratch);
        command.args(words).arg("--root").arg(self.scratch.path().join("root"));
        command.arg("--workspace").arg(self.scratch.path().join("workspace"));
        command.arg("--upstreams").arg(self.upstreams());
        let config = self.scratch.path().join("config.toml");
        if config.is_file() {
            command.arg("--config").arg(config);
        }
        command
    }

    fn auth(&self, words: &[&str]) -> Output {
        self.command(&[&["auth"], words].concat()).stdin(Stdio::null()).output().unwrap()
    }

    /// Logs in with a browser that changes the address which leads back.
    fn log_in_with(&self, words: &[&str], change: impl Fn(String) -> String) -> (i32, String) {
        let mut command = self.command(&[&["auth", "login", "docs"], words].concat());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut printed = String::new();
        let is_url = |line: &str| line.starts_with("  http");
        while !printed.lines().any(is_url) && lines.read_line(&mut printed).unwrap() > 0 {}
        if let Some(url) = printed.lines().find(|line| is_url(line)) {
            let (_, location) = fetch(url.trim());
            fetch(&change(location.expect("the authorization server sends the browser back")));
        }
        lines.read_to_string(&mut printed).unwrap();
        child.stderr.take().unwrap().read_to_string(&mut printed).unwrap();
        (child.wait().unwrap().code().unwrap(), printed)
    }

    #[track_caller]
    fn log_in(&self, words: &[&str]) -> String {
        let (code, printed) = self.log_in_with(words, |url| url);
        assert_eq!(code, 0, "{printed}");
        printed
    }

    /// Fails if a token is in any file below, or in one of these texts.
    #[track_caller]
    fn assert_no_token(&self, texts: &[&str]) {
        let issued = self.authority.issued();
        assert!(!issued.is_empty());
        for text in texts {
            assert!(issued.iter().all(|token| !text.contains(token.as_str())), "{text}");
        }
        let mut folders = vec![self.scratch.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
                if entry.file_type().unwrap().is_dir() {
                    folders.push(entry.path());
                } else if entry.file_type().unwrap().is_file() {
                    let bytes = std::fs::read(entry.path()).unwrap();
                    let holds = |token: &String| {
                        bytes.windows(token.len()).any(|window| window == token.as_bytes())
                    };
                    assert!(!issued.iter().any(holds), "{:?}", entry.path());
                }
            }
        }
    }
}

/// Fetches a page: its status, and where it redirects to.
fn fetch(url: &str) -> (u16, Option<String>) {
    let (host, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let address: SocketAddr = host.parse().unwrap();
    let answer = Request::new("GET", &format!("/{path}")).fetch(address);
    (answer.status, answer.header("location").map(str::to_owned))
}

fn text(output: &Output) -> String {
    String::from_utf8([&output.stdout[..], &output.stderr].concat()).unwrap()
}

fn whoami(client: &mut Client) -> Value {
    client.call("docs__whoami", json!({}))
}

#[track_caller]
fn assert_refused(message: &Value, hint: &str) {
    assert_eq!(message["result"]["isError"], true, "{message:#}");
    let error = &message["result"]["_meta"]["dev.ringfence/error"];
    assert_eq!(error["kind"], "unauthenticated", "{message:#}");
    assert_eq!(error["hint"], hint, "{message:#}");
}

#[track_caller]
fn assert_works(message: &Value) {
    let shown = message["result"]["content"][0]["text"].as_str().unwrap_or_default();
    assert!(shown.contains("you sent Bearer [secret:login:docs]"), "{message:#}");
}

fn outcomes(scratch: &Scratch, event: &str) -> Vec<String> {
    let records = audit(scratch).into_iter().filter(|record| record["event"] == event);
    records.map(|record| format!("{} {}", record["principal"], record["outcome"])).collect()
}

#[test]
fn a_login_in_another_process_serves_the_next_call() {
    let gateway = Gateway::accepted();
    let mut server = gateway.options(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    assert_refused(&whoami(&mut client), HINT);
    assert_refused(&whoami(&mut client), HINT);
    assert!(
        text(&gateway.auth(&["status"])).contains("not logged in; run `ringfence auth login docs`")
    );

    let printed = gateway.log_in(&[]);
    assert!(printed.contains("Logged in to `docs` for the principal `local`"), "{printed}");
    let works = whoami(&mut client);
    assert_works(&works);
    let (status, json) =
        (text(&gateway.auth(&["status"])), text(&gateway.auth(&["status", "docs", "--json"])));
    assert!(status.contains("local") && status.contains("renewed without you"), "{status}");
    let row = serde_json::from_str::<Value>(&json).unwrap()["logins"][0].clone();
    assert_eq!((&row["logged_in"], &row["scopes"]), (&json!(true), &json!(["read"])), "{row}");
    assert_eq!(row["issuer"], gateway.authority.base, "{row}");
    assert_eq!(
        outcomes(&gateway.scratch, "upstream.login"),
        ["\"local\" \"started\"", "\"local\" \"ok\""]
    );

    let printed_out = text(&gateway.auth(&["logout", "docs"]));
    assert!(printed_out.contains("its tokens are revoked"), "{printed_out}");
    assert_refused(&whoami(&mut client), HINT);
    assert_eq!(outcomes(&gateway.scratch, "upstream.logout"), ["\"local\" \"revoked\""]);
    assert_eq!(gateway.authority.with(|state| state.revocations), 2);
    drop(client);
    assert!(server.ended().success());
    let records = audit(&gateway.scratch).iter().map(Value::to_string).collect::<String>();
    let texts = [printed, works.to_string(), status, json, printed_out, records, server.log()];
    gateway.assert_no_token(&texts.each_ref().map(String::as_str));
    assert_eq!(verify(&gateway.scratch).0, 0);
}

#[test]
fn a_token_that_ended_is_renewed_once_and_stays_unseen() {
    let gateway = Gateway::accepted();
    gateway.authority.with(|state| state.lifetime = 1);
    gateway.log_in(&[]);
    gateway.authority.with(|state| state.lifetime = 3600);
    eventually(DEADLINE, "the token ends", || gateway.authority.have_tokens_ended());
    let mut server = gateway.options(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    let first = whoami(&mut client);
    assert_works(&first);
    assert_works(&whoami(&mut client));
    assert_eq!(gateway.authority.with(|state| state.refreshes), 1);
    let calls = gateway.authority.with(|state| state.calls.clone());
    assert_eq!(calls, ["Bearer access-Tk7Lq9-0002"; 2]);
    gateway.assert_no_token(&[&first.to_string(), &server.log()]);
    // The renewed login is what another process finds.
    let mut other = gateway.options(Transport::Stdio).spawn();
    assert_works(&whoami(&mut other.connect(SESSIONS)));
    assert_eq!(gateway.authority.with(|state| state.refreshes), 1);
}

#[test]
fn a_login_is_of_one_principal_and_a_refusal_is_no_401_of_ours() {
    let gateway = Gateway::accepted();
    let mut server = gateway
        .options(Transport::Http)
        .config("shared_workspace = true")
        .env("MCP_AUTH_ENABLED", "true")
        .env("MCP_AUTH_JWT_SECRET", token::SECRET)
        .spawn();
    let mut connect = |name: &str| {
        let mut client = server.client_as(SESSIONS, Some(&token::of(name)));
        client.shake_hands();
        client
    };
    let (mut ann, mut bob) = (connect("ann"), connect("bob"));
    let hint = |name: &str| {
        format!("Have the operator run `ringfence auth login docs --principal {name}@`.")
    };
    // A result, which over HTTP has the status 200: the client reads no other.
    assert_refused(&whoami(&mut ann), &hint("ann"));
    assert_refused(&whoami(&mut bob), &hint("bob"));
    gateway.log_in(&[]);
    assert_refused(&whoami(&mut ann), &hint("ann"));
    gateway.log_in(&["--principal", "ann@"]);
    // A session that did not exist when the server refused its principal.
    assert_works(&whoami(&mut connect("ann")));
    assert_works(&whoami(&mut ann));
    assert_refused(&whoami(&mut bob), &hint("bob"));
    let status = text(&gateway.auth(&["status"]));
    assert!(status.lines().filter(|line| line.contains("logged in at")).count() == 2, "{status}");
    assert!(text(&gateway.auth(&["logout", "docs", "--principal", "ann@"])).contains("revoked"));
    assert_refused(&whoami(&mut ann), &hint("ann"));
    assert!(text(&gateway.auth(&["status", "docs"])).contains("logged in at"), "of `local`");
}

#[test]
fn a_trusted_server_is_offered_after_the_login_without_a_restart() {
    let gateway = Gateway::new();
    let mut server = gateway.options(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    let mut has_tool = || {
        let listed = client.request("tools/list", json!({}));
        let tools = listed["result"]["tools"].as_array().unwrap().clone();
        tools.iter().any(|tool| tool["name"] == "docs__whoami")
    };
    assert!(!has_tool());
    let printed = gateway.log_in(&[]);
    assert!(printed.contains("Its 1 tools are offered from now on."), "{printed}");
    let accepted = server.events("upstream.accept");
    assert_eq!((accepted.len(), &accepted[0]["tools"]), (1, &json!(1)), "{accepted:?}");
    eventually(DEADLINE, "the tool is listed", &mut has_tool);
    assert_works(&whoami(&mut client));
}

#[test]
fn a_login_that_fails_is_recorded_and_changes_nothing() {
    let gateway = Gateway::accepted();
    gateway.log_in(&[]);
    let change = |url: String| url.replace("code=the-code", "error=access_denied");
    let (code, printed) = gateway.log_in_with(&[], change);
    assert_eq!(code, 77, "{printed}");
    assert!(
        printed.contains("access_denied")
            && printed.contains("Try again: `ringfence auth login docs`."),
        "{printed}"
    );
    let expected = ["started", "ok", "started", "failed"];
    let expected = expected.map(|outcome| format!("\"local\" \"{outcome}\""));
    assert_eq!(outcomes(&gateway.scratch, "upstream.login"), expected);
    assert!(text(&gateway.auth(&["status"])).contains("logged in at"));
}

#[test]
fn tokens_go_to_the_address_they_are_for() {
    let gateway = Gateway::accepted();
    gateway.log_in(&[]);
    let other = Authority::start();
    gateway.write_upstreams(&other.base);
    let mut server = gateway.options(Transport::Stdio).spawn();
    assert_refused(&whoami(&mut server.connect(SESSIONS)), HINT);
    assert!(text(&gateway.auth(&["status"])).contains("not logged in"));
    assert!(other.issued().is_empty());
}

#[test]
fn a_registered_client_needs_its_secret_from_the_store() {
    let gateway = Gateway::accepted();
    let config = gateway.scratch.path().join("config.toml");
    let keys = "[upstream.docs]\noauth_client_id = \"known\"\noauth_client_secret = ";
    std::fs::write(&config, format!("{keys}\"plain-text-secret\"\n")).unwrap();
    let refused = gateway.auth(&["status"]);
    assert!(!refused.status.success());
    assert!(
        text(&refused).contains("config.toml:3:") && !text(&refused).contains("plain-text"),
        "{}",
        text(&refused)
    );
    std::fs::write(&config, format!("{keys}\"${{secret:DOCS}}\"\n")).unwrap();
    let (code, printed) = gateway.log_in_with(&[], |url| url);
    assert!(code != 0 && printed.contains("ringfence secret set DOCS"), "{printed}");
    let mut set = ringfence(&gateway.scratch);
    set.args(["secret", "set", "DOCS", "--root"]).arg(gateway.scratch.path().join("root"));
    let mut child = set.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"client-secret-value").unwrap();
    assert!(child.wait().unwrap().success());
    gateway.log_in(&[]);
    gateway.authority.with(|state| {
        assert_eq!(
            (state.registrations, state.client_secrets.as_slice()),
            (0, &["client-secret-value".to_owned()][..])
        );
    });
    // Logins are no secrets of the operator, and no name of one can be set.
    let mut list = ringfence(&gateway.scratch);
    list.args(["secret", "list", "--root"]).arg(gateway.scratch.path().join("root"));
    let listed = text(&list.output().unwrap());
    assert!(listed.contains("DOCS") && !listed.contains("login"), "{listed}");
    let mut set = ringfence(&gateway.scratch);
    set.args(["secret", "set", "login:[\"docs\",\"local\"]", "--root"]);
    let set = set.arg(gateway.scratch.path().join("root")).stdin(Stdio::null()).output().unwrap();
    assert!(text(&set).contains("not a valid name for a secret"), "{}", text(&set));
}
