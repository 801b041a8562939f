//! The browser tools on pages of our own, which a server inside the session has.

mod act;
mod hang;
mod life;
mod network;
mod pages;
mod pictures;

use serde_json::{Value, json};

use crate::support::{Client, Options, SESSIONS, Server, Transport};

const SITE: &str = include_str!("site.py");
const PORT: u16 = 8000;

/// A server, a client, and the site in the client's session.
pub struct Stage {
    pub server: Server,
    pub client: Client,
    pub url: String,
}

impl Stage {
    pub fn new() -> Stage {
        Stage::with(Options::new(Transport::Stdio))
    }

    pub fn with(options: Options) -> Stage {
        let mut server = options.spawn();
        let mut client = server.connect(SESSIONS);
        let url = serve(&server, &mut client);
        Stage { server, client, url }
    }

    pub fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    /// A call that must work: its result.
    pub fn call(&mut self, tool: &str, arguments: Value) -> Value {
        called(&mut self.client, tool, arguments)
    }

    /// The same, and of that what a program reads.
    pub fn ask(&mut self, tool: &str, arguments: Value) -> Value {
        self.call(tool, arguments)["structuredContent"].clone()
    }

    /// A call that must not work: its error.
    pub fn refuse(&mut self, tool: &str, arguments: Value) -> Value {
        refused(&mut self.client, tool, arguments)
    }

    pub fn go(&mut self, path: &str) -> Value {
        let url = self.at(path);
        self.ask("browser.navigate", json!({"url": url}))
    }

    pub fn act(&mut self, arguments: Value) -> Value {
        self.ask("browser.act", arguments)
    }

    /// The value of a script.
    pub fn eval(&mut self, script: &str) -> Value {
        let said = self.ask("browser.eval", json!({"script": script}));
        serde_json::from_str(said["value"].as_str().unwrap()).unwrap_or(Value::Null)
    }

    pub fn look(&mut self) -> String {
        self.ask("browser.snapshot", json!({}))["snapshot"].as_str().unwrap().to_owned()
    }
}

pub fn called(client: &mut Client, tool: &str, arguments: Value) -> Value {
    let message = client.call(tool, arguments.clone());
    let result = message["result"].clone();
    assert!(result.is_object() && result["isError"] != true, "{tool} {arguments}: {message:#}");
    result
}

pub fn refused(client: &mut Client, tool: &str, arguments: Value) -> Value {
    let message = client.call(tool, arguments.clone());
    let result = &message["result"];
    assert_eq!(result["isError"], true, "{tool} {arguments}: {message:#}");
    let error = &result["structuredContent"]["error"];
    if error.is_object() {
        return error.clone();
    }
    // A tool that can return an image has it in the text.
    let text = result["content"][0]["text"].as_str().unwrap();
    serde_json::from_str(text).unwrap_or_else(|_| json!({"text": text}))
}

/// Starts the site in the session: its address.
pub fn serve(server: &Server, client: &mut Client) -> String {
    std::fs::write(server.workspace().join("site.py"), SITE).unwrap();
    let port = PORT.to_string();
    let started =
        client.call("shell.exec", json!({"argv": ["python3", "site.py", port], "yield_ms": 0}));
    assert_eq!(started["result"]["structuredContent"]["status"], "running", "{started:#}");
    let until =
        format!("until (echo > /dev/tcp/127.0.0.1/{port}) 2>/dev/null; do sleep 0.02; done");
    let up = client.call("shell.exec", json!({"command": until, "timeout_ms": 10000}));
    assert_eq!(up["result"]["structuredContent"]["exit_code"], 0, "{up:#}");
    format!("http://127.0.0.1:{port}")
}

/// The ref of the first line of a snapshot that holds these words.
pub fn ref_of(snapshot: &str, words: &str) -> String {
    let line = snapshot
        .lines()
        .find(|line| line.contains(words))
        .unwrap_or_else(|| panic!("{words} in {snapshot}"));
    line.split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'))
        .unwrap_or_else(|| panic!("a ref in {line}"))
        .0
        .to_owned()
}
