//! Many sessions over HTTP, with processes killed and files reloaded meanwhile: nothing is left of them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::{Gateway, HttpServer, said};
use crate::support::http::Request;
use crate::support::process::status_kb;
use crate::support::{Client, DEADLINE, SESSIONS, Server, Transport, eventually};

/// Sessions at a time.
const CROWD: usize = 6;
/// One session in so many uses a local server too: it costs a sandbox and an interpreter.
const LOCAL_EACH: usize = 10;
/// Kilobytes by which memory may grow: less than what one connection of each session takes.
const MAX_GROWTH_KB: u64 = 10 << 10;

fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// Sessions and streams that are open on the scripted server.
fn open_sessions(site: &HttpServer) -> Value {
    let address = format!("127.0.0.1:{}", site.port).parse().unwrap();
    serde_json::from_slice(&Request::new("GET", "/sessions").fetch(address).body).unwrap()
}

fn kill_one(gateway: &Gateway) {
    if let Some(pid) = gateway.processes().first().and_then(|pid| i32::try_from(*pid).ok()) {
        // It may have ended by itself just now.
        let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
    }
}

/// One session: remote calls, sometimes a local one that may be killed, and an end.
fn run_session(mut client: Client, number: usize, gateway: &Gateway) {
    client.shake_hands();
    for id in ["http25", "http26", "sse25"] {
        assert_eq!(said(&client.call(&format!("{id}__echo"), json!({"text": "x"}))), "x");
    }
    if number.is_multiple_of(LOCAL_EACH) {
        let message = client.call("pipe25__echo", json!({"text": "x"}));
        assert!(message["result"]["content"].is_array(), "{message:#}");
        if number.is_multiple_of(LOCAL_EACH * 2) {
            kill_one(gateway);
        }
    }
    assert!((200..300).contains(&client.delete()));
}

/// Runs so many sessions, several at a time, and reloads now and then. Returns how many fitted into the time.
fn run_sessions(server: &mut Server, gateway: &Gateway, count: usize, time: Duration) -> usize {
    let (next, until) = (AtomicUsize::new(0), Instant::now() + time);
    let clients: Vec<Vec<Client>> = (0..CROWD)
        .map(|_| (0..count.div_ceil(CROWD)).map(|_| server.client(SESSIONS)).collect())
        .collect();
    std::thread::scope(|scope| {
        for clients in clients {
            let next = &next;
            scope.spawn(move || {
                for client in clients {
                    if Instant::now() > until {
                        return;
                    }
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number % 50 == 25 {
                        reload(gateway, number);
                    }
                    run_session(client, number, gateway);
                }
            });
        }
    });
    next.into_inner()
}

/// Changes how a local server is started, so that its connections are out of date.
fn reload(gateway: &Gateway, number: usize) {
    let config = gateway.scratch.path().join("config.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let (kept, _) = text.split_once("[upstream.pipe25]").unwrap();
    let new = gateway.scratch.path().join(format!("config.{number}"));
    std::fs::write(&new, format!("{kept}[upstream.pipe25]\nenv = {{ N = '{number}' }}\n")).unwrap();
    std::fs::rename(new, config).unwrap();
}

#[test]
fn hundreds_of_sessions_leave_nothing_behind() {
    let (count, time) = match std::env::var_os("RINGFENCE_PROOF").is_some() {
        true => (10_000, Duration::from_secs(3_600)),
        false => (500, Duration::from_secs(30)),
    };
    let site = HttpServer::start();
    let gateway = Gateway::with_all(&site).config("[upstream.pipe25]\nidle_s = 600");
    // With an arena for each thread, memory grows for thousands of sessions before it is used again.
    let options = gateway.options(Transport::Http).env("MALLOC_ARENA_MAX", "1");
    let mut server = options.spawn();
    let pid = server.pid();
    let begun = Instant::now();
    // The first ones make what stays.
    run_sessions(&mut server, &gateway, 60, time);
    let settle = || {
        eventually(DEADLINE, "no process and no session is left", || {
            gateway.processes().is_empty()
                && open_sessions(&site) == json!({"sessions": 0, "streams": 0})
        });
    };
    settle();
    let (files, memory) = (descriptors(pid), status_kb(pid, "VmRSS"));
    let count = run_sessions(&mut server, &gateway, count, time);
    settle();
    eventually(DEADLINE, "no descriptor is left", || descriptors(pid) <= files + 2);
    let grown = status_kb(pid, "VmRSS").saturating_sub(memory);
    assert!(grown < MAX_GROWTH_KB, "memory has grown by {grown} kB");
    server.signal(Signal::TERM);
    server.ended();
    eventually(Duration::from_secs(10), "no process is left", || gateway.processes().is_empty());
    assert!(!server.log().contains("panicked"), "{}", server.log());
    println!("{count} sessions in {:.1?}, {files} descriptors, {grown} kB more", begun.elapsed());
}
