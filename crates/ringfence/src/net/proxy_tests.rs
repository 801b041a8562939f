//! Tests that apply to every protocol: addresses, limits, both ends of a tunnel, and the end of the
//! run.

use std::net::IpAddr;
use std::time::Duration;

use futures::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::connector::ProxyLimits;
use super::proxy_environment;
use super::testing::*;

const CONNECT: &str = "CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n";

async fn tunnel(running: &Running) -> TcpStream {
    let mut stream = running.connect().await;
    stream.write_all(CONNECT.as_bytes()).await.unwrap();
    let head = read_until(&mut stream, "\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    stream
}

#[tokio::test]
async fn a_name_that_leads_inside_is_refused() {
    for address in [
        "127.0.0.1",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "100.100.100.200",
        "169.254.169.254",
        "168.63.129.16",
        "192.0.2.1",
        "198.18.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "2001:0:7f00:1::",
        "fd00:ec2::254",
        "fe80::1",
        "fc00::1",
    ] {
        let resolver = Fake::default().answer("example.com", &[&[address]]);
        let mut running = Setup { resolver, ..Setup::default() }.start();
        let answer = running.ask(CONNECT).await;
        assert!(
            answer.starts_with("HTTP/1.1 403 Forbidden\r\nX-Ringfence-Denied: private_address"),
            "{address}: {answer}"
        );
        assert_eq!(running.decision().await.reason, Some("private_address"));
        assert!(running.dialled.lock().unwrap().is_empty(), "{address}");
    }
}

#[tokio::test]
async fn an_address_inside_is_dropped_from_among_others() {
    let (upstream, _serving) = echo().await;
    let resolver =
        Fake::default().answer("example.com", &[&["127.0.0.1", "169.254.169.254", PUBLIC, "::1"]]);
    let running = Setup { resolver, upstream: Some(upstream), ..Setup::default() }.start();
    tunnel(&running).await;
    assert_eq!(*running.dialled.lock().unwrap(), [format!("{PUBLIC}:443").parse().unwrap()]);
}

#[tokio::test]
async fn a_name_is_resolved_once_and_the_checked_address_is_dialled() {
    let (upstream, _serving) = echo().await;
    // A second question would be answered with loopback.
    let resolver = Fake::default().answer("example.com", &[&[PUBLIC], &["127.0.0.1"]]);
    let mut running = Setup { resolver, upstream: Some(upstream), ..Setup::default() }.start();
    tunnel(&running).await;
    assert_eq!(running.resolver.asked.lock().unwrap().len(), 1);
    assert_eq!(*running.dialled.lock().unwrap(), [format!("{PUBLIC}:443").parse().unwrap()]);
    assert_eq!(running.decision().await.address, Some(PUBLIC.parse::<IpAddr>().unwrap()));
    // The next connection asks again, and is checked again.
    assert!(running.ask(CONNECT).await.contains("X-Ringfence-Denied: private_address"));
    assert_eq!(running.dialled.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_name_reaches_a_private_address_that_is_listed() {
    let (upstream, _serving) = echo().await;
    let resolver = Fake::default().answer("example.com", &[&["10.0.0.5"]]);
    let addresses = vec!["10.0.0.5:443".to_owned()];
    let running =
        Setup { resolver, addresses, upstream: Some(upstream), ..Setup::default() }.start();
    tunnel(&running).await;
    let answer = running.ask("CONNECT example.com:80 HTTP/1.1\r\n\r\n").await;
    assert!(answer.contains("X-Ringfence-Denied: private_address"), "{answer}");
}

#[tokio::test]
async fn the_next_address_is_tried_where_one_fails() {
    let (upstream, _serving) = echo().await;
    // Listed addresses, so that the dialling is real: the first refuses, the second is the server.
    let resolver = Fake::default().answer("example.com", &[&["127.0.0.9", "127.0.0.1"]]);
    let port = upstream.port();
    let addresses = vec![format!("127.0.0.9:{port}"), format!("127.0.0.1:{port}")];
    let domain: &'static str = format!("example.com:{port}").leak();
    let mut running =
        Setup { resolver, addresses, domains: vec![domain], ..Setup::default() }.start();
    let mut stream = running.connect().await;
    stream.write_all(format!("CONNECT {domain} HTTP/1.1\r\n\r\n").as_bytes()).await.unwrap();
    assert!(read_until(&mut stream, "\r\n\r\n").await.starts_with("HTTP/1.1 200 "));
    assert_eq!(running.decision().await.address, Some("127.0.0.1".parse().unwrap()));
}

#[tokio::test]
async fn either_side_may_end_first() {
    let (listener, upstream) = listen().await;
    let running = Setup { upstream: Some(upstream), ..Setup::default() }.start();
    // The client ends, and still hears the whole answer.
    let mut client = tunnel(&running).await;
    let (mut server, _) = within(listener.accept()).await.unwrap();
    client.write_all(b"question").await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(read_all(&mut server).await, "question");
    server.write_all(b"answer").await.unwrap();
    drop(server);
    assert_eq!(read_all(&mut client).await, "answer");
    // The server ends, and still hears the client out.
    let mut client = tunnel(&running).await;
    let (mut server, _) = within(listener.accept()).await.unwrap();
    server.write_all(b"greeting").await.unwrap();
    server.shutdown().await.unwrap();
    assert_eq!(read_all(&mut client).await, "greeting");
    client.write_all(b"farewell").await.unwrap();
    drop(client);
    assert_eq!(read_all(&mut server).await, "farewell");
}

#[tokio::test]
async fn a_sender_waits_for_a_slow_receiver() {
    let (listener, upstream) = listen().await;
    let running = Setup { upstream: Some(upstream), ..Setup::default() }.start();
    let mut client = tunnel(&running).await;
    let (mut server, _) = within(listener.accept()).await.unwrap();
    // Nobody reads, so the sender comes to a stop when all buffers on the way are full.
    let block = vec![7; 64 * 1024];
    let mut sent = 0;
    while let Ok(written) =
        tokio::time::timeout(Duration::from_millis(300), client.write(&block)).await
    {
        sent += written.unwrap();
        assert!(sent < 256 * 1024 * 1024, "nothing held the sender back");
    }
    client.shutdown().await.unwrap();
    let mut received = Vec::new();
    within(server.read_to_end(&mut received)).await.unwrap();
    assert!(received.len() == sent && received.iter().all(|byte| *byte == 7));
}

#[tokio::test]
async fn a_hundred_connections_at_once() {
    let (upstream, _serving) = echo().await;
    let running = Setup { upstream: Some(upstream), ..Setup::default() }.start();
    let all = (0..100).map(async |number| {
        let mut stream = tunnel(&running).await;
        let text = format!("number {number}").repeat(1000);
        stream.write_all(text.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        assert_eq!(read_all(&mut stream).await, text);
    });
    within(join_all(all)).await;
    assert_eq!(running.dialled.lock().unwrap().len(), 100);
}

#[tokio::test]
async fn dropping_the_proxy_ends_every_connection() {
    let (listener, upstream) = listen().await;
    let running = Setup { upstream: Some(upstream), ..Setup::default() }.start();
    let mut client = tunnel(&running).await;
    let (mut server, _) = within(listener.accept()).await.unwrap();
    let mut idle = running.connect().await;
    let Running { proxy, at, .. } = running;
    drop(proxy);
    for stream in [&mut client, &mut server, &mut idle] {
        let mut byte = [0];
        assert!(matches!(within(stream.read(&mut byte)).await, Ok(0) | Err(_)));
    }
    assert!(TcpStream::connect(at).await.is_err());
}

#[tokio::test]
async fn connections_over_the_limit_are_told_so() {
    let (upstream, _serving) = echo().await;
    let limits = ProxyLimits { max_connections: 2, ..ProxyLimits::default() };
    let mut running = Setup { upstream: Some(upstream), limits, ..Setup::default() }.start();
    let first = tunnel(&running).await;
    let _second = tunnel(&running).await;
    for _ in 0..2 {
        assert!(running.decision().await.allowed);
    }
    let answer = running.ask(CONNECT).await;
    assert!(
        answer.starts_with("HTTP/1.1 503 Service Unavailable\r\nX-Ringfence-Denied: limit\r\n"),
        "{answer}"
    );
    let decision = running.decision().await;
    assert_eq!(
        (decision.allowed, decision.reason, &*decision.host),
        (false, Some("limit"), "example.com")
    );
    let mut socks = running.connect().await;
    socks
        .write_all(&[&[5, 1, 0, 5, 1, 0, 3, 11][..], b"example.com", &[1, 187]].concat())
        .await
        .unwrap();
    assert_eq!(read_exactly(&mut socks, 4).await, [5, 0, 5, 1]);
    assert_eq!(running.dialled.lock().unwrap().len(), 2);
    // A place that is free again is given away again.
    drop(first);
    within(async {
        while !running.ask_once().await {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

impl Running {
    /// Whether there was a place for it.
    async fn ask_once(&self) -> bool {
        let mut stream = self.connect().await;
        stream.write_all(CONNECT.as_bytes()).await.unwrap();
        read_until(&mut stream, "\r\n\r\n").await.starts_with("HTTP/1.1 200 ")
    }
}

#[tokio::test]
async fn a_slow_head_is_not_waited_for() {
    let limits = ProxyLimits { head_timeout: Duration::from_millis(100), ..ProxyLimits::default() };
    for (start, answer) in [
        (
            &b"CONNECT example.com:443 HTTP/1.1\r\n"[..],
            "HTTP/1.1 408 Request Timeout\r\nX-Ringfence-Denied: bad_request",
        ),
        (b"G", "HTTP/1.1 408 Request Timeout\r\nX-Ringfence-Denied: bad_request"),
        (b"\x05\x01\x00\x05\x01", "\x05\0"),
        (b"", ""),
    ] {
        let running = Setup { limits: limits.clone(), ..Setup::default() }.start();
        let answered = running.ask(start).await;
        assert!(
            answered.starts_with(answer) && answered.is_empty() == answer.is_empty(),
            "{answered:?}"
        );
        running.stayed_inside();
    }
}

#[tokio::test]
async fn a_lookup_and_a_dial_that_never_end_are_given_up() {
    struct Never;
    impl super::Resolver for Never {
        fn resolve<'a>(
            &'a self,
            _: &'a str,
        ) -> futures::future::BoxFuture<'a, std::io::Result<Vec<IpAddr>>> {
            Box::pin(std::future::pending())
        }
    }
    let short = Duration::from_millis(50);
    let target = super::host::ConnectTarget::parse(b"example.com:443", None).unwrap();
    let allow = std::sync::Arc::new(
        super::AllowList::from_lists(&strings(&["example.com"]), &[], &[]).unwrap(),
    );
    let mut reach = super::connector::Connector {
        allow_list: allow,
        resolver: std::sync::Arc::new(Never),
        dial: std::sync::Arc::new(|_| Box::pin(std::future::pending())),
        dial_inside: None,
        on_decision: std::sync::Arc::new(|_| {}),
        limits: ProxyLimits {
            lookup_timeout: short,
            dial_timeout: short,
            ..ProxyLimits::default()
        },
    };
    let refusal = within(reach.connect(&target, "connect")).await.unwrap_err();
    assert_eq!(refusal.reason.name(), "resolve_failed");
    reach.resolver = std::sync::Arc::new(Fake::default().answer("example.com", &[&[PUBLIC]]));
    let refusal = within(reach.connect(&target, "connect")).await.unwrap_err();
    assert_eq!((refusal.reason.name(), refusal.reason.socks_reply()), ("unreachable", 4));
}

#[test]
fn a_proxy_outside_of_a_runtime_is_an_error_and_no_panic() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let allow = std::sync::Arc::new(super::AllowList::default());
    let resolver = std::sync::Arc::new(Fake::default());
    assert!(super::Proxy::start(listener, allow, resolver, std::sync::Arc::new(|_| {})).is_err());
}

#[test]
fn the_environment_names_the_proxy_in_every_spelling() {
    let variables = proxy_environment("4321");
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"]
    {
        assert!(
            variables.contains(&(name.to_owned(), "http://127.0.0.1:4321".to_owned())),
            "{name}"
        );
    }
    for name in ["NO_PROXY", "no_proxy"] {
        assert!(
            variables.contains(&(name.to_owned(), "localhost,127.0.0.1,::1".to_owned())),
            "{name}"
        );
    }
    assert!(variables.contains(&("NODE_USE_ENV_PROXY".to_owned(), "1".to_owned())));
}
