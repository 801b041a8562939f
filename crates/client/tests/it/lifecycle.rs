//! Connections: made once, shared, closed without a trace, and made again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use ringfence_client::config::{ClientConfig, ServerConfig, TransportConfig, TrustLevel};
use ringfence_client::{
    ClientManager, ClientOptions, ClientStatus, Era, Limits, ServerClient, UnattendedCall,
};

use super::harness::*;

fn count_handshakes(pair: &TestPair) -> usize {
    pair.server.count("server/discover").max(pair.server.count("initialize"))
}

#[tokio::test]
async fn concurrent_first_calls_connect_once() {
    for (era, kind) in ALL_PAIRS {
        let pair = start(kind, Script::echo(era), test_limits()).await;
        join_all((0..50).map(|_| pair.check_call())).await;
        assert_eq!(count_handshakes(&pair), 1, "{era:?} {kind:?}");
        assert!(pair.server.starts.load(Ordering::SeqCst) <= 1);
        join_all((0..20).map(|_| async { pair.client.list_tools().await.unwrap() })).await;
        assert_eq!(pair.server.count("tools/list"), 1);
        pair.client.close().await;
    }
}

/// A caller that goes away does not take the start from the others.
#[tokio::test]
async fn a_start_survives_its_first_caller() {
    for kind in ALL_TRANSPORTS {
        let released = Signal::new();
        let is_released = released.clone();
        let script = Script::echo(Era::Initialized).on("initialize", move |request| {
            let released = is_released.clone();
            async move {
                released.wait().await;
                let answer = serde_json::json!({"protocolVersion": "2025-11-25"});
                request.answer(answer).await;
            }
        });
        let pair = start(kind, script, test_limits()).await;
        tokio::select! {
            _ = pair.call("x") => panic!("the server has not answered"),
            _ = pair.server.wait_for_method("initialize") => {}
        }
        assert!(matches!(pair.client.status(), ClientStatus::Connecting));
        released.set();
        pair.check_call().await;
        assert_eq!(pair.server.count("initialize"), 1, "{kind:?}");
        pair.client.close().await;
    }
}

/// Closing ends an attempt to connect, and its callers fail.
#[tokio::test]
async fn close_does_not_wait_for_a_handshake() {
    for kind in ALL_TRANSPORTS {
        let script = Script::echo(Era::Initialized).on("initialize", |request| async move {
            tokio::spawn(async move { request.speaker.closed().await });
        });
        let pair = start(kind, script, test_limits()).await;
        let close = async {
            pair.server.wait_for_method("initialize").await;
            pair.client.close().await;
        };
        let (error, ()) = tokio::join!(pair.fail_call("x"), close);
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{kind:?}");
        assert!(matches!(pair.client.status(), ClientStatus::Idle));
        assert_eq!(alive_tasks(), 0, "{kind:?}");
    }
}

#[tokio::test]
async fn close_leaves_no_task_and_no_socket() {
    for (era, kind) in ALL_PAIRS {
        let script = Script::new(era, |request| async move {
            match request.tool() {
                "fine" => request.answer_text("fine").await,
                _ => request.speaker.closed().await,
            }
        });
        let pair = start(kind, script, test_limits()).await;
        for round in 1..=3 {
            pair.check_call().await;
            pair.client.list_tools().await.unwrap();
            // Open calls fail, and a call that changes nothing is not made again.
            let mut call = tool_call("open");
            call.is_read_only = true;
            let open = pair.client.call_tool(&call, &UnattendedCall);
            let close = async {
                let is_open = |message: &serde_json::Value| message["params"]["name"] == "open";
                pair.server.wait_for_count(round, is_open).await;
                pair.client.close().await;
            };
            let (open, ()) = tokio::join!(open, close);
            assert_eq!(open.unwrap_err().kind(), ErrorKind::Cancelled, "{era:?} {kind:?}");
            assert_eq!(alive_tasks(), 0, "{era:?} {kind:?}");
            if kind != TransportKind::Pipe {
                pair.server.wait_for_sockets(0).await;
            }
            assert!(matches!(pair.client.status(), ClientStatus::Idle));
        }
        assert_eq!(count_handshakes(&pair), 3);
    }
}

#[tokio::test]
async fn a_manager_closes_all() {
    let state = Arc::new(ServerState::default());
    let mut servers = BTreeMap::new();
    for (id, is_sse) in [("http", false), ("sse", true)] {
        let url = start_http(Script::echo(Era::Initialized), &state, is_sse).await;
        let transport = match is_sse {
            true => TransportConfig::Sse(remote(url)),
            false => TransportConfig::Http(remote(url)),
        };
        servers.insert(id.to_owned(), ServerConfig { trust: TrustLevel::Trusted, transport });
    }
    let transport = stdio("scripted", &[]);
    servers.insert("pipe".to_owned(), ServerConfig { trust: TrustLevel::Trusted, transport });
    let config = ClientConfig { servers, ..ClientConfig::default() };
    let mut options = test_options(test_limits());
    let server = Arc::clone(&state);
    options.spawner =
        Some(Arc::new(PipeSpawner { script: Script::echo(Era::Initialized), server }));
    let manager = ClientManager::new(&config, options, &BTreeMap::new()).unwrap();
    for id in ["pipe", "http", "sse"] {
        manager.call_tool(id, &tool_call("fine"), &UnattendedCall).await.unwrap();
        assert!(matches!(manager.status()[id], ClientStatus::Connected(_)));
    }
    assert!(manager.client("other").is_err());
    manager.close_all().await;
    assert_eq!(alive_tasks(), 0);
    state.wait_for_sockets(0).await;
}

/// A server that no one uses is not contacted, and closing one leaves the others connected.
#[tokio::test]
async fn a_manager_connects_on_first_use_and_closes_one_server() {
    let mut servers = BTreeMap::new();
    let mut states = BTreeMap::new();
    for (id, is_sse) in [("http", false), ("sse", true), ("unused", false)] {
        let state = Arc::new(ServerState::default());
        let url = start_http(Script::echo(Era::Initialized), &state, is_sse).await;
        let transport = match is_sse {
            true => TransportConfig::Sse(remote(url)),
            false => TransportConfig::Http(remote(url)),
        };
        servers.insert(id.to_owned(), ServerConfig { trust: TrustLevel::Trusted, transport });
        states.insert(id, state);
    }
    let config = ClientConfig { servers, ..ClientConfig::default() };
    let manager =
        ClientManager::new(&config, test_options(test_limits()), &BTreeMap::new()).unwrap();
    let handshakes = || ["http", "sse", "unused"].map(|id| states[id].count("initialize"));
    let connected = || {
        let is_connected = |status: &ClientStatus| matches!(status, ClientStatus::Connected(_));
        manager.status().values().map(is_connected).collect::<Vec<bool>>()
    };
    assert_eq!((handshakes(), connected()), ([0, 0, 0], vec![false, false, false]));
    for id in ["http", "sse"] {
        manager.call_tool(id, &tool_call("fine"), &UnattendedCall).await.unwrap();
    }
    assert_eq!((handshakes(), connected()), ([1, 1, 0], vec![true, true, false]));

    manager.close("http").await.unwrap();
    states["http"].wait_for_sockets(0).await;
    assert_eq!(connected(), [false, true, false]);
    for id in ["http", "sse"] {
        manager.call_tool(id, &tool_call("fine"), &UnattendedCall).await.unwrap();
    }
    assert_eq!(handshakes(), [2, 1, 0], "only the closed server is connected again");
    assert_eq!(manager.close("other").await.unwrap_err().kind(), ErrorKind::NotFound);
    manager.close_all().await;
    assert_eq!(states["unused"].http_requests().len(), 0, "it was contacted unasked");
    assert_eq!(alive_tasks(), 0);
}

#[tokio::test]
async fn a_tool_list_is_used_for_its_time_to_live_and_no_longer() {
    for (tools_ttl, lists) in [(Duration::from_secs(300), 1), (Duration::ZERO, 3)] {
        let server = Arc::new(ServerState::default());
        let script = Script::echo(Era::Initialized);
        let spawner = PipeSpawner { script, server: Arc::clone(&server) };
        let options = ClientOptions {
            spawner: Some(Arc::new(spawner)),
            tools_ttl,
            ..test_options(test_limits())
        };
        let transport = stdio("scripted", &[]);
        let config = ServerConfig { trust: TrustLevel::Trusted, transport };
        let client = ServerClient::new("server", config, options, None);
        for _ in 0..3 {
            client.list_tools().await.unwrap();
        }
        assert_eq!(server.count("tools/list"), lists, "{tools_ttl:?}");
        client.close().await;
    }
}

#[tokio::test]
async fn a_dropped_client_closes_its_connection() {
    for (era, kind) in ALL_PAIRS {
        let pair = start(kind, Script::echo(era), test_limits()).await;
        pair.check_call().await;
        pair.client.list_tools().await.unwrap();
        drop(pair.client);
        if kind != TransportKind::Pipe {
            pair.server.wait_for_sockets(0).await;
        }
        let gone = async {
            while alive_tasks() > 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, gone).await.expect("tasks stay");
    }
}

#[tokio::test]
async fn calls_in_flight_are_bounded() {
    for kind in ALL_TRANSPORTS {
        let (open, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (is_open, peak) = (Arc::clone(&open), Arc::clone(&most));
        let script = Script::new(Era::Initialized, move |request| {
            let (open, most) = (Arc::clone(&is_open), Arc::clone(&peak));
            async move {
                most.fetch_max(open.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(10)).await;
                open.fetch_sub(1, Ordering::SeqCst);
                request.answer_text("fine").await;
            }
        });
        let limits = Limits { calls_in_flight: 3, ..test_limits() };
        let pair = start(kind, script, limits).await;
        join_all((0..30).map(|_| pair.check_call())).await;
        assert_eq!(most.load(Ordering::SeqCst), 3, "{kind:?}");
        pair.client.close().await;
    }
}
