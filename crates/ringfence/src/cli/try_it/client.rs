//! The agent's side of the demonstration: runs our own binary on a pipe and speaks just enough MCP
//! to use it.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use serde_json::{Value, json};

use super::{DemoDirectory, unexpected_error};
use crate::base::{Error, Kind, Result};
use crate::sandbox::{SelfServer, start_self_server};

/// The server answers in milliseconds; after this long it will not answer at all.
const REPLY_TIMEOUT: Duration = Duration::from_secs(15);

/// MCP client that sends one request at a time and denies every approval it is asked for.
pub struct DemoClient {
    server: SelfServer,
    lines: Receiver<String>,
    last_id: u64,
    /// Approval questions that a human would have seen.
    pub questions: Vec<Value>,
}

impl DemoClient {
    /// Starts the server with this config and the demonstration's directories.
    pub fn start(demo_dir: &DemoDirectory, config: &Path) -> Result<Self> {
        let flag = |name: &str, path: &Path| [name.into(), path.as_os_str().to_owned()];
        let mut args = vec!["serve".into()];
        args.extend(flag("--root", &demo_dir.root()));
        args.extend(flag("--workspace", &demo_dir.workspace()));
        args.extend(flag("--config", config));
        // Warnings in between would hide what the demonstration shows; errors stay visible.
        args.extend(["--log-level".into(), "error".into()]);
        let env = [
            ("HOME".into(), demo_dir.home().into_os_string()),
            ("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into()),
        ];
        let start_error = || Error::new(Kind::Unavailable, "the server could not be started");
        let mut server =
            start_self_server(args, env).map_err(|error| start_error().with_source(error))?;
        let output = server.take_output().ok_or_else(start_error)?;
        // A separate thread reads, so that waiting for an answer can time out.
        let (sender, lines) = sync_channel(1);
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(std::io::Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(DemoClient { server, lines, last_id: 0, questions: Vec::new() })
    }

    /// Sends a request and returns its result. Declines every question that arrives in between.
    pub fn send_request(&mut self, method: &str, params: Value) -> Result<Value> {
        self.last_id += 1;
        let id = json!(self.last_id);
        self.send_message(
            &json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}),
        )?;
        loop {
            let mut message = self.receive_message()?;
            if message["method"] == "elicitation/create" {
                self.send_message(&json!({"jsonrpc": "2.0", "id": message["id"], "result": {"action": "decline"}}))?;
                self.questions.push(message["params"].take());
            } else if message.get("method").is_none() && message["id"] == id {
                return match message.get_mut("result") {
                    Some(result) => Ok(result.take()),
                    None => Err(unexpected_error("a result", &message["error"])),
                };
            }
        }
    }

    /// Sends a notification.
    pub fn send_notification(&mut self, method: &str) -> Result<()> {
        self.send_message(&json!({"jsonrpc": "2.0", "method": method}))
    }

    /// Calls a tool that must succeed and returns its result.
    pub fn call_expecting_success(&mut self, tool: &str, arguments: Value) -> Result<Value> {
        let result =
            self.send_request("tools/call", json!({"name": tool, "arguments": arguments}))?;
        match result["isError"] == true {
            false => Ok(result),
            true => Err(unexpected_error(
                &format!("`{tool}` to work"),
                &result["structuredContent"]["error"],
            )),
        }
    }

    /// Calls a tool and returns its result, whether it succeeded or not.
    pub fn call_tool(&mut self, tool: &str, arguments: Value) -> Result<Value> {
        self.send_request("tools/call", json!({"name": tool, "arguments": arguments}))
    }

    /// Calls a tool that must refuse and returns its error.
    pub fn call_expecting_error(&mut self, tool: &str, arguments: Value) -> Result<Value> {
        let mut result =
            self.send_request("tools/call", json!({"name": tool, "arguments": arguments}))?;
        match result["isError"] == true {
            true => Ok(result["structuredContent"]["error"].take()),
            false => Err(unexpected_error(&format!("`{tool}` to refuse"), &result)),
        }
    }

    fn send_message(&mut self, message: &Value) -> Result<()> {
        let input = self.server.input_mut().ok_or_else(server_gone_error)?;
        writeln!(input, "{message}")
            .and_then(|()| input.flush())
            .map_err(|error| server_gone_error().with_source(error))
    }

    fn receive_message(&mut self) -> Result<Value> {
        let line = self.lines.recv_timeout(REPLY_TIMEOUT).map_err(|error| match error {
            RecvTimeoutError::Timeout => Error::new(
                Kind::DeadlineExceeded,
                format!("the server gave no answer within {} s", REPLY_TIMEOUT.as_secs()),
            )
            .with_hint("Its log is above. Try again when the machine is less busy."),
            RecvTimeoutError::Disconnected => server_gone_error(),
        })?;
        serde_json::from_str(&line).map_err(|error| {
            Error::internal("the server sent something that is not JSON").with_source(error)
        })
    }

    /// Shuts the server down in order, so that its audit log is closed.
    pub fn shut_down(mut self) -> Result<()> {
        self.server.close_input();
        loop {
            match self.lines.recv_timeout(REPLY_TIMEOUT) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Err(RecvTimeoutError::Timeout) => {
                    return Err(Error::internal(
                        "the server did not exit after its input was closed",
                    ));
                }
            }
        }
    }
}

fn server_gone_error() -> Error {
    Error::new(Kind::Unavailable, "the server ended early").with_hint("Its log is above.")
}
