//! Who may come in over the network, on every route.

use std::io::Read;
use std::net::SocketAddr;
use std::time::Instant;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};

use crate::support::client::with_token;
use crate::support::http::{Answer, Exchange, Request};
use crate::support::subset::assert_holds;
use crate::support::{
    Approve, DEADLINE, MODERN, Options, SESSIONS, Server, Transport, eventually, token,
};

/// A fresh Ed25519 pair: the private key as DER and as PEM, the public one as PEM.
fn key_pair() -> (Vec<u8>, String, String) {
    use aws_lc_rs::encoding::AsDer;
    use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
    let pair = Ed25519KeyPair::generate().unwrap();
    let private = pair.to_pkcs8v1().unwrap().as_ref().to_vec();
    let public: aws_lc_rs::encoding::PublicKeyX509Der<'_> = pair.public_key().as_der().unwrap();
    let pem = |kind: &str, der: &[u8]| {
        format!("-----BEGIN {kind}-----\n{}\n-----END {kind}-----\n", STANDARD.encode(der))
    };
    (private.clone(), pem("PRIVATE KEY", &private), pem("PUBLIC KEY", public.as_ref()))
}

fn guarded(transport: Transport) -> Options {
    Options::new(transport)
        .config("shared_workspace = true")
        .env("MCP_AUTH_ENABLED", "true")
        .env("MCP_AUTH_JWT_SECRET", token::SECRET)
}

fn discover() -> Request {
    let meta = json!({"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}});
    let message =
        json!({"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": meta}});
    Request::post("/mcp", message.to_string())
        .header("MCP-Protocol-Version", MODERN)
        .header("Mcp-Method", "server/discover")
}

fn initialize() -> Request {
    let params = json!({"protocolVersion": SESSIONS, "capabilities": {}, "clientInfo": {"name": "it", "version": "1"}});
    Request::post(
        "/mcp",
        json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).to_string(),
    )
}

fn capabilities() -> Request {
    Request::post(
        "/mcp",
        json!({"jsonrpc": "2.0", "id": 1, "method": "mcp.capabilities"}).to_string(),
    )
}

/// Every way in, by name.
fn doors() -> Vec<(&'static str, Request)> {
    vec![
        ("discover", discover()),
        ("initialize", initialize()),
        ("capabilities", capabilities()),
        ("GET", Request::new("GET", "/mcp").header("Accept", "text/event-stream")),
        ("DELETE", Request::new("DELETE", "/mcp").header("Mcp-Session-Id", "x")),
        ("the event stream", Request::new("GET", "/mcp/sse").header("Accept", "text/event-stream")),
        ("the event stream's POST", Request::post("/mcp/message?session_id=x", "{}")),
        ("not JSON", Request::post("/mcp", "not JSON")),
    ]
}

/// The status alone, since a stream has no end.
fn status(request: &Request, address: SocketAddr) -> u16 {
    request.send(address).expect("an answer").status
}

#[track_caller]
fn assert_challenged(answer: &Answer, error: bool) {
    assert_eq!(answer.status, 401);
    let challenge = answer.header("www-authenticate").expect("a challenge");
    assert!(challenge.starts_with("Bearer"), "{challenge}");
    assert_eq!(challenge.contains("error=\"invalid_token\""), error, "{challenge}");
    assert_holds(
        json!({"error": {"data": {"kind": "unauthenticated", "hint": "*", "trace_id": "*"}}}),
        &answer.message(),
    );
}

#[test]
fn without_a_token_no_door_opens() {
    let server = guarded(Transport::Http).spawn();
    for (name, request) in doors() {
        eprintln!("{name}");
        assert_challenged(&request.fetch(server.address()), false);
        assert_challenged(
            &request.header("Authorization", "Basic YTpi").fetch(server.address()),
            false,
        );
    }
    // A token in the address would end up in logs; it is no token.
    let mut request = discover();
    request.path = format!("/mcp?access_token={}", token::of("anna"));
    assert_challenged(&request.fetch(server.address()), false);
}

/// The operator sees who was refused and why, under the id that the caller was given; a flood does not fill the log.
#[test]
fn refused_tokens_are_in_the_log_and_the_token_is_not() {
    let server = guarded(Transport::Http).spawn();
    let bad = token::sign(&token::claims("anna"), "another secret of thirty-two bytes and more");
    let mut answers = Vec::new();
    for _ in 0..200 {
        let answer = with_token(discover(), Some(&bad)).fetch(server.address());
        answers.push(answer.message()["error"]["data"]["trace_id"].as_str().unwrap().to_owned());
    }
    let lines = |log: &str| {
        log.lines().filter(|line| line.contains("refused:")).map(str::to_owned).collect::<Vec<_>>()
    };
    eventually(DEADLINE, "it is in the log", || !lines(&server.log()).is_empty());
    let log = server.log();
    let lines = lines(&log);
    assert!(lines[0].contains(&answers[0]) && lines[0].contains("signature"), "{}", lines[0]);
    assert!(lines[0].contains("from 127.0.0.1:"), "{}", lines[0]);
    assert!(lines.len() < 100, "{} lines for {} requests", lines.len(), answers.len());
    assert!(bad.split('.').all(|part| !log.contains(part)), "the token is in the log");
}

fn with_algorithm(algorithm: &str, claims: &Value, signature: &[u8]) -> String {
    let header = json!({"alg": algorithm, "typ": "JWT"});
    let part = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    format!(
        "{}.{}.{}",
        part(header.to_string().as_bytes()),
        part(claims.to_string().as_bytes()),
        part(signature)
    )
}

#[test]
fn a_bad_token_opens_no_door() {
    let server = guarded(Transport::Http)
        .env("MCP_AUTH_AUDIENCE", "ringfence")
        .env("MCP_AUTH_ISSUER", "https://issuer.example")
        .spawn();
    let good = json!({"sub": "anna", "exp": token::now() + 600, "aud": "ringfence", "iss": "https://issuer.example"});
    let but = |key: &str, value: Value| {
        let mut claims = good.clone();
        match value {
            Value::Null => drop(claims.as_object_mut().unwrap().remove(key)),
            value => claims[key] = value,
        }
        token::sign(&claims, token::SECRET)
    };
    let valid = token::sign(&good, token::SECRET);
    let (signed, _) = valid.rsplit_once('.').unwrap();
    let bad = [
        ("another secret", token::sign(&good, "another secret of thirty-two bytes and more")),
        ("expired", but("exp", json!(token::now() - 3600))),
        ("no expiry", but("exp", Value::Null)),
        ("not yet", but("nbf", json!(token::now() + 3600))),
        ("another audience", but("aud", json!("other"))),
        ("no audience", but("aud", Value::Null)),
        ("another issuer", but("iss", json!("https://evil.example"))),
        ("no issuer", but("iss", Value::Null)),
        ("no subject", but("sub", Value::Null)),
        ("alg none", with_algorithm("none", &good, b"")),
        ("alg None", with_algorithm("None", &good, b"")),
        ("alg RS256", with_algorithm("RS256", &good, b"signature")),
        ("no signature", format!("{signed}.")),
        ("two parts", signed.to_owned()),
        ("not a token", "hello".to_owned()),
    ];
    for (name, bad) in bad {
        for (door, request) in doors() {
            eprintln!("{name} at {door}");
            assert_challenged(&with_token(request, Some(&bad)).fetch(server.address()), true);
        }
    }
    for (name, request) in doors() {
        assert_ne!(status(&with_token(request, Some(&valid)), server.address()), 401, "{name}");
    }
    // Clocks differ by a little.
    assert_eq!(
        status(
            &with_token(discover(), Some(&but("exp", json!(token::now() - 5)))),
            server.address()
        ),
        200
    );
}

/// A public key is known to everybody, so it must never be taken for a secret.
#[test]
fn a_public_key_is_not_a_secret() {
    let (private, _, public) = key_pair();
    let options = Options::new(Transport::Http)
        .env("MCP_AUTH_ENABLED", "true")
        .env("MCP_AUTH_JWT_PUBLIC_KEY", &public);
    let server = options.spawn();
    let claims = token::claims("anna");
    let key = EncodingKey::from_ed_der(&private);
    let good = jsonwebtoken::encode(&Header::new(Algorithm::EdDSA), &claims, &key).unwrap();
    assert_eq!(status(&with_token(discover(), Some(&good)), server.address()), 200);
    for confused in [
        token::sign(&claims, &public),
        token::sign(&claims, public.trim()),
        with_algorithm("none", &claims, b""),
    ] {
        assert_challenged(&with_token(discover(), Some(&confused)).fetch(server.address()), true);
    }
}

#[test]
fn auth_is_off_by_default_and_tokens_are_then_ignored() {
    let server = Options::new(Transport::Http).env("MCP_AUTH_JWT_SECRET", token::SECRET).spawn();
    for bearer in [None, Some("nonsense".to_owned()), Some(token::of("anna"))] {
        assert_eq!(status(&with_token(discover(), bearer.as_deref()), server.address()), 200);
    }
}

#[test]
fn the_resource_names_its_issuer() {
    let issuer = "https://issuer.example";
    let server = guarded(Transport::Http).env("MCP_AUTH_ISSUER", issuer).spawn();
    let challenge = discover().fetch(server.address());
    let challenge = challenge.header("www-authenticate").unwrap();
    let url = challenge
        .split("resource_metadata=\"")
        .nth(1)
        .and_then(|rest| rest.split('"').next())
        .expect("a URL");
    let path = url.strip_prefix(&format!("http://{}", server.address())).expect("an address here");
    for path in [path, "/.well-known/oauth-protected-resource"] {
        let answer = Request::new("GET", path).fetch(server.address());
        assert_eq!(answer.status, 200, "no token is needed to learn where to get one");
        let resource = format!("http://{}/mcp", server.address());
        assert_holds(
            json!({"resource": resource, "authorization_servers": [issuer]}),
            &answer.message(),
        );
    }
    let without = guarded(Transport::Http).spawn();
    assert_eq!(
        Request::new("GET", "/.well-known/oauth-protected-resource")
            .fetch(without.address())
            .status,
        404
    );
}

fn as_two(transport: Transport) -> (Server, String, String) {
    (guarded(transport).spawn(), token::of("anna"), token::of("bert"))
}

#[test]
fn a_session_is_of_no_use_to_another_principal() {
    let (mut server, anna, bert) = as_two(Transport::Http);
    let mut client = server.client_as(SESSIONS, Some(&anna));
    client.shake_hands();
    let list = json!({"jsonrpc": "2.0", "id": "x", "method": "tools/list"});
    let request = client.post_request(list.to_string().as_bytes(), Some(&list));
    let session = client.session().unwrap().to_owned();
    let stolen = with_token(request.clone(), Some(&bert)).fetch(server.address());
    assert_eq!(stolen.status, 404, "it looks like none at all");
    for method in ["GET", "DELETE"] {
        let request = Request::new(method, "/mcp")
            .header("Accept", "text/event-stream")
            .header("Mcp-Session-Id", &session);
        assert_eq!(with_token(request, Some(&bert)).fetch(server.address()).status, 404);
    }
    assert_eq!(request.fetch(server.address()).status, 200, "it still lives");
}

/// Whatever version a message claims to speak: it is in a session, and the session is somebody's.
#[test]
fn no_message_talks_itself_into_another_principals_session() {
    let (anna, bert) = (token::of("anna"), token::of("bert"));
    let mut server = guarded(Transport::Http).unfenced().spawn();
    let mut client = server.client_as(SESSIONS, Some(&anna));
    client.shake_hands();
    client.approve = Approve::Never;
    let call = client.start_call("shell.exec", &json!({"command": "touch ran"}));
    let (question, _) = client.wait_question();
    let session = client.session().unwrap().to_owned();
    for version in ["2024-11-05", "2025-11-25", MODERN, "2099-01-01"] {
        let meta = json!({"io.modelcontextprotocol/protocolVersion": version, "io.modelcontextprotocol/clientCapabilities": {}});
        let answer = json!({"jsonrpc": "2.0", "id": question, "result": {"action": "accept", "content": {}}, "params": {"_meta": meta}});
        let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": call, "_meta": meta}});
        for message in [answer, cancel] {
            for header in [None, Some(version), Some(MODERN)] {
                let request =
                    Request::post("/mcp", message.to_string()).header("Mcp-Session-Id", &session);
                let request = header
                    .into_iter()
                    .fold(request, |it, header| it.header("MCP-Protocol-Version", header));
                with_token(request, Some(&bert)).fetch(server.address());
            }
        }
    }
    assert!(
        server.events("approval").is_empty() && server.events("call.stop").is_empty(),
        "it was answered or cancelled"
    );
    client.reply(&question, json!({"action": "decline"}));
    assert_eq!(
        client.wait(&call)["result"]["structuredContent"]["error"]["kind"],
        "approval_denied"
    );
    assert!(!server.workspace().join("ran").exists());
}

#[test]
fn an_event_stream_is_of_no_use_to_another_principal() {
    let (mut server, anna, bert) = as_two(Transport::Sse);
    let mut client = server.client_as("2024-11-05", Some(&anna));
    client.shake_hands();
    let list = json!({"jsonrpc": "2.0", "id": "stolen", "method": "tools/list"}).to_string();
    let request = Request::post(client.endpoint(), list);
    assert_eq!(with_token(request.clone(), Some(&bert)).fetch(server.address()).status, 404);
    assert_eq!(request.fetch(server.address()).status, 401);
    assert!(client.request("tools/list", json!({}))["result"]["tools"].is_array());
    assert!(client.stray().is_empty());
}

/// What one caller stored or wrote is not there for the other.
#[test]
fn each_principal_has_its_own_workspace_and_outputs() {
    for version in [SESSIONS, MODERN] {
        let mut options = guarded(Transport::Http);
        options.config = String::new();
        options.workspace = false;
        let mut server = options.spawn();
        let mut clients = ["anna", "bert"].map(|name| {
            let mut client = server.client_as(version, Some(&token::of(name)));
            client.shake_hands();
            client.approve = Approve::Once;
            client
        });
        let [anna, bert] = &mut clients;
        let wrote = anna.call("file.write", json!({"path": "mine.txt", "content": "anna's\n"}));
        assert_eq!(wrote["result"]["isError"], false, "{wrote}");
        let read = bert.call("file.read", json!({"path": "mine.txt"}));
        assert_eq!(read["result"]["structuredContent"]["error"]["kind"], "not_found", "{read}");
        let long = anna.call("shell.exec", json!({"command": "seq 100000", "max_bytes": 300}));
        let handle = &long["result"]["structuredContent"]["output"];
        let read = bert.call("file.read", json!({"path": handle}));
        assert_eq!(read["result"]["structuredContent"]["error"]["kind"], "not_found", "{read}");
        let read = anna.call("file.read", json!({"path": handle, "limit": 1}));
        assert_eq!(read["result"]["isError"], false, "{read}");
        let stops = server.events("call.stop");
        for name in ["anna@", "bert@"] {
            assert!(stops.iter().any(|stop| stop["principal"] == name), "{name} is not on record");
        }
    }
}

#[track_caller]
fn assert_refuses(options: Options, words: &[&str]) {
    let output = options.refuse();
    assert!(!output.status.success());
    assert!(output.stdout.is_empty(), "standard output belongs to the protocol");
    let text = String::from_utf8_lossy(&output.stderr);
    for word in words {
        assert!(text.contains(word), "`{word}` is not in:\n{text}");
    }
    assert!(!text.contains(token::SECRET), "a secret is in:\n{text}");
}

#[test]
fn a_public_address_needs_auth() {
    for address in ["0.0.0.0:0", "[::]:0"] {
        assert_refuses(
            Options::new(Transport::Http).arg("--http").arg(address),
            &["MCP_AUTH_ENABLED"],
        );
    }
    let open = Options::new(Transport::Http)
        .arg("--http")
        .arg("0.0.0.0:0")
        .arg("--insecure-no-auth")
        .spawn();
    drop(open);
    drop(guarded(Transport::Http).arg("--http").arg("0.0.0.0:0").spawn());
}

#[test]
fn auth_without_exactly_one_key_refuses_to_start() {
    let on = || Options::new(Transport::Http).env("MCP_AUTH_ENABLED", "true");
    let (_, private, public) = key_pair();
    let names = ["MCP_AUTH_JWT_SECRET", "MCP_AUTH_JWT_PUBLIC_KEY"];
    assert_refuses(on(), &names);
    assert_refuses(on().env(names[0], token::SECRET).env(names[1], &public), &names);
    assert_refuses(on().env(names[0], "short"), &names[..1]);
    assert_refuses(on().env(names[1], "no key at all"), &names[1..]);
    assert_refuses(on().env(names[1], &private), &names[1..]);
    assert_refuses(
        Options::new(Transport::Http).env("MCP_AUTH_ENABLED", "perhaps"),
        &["MCP_AUTH_ENABLED"],
    );
}

/// Behind a proxy that speaks TLS, clients are told the address that they can reach.
#[test]
fn metadata_names_the_public_url() {
    let issuer = "https://issuer.example";
    for (url, resource, metadata) in [
        (
            "https://tools.example.org",
            "https://tools.example.org/mcp",
            "/.well-known/oauth-protected-resource/mcp",
        ),
        (
            "https://tools.example.org:8443/ring/mcp",
            "https://tools.example.org:8443/ring/mcp",
            "/.well-known/oauth-protected-resource/ring/mcp",
        ),
    ] {
        let config = format!("[http]\npublic_url = \"{url}\"");
        let server =
            guarded(Transport::Http).config(&config).env("MCP_AUTH_ISSUER", issuer).spawn();
        let host = resource.split('/').nth(2).unwrap();
        for host in [host.to_owned(), server.address().to_string()] {
            let refused = discover().header("Host", &host).fetch(server.address());
            let challenge = refused.header("www-authenticate").unwrap();
            let named = format!(
                "resource_metadata=\"https://{}{metadata}\"",
                resource.split('/').nth(2).unwrap()
            );
            assert!(challenge.contains(&named), "{challenge}");
            for path in [metadata, "/.well-known/oauth-protected-resource"] {
                let answer =
                    Request::new("GET", path).header("Host", &host).fetch(server.address());
                assert_holds(
                    json!({"resource": resource, "authorization_servers": [issuer]}),
                    &answer.message(),
                );
            }
        }
        let elsewhere = "/.well-known/oauth-protected-resource/other";
        assert_eq!(Request::new("GET", elsewhere).fetch(server.address()).status, 404);
        assert_eq!(
            discover().header("Host", "other.example.org").fetch(server.address()).status,
            403
        );
    }
    for url in [
        "tools.example.org",
        "ftp://tools.example.org",
        "https://",
        "https://a.example/?x",
        "https://a@b.example",
    ] {
        assert_refuses(
            guarded(Transport::Http).config(&format!("[http]\npublic_url = \"{url}\"")),
            &["public URL"],
        );
    }
}

/// What a browser says about the page that sent a request.
#[test]
fn requests_from_pages_of_other_sites_are_refused() {
    let config = "[http]\nallowed_origins = [\"https://listed.example\"]";
    let server = Options::new(Transport::Http).config(config).spawn();
    let answer = |site: &str, origin: &str| {
        let request = discover().header("Sec-Fetch-Site", site).header("Origin", origin);
        request.fetch(server.address())
    };
    let local = "http://localhost:3000";
    for (site, origin) in
        [("", ""), ("none", ""), ("same-origin", ""), ("same-origin", local), ("", local)]
    {
        assert_eq!(answer(site, origin).status, 200, "{site} {origin}");
    }
    assert_eq!(
        answer("cross-site", "https://listed.example").status,
        200,
        "the operator has listed it"
    );
    for (site, origin) in [
        ("cross-site", ""),
        ("same-site", ""),
        ("same-site", local),
        ("cross-site", local),
        ("?", ""),
    ] {
        let refused = answer(site, origin);
        assert_eq!(
            (refused.status, &refused.message()["error"]["data"]["reason"]),
            (403, &json!("fetch_site"))
        );
    }
    let stream = Request::new("GET", "/mcp/sse")
        .header("Sec-Fetch-Site", "cross-site")
        .fetch(server.address());
    assert_eq!(stream.status, 403);
}

/// What a token has opened ends with it, whoever would have to send something first.
#[test]
fn open_streams_end_with_their_token() {
    let server = guarded(Transport::Http).arg("--conformance-fixtures").spawn();
    let address = server.address();
    // Tokens are honoured 30 seconds longer than they say.
    let bearer = token::sign(&json!({"sub": "anna", "exp": token::now() - 20}), token::SECRET);
    let opened = with_token(initialize(), Some(&bearer)).fetch(address);
    let session = opened.header("mcp-session-id").expect("a session").to_owned();
    let meta = json!({"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}});
    let params = json!({"name": "test_sleep", "arguments": {"ms": 120_000}, "_meta": meta});
    let call =
        json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}).to_string();
    let requests = [
        Request::new("GET", "/mcp/sse"),
        Request::new("GET", "/mcp")
            .header("Mcp-Session-Id", &session)
            .header("MCP-Protocol-Version", SESSIONS),
        Request::post("/mcp", call)
            .header("MCP-Protocol-Version", MODERN)
            .header("Mcp-Method", "tools/call")
            .header("Mcp-Name", "test_sleep"),
    ];
    let open: Vec<_> = requests
        .into_iter()
        .map(|request| {
            let request = request.header("Accept", "application/json, text/event-stream");
            let stream = with_token(request, Some(&bearer)).begin(address).unwrap();
            stream.set_read_timeout(Some(4 * DEADLINE)).unwrap();
            stream
        })
        .collect();
    let [events, messages, call] = <[_; 3]>::try_from(open).unwrap();
    for stream in [events, messages] {
        let mut exchange = Exchange::read(stream).unwrap();
        assert_eq!(exchange.status, 200);
        // What keeps a stream alive would keep this waiting for ever.
        let until = Instant::now() + 4 * DEADLINE;
        while exchange.body.read(&mut [0; 4096]).unwrap() > 0 {
            assert!(Instant::now() < until, "the stream has outlived its token");
        }
    }
    assert_challenged(&Exchange::read(call).unwrap().whole(), true);
    assert_eq!(server.stops(1)[0]["cause"], "disconnect");
}
