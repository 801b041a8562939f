//! The network of the host: whatever the family and the call, a listener outside hears nothing.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, UdpSocket};

use super::{Cx, Effect, by_default, everywhere, held};

/// A listener on the host's own loopback.
fn ear(ip: impl Into<IpAddr>) -> (TcpListener, String) {
    let listener = TcpListener::bind((ip.into(), 0)).unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    (listener, port)
}

fn heard_nothing(listener: &TcpListener) -> Effect {
    listener.set_nonblocking(true).unwrap();
    held(listener.accept().is_err(), "the listener outside was reached")
}

fn cannot_call(cx: &Cx, ip: impl Into<IpAddr>, script: &str) -> Effect {
    let (listener, port) = ear(ip);
    cx.python(script, &[&port]);
    heard_nothing(&listener)
}

fn cannot_send(cx: &Cx, ip: impl Into<IpAddr>, script: &str) -> Effect {
    let listener = UdpSocket::bind((ip.into(), 0)).unwrap();
    cx.python(script, &[&listener.local_addr().unwrap().port().to_string()]);
    listener.set_nonblocking(true).unwrap();
    held(listener.recv_from(&mut [0; 100]).is_err(), "a datagram got out")
}

#[test]
fn no_connection_gets_out() {
    let script = "tried('tcp', lambda: socket.create_connection(('127.0.0.1', int(sys.argv[1]))))";
    everywhere().holds(|cx| cannot_call(cx, Ipv4Addr::LOCALHOST, script));
}

#[test]
fn no_connection_gets_out_by_ip_version_six() {
    let script = "tried('tcp', lambda: socket.create_connection(('::1', int(sys.argv[1]))))";
    everywhere().holds(|cx| cannot_call(cx, Ipv6Addr::LOCALHOST, script));
}

#[test]
fn no_connection_gets_out_by_another_spelling_of_the_address() {
    let script = r"
for family, host in [(2, '0.0.0.0'), (2, '127.1.2.3'), (10, '::ffff:127.0.0.1'), (10, '::')]:
    tried(host, lambda: socket.socket(family).connect((host, int(sys.argv[1]))))
";
    everywhere().holds(|cx| cannot_call(cx, Ipv4Addr::UNSPECIFIED, script));
}

#[test]
fn no_connection_gets_out_without_a_handshake() {
    let script = r"
def send():
    socket.socket().sendto(b'out', 0x20000000, ('127.0.0.1', int(sys.argv[1])))
tried('fast open', send)
";
    everywhere().holds(|cx| cannot_call(cx, Ipv4Addr::LOCALHOST, script));
}

#[test]
fn no_connection_gets_out_over_many_paths() {
    let script =
        "tried('mptcp', lambda: socket.socket(2, 1, 262).connect(('127.0.0.1', int(sys.argv[1]))))";
    everywhere().holds(|cx| cannot_call(cx, Ipv4Addr::LOCALHOST, script));
}

#[test]
fn no_datagram_gets_out() {
    let script =
        "tried('udp', lambda: socket.socket(2, 2).sendto(b'out', ('127.0.0.1', int(sys.argv[1]))))";
    everywhere().holds(|cx| cannot_send(cx, Ipv4Addr::LOCALHOST, script));
}

#[test]
fn no_datagram_gets_out_by_ip_version_six() {
    let script =
        "tried('udp', lambda: socket.socket(10, 2).sendto(b'out', ('::1', int(sys.argv[1]))))";
    everywhere().holds(|cx| cannot_send(cx, Ipv6Addr::LOCALHOST, script));
}

/// Tools of the system and not only system calls: whoever asks, the answer is the same.
#[test]
fn no_connection_gets_out_by_the_shell() {
    everywhere().holds(|cx| {
        let (listener, port) = ear(Ipv4Addr::LOCALHOST);
        cx.bash(r#"echo out > "/dev/tcp/127.0.0.1/$1""#, &[&port]);
        heard_nothing(&listener)
    });
}

#[test]
fn a_listener_inside_is_not_reached_from_outside() {
    everywhere().holds(|cx| {
        let (listener, port) = ear(Ipv4Addr::LOCALHOST);
        drop(listener);
        let script = r"
ears = []
def listen(host):
    ears.append(socket.socket())
    ears[-1].bind((host, int(sys.argv[1])))
    ears[-1].listen()
for host in ['127.0.0.1', '0.0.0.0']:
    tried(host, lambda: listen(host))
say('listening')
sys.stdin.readline()
";
        let mut live = cx.fence().start_python(script, &[&port]);
        live.wait_for("listening");
        let reached = TcpStream::connect(("127.0.0.1", port.parse().unwrap())).is_ok();
        live.end();
        held(!reached, "it was reached")
    });
}

/// What the host listens on is nobody's business inside.
#[test]
fn the_connections_of_the_host_are_not_listed() {
    by_default().holds(|cx| {
        let (_listener, port) = ear(Ipv4Addr::LOCALHOST);
        let entry = format!(":{:04X} ", port.parse::<u16>().unwrap());
        cx.bash("cat /proc/net/tcp /proc/self/net/tcp /proc/1/net/tcp", &[])
            .knows_nothing_of(&entry)
    });
}

#[test]
fn the_interfaces_of_the_host_are_not_listed() {
    by_default().never_bare().holds(|cx| {
        let run = cx.python("say('names', [name for _, name in socket.if_nameindex()])", &[]);
        held(run.word("names") == "['lo']", run.word("names"))
    });
}

/// The files of the kernel about interfaces are those of the network that /sys was mounted in, which is the host's.
#[test]
fn the_interfaces_of_the_host_are_not_in_sys() {
    let script = r"
found = []
for way in ['/sys/class/net', '/sys/devices/virtual/net']:
    try:
        found += os.listdir(way)
    except OSError:
        pass
for top, folders, files in os.walk('/sys/devices'):
    if 'ifindex' in files:
        found.append(top)
say('found', found)
";
    by_default().holds(|cx| {
        let run = cx.python(script, &[]);
        held(run.word("found") == "[]", run.word("found"))
    });
}

/// Where the host's network was asked for, its interfaces are shown.
#[test]
fn the_interfaces_of_an_open_network_are_in_sys() {
    by_default().never_bare().holds(|cx| {
        let run = cx
            .fence()
            .args(&["--allow-network"])
            .python("say('found', os.listdir('/sys/class/net'))", &[]);
        held(run.word("found").contains("'lo'"), run.word("found"))
    });
}

/// The supervisor makes every connection, and may do more than the run: it must not lend that out.
#[test]
fn no_netlink_connection_is_made_with_the_rights_of_the_supervisor() {
    let script = r"
for number, groups in [(1, 0), (0, 1), (12345, 0), (1, 1)]:
    tried(f'{number}/{groups}', lambda: socket.socket(16, 3, 0).connect((number, groups)))
";
    by_default().bare_as_root().holds(|cx| {
        cx.python(script, &[]).refused_with("EPERM")?;
        cx.fence().args(&["--allow-network"]).python(script, &[]).refused_with("EPERM")
    });
}

/// To the kernel itself anybody may connect, and is called by a number of its own as without a supervisor.
#[test]
fn a_netlink_connection_to_the_kernel_works() {
    let script = r"
def names(connect):
    one = socket.socket(16, 3, 0)
    connect(one)
    one.send(struct.pack('=IHHII', 20, 18, 0x301, 1, 0) + bytes(4))
    kind = struct.unpack_from('=H', one.recv(65536), 4)[0]
    return kind, one
def connected(one):
    one.connect((0, 0))
kind, first = names(connected)
say('kind', kind)
say('number', first.getsockname()[0] == os.getpid())
second = names(connected)[1]
say('second', second.getsockname()[0] not in [0, os.getpid()])
third = socket.socket(16, 3, 0)
third.bind((0, 0))
before = third.getsockname()
third.connect((0, 0))
say('third', third.getsockname() == before)
";
    by_default().never_bare().holds(|cx| {
        let run = cx.python(script, &[]);
        held(run.word("kind") == "16", "the kernel does not answer")?;
        held(
            [run.word("number"), run.word("second"), run.word("third")] == ["True"; 3],
            run.stdout.clone(),
        )
    });
}

#[test]
fn no_socket_to_the_hypervisor() {
    everywhere().holds(|cx| {
        cx.python("tried('vsock', lambda: socket.socket(40, 1)); tried('datagrams', lambda: socket.socket(40, 2))", &[])
            .refused()
    });
}

#[test]
fn no_socket_for_raw_packets() {
    let script = r"
tried('packet', lambda: socket.socket(17, 3, 0x0300))
tried('cooked', lambda: socket.socket(17, 2, 0x0300))
tried('raw', lambda: socket.socket(2, 3, 255))
tried('icmp', lambda: socket.socket(2, 3, 1))
tried('raw six', lambda: socket.socket(10, 3, 58))
";
    everywhere().bare_as_root().holds(|cx| cx.python(script, &[]).refused());
}

/// TCP and UDP are what there is. The others load parts of the kernel that nothing in here needs.
#[test]
fn no_socket_of_a_rare_protocol() {
    let script = r"
for family in [2, 10]:
    for kind, protocol in [(1, 262), (1, 132), (2, 136), (2, 33), (5, 132), (6, 33), (3, 255), (10, 0x0300)]:
        tried(f'{family}/{kind}/{protocol}', lambda: socket.socket(family, kind, protocol))
";
    everywhere().holds(|cx| cx.python(script, &[]).refused());
}

/// Programs that try Multipath TCP first, as Go does for whatever listens, take this error for a kernel without it.
#[test]
fn a_program_that_tries_many_paths_falls_back_to_tcp() {
    let script = r"
def listen(protocol):
    ear = socket.socket(2, 1, protocol)
    ear.bind(('127.0.0.1', 0))
    ear.listen()
    return ear
ear = tried('mptcp', lambda: listen(262)) or tried('tcp', lambda: listen(6))
one = socket.create_connection(ear.getsockname())
two = ear.accept()[0]
one.sendall(b'hello')
say('heard', two.recv(10))
";
    by_default().never_bare().holds(|cx| {
        let run = cx.python(script, &[]);
        held(run.stdout.contains("tried mptcp EPROTONOSUPPORT\n"), run.stdout.clone())?;
        held(run.word("heard") == "b'hello'", "TCP does not work")
    });
}

/// A list of what is allowed and not of what is not: families that nobody thinks of stay shut.
#[test]
fn no_socket_of_a_rare_family() {
    let script = r"
for family in set(range(0, 64)) - {1, 2, 10, 16}:
    for kind in [1, 2, 3, 5]:
        tried(f'{family}/{kind}', lambda: socket.socket(family, kind))
        tried(f'pair {family}/{kind}', lambda: socket.socketpair(family, kind))
";
    everywhere().holds(|cx| cx.python(script, &[]).refused());
}

#[test]
fn no_netlink_but_that_of_the_own_network() {
    let script = r"
for protocol in range(1, 32):
    for kind in [2, 3]:
        tried(f'netlink {protocol}', lambda: socket.socket(16, kind, protocol))
";
    everywhere().holds(|cx| cx.python(script, &[]).refused());
}

#[test]
fn no_network_device_is_opened() {
    let script = "for name in ['net/tun', 'vhost-net', 'vsock', 'vhost-vsock', 'kvm', 'ppp']: tried(name, lambda: os.open('/dev/' + name, os.O_RDWR))";
    everywhere().bare_as_root().holds(|cx| cx.python(script, &[]).refused());
}

/// One domain that is allowed opens a proxy, and neither the host's loopback nor a way around the proxy.
#[test]
fn an_allowed_domain_opens_no_other_way() {
    by_default().never_bare().holds(|cx| {
        let (listener, port) = ear(Ipv4Addr::LOCALHOST);
        let script =
            "tried('tcp', lambda: socket.create_connection(('127.0.0.1', int(sys.argv[1]))))";
        cx.fence().args(&["--allow-domain", "example.org"]).python(script, &[&port]);
        heard_nothing(&listener)
    });
}

#[test]
fn a_proxy_leads_to_no_private_address() {
    by_default().never_bare().holds(|cx| {
        let (listener, port) = ear(Ipv4Addr::UNSPECIFIED);
        let fence =
            cx.fence().args(&["--allow-domain", "example.org", "--allow-domain", "localhost"]);
        let run = fence.python(include_str!("probes/proxy.py"), &[&port]);
        assert!(run.word("proxies") != "0", "[{}] there is no proxy to try: {run:?}", cx.mode);
        heard_nothing(&listener)
    });
}

/// An allowed address is one address with one port.
#[test]
fn an_allowed_address_opens_no_second_port() {
    by_default().never_bare().holds(|cx| {
        let ((_allowed, one), (listener, other)) =
            (ear(Ipv4Addr::LOCALHOST), ear(Ipv4Addr::LOCALHOST));
        let fence = cx.fence().args(&["--allow-address", &format!("127.0.0.1:{one}")]);
        fence.python(include_str!("probes/proxy.py"), &[&other]);
        heard_nothing(&listener)
    });
}

#[test]
fn the_own_loopback_works() {
    by_default().never_bare().holds(|cx| {
        let script = r"
ear = socket.socket()
ear.bind(('127.0.0.1', 0))
ear.listen()
one = socket.create_connection(ear.getsockname())
two = ear.accept()[0]
one.sendall(b'hello')
say('heard', two.recv(10))
";
        let run = cx.python(script, &[]);
        held(run.word("heard") == "b'hello'", "nothing was heard")
    });
}

/// A connection that the caller had open is the caller's.
#[test]
fn an_inherited_connection_is_closed() {
    everywhere().holds(|cx| {
        let (listener, port) = ear(Ipv4Addr::LOCALHOST);
        let script = "for number in range(3, 1024): os.path.exists(f'/proc/self/fd/{number}') and tried(str(number), lambda: os.write(number, b'out'))";
        cx.fence().before(&format!("exec 9<>/dev/tcp/127.0.0.1/{port}")).python(script, &[]);
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.write_all(b"x");
        let mut heard = String::new();
        let _ = stream.read_to_string(&mut heard);
        held(heard.is_empty(), format!("{heard:?} got out"))
    });
}
