//! SOCKS5 against real sockets.

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::testing::*;

const GREETING: &[u8] = &[5, 1, 0];

fn by_name(name: &[u8], port: u16) -> Vec<u8> {
    [&[5, 1, 0, 3, u8::try_from(name.len()).unwrap()], name, &port.to_be_bytes()].concat()
}

fn by_v4(address: [u8; 4], port: u16) -> Vec<u8> {
    [&[5, 1, 0, 1][..], &address, &port.to_be_bytes()].concat()
}

fn by_v6(address: &str, port: u16) -> Vec<u8> {
    let address: std::net::Ipv6Addr = address.parse().unwrap();
    [&[5, 1, 0, 4][..], &address.octets(), &port.to_be_bytes()].concat()
}

/// The code of the reply.
async fn request(running: &Running, request: &[u8]) -> (TcpStream, u8) {
    let mut stream = running.connect().await;
    stream.write_all(&[GREETING, request].concat()).await.unwrap();
    assert_eq!(read_exactly(&mut stream, 2).await, [5, 0]);
    let reply = read_exactly(&mut stream, 10).await;
    assert_eq!(reply[0], 5);
    assert_eq!(reply[2..], [0, 1, 0, 0, 0, 0, 0, 0]);
    (stream, reply[1])
}

#[tokio::test]
async fn a_name_is_resolved_here_and_tunnelled() {
    let (upstream, _serving) = echo().await;
    for name in ["example.com", "EXAMPLE.com.", "ｅxample.com"] {
        let mut running = Setup { upstream: Some(upstream), ..Setup::default() }.start();
        let (mut stream, code) =
            request(&running, &[by_name(name.as_bytes(), 443), b"early".to_vec()].concat()).await;
        assert_eq!(code, 0);
        assert_eq!(read_exactly(&mut stream, 5).await, b"early");
        let decision = running.decision().await;
        assert_eq!(
            (decision.allowed, &*decision.host, decision.via),
            (true, "example.com", "socks5")
        );
        assert_eq!(*running.resolver.asked.lock().unwrap(), ["example.com"]);
    }
}

#[tokio::test]
async fn every_trick_ends_with_reply_2() {
    let long = [b"a".repeat(64), b".com".to_vec()].concat();
    for (bytes, reason) in [
        (by_name(b"evil.com", 443), "not_allowed"),
        (by_name(b"evil.com\0.example.com", 443), "bad_name"),
        (by_name(b"example.com\0", 443), "bad_name"),
        (by_name(b"example.com\r\n", 443), "bad_name"),
        (by_name(b"example.com ", 443), "bad_name"),
        (by_name(b"user@example.com", 443), "bad_name"),
        (by_name(b"%65xample.com", 443), "bad_name"),
        (by_name(b"\xff\xfe", 443), "bad_name"),
        (by_name(b"", 443), "bad_name"),
        (by_name(&long, 443), "bad_name"),
        (by_name(&[b'a'; 255], 443), "bad_name"),
        (by_name(b"0x7f000001", 80), "bad_name"),
        (by_name(b"2130706433", 80), "bad_name"),
        (by_name(b"0177.0.0.1", 80), "bad_name"),
        (by_name("１２７.0.0.1".as_bytes(), 80), "bad_name"),
        (by_name(b"127.0.0.1", 80), "not_allowed"),
        (by_name(b"::1", 80), "bad_name"),
        (by_name(b"[::1]", 80), "bad_name"),
        (by_name(b"example.com", 25), "port"),
        (by_v4([127, 0, 0, 1], 80), "not_allowed"),
        (by_v4([169, 254, 169, 254], 80), "not_allowed"),
        (by_v4([93, 184, 216, 34], 443), "not_allowed"),
        (by_v6("::1", 80), "not_allowed"),
        (by_v6("::ffff:127.0.0.1", 80), "bad_name"),
        (by_v6("::ffff:93.184.216.34", 443), "bad_name"),
    ] {
        let mut running = Setup::default().start();
        let (mut stream, code) = request(&running, &bytes).await;
        assert_eq!(code, 2, "{bytes:?}");
        assert_eq!(read_all(&mut stream).await, "");
        let decision = running.decision().await;
        assert_eq!((decision.allowed, decision.reason), (false, Some(reason)), "{bytes:?}");
        assert!(decision.host.bytes().all(|byte| byte.is_ascii_graphic()), "{decision:?}");
        running.stayed_inside();
    }
}

#[tokio::test]
async fn what_is_no_connect_has_its_own_reply() {
    for (bytes, expected) in [
        (&[5, 2, 0, 1, 1, 1, 1, 1, 0, 80][..], 7),
        (&[5, 3, 0, 1, 1, 1, 1, 1, 0, 80], 7),
        (&[5, 1, 0, 2, 1, 1, 1, 1, 0, 80], 8),
        (&[4, 1, 0, 1, 1, 1, 1, 1, 0, 80], 1),
        (&[5, 1, 9, 1, 1, 1, 1, 1, 0, 80], 1),
        (&[5, 1, 0, 1, 1, 1, 1, 1, 0, 0], 1),
    ] {
        let mut running = Setup::default().start();
        let (_stream, code) = request(&running, bytes).await;
        assert_eq!(code, expected, "{bytes:?}");
        assert_eq!(running.decision().await.reason, Some("bad_request"));
        running.stayed_inside();
    }
}

#[tokio::test]
async fn a_client_that_wants_to_authenticate_is_turned_away() {
    let mut running = Setup::default().start();
    let mut stream = running.connect().await;
    stream.write_all(&[5, 2, 1, 2]).await.unwrap();
    assert_eq!(read_exactly(&mut stream, 2).await, [5, 0xff]);
    assert_eq!(read_all(&mut stream).await, "");
    assert_eq!(running.decision().await.reason, Some("bad_request"));
}

#[tokio::test]
async fn listed_addresses_are_reached_by_address() {
    let (upstream, _serving) = echo().await;
    let setup = Setup { addresses: vec![upstream.to_string()], ..Setup::default() };
    let mut running = setup.start();
    let (mut stream, code) = request(&running, &by_v4([127, 0, 0, 1], upstream.port())).await;
    assert_eq!(code, 0);
    stream.write_all(b"ping").await.unwrap();
    assert_eq!(read_exactly(&mut stream, 4).await, b"ping");
    assert_eq!(running.decision().await.address, Some(upstream.ip()));
    let (_stream, code) = request(&running, &by_v4([127, 0, 0, 2], upstream.port())).await;
    assert_eq!(code, 2);
}

#[tokio::test]
async fn failures_beyond_the_fence_have_their_own_replies() {
    let (listener, closed) = listen().await;
    drop(listener);
    let mut running = Setup { upstream: Some(closed), ..Setup::default() }.start();
    let (_stream, code) = request(&running, &by_name(b"example.com", 443)).await;
    assert_eq!(code, 5);
    let decision = running.decision().await;
    assert_eq!((decision.allowed, decision.reason), (true, Some("unreachable")));

    let mut running = Setup { resolver: Fake::default(), ..Setup::default() }.start();
    let (_stream, code) = request(&running, &by_name(b"example.com", 443)).await;
    assert_eq!(code, 4);
    assert_eq!(running.decision().await.reason, Some("resolve_failed"));
}
