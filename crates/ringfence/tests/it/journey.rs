//! What an agent does in one go, on every transport and in both eras: write, read, process, write, read, run a command,
//! open a page and take its picture.

use std::time::Instant;

use serde_json::{Value, json};

use crate::support::matrix::{eras, on_cell};
use crate::support::{Client, DEADLINE, Server};

fn good(client: &mut Client, tool: &str, arguments: Value) -> Value {
    let message = client.call(tool, arguments);
    assert_eq!(message["result"]["isError"], false, "{tool} on {}: {message}", client.at());
    message["result"].clone()
}

fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap_or_default()
}

fn travel(server: &mut Server, client: &mut Client) {
    good(client, "file.write", json!({"path": "in.txt", "content": "test"}));
    assert_eq!(text(&good(client, "file.read", json!({"path": "in.txt"}))), "test");
    let code = "open('out.txt', 'w').write(open('in.txt').read().upper())";
    let processed = good(client, "code.exec", json!({"language": "python", "code": code}));
    let processed: Value = serde_json::from_str(text(&processed)).unwrap();
    assert_eq!(
        (&processed["result"], &processed["artifacts"][0]["path"]),
        (&json!("4"), &json!("out.txt"))
    );
    assert_eq!(std::fs::read_to_string(server.workspace().join("out.txt")).unwrap(), "TEST");
    let made = text(&good(client, "file.read", json!({"path": "out.txt"}))).to_owned();
    good(client, "file.write", json!({"path": "end.txt", "content": format!("{made}!")}));
    assert_eq!(text(&good(client, "file.read", json!({"path": "end.txt"}))), "TEST!");
    let said = good(client, "shell.exec", json!({"command": "echo test"}));
    assert_eq!(said["structuredContent"]["stdout"], "test\n");

    let page = "<title>There</title><h1>It works</h1>";
    good(client, "file.write", json!({"path": "index.html", "content": page}));
    let serve = "exec python3 -u -m http.server 8080 --bind 127.0.0.1";
    let begun = good(client, "shell.exec", json!({"command": serve, "yield_ms": 0}));
    let id = &begun["structuredContent"]["exec_id"];
    let (mut said, until) = (text(&begun).to_owned(), Instant::now() + DEADLINE);
    while !said.contains("Serving") {
        assert!(Instant::now() < until, "it never served: {said}");
        said =
            text(&good(client, "shell.session", json!({"op": "read", "id": id, "wait_ms": 100})))
                .to_owned();
    }
    let opened = good(client, "browser.navigate", json!({"url": "http://localhost:8080/"}));
    assert_eq!(opened["structuredContent"]["title"], "There", "{opened}");
    let shot = good(client, "browser.screenshot", json!({"path": "shots/page.png"}));
    assert_eq!(shot["content"][1]["type"], "image", "{shot}");
    let written = std::fs::read(server.workspace().join("shots/page.png")).unwrap();
    assert!(written.starts_with(b"\x89PNG\r\n"), "it is a picture");
    let outside = client.call("browser.screenshot", json!({"path": "../page.png"}));
    assert!(outside["result"].to_string().contains("outside_workspace"), "{outside}");
    assert!(!server.workspace().join("../page.png").exists());
}

#[test]
fn write_read_process_write_read_run_open_and_picture() {
    for cell in eras() {
        on_cell(cell, |options| options, travel);
    }
}
