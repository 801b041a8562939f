"""One ringfence server for one client over one transport, with a home, a root and a workspace of its own."""

import contextlib
import json
import os
import re
import subprocess
from pathlib import Path

import steps
from codex_run import end_daemons, wait_for

# Requests of a client beyond the loopback end at a closed port.
CLOSED = "http://127.0.0.1:9"
TRANSPORTS = ["stdio", "http", "sse"]


class Place:
    """The directories below `at`, and the server: started here over HTTP, by the client over stdio."""

    def __init__(self, at, binary, transport):
        self.at, self.binary, self.transport = Path(at), str(binary), transport
        self.workspace, self.root, self.home = (self.at / name for name in ("workspace", "root", "home"))
        self.url = None
        self.stack = contextlib.ExitStack()

    def __enter__(self):
        steps.prepare(self.workspace)
        self.home.mkdir()
        (self.at / "house.rules").write_text(steps.RULES)
        if self.transport != "stdio":
            self.start_server()
        return self

    def __exit__(self, *_):
        self.stack.close()
        end_daemons(self.home)

    def command(self):
        return [self.binary, "serve", "--root", str(self.root), "--workspace", str(self.workspace),
                "--rules", str(self.at / "house.rules")]

    def environment(self, **more):
        return {"PATH": os.environ["PATH"], "HOME": str(self.home), "LANG": "C.UTF-8", "HTTP_PROXY": CLOSED, "HTTPS_PROXY": CLOSED,
                "NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"} | more

    def start_server(self):
        log = self.at / "server.log"
        with open(log, "w") as file:
            server = subprocess.Popen([*self.command(), "--http", "127.0.0.1:0"], stdin=subprocess.DEVNULL, stderr=file,
                                      env=self.environment())
        self.stack.callback(server.wait)
        self.stack.callback(server.terminate)

        def address():
            if server.poll() is not None:
                raise SystemExit(f"the server ended:\n{log.read_text()}")
            return re.search(r"listening on (http://\S+/mcp)", log.read_text())

        self.url = wait_for("the address of the server", address)[1] + ("/sse" if self.transport == "sse" else "")

    def target(self):
        """How an adapter reaches the server."""
        return {"transport": self.transport, "command": self.command(), "url": self.url, "workspace": str(self.workspace),
                "steps": steps.STEPS}

    def records(self):
        """The audit log. The server writes it while a client still runs, so the last line may be unfinished."""
        output = subprocess.run([self.binary, "audit", "--json", "--root", str(self.root)], capture_output=True, text=True)
        return [json.loads(line) for line in output.stdout.splitlines() if line.startswith("{")]

    def wait_for_calls(self, patience=15):
        """Waits until every call that began has ended: a client that was stopped does not wait for its server."""
        def ended():
            calls = steps.group_calls(self.records())
            return all(any(record["event"] == "call.stop" for record in call) for call in calls)

        with contextlib.suppress(TimeoutError):
            wait_for("the end of all calls", ended, patience)
