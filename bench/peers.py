"""Shared by the benchmarks: a client for a server on a pipe, other servers from npm, memory, medians."""

import json
import os
import platform
import selectors
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PEERS = HERE / ".peers"
MODULES = PEERS / "node_modules"
RELEASE = HERE.parent / "target/release/ringfence"
NODE = shutil.which("node") or "node"
PATIENCE = 60.0


class Client:
    """Client of one server on a pipe. It accepts questions for the session, so that each is asked once."""

    def __init__(self, argv, env):
        self.began = time.perf_counter()
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0, env=env
        )
        self.buffer = b""
        self.last_id = 0
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.process.stdout, selectors.EVENT_READ)

    def send(self, message):
        self.process.stdin.write(json.dumps(message).encode() + b"\n")

    def line(self):
        while b"\n" not in self.buffer:
            if not self.selector.select(PATIENCE):
                raise RuntimeError(f"no answer within {PATIENCE:.0f} s")
            data = os.read(self.process.stdout.fileno(), 1 << 20)
            if not data:
                raise RuntimeError("the server ended")
            self.buffer += data
        line, self.buffer = self.buffer.split(b"\n", 1)
        return line

    def request(self, method, params):
        """Sends a request; returns the result and the size of its line."""
        self.last_id += 1
        self.send({"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params})
        while True:
            line = self.line()
            message = json.loads(line)
            if "method" in message and "id" in message:
                answer = {"action": "accept", "content": {}, "_meta": {"persist": "session"}}
                if message["method"] != "elicitation/create":
                    answer = {"roots": []} if message["method"] == "roots/list" else {}
                self.send({"jsonrpc": "2.0", "id": message["id"], "result": answer})
            elif message.get("id") == self.last_id:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"], len(line) + 1

    def initialize(self):
        result, _ = self.request(
            "initialize",
            {
                "protocolVersion": "2025-06-18",
                "capabilities": {"elicitation": {}},
                "clientInfo": {"name": "bench", "version": "1"},
            },
        )
        taken = time.perf_counter() - self.began
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return taken, result

    def call(self, tool, arguments):
        began = time.perf_counter()
        result, size = self.request("tools/call", {"name": tool, "arguments": arguments})
        taken = time.perf_counter() - began
        if result.get("isError"):
            raise RuntimeError(f"{tool}: {json.dumps(result)[:400]}")
        return taken, result, size

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.selector.close()


def tree(pid):
    """Returns a process and all its descendants that still exist."""
    found = [pid]
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += tree(int(child))
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found


def pss_mb(processes):
    """Returns the proportional memory: shared pages are divided among the processes that share them."""
    total = 0
    for process in processes:
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def percentile(values, part):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def spread(seconds):
    return {"p50": percentile(seconds, 0.5) * 1000, "p99": percentile(seconds, 0.99) * 1000}


# For each name: its package, and the file that node runs. For agent-browser it is the binary itself,
# without the npm wrapper script.
MACHINE = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
PACKAGES = {
    "agent-browser": ("agent-browser", f"bin/agent-browser-{sys.platform}-{MACHINE}"),
    "filesystem": ("@modelcontextprotocol/server-filesystem", "dist/index.js"),
    "playwright": ("@playwright/mcp", "cli.js"),
    "chrome-devtools": ("chrome-devtools-mcp", "build/src/bin/chrome-devtools-mcp.js"),
    "desktop-commander": ("@wonderwhy-er/desktop-commander", "dist/index.js"),
}


def server(name, *flags):
    package, file = PACKAGES[name]
    program = [str(MODULES / package / file)]
    return {"package": package, "argv": [*(program if name == "agent-browser" else [NODE, *program]), *flags]}


def install(peers):
    """Installs peers from npm by name, in their current version; installed ones are used unchanged."""
    PEERS.mkdir(exist_ok=True)
    if not (PEERS / "package.json").exists():
        (PEERS / "package.json").write_text('{"private": true}\n')
    for name, peer in list(peers.items()):
        if "package" not in peer or (MODULES / peer["package"]).exists():
            continue
        print(f"installing {peer['package']}", file=sys.stderr)
        npm = ["npm", "install", "--no-audit", "--no-fund", "--no-progress", "--loglevel", "error"]
        # By tag: npm would choose an old version for an old Node, and some of these do not need Node to run.
        npm.append(f"{peer['package']}@latest")
        try:
            subprocess.run(npm, cwd=PEERS, check=True, timeout=300, stdout=subprocess.DEVNULL)
        except (subprocess.SubprocessError, OSError) as error:
            print(f"left out: {name} cannot be installed ({error})", file=sys.stderr)
            del peers[name]


def version(server, hello):
    """Returns the version according to npm, because some servers announce a different one."""
    if "package" in server:
        return json.loads((MODULES / server["package"] / "package.json").read_text())["version"]
    return hello["serverInfo"]["version"]
