#!/usr/bin/env python3
"""Runs one real Codex with a ringfence server as its MCP server and a scripted model (codex_model.py).

    codex_run.py DIRECTORY BINARY CODEX [--model M] [--transport http] [--config TOML] [--rules RULES] [--tools SET]
                 [-- OPTION...] <PLAN

runs one `codex exec` with these options. Home, root and workspace are made below DIRECTORY, where everything is found
afterwards: `shown` is what the model saw, `audit` what was recorded, `log` the output of Codex. The exit code is that
of Codex. As a module it is what codex.sh and smoke.py share. Nothing leaves the machine.
"""

import argparse
import base64
import contextlib
import hashlib
import hmac
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import codex_model

# The same machine may build something at the same time.
PATIENCE = 120

CODEX_CONFIG = """
model = "{model}"
model_provider = "script"
check_for_update_on_startup = false

[model_providers.script]
name = "script"
base_url = "http://127.0.0.1:{port}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0

[analytics]
enabled = false

[projects.{workspace}]
trust_level = "trusted"

[mcp_servers.ringfence]
{reached}
default_tools_approval_mode = "approve"
required = true
"""
# Codex 0.117 to 0.12x asks before unannotated and writing tools and knows no default: each tool has to be named.
TOOL_CONFIG = """
[mcp_servers.ringfence.tools."{tool}"]
approval_mode = "approve"
"""
TOOLS = "browser.navigate browser.screenshot code.exec file.replace file.write shell.exec"


def wait_for(what, condition, patience=PATIENCE):
    """Polls until the condition returns something true, and returns that."""
    deadline = time.monotonic() + patience
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {patience} s")
        time.sleep(0.05)
    return value


def make_token(secret, **claims):
    """A JWT, signed with HS256."""
    def encode(data):
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    header = encode(json.dumps({"alg": "HS256", "typ": "JWT"}).encode())
    body = header + b"." + encode(json.dumps(claims).encode())
    return (body + b"." + encode(hmac.digest(secret.encode(), body, hashlib.sha256))).decode()


def end_daemons(home):
    """Ends what a client has left running. The TUI of a recent Codex starts a daemon from its home and does not stop it."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if entry.read_bytes().startswith(bytes(home)):
                os.kill(int(entry.parent.name), signal.SIGTERM)


class Conversation:
    """A server, a model and the home of a Codex, below one directory. Use it as a context manager."""

    def __init__(self, directory, binary, codex, plan, **settings):
        self.at = Path(directory)
        self.binary, self.codex, self.plan = str(binary), str(codex), plan
        self.workspace, self.root, self.home = (self.at / name for name in ("workspace", "root", "home"))
        self.transport = settings.get("transport", "stdio")
        self.model_name = settings.get("model", "scripted")
        self.server_options = ["--tools", settings.get("tools", "core")]
        self.config, self.rules = settings.get("config", ""), settings.get("rules", "")
        # The secret of the server, and what Codex presents.
        self.secret, self.token = settings.get("secret"), settings.get("token")
        self.asks_by_tool = (0, 117) <= settings.get("version", (1, 0)) < (0, 130)
        self.stack = contextlib.ExitStack()

    def __enter__(self):
        for directory in (self.home / ".codex", self.root, self.workspace):
            directory.mkdir(parents=True, exist_ok=True)
        with self.stack:
            self.model = codex_model.Model(self.plan, self.at / "requests")
            self.stack.callback(self.model.server_close)
            threading.Thread(target=self.model.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
            self.stack.callback(self.model.shutdown)
            reached = self.start_server() if self.transport == "http" else self.server_entry()
            config = CODEX_CONFIG.format(model=self.model_name, port=self.model.server_port, reached=reached,
                                         workspace=json.dumps(str(self.workspace)))
            if self.asks_by_tool:
                config += "".join(TOOL_CONFIG.format(tool=tool) for tool in TOOLS.split())
            (self.home / ".codex/config.toml").write_text(config)
            # Nothing has failed: all of it ends with the conversation.
            self.stack = self.stack.pop_all()
        return self

    def __exit__(self, *_):
        self.stack.close()
        end_daemons(self.home)

    def environment(self, **more):
        return {"PATH": os.environ["PATH"], "HOME": str(self.home)} | more

    def server_command(self):
        (self.at / "ringfence.toml").write_text(self.config + "\n")
        (self.at / "house.rules").write_text(self.rules + "\n")
        paths = {"--root": self.root, "--workspace": self.workspace, "--config": self.at / "ringfence.toml",
                 "--rules": self.at / "house.rules"}
        return [self.binary, "serve", *(str(word) for pair in paths.items() for word in pair), *self.server_options]

    def server_entry(self):
        program, *words = self.server_command()
        return f"command = {json.dumps(program)}\nargs = {json.dumps(words)}"

    def start_server(self):
        """Starts a server on a free port, and returns the entry with which Codex finds it."""
        environment = self.environment()
        if self.secret:
            environment |= {"MCP_AUTH_ENABLED": "true", "MCP_AUTH_JWT_SECRET": self.secret, "MCP_AUTH_AUDIENCE": "ringfence"}
        log = self.at / "server.log"
        with open(log, "w") as file:
            server = subprocess.Popen([*self.server_command(), "--http", "127.0.0.1:0"], stderr=file, env=environment)
        self.stack.callback(server.wait)
        self.stack.callback(server.terminate)

        def address():
            if server.poll() is not None:
                raise SystemExit(f"the server ended:\n{log.read_text()}")
            return re.search(r"listening on (http://\S+/mcp)", log.read_text())

        entry = f"url = {json.dumps(wait_for('the address of the server', address)[1])}"
        return entry + ('\nbearer_token_env_var = "RINGFENCE_TOKEN"' if self.token else "")

    def codex_environment(self):
        # Requests of Codex beyond the loopback end at a closed port.
        closed = "http://127.0.0.1:9"
        token = {"RINGFENCE_TOKEN": self.token} if self.token else {}
        return self.environment(CODEX_HOME=str(self.home / ".codex"), HTTP_PROXY=closed, HTTPS_PROXY=closed,
                                NO_PROXY="127.0.0.1", **token)

    def exec(self, *options, patience=PATIENCE):
        """Runs `codex exec` to its end, and returns its exit code, or None after too long a time."""
        command = [self.codex, "exec", "--skip-git-repo-check", *options, "Follow the plan."]
        with open(self.at / "log", "w") as log, open(self.at / "events", "w") as events:
            # With --json the events alone are on standard output.
            output = events if "--json" in options else log
            try:
                return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=log, cwd=self.workspace,
                                      env=self.codex_environment(), timeout=patience).returncode
            except subprocess.TimeoutExpired:
                return None

    def audit(self, *words):
        output = subprocess.run([self.binary, "audit", *words, "--root", str(self.root)], capture_output=True, text=True)
        return output.stdout + output.stderr

    def records(self):
        """The audit log, as a list of records."""
        return [json.loads(line) for line in self.audit("--json").splitlines() if line.startswith("{")]

    def wait_for_end(self):
        """Waits until the server has recorded its end: Codex stops its servers and does not wait for them."""
        with contextlib.suppress(TimeoutError):
            wait_for("the end of the server", lambda: "server.stop" in self.audit(), 5)


def main():
    words = argparse.ArgumentParser()
    for name in ("directory", "binary", "codex"):
        words.add_argument(name)
    for name in ("model", "transport", "config", "rules", "tools"):
        words.add_argument(f"--{name}", default=argparse.SUPPRESS)
    words.add_argument("options", nargs="*")
    settings = vars(words.parse_args())
    place = [settings.pop(name) for name in ("directory", "binary", "codex")]
    options = settings.pop("options")
    with Conversation(*place, json.load(sys.stdin), **settings) as conversation:
        code = conversation.exec(*options, patience=60)
    conversation.wait_for_end()
    (conversation.at / "audit").write_text(conversation.audit())
    with open(conversation.at / "shown", "w") as file, contextlib.redirect_stdout(file):
        codex_model.shown(conversation.at / "requests")
    sys.exit(124 if code is None else code)


if __name__ == "__main__":
    main()
