#!/usr/bin/env python3
"""Prints the functions of a binary that it uses most often first, for the linker to place next to each other.

    packaging/order.py BINARY >LIST
    packaging/order.py --check        says whether its tools are installed

A start uses some thousand functions of twenty times as many. Scattered over the whole text, each of them costs a page
fault, and the kernel maps 64 KB around it; next to each other they are a few megabytes, and the rest is not even read.

The binary (not stripped) starts, answers a client and ends under callgrind, which writes down every function that ran.
Only whether one ran counts, not how often, and each group is sorted by address, so that the list depends on no clock.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

TIMEOUT_S = 300
ENTRIES = 20
CLIENT = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"elicitation": {}, "roots": {"listChanged": True}, "sampling": {}},
    "clientInfo": {"name": "order", "version": "1"},
}
CALLS = [
    ("file.write", {"path": "a.txt", "content": "one\ntwo\n"}),
    ("file.read", {"path": "a.txt"}),
    ("file.replace", {"path": "a.txt", "old": "one", "new": "three"}),
    ("file.list", {"path": "."}),
    ("file.search", {"pattern": "t"}),
    # callgrind does not know all system calls of a sandbox, so the call fails; most of its way is traced.
    ("shell.exec", {"command": "true"}),
]
# Code of the processes next to and inside a run, none of which callgrind can follow.
RUN_CODE = re.compile(r"^(_ZN|_R).*4jail")


def fail(reason):
    sys.exit(f"order: {reason}")


class Scratch:
    """A home and a workspace of our own, with commands and rules as users have them."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.workspace = self.folder / "workspace"
        self.root = self.folder / "root"
        config = self.folder / ".config/ringfence"
        rules = self.folder / ".codex/rules"
        for path in (self.workspace, config, rules):
            path.mkdir(parents=True)
        entries = (
            f'[mcp.tool{number}]\ncommand = "/bin/echo"\nargs = ["{{text}}"]\ndescription = "Prints a text."\n'
            'input_schema = {type = "object", properties = {text = {type = "string"}}, required = ["text"]}\n'
            for number in range(ENTRIES)
        )
        self.config = config / "config.toml"
        self.config.write_text("".join(entries))
        (rules / "default.rules").write_text('prefix_rule(pattern=["git", "push"], decision="prompt")\n')
        self.environment = {"HOME": folder, "PATH": "/usr/local/bin:/usr/bin:/bin"}

    def trace(self, name, *command):
        """Returns a command line that runs `command` and its children under callgrind."""
        output = self.folder / f"{name}.%p"
        return ["timeout", str(TIMEOUT_S), "valgrind", "--quiet", "--tool=callgrind", "--demangle=no", "--trace-children=yes",
                f"--callgrind-out-file={output}", f"--log-file={self.folder}/log.%p", *command]

    def start(self, command, **streams):
        return subprocess.Popen(command, cwd=self.workspace, env=self.environment, text=True, **streams)

    def functions(self, name):
        """Returns the names of all functions that ran."""
        names = set()
        for file in self.folder.glob(f"{name}.[0-9]*"):
            # `fn=(12) name`, and the same for called functions; 'N marks a recursion.
            names.update(re.findall(r"^c?fn=\(\d+\) (\S+?)(?:'\d+)?$", file.read_text(), re.MULTILINE))
        return names or fail(f"callgrind wrote nothing about {name}")


def ask(server, number, method, params):
    request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    for line in server.stdout:
        message = json.loads(line)
        if message.get("id") == number and "method" not in message:
            return message.get("result") or fail(f"{method}: {line}")
    fail(f"no answer to {method}")


def use_stdio(scratch, name, command, calls=()):
    """Is the client of a server on standard input and output."""
    command = scratch.trace(name, *command)
    server = scratch.start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    ask(server, 1, "initialize", CLIENT)
    server.stdin.write('{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
    ask(server, 2, "tools/list", {})
    for number, (tool, arguments) in enumerate(calls, 3):
        ask(server, number, "tools/call", {"name": tool, "arguments": arguments})
    server.stdin.close()
    server.wait() == 0 or fail(f"the server ended with {server.returncode}")


def use_http(scratch, binary):
    """Is the client of a server over HTTP."""
    command = scratch.trace("http", binary, "serve", "--http", "127.0.0.1:0", "--workspace", ".")
    server = scratch.start(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    address = next((line.split()[-1] for line in server.stderr if line.startswith("listening on ")), None)
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    for number, (method, params) in enumerate([("initialize", CLIENT), ("tools/list", {})], 1):
        body = json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        request = urllib.request.Request(address or fail("no address"), body.encode(), headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            answer.read()
            headers["Mcp-Session-Id"] = answer.headers.get("Mcp-Session-Id", "")
    server.terminate()
    server.wait()


def list_text(binary):
    """Returns the names of the binary's own functions in the order of their addresses."""
    table = subprocess.run(["nm", "--numeric-sort", binary], check=True, capture_output=True, text=True).stdout
    symbols = (line.split() for line in table.splitlines())
    return list(dict.fromkeys(name for *_, kind, name in symbols if kind in "tTW"))


def main():
    for program, package in (("valgrind", "valgrind"), ("nm", "binutils")):
        shutil.which(program) or fail(f"{program} is missing: install Debian's package {package}")
    if sys.argv[1:] == ["--check"]:
        return
    binary = str(Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as folder:
        scratch = Scratch(folder)
        serve = [binary, "serve"]
        use_stdio(scratch, "start", serve)
        # A root that was used before, and every option that clients are told to set.
        use_stdio(scratch, "start", [*serve, "--workspace", ".", "--root", scratch.root, "--config", scratch.config])
        use_stdio(scratch, "start", [*serve, "--workspace", ".", "--root", scratch.root, "--log-level", "info"])
        use_stdio(scratch, "calls", serve, CALLS)
        use_http(scratch, binary)
        sandbox = scratch.trace("sandbox", binary, "sandbox", "--", "/bin/true")
        scratch.start(sandbox, stderr=subprocess.DEVNULL).wait()
        text = list_text(binary)
        groups = [scratch.functions(name).__contains__ for name in ("start", "calls", "sandbox", "http")]
    any(map(groups[0], text)) or fail(f"{binary} has no symbols")
    listed = set()
    for belongs in [*groups, RUN_CODE.match]:
        names = [name for name in text if belongs(name) and name not in listed]
        listed.update(names)
        sys.stdout.writelines(f"{name}\n" for name in names)
    print(f"order: {len(listed)} of {len(text)} functions", file=sys.stderr)


main()
