//! One table of everything a client can get wrong, on every transport and in both eras. Each case must be told
//! what is wrong (code, kind, hint, trace id, its own id), and the server must live on.

use serde_json::{Value, json};

use crate::support::client::with_token;
use crate::support::http::{Answer, Request};
use crate::support::matrix::eras;
use crate::support::{Cell, Client, MODERN, Options, Server, Transport};

/// Small, so that a message over it is quickly made.
const CONFIG: &str = "[limits]\nmessage_mb = 1";

/// What must come back.
#[derive(Clone)]
enum Want {
    /// Nothing runs and nothing is said; HTTP says 202.
    Silence,
    Refusal {
        code: i64,
        kind: &'static str,
        id: Value,
        status: u16,
    },
}

fn refusal(code: i64, kind: &'static str, id: impl Into<Value>, status: u16) -> Want {
    Want::Refusal { code, kind, id: id.into(), status }
}

#[derive(Clone, Copy, PartialEq)]
enum When {
    /// After the handshake, in both eras.
    Any,
    /// On a connection that has said nothing yet, in the eras with a handshake.
    First,
    /// In 2026-07-28 alone.
    Modern,
    /// In the eras with a handshake alone, after it.
    Sessions,
}

/// A case that is about the message, so it is the same on every transport.
#[derive(Clone)]
struct Case {
    name: &'static str,
    when: When,
    send: Vec<u8>,
    want: Want,
}

fn case(name: &'static str, when: When, send: impl ToString, want: Want) -> Case {
    Case { name, when, send: send.to_string().into_bytes(), want }
}

/// A request of 2026-07-28 as it should be, to be spoilt.
fn modern(method: &str, params: Value, meta: Value) -> Value {
    let mut message = json!({"jsonrpc": "2.0", "id": "x", "method": method, "params": params});
    message["params"]["_meta"] = meta;
    message
}

fn meta(version: &str) -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": version,
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "it", "version": "1"},
    })
}

fn initialize(version: Value) -> Value {
    let mut params = json!({"capabilities": {}, "clientInfo": {"name": "it", "version": "1"}});
    if !version.is_null() {
        params["protocolVersion"] = version;
    }
    json!({"jsonrpc": "2.0", "id": "x", "method": "initialize", "params": params})
}

fn cases() -> Vec<Case> {
    use When::*;
    let nobody = Value::Null;
    let envelope = |id: &str| refusal(-32600, "invalid_request", id, 400);
    let anonymous = || refusal(-32600, "invalid_request", Value::Null, 400);
    let params = || refusal(-32602, "invalid_arguments", "x", 200);
    let version = || refusal(-32602, "unsupported_version", "x", 400);
    let early = || refusal(-32600, "invalid_request", "x", 400);
    let call = |params: Value| json!({"jsonrpc": "2.0", "id": "x", "method": "tools/call", "params": params});
    // In both eras the message must be sound but for the one thing that is wrong.
    let dressed = |name: Value, arguments: Value| {
        call(json!({"name": name, "arguments": arguments, "_meta": meta(MODERN)}))
    };
    let mut without_capabilities = meta(MODERN);
    without_capabilities
        .as_object_mut()
        .unwrap()
        .remove("io.modelcontextprotocol/clientCapabilities");
    let mut without_version = meta(MODERN);
    without_version.as_object_mut().unwrap().remove("io.modelcontextprotocol/protocolVersion");
    vec![
        case(
            "not JSON",
            Any,
            "this is not JSON",
            refusal(-32700, "parse_error", nobody.clone(), 400),
        ),
        case(
            "truncated",
            Any,
            r#"{"jsonrpc":"2.0","id":"x","method":"tools/li"#,
            refusal(-32700, "parse_error", nobody.clone(), 400),
        ),
        case(
            "two messages in one",
            Any,
            r#"{"jsonrpc":"2.0"} {"jsonrpc":"2.0"}"#,
            refusal(-32700, "parse_error", nobody.clone(), 400),
        ),
        case("nothing but a brace", Any, "}", refusal(-32700, "parse_error", nobody.clone(), 400)),
        case(
            "null id",
            Any,
            json!({"jsonrpc": "2.0", "id": null, "method": "tools/list"}),
            Want::Silence,
        ),
        case(
            "null id on a call",
            Any,
            json!({"jsonrpc": "2.0", "id": null, "method": "tools/call", "params": {"name": "shell.exec", "arguments": {"command": "touch ran"}}}),
            Want::Silence,
        ),
        case("no jsonrpc", Any, json!({"id": "x", "method": "tools/list"}), envelope("x")),
        case(
            "jsonrpc 1.0",
            Any,
            json!({"jsonrpc": "1.0", "id": "x", "method": "tools/list"}),
            envelope("x"),
        ),
        case(
            "jsonrpc as a number",
            Any,
            json!({"jsonrpc": 2.0, "id": "x", "method": "tools/list"}),
            envelope("x"),
        ),
        case("no method", Any, json!({"jsonrpc": "2.0", "id": "x"}), envelope("x")),
        case("method 42", Any, json!({"jsonrpc": "2.0", "id": "x", "method": 42}), envelope("x")),
        case(
            "method null",
            Any,
            json!({"jsonrpc": "2.0", "id": "x", "method": null}),
            envelope("x"),
        ),
        case(
            "id an object",
            Any,
            json!({"jsonrpc": "2.0", "id": {"a": 1}, "method": "tools/list"}),
            anonymous(),
        ),
        case(
            "id a list",
            Any,
            json!({"jsonrpc": "2.0", "id": [1], "method": "tools/list"}),
            anonymous(),
        ),
        case(
            "id true",
            Any,
            json!({"jsonrpc": "2.0", "id": true, "method": "tools/list"}),
            anonymous(),
        ),
        case(
            "id a fraction",
            Any,
            json!({"jsonrpc": "2.0", "id": 1.5, "method": "tools/list"}),
            anonymous(),
        ),
        case(
            "a batch",
            Any,
            json!([{"jsonrpc": "2.0", "id": "x", "method": "tools/list"}]),
            anonymous(),
        ),
        case("an empty batch", Any, "[]", anonymous()),
        case("a number", Any, "42", anonymous()),
        case("a text", Any, "\"hello\"", anonymous()),
        case("null", Any, "null", anonymous()),
        case(
            "unknown method",
            Any,
            json!({"jsonrpc": "2.0", "id": "x", "method": "tools/destroy", "params": {"_meta": meta(MODERN)}}),
            refusal(-32601, "method_not_found", "x", 404),
        ),
        case(
            "resources are not offered",
            Any,
            json!({"jsonrpc": "2.0", "id": "x", "method": "resources/list", "params": {"_meta": meta(MODERN)}}),
            refusal(-32601, "method_not_found", "x", 404),
        ),
        case(
            "unknown tool",
            Any,
            dressed(json!("no.such"), json!({})),
            refusal(-32602, "unknown_tool", "x", 200),
        ),
        case(
            "very long tool name",
            Any,
            dressed(json!("x".repeat(300)), json!({})),
            refusal(-32602, "unknown_tool", "x", 200),
        ),
        case("no tool name", Any, call(json!({"arguments": {}, "_meta": meta(MODERN)})), params()),
        case("tool name a number", Any, dressed(json!(7), json!({})), params()),
        case("params a list", Any, call(json!(["shell.exec"])), params()),
        case("params a text", Any, call(json!("shell.exec")), params()),
        case("arguments a text", Any, dressed(json!("shell.exec"), json!("touch ran")), params()),
        case("arguments a list", Any, dressed(json!("shell.exec"), json!(["touch ran"])), params()),
        case("_meta a text", Any, call(json!({"name": "shell.exec", "_meta": "x"})), params()),
        case(
            "a response to nothing",
            Sessions,
            json!({"jsonrpc": "2.0", "id": 4711, "result": {}}),
            Want::Silence,
        ),
        case(
            "unknown notification",
            Sessions,
            json!({"jsonrpc": "2.0", "method": "notifications/unheard_of"}),
            Want::Silence,
        ),
        case(
            "broken notification",
            Any,
            json!({"jsonrpc": "1.0", "method": "notifications/cancelled"}),
            Want::Silence,
        ),
        case(
            "cancelling nothing",
            Sessions,
            json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "gone"}}),
            Want::Silence,
        ),
        case("version 1.0.0", First, initialize(json!("1.0.0")), version()),
        case("version 1999-01-01", First, initialize(json!("1999-01-01")), version()),
        case("version 2024-11-04", First, initialize(json!("2024-11-04")), version()),
        case("version 2025-13-45", First, initialize(json!("2025-13-45")), version()),
        case("empty version", First, initialize(json!("")), version()),
        case("no version", First, initialize(Value::Null), params()),
        case("version a number", First, initialize(json!(20251125)), params()),
        case("version 1.0.0 later", Sessions, initialize(json!("1.0.0")), version()),
        case(
            "list before the handshake",
            First,
            json!({"jsonrpc": "2.0", "id": "x", "method": "tools/list"}),
            early(),
        ),
        case(
            "call before the handshake",
            First,
            call(json!({"name": "shell.exec", "arguments": {"command": "touch ran"}})),
            early(),
        ),
        case(
            "unknown _meta version",
            Modern,
            modern("tools/list", json!({}), meta("2099-01-01")),
            refusal(-32022, "unsupported_version", "x", 400),
        ),
        case(
            "_meta version no date",
            Modern,
            modern("tools/list", json!({}), meta("new")),
            refusal(-32022, "unsupported_version", "x", 400),
        ),
        case(
            "no capabilities in _meta",
            Modern,
            modern("tools/list", json!({}), without_capabilities),
            refusal(-32602, "invalid_request", "x", 400),
        ),
        // Without the header of HTTP this looks like a request that comes before a handshake.
        case(
            "no version in _meta",
            Modern,
            modern("tools/list", json!({}), without_version),
            early(),
        ),
        case(
            "a removed method",
            Modern,
            modern("ping", json!({}), meta(MODERN)),
            refusal(-32601, "method_not_found", "x", 404),
        ),
        case(
            "too large",
            Any,
            json!({"jsonrpc": "2.0", "id": "x", "method": "tools/list", "params": {"x": "x".repeat(1_100_000)}}),
            refusal(-32600, "too_large", nobody, 413),
        ),
        // Small as bytes, large as a tree.
        case(
            "too many values",
            Any,
            json!({"jsonrpc": "2.0", "id": "x", "method": "tools/list", "params": {"x": vec![json!([]); 120_000]}}),
            refusal(-32600, "too_large", "x", 413),
        ),
        case(
            "too many values in a notification",
            Any,
            json!({"jsonrpc": "2.0", "method": "notifications/x", "params": {"x": vec![json!([]); 120_000]}}),
            Want::Silence,
        ),
        case(
            "too deep",
            Any,
            format!(
                r#"{{"jsonrpc": "2.0", "method": "tools/list", "params": {{"x": {}{}}}, "id": "x"}}"#,
                "[".repeat(300_000),
                "]".repeat(300_000)
            ),
            refusal(-32600, "too_large", "x", 413),
        ),
    ]
}

/// Everything that fails, with its cell; the table is only good as a whole.
#[derive(Default)]
struct Tally {
    cells: usize,
    failures: Vec<String>,
}

impl Tally {
    fn check(&mut self, name: &str, at: &str, result: Result<(), String>) {
        self.cells += 1;
        if let Err(why) = result {
            self.failures.push(format!("{name} on {at}: {why}"));
        }
    }

    fn report(self, what: &str) {
        println!("{what}: {}/{}", self.cells - self.failures.len(), self.cells);
        assert!(self.failures.is_empty(), "{}", self.failures.join("\n"));
    }
}

/// An error has everything a caller can act on.
fn judge(message: &Value, code: i64, kind: &str, id: &Value) -> Result<(), String> {
    let error = &message["error"];
    let data = &error["data"];
    let text = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
    let sound = message["jsonrpc"] == "2.0"
        && error["code"] == code
        && data["code"] == code
        && data["kind"] == kind
        && text(&error["message"])
        && text(&data["message"])
        && text(&data["hint"])
        && data["trace_id"].as_str().is_some_and(|trace| trace.len() == 32)
        && message.get("id").unwrap_or(&Value::Null) == id
        && message.get("result").is_none();
    if sound { Ok(()) } else { Err(format!("wanted {code} {kind} for id {id}, got {message}")) }
}

fn supported(message: &Value) -> Result<(), String> {
    let data = &message["error"]["data"];
    match data["supported"].as_array() {
        Some(versions) if versions.len() == 5 && data.get("requested").is_some() => Ok(()),
        _ => Err(format!("no `supported` and `requested` in {message}")),
    }
}

fn applies(case: &Case, cell: &Cell) -> bool {
    match case.when {
        When::Any => true,
        When::Modern => cell.version == MODERN,
        When::First | When::Sessions => cell.version != MODERN,
    }
}

#[test]
fn every_malformed_message_is_told_what_is_wrong_and_the_server_lives_on() {
    let mut tally = Tally::default();
    for cell in eras() {
        let mut server = Options::new(cell.transport).config(CONFIG).spawn();
        let mut old = server.client(cell.version);
        // First what comes before a handshake, then the handshake on the same connection, then the rest.
        for first in [true, false] {
            if !first {
                old.shake_hands();
            }
            for case in cases()
                .iter()
                .filter(|case| applies(case, cell) && (case.when == When::First) == first)
            {
                let result = run(&server, &mut old, case)
                    .and_then(|()| if first { Ok(()) } else { lives(&mut old) });
                tally.check(case.name, &old.at(), result);
            }
        }
        assert!(!server.workspace().join("ran").exists(), "a refused message ran");
        let stops = server.events("call.stop");
        let ran: Vec<_> = stops.iter().filter(|stop| stop["error"] != "unknown_tool").collect();
        assert!(ran.is_empty(), "a refused message became a call: {ran:?}");
    }
    tally.report("malformed");
}

fn run(server: &Server, client: &mut Client, case: &Case) -> Result<(), String> {
    let mut message: Option<Value> = serde_json::from_slice(&case.send).ok();
    let mut case = case.clone();
    if let (false, Some(message)) = (client.is_modern(), &mut message)
        && let Some(params) = message.get_mut("params").and_then(Value::as_object_mut)
        && params.get("_meta").is_some_and(Value::is_object)
    {
        params.remove("_meta");
        case.send = message.to_string().into_bytes();
    }
    let case = &case;
    if client.transport == Transport::Http {
        return run_http(server, client, case, message);
    }
    match &case.want {
        Want::Silence => {
            client.send_bytes(&case.send, None);
            // What is sent next is answered next, so an answer to this would have come before.
            client.request("mcp.capabilities", json!({}));
            let stray = client.stray();
            if stray.is_empty() { Ok(()) } else { Err(format!("answered with {stray:?}")) }
        }
        Want::Refusal { code, kind, id, .. } => {
            if client.transport == Transport::Sse && *kind == "too_large" && id.is_null() {
                // Too large to be read at all, so the POST itself says so.
                let answer =
                    Request::post(client.endpoint(), case.send.clone()).fetch(server.address());
                return judge_http(&answer, 413, *code, kind, id);
            }
            client.send_bytes(&case.send, None);
            let answer = match id.as_str() {
                Some(id) => client.wait(id),
                None => client.wait_anonymous(),
            };
            judge(&answer, *code, kind, id)?;
            if *kind == "unsupported_version" { supported(&answer) } else { Ok(()) }
        }
    }
}

fn run_http(
    server: &Server,
    client: &Client,
    case: &Case,
    message: Option<Value>,
) -> Result<(), String> {
    let message = message.filter(Value::is_object);
    let mut request = client.post_request(&case.send, message.as_ref());
    let own = message.as_ref().and_then(|message| {
        message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"].as_str()
    });
    if let Some(own) = own {
        request = request.header("MCP-Protocol-Version", own);
    }
    let answer = request.fetch(server.address());
    match &case.want {
        Want::Silence if answer.status == 202 && answer.body.is_empty() => Ok(()),
        Want::Silence => {
            Err(format!("{} {}", answer.status, String::from_utf8_lossy(&answer.body)))
        }
        Want::Refusal { code, kind, id, status } => {
            // In a session an answer of the engine's is a stream, whatever it says.
            let status = if *status == 404 && !client.is_modern() { 200 } else { *status };
            let code = if case.name == "no version in _meta" { -32602 } else { *code };
            judge_http(&answer, status, code, kind, id)?;
            if *kind == "unsupported_version" { supported(&answer.message()) } else { Ok(()) }
        }
    }
}

fn judge_http(
    answer: &Answer,
    status: u16,
    code: i64,
    kind: &str,
    id: &Value,
) -> Result<(), String> {
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    if answer.status != status {
        return Err(format!("wanted status {status}, got {} {text}", answer.status));
    }
    if !answer.header("content-type").is_some_and(|kind| {
        kind.starts_with("application/json") || kind.starts_with("text/event-stream")
    }) {
        return Err(format!("not JSON: {:?} {text}", answer.header("content-type")));
    }
    judge(&answer.message(), code, kind, id)
}

fn lives(client: &mut Client) -> Result<(), String> {
    let list = client.request("tools/list", json!({}));
    match list["result"]["tools"].as_array() {
        Some(tools) if !tools.is_empty() => Ok(()),
        _ => Err(format!("afterwards tools/list answers {list}")),
    }
}

/// A case that is about HTTP itself.
struct HttpCase {
    name: &'static str,
    request: Request,
    status: u16,
    code: i64,
    kind: &'static str,
    id: Value,
}

fn list() -> Value {
    json!({"jsonrpc": "2.0", "id": "x", "method": "tools/list"})
}

fn check_all(tally: &mut Tally, server: &Server, client: &mut Client, cases: Vec<HttpCase>) {
    for case in cases {
        let answer = case.request.fetch(server.address());
        let result = judge_http(&answer, case.status, case.code, case.kind, &case.id)
            .and_then(|()| lives(client));
        tally.check(case.name, &client.at(), result);
    }
}

/// Names, headers and sessions, which only HTTP has.
#[test]
fn every_wrong_header_is_told_what_is_wrong() {
    let mut tally = Tally::default();
    let case = |name, request: Request, status, code, kind, id: Value| HttpCase {
        name,
        request,
        status,
        code,
        kind,
        id,
    };
    for version in ["2025-11-25", MODERN] {
        let mut server = Options::new(Transport::Http).config(CONFIG).spawn();
        let mut client = server.connect(version);
        let mut message = list();
        if client.is_modern() {
            message["params"] = json!({"_meta": client.meta()});
        }
        let bytes = message.to_string().into_bytes();
        let good = || client.post_request(&bytes, Some(&message));
        assert_eq!(good().fetch(server.address()).status, 200);
        let mut cases = vec![
            case(
                "Accept html",
                good().header("Accept", "text/html"),
                406,
                -32600,
                "invalid_request",
                Value::Null,
            ),
            case(
                "Accept JSON alone",
                good().header("Accept", "application/json"),
                406,
                -32600,
                "invalid_request",
                Value::Null,
            ),
            case(
                "Content-Type text",
                good().header("Content-Type", "text/plain"),
                415,
                -32600,
                "invalid_request",
                Value::Null,
            ),
            case(
                "no Content-Type",
                good().header("Content-Type", ""),
                415,
                -32600,
                "invalid_request",
                Value::Null,
            ),
            case(
                "a form",
                good().header("Content-Type", "application/x-www-form-urlencoded"),
                415,
                -32600,
                "invalid_request",
                Value::Null,
            ),
            case(
                "foreign Host",
                good().header("Host", "evil.example"),
                403,
                -32600,
                "permission_denied",
                Value::Null,
            ),
            case(
                "rebound Host",
                good().header("Host", "127.0.0.1.evil.example:80"),
                403,
                -32600,
                "permission_denied",
                Value::Null,
            ),
            case(
                "foreign Origin",
                good().header("Origin", "https://evil.example"),
                403,
                -32600,
                "permission_denied",
                Value::Null,
            ),
            case(
                "Origin null",
                good().header("Origin", "null"),
                403,
                -32600,
                "permission_denied",
                Value::Null,
            ),
            case(
                "PUT",
                Request { method: "PUT".into(), ..good() },
                405,
                -32601,
                "method_not_found",
                Value::Null,
            ),
            case(
                "another path",
                Request { path: "/other".into(), ..good() },
                404,
                -32602,
                "not_found",
                Value::Null,
            ),
            case(
                "GET without a session",
                Request::new("GET", "/mcp").header("Accept", "text/event-stream"),
                400,
                -32600,
                "invalid_request",
                Value::Null,
            ),
            case(
                "DELETE without a session",
                Request::new("DELETE", "/mcp"),
                400,
                -32600,
                "invalid_request",
                Value::Null,
            ),
            case(
                "DELETE of no session",
                Request::new("DELETE", "/mcp").header("Mcp-Session-Id", "gone"),
                404,
                -32602,
                "not_found",
                Value::Null,
            ),
        ];
        if client.is_modern() {
            let named = json!({"jsonrpc": "2.0", "id": "x", "method": "tools/call", "params":
                {"name": "shell.exec", "arguments": {"command": "touch ran"}, "_meta": client.meta()}});
            let call = || client.post_request(named.to_string().as_bytes(), Some(&named));
            let x = || json!("x");
            cases.extend([
                case(
                    "Mcp-Method of another",
                    good().header("Mcp-Method", "tools/call"),
                    400,
                    -32020,
                    "invalid_request",
                    x(),
                ),
                case(
                    "no Mcp-Method",
                    good().header("Mcp-Method", ""),
                    400,
                    -32020,
                    "invalid_request",
                    x(),
                ),
                case(
                    "Mcp-Name of another",
                    call().header("Mcp-Name", "file.read"),
                    400,
                    -32020,
                    "invalid_request",
                    x(),
                ),
                case(
                    "no Mcp-Name",
                    call().header("Mcp-Name", ""),
                    400,
                    -32020,
                    "invalid_request",
                    x(),
                ),
                case(
                    "another version in the header",
                    good().header("MCP-Protocol-Version", "2025-11-25"),
                    400,
                    -32020,
                    "invalid_request",
                    x(),
                ),
                case(
                    "no version in the header",
                    good().header("MCP-Protocol-Version", ""),
                    400,
                    -32020,
                    "invalid_request",
                    x(),
                ),
            ]);
        } else {
            let x = || json!("x");
            cases.extend([
                case(
                    "unknown session",
                    good().header("Mcp-Session-Id", "gone"),
                    404,
                    -32602,
                    "not_found",
                    x(),
                ),
                case(
                    "no session",
                    good().header("Mcp-Session-Id", ""),
                    400,
                    -32600,
                    "invalid_request",
                    x(),
                ),
                case(
                    "GET of no session",
                    Request::new("GET", "/mcp")
                        .header("Accept", "text/event-stream")
                        .header("Mcp-Session-Id", "gone"),
                    404,
                    -32602,
                    "not_found",
                    Value::Null,
                ),
                case(
                    "version 1.0.0 in the header",
                    good().header("MCP-Protocol-Version", "1.0.0"),
                    400,
                    -32022,
                    "unsupported_version",
                    x(),
                ),
                case(
                    "version 2099-01-01 in the header",
                    good().header("MCP-Protocol-Version", "2099-01-01"),
                    400,
                    -32022,
                    "unsupported_version",
                    x(),
                ),
            ]);
        }
        check_all(&mut tally, &server, &mut client, cases);
        assert!(!server.workspace().join("ran").exists());
        // What a small client sends is taken as it is meant.
        for accept in ["", "*/*"] {
            let message = client.post_request(&bytes, Some(&message)).header("Accept", accept);
            assert_eq!(message.fetch(server.address()).status, 200, "Accept: {accept:?}");
        }
        for origin in ["http://localhost:3000", "http://127.0.0.1"] {
            let message = client.post_request(&bytes, Some(&message)).header("Origin", origin);
            assert_eq!(message.fetch(server.address()).status, 200, "Origin: {origin:?}");
        }
    }
    tally.report("malformed headers");
}

#[test]
fn a_session_ends_once() {
    let mut server = Options::new(Transport::Http).spawn();
    let mut client = server.connect("2025-11-25");
    let mut other = server.connect("2025-11-25");
    assert!((200..300).contains(&client.delete()));
    assert_eq!(client.delete(), 404);
    let answer =
        client.post_request(list().to_string().as_bytes(), Some(&list())).fetch(server.address());
    judge_http(&answer, 404, -32602, "not_found", &json!("x")).unwrap();
    lives(&mut other).unwrap();
    // The same client starts anew.
    client.shake_hands();
    lives(&mut client).unwrap();
}

/// The stream's own routes.
#[test]
fn the_event_stream_refuses_what_http_refuses() {
    let mut tally = Tally::default();
    let case = |name, request: Request, status, code, kind| HttpCase {
        name,
        request,
        status,
        code,
        kind,
        id: Value::Null,
    };
    for version in ["2025-06-18", MODERN] {
        let mut server = Options::new(Transport::Sse).config(CONFIG).spawn();
        let mut client = server.connect(version);
        let post = |path: &str| with_token(Request::post(path, list().to_string()), None);
        let open = || Request::new("GET", "/mcp/sse").header("Accept", "text/event-stream");
        let endpoint = client.endpoint().to_owned();
        let cases = vec![
            case("unknown stream", post("/mcp/message?session_id=gone"), 404, -32602, "not_found"),
            case("no stream named", post("/mcp/message"), 400, -32600, "invalid_request"),
            case(
                "foreign Host on GET",
                open().header("Host", "evil.example"),
                403,
                -32600,
                "permission_denied",
            ),
            case(
                "foreign Host on POST",
                post(&endpoint).header("Host", "evil.example"),
                403,
                -32600,
                "permission_denied",
            ),
            case(
                "foreign Origin on GET",
                open().header("Origin", "https://evil.example"),
                403,
                -32600,
                "permission_denied",
            ),
            case(
                "foreign Origin on POST",
                post(&endpoint).header("Origin", "https://evil.example"),
                403,
                -32600,
                "permission_denied",
            ),
            case("POST to the stream", post("/mcp/sse"), 405, -32601, "method_not_found"),
            case(
                "GET of the POST route",
                Request { method: "GET".into(), ..post(&endpoint) },
                405,
                -32601,
                "method_not_found",
            ),
        ];
        check_all(&mut tally, &server, &mut client, cases);
    }
    tally.report("malformed streams");
}

/// Notifications need no answer; before a handshake they must not end anything either.
#[test]
fn a_notification_first_ends_nothing() {
    for cell in eras() {
        let mut server = Options::new(cell.transport).spawn();
        let mut client = server.client(cell.version);
        let note = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        match cell.transport {
            Transport::Http => {
                let answer = client
                    .post_request(note.to_string().as_bytes(), Some(&note))
                    .fetch(server.address());
                assert!([202, 400].contains(&answer.status), "{}", answer.status);
            }
            _ => client.send(&note),
        }
        client.shake_hands();
        lives(&mut client).unwrap();
        assert!(client.stray().is_empty());
    }
}

/// Seeing what there is needs no handshake.
#[test]
fn capabilities_are_told_before_a_handshake() {
    for cell in eras() {
        let mut server = Options::new(cell.transport).spawn();
        let mut client = server.client(cell.version);
        let bare = json!({"jsonrpc": "2.0", "id": "bare", "method": "mcp.capabilities"});
        client.send(&bare);
        let answer = client.wait("bare");
        assert_eq!(answer["result"]["server"]["name"], "ringfence", "{}: {answer}", client.at());
    }
}

/// A date that nobody knows yet is answered with our newest, as MCP demands.
#[test]
fn later_versions_get_our_newest() {
    for transport in [Transport::Stdio, Transport::Http, Transport::Sse] {
        for asked in ["2026-07-28", "2031-01-01"] {
            let mut server = Options::new(transport).spawn();
            let mut client = server.client("2025-11-25");
            let params = json!({"protocolVersion": asked, "capabilities": {}, "clientInfo": {"name": "it", "version": "1"}});
            let answer = client.request("initialize", params);
            assert_eq!(
                answer["result"]["protocolVersion"], "2025-11-25",
                "{transport:?}: {answer}"
            );
        }
    }
}

/// Ids come back as they were given, numbers as numbers.
#[test]
fn an_id_comes_back_as_it_was_given() {
    for cell in eras() {
        let mut server = Options::new(cell.transport).spawn();
        let mut client = server.connect(cell.version);
        for id in [json!(0), json!(-7), json!(9_007_199_254_740_993_i64), json!("ünï ☃"), json!("")]
        {
            let mut message =
                json!({"jsonrpc": "2.0", "id": id, "method": "tools/list", "params": {}});
            if client.is_modern() {
                message["params"]["_meta"] = client.meta();
            }
            let answer = if cell.transport == Transport::Http {
                client
                    .post_request(message.to_string().as_bytes(), Some(&message))
                    .fetch(server.address())
                    .message()
            } else {
                client.send(&message);
                match &id {
                    Value::String(id) => client.wait(id),
                    id => client.wait(&id.to_string()),
                }
            };
            assert_eq!(answer["id"], id, "{}", client.at());
        }
    }
}

/// 15 MB of `[],` take most of a gigabyte as a tree.
#[cfg(target_os = "linux")]
#[test]
fn a_message_of_many_small_values_takes_little_memory() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(MODERN);
    let peak = || {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
    };
    let before = peak();
    let list = "[],".repeat(5_000_000);
    let message = format!(
        r#"{{"jsonrpc": "2.0", "id": "x", "method": "tools/list", "params": {{"x": [{list}0]}}}}"#
    );
    client.send_bytes(message.as_bytes(), None);
    judge(&client.wait("x"), -32600, "too_large", &json!("x")).unwrap();
    let grown = peak() - before;
    assert!(grown < 150, "{grown} MiB for a message of 15 MB");
    lives(&mut client).unwrap();
}
