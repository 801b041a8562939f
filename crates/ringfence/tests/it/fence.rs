//! The fence as a server uses it: what belongs to the session and what to the run, what a run may use, what is on
//! record, and what happens when a part of it is lost. Attacks on it are in `escape`.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::process::{marker, parent, wait_for_death, with_argument};
use crate::support::subset::assert_holds;
use crate::support::{Client, DEADLINE, Options, SESSIONS, Server, Transport, eventually, server};

fn run(client: &mut Client, command: &str) -> Value {
    let message = client.call("shell.exec", json!({ "command": command }));
    let result = message["result"]["structuredContent"].clone();
    assert!(result.is_object(), "{message}");
    result
}

fn stdout(client: &mut Client, command: &str) -> String {
    let result = run(client, command);
    assert_eq!(result["exit_code"], 0, "{result}");
    result["stdout"].as_str().unwrap().to_owned()
}

/// Waits inside the fence for somebody to listen there, then asks.
const ASK: &str = "for i in $(seq 100); do exec 3<>/dev/tcp/127.0.0.1/7070 && break; sleep 0.05; done 2>/dev/null; cat <&3";
const ANSWER: &str = "python3 -c \"import socket; s = socket.create_server(('127.0.0.1', 7070)); \
    c = s.accept()[0]; c.sendall(b'here'); c.close(); import time; time.sleep(60)\"";

#[test]
fn a_server_started_by_one_call_answers_the_next() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    let serving = client.start_call("shell.exec", &json!({"command": ANSWER}));
    assert_eq!(stdout(&mut client, ASK), "here");
    client.cancel(&serving);
}

#[test]
fn tmp_and_the_network_are_the_sessions_own() {
    let mut server = Options::new(Transport::Http).spawn();
    let mut one = server.connect(SESSIONS);
    let mut other = server.connect(SESSIONS);
    assert_eq!(
        stdout(&mut one, "echo mine > /tmp/mine; echo mine > /dev/shm/mine; cat /tmp/mine"),
        "mine\n"
    );
    assert_eq!(stdout(&mut one, "cat /tmp/mine /dev/shm/mine"), "mine\nmine\n");
    assert_eq!(run(&mut other, "cat /tmp/mine || cat /dev/shm/mine")["exit_code"], 1);
    let serving = one.start_call("shell.exec", &json!({"command": ANSWER}));
    assert_eq!(stdout(&mut one, ASK), "here");
    let refused = run(&mut other, "exec 3<>/dev/tcp/127.0.0.1/7070");
    assert!(refused["stderr"].as_str().unwrap().contains("refused"), "{refused}");
    one.cancel(&serving);
}

#[test]
fn processes_of_one_call_are_not_seen_by_the_next() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    let marker = marker();
    let id = client.start_call("shell.exec", &json!({"command": format!("exec sleep {marker}")}));
    wait_for_one(&marker);
    assert_eq!(
        run(&mut client, &format!("pgrep -f 'sleep {marker}' | grep -v $$ | grep -v $BASHPID"))["stdout"],
        ""
    );
    client.cancel(&id);
}

fn wait_for_one(marker: &str) {
    eventually(DEADLINE, "it has started", || !with_argument(marker).is_empty());
}

/// The process at this level below the server, of those that the run of this marker descends from: its zygote, its
/// supervisor, its first process. Another run may be prepared next to it.
fn below_server(server: &Server, marker: &str, level: usize) -> u32 {
    let mut line: Vec<u32> =
        std::iter::successors(with_argument(marker).first().copied(), |pid| Some(parent(*pid)))
            .take_while(|pid| *pid != server.pid() && *pid > 1)
            .collect();
    line.reverse();
    line[level]
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), Signal::KILL).unwrap();
}

/// Kills what `find` finds while a call runs: the call ends with an error, nothing of it lives, and the next works.
fn lose(level: usize) {
    let mut server = Options::new(Transport::Stdio).config("[limits]\ngrace_ms = 300").spawn();
    let mut client = server.connect(SESSIONS);
    stdout(&mut client, "true");
    let marker = marker();
    let arguments = json!({"command": format!("(setsid sleep {marker} &); exec sleep {marker}")});
    let id = client.start_call("shell.exec", &arguments);
    wait_for_tree_of_two(&marker);
    kill(below_server(&server, &marker, level));
    let message = client.wait(&id);
    assert_eq!(message["result"]["isError"], true, "{message}");
    assert_eq!(message["result"]["structuredContent"]["error"]["kind"], "internal", "{message}");
    wait_for_death(&marker, DEADLINE);
    assert_eq!(stdout(&mut client, "echo next"), "next\n");
    assert!(
        !server.workspace().join(".codex").exists()
            || !is_empty(&server.workspace().join(".codex"))
    );
}

fn wait_for_tree_of_two(marker: &str) {
    eventually(DEADLINE, "both have started", || with_argument(marker).len() >= 2);
}

fn is_empty(path: &Path) -> bool {
    std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

#[test]
fn a_lost_zygote_ends_its_calls_and_the_next_one_works() {
    lose(0);
}

#[test]
fn a_lost_supervisor_ends_its_call_and_the_next_one_works() {
    lose(1);
}

#[test]
fn a_lost_first_process_ends_its_call_and_the_next_one_works() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    stdout(&mut client, "true");
    let marker = marker();
    let id = client.start_call("shell.exec", &json!({"command": format!("exec sleep {marker}")}));
    wait_for_one(&marker);
    kill(below_server(&server, &marker, 2));
    let message = client.wait(&id);
    assert!(message["result"].is_object(), "{message}");
    wait_for_death(&marker, DEADLINE);
    assert_eq!(stdout(&mut client, "echo next"), "next\n");
}

#[test]
fn nothing_survives_a_server_that_is_killed_at_any_moment() {
    let rounds = if std::env::var_os("RINGFENCE_PROOF").is_some() { 100 } else { 12 };
    for round in 0..rounds {
        let mut server = Options::new(Transport::Stdio).config("[limits]\ngrace_ms = 100").spawn();
        let mut client = server.connect(SESSIONS);
        let marker = marker();
        let command = format!("(setsid sleep {marker} &); (sleep {marker} &); exec sleep {marker}");
        client.start_call("shell.exec", &json!({"command": command}));
        // From before the zygote's start to after the program's.
        let wait = Instant::now() + Duration::from_millis(round * 40 / rounds);
        while Instant::now() < wait {
            std::hint::spin_loop();
        }
        server.signal(Signal::KILL);
        server.ended();
        wait_for_death(&marker, DEADLINE);
        eventually(DEADLINE, "what stood in for missing paths is gone", || {
            is_empty(&server.workspace())
        });
    }
}

#[test]
fn a_host_that_changes_a_protected_file_does_not_open_it() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    let git = server.workspace().join(".git");
    std::fs::create_dir_all(git.join("hooks")).unwrap();
    std::fs::write(git.join("HEAD"), "ref: refs/heads/main\n").unwrap();
    std::fs::write(git.join("config"), "[core]\n").unwrap();
    let script = "touch ready; until [ -e go ]; do sleep 0.01; done; sleep 0.3; echo evil >> .git/config; echo $?";
    let id = client.start_call("shell.exec", &json!({"command": script}));
    eventually(DEADLINE, "it runs", || server.workspace().join("ready").exists());
    // As `git config` does it: a new file in the place of the old one.
    std::fs::write(git.join("config.lock"), "[core]\n[user]\n").unwrap();
    std::fs::rename(git.join("config.lock"), git.join("config")).unwrap();
    std::fs::write(server.workspace().join("go"), "").unwrap();
    let message = client.finish(id, "shell.exec", &json!({}));
    assert_eq!(message["result"]["structuredContent"]["stdout"], "1\n", "{message}");
    assert_eq!(std::fs::read_to_string(git.join("config")).unwrap(), "[core]\n[user]\n");
}

/// More connections than a supervisor makes at once, to a listener that accepts none, and again as soon as one is refused.
/// When the host has replaced the file, it waits for the cover.
const CROWD: &str = r"
import os, socket, sys, threading, time
listener = socket.socket(socket.AF_UNIX)
listener.bind('/tmp/full')
listener.listen(0)
refused = threading.Event()
def connect():
    while True:
        try:
            socket.socket(socket.AF_UNIX).connect('/tmp/full')
        except OSError:
            refused.set()
threads = [threading.Thread(target=connect, daemon=True) for _ in range(320)]
for thread in threads:
    thread.start()
refused.wait()
open('ready', 'w').close()
while '[user]' not in open('.git/config').read():
    time.sleep(0.001)
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until and not os.statvfs('.git/config').f_flag & os.ST_RDONLY:
    time.sleep(0.001)
print('covered' if os.statvfs('.git/config').f_flag & os.ST_RDONLY else 'open', flush=True)
os._exit(0)
";

/// A signal takes a program out of its call to the supervisor, and the kernel starts the call again.
#[test]
fn a_signal_does_not_fail_a_connection() {
    const DIAL: &str = r#"
import signal, socket, threading
server = socket.create_server(('127.0.0.1', 0), backlog=128)
def accept():
    while True: server.accept()[0].close()
threading.Thread(target=accept, daemon=True).start()
signal.signal(signal.SIGALRM, lambda *_: None); signal.siginterrupt(signal.SIGALRM, False)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
for _ in range(1000):
    with socket.socket() as client: client.connect(server.getsockname())
signal.setitimer(signal.ITIMER_REAL, 0)
print('all connected')
"#;
    let mut server = Options::new(Transport::Stdio).spawn();
    std::fs::write(server.workspace().join("dial.py"), DIAL).unwrap();
    let mut client = server.connect(SESSIONS);
    let result = client.call("shell.exec", json!({"command": "python3 dial.py"}));
    assert_holds(json!({"stdout": "all connected\n"}), &result["result"]["structuredContent"]);
}

#[test]
fn connections_that_wait_do_not_keep_a_cover_off() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    let git = server.workspace().join(".git");
    std::fs::create_dir_all(git.join("hooks")).unwrap();
    std::fs::write(git.join("HEAD"), "ref: refs/heads/main\n").unwrap();
    std::fs::write(git.join("config"), "[core]\n").unwrap();
    let patience = (DEADLINE / 2).as_secs().to_string();
    let id = client.start_call("shell.exec", &json!({"argv": ["python3", "-c", CROWD, patience]}));
    eventually(DEADLINE, "all that are made at once wait", || {
        server.workspace().join("ready").exists()
    });
    std::fs::write(git.join("config.lock"), "[core]\n[user]\n").unwrap();
    std::fs::rename(git.join("config.lock"), git.join("config")).unwrap();
    let message = client.finish(id, "shell.exec", &json!({}));
    assert_eq!(message["result"]["structuredContent"]["stdout"], "covered\n", "{message}");
}

#[test]
fn stand_ins_stay_while_any_run_of_any_server_lives() {
    let mut first = Options::new(Transport::Stdio).spawn();
    let mut second = Options::new(Transport::Http).on(&first.scratch).spawn();
    let (mut one, mut other) = (first.connect(SESSIONS), second.connect(SESSIONS));
    let marker = marker();
    let id = one.start_call("shell.exec", &json!({"command": format!("exec sleep {marker}")}));
    wait_for_one(&marker);
    let stand_in = first.workspace().join(".codex");
    assert!(stand_in.is_dir());
    assert_eq!(run(&mut other, "touch .codex/x")["exit_code"], 1);
    assert!(stand_in.is_dir(), "the other server's run was not the last");
    one.cancel(&id);
    eventually(DEADLINE, "the last run takes it away", || !stand_in.exists());
    assert!(is_empty(&first.workspace()));
}

#[test]
fn what_a_user_has_put_there_is_not_taken_away() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    std::fs::create_dir(server.workspace().join(".agents")).unwrap();
    run(&mut client, "true");
    assert!(server.workspace().join(".agents").is_dir(), "an empty directory of the user's own");
    assert!(!server.workspace().join(".codex").exists());
}

/// Small enough to be reached at once.
const TIGHT: &str = "[limits]\ngrace_ms = 200\n[sandbox]\nmemory_mb = 64\nprocesses = 40\nfile_mb = 1\ncpu_s = 1\nopen_files = 64";

fn tight() -> (Server, Client) {
    let mut server = Options::new(Transport::Stdio).config(TIGHT).spawn();
    let client = server.connect(SESSIONS);
    (server, client)
}

#[test]
fn a_memory_hog_is_ended_and_told() {
    let (_server, mut client) = tight();
    // It touches its memory and stays: without a control group memory is counted from time to time.
    let hog = "x = b\"x\" * 300_000_000; import time; time.sleep(300); print(len(x))";
    let result = run(&mut client, &format!("exec python3 -c '{hog}'"));
    assert_eq!(result["stdout"], "", "{result}");
    assert_ne!(result["exit_code"], 0, "{result}");
    assert!(
        ["cgroup1", "cgroup2", "rlimits"].contains(&result["sandbox"]["limits"].as_str().unwrap()),
        "{result}"
    );
    assert!(result["warnings"].to_string().contains("memory"), "{result}");
    assert_eq!(stdout(&mut client, "echo next"), "next\n");
}

/// Fills what no process maps, and says how many MiB it took.
const UNMAPPED: &str = r"
import os, socket, sys
held, total = [], 0
def fill(write):
    global total
    try:
        while True:
            total += write(bytes(65536))
    except BlockingIOError:
        pass
def connection():
    listener = socket.create_server(('127.0.0.1', 0))
    return socket.create_connection(listener.getsockname()), listener.accept()[0], listener
if sys.argv[1] == 'memfd':
    file = os.memfd_create('x')
    for _ in range(4000):
        total += os.write(file, bytes(65536))
for _ in range(400 if sys.argv[1] == 'unix' else 100 if sys.argv[1] == 'tcp' else 0):
    held.append(socket.socketpair() if sys.argv[1] == 'unix' else connection())
    held[-1][0].setblocking(False)
    held[-1][0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    fill(held[-1][0].send)
print(total >> 20)
";

/// Twice the limit is not reached: the run is ended, or the kernel takes no more.
#[test]
fn memory_that_no_process_maps_counts_where_there_is_a_control_group() {
    let mut server = Options::new(Transport::Stdio).config("[sandbox]\nmemory_mb = 64").spawn();
    let mut client = server.connect(SESSIONS);
    for kind in ["memfd", "unix", "tcp"] {
        let message = client.call("shell.exec", json!({"argv": ["python3", "-c", UNMAPPED, kind]}));
        let result = &message["result"]["structuredContent"];
        if result["sandbox"]["limits"] == "rlimits" {
            println!("NOT RUN: there is no control group");
            return;
        }
        match result["stdout"].as_str().unwrap().trim().parse::<u64>() {
            Ok(taken) => assert!(taken < 128, "{kind}: {message}"),
            Err(_) => {
                assert!(result["warnings"].to_string().contains("memory"), "{kind}: {message}")
            }
        }
    }
}

#[test]
fn a_fork_bomb_ends_with_its_call() {
    let (_server, mut client) = tight();
    let marker = marker();
    let bomb = format!("bomb() {{ sleep {marker} & bomb 2>/dev/null & }}; bomb; sleep 0.5; true");
    let began = Instant::now();
    run(&mut client, &bomb);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    wait_for_death(&marker, DEADLINE);
    assert_eq!(stdout(&mut client, "echo next"), "next\n");
}

#[test]
fn one_file_one_process_and_one_table_of_files_have_their_limits() {
    let (server, mut client) = tight();
    let result = run(&mut client, "head -c 5000000 /dev/zero > big; echo $?");
    assert_eq!(result["stdout"], "153\n", "SIGXFSZ: {result}");
    assert_eq!(std::fs::metadata(server.workspace().join("big")).unwrap().len(), 1 << 20);
    let result = run(&mut client, "bash -c 'while :; do :; done'; echo $?");
    assert!(["152\n", "137\n"].contains(&result["stdout"].as_str().unwrap()), "SIGXCPU: {result}");
    let result = run(&mut client, "python3 -c 'f = [open(\"/dev/null\") for _ in range(100)]'");
    assert!(result["stderr"].as_str().unwrap().contains("Too many open files"), "{result}");
}

#[test]
fn a_private_tmp_cannot_fill_the_machine() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    let size: u64 =
        stdout(&mut client, "df --output=size -B1 /tmp | tail -n 1").trim().parse().unwrap();
    assert!(size <= 2 << 30, "{size}");
    for (place, most) in
        [("/tmp", 512 << 10), ("/var/tmp", 128 << 10), ("/run", 16 << 10), ("/dev/shm", 64 << 10)]
    {
        let command = format!("df --output=itotal {place} | tail -n 1");
        let files: u64 = stdout(&mut client, &command).trim().parse().unwrap();
        assert_eq!(files, most, "{place}");
    }
}

#[test]
fn refusals_are_in_the_result_and_on_record() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    let result = run(
        &mut client,
        "python3 -c 'import socket; socket.socket(40, 1)'; unshare -r true; unshare -r true",
    );
    let expected = json!([
        {"kind": "syscall", "name": "socket", "count": 1},
        {"kind": "syscall", "name": "unshare", "count": 2},
    ]);
    assert_eq!(result["sandbox"]["denials"], expected, "{result}");
    assert_eq!(server.stops(1)[0]["denials"], expected);
}

/// A server of the host that answers one request.
fn one_answer() -> (u16, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 1024];
        let _ = stream.read(&mut request).unwrap();
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nhost")
            .unwrap();
    });
    (port, answering)
}

#[test]
fn only_what_is_allowed_is_reached_and_every_decision_is_on_record() {
    let (port, answering) = one_answer();
    let config = format!(
        "[sandbox]\nallow_addresses = [\"127.0.0.1:{port}\"]\nallow_domains = [\"example.com\"]"
    );
    let mut server = Options::new(Transport::Stdio).config(&config).spawn();
    let mut client = server.connect(SESSIONS);
    let get = |url: &str| format!("curl -s -S --noproxy '' -m 5 -o - '{url}'");
    assert_eq!(stdout(&mut client, &get(&format!("http://127.0.0.1:{port}/"))), "host");
    answering.join().unwrap();
    let refused = run(
        &mut client,
        &format!("{}; curl -s -m 5 https://evil.test/; true", get("http://169.254.169.254/")),
    );
    assert_holds(
        json!([{"kind": "network", "name": "169.254.169.254:80", "reason": "not_allowed", "count": 1},
        {"kind": "network", "name": "evil.test:443", "reason": "not_allowed", "count": 1}]),
        &refused["sandbox"]["denials"],
    );
    assert_eq!(refused["sandbox"]["network"], "proxied");
    // Without the proxy there is nothing but the loopback.
    assert_ne!(
        run(&mut client, &format!("curl -s --noproxy '*' -m 5 http://127.0.0.1:{port}/"))["exit_code"],
        0
    );
    let decisions = server.events("network");
    assert_eq!(decisions.len(), 3, "{decisions:?}");
    assert_holds(
        json!({"host": "127.0.0.1", "port": port, "allowed": true, "via": "http", "trace_id": "*"}),
        &decisions[0],
    );
    assert_holds(
        json!({"host": "evil.test", "port": 443, "allowed": false, "reason": "not_allowed"}),
        &decisions[2],
    );
    assert_eq!(server::verify(&server.scratch).0, 0);
}

#[test]
fn with_the_whole_network_our_own_door_and_metadata_stay_shut() {
    let mut server =
        Options::new(Transport::Http).config("[sandbox]\nallow_network = true").spawn();
    let mut client = server.connect(SESSIONS);
    let (port, answering) = one_answer();
    assert_eq!(stdout(&mut client, &format!("curl -s -m 5 http://127.0.0.1:{port}/")), "host");
    answering.join().unwrap();
    let own = server.address().port();
    let script = format!(
        "curl -s -m 5 http://127.0.0.1:{own}/mcp; echo $?; curl -s -m 5 http://[::ffff:127.0.0.1]:{own}/; echo $?; \
         curl -s -m 5 http://169.254.169.254/; echo $?"
    );
    let result = run(&mut client, &script);
    assert_eq!(result["stdout"], "7\n7\n7\n", "{result}");
    assert_holds(json!([{"kind": "network"}]), &result["sandbox"]["denials"]);
    assert_eq!(result["sandbox"]["network"], "all");
}

/// Wherever a cloud may hand out credentials, in every form that leads there. A datagram socket that is connected sends
/// nothing.
#[test]
fn with_the_whole_network_every_metadata_address_stays_shut() {
    let mut server =
        Options::new(Transport::Stdio).config("[sandbox]\nallow_network = true").spawn();
    let mut client = server.connect(SESSIONS);
    let addresses = [
        "169.254.169.254",
        "169.254.170.2",
        "100.100.100.200",
        "192.0.0.192",
        "168.63.129.16",
        "fd00:ec2::254",
        "fd00:ec2::23",
        "fd20:ce::254",
        "fe80::1",
        "::ffff:168.63.129.16",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b::a83f:8110",
        "64:ff9b::a9fe:1",
        "64:ff9b:1::a9fe:a9fe",
        "64:ff9b:1:a9fe:a9:fe00::",
        "2002:a83f:8110::1",
    ];
    let script = format!(
        "import errno, socket\nfor a in {addresses:?}:\n  s = socket.socket(10 if ':' in a else 2, 2)\n  \
         print(a, errno.errorcode.get(s.connect_ex((a, 80)), 'ok'))\nprint(socket.socket(2, 2).connect_ex(('127.0.0.1', 80)))"
    );
    let result = run(&mut client, &format!("python3 -I -S -c \"{}\"", script.replace('"', "'")));
    let refused: String = addresses.iter().map(|address| format!("{address} EPERM\n")).collect();
    assert_eq!(result["stdout"], format!("{refused}0\n"), "{result}");
    let denials = result["sandbox"]["denials"].as_array().unwrap();
    assert_eq!(denials.len(), addresses.len(), "{result}");
}

#[test]
fn wrong_settings_refuse_to_start() {
    for (lines, word) in [
        ("[sandbox]\nprofile = \"seatbelt\"", "macOS"),
        ("[sandbox]\nprofile = \"strong\"", "strong"),
        ("[sandbox]\nmemory_mb = 1", "memory_mb"),
        ("[sandbox]\nallow_domains = [\"*.com\"]", "*.com"),
        ("[sandbox]\nallow_addresses = [\"10.0.0.1\"]", "10.0.0.1"),
        ("[sandbox]\nallow_network = true\ndeny_domains = [\"a.example\"]", "deny_domains"),
        ("[sandbox]\nprofile = \"contained\"\nhide = [\"x\"]", "contained"),
        ("[sandbox]\nprofile = \"contained\"\nprotect = [\"x\"]", "contained"),
        ("[sandbox]\nprofile = \"contained\"\nallow_domains = [\"a.example\"]", "contained"),
    ] {
        let output = Options::new(Transport::Stdio).config(lines).refuse();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(word), "{lines}: {said}");
    }
}

/// A directory of the host that the sandbox replaces must not come back with a root or a workspace that lies in it.
#[test]
fn a_root_and_a_workspace_below_a_replaced_directory_show_nothing_else_of_it() {
    for base in ["/tmp", "/var/tmp"] {
        let place = Path::new(base).join(format!("ringfence-{}", marker()));
        let sibling = place.with_extension("sibling");
        std::fs::write(&sibling, "").unwrap();
        let (root, workspace) = (place.join("deep/root"), place.join("deep/workspace"));
        for (file, text) in [
            (root.join("audit/key"), "key of the log"),
            (root.join("secrets/key"), "key of the store"),
            (place.join("neighbour"), "next to them"),
            (workspace.join("own"), "in the workspace"),
        ] {
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        let script = "find \"$1\" -type f -not -path '*/homes/*' -exec cat {} + 2>/dev/null; ls -a \"$2\"; echo made > made; cat own";
        let output = std::process::Command::new(server::binary())
            .args(["sandbox", "--root"])
            .arg(&root)
            .arg("--workspace")
            .arg(&workspace)
            .args(["--", "sh", "-c", script, "sh"])
            .args([place.as_os_str(), base.as_ref()])
            .current_dir(&workspace)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{base}: {output:?}");
        assert!(
            said.contains("in the workspace") && workspace.join("made").exists(),
            "{base}: {said}"
        );
        assert!(!said.contains("key of") && !said.contains("next to"), "{base}: {said}");
        assert!(!said.contains(".sibling"), "{base}: {said}");
        std::fs::remove_dir_all(&place).unwrap();
        std::fs::remove_file(&sibling).unwrap();
    }
}
