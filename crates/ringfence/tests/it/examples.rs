//! The configurations in `examples/`: each is sound, and does what its README says, with the real programs.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::support::place::visible_folder;
use crate::support::server::{Scratch, binary, ringfence};
use crate::support::subset::assert_holds;
use crate::support::{
    Approve, Client, DEADLINE, MODERN, Options, SESSIONS, Server, Transport, eventually,
};

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

/// One of them, copied to where it can be changed. Not in /tmp, of which every run has its own.
struct Example {
    scratch: Arc<Scratch>,
    config: PathBuf,
}

impl Example {
    fn new(name: &str) -> Example {
        let scratch = Scratch::within(visible_folder());
        let folder = scratch.path().join("example");
        std::fs::create_dir(&folder).unwrap();
        for file in
            std::fs::read_dir(examples().join(name)).unwrap().map(|entry| entry.unwrap().path())
        {
            std::fs::copy(&file, folder.join(file.file_name().unwrap())).unwrap();
        }
        Example { scratch, config: folder.join("config.toml") }
    }

    /// For ports that are only known now.
    fn replace(&self, from: &str, to: &str) {
        let text = std::fs::read_to_string(&self.config).unwrap();
        assert!(text.contains(from), "{from}");
        std::fs::write(&self.config, text.replace(from, to)).unwrap();
    }

    fn file(&self, name: &str, text: &str) {
        let path = self.scratch.path().join("workspace").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn options(&self, transport: Transport) -> Options {
        Options::new(transport).on(&self.scratch).arg("--config").arg(self.config.to_str().unwrap())
    }

    /// As the README does.
    fn keep(&self, name: &str, value: &str) {
        let mut command = ringfence(&self.scratch);
        command.args(["secret", "set", name]).env("SANDBOX_ROOT", self.scratch.path().join("root"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(value.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
    }

    /// `config check --strict` finds nothing.
    fn is_sound(&self) {
        let mut command = ringfence(&self.scratch);
        command.args(["config", "check", "--strict"]).arg(&self.config);
        command.arg("--root").arg(self.scratch.path().join("root"));
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("no errors, no warnings"), "{said}");
    }

    fn start(&self) -> (Server, Client) {
        self.is_sound();
        let mut server = self.options(Transport::Stdio).spawn();
        let client = server.connect(SESSIONS);
        (server, client)
    }
}

/// The tool is on the list, with these facts.
fn is_listed(client: &mut Client, tool: &str, meta: Value) {
    let list = client.request("tools/list", json!({}));
    let tools = list["result"]["tools"].as_array().unwrap();
    let found = tools
        .iter()
        .find(|other| other["name"] == tool)
        .unwrap_or_else(|| panic!("no {tool} in {list:#}"));
    assert_holds(meta, &found["_meta"]);
}

fn reply(message: &Value) -> &Value {
    assert_eq!(message["result"]["isError"], false, "{message:#}");
    &message["result"]["structuredContent"]
}

fn error(message: &Value) -> &Value {
    assert_eq!(message["result"]["isError"], true, "{message:#}");
    &message["result"]["structuredContent"]["error"]
}

#[test]
fn a_linter() {
    let example = Example::new("linter");
    example.file("bad.sh", "#!/bin/sh\ncat $1\nfor x in `ls`; do echo; done\n");
    example.file("good.sh", "#!/bin/sh\necho fine\n");
    let (_server, mut client) = example.start();
    is_listed(
        &mut client,
        "lint",
        json!({"dev.ringfence/requires_approval": false, "dev.ringfence/side_effects": ["exec"]}),
    );
    client.approve = Approve::Decline;
    let message = client.call("lint", json!({"files": ["bad.sh", "good.sh"], "severity": "info"}));
    let said = reply(&message);
    assert_eq!(said["exit_code"], 1, "{said}");
    let text = said["stdout"].as_str().unwrap();
    assert!(text.contains("bad.sh:2:5: note: Double quote") && !text.contains("good.sh"), "{text}");
    assert_eq!(reply(&client.call("lint", json!({"files": ["good.sh"]})))["exit_code"], 0);
    assert_eq!(client.questions.len(), 0, "nobody is asked");
    // Paths outside, arguments that are none, and names that a shell would run.
    assert_eq!(
        error(&client.call("lint", json!({"files": ["/etc/profile"]})))["reason"],
        "surface_path"
    );
    assert_eq!(error(&client.call("lint", json!({"files": ["../x"]})))["reason"], "surface_path");
    assert_eq!(
        error(&client.call("lint", json!({"files": ["good.sh"], "severity": "all"})))["kind"],
        "invalid_arguments"
    );
    let odd = client.call("lint", json!({"files": ["$(touch made)", "--version"]}));
    assert_eq!(reply(&odd)["exit_code"], 2, "{odd:#}");
    assert!(!example.scratch.path().join("workspace/made").exists());
}

#[test]
fn a_test_runner() {
    let example = Example::new("tests");
    example.file(
        "test_calc.py",
        "def test_sum():\n    assert 1 + 1 == 2\n\ndef test_wrong():\n    assert 1 == 2\n",
    );
    let reach = "import pathlib, socket\n\ndef test_reach():\n    pathlib.Path('made').write_text('x')\n\n\
                 def test_net():\n    socket.create_connection(('127.0.0.1', PORT), 2)\n\n\
                 def test_tmp(tmp_path):\n    (tmp_path / 'x').write_text('x')\n";
    let host = TcpListener::bind("127.0.0.1:0").unwrap();
    example.file(
        "test_reach.py",
        &reach.replace("PORT", &host.local_addr().unwrap().port().to_string()),
    );
    let (_server, mut client) = example.start();
    is_listed(
        &mut client,
        "test",
        json!({"dev.ringfence/allows_streaming": true, "dev.ringfence/default_timeout_ms": 1_200_000}),
    );
    client.approve = Approve::Decline;
    let message = client.call("test", json!({"words": "sum", "paths": ["test_calc.py"]}));
    let text = reply(&message)["stdout"].as_str().unwrap();
    assert!(text.contains("1 passed, 1 deselected"), "{text}");
    let message = client.call("test", json!({}));
    let said = reply(&message);
    assert_eq!(said["exit_code"], 1, "{said}");
    let text = said["stdout"].as_str().unwrap();
    assert!(text.contains("3 failed, 2 passed"), "{text}");
    for failed in
        ["test_calc.py::test_wrong", "test_reach.py::test_reach", "test_reach.py::test_net"]
    {
        assert!(text.contains(&format!("FAILED {failed}")), "{text}");
    }
    assert!(text.contains("Read-only file system"), "{text}");
    let left: Vec<_> = std::fs::read_dir(example.scratch.path().join("workspace"))
        .unwrap()
        .map(|one| one.unwrap().file_name())
        .collect();
    assert_eq!(left.len(), 2, "{left:?}");
    assert_eq!(
        error(&client.call("test", json!({"words": "x'; id"})))["kind"],
        "invalid_arguments"
    );
}

#[test]
fn a_deploy_script_behind_approval() {
    let example = Example::new("deploy");
    example.file("site/index.html", "hello\n");
    let (server, mut client) = example.start();
    is_listed(
        &mut client,
        "deploy",
        json!({"dev.ringfence/requires_approval": true, "dev.ringfence/side_effects": ["exec", "filesystem_write"]}),
    );
    let arguments = json!({"target": "staging", "reason": "the first page"});
    let release = server.workspace().join("releases/staging");
    client.approve = Approve::Decline;
    assert_eq!(error(&client.call("deploy", arguments.clone()))["kind"], "approval_denied");
    assert!(!release.exists());
    let question = client.questions[0]["message"].as_str().unwrap().to_owned();
    for part in
        ["Allow `deploy`?", "staging", "the first page", "filesystem_write", "sandbox: default"]
    {
        assert!(question.contains(part), "{part} is not in {question}");
    }
    client.approve = Approve::Once;
    let message = client.call("deploy", arguments.clone());
    assert_eq!(reply(&message)["stdout"], "deployed to staging: 2 files\n", "{message:#}");
    assert_eq!(std::fs::read_to_string(release.join("RELEASE")).unwrap(), "the first page\n");
    assert_eq!(client.questions.len(), 2);
    client.call("deploy", arguments);
    assert_eq!(client.questions.len(), 3, "once is once");
    assert_eq!(
        error(&client.call("deploy", json!({"target": "moon", "reason": "because"})))["kind"],
        "invalid_arguments"
    );
    // The script is the operator's: no tool of a session can change it.
    let script = example.config.with_file_name("deploy.sh");
    let before = std::fs::read(&script).unwrap();
    client.call("shell.exec", json!({"command": format!("echo id > {}", script.display())}));
    assert_eq!(std::fs::read(&script).unwrap(), before);
}

/// A Redis of the host's, with a password.
struct Redis {
    child: Child,
    port: u16,
}

impl Redis {
    fn start(password: &str) -> Redis {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let port_text = port.to_string();
        let child = Command::new("redis-server")
            .args([
                "--port",
                &port_text,
                "--bind",
                "127.0.0.1",
                "--requirepass",
                password,
                "--save",
                "",
                "--appendonly",
                "no",
            ])
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed: conformance/packages.sh");
        let redis = Redis { child, port };
        eventually(DEADLINE, "redis answers", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        redis
    }

    /// One command in its own words, and the first line of the answer.
    fn say(&self, password: &str, command: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.write_all(format!("AUTH {password}\r\n{command}\r\n").as_bytes()).unwrap();
        let mut lines = BufReader::new(stream).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "+OK");
        lines.next().unwrap().unwrap()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_database_query_with_a_secret() {
    let password = "open-sesame-4711";
    let redis = Redis::start(password);
    assert_eq!(redis.say(password, "SET greeting hello"), "+OK");
    let example = Example::new("database");
    example.replace("6379", &redis.port.to_string());
    example.keep("REDIS_PASSWORD", password);
    let (server, mut client) = example.start();
    is_listed(
        &mut client,
        "query",
        json!({"dev.ringfence/requires_approval": true, "dev.ringfence/side_effects": ["exec", "network"]}),
    );
    client.approve = Approve::Decline;
    assert_eq!(
        error(&client.call("query", json!({"command": "GET", "key": "greeting"})))["kind"],
        "approval_denied"
    );
    client.approve = Approve::Session;
    let message = client.call("query", json!({"command": "GET", "key": "greeting"}));
    assert_eq!(reply(&message)["stdout"], "hello\n", "{message:#}");
    // Nothing that changes anything, and no option for redis-cli.
    for arguments in [
        json!({"command": "SET", "key": "x", "more": ["y"]}),
        json!({"command": "GET", "key": "-h"}),
    ] {
        assert_eq!(error(&client.call("query", arguments))["kind"], "invalid_arguments");
    }
    assert_eq!(redis.say(password, "EXISTS x"), ":0");
    // The session's own commands have no such way.
    let other =
        client.call("shell.exec", json!({"command": format!("redis-cli -p {} PING", redis.port)}));
    assert_ne!(reply(&other)["exit_code"], 0, "{other:#}");
    let reached: Vec<Value> = server.events("network");
    assert!(
        !reached.is_empty()
            && reached.iter().all(|one| one["port"] == redis.port && one["allowed"] == true),
        "{reached:?}"
    );
    // Nobody has seen it.
    let written = format!(
        "{}{}{}{:?}",
        Value::from(server.audit()),
        server.log(),
        Value::from(client.questions.clone()),
        message
    );
    assert!(!written.contains(password));
    assert!(
        Value::from(client.questions.clone())
            .to_string()
            .contains("REDISCLI_AUTH=${secret:REDIS_PASSWORD}")
    );
}

#[test]
fn without_its_secret_a_query_is_refused() {
    let example = Example::new("database");
    let checked = ringfence(&example.scratch)
        .args(["config", "check"])
        .arg(&example.config)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(
        checked.status.success() && said.contains("warning: ") && said.contains("REDIS_PASSWORD"),
        "{said}"
    );
    let mut server = example.options(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    let message = client.call("query", json!({"command": "GET", "key": "a"}));
    assert_holds(json!({"kind": "unauthenticated", "reason": "missing_secret"}), error(&message));
    assert_eq!(client.questions.len(), 0);
}

#[test]
fn a_network_fetcher() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut head = String::new();
            let mut lines = BufReader::new(stream.try_clone().unwrap());
            let _ = lines.read_line(&mut head);
            while lines.read_line(&mut String::new()).is_ok_and(|count| count > 2) {}
            let mut stream = stream;
            let answer = match head.contains("/away") {
                true => "HTTP/1.1 302 Found\r\nLocation: http://evil.test/\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_owned(),
                false => "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\npage\n".to_owned(),
            };
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    let example = Example::new("fetcher");
    // A name that leads nowhere in place of one out there, and a server of this machine.
    example.replace("\"docs.python.org\", ", "\"nowhere.invalid\", ");
    example.replace(
        "side_effects",
        &format!("allow_addresses = [\"127.0.0.1:{port}\"]\nside_effects"),
    );
    let (server, mut client) = example.start();
    is_listed(
        &mut client,
        "fetch",
        json!({"dev.ringfence/requires_approval": true, "dev.ringfence/permission": {"scope": "network"}}),
    );
    let mut fetch = |url: &str| client.call("fetch", json!({"url": url}));
    assert_eq!(reply(&fetch(&format!("http://127.0.0.1:{port}/")))["stdout"], "page\n");
    // Another name, and a redirect to it.
    for url in ["http://evil.test/".to_owned(), format!("http://127.0.0.1:{port}/away")] {
        let message = fetch(&url);
        let said = reply(&message);
        assert_ne!(said["exit_code"], 0, "{said}");
        assert!(said["stdout"].as_str().unwrap().contains("not in `allow_domains`"), "{said}");
        assert_holds(
            json!([{"kind": "network", "name": "evil.test:80", "reason": "not_allowed"}]),
            &said["sandbox"]["denials"],
        );
    }
    // One that is allowed is looked for, and is not there.
    assert_ne!(reply(&fetch("http://nowhere.invalid/"))["exit_code"], 0);
    assert_eq!(error(&fetch("file:///etc/passwd"))["kind"], "invalid_arguments");
    let nowhere =
        server.events("network").into_iter().find(|one| one["host"] == "nowhere.invalid").unwrap();
    assert_ne!(nowhere["reason"], "not_allowed", "{nowhere}");
    assert!(client.questions.len() >= 4, "each is asked for");
    // The operator's own list is sound, too.
    Example::new("fetcher").is_sound();
}

#[test]
fn a_team_server() {
    let example = Example::new("team");
    let secret = example.config.with_file_name("jwt-secret");
    let made = ringfence(&example.scratch).args(["token", "--new-secret"]).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    std::fs::write(&secret, made.stdout).unwrap();
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    example.is_sound();
    let token = |name: &str| {
        let mut command = ringfence(&example.scratch);
        command.args(["token", "--ttl", "8h", "--sub", name, "--config"]).arg(&example.config);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    for version in [SESSIONS, MODERN] {
        let mut options = example.options(Transport::Http);
        options.workspace = false;
        let mut server = options.spawn();
        let mut connect = |name: &str| {
            let mut client = server.client_as(version, Some(&token(name)));
            client.shake_hands();
            client
        };
        let (mut alice, mut bob) = (connect("alice"), connect("bob"));
        is_listed(&mut alice, "count", json!({"dev.ringfence/requires_approval": false}));
        let list = alice.request("tools/list", json!({}))["result"].to_string();
        assert!(!list.contains("browser"), "{list}");
        reply(&alice.call("file.write", json!({"path": "notes.txt", "content": "alpha\nomega\n"})));
        let message = alice.call("count", json!({"files": ["notes.txt"]}));
        assert_eq!(reply(&message)["stdout"], " 2  2 12 notes.txt\n", "{message:#}");
        // It is hers alone.
        let message = bob.call("count", json!({"files": ["notes.txt"]}));
        assert!(
            reply(&message)["stderr"].as_str().unwrap().contains("No such file"),
            "{message:#}"
        );
        let hers = server.root().join("workspaces");
        let path = std::fs::read_dir(&hers)
            .unwrap()
            .map(|one| one.unwrap().path().join("notes.txt"))
            .find(|path| path.exists());
        let path = path.unwrap().display().to_string();
        assert_eq!(error(&bob.call("count", json!({"files": [path]})))["reason"], "surface_path");
        let read = bob.call("shell.exec", json!({"command": format!("cat {path}")}));
        assert!(!read.to_string().contains("omega"), "{read:#}");
        // Nobody without a token, or with one of somebody else's making.
        for token in [None, Some("x.y.z"), Some(&*crate::support::token::of("alice"))] {
            let request = crate::support::client::with_token(
                crate::support::http::Request::post(
                    "/mcp",
                    json!({"jsonrpc": "2.0", "id": 1, "method": "mcp.capabilities"}).to_string(),
                ),
                token,
            );
            assert_eq!(request.fetch(server.address()).status, 401, "{token:?}");
        }
    }
}

#[test]
fn a_monorepo_whose_clients_choose_where_to_start() {
    let example = Example::new("monorepo");
    example.file("packages/web/index.html", "x");
    example.file("other/secret.txt", "x");
    let (_server, mut client) = example.start();
    is_listed(
        &mut client,
        "describe",
        json!({"dev.ringfence/session_defaults": {"overrides": false}}),
    );
    assert_eq!(
        reply(&client.call("describe", json!({})))["stdout"],
        "package: packages\nstage: development\nweb\n"
    );
    let update =
        |client: &mut Client, params: Value| client.request("ringfence/session/update", params);
    let done = update(
        &mut client,
        json!({"cwd_override": "packages/web", "env_overrides": {"STAGE": "production"}}),
    );
    assert!(done.get("error").is_none(), "{done:#}");
    assert_eq!(
        reply(&client.call("describe", json!({})))["stdout"],
        "package: web\nstage: production\nindex.html\n"
    );
    is_listed(
        &mut client,
        "describe",
        json!({"dev.ringfence/session_defaults": {"overrides": true}}),
    );
    for params in [
        json!({"cwd_override": "../.."}),
        json!({"env_overrides": {"PATH": "/x"}}),
        json!({"env_overrides": {"OTHER": "x"}}),
    ] {
        let refused = update(&mut client, params);
        assert!(refused.get("error").is_some(), "{refused:#}");
    }
    update(&mut client, json!({"cwd_override": "other"}));
    assert_eq!(error(&client.call("describe", json!({})))["kind"], "permission_denied");
    // Where the operator says nothing, nothing can be chosen.
    let (_server, mut client) = Example::new("linter").start();
    assert!(update(&mut client, json!({"cwd_override": "packages"})).get("error").is_some());
}

/// What the READMEs use: a yes and a no on standard input.
#[test]
fn the_script_of_the_examples_calls_and_asks() {
    let example = Example::new("deploy");
    example.file("site/index.html", "hello\n");
    for (answer, code, said) in
        [("n\n", 1, "denied"), ("y\n", 0, "deployed to production: 2 files")]
    {
        let mut child = Command::new(examples().join("call.py"))
            .arg(&example.config)
            .arg(example.scratch.path().join("workspace"))
            .args(["deploy", "{\"target\": \"production\", \"reason\": \"it is time\"}"])
            .env("RINGFENCE", binary())
            .env("SANDBOX_ROOT", example.scratch.path().join("root"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(answer.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let (out, err) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{out}\n{err}");
        assert!(out.contains(said) && err.contains("Allow `deploy`?"), "{out}\n{err}");
    }
}

/// A folder that nobody runs is no example.
#[test]
fn every_example_is_tested_and_documented() {
    let own = include_str!("examples.rs");
    let index = std::fs::read_to_string(examples().join("README.md")).unwrap();
    let folders = std::fs::read_dir(examples())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir());
    let names: Vec<String> =
        folders.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    assert!(names.len() >= 6, "{names:?}");
    for name in names {
        assert!(own.contains(&format!("Example::new(\"{name}\")")), "{name} is not run");
        assert!(index.contains(&format!("[{name}]({name})")), "{name} is not in the README");
        let text = std::fs::read_to_string(examples().join(&name).join("README.md")).unwrap();
        assert!(text.contains("ringfence config check"), "{name}");
    }
}
