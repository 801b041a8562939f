"""Clients whose command line makes one call and ends, and bridges between two transports."""

import base64
import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
from pathlib import Path

import packages
from codex_run import wait_for
from steps import STEPS, spell

PATIENCE = 60
NO_SESSION = "Each call is a session of its own"
NO_NOTICE = "It disconnects without a notice, so the command runs until its time limit"


def start_program(words, place, **more):
    # Not in the workspace: while a command runs there, stand-ins take the names of configs that a client would read.
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            cwd=place.at, env=place.environment(**more), start_new_session=True)


def end_program(program, patience, *signals):
    """Waits for the end of a program, then sends it the signals, one after the other, and kills it. Returns what it printed.

    A terminal signals the whole group too: some clients run in a child of their launcher.
    """
    for number in (None, *signals, signal.SIGKILL):
        if number:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return program.communicate(timeout=patience)[0]
    return None


def interrupt_program(program, place):
    """Presses Ctrl-C, so to speak, once the command runs. Returns what the program printed."""
    with contextlib.suppress(TimeoutError):
        wait_for("the command", lambda: (place.workspace / "started").exists() or program.poll() is not None, PATIENCE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGINT)
    return end_program(program, 10)


class CommandClient:
    """A command line: `list_words` and `call_words` say how to list and call, `describe` reads what it printed."""

    transports = ["stdio", "http", "sse"]
    missing = {"background": NO_SESSION, "session": NO_SESSION, "progress": "It prints the result alone"}
    environment = {}

    def __init__(self, name, title):
        self.title, self.version = title, packages.version_of(packages.NPM[name][0])
        self.home = packages.install_npm(name)

    def lacks(self, transport):
        return self.missing | ({"cancel": NO_NOTICE} if transport == "http" else {})

    def prepare(self, place):
        pass

    def take_steps(self, place):
        self.prepare(place)
        program = start_program(self.list_words(place), place, **self.environment)
        listed = end_program(program, PATIENCE) or ""
        (place.at / "log").write_text(listed)
        if program.returncode:
            return []
        reports = [{"step": "connect"}, {"step": "list", "tools": self.read_list(listed)}]
        for step in STEPS:
            # Nothing follows a call that was cancelled: the client has ended with it.
            if step["step"] == "after":
                break
            program = start_program(self.call_words(place, step), place, **self.environment)
            if step.get("cancel"):
                reports.append({"step": step["step"], "text": interrupt_program(program, place)})
            else:
                output = end_program(program, PATIENCE) or ""
                reports.append({"step": step["step"]} | self.describe(place, step, output))
        return reports


class Mcporter(CommandClient):
    missing = CommandClient.missing | {
        "call": "It shows the JSON of `file.read` in place of its text, unless called with `--output text`",
    }

    def prepare(self, place):
        program, *words = place.command()
        entry = {"baseUrl": place.url} if place.url else {"command": program, "args": words}
        (place.at / "mcporter.json").write_text(json.dumps({"mcpServers": {"ringfence": entry}}))

    def words(self, place, *words):
        return [str(self.home / "node_modules/.bin/mcporter"), "--config", str(place.at / "mcporter.json"), *words]

    def list_words(self, place):
        return self.words(place, "list", "ringfence", "--json")

    def read_list(self, listed):
        return [tool["name"] for tool in json.loads(listed)["tools"]]

    def call_words(self, place, step):
        arguments = json.dumps(step["arguments"])
        images = ["--save-images", str(place.at / "images")] if step["step"] == "image" else []
        # It takes what stands between the first two dots for the tool.
        return self.words(place, "call", f"ringfence.{spell(step['tool'])}", "--args", arguments, *images)

    def describe(self, place, step, output):
        saved = [base64.b64encode(file.read_bytes()).decode() for file in (place.at / "images").glob("*")]
        return {"text": output, "image": saved[0] if step["step"] == "image" and saved else None}


class Inspector(CommandClient):
    environment = {"MCP_INSPECTOR_SECRET_STORE": "memory"}

    def words(self, place, *words):
        target = [place.url, "--transport", place.transport] if place.url else place.command()
        return [str(self.home / "node_modules/.bin/mcp-inspector"), "--cli", *target, "--format", "json", *words]

    def list_words(self, place):
        return self.words(place, "--method", "tools/list")

    def read_list(self, listed):
        return [tool["name"] for tool in self.read_json(listed)["tools"]]

    def call_words(self, place, step):
        pairs = [word for key, value in step["arguments"].items() for word in ("--tool-arg", f"{key}={value}")]
        return self.words(place, "--method", "tools/call", "--tool-name", step["tool"], *pairs)

    @staticmethod
    def read_json(output):
        """The result among other lines."""
        for line in output.splitlines():
            if line.startswith("{") and isinstance(value := json.loads(line), dict):
                return value.get("result", value)
        return json.loads(output[output.index("{"):])

    def describe(self, _place, _step, output):
        with contextlib.suppress(ValueError):
            content = self.read_json(output).get("content", [])
            images = [block["data"] for block in content if block["type"] == "image"]
            return {"text": output, "image": images[0] if images else None}
        return {"text": output}


def find_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class McpRemote:
    """The bridge from stdio to HTTP and SSE, below a TypeScript client; the transport is that of the server."""

    title, transports = "mcp-remote", ["http", "sse"]

    def __init__(self, read_reports, adapter):
        self.version = packages.version_of(packages.NPM["mcp-remote"][0])
        self.home = packages.install_npm("mcp-remote")
        self.read_reports, self.adapter = read_reports, adapter

    def lacks(self, _transport):
        return {}

    def take_steps(self, place):
        bridge = [str(self.home / "node_modules/.bin/mcp-remote"), place.url, "--transport", f"{place.transport}-only"]
        return self.read_reports(self.adapter, place, place.target() | {"transport": "stdio", "command": bridge})


class Supergateway:
    """The bridge from a server on stdio to HTTP and SSE, below a TypeScript client; the transport is that of the client."""

    title, transports = "supergateway", ["http", "sse"]

    def __init__(self, read_reports, adapter):
        self.version = packages.version_of(packages.NPM["supergateway"][0])
        self.home = packages.install_npm("supergateway")
        self.read_reports, self.adapter = read_reports, adapter

    def lacks(self, _transport):
        return {}

    def take_steps(self, place):
        port = find_port()
        output = {"http": ["--outputTransport", "streamableHttp", "--stateful"], "sse": ["--outputTransport", "sse"]}[place.transport]
        words = [str(self.home / "node_modules/.bin/supergateway"), "--stdio", shlex.join(place.command()), "--port", str(port), *output]
        with open(place.at / "bridge.log", "w") as log:
            bridge = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=place.environment())
        try:
            wait_for("the bridge", lambda: "Listening on port" in Path(log.name).read_text())
            url = f"http://127.0.0.1:{port}/" + {"http": "mcp", "sse": "sse"}[place.transport]
            return self.read_reports(self.adapter, place, place.target() | {"url": url})
        finally:
            bridge.terminate()
            bridge.wait()
