"""Names and lines in a large tree, read only. All have to find the same; what ripgrep finds is counted once."""

import subprocess
import time
from contextlib import ExitStack

from measure import OURS, RowGroup

PEERS = ("rg", "server-filesystem")
NAMES = "file.list, names in a large tree"
PATTERNS = {
    "file.search, nothing found": "ring[f]ence-bench-nowhere",
    "file.search, many lines": "def ",
    "file.search, any case": "(?i)permission (is|was) ",
}
# The defaults of file.search: ignore files apply without a repository, none from outside, no settings.
RIPGREP = ["rg", "--no-config", "--no-require-git", "--no-ignore-parent", "--no-ignore-global", "--color=never"]


def measure(stage):
    place = stage.section("search")
    with ExitStack() as stack:
        ours, other = (place.client(name, stack, stage.tree) for name in (OURS, "server-filesystem"))
        yield from measure_names(stage, ours, other)
        for row, pattern in PATTERNS.items():
            yield from measure_lines(stage, row, pattern, ours, stage.tree)


def run_ripgrep(stage, tree, *flags):
    """Returns the milliseconds, and the lines that it printed."""
    began = time.perf_counter()
    ended = subprocess.run([*RIPGREP, *flags], cwd=tree, env=stage.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    taken = (time.perf_counter() - began) * 1000
    return taken, ended.stdout.splitlines()


def require_total(answer, member, expected):
    found = answer["structuredContent"]
    if expected is not None and found[member] != expected:
        raise RuntimeError(f"{found[member]} found where rg finds {expected}")
    if found.get("timed_out"):
        raise RuntimeError("the search ended at its deadline")


def measure_names(stage, ours, other):
    group = RowGroup(stage, NAMES, rounds=20)
    if not group.is_wanted():
        return
    flags = ["--files", "-g", "*.png", "."]
    total = None if "rg" in stage.missing else len(run_ripgrep(stage, stage.tree, *flags)[1])
    group.note(f"{total} names in {stage.tree}")

    def list_names():
        timing = ours.call("file.list", {"glob": ["*.png"], "type": "file"})
        require_total(timing.answer, "total", total)
        return timing.ms

    group.add(OURS, list_names)
    group.add("rg", lambda: run_ripgrep(stage, stage.tree, *flags)[0])
    words = {"path": str(stage.tree), "pattern": "**/*.png"}
    # One call takes seconds.
    group.add("server-filesystem", lambda: other.call("search_files", words).ms, every=10, warm=0)
    yield from group.measure()


def measure_lines(stage, row, pattern, client, tree, rounds=20, reduced=""):
    group = RowGroup(stage, row, rounds=rounds, reduced=reduced)
    if not group.is_wanted():
        return
    total = None
    if "rg" not in stage.missing:
        total = sum(int(line.rsplit(b":", 1)[1]) for line in run_ripgrep(stage, tree, "--count", pattern, ".")[1])
    group.note(f"{total} lines" + (f" in {tree}" if tree == stage.tree else ""))

    def search():
        timing = client.call("file.search", {"pattern": pattern})
        require_total(timing.answer, "total_matches", total)
        return timing.ms

    group.add(OURS, search)
    group.add("rg", lambda: run_ripgrep(stage, tree, "--line-number", "--no-heading", pattern, ".")[0])
    yield from group.measure()
