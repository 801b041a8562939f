"""Growth in sessions: calls and commands of many clients of one server over HTTP."""

import subprocess
import time
from contextlib import ExitStack

import clients
import processes
from measure import OURS, Curve, RowGroup, median

from . import sandboxes

PEERS = ("bwrap",)
CALL, MEMORY = "HTTP call, 256 sessions: CPU", "idle HTTP session: memory"
SHELL = "shell.exec, 64 sessions"
ONE = "ringfence, 1 session"
THREADS = 8
ECHO = ["bash", "-c", "echo hi"]


def measure(stage):
    place = stage.section("sessions")
    sandboxes.prepare_repository(place)
    (place.workspace / "small.txt").write_text("x\n")
    yield from measure_calls(stage, place)
    yield from measure_idle_memory(stage, place)
    yield from measure_commands(stage, place)


def measure_calls(stage, place):
    counts = stage.size([1, 4, 16, 64, 256], [1, 4, 16])
    group = RowGroup(stage, CALL, rounds=5, reduced=stage.reduced(f"{counts[-1]} sessions"))
    if not group.is_wanted():
        return
    curve = Curve("sessions-cpu", "CPU of one file.read over HTTP, by open sessions", "sessions", "µs per call")
    with ExitStack() as stack:
        # A server each: together they would have more sessions than one server keeps.
        servers = {count: place.http_server(stack) for count in counts}
        opened = {}
        for count, server in servers.items():
            opened[count] = clients.connect_http(stage, server, count, min(count, THREADS))
            stack.callback(opened[count].close)
        total = stage.size(2048, 256)

        def turn(count):
            server = servers[count]
            before = processes.read_cpu_ms(processes.find_tree(server.pid))
            timing = opened[count].call("file.read", {"path": "small.txt"}, total // count)
            used = processes.read_cpu_ms(processes.find_tree(server.pid)) - before
            if timing.answer["content"][0]["text"] != "x\n":
                raise RuntimeError(f"unexpected answer: {timing.answer}")
            return used * 1000 / len(timing.ms)

        for count in counts:
            name = {counts[-1]: OURS, 1: ONE}.get(count, f"ringfence, {count} sessions")
            group.add(name, lambda count=count: turn(count), rival=name == ONE)
        yield from group.measure()
        for count in counts:
            name = {counts[-1]: OURS, 1: ONE}.get(count, f"ringfence, {count} sessions")
            if group.rows[CALL].values(name):
                curve.add(OURS, count, group.rows[CALL].p50(name))
    yield curve


def measure_idle_memory(stage, place):
    count = stage.size(256, 32)
    group = RowGroup(stage, MEMORY, rounds=3, reduced=stage.reduced(f"{count} sessions"))

    def turn():
        with ExitStack() as stack:
            server = place.http_server(stack)
            first = clients.connect_http(stage, server)
            stack.callback(first.close)
            first.call("file.read", {"path": "small.txt"}, 20)
            before = processes.measure_pss_mb([server.pid])
            others = clients.connect_http(stage, server, count, THREADS)
            stack.callback(others.close)
            others.call("file.read", {"path": "small.txt"}, 1)
            return (processes.measure_pss_mb([server.pid]) - before) / count

    group.add(OURS, turn, warm=0)
    yield from group.measure()


def measure_commands(stage, place):
    counts = stage.size([1, 4, 16, 64], [1, 16])
    group = RowGroup(stage, SHELL, rounds=5, quick=3, reduced=stage.reduced(f"{counts[-1]} sessions"))
    if not group.is_wanted():
        return
    total = stage.size(192, 64)
    with ExitStack() as stack:
        server = place.http_server(stack)
        opened = {}
        for count in counts:
            opened[count] = clients.connect_http(stage, server, count, count)
            stack.callback(opened[count].close)

        def call(count):
            began = time.perf_counter()
            timing = opened[count].call("shell.exec", {"command": "echo hi"}, max(1, total // count))
            taken = time.perf_counter() - began
            if timing.answer["structuredContent"]["stdout"] != "hi\n":
                raise RuntimeError(f"unexpected answer: {timing.answer}")
            return len(timing.ms) / taken

        def start(count, prefix):
            lines = "".join(f"{number}\n" for number in range(total))
            began = time.perf_counter()
            words = ["xargs", f"-P{count}", "-I{}", *prefix, *ECHO]
            output = subprocess.run(words, input=lines.encode(), cwd=place.workspace, env=stage.env, stdout=subprocess.PIPE, check=True).stdout
            if output != b"hi\n" * total:
                raise RuntimeError("commands failed")
            return total / (time.perf_counter() - began)

        names = {OURS: (call,), sandboxes.BUBBLEWRAP: (start, sandboxes.bubblewrap_words(stage, place)), "bash": (start, [])}
        for name, (work, *arguments) in names.items():
            for count in counts:
                player = name if count == counts[-1] else f"{name}, {count} at once"
                turn = lambda work=work, count=count, arguments=arguments: work(count, *arguments)
                group.add(player, turn, needs=(name,), rival=name != "bash" and count == counts[-1])
        yield from group.measure()
    curve = Curve("sessions-commands", "Commands a second, by sessions that run one at a time each", "sessions", "per second")
    row = group.rows[SHELL]
    for name in names:
        for count in counts:
            player = name if count == counts[-1] else f"{name}, {count} at once"
            if row.values(player):
                curve.add(name, count, median(row.values(player)))
    yield curve
