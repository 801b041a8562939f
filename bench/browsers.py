"""Browsers behind MCP servers: ours and others, on the same page with the same browser."""

import base64
import os
import shutil
import struct
import subprocess
import sys
import time

import clients
import processes
from measure import OURS

# In the order in which Ringfence looks for them.
PROGRAMS = ["chromium-headless-shell", "headless_shell", "chrome-headless-shell", "chromium", "chromium-browser", "google-chrome"]
SIZE = (1280, 720)
FORMATS = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"RIFF": "webp"}

# Sends each reply in one piece over persistent connections, so that the browser is measured and not this server.
PAGE_SERVER = '''import http.server, os, sys

class Page(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self):
        found = self.path.startswith("/page")
        body = PAGE if found else b""
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

PAGE = open(sys.argv[1], "rb").read()
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
with open(sys.argv[2] + ".new", "w") as file:
    file.write(str(server.server_port))
os.rename(sys.argv[2] + ".new", sys.argv[2])
server.serve_forever()
'''


def make_page():
    """Returns a page of a few hundred elements, typical of an application. Its text contains the number of the visit."""
    links = "".join(f'<li><a href="/page?section={n}">Section {n}</a></li>' for n in range(20))
    fields = "".join(f'<label>Field {n} <input name="f{n}" value="value {n}"></label>' for n in range(10))
    cards = "".join(
        f'<div class="card" style="background:hsl({n * 30},70%,80%)"><h3>Card {n}</h3>'
        f"<p>Some words about the number {n}, which is one of twelve.</p><button>Choose {n}</button></div>"
        for n in range(12)
    )
    rows = "".join(f"<tr><td>{n}</td><td>Name {n}</td><td>{n * 37 % 101}.50</td><td>{'open' if n % 3 else 'closed'}</td></tr>" for n in range(40))
    style = (
        "body{font:14px sans-serif;margin:16px}ul{columns:4}.cards{display:grid;grid-template-columns:repeat(4,1fr);gap:8px}"
        ".card{padding:8px;border-radius:8px;box-shadow:0 1px 4px #888}td{border-bottom:1px solid #ccc;padding:4px 12px}"
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Bench</title><style>{style}</style></head><body>'
        f'<h1>Bench</h1><h2 id="visit">visit</h2><nav><ul>{links}</ul></nav><form>{fields}<button>Send</button></form>'
        f'<div class="cards">{cards}</div><table><thead><tr><th>No</th><th>Name</th><th>Price</th><th>State</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
        "<script>document.getElementById('visit').textContent = 'visit ' + location.search.slice(1)</script></body></html>\n"
    )


def find_browser(path):
    """Returns the browser that all servers use: the one that Ringfence would find."""
    return next((found for name in PROGRAMS if (found := shutil.which(name, path=path))), None)


def choose_flags(name, program, stage):
    """Returns the flags that make a peer use it, headless and with the same viewport; of several ways, the faster."""
    return {
        # Its navigation would return a snapshot too, which is a separate row here.
        "playwright": ["--headless", "--isolated", "--no-sandbox", "--executable-path", program, "--viewport-size", "1280x720",
                       "--snapshot-mode", "none", "--output-dir", str(stage / "playwright")],
        "chrome-devtools": ["--headless", "--isolated", "--no-usage-statistics", "--executablePath", program, "--viewport", "1280x720",
                            "--chromeArg=--no-sandbox"],
        "agent-browser": ["mcp"],
    }[name]  # fmt: skip


def environment(program):
    return {
        "AGENT_BROWSER_EXECUTABLE_PATH": program,
        "AGENT_BROWSER_ARGS": "--no-sandbox",
        "AGENT_BROWSER_IDLE_TIMEOUT_MS": "1800000",
    }


def name_format(key, format):
    return {key: format} if format else {}


# The tools of each: navigation, a picture in a given or in its default format, and a full snapshot of the page.
TOOLS = {
    OURS: {
        "navigate": lambda url: ("browser.navigate", {"url": url}),
        "screenshot": lambda format: ("browser.screenshot", name_format("format", format)),
        "snapshot": ("browser.snapshot", {"mode": "full", "max_bytes": 262_144}),
    },
    "playwright": {
        "navigate": lambda url: ("browser_navigate", {"url": url}),
        "screenshot": lambda format: ("browser_take_screenshot", {"scale": "css", **name_format("type", format)}),
        "snapshot": ("browser_snapshot", {}),
    },
    "chrome-devtools": {
        "navigate": lambda url: ("navigate_page", {"pageId": 1, "type": "url", "url": url}),
        "screenshot": lambda format: ("take_screenshot", {"pageId": 1, **name_format("format", format)}),
        "snapshot": ("take_snapshot", {"pageId": 1}),
    },
    "agent-browser": {
        "navigate": lambda url: ("agent_browser_open", {"url": url}),
        "screenshot": lambda format: ("agent_browser_screenshot", name_format("format", format)),
        "snapshot": ("agent_browser_snapshot", {}),
        # Its browser runs in a daemon that outlives the server.
        "end": ("agent_browser_close", {}),
    },
}


def await_port(file):
    until = time.monotonic() + 30
    while not file.exists():
        if time.monotonic() > until:
            raise RuntimeError("the page server did not start")
        time.sleep(0.01)
    return int(file.read_text())


class PageHost:
    """Serves the page for browsers on the host's loopback."""

    def __init__(self, workspace, python):
        (workspace / "page.html").write_text(make_page())
        (workspace / "page_server.py").write_text(PAGE_SERVER)
        file = workspace / "port-host"
        file.unlink(missing_ok=True)
        words = [python, str(workspace / "page_server.py"), str(workspace / "page.html"), str(file)]
        self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        self.port = await_port(file)

    def close(self):
        self.process.kill()
        self.process.wait()


class BrowserServer:
    """One server and its browser. Ringfence sees only its session's own loopback, so the same page is served there."""

    def __init__(self, name, argv, env, workspace, host):
        self.name, self.tools, self.visits = name, TOOLS[name], 0
        self.mark = f"RINGFENCE_BENCH={name}-{os.getpid()}-{time.monotonic_ns()}"
        self.client = clients.Client(argv, {**env, **dict([self.mark.split("=")])})
        try:
            self.client.initialize()
            self.port = host.port if name != OURS else self.serve(workspace)
        except BaseException:
            self.client.close()
            raise

    def serve(self, workspace):
        file = workspace / "port-session"
        file.unlink(missing_ok=True)
        self.client.call("shell.exec", {"command": "exec python3 page_server.py page.html port-session", "yield_ms": 0, "timeout_ms": 3_600_000})
        return await_port(file)

    def navigate(self):
        self.visits += 1
        return self.client.call(*self.tools["navigate"](f"http://127.0.0.1:{self.port}/page?n={self.visits}"))[0]

    def screenshot(self, format=None):
        taken, result = self.client.call(*self.tools["screenshot"](format))
        pictures = [block for block in result["content"] if block["type"] == "image"]
        if len(pictures) != 1:
            raise RuntimeError(f"expected one picture in the answer, got {[block['type'] for block in result['content']]}")
        data = base64.b64decode(pictures[0]["data"])
        kind = next((kind for start, kind in FORMATS.items() if data.startswith(start)), "?")
        if format and kind != format:
            raise RuntimeError(f"the picture is {kind}, not {format}")
        if (size := read_dimensions(data, kind)) not in (None, SIZE):
            raise RuntimeError(f"the picture has the size {size}, not {SIZE}")
        return taken

    def snapshot(self):
        """Returns the milliseconds and the size of the answer, which has to contain what the page says on this visit."""
        taken, result = self.client.call(*self.tools["snapshot"])
        text = clients.join_texts(result)
        for words in (f"visit n={self.visits}", "Section 19", "Card 11", "Name 39"):
            if words not in text:
                raise RuntimeError(f"{words!r} is not in the snapshot: {text[:200]}")
        return taken, self.client.last_size

    def family(self):
        """Returns all processes of the server, without the page server, which belongs to the bench."""
        found = processes.find_family(self.client.process.pid, self.mark)
        return {pid for pid in found if not any(word.endswith(b"page_server.py") for word in processes.read_command_line(pid))}

    def close(self):
        try:
            if "end" in self.tools:
                self.client.call(*self.tools["end"])
        except (RuntimeError, OSError) as error:
            print(f"note: the browser of {self.name} may be left running ({error})", file=sys.stderr)
        finally:
            self.client.close()


def read_dimensions(data, kind):
    if kind == "png":
        return struct.unpack(">II", data[16:24])
    if kind == "jpeg":
        at = 2
        while at + 9 < len(data):
            marker, length = struct.unpack(">HH", data[at : at + 4])
            if 0xFFC0 <= marker <= 0xFFC2:
                height, width = struct.unpack(">HH", data[at + 5 : at + 9])
                return width, height
            at += 2 + length
    return None
