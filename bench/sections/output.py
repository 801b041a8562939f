"""Growth in the output of one command: what the server itself spends on it, without the command."""

import os
import subprocess

import clients
import processes
from measure import OURS, Curve, RowGroup, median

PEERS = ()
CPU, MEMORY = "output of 256 MB: CPU per MB", "output of 256 MB: memory"
LITTLE = "ringfence, 1 MB"
LINE = "0123456789abcdef" * 4


def measure(stage):
    place = stage.section("output")
    sizes = stage.size([1, 4, 16, 64, 256], [1, 16])
    group = RowGroup(stage, CPU, MEMORY, rounds=3, quick=3, reduced=stage.reduced(f"{sizes[-1]} MB"))
    names = {size: f"ringfence, {size} MB" for size in sizes} | {sizes[-1]: OURS}
    cats = {size: f"cat, {size} MB" for size in sizes} | {sizes[-1]: "cat"}
    for size in sizes:
        group.add(names[size], lambda size=size: produce(stage, place, size), rival=size == 1, warm=0)
        group.add(cats[size], lambda size=size: {CPU: read_with_cat(stage, size)}, rival=size == sizes[-1], warm=0)
    yield from group.measure()
    for row, name, title, unit in ((CPU, "output-cpu", "CPU of the server for each MB of output", "ms per MB"),
                                   (MEMORY, "output-memory", "Most memory of the server, by output", "MB")):  # fmt: skip
        curve = Curve(name, title, "MB of output", unit)
        for size in sizes:
            if group.rows[row].values(names[size]):
                curve.add(OURS, size, median(group.rows[row].values(names[size])))
            if group.rows[row].values(cats[size]):
                curve.add("cat", size, median(group.rows[row].values(cats[size])))
        yield curve


def produce(stage, place, size):
    """Each size has a server of its own, whose peak of memory is its own."""
    client = clients.connect_stdio(stage, place.argv(OURS))
    try:
        client.call("shell.exec", {"command": "true"})
        before = processes.read_cpu_ms([client.server])
        timing = client.call("shell.exec", {"command": f"yes {LINE} | head -c {size << 20}", "timeout_ms": 120_000})
        used = processes.read_cpu_ms([client.server]) - before
        if timing.answer["structuredContent"]["stdout_bytes"] != size << 20:
            raise RuntimeError(f"unexpected answer: {str(timing.answer)[:300]}")
        return {CPU: used / size, MEMORY: processes.read_peak_mb(client.server)}
    finally:
        client.close()


def read_with_cat(stage, size):
    words = ["bash", "-c", f"yes {LINE} | head -c {size << 20}"]
    with subprocess.Popen(words, env=stage.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as source:
        reader = subprocess.Popen(["cat"], env=stage.env, stdin=source.stdout, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(reader.pid, 0)
        reader.returncode = os.waitstatus_to_exitcode(status)
    return (usage.ru_utime + usage.ru_stime) * 1000 / size
