"""The end of a run with many processes that ignore every signal they can, without a grace period."""

import os
import select
import signal
import subprocess
import threading
import time

import clients
import processes
from measure import OURS, RowGroup

from . import sandboxes

CROWD = 300
KILLED = f"{CROWD} stubborn processes gone, sandbox killed"
CANCELLED = f"{CROWD} stubborn processes gone, call cancelled"


def measure(stage, place):
    config = place.write("grace.toml", "[limits]\ngrace_ms = 0\n")
    spawn = place.workspace / "spawn"
    spawn.write_bytes(stage.spawn.read_bytes())
    spawn.chmod(0o755)
    group = RowGroup(stage, KILLED, rounds=5)
    commands = {OURS: place.sandbox("--config", config), sandboxes.BUBBLEWRAP: sandboxes.bubblewrap_words(stage, place)}
    for name, prefix in commands.items():
        group.add(name, lambda prefix=prefix: kill_sandbox(stage, place, [*prefix, str(spawn)]), warm=0)
    yield from group.measure()
    group = RowGroup(stage, CANCELLED, rounds=5)
    group.add(OURS, lambda: cancel_call(stage, place, config, spawn), warm=0)
    yield from group.measure()


def new_mark():
    return f"{os.getpid()}-{time.monotonic_ns()}"


def kill_sandbox(stage, place, words):
    """Kills the sandbox itself with SIGKILL, so that it cannot clean up."""
    mark, quiet = new_mark(), {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    child = subprocess.Popen([*words, "crowd", str(CROWD), mark], cwd=place.workspace, env=stage.env, **quiet)
    try:
        return time_end(mark, lambda: child.send_signal(signal.SIGKILL))
    finally:
        child.kill()
        child.wait()


def cancel_call(stage, place, config, spawn):
    """Cancels the call from the client, as users do."""
    mark = new_mark()
    client = clients.Client(place.serve("--config", config), stage.env)
    try:
        client.initialize()
        client.call("shell.exec", {"argv": ["/bin/true"]})
        words = {"argv": [str(spawn), "crowd", str(CROWD), mark]}
        thread = threading.Thread(target=call_until_cancelled, args=(client, words), daemon=True)
        thread.start()
        cancelled = {"method": "notifications/cancelled"}
        return time_end(mark, lambda: client.send({**cancelled, "params": {"requestId": client.last_id}}))
    finally:
        client.process.kill()
        client.close()


def call_until_cancelled(client, words):
    """Makes a call that is never answered, because it is cancelled; it ends with the server."""
    try:
        client.call("shell.exec", words)
    except (RuntimeError, OSError, ValueError):
        pass


def find_marked(mark):
    """Returns the processes with the mark in their arguments, seen from outside every sandbox."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            words = processes.read_command_line(entry.name)
            if mark.encode() in words and b"crowd" in words and words[0].endswith(b"spawn"):
                found.append(int(entry.name))
    return found


def time_end(mark, order):
    """Returns the milliseconds from the order to the end of the last process, as reported by pidfds."""
    until = time.monotonic() + 30
    while len(pids := find_marked(mark)) < CROWD + 1:
        if time.monotonic() > until:
            raise RuntimeError(f"only {len(pids)} of {CROWD + 1} processes started")
        time.sleep(0.05)
    poll = select.poll()
    waiting = {os.pidfd_open(pid) for pid in pids}
    for fd in waiting:
        poll.register(fd, select.POLLIN)
    began = time.perf_counter()
    order()
    while waiting:
        ended = [fd for fd, _ in poll.poll(30_000)]
        if not ended:
            raise RuntimeError(f"{len(waiting)} processes still run after 30 s")
        for fd in ended:
            poll.unregister(fd)
            os.close(fd)
            waiting.discard(fd)
    taken = (time.perf_counter() - began) * 1000
    if left := find_marked(mark):
        raise RuntimeError(f"{len(left)} processes are left")
    return taken
