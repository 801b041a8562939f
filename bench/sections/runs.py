"""Commands and programs in the sandbox: one call, one command line, and the end of many processes."""

import json
import subprocess
import time
from contextlib import ExitStack

from measure import OURS, RowGroup

from . import crowds, sandboxes
from .sandboxes import BUBBLEWRAP, NATIVE

PEERS = ("bwrap", "codex", "srt", "desktop-commander")
SHELL, ONE_SHOT = "shell.exec, echo hi", "ringfence sandbox, /bin/true"
CODE, CELL = "code.exec, once", "code.exec, a cell in a session"
PROGRAM, SAID = "print(sum(range(1000)))", "499500\n"
# A cell without a sandbox and without values: code goes in through a pipe, an empty line comes out.
PIPE = "import sys, json\nfor line in sys.stdin: exec(json.loads(line), globals()); print(flush=True)"


def measure(stage):
    place = stage.section("runs")
    sandboxes.prepare_repository(place)
    with ExitStack() as stack:
        ours, other = place.client(OURS, stack), place.client("desktop-commander", stack)
        yield from measure_shell(stage, place, ours, other)
        yield from measure_one_shot(stage, place)
        yield from measure_code(stage, place, ours, other)
        yield from measure_cells(stage, place, ours, stack)
    yield from crowds.measure(stage, place)


def time_program(stage, place, count, words, env=None):
    """Starts a program some times from a loop in C; returns the milliseconds of each."""
    words = [str(stage.spawn), "time", str(count), *words]
    ended = subprocess.run(words, cwd=place.workspace, env=env or stage.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=300)
    if ended.returncode != 0:
        raise RuntimeError(f"{words[3]}: exit code {ended.returncode}")
    return [int(line) / 1e6 for line in ended.stdout.split()]


def require_output(stage, place, words, expected):
    ended = subprocess.run(words, cwd=place.workspace, env=stage.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    if ended.stdout.decode() != expected:
        raise RuntimeError(f"{words[0]}: unexpected output {ended.stdout[:200]!r}")


def measure_shell(stage, place, ours, other):
    """Without a server, a command is started from C and writes to /dev/null."""
    group = RowGroup(stage, SHELL, rounds=30)
    bash = ["bash", "-c", "echo hi"]

    def call():
        timing = ours.call("shell.exec", {"command": "echo hi"}, 10)
        if timing.answer["structuredContent"]["stdout"] != "hi\n":
            raise RuntimeError(f"unexpected answer: {json.dumps(timing.answer)[:300]}")
        return timing.ms

    def start(prefix):
        require_output(stage, place, [*prefix, *bash], "hi\n")
        return time_program(stage, place, 10, [*prefix, *bash])

    group.add(OURS, call, warm=2)
    group.add(BUBBLEWRAP, lambda: start(sandboxes.bubblewrap_words(stage, place)))
    group.add("bash", lambda: start([]), rival=False)
    group.add("desktop-commander", lambda: other.call("start_process", {"command": "echo hi", "timeout_ms": 5000}, 5).ms)
    yield from group.measure()


def measure_one_shot(stage, place):
    group = RowGroup(stage, ONE_SHOT, rounds=20)
    if not stage.wants(ONE_SHOT):
        return
    each = {"codex": 3, "srt": 1}

    def turn(name, prefix):
        return time_program(stage, place, each.get(name, 20), [*prefix, "/bin/true"], sandboxes.make_environment(stage, name))

    for name, prefix in sandboxes.sandbox_words(stage, place).items():
        if name == NATIVE:
            group.add(name, lambda: turn(NATIVE, []), rival=False)
            continue
        group.require(name, lambda name=name, prefix=prefix: sandboxes.require_confinement(place, prefix, sandboxes.make_environment(stage, name)))
        group.add(name, lambda name=name, prefix=prefix: turn(name, prefix))
    yield from group.measure()


def measure_code(stage, place, ours, other):
    group = RowGroup(stage, CODE, rounds=25)

    def call():
        timing = ours.call("code.exec", {"language": "python", "code": PROGRAM}, 4)
        require_said(timing.answer)
        return timing.ms

    plain = [stage.python, "-c", PROGRAM]
    group.add(OURS, call)
    group.require("python3", lambda: require_output(stage, place, plain, SAID))
    group.add("python3", lambda: time_program(stage, place, 4, plain))
    words = {"command": f"{stage.python} -c '{PROGRAM}'", "timeout_ms": 5000}
    group.add("desktop-commander", lambda: other.call("start_process", words, 2).ms)
    yield from group.measure()


def require_said(answer):
    reply = json.loads(answer["content"][0]["text"])
    if reply["stdout"] != SAID:
        raise RuntimeError(f"unexpected answer: {reply}")
    return reply


def measure_cells(stage, place, ours, stack):
    """The alternative for running a few lines is to start a new interpreter."""
    group = RowGroup(stage, CELL, rounds=25)
    session = "new"

    def call():
        nonlocal session
        timing = ours.call("code.exec", {"language": "python", "code": PROGRAM, "session": session})
        session = require_said(timing.answer)["session"]
        return timing.ms

    group.add(OURS, call, each=8, warm=4)
    group.add("python3", lambda: time_program(stage, place, 2, [stage.python, "-c", PROGRAM]))
    group.add("bare pipe", pipe_turn(stage, stack), each=8, warm=4, rival=False)
    yield from group.measure()


def pipe_turn(stage, stack):
    """Returns a turn with an interpreter that only executes what a pipe brings."""
    process = None

    def turn():
        nonlocal process
        if process is None:
            process = subprocess.Popen([stage.python, "-c", PIPE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=stage.env)
            stack.callback(process.wait)
            stack.callback(process.stdin.close)
        began = time.perf_counter()
        process.stdin.write(json.dumps(PROGRAM).encode() + b"\n")
        process.stdin.flush()
        lines = process.stdout.readline() + process.stdout.readline()
        taken = (time.perf_counter() - began) * 1000
        if lines != SAID.encode() + b"\n":
            raise RuntimeError(f"unexpected output {lines!r}")
        return taken

    return turn
