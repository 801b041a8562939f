//! Tools of other MCP servers: the gateway between every client and a scripted server (`server.py`) of either era, over
//! every transport.

mod cli;
mod eras;
mod gate;
mod isolation;
mod lists;
mod manners;
mod meta;
mod pins;
mod questions;
mod results;
mod sandboxed;
mod soak;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value, json};

use crate::support::matrix::eras;
use crate::support::place::visible_folder;
use crate::support::process::marker;
use crate::support::server::Scratch;
use crate::support::{Client, Options, Server, Transport};

const CHANGED: &str = "notifications/tools/list_changed";

/// A server for each pair of era and transport that exists.
const PAIRS: [&str; 5] = ["pipe25", "pipe26", "http25", "http26", "sse25"];

/// The scripted server where a sandbox sees it.
fn script(name: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = visible_folder().join("upstream");
        std::fs::create_dir_all(&folder).unwrap();
        for (name, text) in [
            ("server.py", include_str!("server.py")),
            ("server_http.py", include_str!("server_http.py")),
        ] {
            // Under another name first: a parallel test must not run half a file.
            let partial = folder.join(format!("{name}.{}", std::process::id()));
            std::fs::write(&partial, text).unwrap();
            std::fs::rename(&partial, folder.join(name)).unwrap();
        }
        folder
    });
    folder.join(name)
}

/// The system's own, where there is one: wrappers of version managers take longer to start than all else.
fn python() -> &'static str {
    let system = "/usr/bin/python3";
    if Path::new(system).exists() { system } else { "python3" }
}

/// What the scripted server offers, as `mcp.lock` has it.
fn offer() -> Value {
    static OFFER: OnceLock<Value> = OnceLock::new();
    let ask = || {
        let output = Command::new(python()).arg(script("server.py")).arg("--lock").output();
        serde_json::from_slice(&output.unwrap().stdout).expect("an offer")
    };
    OFFER.get_or_init(ask).clone()
}

/// The scripted server over HTTP, outside any sandbox.
struct HttpServer {
    child: Child,
    port: u16,
}

impl HttpServer {
    fn start() -> Self {
        let mut command = Command::new(python());
        command.args(["-S", "-B"]).arg(script("server_http.py")).stdout(Stdio::piped());
        let mut child = command.spawn().expect("python starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        HttpServer { child, port: line.trim().parse().expect("a port") }
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Servers behind one gateway, and what is accepted of them.
struct Gateway {
    scratch: Arc<Scratch>,
    servers: Map<String, Value>,
    bundles: Map<String, Value>,
    locked: Map<String, Value>,
    config: String,
    /// Argument by which the processes of stdio servers are found.
    mark: String,
}

impl Gateway {
    fn new() -> Self {
        Gateway::on(Scratch::new())
    }

    fn on(scratch: Arc<Scratch>) -> Self {
        Gateway {
            scratch,
            servers: Map::new(),
            bundles: Map::new(),
            locked: Map::new(),
            config: String::new(),
            mark: marker(),
        }
    }

    /// One server of each pair, all of them trusted and accepted.
    fn with_all(site: &HttpServer) -> Self {
        Gateway::new()
            .stdio("pipe25", &["--era", "2025"])
            .stdio("pipe26", &["--era", "2026"])
            .remote("http25", "http", &site.url("/2025/mcp"))
            .remote("http26", "http", &site.url("/2026/mcp"))
            .remote("sse25", "sse", &site.url("/2025/sse"))
    }

    /// Adds a local server that is trusted, accepted and offered as a whole.
    fn stdio(self, id: &str, args: &[&str]) -> Self {
        let script = script("server.py").display().to_string();
        let mut words = vec!["-I", "-S", &script, "--mark", &self.mark];
        words.extend(args);
        let transport = json!({"type": "stdio", "command": python(), "args": words});
        self.server(id, transport)
    }

    fn remote(self, id: &str, kind: &str, url: &str) -> Self {
        self.server(id, json!({"type": kind, "url": url}))
    }

    fn server(mut self, id: &str, transport: Value) -> Self {
        self.servers.insert(id.into(), json!({"trust": "trusted", "transport": transport}));
        self.bundles.insert(format!("{id}All"), json!({"serverId": id, "mode": "direct"}));
        self.locked.insert(id.into(), offer());
        self
    }

    /// Changes the entry of a server.
    fn edit(mut self, id: &str, edit: impl FnOnce(&mut Value)) -> Self {
        edit(&mut self.servers[id]);
        self
    }

    fn untrusted(self, id: &str) -> Self {
        self.edit(id, |entry| entry["trust"] = json!("untrusted"))
    }

    /// Replaces the bundle that offers a server as a whole.
    fn bundle(mut self, id: &str, mode: &str, lists: Value) -> Self {
        let bundle = &mut self.bundles[&format!("{id}All")];
        *bundle = json!({"serverId": id, "mode": mode});
        for (key, value) in lists.as_object().unwrap() {
            bundle[key] = value.clone();
        }
        self
    }

    /// Nothing of any server is accepted.
    fn unlocked(mut self) -> Self {
        self.locked.clear();
        self
    }

    fn config(mut self, lines: &str) -> Self {
        self.config.push_str(lines);
        self.config.push('\n');
        self
    }

    /// Directory of the upstreams file.
    fn folder(&self) -> PathBuf {
        self.scratch.path().join("upstreams")
    }

    fn lock_path(&self) -> PathBuf {
        self.folder().join("mcp.lock")
    }

    /// Accepts exactly this, as an operator does: by a new file.
    fn accept(&self, servers: &Map<String, Value>) {
        let text = json!({"version": 1, "servers": servers}).to_string();
        let new = self.folder().join("mcp.lock.test");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.lock_path()).unwrap();
    }

    fn write_upstreams(&self) {
        std::fs::create_dir_all(self.folder()).unwrap();
        let text = json!({"servers": self.servers, "bundles": self.bundles}).to_string();
        std::fs::write(self.folder().join("upstreams.json"), text).unwrap();
    }

    /// Writes the files; the server is started with them.
    fn options(&self, transport: Transport) -> Options {
        self.write_upstreams();
        if !self.locked.is_empty() {
            self.accept(&self.locked);
        }
        let file = self.folder().join("upstreams.json");
        Options::new(transport)
            .on(&self.scratch)
            .config(&format!("tools = 'core'\n{}", self.config))
            .args(&["--upstreams", file.to_str().unwrap()])
    }

    fn spawn(&self, transport: Transport) -> Server {
        self.options(transport).spawn()
    }

    /// The processes of local servers that run now.
    fn processes(&self) -> Vec<u32> {
        crate::support::process::with_argument(&self.mark)
    }
}

/// Runs a scenario between every client and a server of every pair, all clients at once.
fn on_all_pairs(
    prepare: impl Fn(Gateway) -> Gateway + Sync,
    introduce: impl Fn(&mut Client) + Sync,
    scenario: impl Fn(&Gateway, &mut Server, &mut Client, &str) + Sync,
) {
    let (prepare, introduce, scenario) = (&prepare, &introduce, &scenario);
    std::thread::scope(|scope| {
        for cell in eras() {
            scope.spawn(move || {
                let site = HttpServer::start();
                let gateway = prepare(Gateway::with_all(&site));
                let mut server = gateway.spawn(cell.transport);
                let mut client = server.client(cell.version);
                introduce(&mut client);
                client.shake_hands();
                for id in PAIRS {
                    eprintln!("on {:?} {} to {id}", cell.transport, cell.version);
                    scenario(&gateway, &mut server, &mut client, id);
                }
            });
        }
    });
}

/// The first text of a good result.
#[track_caller]
fn said(message: &Value) -> &str {
    let result = &message["result"];
    assert!(result["isError"] == false && result["content"].is_array(), "{message:#}");
    result["content"][0]["text"].as_str().unwrap()
}

/// The JSON in the first text.
#[track_caller]
fn said_json(message: &Value) -> Value {
    serde_json::from_str(said(message)).unwrap()
}

/// The error of a failed call: of another server's tool it is in `_meta`, of our own in the structured content.
#[track_caller]
fn error_of(message: &Value) -> &Value {
    let result = &message["result"];
    assert_eq!(result["isError"], true, "{message:#}");
    match &result["_meta"]["dev.ringfence/error"] {
        Value::Null => &result["structuredContent"]["error"],
        error => error,
    }
}

/// Asserts that there is no such tool, as for a name that never existed.
#[track_caller]
fn assert_unknown(message: &Value) {
    assert_eq!(message["error"]["data"]["kind"], "unknown_tool", "{message:#}");
}

/// Names on the list that belong to other servers.
fn listed(client: &mut Client) -> Vec<String> {
    let answer = client.request("tools/list", json!({}));
    let tools = answer["result"]["tools"].as_array().unwrap_or_else(|| panic!("{answer}"));
    let names = tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned());
    names.filter(|name| name.contains("__")).collect()
}

fn lists(client: &mut Client, name: &str) -> bool {
    listed(client).iter().any(|listed| listed == name)
}

/// Asks to be told of changes, in whatever way there is.
fn listen(client: &mut Client) {
    match (client.is_modern(), client.transport) {
        (true, _) => {
            let wanted = json!({"notifications": {"toolsListChanged": true}});
            client.start("subscriptions/listen", wanted);
            client.wait_notification("notifications/subscriptions/acknowledged");
        }
        (false, Transport::Http) => client.listen(),
        (false, _) => {}
    }
}

/// Waits for a list that is as wanted; it is read again after each change.
#[track_caller]
fn wait_for_list(client: &mut Client, is_wanted: impl Fn(&[String]) -> bool) {
    while !is_wanted(&listed(client)) {
        client.wait_notification(CHANGED);
    }
}
