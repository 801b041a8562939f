//! Servers and clients on the loopback, in one command: the fence has a loopback of its own, and it is up.

use super::{Work, work};

const HTTP: &str = r#"
import http.server, socket, sys, threading, urllib.request

class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_): pass

class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET

server = Server((sys.argv[1], 0), Quiet)
threading.Thread(target=server.serve_forever, daemon=True).start()
host = f"[{sys.argv[1]}]" if ":" in sys.argv[1] else sys.argv[1]
url = f"http://{host}:{server.server_port}/page"
print(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=10).read().decode())
if len(sys.argv) > 2:
    import subprocess
    print(subprocess.run(["curl", "--noproxy", "*", "-sS", "-m", "10", url, "-w", "%{http_code}"]).returncode)
server.shutdown()
"#;

const DATAGRAMS: &str = r#"
import socket
for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
    with socket.socket(family, socket.SOCK_DGRAM) as one, socket.socket(family, socket.SOCK_DGRAM) as two:
        one.bind((host, 0)); two.bind((host, 0)); two.settimeout(10)
        one.sendto(b"a datagram", two.getsockname())
        print(host, two.recv(100))
print(socket.gethostbyname("localhost"), bool(socket.gethostname()))
"#;

const UNIX: &str = r#"
import os, socket, tempfile
with tempfile.TemporaryDirectory() as folder:
    for place in ("socket", os.path.join(folder, "socket")):
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.bind(place); server.listen()
        if os.fork() == 0:
            client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            client.connect(place)
            with open("sent") as file:
                socket.send_fds(client, [b"with a file"], [file.fileno()])
            os._exit(0)
        peer, _ = server.accept()
        text, files, _, _ = socket.recv_fds(peer, 100, 1)
        print(text, os.read(files[0], 100)); os.wait(); os.unlink(place)
a, b = socket.socketpair()
a.sendall(b"a pair"); a.shutdown(socket.SHUT_WR)
print(b.recv(100), b.recv(100), b.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE))
"#;

fn python(program: &'static str, words: &str) -> Work {
    Work::script(&format!("PYTHONDONTWRITEBYTECODE=1 python3 program.py {words}"))
        .file("program.py", program)
        .needs(&["python3"])
}

work! {
    http_on_localhost: python(HTTP, "127.0.0.1").file("page", "a page").says("a page");
    http_on_localhost_by_curl: python(HTTP, "127.0.0.1 curl").file("page", "a page").needs(&["curl"]).says("a page200");
    http_on_ipv6: python(HTTP, "::1 curl").file("page", "a page").needs(&["curl"]).says("a page200");
    datagrams_on_localhost: python(DATAGRAMS, "").says("::1 b'a datagram'");
    unix_sockets: python(UNIX, "").file("sent", "its text").says("b'with a file' b'its text'").says("b'a pair' b''");

    bash_and_its_own_sockets: Work::script("
        coproc python3 -c 'import socket
server = socket.create_server((\"127.0.0.1\", 0)); print(server.getsockname()[1], flush=True)
server.accept()[0].sendall(b\"from a socket\\n\")'
        read -r port <&\"${COPROC[0]}\"; cat <\"/dev/tcp/127.0.0.1/$port\"
    ").needs(&["python3"]).says("from a socket");
}
