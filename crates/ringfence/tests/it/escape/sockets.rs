//! Unix sockets: those that the sandbox made itself work, those of the host do not, whatever their name.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};

use super::{Cx, Effect, Run, everywhere, held};

/// A listener of the host's at this path, open to everybody.
fn ear(path: &str) -> UnixListener {
    let listener = UnixListener::bind(path).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    listener
}

fn heard_nothing(listener: &UnixListener) -> Effect {
    listener.set_nonblocking(true).unwrap();
    held(listener.accept().is_err(), "the listener outside was reached")
}

/// Paths of sockets are short; those of build directories are not always.
fn short(cx: &Cx) -> (std::path::PathBuf, String) {
    let folder = std::path::PathBuf::from(format!("/var/tmp/{}", cx.secret()));
    (folder.clone(), folder.join("ear").to_str().unwrap().to_owned())
}

const CALL: &str = "tried('connect', lambda: socket.socket(1).connect(sys.argv[1]))";

#[test]
fn a_socket_outside_is_not_reached() {
    everywhere().holds(|cx| {
        let path = cx.path("outside/ear");
        let listener = ear(&path);
        cx.python(
            "os.chdir(os.path.dirname(sys.argv[1])); tried('connect', lambda: socket.socket(1).connect('ear'))",
            &[&path],
        );
        heard_nothing(&listener)
    });
}

#[test]
fn a_socket_in_a_shared_directory_is_not_reached() {
    everywhere().holds(|cx| {
        let (folder, path) = short(cx);
        std::fs::create_dir(&folder).unwrap();
        let listener = ear(&path);
        let run: Run = cx.python(CALL, &[&path]);
        let _ = std::fs::remove_dir_all(&folder);
        run.refused()?;
        heard_nothing(&listener)
    });
}

/// Lying in the workspace does not make it the sandbox's own.
#[test]
fn a_socket_of_the_host_in_the_workspace_is_not_reached() {
    everywhere().holds(|cx| {
        let listener = ear(&cx.workspace("ear"));
        cx.python(CALL, &["ear"]);
        heard_nothing(&listener)
    });
}

#[test]
fn a_socket_outside_is_not_reached_by_another_name() {
    everywhere().holds(|cx| {
        let (listener, second) = (ear(&cx.path("outside/ear")), ear(&cx.workspace("ear")));
        let script = r"
os.symlink('../outside/ear', 'link')
tried('hard link', lambda: os.link('ear', 'hard'))
tried('moved', lambda: os.rename('ear', 'moved'))
for name in ['link', 'hard', 'moved', '../outside/ear', '/proc/self/cwd/link', '/proc/self/root/../proc/self/cwd/ear', './ear']:
    tried(name, lambda: socket.socket(1).connect(name))
";
        cx.python(script, &[]);
        heard_nothing(&listener)?;
        heard_nothing(&second)
    });
}

#[test]
fn a_socket_outside_is_not_reached_with_messages_in_order() {
    everywhere().holds(|cx| {
        let path = cx.workspace("ear");
        let script = r"
ear = socket.socket(1, 5)
ear.bind(sys.argv[1])
ear.listen()
ear.setblocking(False)
say('ready')
sys.stdin.readline()
tried('accept', ear.accept)
";
        let mut listener = cx.bystander(script, &[&cx.path("workspace/ear")]);
        listener.wait_for("ready");
        cx.python("tried('connect', lambda: socket.socket(1, 5).connect('ear'))", &[&path]);
        listener.tell("look");
        listener.end().refused()
    });
}

#[test]
fn an_abstract_socket_outside_is_not_reached() {
    everywhere().holds(|cx| {
        let name = cx.secret();
        let listener =
            UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        cx.python(
            r"tried('connect', lambda: socket.socket(1).connect('\0' + sys.argv[1]))",
            &[&name],
        );
        heard_nothing(&listener)
    });
}

#[test]
fn no_datagram_reaches_a_socket_outside() {
    everywhere().holds(|cx| {
        let path = cx.workspace("ear");
        let listener = UnixDatagram::bind(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
        let script = r"
tried('datagram', lambda: socket.socket(1, 2).sendto(b'out', 'ear'))
tried('pair', lambda: socket.socketpair(1, 2)[0].sendto(b'out', 'ear'))
tried('raw', lambda: socket.socket(1, 3).sendto(b'out', 'ear'))
";
        cx.python(script, &[]);
        listener.set_nonblocking(true).unwrap();
        held(listener.recv(&mut [0; 10]).is_err(), "a datagram got out")
    });
}

/// The flags that may stand beside the type must not hide it.
#[test]
fn no_datagram_socket_with_flags_beside_its_type() {
    let script = r"
for flags in [0, 0o4000, 0o2000000, 0o2004000]:
    for protocol in [0, 1]:
        tried('socket', lambda: socket.socket(1, 2 | flags, protocol))
        tried('pair', lambda: socket.socketpair(1, 2 | flags, protocol))
";
    everywhere().holds(|cx| cx.python(script, &[]).refused());
}

/// The agent of a person's keys, named by the environment as usual.
#[test]
fn the_agent_of_ssh_is_not_reached() {
    everywhere().holds(|cx| {
        let path = cx.path("outside/agent");
        let listener = ear(&path);
        let script =
            "os.chdir(os.path.dirname(sys.argv[1])); tried('agent', lambda: socket.socket(1).connect('agent'))";
        let run = cx
            .fence()
            .env("SSH_AUTH_SOCK", &path)
            .python(&format!("{script}\nsay('name', os.environ.get('SSH_AUTH_SOCK'))"), &[&path]);
        held(run.word("name") == "None", "its name is in the environment")?;
        heard_nothing(&listener)
    });
}

#[test]
fn sockets_of_the_sandbox_itself_work() {
    everywhere().never_bare().holds(|cx| {
        let script = r"
for kind in [1, 5]:
    ear = socket.socket(1, kind)
    ear.bind(f'own{kind}')
    ear.listen()
    one = socket.socket(1, kind)
    one.connect(f'own{kind}')
    two = ear.accept()[0]
    one.sendall(b'hello')
    say(f'heard{kind}', two.recv(10))
one, two = socket.socketpair()
one.sendall(b'pair')
say('pair', two.recv(10))
";
        let run = cx.python(script, &[]);
        held(run.word("heard1") == "b'hello'" && run.word("heard5") == "b'hello'", "they do not")?;
        held(run.word("pair") == "b'pair'", "a pair does not")
    });
}

#[test]
fn a_refused_connection_is_in_the_report() {
    everywhere().never_bare().holds(|cx| {
        let (path, report) = (cx.workspace("ear"), cx.path("report.json"));
        let _listener = ear(&path);
        cx.fence().args(&["--report", &report]).python(CALL, &["ear"]);
        let report: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
        let denials = report["denials"].as_array().cloned().unwrap_or_default();
        let found = denials.iter().any(|denial| {
            denial["kind"] == "connect"
                && denial["name"].as_str().is_some_and(|name| name.ends_with("ear"))
        });
        held(found, format!("it is not: {report}"))
    });
}
