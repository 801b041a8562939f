//! Pages that never come to rest: they cost their own call and their own tab's content, and nothing else.

use serde_json::json;

use super::Stage;
use crate::support::subset::assert_holds;

/// Opens a page whose scripts never return: an error that names the tab, which holds an empty page from then on.
fn open_hanging(stage: &mut Stage, path: &str) {
    let url = stage.at(path);
    let error = stage.refuse("browser.navigate", json!({"url": url, "timeout_ms": 1000}));
    assert_holds(
        json!({"kind": "deadline_exceeded", "reason": "page_unresponsive", "replaced": "p1"}),
        &error,
    );
}

#[test]
fn a_page_whose_scripts_never_return_is_replaced_and_its_tab_works() {
    let mut stage = Stage::new();
    stage.go("/");
    for path in ["/hang/loop", "/hang/alert", "/hang/push"] {
        open_hanging(&mut stage, path);
        assert_eq!(stage.eval("location.href"), "about:blank", "after {path}");
        let logs = stage.ask("browser.logs", json!({"kinds": ["error"]})).to_string();
        assert!(logs.contains("the page hung"), "{logs}");
        assert_holds(
            json!({"page": "p1", "title": "Form", "url": stage.at("/form")}),
            &stage.go("/form"),
        );
        assert_eq!(stage.eval("document.title"), "Form", "after {path}");
    }
    let tabs = stage.ask("browser.tabs", json!({}));
    assert_holds(json!([{"page": "p1", "title": "Form", "current": true}]), &tabs["pages"]);
}

/// A navigation that the page did not carry out never reports the old page as the new one.
#[test]
fn a_page_that_hangs_after_it_was_opened_can_be_left() {
    let mut stage = Stage::new();
    stage.go("/");
    assert_eq!(stage.go("/hang/later")["title"], "Later");
    assert_holds(
        json!({"page": "p1", "title": "Form", "url": stage.at("/form")}),
        &stage.go("/form"),
    );
    for op in ["back", "reload"] {
        assert_eq!(stage.go("/hang/later")["title"], "Later");
        let error = stage.refuse("browser.act", json!({"op": op, "timeout_ms": 1000}));
        assert_holds(json!({"kind": "deadline_exceeded", "replaced": "p1"}), &error);
        assert_holds(json!({"page": "p1", "title": "Form"}), &stage.go("/form"));
    }
    assert_eq!(stage.go("/hang/later")["title"], "Later");
    let error = stage.refuse("browser.eval", json!({"script": "1", "timeout_ms": 1000}));
    assert_holds(json!({"kind": "deadline_exceeded", "replaced": "p1"}), &error);
    assert_eq!(stage.go("/")["title"], "Home");
}

#[test]
fn a_page_that_moves_without_end_can_be_left() {
    let mut stage = Stage::new();
    for path in ["/hang/reload", "/hang/pushes"] {
        let url = stage.at(path);
        for _ in 0..3 {
            let opened = stage.ask("browser.navigate", json!({"url": url, "timeout_ms": 2000}));
            assert!(opened["url"].as_str().unwrap().starts_with(&url), "{opened:#}");
            assert_holds(
                json!({"page": "p1", "title": "Form", "url": stage.at("/form")}),
                &stage.go("/form"),
            );
            assert_eq!(stage.eval("document.title"), "Form", "after {path}");
        }
    }
}
