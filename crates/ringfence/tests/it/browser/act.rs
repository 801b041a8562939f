//! Doing on a page what a user does.

use serde_json::json;

use super::{Stage, ref_of};
use crate::support::subset::assert_holds;

#[test]
fn a_form_is_filled_in_and_sent() {
    let mut stage = Stage::new();
    stage.go("/form");
    stage.act(json!({"op": "fill", "target": "#name", "text": "first"}));
    stage.act(json!({"op": "fill", "target": "#name", "text": "Ann & Bö"}));
    stage.act(json!({"op": "fill", "target": "#day", "text": "2026-11-16"}));
    stage.act(json!({"op": "check", "target": "#agree"}));
    stage.act(json!({"op": "check", "target": "#agree"}));
    stage.act(json!({"op": "select", "target": "#colour", "values": ["Green"]}));
    let look = stage.look();
    stage.act(
        json!({"op": "type", "target": ref_of(&look, "textbox \"Notes\""), "text": "two\nlines"}),
    );
    let sent = stage.act(json!({"op": "click", "target": "text=Send", "snapshot": "text"}));
    assert_holds(json!({"navigated": true, "title": "Sent"}), &sent);
    assert_eq!(
        sent["snapshot"],
        "name=Ann+%26+B%C3%B6&day=2026-11-16&agree=on&colour=g&notes=two%0D%0Alines"
    );
    assert_holds(json!({"navigated": true, "title": "Form"}), &stage.act(json!({"op": "back"})));
    assert_eq!(stage.act(json!({"op": "forward"}))["title"], "Sent");
    assert_eq!(stage.refuse("browser.act", json!({"op": "forward"}))["reason"], "no_history");
    assert_eq!(stage.act(json!({"op": "reload"}))["title"], "Sent");
}

#[test]
fn keys_mouse_and_scrolling_reach_the_page() {
    let mut stage = Stage::new();
    stage.go("/form");
    for key in ["a", "Enter", "Control+A", "Shift+Tab"] {
        stage.act(json!({"op": "press", "target": "#keys", "key": key}));
    }
    assert_eq!(stage.eval("document.querySelector('#keys').dataset.keys"), "a Enter A Tab ");
    stage.act(json!({"op": "double_click", "target": "#twice"}));
    assert_eq!(stage.eval("document.querySelector('#twice').textContent"), "twice");
    stage.act(json!({"op": "hover", "target": "#over"}));
    assert_eq!(stage.eval("document.querySelector('#over').textContent"), "hovered");
    stage.act(json!({"op": "click", "target": "text=Later"}));
    stage.act(json!({"op": "wait_for", "target": "text=I am late"}));
    stage.eval("document.querySelector('#late').remove()");
    stage.act(json!({"op": "wait_for", "target": "#late", "gone": true}));
    stage.go("/tall");
    stage.act(json!({"op": "scroll", "dy": 500}));
    assert_eq!(stage.eval("scrollY"), 500);
    stage.act(json!({"op": "scroll", "target": "#box"}));
    assert!(stage.eval("scrollY").as_f64().unwrap() > 2000.0);
    stage.go("/drag");
    stage.act(json!({"op": "drag", "target": "#from", "to": "#to"}));
    assert_eq!(stage.eval("document.title"), "dropped cargo");
}

/// What a user could not do is not done, and the error says what is in the way.
#[test]
fn what_cannot_be_done_is_explained() {
    let mut stage = Stage::new();
    stage.go("/form");
    for (arguments, kind, reason) in [
        (json!({"op": "click", "target": "#nothing"}), "not_found", "no_match"),
        (json!({"op": "click", "target": "e999"}), "not_found", ""),
        (json!({"op": "click", "target": "#off"}), "conflict", "disabled"),
        (json!({"op": "click", "target": "#hidden"}), "conflict", "not_visible"),
        (json!({"op": "click", "target": "#under"}), "conflict", "obscured"),
        (json!({"op": "fill", "target": "#fixed", "text": "y"}), "conflict", "disabled"),
        (json!({"op": "fill", "target": "#colour", "text": "y"}), "conflict", "wrong_element"),
        (json!({"op": "fill", "target": "#day", "text": "tomorrow"}), "conflict", "wrong_value"),
        (json!({"op": "select", "target": "#colour", "values": ["Blue"]}), "not_found", "no_match"),
        (json!({"op": "check", "target": "#name"}), "conflict", "wrong_element"),
        (json!({"op": "wait_for", "target": "#nothing"}), "deadline_exceeded", ""),
        (json!({"op": "click", "target": "a[["}), "invalid_arguments", ""),
        (json!({"op": "press", "key": "Entr"}), "invalid_arguments", ""),
        (json!({"op": "fill", "target": "#name"}), "invalid_arguments", ""),
        (json!({"op": "click", "target": "#name", "page": "p7"}), "not_found", ""),
    ] {
        let mut arguments = arguments;
        arguments["timeout_ms"] = json!(300);
        let error = stage.refuse("browser.act", arguments.clone());
        assert_eq!(error["kind"], kind, "{arguments}: {error:#}");
        assert_eq!(error["reason"].as_str().unwrap_or(""), reason, "{arguments}: {error:#}");
    }
    let covered =
        stage.refuse("browser.act", json!({"op": "click", "target": "#under", "timeout_ms": 200}));
    assert!(covered["message"].as_str().unwrap().contains("div#cover"), "{covered:#}");
}

#[test]
fn dialogs_are_answered_and_reported() {
    let mut stage = Stage::new();
    stage.go("/dialogs");
    let alert = stage.act(json!({"op": "click", "target": "#alert"}));
    assert_eq!(
        alert["dialogs"],
        json!([{"kind": "alert", "message": "watch out", "accepted": true}])
    );
    let confirm = stage.act(json!({"op": "click", "target": "#confirm"}));
    assert_holds(json!([{"kind": "confirm", "accepted": false}]), &confirm["dialogs"]);
    assert_eq!(confirm["title"], "false");
    let confirm = stage.act(json!({"op": "click", "target": "#confirm", "accept_dialogs": true}));
    assert_eq!(confirm["title"], "true");
    let prompt = json!({"op": "click", "target": "#prompt", "accept_dialogs": true, "prompt_text": "somebody"});
    assert_eq!(stage.act(prompt)["title"], "somebody");
    assert_eq!(stage.act(json!({"op": "click", "target": "#prompt"}))["title"], "null");
    // One that comes while a page is opened does not hold it up.
    stage.eval("window.addEventListener('beforeunload', event => event.preventDefault())");
    assert_eq!(stage.go("/")["title"], "Home");
}

#[test]
fn files_go_in_and_out_by_the_workspace_alone() {
    let mut stage = Stage::new();
    let opened = stage.go("/download");
    assert_holds(
        json!([{"name": "cargo.txt", "state": "completed", "bytes": 10}]),
        &opened["downloads"],
    );
    let output = opened["downloads"][0]["output"].as_str().unwrap();
    let read = stage.call("file.read", json!({"path": output}));
    assert_eq!(read["content"][0]["text"], "the cargo\n");
    assert!(
        !stage.server.workspace().join("cargo.txt").exists(),
        "nothing is written there unasked"
    );

    std::fs::write(stage.server.workspace().join("one.txt"), "ONE").unwrap();
    std::fs::create_dir(stage.server.workspace().join("sub")).unwrap();
    std::fs::write(stage.server.workspace().join("sub/two.txt"), "TWO").unwrap();
    stage.go("/upload");
    stage.act(json!({"op": "upload", "target": "#file", "files": ["one.txt", "sub/two.txt"]}));
    assert_eq!(stage.eval("document.title"), "one.txt=ONE;two.txt=TWO");
    let outside = json!({"op": "upload", "target": "#file", "files": ["../config.toml"]});
    assert_eq!(stage.refuse("browser.act", outside)["reason"], "outside_workspace");
    let wrong = json!({"op": "upload", "target": "body", "files": ["one.txt"]});
    assert_eq!(stage.refuse("browser.act", wrong)["reason"], "wrong_element");
}

#[test]
fn pages_that_pages_open_are_told_and_are_not_too_many() {
    let mut stage = Stage::new();
    stage.go("/");
    let opened = stage.act(json!({"op": "click", "target": "text=In a new page"}));
    assert_eq!(opened["new_pages"], json!(["p2"]));
    stage.act(json!({"op": "wait_for", "target": "#box", "page": "p2"}));
    stage.ask("browser.tabs", json!({"op": "select", "page": "p1"}));
    stage.go("/many");
    let tabs = stage.ask("browser.tabs", json!({}));
    let count = tabs["pages"].as_array().unwrap().len();
    assert!((3..=20).contains(&count), "{count} pages");
    let left = stage.ask("browser.tabs", json!({"op": "close", "page": "p2"}));
    assert!(left["pages"].as_array().unwrap().iter().all(|page| page["page"] != "p2"));
    assert_eq!(stage.refuse("browser.snapshot", json!({"page": "p2"}))["reason"], "page_closed");
    assert_eq!(stage.ask("browser.tabs", json!({"op": "close_all"}))["pages"], json!([]));
    // Cookies went with them.
    stage.go("/");
    stage.go("/cookie");
    assert_eq!(stage.ask("browser.snapshot", json!({"mode": "text"}))["snapshot"], "seen=1");
    stage.ask("browser.tabs", json!({"op": "close_all"}));
    stage.go("/cookie");
    assert_eq!(stage.ask("browser.snapshot", json!({"mode": "text"}))["snapshot"], "none");
}
