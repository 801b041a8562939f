//! CONNECT and plain requests against real sockets.

use tokio::io::AsyncWriteExt;

use super::decision::ProxyDecision;
use super::testing::*;

fn refused(host: &str, port: u16, via: &'static str, reason: &'static str) -> ProxyDecision {
    ProxyDecision {
        allowed: false,
        host: host.to_owned(),
        port,
        via,
        reason: Some(reason),
        address: None,
    }
}

#[tokio::test]
async fn a_tunnel_leads_to_the_checked_address() {
    let (upstream, _serving) = echo().await;
    let mut running = Setup { upstream: Some(upstream), ..Setup::default() }.start();
    let mut stream = running.connect().await;
    // The first bytes of the tunnel come in the same packet as its head.
    stream
        .write_all(b"CONNECT Example.COM.:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\nhello")
        .await
        .unwrap();
    assert_eq!(
        read_until(&mut stream, "\r\n\r\n").await,
        "HTTP/1.1 200 Connection established\r\n\r\n"
    );
    assert_eq!(read_exactly(&mut stream, 5).await, b"hello");
    let decision = running.decision().await;
    assert_eq!(
        (decision.allowed, &*decision.host, decision.port, decision.via),
        (true, "example.com", 443, "connect")
    );
    assert_eq!((decision.reason, decision.address), (None, Some(PUBLIC.parse().unwrap())));
    assert_eq!(*running.dialled.lock().unwrap(), [format!("{PUBLIC}:443").parse().unwrap()]);
}

#[tokio::test]
async fn what_is_refused_is_neither_looked_up_nor_dialled() {
    for (target, host, port, reason) in [
        ("evil.com:443", "evil.com", 443, "not_allowed"),
        ("evilexample.com:443", "evilexample.com", 443, "not_allowed"),
        ("example.com.evil.com:443", "example.com.evil.com", 443, "not_allowed"),
        ("sub.example.com:443", "sub.example.com", 443, "not_allowed"),
        ("bad.wild.org:443", "bad.wild.org", 443, "denied"),
        ("example.com:22", "example.com", 22, "port"),
        ("1.1.1.1:443", "1.1.1.1", 443, "not_allowed"),
        ("127.0.0.1:80", "127.0.0.1", 80, "not_allowed"),
        ("[::1]:80", "[::1]", 80, "not_allowed"),
        ("169.254.169.254:80", "169.254.169.254", 80, "not_allowed"),
        ("0177.0.0.1:80", "0177.0.0.1", 80, "bad_name"),
        ("0x7f.1:80", "0x7f.1", 80, "bad_name"),
        ("2130706433:80", "2130706433", 80, "bad_name"),
        ("127.1:80", "127.1", 80, "bad_name"),
        ("[::ffff:127.0.0.1]:80", "[::ffff:127.0.0.1]", 80, "bad_name"),
        ("[fe80::1%eth0]:80", "[fe80::1", 80, "bad_name"),
        ("user:secret@example.com:443", "example.com:443", 0, "bad_name"),
        ("example.com%00.evil.com:443", "example.com", 443, "bad_name"),
        ("example..com:443", "example..com", 443, "bad_name"),
        ("example.com/x:443", "example.com", 443, "bad_name"),
        ("example.com", "example.com", 0, "bad_request"),
        ("example.com:0", "example.com", 0, "bad_request"),
    ] {
        let setup = Setup {
            domains: vec!["example.com", "*.wild.org"],
            deny: vec!["bad.wild.org"],
            ..Setup::default()
        };
        let mut running = setup.start();
        let answer =
            running.ask(format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n")).await;
        let status = if reason == "bad_request" { "400 Bad Request" } else { "403 Forbidden" };
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}\r\nX-Ringfence-Denied: {reason}\r\n")),
            "{answer}"
        );
        let body = answer.split("\r\n\r\n").nth(1).unwrap();
        assert!(
            body.starts_with("ringfence: ") && body.ends_with(".\n") && body.lines().count() == 1,
            "{body}"
        );
        assert!(!answer.contains("secret"), "{answer}");
        assert_eq!(running.decision().await, refused(host, port, "connect", reason), "{target}");
        running.stayed_inside();
    }
}

#[tokio::test]
async fn a_name_with_a_nul_or_a_line_end_goes_nowhere() {
    for target in [
        "example.com\0.evil.com:443",
        "evil.com\0.example.com:443",
        "example.com\n:443",
        "example.com\r:443",
    ] {
        let mut running = Setup::default().start();
        let answer = running.ask(format!("CONNECT {target} HTTP/1.1\r\n\r\n")).await;
        assert!(
            answer.starts_with("HTTP/1.1 400 Bad Request\r\nX-Ringfence-Denied: bad_request"),
            "{answer}"
        );
        assert_eq!(running.decision().await, refused("", 0, "http", "bad_request"));
        running.stayed_inside();
    }
}

#[tokio::test]
async fn the_body_of_a_refusal_names_the_key_that_would_change_it() {
    let setup = Setup { deny: vec!["bad.org"], ..Setup::default() };
    let resolver = setup.resolver.answer("example.com", &[&["10.0.0.1"]]);
    let running = Setup { resolver, ..setup }.start();
    for (target, key) in [
        ("evil.com:443", "add \"evil.com\" there"),
        ("example.com:22", "add \"example.com:22\" to `allow_domains`"),
        ("bad.org:443", "`deny_domains`"),
        ("10.1.2.3:80", "add \"10.1.2.3:80\" there"),
        ("example.com:443", "with port 443 in `allow_addresses`"),
    ] {
        let answer = running.ask(format!("CONNECT {target} HTTP/1.1\r\n\r\n")).await;
        assert!(answer.contains(key), "{answer}");
    }
}

#[tokio::test]
async fn a_plain_request_is_sent_on_without_what_is_for_the_proxy() {
    let (listener, upstream) = listen().await;
    let mut running = Setup { upstream: Some(upstream), ..Setup::default() }.start();
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let head = read_until(&mut stream, "\r\n\r\n").await;
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nKeep-Alive: x\r\n\r\nhi")
            .await
            .unwrap();
        (head, read_all(&mut stream).await)
    });
    let answer = running
        .ask(
            "GET http://EXAMPLE.com?q=1 HTTP/1.1\r\nHost: example.com:80\r\nProxy-Authorization: Basic c2VjcmV0\r\n\
             Proxy-Connection: keep-alive\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nUpgrade: websocket\r\nAccept: */*\r\n\r\n\
             GET http://evil.com/ HTTP/1.1\r\nHost: evil.com\r\n\r\n",
        )
        .await;
    assert_eq!(answer, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi");
    let (head, rest) = within(serving).await.unwrap();
    assert_eq!(
        head,
        "GET /?q=1 HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\nAccept: */*\r\n\r\n"
    );
    // The second request was for another host; it was not forwarded, and no decision was made on
    // it.
    assert_eq!(rest, "");
    let decision = running.decision().await;
    assert_eq!(
        (decision.allowed, &*decision.host, decision.port, decision.via),
        (true, "example.com", 80, "http")
    );
    running.no_decision();
}

#[tokio::test]
async fn a_later_request_on_the_same_connection_is_not_read() {
    let (listener, upstream) = listen().await;
    let running = Setup { upstream: Some(upstream), ..Setup::default() }.start();
    let mut client = running.connect().await;
    client
        .write_all(b"GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n")
        .await
        .unwrap();
    let (mut server, _) = within(listener.accept()).await.unwrap();
    read_until(&mut server, "\r\n\r\n").await;
    // The client does not wait for the answer, and the server would keep its connection open.
    client
        .write_all(b"GET http://example.com/second HTTP/1.1\r\nHost: example.com\r\n\r\n")
        .await
        .unwrap();
    server
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nhi")
        .await
        .unwrap();
    assert!(read_all(&mut client).await.ends_with("Connection: close\r\n\r\nhi"));
    assert_eq!(read_all(&mut server).await, "");
    assert_eq!(running.dialled.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn bodies_are_sent_on_as_they_are_framed() {
    for (fields, body, sent) in [
        ("Content-Length: 5", "12345GET http://evil.com/", "Content-Length: 5\r\n\r\n12345"),
        (
            "Transfer-Encoding: chunked",
            "5;x=y\r\n12345\r\n0\r\nT: u\r\n\r\nGET http://evil.com/",
            "Transfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n0\r\n\r\n",
        ),
    ] {
        let (listener, upstream) = listen().await;
        let running = Setup { upstream: Some(upstream), ..Setup::default() }.start();
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let request = read_until(&mut stream, sent).await;
            let chunks =
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
            stream.write_all(chunks.as_bytes()).await.unwrap();
            (request, read_all(&mut stream).await)
        });
        let answer = running.ask(format!(
            "POST http://example.com/x HTTP/1.1\r\nHost: example.com\r\n{fields}\r\n\r\n{body}"
        ));
        assert!(answer.await.ends_with(
            "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
        ));
        let (request, rest) = within(serving).await.unwrap();
        assert_eq!(
            request,
            format!("POST /x HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n{sent}")
        );
        assert_eq!(rest, "");
    }
}

#[tokio::test]
async fn what_could_be_read_in_two_ways_is_refused() {
    for request in [
        "POST http://example.com/ HTTP/1.1\r\nHost: example.com\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST http://example.com/ HTTP/1.1\r\nHost: example.com\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
        "POST http://example.com/ HTTP/1.1\r\nHost: example.com\r\nContent-Length: 5, 5\r\n\r\n",
        "POST http://example.com/ HTTP/1.1\r\nHost: example.com\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n",
        "POST http://example.com/ HTTP/1.0\r\nHost: example.com\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\nX: a\r\n b\r\n\r\n",
        "GET http://example.com/ HTTP/1.1\r\nHost : example.com\r\n\r\n",
        "GET http://example.com/ HTTP/1.1\nHost: example.com\n\n",
        // The host twice, another one, or none.
        "GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\nHost: example.com\r\n\r\n",
        "GET http://example.com/ HTTP/1.1\r\nHost: evil.com\r\n\r\n",
        "GET http://example.com/ HTTP/1.1\r\nHost: example.com:8080\r\n\r\n",
        "GET http://example.com/ HTTP/1.1\r\nHost: user@example.com\r\n\r\n",
        "GET http://example.com/ HTTP/1.1\r\nHost:\r\n\r\n",
        "GET http://example.com/ HTTP/1.1\r\n\r\n",
        // Not a request to a proxy.
        "GET / HTTP/1.1\r\nHost: example.com\r\n\r\n",
        "GET https://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n",
        "GET ftp://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n",
        "GET http:/example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n",
        "GET http://example.com/#x HTTP/1.1\r\nHost: example.com\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: example.com\r\n\r\n",
        "GET  http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n",
        "GET http://example.com/ x HTTP/1.1\r\nHost: example.com\r\n\r\n",
        "GET http://example.com/ HTTP/2\r\nHost: example.com\r\n\r\n",
        "GET http://example.com/\r\n\r\n",
        "G(T http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n",
        "\r\nGET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n",
        "CONNECT example.com:443 HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
        "CONNECT example.com:443 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "\u{16}\u{3}\u{1}\u{2}\r\n\r\n",
        "\u{4}\u{1}\0P\r\n\r\n",
    ] {
        let mut running = Setup::default().start();
        let answer = running.ask(request).await;
        assert!(
            answer.starts_with("HTTP/1.1 400 Bad Request\r\nX-Ringfence-Denied: bad_request\r\n"),
            "{request}{answer}"
        );
        assert_eq!(running.decision().await.reason, Some("bad_request"), "{request}");
        running.stayed_inside();
    }
}

#[tokio::test]
async fn a_plain_request_is_held_to_the_same_list() {
    for (uri, reason) in [
        ("http://evil.com/", "not_allowed"),
        ("http://example.com:8080/", "port"),
        ("http://example.com:22/", "port"),
        ("http://10.0.0.1/", "not_allowed"),
        ("http://0x7f.1/", "bad_name"),
        ("http://user:secret@example.com/", "bad_name"),
        ("http://example.com\\@evil.com/", "bad_name"),
        ("http:///path", "bad_name"),
        ("http://ex%61mple.com/", "bad_name"),
    ] {
        let mut running = Setup::default().start();
        let answer = running.ask(format!("GET {uri} HTTP/1.1\r\nHost: example.com\r\n\r\n")).await;
        // If both are wrong, the URI's host is reported first only if it is not a host at all.
        let expected = if reason == "bad_name" { "403 Forbidden" } else { "400 Bad Request" };
        assert!(answer.starts_with(&format!("HTTP/1.1 {expected}")), "{uri}: {answer}");
        assert!(!running.decision().await.host.contains("secret"));
        let host = uri.trim_start_matches("http://").trim_end_matches('/');
        let answer = running.ask(format!("GET {uri} HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
        assert!(answer.contains(&format!("X-Ringfence-Denied: {reason}\r\n")), "{uri}: {answer}");
        running.stayed_inside();
    }
}

#[tokio::test]
async fn a_large_head_is_refused() {
    let running = Setup::default().start();
    let answer = running
        .ask(format!("GET http://example.com/ HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(17_000)))
        .await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    running.stayed_inside();
}

#[tokio::test]
async fn a_server_that_does_not_answer_well_is_a_bad_gateway() {
    for text in ["", "SSH-2.0-x\r\n", "HTTP/1.1 101 Switching Protocols\r\n\r\n"] {
        let (listener, upstream) = listen().await;
        let running = Setup { upstream: Some(upstream), ..Setup::default() }.start();
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            read_until(&mut stream, "\r\n\r\n").await;
            stream.write_all(text.as_bytes()).await.unwrap();
        });
        let answer =
            running.ask("GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 502 Bad Gateway\r\nContent-Type"), "{answer}");
        within(serving).await.unwrap();
    }
}

#[tokio::test]
async fn an_early_answer_reaches_a_client_that_is_still_sending() {
    let (listener, upstream) = listen().await;
    let running = Setup { upstream: Some(upstream), ..Setup::default() }.start();
    let mut client = running.connect().await;
    let head = "POST http://example.com/ HTTP/1.1\r\nHost: example.com\r\nContent-Length: 100000000\r\nExpect: 100-continue\r\n\r\n";
    client.write_all(head.as_bytes()).await.unwrap();
    let (mut server, _) = within(listener.accept()).await.unwrap();
    assert!(read_until(&mut server, "\r\n\r\n").await.contains("Expect: 100-continue"));
    server.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.unwrap();
    assert!(read_until(&mut client, "\r\n\r\n").await.starts_with("HTTP/1.1 100 Continue\r\n"));
    client.write_all(&[b'x'; 100_000]).await.unwrap();
    server.write_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno").await.unwrap();
    drop(server);
    assert!(read_until(&mut client, "\r\n\r\nno").await.starts_with("HTTP/1.1 413 Too Large\r\n"));
}

/// A client that sends its whole request before it reads must be able to finish sending, or it
/// never sees the answer.
#[tokio::test]
async fn a_client_may_go_on_sending_after_a_refusal() {
    let running = Setup::default().start();
    let mut client = running.connect().await;
    let head = "POST http://evil.com/ HTTP/1.1\r\nHost: evil.com\r\nContent-Length: 900000\r\n\r\n";
    client.write_all(head.as_bytes()).await.unwrap();
    assert!(read_all(&mut client).await.contains("X-Ringfence-Denied: not_allowed\r\n"));
    for _ in 0..9 {
        client.write_all(&[b'x'; 100_000]).await.unwrap();
    }
}
