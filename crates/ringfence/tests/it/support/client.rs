//! One MCP client for all transports and both eras. Threads read; the client itself is told of what arrives
//! through one channel, so that a test reads from top to bottom.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{ChildStdin, ChildStdout};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::http::{Events, Exchange, Request};
use super::{Approve, DEADLINE, MODERN, Transport};

pub const HANDLE: &str = "dev.ringfence/session";
const META: &str = "io.modelcontextprotocol/";

/// What the reading threads report.
enum Arrival {
    Message(Value),
    /// HTTP: the answer to the POST of this request has begun.
    Status(String, u16),
    /// The answer to this request (HTTP), or the whole connection, has ended.
    Closed(Option<String>),
}

enum Link {
    Stdio(Option<ChildStdin>),
    Http {
        address: SocketAddr,
        session: Option<String>,
        open: Arc<Mutex<HashMap<String, TcpStream>>>,
    },
    Sse {
        address: SocketAddr,
        endpoint: String,
        stream: TcpStream,
    },
}

pub struct Client {
    pub version: &'static str,
    pub transport: Transport,
    pub name: String,
    pub capabilities: Value,
    /// How the human answers what we are asked.
    pub approve: Approve,
    /// 2026-07-28: the session handle that goes with each call.
    pub handle: Option<String>,
    pub token: Option<String>,
    pub notifications: Vec<Value>,
    /// The parameters of every question there was.
    pub questions: Vec<Value>,
    /// 2025: questions that nobody has answered, with their ids.
    pub unanswered: Vec<(Value, Value)>,
    pub statuses: HashMap<String, u16>,
    /// On standard streams: everything that the server wrote, byte for byte.
    pub heard: Arc<Mutex<Vec<u8>>>,
    link: Link,
    inbox: Receiver<Arrival>,
    outbox: Sender<Arrival>,
    answers: HashMap<String, Value>,
    closed: Vec<Option<String>>,
    gate: Arc<Gate>,
    log: Arc<Mutex<String>>,
    next: u64,
}

/// Holds the reading threads up, for a client that does not read.
#[derive(Default)]
struct Gate {
    shut: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn pass(&self) {
        let mut shut = self.shut.lock().unwrap();
        while *shut {
            shut = self.opened.wait(shut).unwrap();
        }
    }

    fn set(&self, shut: bool) {
        *self.shut.lock().unwrap() = shut;
        self.opened.notify_all();
    }
}

impl Client {
    fn new(
        version: &'static str,
        transport: Transport,
        link: Link,
        log: Arc<Mutex<String>>,
    ) -> Self {
        let (outbox, inbox) = channel();
        Client {
            version,
            transport,
            name: "it".into(),
            capabilities: json!({"elicitation": {}}),
            approve: Approve::Once,
            handle: None,
            token: None,
            notifications: vec![],
            questions: vec![],
            unanswered: vec![],
            statuses: HashMap::new(),
            heard: Arc::default(),
            link,
            inbox,
            outbox,
            answers: HashMap::new(),
            closed: vec![],
            gate: Arc::default(),
            log,
            next: 0,
        }
    }

    pub fn on_pipes(
        version: &'static str,
        stdin: ChildStdin,
        stdout: ChildStdout,
        log: Arc<Mutex<String>>,
    ) -> Self {
        let client = Client::new(version, Transport::Stdio, Link::Stdio(Some(stdin)), log);
        let (outbox, gate) = (client.outbox.clone(), Arc::clone(&client.gate));
        let heard = Arc::clone(&client.heard);
        std::thread::spawn(move || {
            let mut reader = BufReader::new(stdout);
            let mut line = Vec::new();
            loop {
                gate.pass();
                line.clear();
                match reader.read_until(b'\n', &mut line) {
                    Ok(0) | Err(_) => break,
                    Ok(_) => heard.lock().unwrap().extend_from_slice(&line),
                }
                let message = serde_json::from_slice(&line).unwrap_or_else(
                    |_| json!({"not JSON on stdout": String::from_utf8_lossy(&line)}),
                );
                let _ = outbox.send(Arrival::Message(message));
            }
            let _ = outbox.send(Arrival::Closed(None));
        });
        client
    }

    pub fn on_http(
        version: &'static str,
        address: SocketAddr,
        token: Option<&str>,
        log: Arc<Mutex<String>>,
    ) -> Self {
        let link = Link::Http { address, session: None, open: Arc::default() };
        let mut client = Client::new(version, Transport::Http, link, log);
        client.token = token.map(str::to_owned);
        client
    }

    pub fn on_sse(
        version: &'static str,
        address: SocketAddr,
        token: Option<&str>,
        log: Arc<Mutex<String>>,
    ) -> Self {
        let request = with_token(
            Request::new("GET", "/mcp/sse").header("Accept", "text/event-stream"),
            token,
        );
        let exchange = request.send(address).expect("the stream opens");
        assert_eq!(exchange.status, 200, "GET /mcp/sse");
        let stream = exchange.stream.try_clone().unwrap();
        let mut events = Events(BufReader::new(exchange.body));
        let first = events.next().expect("the first event");
        assert_eq!(first.name, "endpoint");
        let link = Link::Sse { address, endpoint: first.data, stream };
        let mut client = Client::new(version, Transport::Sse, link, log);
        client.token = token.map(str::to_owned);
        let (outbox, gate) = (client.outbox.clone(), Arc::clone(&client.gate));
        std::thread::spawn(move || {
            while let Some(event) = {
                gate.pass();
                events.next()
            } {
                assert_eq!(event.name, "message");
                let _ = outbox.send(Arrival::Message(
                    serde_json::from_str(&event.data).expect("JSON in an event"),
                ));
            }
            let _ = outbox.send(Arrival::Closed(None));
        });
        client
    }

    pub fn is_modern(&self) -> bool {
        self.version == MODERN
    }

    /// `initialize` and its notification, or `server/discover`; the answer's result.
    pub fn shake_hands(&mut self) -> Value {
        if self.is_modern() {
            let result = self.request("server/discover", json!({}))["result"].clone();
            self.handle = result["_meta"][HANDLE].as_str().map(str::to_owned);
            return result;
        }
        let params = json!({
            "protocolVersion": self.version,
            "capabilities": self.capabilities,
            "clientInfo": {"name": self.name, "version": "1"},
        });
        let answer = self.request("initialize", params);
        assert_eq!(answer["result"]["protocolVersion"], self.version, "{answer}");
        self.notify("notifications/initialized", json!({}));
        answer["result"].clone()
    }

    /// Sends a request and waits for its answer: the whole JSON-RPC message.
    pub fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.start(method, params);
        self.wait(&id)
    }

    /// Calls a tool, answering what is asked on the way; the whole last JSON-RPC message.
    pub fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let id = self.start_call(tool, &arguments);
        self.finish(id, tool, &arguments)
    }

    pub fn start_call(&mut self, tool: &str, arguments: &Value) -> String {
        self.start("tools/call", json!({"name": tool, "arguments": arguments}))
    }

    /// Waits for the result of a call. A 2026-07-28 client drives the rounds of questions by itself.
    pub fn finish(&mut self, id: String, tool: &str, arguments: &Value) -> Value {
        let mut message = self.wait(&id);
        while message["result"]["resultType"] == "input_required" {
            let asked = message["result"]["inputRequests"].as_object().cloned().unwrap_or_default();
            self.questions.extend(asked.values().map(|question| question["params"].clone()));
            let Some(answer) = self.approve.answer() else { return message };
            let answers: Map<String, Value> =
                asked.keys().map(|key| (key.clone(), answer.clone())).collect();
            message = self.retry(
                tool,
                arguments,
                &message["result"]["requestState"].clone(),
                Value::Object(answers),
            );
        }
        message
    }

    /// The same call again with answers to what it asked.
    pub fn retry(&mut self, tool: &str, arguments: &Value, state: &Value, answers: Value) -> Value {
        let params = json!({"name": tool, "arguments": arguments, "requestState": state, "inputResponses": answers});
        self.request("tools/call", params)
    }

    /// Sends a request and returns its id.
    pub fn start(&mut self, method: &str, params: Value) -> String {
        self.next += 1;
        let id = format!("r{}", self.next);
        let params = self.dressed(method, params);
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    pub fn notify(&mut self, method: &str, params: Value) {
        self.send(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    pub fn cancel(&mut self, id: &str) {
        self.notify(
            "notifications/cancelled",
            json!({"requestId": id, "reason": "a test says so"}),
        );
    }

    /// Adds what 2026-07-28 wants in every request.
    pub fn dressed(&self, method: &str, mut params: Value) -> Value {
        if !self.is_modern() {
            return params;
        }
        let meta = self.meta();
        let own = params["_meta"].as_object().cloned().unwrap_or_default();
        params["_meta"] = meta;
        for (key, value) in own {
            params["_meta"][key] = value;
        }
        if let (Some(handle), "tools/call" | "tools/list" | "ringfence/session/update") =
            (&self.handle, method)
        {
            params["_meta"][HANDLE] = json!(handle);
        }
        params
    }

    pub fn meta(&self) -> Value {
        json!({
            format!("{META}protocolVersion"): self.version,
            format!("{META}clientInfo"): {"name": self.name, "version": "1"},
            format!("{META}clientCapabilities"): self.capabilities,
        })
    }

    pub fn send(&mut self, message: &Value) {
        self.send_bytes(message.to_string().as_bytes(), Some(message));
    }

    /// Sends on a pipe that the server may close at any time.
    pub fn try_send(&mut self, message: &Value) -> std::io::Result<()> {
        let Link::Stdio(Some(stdin)) = &mut self.link else { panic!("this is for standard input") };
        stdin.write_all(format!("{message}\n").as_bytes()).and_then(|()| stdin.flush())
    }

    /// Sends bytes as they are. On HTTP the headers are those of the message, where there is one.
    pub fn send_bytes(&mut self, bytes: &[u8], message: Option<&Value>) {
        match &mut self.link {
            Link::Stdio(stdin) => {
                let stdin = stdin.as_mut().expect("standard input is open");
                let sent = stdin.write_all(&[bytes, b"\n"].concat()).and_then(|()| stdin.flush());
                sent.unwrap_or_else(|error| panic!("{error}; {}", self.log.lock().unwrap()));
            }
            Link::Sse { address, endpoint, .. } => {
                let request = with_token(Request::post(endpoint, bytes), self.token.as_deref());
                let answer = request.fetch(*address);
                assert_eq!(answer.status, 202, "{}", String::from_utf8_lossy(&answer.body));
            }
            Link::Http { .. } => self.post(bytes, message),
        }
    }

    /// The POST of one message with the headers that belong to it.
    pub fn post_request(&self, bytes: &[u8], message: Option<&Value>) -> Request {
        let mut request = with_token(Request::post("/mcp", bytes), self.token.as_deref());
        let initializes = message.is_some_and(|message| message["method"] == "initialize");
        if let (Link::Http { session: Some(session), .. }, false) = (&self.link, initializes) {
            request = request.header("Mcp-Session-Id", session);
        }
        if !initializes {
            request = request.header("MCP-Protocol-Version", self.version);
        }
        if let (true, Some(message)) = (self.is_modern(), message) {
            request = request.header("Mcp-Method", message["method"].as_str().unwrap_or_default());
            request =
                request.header("Mcp-Name", message["params"]["name"].as_str().unwrap_or_default());
        }
        request
    }

    fn post(&mut self, bytes: &[u8], message: Option<&Value>) {
        let request = self.post_request(bytes, message);
        let Link::Http { address, session, open } = &mut self.link else {
            unreachable!("an HTTP client")
        };
        let address = *address;
        let id = message
            .filter(|message| message.get("method").is_some())
            .and_then(|message| message.get("id"));
        let id = id.and_then(Value::as_str).map(str::to_owned);
        let Some(id) = id else {
            let answer = request.fetch(address);
            assert_eq!(answer.status, 202, "{}", String::from_utf8_lossy(&answer.body));
            return;
        };
        if message.is_some_and(|message| message["method"] == "initialize") {
            let answer = request.fetch(address);
            *session = answer.header("mcp-session-id").map(str::to_owned);
            self.statuses.insert(id, answer.status);
            let _ = self.outbox.send(Arrival::Message(answer.message()));
            return;
        }
        let (outbox, gate, open) = (self.outbox.clone(), Arc::clone(&self.gate), Arc::clone(open));
        let stream = request.begin(address).expect("the server is reached");
        open.lock().unwrap().insert(id.clone(), stream.try_clone().unwrap());
        std::thread::spawn(move || {
            if let Ok(exchange) = Exchange::read(stream) {
                let _ = outbox.send(Arrival::Status(id.clone(), exchange.status));
                if exchange.is_stream() {
                    let mut events = Events(BufReader::new(exchange.body));
                    while let Some(event) = {
                        gate.pass();
                        events.next()
                    } {
                        if let Ok(message) = serde_json::from_str(&event.data) {
                            let _ = outbox.send(Arrival::Message(message));
                        }
                    }
                } else if let Ok(message) = serde_json::from_reader(exchange.body) {
                    let _ = outbox.send(Arrival::Message(message));
                }
            }
            open.lock().unwrap().remove(&id);
            let _ = outbox.send(Arrival::Closed(Some(id)));
        });
    }

    /// The answer to a request. It fails when there is none.
    pub fn wait(&mut self, id: &str) -> Value {
        self.try_wait(id).unwrap_or_else(|| {
            panic!("{}: no answer to {id}; {}", self.at(), self.log.lock().unwrap())
        })
    }

    /// The answer to a request, or nothing when its stream or the connection has ended without one.
    pub fn try_wait(&mut self, id: &str) -> Option<Value> {
        self.until(id, |client| {
            if let Some(answer) = client.answers.remove(id) {
                return Some(Some(answer));
            }
            client
                .closed
                .iter()
                .any(|over| over.is_none() || over.as_deref() == Some(id))
                .then_some(None)
        })
    }

    /// An error that names no request.
    pub fn wait_anonymous(&mut self) -> Value {
        self.until("an error without an id", |client| client.answers.remove(""))
    }

    /// 2025: waits until there is a question, and takes it: its id and its parameters.
    pub fn wait_question(&mut self) -> (Value, Value) {
        self.until("a question", |client| {
            (!client.unanswered.is_empty()).then(|| client.unanswered.remove(0))
        })
    }

    pub fn wait_notification(&mut self, method: &str) -> Value {
        self.until(method, |client| {
            let at = client.notifications.iter().position(|note| note["method"] == method)?;
            Some(client.notifications.remove(at))
        })
    }

    pub fn reply(&mut self, id: &Value, result: Value) {
        self.send(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
    }

    fn until<T>(&mut self, what: &str, mut found: impl FnMut(&mut Client) -> Option<T>) -> T {
        let until = Instant::now() + DEADLINE;
        loop {
            if let Some(found) = found(self) {
                return found;
            }
            match self.inbox.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(arrival) => self.take(arrival),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    panic!("{}: waited in vain for {what}; {}", self.at(), self.log.lock().unwrap())
                }
            }
        }
    }

    /// Takes in what has arrived so far, without waiting.
    pub fn drain(&mut self) {
        while let Ok(arrival) = self.inbox.recv_timeout(Duration::ZERO) {
            self.take(arrival);
        }
    }

    /// Answers that arrived and that nobody has asked for.
    pub fn stray(&mut self) -> Vec<Value> {
        self.drain();
        self.answers.values().cloned().collect()
    }

    fn take(&mut self, arrival: Arrival) {
        let message = match arrival {
            Arrival::Status(id, status) => {
                self.statuses.insert(id, status);
                return;
            }
            Arrival::Closed(id) => return self.closed.push(id),
            Arrival::Message(message) => message,
        };
        match (message.get("method").and_then(Value::as_str), message.get("id")) {
            (Some(_), Some(id)) => {
                assert!(!self.is_modern(), "2026-07-28 has no requests of the server's: {message}");
                self.questions.push(message["params"].clone());
                match self.approve.answer() {
                    Some(answer) => self.reply(&id.clone(), answer),
                    None => self.unanswered.push((id.clone(), message["params"].clone())),
                }
            }
            (Some(_), None) => self.notifications.push(message),
            (None, id) => {
                let id = match id {
                    Some(Value::String(id)) => id.clone(),
                    Some(id) => id.to_string(),
                    None => String::new(),
                };
                let again = self.answers.insert(id.clone(), message);
                assert!(again.is_none() || id.is_empty(), "{}: two answers to {id}", self.at());
            }
        }
    }

    /// Stops reading, or reads on.
    pub fn pause(&self, paused: bool) {
        self.gate.set(paused);
    }

    /// Closes the connection: standard input, the event stream; on HTTP there is none.
    pub fn hang_up(&mut self) {
        match &mut self.link {
            Link::Stdio(stdin) => drop(stdin.take()),
            Link::Sse { stream, .. } => stream.shutdown(Shutdown::Both).unwrap(),
            Link::Http { .. } => {}
        }
    }

    /// HTTP: closes the stream on which the answer to this request would come.
    pub fn hang_up_on(&mut self, id: &str) {
        let Link::Http { open, .. } = &self.link else {
            panic!("only HTTP has a stream per request")
        };
        open.lock().unwrap()[id].shutdown(Shutdown::Both).unwrap();
    }

    /// 2025 over HTTP: opens the stream for what belongs to no request.
    pub fn listen(&mut self) {
        let Link::Http { address, session: Some(session), open } = &self.link else {
            panic!("no session to listen to")
        };
        let request = with_token(Request::new("GET", "/mcp"), self.token.as_deref())
            .header("Accept", "text/event-stream")
            .header("Mcp-Session-Id", session)
            .header("MCP-Protocol-Version", self.version);
        let exchange = request.send(*address).expect("the stream opens");
        assert_eq!(exchange.status, 200);
        open.lock().unwrap().insert("GET".into(), exchange.stream.try_clone().unwrap());
        let outbox = self.outbox.clone();
        std::thread::spawn(move || {
            let mut events = Events(BufReader::new(exchange.body));
            while let Some(event) = events.next() {
                if let Ok(message) = serde_json::from_str(&event.data) {
                    let _ = outbox.send(Arrival::Message(message));
                }
            }
        });
    }

    pub fn session(&self) -> Option<&str> {
        match &self.link {
            Link::Http { session, .. } => session.as_deref(),
            _ => None,
        }
    }

    pub fn endpoint(&self) -> &str {
        match &self.link {
            Link::Sse { endpoint, .. } => endpoint,
            _ => "/mcp",
        }
    }

    /// 2025 over HTTP: ends the session; the status of the answer.
    pub fn delete(&self) -> u16 {
        let Link::Http { address, session: Some(session), .. } = &self.link else {
            panic!("no session to delete")
        };
        with_token(Request::new("DELETE", "/mcp"), self.token.as_deref())
            .header("Mcp-Session-Id", session)
            .header("MCP-Protocol-Version", self.version)
            .fetch(*address)
            .status
    }

    pub fn at(&self) -> String {
        format!("{:?} {}", self.transport, self.version)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.pause(false);
        if let Link::Sse { stream, .. } = &self.link {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

pub fn with_token(request: Request, token: Option<&str>) -> Request {
    match token {
        Some(token) => request.header("Authorization", &format!("Bearer {token}")),
        None => request,
    }
}
