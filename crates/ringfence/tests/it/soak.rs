//! Many calls of all kinds, with everything going wrong that does: processes killed, a full disk, directories that go
//! away, files that are none, calls cancelled and several at once. Each is answered once, what was written is read back,
//! and nothing is left over. A run follows from its seed: again with `RINGFENCE_SOAK_SEED`.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::rules_like_codex::rng::Rng;
use crate::support::process::{marker, wait_for_death, with_argument};
use crate::support::server::{Scratch, binary, verify};
use crate::support::{Client, DEADLINE, Options, SESSIONS, Server, Transport, eventually};

/// One kind of call (or of calls that belong together), and how often it comes up.
type Kind = (&'static str, usize, fn(&mut Soak));

const KINDS: &[Kind] = &[
    ("write", 8, write),
    ("append", 4, append),
    ("read", 8, read),
    ("replace", 8, replace),
    ("list", 3, |soak| soak.fine("file.list", json!({"path": "."}))),
    ("search", 3, |soak| soak.fine("file.search", json!({"pattern": "line", "path": "."}))),
    ("shell", 4, shell),
    ("background", 2, background),
    ("code", 1, code),
    ("page", 1, page),
    ("long output", 1, long_output),
    ("out of time", 1, out_of_time),
    ("killed", 1, killed),
    ("cancelled", 1, cancelled),
    ("several at once", 3, several_at_once),
    ("deleted directory", 1, deleted_directory),
    ("not a file", 2, not_a_file),
    ("full disk", 1, full_disk),
    ("wrong arguments", 2, |soak| {
        soak.refused("file.replace", json!({"path": "f0"}), "invalid_arguments")
    }),
];

struct Soak {
    server: Server,
    client: Client,
    rng: Rng,
    /// What each file must hold.
    files: BTreeMap<String, String>,
    /// Calls that must be on record.
    calls: usize,
    /// The workspace as the server has it.
    workspace: PathBuf,
    small: bool,
}

impl Soak {
    fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.calls += 1;
        let message = self.client.call(tool, arguments);
        message["result"].clone()
    }

    fn fine(&mut self, tool: &str, arguments: Value) {
        self.good(tool, arguments);
    }

    fn good(&mut self, tool: &str, arguments: Value) -> Value {
        let result = self.call(tool, arguments.clone());
        assert_eq!(result["isError"], false, "{tool} {arguments}: {result}");
        result
    }

    fn refused(&mut self, tool: &str, arguments: Value, kind: &str) {
        let result = self.call(tool, arguments.clone());
        assert_eq!(
            result["structuredContent"]["error"]["kind"], kind,
            "{tool} {arguments}: {result}"
        );
    }

    fn name(&mut self) -> String {
        format!("f{}", self.rng.below(6))
    }

    fn text(&mut self) -> String {
        let lines = 1 + self.rng.below(40);
        (0..lines).map(|line| format!("line {line} {:x} ü\n", self.rng.next())).collect()
    }

    fn check(&mut self, name: &str) {
        let expected = self.files.get(name).cloned();
        let result = self.call("file.read", json!({"path": name}));
        match expected {
            Some(text) => assert_eq!(result["content"][0]["text"], text.as_str(), "{name}"),
            None => assert_eq!(
                result["structuredContent"]["error"]["kind"], "not_found",
                "{name}: {result}"
            ),
        }
    }
}

fn write(soak: &mut Soak) {
    let (name, text) = (soak.name(), soak.text());
    soak.fine("file.write", json!({"path": name, "content": text}));
    soak.files.insert(name, text);
}

fn append(soak: &mut Soak) {
    let (name, text) = (soak.name(), soak.text());
    let held = soak.files.get(&name).map_or(0, String::len);
    if held < 40_000 / 2 {
        soak.fine("file.write", json!({"path": name, "content": text, "mode": "append"}));
        soak.files.entry(name).or_default().push_str(&text);
    }
}

fn read(soak: &mut Soak) {
    let name = soak.name();
    soak.check(&name);
}

fn replace(soak: &mut Soak) {
    let name = soak.name();
    let Some(text) = soak.files.get(&name).cloned() else { return soak.check(&name) };
    let line = text.lines().next().unwrap_or_default().to_owned();
    let count = text.matches(&line).count();
    let new = format!("line edited {:x}", soak.rng.next());
    let edits = json!([{"old": line, "new": new, "expect": count}]);
    soak.fine("file.replace", json!({"path": name, "edits": edits}));
    soak.files.insert(name.clone(), text.replace(&line, &new));
    soak.refused(
        "file.replace",
        json!({"path": name, "edits": [{"old": "nowhere", "new": ""}]}),
        "not_found",
    );
    soak.check(&name);
}

fn shell(soak: &mut Soak) {
    let code = soak.rng.below(3);
    let command = format!("cat; echo {code} >&2; exit {code}");
    let result = soak.good("shell.exec", json!({"command": command, "stdin": "in"}));
    let said = &result["structuredContent"];
    assert_eq!((&said["stdout"], &said["exit_code"]), (&json!("in"), &json!(code)), "{said}");
}

/// Goes on after its call; read to its end, or ended.
fn background(soak: &mut Soak) {
    let marker = marker();
    let ends = soak.rng.one_in(2);
    let command = if ends {
        "echo on; sleep 0.02; exit 3".to_owned()
    } else {
        format!("echo on; sleep {marker}")
    };
    let begun = soak.good("shell.exec", json!({"command": command, "yield_ms": 0}));
    let id = begun["structuredContent"]["exec_id"].clone();
    if ends {
        let result = soak.good("shell.session", json!({"op": "read", "id": id}));
        assert_eq!(result["structuredContent"]["exit_code"], 3, "{result}");
    }
    soak.fine("shell.session", json!({"op": "close", "id": id}));
    wait_for_death(&marker, DEADLINE);
}

fn code(soak: &mut Soak) {
    let number = soak.rng.below(1000);
    let said = |result: &Value| -> Value {
        serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap()
    };
    let arguments =
        json!({"language": "python", "code": format!("x = {number}\nx + 1"), "session": "new"});
    let first = said(&soak.good("code.exec", arguments));
    assert_eq!(first["result"], (number + 1).to_string(), "{first}");
    let id = first["session"].clone();
    let second = said(
        &soak.good("code.exec", json!({"language": "python", "code": "x + 2", "session": id})),
    );
    assert_eq!(second["result"], (number + 2).to_string(), "{second}");
    soak.fine("shell.session", json!({"op": "close", "id": id}));
}

fn page(soak: &mut Soak) {
    let opened = soak.good("browser.navigate", json!({"url": "about:blank", "page": "new"}));
    let page = opened["structuredContent"]["page"].clone();
    let number = soak.rng.below(1000);
    let result =
        soak.good("browser.eval", json!({"page": page, "script": format!("{number} + 1")}));
    assert!(
        result["structuredContent"].to_string().contains(&(number + 1).to_string()),
        "{result}"
    );
    soak.fine("browser.tabs", json!({"op": "close", "page": page}));
}

fn long_output(soak: &mut Soak) {
    let result = soak.good("shell.exec", json!({"command": "seq 1 20000", "max_bytes": 1000}));
    let handle = result["structuredContent"]["output"].clone();
    let part = soak.good("file.read", json!({"path": handle, "offset": 15_000, "limit": 1}));
    assert!(part["content"][0]["text"].as_str().unwrap().starts_with("15000\n"), "{part}");
}

fn out_of_time(soak: &mut Soak) {
    let marker = marker();
    let result =
        soak.call("shell.exec", json!({"command": format!("sleep {marker}"), "timeout_ms": 60}));
    assert_eq!(result["structuredContent"]["status"], "timed_out", "{result}");
    wait_for_death(&marker, DEADLINE);
}

/// The program itself, or what it waits for, dies by SIGKILL.
fn killed(soak: &mut Soak) {
    let marker = marker();
    let exec = if soak.rng.one_in(2) { "exec " } else { "" };
    let arguments = json!({"command": format!("{exec}sleep {marker}")});
    let id = soak.client.start_call("shell.exec", &arguments);
    soak.calls += 1;
    eventually(DEADLINE, "it runs", || !with_argument(&marker).is_empty());
    for pid in with_argument(&marker) {
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    let result =
        soak.client.finish(id, "shell.exec", &arguments)["result"]["structuredContent"].clone();
    assert!(result["signal"] == 9 || result["exit_code"] == 137, "{result}");
}

fn cancelled(soak: &mut Soak) {
    let marker = marker();
    let id = soak.client.start_call("shell.exec", &json!({"command": format!("sleep {marker}")}));
    soak.calls += 1;
    eventually(DEADLINE, "it runs", || !with_argument(&marker).is_empty());
    soak.client.cancel(&id);
    wait_for_death(&marker, DEADLINE);
}

/// Calls in flight at once, awaited in another order; some are taken back at once.
fn several_at_once(soak: &mut Soak) {
    let mut waiting = Vec::new();
    for at in 0..5 {
        let name = format!("at-once-{at}");
        let text = soak.text();
        let arguments = json!({"path": name, "content": text});
        waiting.push((soak.client.start_call("file.write", &arguments), "file.write", arguments));
        soak.files.insert(name, text);
        let arguments = json!({"command": format!("echo {at}")});
        waiting.push((soak.client.start_call("shell.exec", &arguments), "shell.exec", arguments));
        soak.calls += 2;
    }
    while !waiting.is_empty() {
        let (id, tool, arguments) = waiting.remove(soak.rng.below(waiting.len()));
        let result = soak.client.finish(id, tool, &arguments);
        assert_eq!(result["result"]["isError"], false, "{result}");
    }
    let name = format!("at-once-{}", soak.rng.below(5));
    soak.check(&name);
}

fn deleted_directory(soak: &mut Soak) {
    soak.fine("shell.exec", json!({"command": "mkdir -p gone"}));
    let result = soak
        .good("shell.exec", json!({"command": "rmdir ../gone; cd .. ; echo on", "cwd": "gone"}));
    assert!(result["structuredContent"]["exit_code"].is_i64(), "{result}");
    soak.refused("shell.exec", json!({"command": "true", "cwd": "gone"}), "not_found");
    soak.refused("file.read", json!({"path": "gone/x"}), "not_found");
}

fn not_a_file(soak: &mut Soak) {
    let make = "rm -rf odd; mkdir odd; mkfifo odd/pipe; ln -s nowhere odd/dangling; echo > odd/plain; ln -s odd/self odd/self";
    soak.fine("shell.exec", json!({"command": make}));
    let edits = json!([{"old": "x", "new": "y"}]);
    soak.refused("file.read", json!({"path": "odd/pipe"}), "permission_denied");
    soak.refused("file.write", json!({"path": "odd/pipe", "content": "x"}), "permission_denied");
    soak.refused("file.replace", json!({"path": "odd/pipe", "edits": edits}), "permission_denied");
    soak.refused("file.read", json!({"path": "odd/dangling"}), "not_found");
    soak.refused("file.replace", json!({"path": "odd/dangling", "edits": edits}), "not_found");
    soak.refused("file.write", json!({"path": "odd/plain/below", "content": "x"}), "not_found");
}

/// Nothing that was there is lost when nothing more fits.
fn full_disk(soak: &mut Soak) {
    if !soak.small {
        return read(soak);
    }
    let (name, long) = (soak.name(), "x".repeat(200_000));
    if !soak.files.contains_key(&name) {
        write(soak);
    }
    soak.fine("shell.exec", json!({"command": "dd if=/dev/zero of=fill bs=64k 2>/dev/null; true"}));
    soak.refused("file.write", json!({"path": name, "content": long}), "resource_exhausted");
    if let Some(text) = soak.files.get(&name).cloned() {
        let first = text.lines().next().unwrap_or_default();
        let edits = json!([{"old": format!("{first}\n"), "new": long, "expect": 0}]);
        soak.refused("file.replace", json!({"path": name, "edits": edits}), "resource_exhausted");
    }
    soak.check(&name);
    soak.fine("shell.exec", json!({"command": "rm fill"}));
}

/// Starts the binary with a small disk as its workspace, where this user may do that.
fn with_small_disk(scratch: &Scratch) -> Option<PathBuf> {
    let works = Command::new("unshare")
        .args(["-m", "true"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !works {
        return None;
    }
    let wrapper = scratch.path().join("with-small-disk");
    let text = format!(
        "#!/bin/sh\nexec unshare -m sh -c 'mount -t tmpfs -o size=8m tmpfs {0} && cd {0} && exec {1} \"$@\"' sh \"$@\"\n",
        scratch.path().join("workspace").display(),
        binary().display()
    );
    std::fs::write(&wrapper, text).unwrap();
    std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755)).unwrap();
    Some(wrapper)
}

/// Only root can look into a server, which hides itself from other processes of its user.
fn descriptors(pid: u32) -> Option<usize> {
    std::fs::read_dir(format!("/proc/{pid}/fd")).ok().map(Iterator::count)
}

/// Every process that descends from this one.
fn descendants(pid: u32) -> Vec<u32> {
    let mut parents = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(child) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{child}/stat")) else { continue };
        let parent = stat
            .rsplit(')')
            .next()
            .and_then(|rest| rest.split_whitespace().nth(1)?.parse::<u32>().ok());
        parents.push((child, parent.unwrap_or(0)));
    }
    let mut found = vec![pid];
    let mut at = 0;
    while at < found.len() {
        let parent = found[at];
        found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(child, _)| *child));
        at += 1;
    }
    found.split_off(1)
}

/// The same without the processes of the browser, which has more or fewer as it likes.
fn others(pid: u32) -> Vec<u32> {
    let is_browser = |pid: &u32| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.starts_with("chrom") || name.starts_with("headless")
    };
    let (browser, others): (Vec<u32>, Vec<u32>) =
        descendants(pid).into_iter().partition(is_browser);
    assert!(browser.len() <= 16, "{} processes of the browser", browser.len());
    others
}

fn shown(pid: &u32) -> String {
    let read =
        |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let state: String = read("stat").chars().take(60).collect();
    format!("{state} {}", read("cmdline").replace('\0', " "))
}

fn seed() -> u64 {
    let given =
        std::env::var("RINGFENCE_SOAK_SEED").ok().map(|text| text.parse().expect("a whole number"));
    given.unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64)
}

#[test]
fn a_thousand_calls_with_faults_lose_and_leak_nothing() {
    let target = if std::env::var_os("RINGFENCE_PROOF").is_some() { 10_000 } else { 1_000 };
    let (seed, begun) = (seed(), Instant::now());
    eprintln!("soak: RINGFENCE_SOAK_SEED={seed}, {target} calls");
    let scratch = Scratch::new();
    let mut options =
        Options::new(Transport::Stdio).config("[limits]\ngrace_ms = 200").on(&scratch);
    options.through = with_small_disk(&scratch);
    let small = options.through.is_some();
    if !small {
        println!("soak: without a full disk, since no disk can be mounted here");
    }
    let mut server = options.spawn();
    let client = server.connect(SESSIONS);
    let workspace = match small {
        true => {
            PathBuf::from(format!("/proc/{}/root{}", server.pid(), server.workspace().display()))
        }
        false => server.workspace(),
    };
    let rng = Rng::new(seed, 0);
    let mut soak = Soak { server, client, rng, files: BTreeMap::new(), calls: 0, workspace, small };

    // The first of each makes what stays for the session.
    for (_, _, run) in KINDS {
        run(&mut soak);
    }
    let pid = soak.server.pid();
    soak.fine("shell.exec", json!({"command": "true"}));
    // One of them is the supervisor of the call just now, which may be on its way.
    let before = (descriptors(pid), others(pid).len().max(2));

    let weights: usize = KINDS.iter().map(|(_, weight, _)| weight).sum();
    while soak.calls < target {
        let mut pick = soak.rng.below(weights);
        let (name, _, run) = KINDS
            .iter()
            .find(|(_, weight, _)| {
                let found = pick < *weight;
                pick = pick.saturating_sub(*weight);
                found
            })
            .unwrap();
        let at = soak.calls;
        let guard = Reproduce { name, at, seed };
        run(&mut soak);
        std::mem::forget(guard);
    }

    for name in soak.files.keys().cloned().collect::<Vec<_>>() {
        soak.check(&name);
        assert_eq!(std::fs::read_to_string(soak.workspace.join(&name)).unwrap(), soak.files[&name]);
    }
    assert!(
        soak.client.stray().is_empty(),
        "answers to what was answered or cancelled: {:?}",
        soak.client.stray()
    );
    eventually(DEADLINE, "no descriptor is left over", || descriptors(pid) <= before.0);
    let until = Instant::now() + DEADLINE;
    while others(pid).len() > before.1 {
        let left: Vec<String> = others(pid).iter().map(shown).collect();
        assert!(Instant::now() < until, "{} processes, {} before: {left:#?}", left.len(), before.1);
        std::thread::sleep(Duration::from_millis(20));
    }
    let left: Vec<_> = std::fs::read_dir(&soak.workspace)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !soak.files.contains_key(name) && name != "odd")
        .collect();
    assert!(left.is_empty(), "left in the workspace: {left:?}");

    let children = descendants(pid);
    soak.client.hang_up();
    assert!(soak.server.ended().success(), "{}", soak.server.log());
    eventually(Duration::from_secs(10), "everything dies with the server", || {
        children.iter().all(|pid| !PathBuf::from(format!("/proc/{pid}")).exists())
    });
    assert_eq!(soak.server.stops(soak.calls).len(), soak.calls);
    let (code, text) = verify(&scratch);
    assert!(code == 0 && text.contains("chain intact") && !text.contains("crash"), "{text}");
    assert!(!soak.server.log().contains("panicked"), "{}", soak.server.log());
    let outputs = scratch.path().join("root/outputs");
    assert!(
        !outputs.exists() || std::fs::read_dir(outputs).unwrap().count() == 0,
        "outputs are left"
    );
    println!(
        "soak: {} calls in {:.1?}, {:?} descriptors, {} processes",
        soak.calls,
        begun.elapsed(),
        before.0,
        before.1
    );
}

/// Says how to have a failure again.
struct Reproduce {
    name: &'static str,
    at: usize,
    seed: u64,
}

impl Drop for Reproduce {
    fn drop(&mut self) {
        eprintln!(
            "soak: failed at call {} ({}); again with RINGFENCE_SOAK_SEED={}",
            self.at, self.name, self.seed
        );
    }
}
