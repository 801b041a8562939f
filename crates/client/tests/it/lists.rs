//! Tool lists without measure.

use std::time::Duration;

use ringfence_client::{Era, Limits};
use serde_json::json;

use super::harness::*;

async fn list_error(kind: TransportKind, script: Script, limits: Limits) -> ErrorKind {
    let pair = start(kind, script, limits).await;
    let error = pair.client.list_tools().await.expect_err("the list is accepted");
    pair.check_call().await;
    pair.client.close().await;
    error.kind()
}

#[tokio::test]
async fn lists_without_end_are_given_up() {
    for kind in ALL_TRANSPORTS {
        let endless = Script::echo(Era::Initialized).on("tools/list", |request| async move {
            let page = request.params["cursor"].as_str().map_or(0, |page| page.parse().unwrap());
            let next = (page + 1).to_string();
            request.answer(json!({"tools": [], "nextCursor": next})).await;
        });
        assert_eq!(list_error(kind, endless, test_limits()).await, ErrorKind::TooLarge);
        let repeated = Script::echo(Era::Initialized).on("tools/list", |request| async move {
            request.answer(json!({"tools": [], "nextCursor": "again"})).await;
        });
        assert_eq!(list_error(kind, repeated, test_limits()).await, ErrorKind::TooLarge);
        let long = Script::echo(Era::Initialized).on("tools/list", |request| async move {
            request.answer(json!({"tools": [], "nextCursor": "x".repeat(100_000)})).await;
        });
        assert_eq!(list_error(kind, long, test_limits()).await, ErrorKind::TooLarge);
        let silent = Script::echo(Era::Initialized)
            .on("tools/list", |request| async move { request.speaker.closed().await });
        // The pipe's server handles a list in order, so it must not wait there.
        if kind == TransportKind::Http {
            let limits = Limits { list_timeout: Duration::from_millis(200), ..test_limits() };
            assert_eq!(list_error(kind, silent, limits).await, ErrorKind::DeadlineExceeded);
        }
    }
}

#[tokio::test]
async fn a_hundred_thousand_tools_are_too_many() {
    for kind in ALL_TRANSPORTS {
        let script = Script::echo(Era::Initialized).on("tools/list", |request| async move {
            let tools: Vec<String> = (0..100_000)
                .map(|number| format!(r#"{{"name":"t{number}","inputSchema":{{}}}}"#))
                .collect();
            let text = format!(
                r#"{{"jsonrpc":"2.0","id":{},"result":{{"tools":[{}]}}}}"#,
                request.id,
                tools.join(",")
            );
            request.speaker.send_text(text).await;
        });
        assert_eq!(list_error(kind, script, test_limits()).await, ErrorKind::TooLarge, "{kind:?}");
    }
}

#[tokio::test]
async fn all_definitions_together_are_bounded() {
    let script = Script::echo(Era::Initialized).on("tools/list", |request| async move {
        let page = request.params["cursor"].as_str().map_or(0, |page| page.parse().unwrap());
        let mut definition = tool(&format!("tool-{page}"));
        definition["description"] = json!("x".repeat(100_000));
        request.answer(json!({"tools": [definition], "nextCursor": (page + 1).to_string()})).await;
    });
    let limits = Limits { catalog_bytes: 500_000, ..test_limits() };
    assert_eq!(list_error(TransportKind::Pipe, script, limits).await, ErrorKind::TooLarge);
}

/// One tool that cannot be used does not cost the others.
#[tokio::test]
async fn a_monstrous_definition_is_left_out() {
    for kind in ALL_TRANSPORTS {
        let script = Script::echo(Era::Initialized).on("tools/list", |request| async move {
            let long =
                json!({"name": "long", "inputSchema": {}, "description": "x".repeat(1 << 20)});
            let deep = format!(
                r#"{{"name":"deep","inputSchema":{}{}}}"#,
                r#"{"a":"#.repeat(999) + "1",
                "}".repeat(999)
            );
            let odd = format!(r#"{{"name":["{}"],"inputSchema":{{}}}}"#, "x".repeat(10_000));
            let text = format!(
                r#"{{"jsonrpc":"2.0","id":{},"result":{{"tools":[{long},{deep},{odd},{}]}}}}"#,
                request.id,
                tool("good")
            );
            request.speaker.send_text(text).await;
        });
        let pair = start(kind, script, test_limits()).await;
        let catalog = pair.client.list_tools().await.unwrap();
        assert!(catalog.tools.keys().eq(["good"]), "{kind:?}");
        assert_eq!(catalog.rejected.len(), 3);
        assert!(catalog.rejected.iter().all(|reason| reason.len() < 1_000));
        pair.client.close().await;
    }
}
