//! Opening pages and looking at them.

use serde_json::{Value, json};

use super::{Stage, ref_of};
use crate::support::subset::assert_holds;

#[test]
fn a_page_is_opened_and_described() {
    let mut stage = Stage::new();
    let url = stage.at("/");
    let opened = stage.go("/");
    let wanted =
        json!({"page": "p1", "url": url, "title": "Home", "http_status": 200, "console_errors": 0});
    assert_holds(wanted, &opened);
    assert!(opened.get("snapshot").is_none() && opened.get("timed_out").is_none(), "{opened:#}");
    assert_eq!(opened["requests"]["failed"], 0);
    // Again in the same page, and in another.
    assert_eq!(stage.go("/form")["page"], "p1");
    let other = stage
        .ask("browser.navigate", json!({"url": url, "page": "new", "snapshot": "interactive"}));
    assert_eq!(other["page"], "p2");
    assert!(other["snapshot"].as_str().unwrap().contains("link \"To the form\""), "{other:#}");
    let url = stage.at("/tall");
    assert_eq!(stage.ask("browser.navigate", json!({"url": url, "page": "p1"}))["page"], "p1");
    let tabs = stage.ask("browser.tabs", json!({}));
    assert_holds(
        json!([{"page": "p1", "title": "Tall", "current": true}, {"page": "p2", "title": "Home", "current": false}]),
        &tabs["pages"],
    );
    let gone = stage.refuse("browser.navigate", json!({"url": "about:blank", "page": "p9"}));
    assert_eq!(gone["kind"], "not_found");
}

/// Scripts of a page have no say in where it is, what it is called and what our own functions find.
#[test]
fn a_page_cannot_forge_what_is_said_about_it() {
    let mut stage = Stage::new();
    let url = stage.at("/forged#part");
    let opened = stage.call("browser.navigate", json!({"url": url}));
    assert_eq!(opened["structuredContent"]["url"], url, "{opened:#}");
    let title = opened["structuredContent"]["title"].as_str().unwrap();
    assert!(title.starts_with("Forged") && title.lines().count() == 1, "{title}");
    let text = opened["content"][0]["text"].as_str().unwrap();
    assert!(!text.lines().any(|line| line.starts_with("12 console errors")), "{text}");
    let hidden =
        stage.refuse("browser.act", json!({"op": "click", "target": "#gone", "timeout_ms": 300}));
    assert_eq!(hidden["reason"], "not_visible", "{hidden:#}");
    let clicked = stage.act(json!({"op": "click", "target": "#real"}));
    assert_eq!(clicked["dialogs"][0]["message"], "one\\ntwo", "{clicked:#}");
    assert!(clicked.get("other_matches").is_none(), "{clicked:#}");
}

#[test]
fn redirects_and_statuses_are_told() {
    let mut stage = Stage::new();
    let opened = stage.go("/redirect");
    assert_eq!(opened["url"], stage.at("/form"));
    let wanted = json!([{"url": stage.at("/redirect"), "status": 302}, {"url": stage.at("/redirected"), "status": 301}]);
    assert_eq!(opened["redirects"], wanted);
    assert_eq!(stage.go("/status/404")["http_status"], 404);
    assert_eq!(stage.go("/status/500")["http_status"], 500);
    let refused = stage.refuse("browser.navigate", json!({"url": "http://127.0.0.1:8001/"}));
    assert_holds(json!({"kind": "unavailable", "reason": "navigation_failed"}), &refused);
}

/// A page is there when its own document says so, and what does not come in time is told.
#[test]
fn a_slow_page_is_waited_for_and_no_longer_than_asked() {
    let mut stage = Stage::new();
    let url = stage.at("/slow");
    let opened = stage.ask("browser.navigate", json!({"url": url, "timeout_ms": 700}));
    assert_holds(json!({"title": "Slow", "timed_out": true, "http_status": 200}), &opened);
    let early =
        stage.ask("browser.navigate", json!({"url": url, "wait_until": "domcontentloaded"}));
    assert!(
        early.get("timed_out").is_none() && early["load_ms"].as_u64().unwrap() < 5000,
        "{early:#}"
    );
    let url = stage.at("/never");
    let refused = stage.refuse("browser.navigate", json!({"url": url, "timeout_ms": 500}));
    assert_eq!(refused["kind"], "deadline_exceeded");
    assert_eq!(stage.go("/")["title"], "Home");
}

#[test]
fn only_the_web_is_opened() {
    let mut stage = Stage::new();
    for url in [
        "file:///etc/passwd",
        "view-source:http://127.0.0.1:8000/",
        "chrome://version",
        "data:text/html,x",
        "javascript:1",
    ] {
        let refused = stage.refuse("browser.navigate", json!({"url": url}));
        assert_holds(json!({"kind": "permission_denied", "reason": "scheme"}), &refused);
    }
    // A page cannot get there by itself either, and a server cannot send it.
    stage.go("/wander");
    stage.eval("new Promise(done => setTimeout(done, 200))");
    assert_eq!(stage.eval("location.pathname"), "/wander");
    // "file:///etc/passwd"
    let refused = stage.at("/to/ZmlsZTovLy9ldGMvcGFzc3dk");
    stage.refuse("browser.navigate", json!({"url": refused}));
    assert!(!stage.eval("document.documentElement.outerHTML").as_str().unwrap().contains("root:"));
    // A script in a page has the rights of its page: a frame or a fetch of a file fails.
    stage.go("/");
    let read = stage.eval("fetch('file:///etc/passwd').then(r => r.text(), e => 'failed')");
    assert_eq!(read, "failed");
}

#[test]
fn a_snapshot_has_refs_that_stay_and_frames_that_are_looked_into() {
    let mut stage = Stage::new();
    stage.go("/form");
    let first = stage.look();
    assert!(first.contains("textbox \"Name\" ["), "{first}");
    assert!(first.contains("disabled") && !first.contains("Nobody sees me"), "{first}");
    let name = ref_of(&first, "textbox \"Name\"");
    stage.eval("document.querySelector('form').prepend(document.createElement('button'))");
    assert_eq!(ref_of(&stage.look(), "textbox \"Name\""), name);
    stage.act(json!({"op": "fill", "target": name, "text": "Ann"}));
    assert!(stage.look().contains(&format!("textbox \"Name\" [{name}] value=\"Ann\"")));
    // What has not changed is not said again.
    let nothing = stage.ask("browser.snapshot", json!({"diff": true}));
    assert_holds(json!({"diff": true, "lines": 0}), &nothing);
    stage.act(json!({"op": "check", "target": "#agree"}));
    let changed = stage.ask("browser.snapshot", json!({"diff": true}))["snapshot"]
        .as_str()
        .unwrap()
        .to_owned();
    let is_added = |line: &str| {
        line.strip_prefix('+')
            .is_some_and(|line| line.trim_start().starts_with("checkbox \"I agree\""))
    };
    assert!(changed.lines().any(is_added) && !changed.contains("Colour"), "{changed}");
    let part = stage.ask("browser.snapshot", json!({"target": "#colour"}))["snapshot"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(part.contains("Green") && !part.contains("Name"), "{part}");
    let small = stage.ask("browser.snapshot", json!({"mode": "full", "max_bytes": 300}));
    assert!(
        small["truncated"] == true && small["snapshot"].as_str().unwrap().len() < 500,
        "{small:#}"
    );

    stage.go("/frames");
    let stale = stage.refuse("browser.act", json!({"op": "click", "target": name}));
    assert_holds(json!({"kind": "conflict", "reason": "stale"}), &stale);
    let frames = stage.look();
    assert!(frames.contains("heading \"Outside\""), "{frames}");
    // What a frame shows is below the frame; how many levels of its own the browser puts in between is its affair.
    for (frame, button) in
        [("iframe \"First\"", "button \"Deep\""), ("iframe \"Second\"", "button \"Deeper\"")]
    {
        assert!(
            depth_of(&frames, frame) < depth_of(&frames, button),
            "{button} below {frame} in {frames}"
        );
    }
    assert!(
        depth_of(&frames, "iframe \"First\"") < depth_of(&frames, "iframe \"Second\""),
        "{frames}"
    );
    for (words, title) in [
        ("button \"Deep\"", "clicked in the frame"),
        ("button \"Deeper\"", "clicked twice as deep"),
    ] {
        stage.act(json!({"op": "click", "target": ref_of(&frames, words)}));
        assert_eq!(stage.eval("document.title"), title);
    }
    let text = stage.ask("browser.snapshot", json!({"mode": "text"}))["snapshot"].clone();
    assert_eq!(text, "Outside");
}

/// How far the first line of a snapshot that holds these words is indented.
fn depth_of(snapshot: &str, words: &str) -> usize {
    let line = snapshot
        .lines()
        .find(|line| line.contains(words))
        .unwrap_or_else(|| panic!("{words} in {snapshot}"));
    line.len() - line.trim_start().len()
}

#[test]
fn a_script_gives_its_value_whatever_its_form() {
    let mut stage = Stage::new();
    stage.go("/form");
    for (script, value) in [
        ("1 + 1", json!(2)),
        ("const x = 1; x", json!(1)),
        ("const x = 2; x", json!(2)),
        ("await Promise.resolve([1, 'two', null])", json!([1, "two", null])),
        ("Promise.resolve('later')", json!("later")),
        ("() => document.title", json!("Form")),
        ("async () => { return {a: {b: 1}} }", json!({"a": {"b": 1}})),
        ("return 5", json!(5)),
        ("({a: 1})", json!({"a": 1})),
        ("const a = {}; a.a = a; a", json!({"a": "[circular]"})),
        ("new Map([['k', new Set([1])]])", json!([["k", [1]]])),
        ("'x'.repeat(3)", json!("xxx")),
        ("10n", json!("10n")),
    ] {
        assert_eq!(stage.eval(script), value, "{script}");
    }
    let typed = stage.ask("browser.eval", json!({"script": "el => el.tagName", "target": "#name"}));
    assert_eq!(typed["value"], "\"INPUT\"");
    assert_eq!(stage.ask("browser.eval", json!({"script": "undefined"}))["kind"], "undefined");
    let thrown = stage.refuse("browser.eval", json!({"script": "throw new Error('no')"}));
    assert_holds(json!({"kind": "invalid_arguments", "reason": "exception"}), &thrown);
    assert!(thrown["message"].as_str().unwrap().contains("no"), "{thrown}");
    let endless =
        stage.refuse("browser.eval", json!({"script": "while (true) {}", "timeout_ms": 300}));
    assert_eq!(endless["kind"], "deadline_exceeded");
    let endless =
        stage.refuse("browser.eval", json!({"script": "new Promise(() => {})", "timeout_ms": 300}));
    assert_eq!(endless["kind"], "deadline_exceeded");
    // More than a browser may answer at all is an error of that call, and the page is still there.
    let endless = stage.refuse("browser.eval", json!({"script": "'x'.repeat(1e8)"}));
    assert_eq!(endless["kind"], "too_large", "{endless:#}");
    assert_eq!(stage.eval("document.title"), "Form");
    for large in ["'x'.repeat(5e7)", "Array.from({length: 1e6}, (_, i) => ({i}))", "window"] {
        let cut = stage.ask("browser.eval", json!({"script": large, "max_bytes": 1000}));
        assert!(cut["value"].as_str().unwrap().len() < 1200, "{large}");
        assert!(large == "window" || cut["truncated"] == true, "{large}: {cut:#}");
    }
}

#[test]
fn what_a_page_says_and_asks_for_is_in_its_logs() {
    let mut stage = Stage::new();
    let opened = stage.go("/errors");
    assert!(opened["console_errors"].as_u64().unwrap() >= 2, "{opened:#}");
    // What the page has begun it has ended once this is here.
    stage.eval("new Promise(done => { const look = () => document.images[0].complete && performance.getEntriesByType('resource').length > 1 ? done() : setTimeout(look, 10); look() })");
    let logs = |stage: &mut Stage, arguments: Value| {
        stage.ask("browser.logs", arguments)["entries"].clone()
    };
    let all = logs(&mut stage, json!({}));
    let has = |entries: &Value, kind: &str, words: &str| {
        entries
            .as_array()
            .unwrap()
            .iter()
            .any(|entry| entry["kind"] == kind && entry.to_string().contains(words))
    };
    assert!(has(&all, "console", "a message {a: 1}") && has(&all, "console", "careful"), "{all:#}");
    assert!(has(&all, "error", "it broke") && has(&all, "error", "out of nowhere"), "{all:#}");
    assert!(has(&all, "network", "/missing.png") && has(&all, "network", "/status/500"), "{all:#}");
    let failed = logs(&mut stage, json!({"kinds": ["network"], "failed": true}));
    assert!(failed.as_array().unwrap().len() == 2 && has(&failed, "network", "404"), "{failed:#}");
    let last = stage.ask("browser.logs", json!({}))["last"].clone();
    stage.eval("console.log('afterwards')");
    let since = logs(&mut stage, json!({"since": last}));
    assert_holds(json!([{"kind": "console", "text": "afterwards"}]), &since);
    stage.eval("for (let i = 0; i < 3000; i++) console.log('line ' + i)");
    let many = stage.ask("browser.logs", json!({"filter": "LINE 29", "limit": 5}));
    assert_eq!(many["entries"].as_array().unwrap().len(), 5);
    assert!(many["lost"].as_u64().unwrap() > 0 && many["truncated"] == true, "{many:#}");
    stage.go("/socket");
    assert_eq!(stage.eval("new Promise(done => { const look = () => document.title === 'waiting' ? setTimeout(look, 10) : done(document.title); look() })"), "spoken");
    assert!(has(&logs(&mut stage, json!({})), "network", "ws://"));
}
