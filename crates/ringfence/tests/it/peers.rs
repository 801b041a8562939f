//! Who may connect while auth is off: the user of the server and root, from outside every sandbox of ours, whatever
//! address the connection comes from.

use std::net::{IpAddr, UdpSocket};
use std::process::{Child, Command, Stdio};

use serde_json::json;

use crate::escape::is_root;
use crate::support::place::visible_binary;
use crate::support::{DEADLINE, Options, SESSIONS, Server, Transport, eventually};

const BODY: &str = r#"{"jsonrpc":"2.0","id":1,"method":"mcp.capabilities"}"#;

/// The arguments of a `curl` that posts one message and prints the status alone.
fn curl(url: &str, more: &[&str]) -> Vec<String> {
    let common =
        ["curl", "-s", "-m", "10", "-o", "/dev/null", "-w", "%{http_code}", "--data", BODY];
    let headers = ["-H", "Content-Type: application/json"];
    let host: &[&str] = if more.contains(&"-H") { &[] } else { &["-H", "Host: localhost"] };
    common
        .iter()
        .chain(&headers)
        .chain(host)
        .chain(more)
        .chain(&[url])
        .map(|word| (*word).to_owned())
        .collect()
}

/// What this command prints; `before` are the words that start it.
fn printed(before: &[&str], command: &[String]) -> String {
    let mut words = before.iter().map(|word| (*word).to_owned()).chain(command.iter().cloned());
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

const OTHER_USER: &[&str] = &["setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups"];

/// Addresses of this machine that a connection can come from; no packet is sent to find them.
fn sources() -> Vec<String> {
    let outward = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect("198.51.100.1:9")?;
        socket.local_addr()
    });
    let outward = outward.ok().map(|address| address.ip().to_string());
    ["127.0.0.1", "127.0.0.2", "127.255.0.7"]
        .map(str::to_owned)
        .into_iter()
        .chain(outward)
        .collect()
}

/// Asserts that our own user is answered and, where another one can be had, that it is refused.
#[track_caller]
fn assert_only_the_own_user(url: &str, more: &[&str]) {
    assert_eq!(printed(&[], &curl(url, more)), "200", "our own user at {url} {more:?}");
    if is_root() {
        assert_eq!(printed(OTHER_USER, &curl(url, more)), "403", "another user at {url} {more:?}");
    }
}

#[test]
fn another_user_is_refused_from_every_address_of_this_machine() {
    let server = Options::new(Transport::Http).spawn();
    let url = format!("http://{}/mcp", server.address());
    for source in sources() {
        assert_only_the_own_user(&url, &["--interface", &source]);
    }
}

/// The flag opens the door to other machines, not to the other users of this one.
#[test]
fn another_user_is_refused_at_a_public_address_too() {
    for bind in ["0.0.0.0:0", "[::]:0"] {
        let server =
            Options::new(Transport::Http).args(&["--http", bind, "--insecure-no-auth"]).spawn();
        let port = server.address().port();
        for source in sources() {
            for target in sources() {
                assert_only_the_own_user(
                    &format!("http://{target}:{port}/mcp"),
                    &["--interface", &source],
                );
            }
        }
        if bind.starts_with('[') {
            assert_only_the_own_user(&format!("http://[::1]:{port}/mcp"), &[]);
        }
    }
}

/// A network namespace with one cable to ours: the nearest thing to another machine.
struct OtherMachine {
    holder: Child,
    address: IpAddr,
}

impl OtherMachine {
    /// None where this user may not make one.
    fn new() -> Option<OtherMachine> {
        if !is_root() {
            println!("not root: there is no other machine to connect from");
            return None;
        }
        let holder = Command::new("unshare")
            .args(["--net", "sleep", "300"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let pid = holder.id().to_string();
        let space = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
        eventually(DEADLINE, "it has a network of its own", || space(&pid) != space("self"));
        // A test network (RFC 5737), a part of it for each process so that tests do not meet.
        let part = (std::process::id() % 60 * 4).to_string();
        let [ours, theirs] =
            [1, 2].map(|at| format!("203.0.113.{}", part.parse::<u32>().unwrap() + at));
        let (near, far) = (format!("rf{pid}a"), format!("rf{pid}b"));
        let run = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let status = Command::new(words[0]).args(&words[1..]).status().unwrap();
            assert!(status.success(), "{line}");
        };
        run(&format!("ip link add {near} type veth peer name {far} netns {pid}"));
        run(&format!("ip addr add {ours}/30 dev {near}"));
        run(&format!("ip link set {near} up"));
        run(&format!("nsenter --net=/proc/{pid}/ns/net ip addr add {theirs}/30 dev {far}"));
        run(&format!("nsenter --net=/proc/{pid}/ns/net ip link set {far} up"));
        Some(OtherMachine { holder, address: ours.parse().unwrap() })
    }
}

impl Drop for OtherMachine {
    fn drop(&mut self) {
        // The cable goes with the namespace.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Addresses that come up after the start count as well: the cable is laid while the server runs.
#[test]
fn with_the_flag_another_machine_is_answered_and_a_new_address_of_ours_is_not() {
    let server =
        Options::new(Transport::Http).args(&["--http", "0.0.0.0:0", "--insecure-no-auth"]).spawn();
    let Some(other) = OtherMachine::new() else { return };
    let url = format!("http://{}:{}/mcp", other.address, server.address().port());
    let space = format!("--net=/proc/{}/ns/net", other.holder.id());
    assert_eq!(printed(&["nsenter", &space], &curl(&url, &[])), "200", "{}", server.log());
    assert_only_the_own_user(&url, &["--interface", &other.address.to_string()]);
    let bridged =
        Options::new(Transport::Http).args(&["--http", "[::]:0", "--insecure-no-auth"]).spawn();
    let url = format!("http://{}:{}/mcp", other.address, bridged.address().port());
    assert_eq!(printed(&["nsenter", &space], &curl(&url, &[])), "200", "{}", bridged.log());
}

/// Runs a command in the sandbox of another server; what it printed.
fn printed_in_a_sandbox(config: &str, arguments: serde_json::Value) -> (String, serde_json::Value) {
    let mut server: Server = Options::new(Transport::Stdio).config(config).spawn();
    let mut client = server.connect(SESSIONS);
    let result = client.call("shell.exec", arguments);
    let stdout =
        result["result"]["structuredContent"]["stdout"].as_str().unwrap_or_default().to_owned();
    (stdout, result)
}

#[test]
fn a_sandboxed_process_of_another_server_is_no_peer() {
    let server = Options::new(Transport::Http).spawn();
    let url = format!("http://{}/mcp", server.address());
    for profile in ["default", "contained"] {
        let config = format!("[sandbox]\nprofile = \"{profile}\"\nallow_network = true");
        for source in sources() {
            let command = curl(&url, &["--interface", &source]);
            let (status, result) = printed_in_a_sandbox(&config, json!({"argv": command}));
            assert_eq!(status, "403", "{profile} from {source}: {result}");
        }
    }
    // Its parent is gone, and it has a session of its own.
    let orphan =
        curl(&url, &[]).iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ");
    let script = "(setsid -f sh -c \"$1\" > status); until [ \"$(wc -c < status)\" = 3 ]; do sleep 0.05; done; cat status";
    let argv = json!(["sh", "-c", script, "sh", orphan]);
    let (status, result) =
        printed_in_a_sandbox("[sandbox]\nallow_network = true", json!({"argv": argv}));
    assert_eq!(status, "403", "{result}");
}

/// The proxy of a run dials from the server, which is in no sandbox.
#[test]
fn the_proxy_of_a_run_is_no_peer() {
    let server = Options::new(Transport::Http).spawn();
    let address = server.address();
    let config = format!("[sandbox]\nallow_addresses = [\"{address}\"]");
    // The header as curl makes it, since the proxy refuses one that names another host; and no way around the proxy.
    let command = curl(
        &format!("http://{address}/mcp"),
        &["-H", &format!("Host: {address}"), "--noproxy", ""],
    );
    let (status, result) = printed_in_a_sandbox(&config, json!({"argv": command}));
    assert_eq!(status, "403", "{result}");
}

/// Posts one message after it has hidden its descriptors from everybody but root, as `sshd` does.
const HIDDEN: &str = r"
import ctypes, socket, sys
host, port, body = sys.argv[1], int(sys.argv[2]), sys.argv[3]
peer = socket.create_connection((host, port))
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
peer.sendall(f'POST /mcp HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}'.encode())
print(peer.makefile().readline().split()[1], end='')
";

#[test]
fn a_process_that_hides_its_descriptors_is_told_apart_by_its_sandbox() {
    let server = Options::new(Transport::Http).spawn();
    let port = server.address().port().to_string();
    let command: Vec<String> =
        ["python3", "-I", "-c", HIDDEN, "127.0.0.1", &port, BODY].map(str::to_owned).into();
    // An ordinary user's server cannot tell it from other servers of that user, such as those of tests beside this one.
    let outside = printed(&[], &command);
    assert!(outside == "200" || outside == "403" && !is_root(), "{outside}");
    let (status, result) =
        printed_in_a_sandbox("[sandbox]\nallow_network = true", json!({"argv": command}));
    assert_eq!(status, "403", "{result}");
}

/// `ringfence tools --url` is our program, as a server with a proxy is, and yet a person's own client.
#[test]
fn our_own_command_line_is_a_peer_outside_of_sandboxes_alone() {
    let server = Options::new(Transport::Http).spawn();
    let url = format!("http://{}/mcp", server.address());
    let words = [visible_binary().to_str().unwrap(), "tools", "--url", &url];
    let words = words.map(str::to_owned);
    let listed = printed(&[], &words);
    assert!(listed.contains("file.read"), "{listed}");
    let script = "\"$@\" 2>&1; echo status $?";
    let argv = [&["sh", "-c", script, "sh"].map(str::to_owned)[..], &words].concat();
    let (said, result) =
        printed_in_a_sandbox("[sandbox]\nallow_network = true", json!({"argv": argv}));
    assert!(said.contains("403") && said.ends_with("status 77\n"), "{said} {result}");
}
