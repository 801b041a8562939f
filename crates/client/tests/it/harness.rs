//! Scripted servers: one script runs over pipes, Streamable HTTP and the SSE transport of 2024.
//!
//! They run on a runtime of their own, so that a test can count the tasks of the client.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream;
use http::{Method, Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use ringfence_client::auth::AuthProvider;
use ringfence_client::config::{
    RemoteTransport, ServerConfig, StdioTransport, TransportConfig, TrustLevel,
};
use ringfence_client::{
    ClientOptions, ClientProfile, Era, Limits, RawJson, Result, ServerClient, ServerProcess,
    SpawnRequest, SpawnedServer, Spawner, ToolCall, UnattendedCall,
};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use ringfence_client::ErrorKind;

/// Longest wait of a test for something that must happen.
pub const PATIENCE: Duration = Duration::from_secs(20);

fn server_runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
    })
}

/// Transport of a scripted server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransportKind {
    Pipe,
    Http,
    Sse,
}

pub const ALL_TRANSPORTS: [TransportKind; 3] =
    [TransportKind::Pipe, TransportKind::Http, TransportKind::Sse];

/// Era and transport: all pairs that exist.
pub const ALL_PAIRS: [(Era, TransportKind); 5] = [
    (Era::Initialized, TransportKind::Pipe),
    (Era::Initialized, TransportKind::Http),
    (Era::Initialized, TransportKind::Sse),
    (Era::Stateless, TransportKind::Pipe),
    (Era::Stateless, TransportKind::Http),
];

/// Sends messages to the client.
#[derive(Clone)]
pub struct Speaker {
    sender: mpsc::Sender<Bytes>,
    is_line: bool,
}

impl Speaker {
    /// Frames one message: a line, or an event.
    pub fn frame(&self, text: &[u8]) -> Vec<u8> {
        match self.is_line {
            true => [text, b"\n"].concat(),
            false => [b"data: ", text, b"\n\n"].concat(),
        }
    }

    /// Sends bytes as they are.
    pub async fn send_bytes(&self, bytes: impl Into<Bytes>) {
        // The client may have gone.
        let _ = self.sender.send(bytes.into()).await;
    }

    pub async fn send_text(&self, text: impl AsRef<[u8]>) {
        self.send_bytes(self.frame(text.as_ref())).await;
    }

    pub async fn send(&self, message: Value) {
        self.send_text(message.to_string()).await;
    }

    /// Breaks the stream off.
    pub async fn cut(&self) {
        self.send_bytes(Bytes::new()).await;
    }

    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Waits until the client has closed the stream.
    pub async fn closed(&self) {
        self.sender.closed().await;
    }
}

/// Request of the client, and where its answer goes.
#[derive(Clone)]
pub struct ClientRequest {
    pub id: Value,
    pub params: Value,
    pub speaker: Speaker,
    pub server: Arc<ServerState>,
}

impl ClientRequest {
    pub async fn answer(&self, result: Value) {
        self.speaker.send(json!({"jsonrpc": "2.0", "id": self.id, "result": result})).await;
    }

    pub async fn answer_text(&self, text: &str) {
        self.answer(json!({"content": [{"type": "text", "text": text}]})).await;
    }

    pub async fn fail(&self, code: i64, message: &str) {
        let error = json!({"code": code, "message": message});
        self.speaker.send(json!({"jsonrpc": "2.0", "id": self.id, "error": error})).await;
    }

    pub async fn notify(&self, method: &str, params: Value) {
        self.speaker.send(json!({"jsonrpc": "2.0", "method": method, "params": params})).await;
    }

    pub fn tool(&self) -> &str {
        self.params["name"].as_str().unwrap()
    }

    pub fn progress_token(&self) -> &Value {
        &self.params["_meta"]["progressToken"]
    }
}

type RequestScript = Arc<dyn Fn(ClientRequest) -> BoxFuture<'static, ()> + Send + Sync>;
type HttpHook = Arc<dyn Fn(&HttpRecord) -> Option<Response<ServerBody>> + Send + Sync>;
pub type ServerBody = BoxBody<Bytes, std::io::Error>;

/// What a server does.
#[derive(Clone)]
pub struct Script {
    pub era: Era,
    /// Handles `tools/call`.
    call: RequestScript,
    /// Handles other methods instead of the usual answer.
    special: BTreeMap<&'static str, RequestScript>,
    http_hook: Option<HttpHook>,
    /// A session is given by `initialize`, and a stream by GET.
    pub has_session: bool,
}

impl Script {
    pub fn new<F: Future<Output = ()> + Send + 'static>(
        era: Era,
        call: impl Fn(ClientRequest) -> F + Send + Sync + 'static,
    ) -> Script {
        Script {
            era,
            call: Arc::new(move |request| Box::pin(call(request))),
            special: BTreeMap::new(),
            http_hook: None,
            has_session: true,
        }
    }

    /// Answers every call with the name of its tool.
    pub fn echo(era: Era) -> Script {
        Script::new(era, |request| async move { request.answer_text(request.tool()).await })
    }

    pub fn on<F: Future<Output = ()> + Send + 'static>(
        mut self,
        method: &'static str,
        handle: impl Fn(ClientRequest) -> F + Send + Sync + 'static,
    ) -> Script {
        self.special.insert(method, Arc::new(move |request| Box::pin(handle(request))));
        self
    }

    /// Answers HTTP requests before the script does.
    pub fn on_http(
        mut self,
        hook: impl Fn(&HttpRecord) -> Option<Response<ServerBody>> + Send + Sync + 'static,
    ) -> Script {
        self.http_hook = Some(Arc::new(hook));
        self
    }
}

/// HTTP request that came.
#[derive(Debug, Clone)]
pub struct HttpRecord {
    pub method: Method,
    pub headers: http::HeaderMap,
    pub body: Value,
}

impl HttpRecord {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub fn rpc_method(&self) -> &str {
        self.body["method"].as_str().unwrap_or("")
    }
}

/// What a server has seen.
#[derive(Default)]
pub struct ServerState {
    seen: watch::Sender<Vec<Value>>,
    http: watch::Sender<Vec<HttpRecord>>,
    pub starts: AtomicUsize,
    /// Stream for what belongs to no request.
    listener: watch::Sender<Option<Speaker>>,
    sockets: watch::Sender<usize>,
    sessions: AtomicUsize,
}

impl ServerState {
    /// Waits for a message of the client.
    pub async fn wait_for(&self, matches: impl Fn(&Value) -> bool) -> Value {
        let mut seen = self.seen.subscribe();
        let waiting = seen.wait_for(|seen| seen.iter().any(&matches));
        let seen = tokio::time::timeout(PATIENCE, waiting).await.expect("no such message").unwrap();
        seen.iter().find(|message| matches(message)).unwrap().clone()
    }

    /// Waits for the client's answer to a request of the server.
    pub async fn wait_for_reply(&self, id: &Value) -> Value {
        self.wait_for(|message| message["id"] == *id && message.get("method").is_none()).await
    }

    pub async fn wait_for_method(&self, method: &str) -> Value {
        self.wait_for(|message| message["method"] == method).await
    }

    /// Waits until so many messages match.
    pub async fn wait_for_count(&self, count: usize, matches: impl Fn(&Value) -> bool) {
        let mut seen = self.seen.subscribe();
        let waiting =
            seen.wait_for(|seen| seen.iter().filter(|message| matches(message)).count() >= count);
        tokio::time::timeout(PATIENCE, waiting).await.expect("too few messages").unwrap();
    }

    pub fn has_seen(&self, method: &str) -> bool {
        self.count(method) > 0
    }

    pub fn count(&self, method: &str) -> usize {
        self.seen.borrow().iter().filter(|message| message["method"] == method).count()
    }

    pub fn http_requests(&self) -> Vec<HttpRecord> {
        self.http.borrow().clone()
    }

    pub async fn wait_for_http(&self, matches: impl Fn(&HttpRecord) -> bool) -> HttpRecord {
        let mut requests = self.http.subscribe();
        let waiting = requests.wait_for(|seen| seen.iter().any(&matches));
        let seen = tokio::time::timeout(PATIENCE, waiting).await.expect("no such request").unwrap();
        seen.iter().find(|record| matches(record)).unwrap().clone()
    }

    /// Waits until so many sockets are open.
    pub async fn wait_for_sockets(&self, count: usize) {
        let mut sockets = self.sockets.subscribe();
        let waiting = sockets.wait_for(|sockets| *sockets == count);
        tokio::time::timeout(PATIENCE, waiting).await.expect("sockets stay open").unwrap();
    }

    /// Returns the stream for what belongs to no request, as soon as there is one.
    pub async fn listener(&self) -> Speaker {
        let mut listener = self.listener.subscribe();
        let waiting = listener.wait_for(Option::is_some);
        let speaker = tokio::time::timeout(PATIENCE, waiting).await.expect("no listener").unwrap();
        speaker.clone().unwrap()
    }

    fn record(&self, message: &Value) {
        self.seen.send_modify(|seen| seen.push(message.clone()));
    }
}

/// Handles one message of the client.
async fn handle_message(
    script: &Script,
    server: &Arc<ServerState>,
    message: Value,
    speaker: Speaker,
) {
    server.record(&message);
    let (Some(method), Some(id)) = (message["method"].as_str(), message.get("id")) else { return };
    let request = ClientRequest {
        id: id.clone(),
        params: message["params"].clone(),
        speaker,
        server: Arc::clone(server),
    };
    if let Some(handle) = script.special.get(method) {
        return handle(request).await;
    }
    let capabilities = json!({"tools": {"listChanged": true}, "logging": {}});
    let server_info = json!({"name": "scripted", "version": "1"});
    match (method, script.era) {
        ("tools/call", _) => (script.call)(request).await,
        ("tools/list", _) => request.answer(json!({"tools": [tool("a")]})).await,
        ("server/discover", Era::Stateless) => {
            let versions = ["2026-07-28"];
            let answer = json!({
                "supportedVersions": versions, "capabilities": capabilities,
                "serverInfo": server_info,
            });
            request.answer(answer).await;
        }
        ("subscriptions/listen", Era::Stateless) => {
            let meta = json!({"io.modelcontextprotocol/subscriptionId": request.id});
            let params =
                json!({"_meta": meta, "notifications": request.params["notifications"].clone()});
            request.notify("notifications/subscriptions/acknowledged", params).await;
            server.listener.send_replace(Some(request.speaker.clone()));
            request.speaker.closed().await;
        }
        ("initialize", Era::Initialized) => {
            if !matches!(&*server.listener.borrow(), Some(listener) if !listener.is_line)
                && request.speaker.is_line
            {
                server.listener.send_replace(Some(request.speaker.clone()));
            }
            let answer = json!({
                "protocolVersion": "2025-11-25", "capabilities": capabilities,
                "serverInfo": server_info,
            });
            request.answer(answer).await;
        }
        _ => request.fail(-32601, "method not found").await,
    }
}

pub fn tool(name: &str) -> Value {
    json!({"name": name, "inputSchema": {"type": "object"}})
}

/// Runs the messages of a client that come on one stream.
async fn handle_detached(
    script: &Script,
    server: &Arc<ServerState>,
    message: Value,
    speaker: &Speaker,
) {
    let (script, server, speaker) = (script.clone(), Arc::clone(server), speaker.clone());
    // Only calls and subscriptions may take long; everything else keeps its order.
    match message["method"].as_str() {
        Some("tools/call" | "subscriptions/listen") => {
            tokio::spawn(async move { handle_message(&script, &server, message, speaker).await });
        }
        _ => handle_message(&script, &server, message, speaker).await,
    }
}

// ---- pipes

/// Starts scripted servers behind pipes.
pub struct PipeSpawner {
    pub script: Script,
    pub server: Arc<ServerState>,
}

struct PipeProcess {
    stopped: CancellationToken,
    tasks: TaskTracker,
}

impl Drop for PipeProcess {
    fn drop(&mut self) {
        self.stopped.cancel();
    }
}

impl ServerProcess for PipeProcess {
    fn describe_end(&self) -> BoxFuture<'static, String> {
        Box::pin(async { "it stopped".to_owned() })
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.stopped.cancel();
            self.tasks.wait().await;
        })
    }
}

impl Spawner for PipeSpawner {
    fn spawn(&self, _: SpawnRequest) -> BoxFuture<'_, Result<SpawnedServer>> {
        self.server.starts.fetch_add(1, Ordering::SeqCst);
        let (stdin, input) = tokio::io::duplex(64 << 10);
        let (mut output, stdout) = tokio::io::duplex(64 << 10);
        let (sender, mut queue) = mpsc::channel::<Bytes>(16);
        let speaker = Speaker { sender, is_line: true };
        let (script, server) = (self.script.clone(), Arc::clone(&self.server));
        let process = PipeProcess { stopped: CancellationToken::new(), tasks: TaskTracker::new() };
        let (stopped, is_stopped) = (process.stopped.clone(), process.stopped.clone());
        let read = async move {
            let mut lines = BufReader::new(input).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let message = serde_json::from_str(&line).unwrap();
                handle_detached(&script, &server, message, &speaker).await;
            }
        };
        let write = async move {
            while let Some(bytes) = queue.recv().await {
                if bytes.is_empty() || output.write_all(&bytes).await.is_err() {
                    return;
                }
            }
        };
        process.tasks.spawn_on(
            async move {
                stopped.run_until_cancelled(read).await;
            },
            server_runtime().handle(),
        );
        process.tasks.spawn_on(
            async move {
                is_stopped.run_until_cancelled(write).await;
            },
            server_runtime().handle(),
        );
        process.tasks.close();
        Box::pin(async move {
            Ok(SpawnedServer {
                stdin: Box::new(stdin),
                stdout: Box::new(stdout),
                process: Box::new(process),
            })
        })
    }
}

// ---- HTTP

/// Returns an answer with this body.
pub fn respond(status: u16, content_type: &str, body: impl Into<Bytes>) -> Response<ServerBody> {
    Response::builder()
        .status(status)
        .header("content-type", content_type)
        .body(Full::new(body.into()).map_err(|never| match never {}).boxed())
        .unwrap()
}

/// Returns an event stream, and what speaks on it.
pub fn respond_events() -> (Response<ServerBody>, Speaker) {
    let (sender, queue) = mpsc::channel::<Bytes>(16);
    let frames = stream::unfold(queue, |mut queue| async move {
        let bytes = queue.recv().await?;
        let frame = match bytes.is_empty() {
            true => Err(std::io::Error::other("cut off")),
            false => Ok(Frame::data(bytes)),
        };
        Some((frame, queue))
    });
    let response = Response::builder()
        .header("content-type", "text/event-stream")
        .body(BodyExt::boxed(StreamBody::new(frames)))
        .unwrap();
    (response, Speaker { sender, is_line: false })
}

async fn serve_http(
    script: Script,
    server: Arc<ServerState>,
    is_sse: bool,
    request: Request<Incoming>,
) -> std::io::Result<Response<ServerBody>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
    let message: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let record =
        HttpRecord { method: head.method.clone(), headers: head.headers, body: message.clone() };
    server.http.send_modify(|requests| requests.push(record.clone()));
    if let Some(response) = script.http_hook.as_ref().and_then(|hook| hook(&record)) {
        server.record(&message);
        return Ok(response);
    }
    if is_sse {
        return Ok(serve_sse(script, server, &head.method, message).await);
    }
    match head.method {
        Method::GET if script.has_session && script.era == Era::Initialized => {
            let (response, speaker) = respond_events();
            server.listener.send_replace(Some(speaker));
            Ok(response)
        }
        Method::POST if message.get("id").is_some() && message.get("method").is_some() => {
            let (mut response, speaker) = respond_events();
            if script.has_session && message["method"] == "initialize" {
                let session = server.sessions.fetch_add(1, Ordering::SeqCst) + 1;
                let value = format!("session-{session}").parse().unwrap();
                response.headers_mut().insert("mcp-session-id", value);
            }
            tokio::spawn(async move { handle_message(&script, &server, message, speaker).await });
            Ok(response)
        }
        Method::POST => {
            server.record(&message);
            Ok(respond(202, "text/plain", ""))
        }
        Method::DELETE => Ok(respond(200, "text/plain", "")),
        _ => Ok(respond(405, "text/plain", "")),
    }
}

async fn serve_sse(
    script: Script,
    server: Arc<ServerState>,
    method: &Method,
    message: Value,
) -> Response<ServerBody> {
    if method == Method::GET {
        let (response, speaker) = respond_events();
        speaker.send_bytes("event: endpoint\ndata: /messages\n\n").await;
        server.starts.fetch_add(1, Ordering::SeqCst);
        server.listener.send_replace(Some(speaker));
        return response;
    }
    let speaker = server.listener().await;
    handle_detached(&script, &server, message, &speaker).await;
    respond(202, "text/plain", "Accepted")
}

/// Starts a server on loopback. It runs until the end of the test process.
pub async fn start_http(script: Script, server: &Arc<ServerState>, is_sse: bool) -> url::Url {
    let server = Arc::clone(server);
    let (sender, address) = tokio::sync::oneshot::channel();
    server_runtime().spawn(async move {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        sender.send(listener.local_addr().unwrap()).unwrap();
        while let Ok((socket, _)) = listener.accept().await {
            let (script, server) = (script.clone(), Arc::clone(&server));
            server.sockets.send_modify(|sockets| *sockets += 1);
            tokio::spawn(async move {
                let service = hyper::service::service_fn(|request| {
                    serve_http(script.clone(), Arc::clone(&server), is_sse, request)
                });
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(socket), service)
                    .await;
                server.sockets.send_modify(|sockets| *sockets -= 1);
            });
        }
    });
    let path = if is_sse { "sse" } else { "mcp" };
    format!("http://{}/{path}", address.await.unwrap()).parse().unwrap()
}

// ---- clients

/// Limits for tests.
pub fn test_limits() -> Limits {
    Limits {
        call_timeout: PATIENCE,
        list_timeout: PATIENCE,
        handshake_timeout: PATIENCE,
        discover_timeout: PATIENCE,
        ..Limits::default()
    }
}

pub fn test_options(limits: Limits) -> ClientOptions {
    ClientOptions {
        limits,
        profile: ClientProfile { elicitation: true, ..ClientProfile::default() },
        ..ClientOptions::default()
    }
}

pub fn remote(url: url::Url) -> RemoteTransport {
    RemoteTransport {
        url,
        headers: BTreeMap::from([("x-api-key".to_owned(), "key".to_owned())]),
        auth_provider_id: None,
    }
}

pub fn stdio(command: &str, args: &[&str]) -> TransportConfig {
    TransportConfig::Stdio(StdioTransport {
        command: command.to_owned(),
        args: args.iter().map(|&arg| arg.to_owned()).collect(),
        cwd: None,
        env: BTreeMap::new(),
    })
}

/// Client and what its server has seen.
pub struct TestPair {
    pub client: Arc<ServerClient>,
    pub server: Arc<ServerState>,
}

impl TestPair {
    pub async fn call(&self, tool: &str) -> Result<RawJson> {
        self.client.call_tool(&tool_call(tool), &UnattendedCall).await
    }

    /// Asserts that a call works.
    pub async fn check_call(&self) {
        let result = self.call("fine").await.unwrap();
        assert_eq!(result.get(), r#"{"content":[{"type":"text","text":"fine"}]}"#);
    }

    pub async fn fail_call(&self, tool: &str) -> ringfence_client::ClientError {
        let call = tokio::time::timeout(PATIENCE, self.call(tool));
        call.await.expect("the call does not end").expect_err("the call works")
    }
}

pub fn tool_call(tool: &str) -> ToolCall {
    ToolCall {
        tool: tool.to_owned(),
        arguments: Map::new(),
        timeout: None,
        is_read_only: false,
        runs_as_task: false,
        connection: None,
        is_repeated: false,
    }
}

/// Starts a server and returns its client, which has not connected yet.
pub async fn start(kind: TransportKind, script: Script, limits: Limits) -> TestPair {
    start_with(kind, script, limits, None).await
}

pub async fn start_with(
    kind: TransportKind,
    script: Script,
    limits: Limits,
    auth_provider: Option<Arc<dyn AuthProvider>>,
) -> TestPair {
    let server = Arc::new(ServerState::default());
    let mut options = test_options(limits);
    let transport = match kind {
        TransportKind::Pipe => {
            options.spawner = Some(Arc::new(PipeSpawner { script, server: Arc::clone(&server) }));
            stdio("scripted", &[])
        }
        TransportKind::Http => {
            TransportConfig::Http(remote(start_http(script, &server, false).await))
        }
        TransportKind::Sse => TransportConfig::Sse(remote(start_http(script, &server, true).await)),
    };
    let config = ServerConfig { trust: TrustLevel::Trusted, transport };
    let client = Arc::new(ServerClient::new("server", config, options, auth_provider));
    TestPair { client, server }
}

/// Returns the tasks of the client that are alive.
pub fn alive_tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

/// Returns the resident memory of this process.
pub fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Something that a test waits for or releases.
#[derive(Clone)]
pub struct Signal(Arc<watch::Sender<bool>>);

impl Signal {
    pub fn new() -> Signal {
        Signal(Arc::new(watch::channel(false).0))
    }

    pub fn set(&self) {
        self.0.send_replace(true);
    }

    pub async fn wait(&self) {
        let mut receiver = self.0.subscribe();
        tokio::time::timeout(PATIENCE, receiver.wait_for(|is_set| *is_set))
            .await
            .expect("the signal does not come")
            .unwrap();
    }
}

/// Lock-protected list of texts.
#[derive(Default, Clone)]
pub struct TextLog(Arc<Mutex<Vec<String>>>);

impl TextLog {
    pub fn add(&self, text: impl Into<String>) {
        self.0.lock().unwrap().push(text.into());
    }

    pub fn texts(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}
