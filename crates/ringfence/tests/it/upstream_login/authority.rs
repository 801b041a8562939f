//! An authorization server and an MCP server that it protects, on one loopback port.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::support::token::now;

const METADATA_PATH: &str = "/.well-known/oauth-authorization-server";

/// The servers. Tests change their state while they run.
pub struct Authority {
    pub base: String,
    state: Arc<Mutex<AuthorityState>>,
}

pub struct AuthorityState {
    /// The MCP server wants no token.
    pub is_open: bool,
    /// Seconds for which tokens are valid.
    pub lifetime: u64,
    /// When each access token ends.
    access_tokens: BTreeMap<String, u64>,
    refresh_tokens: Vec<String>,
    pub issued: Vec<String>,
    pub refreshes: usize,
    pub registrations: usize,
    pub revocations: usize,
    /// `Authorization` headers of calls.
    pub calls: Vec<String>,
    /// Client secrets that arrived.
    pub client_secrets: Vec<String>,
}

struct Request {
    method: String,
    path: String,
    headers: BTreeMap<String, String>,
    fields: BTreeMap<String, String>,
    body: String,
}

impl Authority {
    pub fn start() -> Authority {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(AuthorityState {
            is_open: false,
            lifetime: 3600,
            access_tokens: BTreeMap::new(),
            refresh_tokens: Vec::new(),
            issued: Vec::new(),
            refreshes: 0,
            registrations: 0,
            revocations: 0,
            calls: Vec::new(),
            client_secrets: Vec::new(),
        }));
        let (shared, own_base) = (Arc::clone(&state), base.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (state, base) = (Arc::clone(&shared), own_base.clone());
                std::thread::spawn(move || serve(stream.unwrap(), &base, &state));
            }
        });
        Authority { base, state }
    }

    pub fn with<T>(&self, change: impl FnOnce(&mut AuthorityState) -> T) -> T {
        change(&mut self.state.lock().unwrap())
    }

    /// Every token that was ever issued.
    pub fn issued(&self) -> Vec<String> {
        self.with(|state| state.issued.clone())
    }

    /// Whether all access tokens have ended by the clock.
    pub fn have_tokens_ended(&self) -> bool {
        self.with(|state| state.access_tokens.values().all(|end| *end <= now()))
    }
}

fn serve(mut stream: TcpStream, base: &str, state: &Mutex<AuthorityState>) {
    let Some(request) = read_request(&stream) else { return };
    let (status, headers, body) = answer(&request, base, &mut state.lock().unwrap());
    let reply = format!(
        "HTTP/1.1 {status} X\r\n{headers}content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let _ = stream.write_all(reply.as_bytes());
}

fn answer(request: &Request, base: &str, state: &mut AuthorityState) -> (u16, String, String) {
    let json = |status: u16, body: Value| (status, String::new(), body.to_string());
    let field = |name: &str| request.fields.get(name).cloned().unwrap_or_default();
    match request.path.as_str() {
        "/mcp" => answer_mcp(request, base, state),
        "/resource" => {
            json(200, json!({"resource": format!("{base}/mcp"), "authorization_servers": [base]}))
        }
        METADATA_PATH => json(
            200,
            json!({
                "issuer": base,
                "authorization_endpoint": format!("{base}/authorize"),
                "token_endpoint": format!("{base}/token"),
                "registration_endpoint": format!("{base}/register"),
                "revocation_endpoint": format!("{base}/revoke"),
                "code_challenge_methods_supported": ["S256"],
                "token_endpoint_auth_methods_supported": ["none", "client_secret_post"],
            }),
        ),
        "/register" => {
            state.registrations += 1;
            json(201, json!({"client_id": format!("client-{}", state.registrations)}))
        }
        "/authorize" => {
            assert_eq!(field("code_challenge_method"), "S256");
            let back = format!("{}?code=the-code&state={}", field("redirect_uri"), field("state"));
            (302, format!("location: {back}\r\n"), String::new())
        }
        "/token" => answer_token(request, state),
        "/revoke" => {
            state.revocations += 1;
            state.refresh_tokens.retain(|token| *token != field("token"));
            state.access_tokens.remove(&field("token"));
            json(200, json!({}))
        }
        _ => json(404, json!({})),
    }
}

fn answer_token(request: &Request, state: &mut AuthorityState) -> (u16, String, String) {
    let field = |name: &str| request.fields.get(name).cloned().unwrap_or_default();
    state.client_secrets.extend(request.fields.get("client_secret").cloned());
    if field("grant_type") == "refresh_token" {
        let known = state.refresh_tokens.iter().position(|token| *token == field("refresh_token"));
        let Some(known) = known else {
            return (400, String::new(), json!({"error": "invalid_grant"}).to_string());
        };
        // Each works once.
        state.refresh_tokens.remove(known);
        state.refreshes += 1;
    } else {
        assert_eq!(field("code"), "the-code");
        assert!(!field("code_verifier").is_empty());
    }
    let number = state.issued.len();
    let (access, refresh) =
        (format!("access-Tk7Lq9-{number:04}"), format!("refresh-Vm3Xp2-{number:04}"));
    state.access_tokens.insert(access.clone(), now() + state.lifetime);
    state.refresh_tokens.push(refresh.clone());
    state.issued.extend([access.clone(), refresh.clone()]);
    let reply = json!({"access_token": access, "refresh_token": refresh, "token_type": "Bearer",
        "expires_in": state.lifetime, "scope": "read"});
    (200, String::new(), reply.to_string())
}

fn answer_mcp(request: &Request, base: &str, state: &mut AuthorityState) -> (u16, String, String) {
    let authorization = request.headers.get("authorization").cloned().unwrap_or_default();
    let end = state.access_tokens.get(authorization.trim_start_matches("Bearer "));
    if !state.is_open && end.is_none_or(|end| *end <= now()) {
        let challenge = format!("Bearer scope=\"read\", resource_metadata=\"{base}/resource\"");
        return (401, format!("www-authenticate: {challenge}\r\n"), String::new());
    }
    if request.method != "POST" {
        return (405, String::new(), String::new());
    }
    let message: Value = serde_json::from_str(&request.body).unwrap();
    let result = match message["method"].as_str().unwrap() {
        "initialize" => json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
            "serverInfo": {"name": "docs", "version": "1"}}),
        "tools/list" => json!({"tools": [{"name": "whoami", "description": "Says who calls.",
            "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": true}}]}),
        "tools/call" => {
            state.calls.push(authorization.clone());
            // A careless server: it shows what it got.
            json!({"content": [{"type": "text", "text": format!("you sent {authorization}")}]})
        }
        method if method.starts_with("notifications/") => {
            return (202, String::new(), String::new());
        }
        _ => {
            let error = json!({"code": -32601, "message": "unknown method"});
            let reply = json!({"jsonrpc": "2.0", "id": message["id"], "error": error});
            return (200, String::new(), reply.to_string());
        }
    };
    let reply = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
    (200, String::new(), reply.to_string())
}

fn read_request(stream: &TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let body = String::from_utf8(body).unwrap();
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let form = if query.is_empty() { &body } else { query };
    let fields = form.split('&').filter_map(|pair| pair.split_once('='));
    let fields = fields.map(|(name, value)| (name.to_owned(), decode(value))).collect();
    Some(Request { method, path: path.to_owned(), headers, fields, body })
}

/// Undoes percent-encoding.
fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next().unwrap(), rest.next().unwrap()];
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            b'+' => b' ',
            other => other,
        });
    }
    String::from_utf8(bytes).unwrap()
}
