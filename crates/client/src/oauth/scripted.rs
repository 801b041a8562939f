//! Authorization server and protected MCP server for tests, on loopback. It keeps to the rules unless
//! a test replaces an answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use url::Url;

use super::{FileCredentialStore, LoginOptions, LoginStatus, OAuthSettings, login};
use crate::config::scratch::Scratch;
use crate::error::Result;

pub(super) const METADATA_PATH: &str = "/.well-known/oauth-authorization-server";
pub(super) const RESOURCE_PATH: &str = "/resource";
pub(super) const LOGIN_HINT: &str = "Run `login test`.";

/// Answer that a test puts in place of the usual one.
#[derive(Clone)]
pub(super) enum FixedReply {
    Json(u16, Value),
    Text(u16, &'static str),
    Redirect(String),
    /// A body that never ends.
    Endless,
    /// Nothing at all.
    Silence,
    /// The usual answer, after this time.
    Late(Duration),
}

/// Request that arrived.
#[derive(Clone)]
pub(super) struct SeenRequest {
    pub(super) path: String,
    pub(super) head: String,
    pub(super) fields: BTreeMap<String, String>,
}

/// The server, and a store for logins to it.
pub(super) struct ScriptedAuthority {
    pub(super) base: String,
    shared: Arc<SharedScript>,
    pub(super) scratch: Scratch,
}

#[derive(Default)]
struct SharedScript {
    replies: Mutex<BTreeMap<String, FixedReply>>,
    requests: Mutex<Vec<SeenRequest>>,
}

impl ScriptedAuthority {
    pub(super) async fn start() -> ScriptedAuthority {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(SharedScript::default());
        let (script, own_base) = (Arc::clone(&shared), base.clone());
        tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                tokio::spawn(answer_request(socket, Arc::clone(&script), own_base.clone()));
            }
        });
        ScriptedAuthority { base, shared, scratch: Scratch::new() }
    }

    /// Replaces the answer at a path.
    pub(super) fn set(&self, path: &str, reply: FixedReply) {
        self.shared.replies.lock().unwrap().insert(path.to_owned(), reply);
    }

    pub(super) fn reset(&self, path: &str) {
        self.shared.replies.lock().unwrap().remove(path);
    }

    /// Changes one member of the metadata.
    pub(super) fn set_metadata(&self, name: &str, value: Value) {
        let mut metadata = server_metadata(&self.base);
        metadata[name] = value;
        self.set(METADATA_PATH, FixedReply::Json(200, metadata));
    }

    /// Returns the requests to a path.
    pub(super) fn requests(&self, path: &str) -> Vec<SeenRequest> {
        let requests = self.shared.requests.lock().unwrap().clone();
        requests.into_iter().filter(|request| request.path == path).collect()
    }

    pub(super) fn count_all(&self) -> usize {
        self.shared.requests.lock().unwrap().len()
    }

    pub(super) fn settings(&self) -> OAuthSettings {
        let url = format!("{}/mcp", self.base).parse().unwrap();
        let mut settings = OAuthSettings::new("test", url, LOGIN_HINT);
        settings.limits.oauth_timeout = Duration::from_secs(5);
        settings
    }

    pub(super) fn store(&self) -> FileCredentialStore {
        FileCredentialStore::new(self.scratch.path())
    }

    /// Logs in with a browser whose user agrees.
    pub(super) async fn log_in(&self) -> Result<LoginStatus> {
        self.log_in_with(&self.settings(), |url| url).await
    }

    /// Logs in with a browser that changes the address it is sent back to.
    pub(super) async fn log_in_with(
        &self,
        settings: &OAuthSettings,
        change: impl Fn(Url) -> Url + Send + Sync + Copy + 'static,
    ) -> Result<LoginStatus> {
        let options = LoginOptions { timeout: Duration::from_secs(5), redirect_port: None };
        let open_url = move |url: &Url| {
            let url = url.clone();
            tokio::spawn(async move {
                let (_, location) = fetch(&url).await;
                fetch(&change(location.unwrap())).await;
            });
        };
        login(settings, &self.store(), &options, &open_url).await
    }
}

fn server_metadata(base: &str) -> Value {
    json!({
        "issuer": base,
        "authorization_endpoint": format!("{base}/authorize"),
        "token_endpoint": format!("{base}/token"),
        "registration_endpoint": format!("{base}/register"),
        "revocation_endpoint": format!("{base}/revoke"),
        "code_challenge_methods_supported": ["S256"],
        "scopes_supported": ["read", "offline_access"],
        "authorization_response_iss_parameter_supported": true,
        "token_endpoint_auth_methods_supported": ["none"],
    })
}

/// Fetches a page. Returns its text, and where it redirects to.
pub(super) async fn fetch(url: &Url) -> (String, Option<Url>) {
    let mut socket = TcpStream::connect(&*url.socket_addrs(|| None).unwrap()).await.unwrap();
    let target = &url[url::Position::BeforePath..];
    socket.write_all(format!("GET {target} HTTP/1.1\r\n\r\n").as_bytes()).await.unwrap();
    let mut page = String::new();
    socket.read_to_string(&mut page).await.unwrap();
    let location = page.lines().find_map(|line| line.strip_prefix("location: "));
    let location = location.map(|location| location.parse().unwrap());
    (page, location)
}

async fn answer_request(mut socket: TcpStream, script: Arc<SharedScript>, base: String) {
    let Some(request) = read_request(&mut socket).await else { return };
    script.requests.lock().unwrap().push(request.clone());
    let count = script.requests.lock().unwrap().len();
    let fixed = script.replies.lock().unwrap().get(&request.path).cloned();
    let reply = match fixed {
        Some(FixedReply::Json(status, body)) => format_reply(status, "", &body.to_string()),
        Some(FixedReply::Text(status, text)) => format_reply(status, "", text),
        Some(FixedReply::Redirect(to)) => format_reply(302, &format!("location: {to}\r\n"), ""),
        Some(FixedReply::Endless) => {
            let _ = socket.write_all(format_reply(200, "", "").as_bytes()).await;
            while socket.write_all(&[b' '; 1024]).await.is_ok() {}
            return;
        }
        Some(FixedReply::Silence) => return std::future::pending().await,
        Some(FixedReply::Late(time)) => {
            tokio::time::sleep(time).await;
            usual_reply(&request, &base, count)
        }
        None => usual_reply(&request, &base, count),
    };
    let _ = socket.write_all(reply.as_bytes()).await;
}

fn usual_reply(request: &SeenRequest, base: &str, count: usize) -> String {
    let field = |name: &str| request.fields.get(name).cloned().unwrap_or_default();
    let json = |status, body: Value| format_reply(status, "", &body.to_string());
    match request.path.as_str() {
        "/mcp" => {
            let metadata = format!("{base}{RESOURCE_PATH}");
            let challenge = format!("Bearer scope=\"read\", resource_metadata=\"{metadata}\"");
            format_reply(401, &format!("www-authenticate: {challenge}\r\n"), "")
        }
        RESOURCE_PATH => {
            json(200, json!({"resource": format!("{base}/mcp"), "authorization_servers": [base]}))
        }
        METADATA_PATH => json(200, server_metadata(base)),
        "/register" => json(201, json!({"client_id": format!("client-{count}")})),
        "/authorize" => {
            let mut url: Url = field("redirect_uri").parse().unwrap();
            let pairs = [("code", "code-1"), ("state", &field("state")), ("iss", base)];
            url.query_pairs_mut().extend_pairs(pairs);
            format_reply(302, &format!("location: {url}\r\n"), "")
        }
        "/token" => json(
            200,
            json!({
                "access_token": format!("access-{count}"),
                "refresh_token": format!("refresh-{count}"),
                "token_type": "Bearer",
                "expires_in": 3600,
            }),
        ),
        "/revoke" => format_reply(200, "", ""),
        _ => format_reply(404, "", ""),
    }
}

fn format_reply(status: u16, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status} X\r\n{headers}connection: close\r\n\r\n{body}")
}

async fn read_request(socket: &mut TcpStream) -> Option<SeenRequest> {
    let mut bytes = Vec::new();
    loop {
        if socket.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            return None;
        }
        let text = String::from_utf8_lossy(&bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.split_once("content-length: ").map_or(0, |(_, rest)| {
            rest.lines().next().unwrap_or_default().parse::<usize>().unwrap()
        });
        if body.len() < length {
            continue;
        }
        let target = head.split(' ').nth(1)?;
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let form = if body.is_empty() { query } else { body };
        let fields = url::form_urlencoded::parse(form.as_bytes()).into_owned().collect();
        return Some(SeenRequest { path: path.to_owned(), head: head.to_owned(), fields });
    }
}
