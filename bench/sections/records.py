"""Growth in records of the audit log, which the server itself has written."""

import datetime
import json
import os
import re
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import NamedTuple

from measure import OURS, Curve, RowGroup

PEERS = ("rg",)
TITLE = "audit, 1,000,000 records"
TIME, TOOL, TRACE, RECENT = f"{TITLE}: by time", f"{TITLE}: by tool", f"{TITLE}: by trace", f"{TITLE}: --since 1s"
VERIFY = "audit verify, 1,000,000 records"
ROWS = (TIME, TOOL, TRACE, RECENT, VERIFY)
# Seconds that a query by time is tried with: from the newest record on.
SECONDS = 120
# One call in so many is of another tool, which the query by tool has to find.
RARE = 500


class Finished(NamedTuple):
    ms: float
    cpu_s: float
    output: bytes


def measure(stage):
    if not stage.wants(*ROWS):
        return
    place = stage.section("records")
    (place.workspace / "empty.txt").write_text("")
    counts, written = stage.size([10_000, 100_000, 1_000_000], [5_000, 20_000]), 0
    curves = {row: Curve(f"records-{name}", f"Audit query {title}, by records", "records", "s CPU", is_proportional=True) for row, name, title in (
        (TIME, "time", "by time"), (TOOL, "tool", "by tool"), (TRACE, "trace", "by trace id"))}  # fmt: skip
    for count in counts:
        stage.progress(f"{TITLE}: writing {count:,}")
        write_records(place, count - written)
        written = count
        reduced = stage.reduced(f"{count:,} records")
        for row in measure_queries(stage, place, reduced, 5 if count == counts[-1] else 3):
            if row.name in curves:
                for player in row.players():
                    curves[row.name].add(player, count, row.p50(player))
            # The earlier sizes are only points of the curves.
            if count == counts[-1]:
                yield row
    yield from curves.values()


def write_records(place, count):
    """Has two servers on the same root write records, each call two of them."""
    with ExitStack() as stack:

        def work(client):
            for _ in range(count // 4 // RARE):
                client.call("file.list", {})
                client.call("file.read", {"path": "empty.txt"}, RARE - 1)

        servers = [place.client(OURS, stack) for _ in range(2)]
        pool = stack.enter_context(ThreadPoolExecutor(len(servers)))
        # Exhausted for the exceptions of the threads.
        list(pool.map(work, servers))


def run_counted(stage, words):
    began = time.perf_counter()
    with subprocess.Popen(words, env=stage.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    # 1 of rg: nothing found.
    if process.returncode not in (0, 1):
        raise RuntimeError(f"{words[0]}: exit code {process.returncode}")
    return Finished((time.perf_counter() - began) * 1000, usage.ru_utime + usage.ru_stime, output)


def measure_queries(stage, place, reduced, rounds):
    folder = place.root / "audit"
    ours = [stage.binary, "audit", "--root", str(place.root), "--json"]
    files = sorted(str(path) for path in folder.glob("*.jsonl"))
    newest, trace = find_samples(files)
    stamp = newest.strftime("%Y-%m-%dT%H:%M:%S")
    queries = {
        TIME: (["--since", stamp + "Z"], ["-e", make_time_pattern(newest)]),
        TOOL: (["--tool", "file.list"], ["-F", '"tool":"file.list"']),
        TRACE: (["--trace", trace], ["-F", f'"trace_id":"{trace}"']),
    }
    for row, (flags, pattern) in queries.items():
        group = RowGroup(stage, row, rounds=rounds, quick=3, reduced=reduced)
        words = ["rg", "--no-config", "--no-filename", "--no-line-number", "--color=never", *pattern, *files]
        expected = None if "rg" in stage.missing else len(run_counted(stage, words).output.splitlines())

        def turn(flags=flags, expected=expected):
            ended = run_counted(stage, [*ours, *flags])
            found = len(ended.output.splitlines())
            if not found or expected not in (None, found):
                raise RuntimeError(f"{found} records found where rg finds {expected}")
            return ended.cpu_s

        group.add(OURS, turn)
        group.add("rg", lambda words=words: run_counted(stage, words).cpu_s)
        group.note(f"{expected} records match")
        yield from group.measure()
    yield from measure_recent(stage, place, ours, reduced, rounds)
    group = RowGroup(stage, VERIFY, rounds=3, quick=3, reduced=reduced)

    def verify():
        ended = run_counted(stage, [stage.binary, "audit", "verify", "--root", str(place.root)])
        if b"chain intact" not in ended.output:
            raise RuntimeError(f"unexpected output: {ended.output[-300:]!r}")
        return ended.cpu_s

    group.add(OURS, verify)
    group.add("sha256sum", lambda: run_counted(stage, ["sha256sum", *files]).cpu_s)
    yield from group.measure()


def measure_recent(stage, place, ours, reduced, rounds):
    """Each query follows a call, which it has to show."""
    group = RowGroup(stage, RECENT, rounds=2 * rounds, quick=3, reduced=reduced)
    with ExitStack() as stack:
        client = place.client(OURS, stack)

        def turn():
            client.call("file.read", {"path": "empty.txt"})
            ended = run_counted(stage, [*ours, "--since", "1s"])
            if b'"call.stop"' not in ended.output:
                raise RuntimeError("the newest call is not shown")
            return ended.ms

        def search():
            client.call("file.read", {"path": "empty.txt"})
            files = sorted(str(path) for path in (place.root / "audit").glob("*.jsonl"))
            now = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=1)
            return run_counted(stage, ["rg", "--no-config", "--color=never", "-e", make_time_pattern(now, 2), *files]).ms

        group.add(OURS, turn)
        group.add("rg", search)
        yield from group.measure()


def find_samples(files):
    """Returns the time of the newest record, and a trace id from the middle of the largest file."""
    newest = max(json.loads(read_last_line(path))["ts"] for path in files)
    largest = max(files, key=os.path.getsize)
    with open(largest, "rb") as file:
        file.seek(os.path.getsize(largest) // 2)
        file.readline()
        trace = next(found[1] for line in file if (found := re.search(rb'"trace_id":"([0-9a-f]+)"', line)))
    return datetime.datetime.fromisoformat(newest.replace("Z", "+00:00")) - datetime.timedelta(seconds=1), trace.decode()


def read_last_line(path):
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - 4096))
        return file.read().splitlines()[-1]


def make_time_pattern(first, count=SECONDS):
    """Returns a pattern for times from a second on."""
    seconds = (first + datetime.timedelta(seconds=number) for number in range(count))
    return f'"ts":"({"|".join(second.strftime("%Y-%m-%dT%H:%M:%S") for second in seconds)})'
