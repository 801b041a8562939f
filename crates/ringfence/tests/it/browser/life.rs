//! A browser that ends, however it does, is replaced; and none is left behind.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::{Stage, called, serve};
use crate::support::subset::assert_holds;
use crate::support::{DEADLINE, Options, SESSIONS, Transport, eventually};

/// The processes of this server's browser: the one that was told its private directory, and all that come from it.
pub fn processes(stage: &Stage) -> Vec<u32> {
    let root =
        format!("--user-data-dir={}/", stage.server.root().canonicalize().unwrap().display());
    let Ok(entries) = std::fs::read_dir("/proc") else { return vec![] };
    let pids: Vec<u32> =
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    let mut found: Vec<u32> =
        pids.iter().copied().filter(|pid| words(*pid).contains(&root)).collect();
    let parents: Vec<(u32, u32)> =
        pids.iter().filter_map(|pid| Some((*pid, parent(*pid)?))).collect();
    let mut at = 0;
    while let Some(pid) = found.get(at).copied() {
        found.extend(parents.iter().filter(|(_, parent)| *parent == pid).map(|(pid, _)| *pid));
        at += 1;
    }
    found.sort_unstable();
    found.dedup();
    found
}

fn words(pid: u32) -> String {
    String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default())
        .replace('\0', " ")
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// The program itself, and not a script that starts it.
fn browser(stage: &Stage) -> Pid {
    let all = processes(stage);
    let main = all
        .iter()
        .rev()
        .find(|pid| words(**pid).contains("--user-data-dir=") && !words(**pid).contains("--type="));
    Pid::from_raw(
        i32::try_from(*main.unwrap_or_else(|| panic!("no browser among {all:?}"))).unwrap(),
    )
    .unwrap()
}

#[test]
fn a_browser_that_is_killed_is_an_error_once_and_a_fresh_one_next() {
    let mut stage = Stage::new();
    assert!(processes(&stage).is_empty(), "it is started by the first call that needs it");
    stage.go("/");
    let first = browser(&stage);
    kill_process(first, Signal::KILL).unwrap();
    eventually(DEADLINE, "it is noticed", || {
        stage.client.call("browser.snapshot", json!({}))["result"]["isError"] == true
    });
    let gone = stage.refuse("browser.snapshot", json!({"page": "p1"}));
    assert_holds(json!({"kind": "not_found", "reason": "page_closed"}), &gone);
    let again = stage.go("/");
    assert_holds(json!({"title": "Home", "page": "p2"}), &again);
    assert_ne!(browser(&stage), first);
}

#[test]
fn a_call_in_flight_ends_with_its_browser() {
    let mut stage = Stage::new();
    stage.go("/");
    let pid = browser(&stage);
    let script = json!({"script": "document.title = 'Begun'; new Promise(() => {})"});
    let id = stage.client.start_call("browser.eval", &script);
    eventually(DEADLINE, "the script runs", || {
        stage.ask("browser.tabs", json!({"op": "list"})).to_string().contains("Begun")
    });
    let begun = Instant::now();
    kill_process(pid, Signal::KILL).unwrap();
    let answer = stage.client.finish(id, "browser.eval", &script);
    assert_holds(json!({"kind": "unavailable"}), &answer["result"]["structuredContent"]["error"]);
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert_eq!(stage.go("/")["title"], "Home");
}

#[test]
fn a_browser_that_hangs_is_ended_and_the_server_goes_on() {
    let mut stage = Stage::new();
    stage.go("/");
    let first = browser(&stage);
    kill_process(first, Signal::STOP).unwrap();
    let slow = stage.refuse("browser.eval", json!({"script": "1", "timeout_ms": 500}));
    assert_eq!(slow["kind"], "deadline_exceeded");
    // Everything else works meanwhile.
    assert_eq!(stage.ask("shell.exec", json!({"command": "echo here"}))["stdout"], "here\n");
    eventually(DEADLINE, "the one that hangs is gone", || {
        !processes(&stage).contains(&first.as_raw_nonzero().get().cast_unsigned())
    });
    assert_eq!(stage.go("/")["title"], "Home");
}

#[test]
fn a_page_that_crashes_or_hangs_takes_nothing_with_it() {
    let mut stage = Stage::new();
    stage.go("/");
    let url = stage.at("/busy");
    stage.ask("browser.navigate", json!({"url": url, "page": "new"}));
    let stuck =
        stage.refuse("browser.act", json!({"op": "click", "target": "button", "timeout_ms": 500}));
    assert_eq!(stuck["kind"], "deadline_exceeded");
    assert_eq!(
        stage.ask("browser.eval", json!({"script": "document.title", "page": "p1"}))["value"],
        "\"Home\""
    );
    let left = stage.ask("browser.tabs", json!({"op": "close", "page": "p2"}));
    assert_eq!(left["pages"].as_array().unwrap().len(), 1);
    // What holds a page is killed under it.
    let url = stage.at("/");
    let page = stage.ask("browser.navigate", json!({"url": url, "page": "new"}))["page"].clone();
    let renderers: Vec<u32> = processes(&stage)
        .into_iter()
        .filter(|pid| words(*pid).contains("--type=renderer"))
        .collect();
    assert!(!renderers.is_empty());
    for pid in renderers {
        let _ = kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), Signal::KILL);
    }
    eventually(DEADLINE, "the page is known to be gone", || {
        stage.client.call("browser.eval", json!({"script": "1", "page": page, "timeout_ms": 1000}))
            ["result"]["isError"]
            == true
    });
    assert_eq!(stage.ask("browser.navigate", json!({"url": url, "page": "new"}))["title"], "Home");
}

#[test]
fn an_idle_browser_is_ended() {
    let mut stage = Stage::with(Options::new(Transport::Stdio).config("[browser]\nidle_s = 1"));
    stage.go("/");
    assert!(!processes(&stage).is_empty());
    eventually(DEADLINE, "it is ended", || processes(&stage).is_empty());
    let gone = stage.refuse("browser.snapshot", json!({"page": "p1"}));
    assert_eq!(gone["reason"], "page_closed");
    assert_eq!(stage.go("/")["page"], "p2");
}

#[test]
fn nothing_is_left_when_the_server_ends_or_is_killed() {
    for signal in [None, Some(Signal::TERM), Some(Signal::KILL)] {
        let mut stage = Stage::new();
        stage.go("/");
        assert!(processes(&stage).len() > 1);
        match signal {
            None => stage.client.hang_up(),
            Some(signal) => stage.server.signal(signal),
        }
        stage.server.ended();
        eventually(Duration::from_secs(5), "the browser is gone too", || {
            processes(&stage).is_empty()
        });
        if signal != Some(Signal::KILL) {
            let left =
                std::fs::read_dir(stage.server.root().join("browser")).map_or(0, Iterator::count);
            assert_eq!(left, 0, "its directory is left after {signal:?}");
        }
    }
}

/// Sessions of one principal share a process and nothing else.
#[test]
fn sessions_share_a_browser_and_see_nothing_of_each_other() {
    let mut server = Options::new(Transport::Http).spawn();
    let mut one = server.connect(SESSIONS);
    let mut two = server.connect(SESSIONS);
    let url = serve(&server, &mut one);
    called(&mut one, "browser.navigate", json!({"url": url}));
    let cookie = json!({"script": "document.cookie"});
    assert_eq!(
        called(&mut one, "browser.eval", cookie.clone())["structuredContent"]["value"],
        "\"seen=1\""
    );
    // The second session has no such server, and none of the first one's pages.
    assert_eq!(two.call("browser.navigate", json!({"url": url}))["result"]["isError"], true);
    assert_eq!(
        two.call("browser.snapshot", json!({"page": "p1"}))["result"]["content"][0]["text"]
            .as_str()
            .map(|text| text.contains("Welcome")),
        Some(false)
    );
    let other = serve(&server, &mut two);
    let opened = called(
        &mut two,
        "browser.navigate",
        json!({"url": format!("{other}/cookie"), "snapshot": "text"}),
    );
    assert_eq!(opened["structuredContent"]["snapshot"], "none");
    // What one saves is not the other's, whatever page it came from.
    let saved = called(&mut one, "browser.navigate", json!({"url": format!("{url}/download")}));
    assert_eq!(saved["structuredContent"]["downloads"][0]["state"], "completed", "{saved:#}");
    let theirs = called(&mut two, "browser.tabs", json!({}));
    assert!(theirs["structuredContent"].get("downloads").is_none(), "{theirs:#}");
    let logs = called(&mut two, "browser.logs", json!({"kinds": ["download"]}));
    assert_eq!(logs["structuredContent"]["entries"], json!([]));
    let stage = Stage { server, client: one, url };
    let mains =
        processes(&stage).into_iter().filter(|pid| words(*pid).contains("--type=gpu-process"));
    assert_eq!(mains.count(), 1);
}
