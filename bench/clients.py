"""Clients of servers: one in C for calls of a fraction of a millisecond, one in Python for everything else."""

import json
import os
import re
import selectors
import signal
import socket
import subprocess
import time
from typing import NamedTuple

from measure import median

PATIENCE = 120.0
PROTOCOL = "2025-06-18"


class Timing(NamedTuple):
    """What a batch of requests took, in milliseconds, and the last answer."""

    ms: list
    answer: dict
    size: int


class LineReader:
    """Reads lines of a process with a limit of time."""

    def __init__(self, pipe):
        self.pipe, self.buffer = pipe, b""
        self.selector = selectors.DefaultSelector()
        self.selector.register(pipe, selectors.EVENT_READ)

    def line(self):
        while b"\n" not in self.buffer:
            if not self.selector.select(PATIENCE):
                raise RuntimeError(f"no answer within {PATIENCE:.0f} s")
            data = os.read(self.pipe.fileno(), 1 << 20)
            if not data:
                raise RuntimeError("the server ended")
            self.buffer += data
        line, self.buffer = self.buffer.split(b"\n", 1)
        return line

    def close(self):
        self.selector.close()
        self.pipe.close()


class WireClient:
    """Client whose requests are made and timed by programs/wire.c. It connects with the first request."""

    def __init__(self, stage, *words, env=None, mark=None):
        self.words, self.env, self.mark = [str(stage.wire), *words], env or stage.env, mark
        self.process = self.failure = None

    def connect(self):
        """Connects once; a failure is the answer to every later attempt, too."""
        if self.failure:
            raise self.failure
        if self.process:
            return
        env = {**self.env, **dict([self.mark.split("=")])} if self.mark else self.env
        self.process = subprocess.Popen(self.words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0, env=env)
        self.reader = LineReader(self.process.stdout)
        # Zero for a server that wire did not start.
        self.server = int(self.reply().split()[1])

    def reply(self):
        try:
            line = self.reader.line()
            if line.startswith(b"failed "):
                raise RuntimeError(line[7:].decode(errors="replace"))
            return line
        except RuntimeError as error:
            self.failure = error
            raise

    def request(self, method, params, count=1, warm=0):
        """Makes the same request `warm` + `count` times in every session."""
        self.connect()
        self.process.stdin.write(f"{method} {warm} {count} {json.dumps(params)}\n".encode())
        size = int(self.reply().split()[1])
        ms = [int(word) / 1e6 for word in self.reply().split()]
        return Timing(ms, json.loads(self.reply())["result"], size)

    def call(self, tool, arguments, count=1, warm=0):
        return self.request("tools/call", {"name": tool, "arguments": arguments}, count, warm)

    def close(self):
        if not self.process:
            return
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.reader.close()


def connect_stdio(stage, argv, **options):
    return WireClient(stage, "stdio", *argv, **options)


def connect_http(stage, server, sessions=1, threads=1):
    return WireClient(stage, "http", str(server.port), server.path, str(sessions), str(threads))


def connect_sse(stage, server, path="/mcp/sse"):
    return WireClient(stage, "sse", str(server.port), path)


class Starts(NamedTuple):
    """Median of some starts: to the answer to `initialize`, CPU until the end, and size of the answer."""

    ms: list
    cpu_ms: float
    size: int


def time_starts(stage, argv, count=1):
    """Starts a server `count` times, up to its answer to `initialize`."""
    words = [str(stage.wire), "start", str(count), *argv]
    output = subprocess.run(words, env=stage.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=PATIENCE).stdout.decode()
    lines = [line.split() for line in output.splitlines()]
    if len(lines) != count or any(len(line) != 3 or line[0] == "failed" for line in lines):
        raise RuntimeError(output.strip()[-300:] or "it did not start")
    return Starts([int(line[0]) / 1e6 for line in lines], median([int(line[1]) / 1e6 for line in lines]), int(lines[-1][2]))


class HttpServer:
    """A server process on the loopback. One without a port says on standard error where it listens."""

    def __init__(self, argv, env, port=None, path="/mcp"):
        self.path, self.port = path, port
        errors = subprocess.DEVNULL if port else subprocess.PIPE
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, env=env)
        try:
            if port:
                self.await_port()
            else:
                self.read_port()
        except BaseException:
            self.close()
            raise

    def read_port(self):
        reader = LineReader(self.process.stderr)
        while not (found := re.search(rb"listening on http://127\.0\.0\.1:(\d+)/", reader.line())):
            pass
        # The pipe stays open, so that the server can continue to log.
        self.port = int(found[1])

    def await_port(self):
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and self.process.poll() is None:
            try:
                return socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                time.sleep(0.02)
        raise RuntimeError("the server does not listen")

    @property
    def pid(self):
        return self.process.pid

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stderr:
            self.process.stderr.close()


def find_free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Client:
    """Client of one server on a pipe. It accepts questions for the session, so that each is asked once."""

    def __init__(self, argv, env):
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0, env=env)
        self.reader = LineReader(self.process.stdout)
        # The id of the last request, and the size of the last line.
        self.last_id = self.last_size = 0

    def send(self, message):
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def request(self, method, params):
        self.last_id += 1
        self.send({"id": self.last_id, "method": method, "params": params})
        while True:
            line = self.reader.line()
            message, self.last_size = json.loads(line), len(line) + 1
            if "method" in message and "id" in message:
                self.answer(message)
            elif message.get("id") == self.last_id:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]

    def answer(self, question):
        answer = {"action": "accept", "content": {}, "_meta": {"persist": "session"}}
        if question["method"] != "elicitation/create":
            answer = {"roots": []} if question["method"] == "roots/list" else {}
        self.send({"id": question["id"], "result": answer})

    def initialize(self):
        client = {"name": "bench", "version": "1"}
        hello = self.request("initialize", {"protocolVersion": PROTOCOL, "capabilities": {"elicitation": {}}, "clientInfo": client})
        self.send({"method": "notifications/initialized"})
        return hello

    def call(self, tool, arguments):
        """Returns the milliseconds and the result."""
        began = time.perf_counter()
        result = self.request("tools/call", {"name": tool, "arguments": arguments})
        taken = (time.perf_counter() - began) * 1000
        if result.get("isError"):
            raise RuntimeError(f"{tool}: {json.dumps(result)[:400]}")
        return taken, result

    def close(self, patience=5):
        self.process.stdin.close()
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.reader.close()


def join_texts(result):
    return "".join(block.get("text", "") for block in result["content"])
