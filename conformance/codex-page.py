#!/usr/bin/env python3
"""Runs the commands of docs/clients/codex.md word for word in an empty home directory, as a new user would.

    conformance/codex-page.py [--keep] PACKAGES

PACKAGES is the directory with the npm packages (`make npm`), or a `ringfence` binary, which is then packed for this run.
A registry on the loopback serves them to npm and leads to the real one for everything else. A scripted model stands in
for the account that `codex login` asks for. Blocks below a comment `<!-- not run: WHY -->` are left out. Prints the time
to the first list of tools that Codex showed its model, and fails if it took more than 300 s.
"""

import argparse
import base64
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import codex_model
from codex_run import wait_for

PAGE = Path(__file__).resolve().parent.parent / "docs/clients/codex.md"
LIMIT = 300
# How this machine reaches the network, which is no part of the page.
NETWORK = ["NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"]
PLAN = [{"call": "file_list", "arguments": {}}, {"say": "the end"}]
CODEX_CONFIG = """model = "scripted"
model_provider = "script"
check_for_update_on_startup = false

[model_providers.script]
name = "script"
base_url = "http://127.0.0.1:{port}/v1"
wire_api = "responses"
request_max_retries = 0

[analytics]
enabled = false
"""


def read_commands(page):
    """The commands of the page's console blocks, in order, with their lines of continuation."""
    commands, is_left_out, block = [], False, None
    for line in page.splitlines():
        text = line.strip()
        if block is None and text.startswith("<!-- not run:"):
            is_left_out = True
        elif block is None and text.startswith("```"):
            block = "left out" if is_left_out or text != "```console" else "run"
            is_left_out = False
        elif text == "```":
            block = None
        elif block == "run" and text.startswith("$ "):
            commands.append(text.removeprefix("$ "))
        elif block == "run" and commands and commands[-1].endswith("\\"):
            commands[-1] += "\n" + text
    return commands


class Registry(ThreadingHTTPServer):
    """An npm registry of a few packages; every other request is sent on to the real one."""

    daemon_threads = True

    def __init__(self, tarballs, elsewhere):
        super().__init__(("127.0.0.1", 0), RegistryHandler)
        self.elsewhere = elsewhere.rstrip("/")
        self.tarballs = {tarball.name: tarball for tarball in tarballs}
        self.documents = {}
        for tarball in tarballs:
            manifest = read_manifest(tarball)
            integrity = base64.b64encode(hashlib.sha512(tarball.read_bytes()).digest()).decode()
            address = f"http://127.0.0.1:{self.server_port}/tarballs/{tarball.name}"
            version = manifest | {"dist": {"tarball": address, "integrity": f"sha512-{integrity}"}}
            self.documents[manifest["name"]] = {"name": manifest["name"], "dist-tags": {"latest": manifest["version"]},
                                                "versions": {manifest["version"]: version}}


class RegistryHandler(BaseHTTPRequestHandler):
    def do_GET(self):
        name = self.path.lstrip("/").replace("%2f", "/").replace("%2F", "/")
        if document := self.server.documents.get(name):
            body = json.dumps(document).encode()
        elif tarball := self.server.tarballs.get(name.removeprefix("tarballs/")):
            body = tarball.read_bytes()
        else:
            self.send_response(302)
            self.send_header("Location", self.server.elsewhere + self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Model(codex_model.Model):
    """Notes when a request with tools of the server came first, and how many results of calls came."""

    first_list, results = None, 0

    def record(self, request):
        super().record(request)
        if self.first_list is None and any(codex_model.tools_of(request.get("tools", []))):
            self.first_list = time.monotonic()
        self.results += sum("note.txt" in json.dumps(item) for item in request["input"] if item["type"] == "function_call_output")


def read_manifest(tarball):
    with tarfile.open(tarball) as archive:
        return json.load(archive.extractfile("package/package.json"))


def pack_binary(binary, into):
    """Packs a binary as the npm package `ringfence`."""
    package = into / "package"
    package.mkdir(parents=True)
    shutil.copy(binary, package / "ringfence")
    (package / "package.json").write_text(json.dumps({"name": "ringfence", "version": "0.1.0", "bin": {"ringfence": "ringfence"}}))
    with tarfile.open(into / "ringfence-0.1.0.tgz", "w:gz", compresslevel=1) as archive:
        archive.add(package, "package")
    return [into / "ringfence-0.1.0.tgz"]


def find_tarballs(packages, scratch):
    if packages.is_file():
        return pack_binary(packages, scratch / "packed")
    tarballs = sorted(packages.glob("*ringfence*.tgz"))
    if not tarballs:
        raise SystemExit(f"no npm packages in {packages}: make them with `make npm`, or give a binary")
    return tarballs


def serve(server, stack):
    stack.callback(server.server_close)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    stack.callback(server.shutdown)
    return server


# Reads commands from descriptor 3, so that none of them finds the next one on its standard input.
LOOP = 'while IFS= read -r -d "" -u "$1" command; do eval "$command" </dev/null; echo "exit code $?"; done'


class Shell:
    """The shell of the new user: one process for all commands, as in a terminal."""

    def __init__(self, home, environment, log):
        self.log = log
        read, write = os.pipe()
        self.shell = subprocess.Popen(["bash", "--norc", "-c", LOOP, "bash", str(read)], stdin=subprocess.DEVNULL,
                                      stdout=subprocess.PIPE, stderr=log, text=True, cwd=home, env=environment,
                                      pass_fds=[read], start_new_session=True)
        os.close(read)
        self.commands = open(write, "w")

    def run(self, command):
        """Runs a command, and returns its exit code. One in the background gets the time to listen."""
        self.commands.write(f"{command}\0")
        self.commands.flush()
        for line in self.shell.stdout:
            self.log.write(line)
            if found := re.fullmatch(r"exit code (\d+)\n", line):
                break
        else:
            raise SystemExit("the shell ended")
        if port := re.search(r"--http 127\.0\.0\.1:(\d+).*&$", command):
            wait_for("the server", lambda: is_listening(int(port[1])), 30)
        return int(found[1])

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.shell.pid, signal.SIGTERM)
        self.shell.wait()
        self.commands.close()


def is_listening(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def follow_page(commands, home, environment, model, log):
    """Runs all commands. Returns what failed."""
    shell, failed, calls = Shell(home, environment, log), [], 0
    try:
        for command in commands:
            began = time.monotonic()
            log.write(f"$ {command}\n")
            log.flush()
            code = shell.run(command)
            print(f"{time.monotonic() - began:6.1f} s  {'ok' if code == 0 else f'exit code {code}':12} $ {command}", flush=True)
            if code:
                # What follows builds on it.
                failed.append(f"exit code {code}: {command}")
                break
            if command.startswith("mkdir demo"):
                (home / "demo/note.txt").write_text("a file to be listed\n")
            if "codex exec" in command:
                calls += 1
                if model.results < calls:
                    failed.append(f"no list of files came back: {command}")
                    model.results = calls
    except TimeoutError as error:
        failed.append(f"{error}: {command}")
    finally:
        shell.close()
    return failed


def main():
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--keep", action="store_true", help="keep the home directory")
    words.add_argument("packages", type=Path, help="directory with npm packages, or a binary")
    given = words.parse_args()
    commands = read_commands(PAGE.read_text())
    if is_listening(8931):
        raise SystemExit("port 8931, which the page uses, is taken")
    scratch = Path(tempfile.mkdtemp(prefix="codex-page-"))
    home = scratch / "home"
    try:
        with contextlib.ExitStack() as stack:
            elsewhere = subprocess.run(["npm", "config", "get", "registry"], capture_output=True, text=True, check=True).stdout.strip()
            registry = serve(Registry(find_tarballs(given.packages.resolve(strict=True), scratch), elsewhere), stack)
            model = serve(Model(PLAN, scratch / "requests"), stack)
            (home / ".codex").mkdir(parents=True)
            (home / ".codex/config.toml").write_text(CODEX_CONFIG.format(port=model.server_port))
            network = {name: os.environ[name] for name in NETWORK if name in os.environ} | {"NO_PROXY": "127.0.0.1,localhost"}
            environment = network | {"PATH": f"{home}/.npm/bin:{os.environ['PATH']}", "HOME": str(home), "LANG": "C.UTF-8",
                           "npm_config_prefix": str(home / ".npm"), "npm_config_registry": f"http://127.0.0.1:{registry.server_port}/",
                           "npm_config_update_notifier": "false", "npm_config_fund": "false", "npm_config_audit": "false"}
            log = stack.enter_context(open(scratch / "log", "w"))
            began = time.monotonic()
            failed = follow_page(commands, home, environment, model, log)
            log.flush()
        for line in failed:
            print(f"codex-page: {line}", file=sys.stderr)
        if failed:
            print("".join((scratch / "log").read_text()[-4000:]), file=sys.stderr)
        if model.first_list is None:
            print("codex-page: Codex never listed the tools", file=sys.stderr)
            return 1
        took = model.first_list - began
        print(f"codex-page: {len(commands)} commands; first list of tools after {took:.1f} s, all of it {time.monotonic() - began:.1f} s")
        return 1 if failed or took > LIMIT else 0
    finally:
        print(f"files: {scratch}") if given.keep else shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
