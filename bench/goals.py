"""The goals: every row of the table, what it may cost, and the peer it is compared with."""

from typing import NamedTuple

# Compare with whichever peer is best in this run.
BEST = "best"


class Goal(NamedTuple):
    kind: str | None
    value: float = 0

    @property
    def needs_peer(self):
        return self.kind in ("times", "plus")

    @property
    def more_is_better(self):
        return self.kind == "at least"

    def is_met(self, ours, peer, ratio):
        return {
            "at most": lambda: ours <= self.value,
            "at least": lambda: ours >= self.value,
            "times": lambda: ratio <= self.value,
            "plus": lambda: ours <= peer + self.value,
        }[self.kind]()

    def text(self, unit, peer):
        return {
            None: "-",
            "at most": f"≤ {self.value:g} {unit}",
            "at least": f"≥ {self.value:g} {unit}",
            "times": f"≤ {self.value:g}x {peer}",
            "plus": f"≤ {peer} + {self.value:g} {unit}",
        }[self.kind]


class Target(NamedTuple):
    section: str
    row: str
    unit: str
    goal: Goal
    peer: str = BEST


def at_most(value):
    return Goal("at most", value)


def at_least(value):
    return Goal("at least", value)


def times(factor):
    """Allows this factor of the peer's figure: 1 means not slower."""
    return Goal("times", factor)


def plus(value):
    """Allows the peer's figure and so much more: what has a sandbox cannot cost less than what has none."""
    return Goal("plus", value)


NONE = Goal(None)

ROWS = [
    Target("start", "start to initialize", "ms", at_most(4), "agent-browser"),
    Target("start", "start to initialize, root on tmpfs", "ms", at_most(4)),
    Target("start", "start to initialize, 200 rules and 20 commands", "ms", at_most(4)),
    Target("memory", "idle memory", "MB", at_most(6.5), "agent-browser"),
    Target("memory", "tools/list", "KB", NONE),
    Target("calls", "file.read, 10 KB, stdio", "ms", at_most(0.15), "server-filesystem"),
    Target("calls", "file.read, 10 KB, HTTP", "ms", at_most(0.4), "server-filesystem"),
    Target("calls", "file.read, 10 KB, SSE", "ms", NONE, "server-filesystem"),
    Target("calls", "file.read, 10 KB: answer", "KB", NONE),
    Target("calls", "file.write, a small file", "ms", times(1)),
    Target("calls", "file.list, 200 files", "ms", times(1), "server-filesystem"),
    Target("calls", "file.replace, 1 place in 10 KB", "ms", times(1)),
    Target("gateway", "no-op through a gateway, 8 clients: CPU", "µs", at_most(85), "mcp-proxy (crate)"),
    Target("gateway", "no-op through a gateway, 1 client: CPU", "µs", NONE, "mcp-proxy (crate)"),
    Target("gateway", "no-op through a gateway, 8 clients", "ms", NONE),
    Target("gateway", "no-op through a gateway, 1 client", "ms", NONE),
    Target("gateway", "gateway memory", "MB", NONE),
    Target("gateway", "gateway memory, with its sandboxes", "MB", NONE),
    Target("gateway", "start to tools/list, 12 servers", "ms", NONE),
    Target("runs", "shell.exec, echo hi", "ms", at_most(2.5), "bwrap"),
    Target("runs", "ringfence sandbox, /bin/true", "ms", times(1), "bwrap"),
    Target("runs", "300 stubborn processes gone, sandbox killed", "ms", at_most(250), "bwrap"),
    Target("runs", "300 stubborn processes gone, call cancelled", "ms", at_most(250)),
    Target("runs", "code.exec, once", "ms", plus(20), "python3"),
    Target("runs", "code.exec, a cell in a session", "ms", times(1), "python3"),
    Target("execs", "watched exec, posix_spawn", "µs", times(1.3), "native"),
    Target("execs", "watched exec, bash loop", "µs", times(1.15), "native"),
    Target("execs", "watched exec, bash loop: times native", "x", times(0.7), "codex-shell-tool-mcp"),
    Target("execs", "watched exec, python", "µs", NONE, "native"),
    Target("execs", "watched exec, xargs -P64", "µs", NONE, "native"),
    Target("execs", "watched exec, make -j2", "ms", times(1.03), "native"),
    Target("search", "file.list, names in a large tree", "ms", times(1.2), "rg"),
    Target("search", "file.search, nothing found", "ms", times(1.2), "rg"),
    Target("search", "file.search, many lines", "ms", times(1.2), "rg"),
    Target("search", "file.search, any case", "ms", times(1.2), "rg"),
    Target("browser", "browser.navigate", "ms", times(1)),
    Target("browser", "browser.screenshot, PNG of a settled page", "ms", times(1), "chrome-devtools"),
    Target("browser", "navigate + screenshot, PNG", "ms", times(1), "playwright"),
    Target("browser", "navigate + screenshot, as it comes", "ms", times(1)),
    Target("browser", "browser.snapshot, full", "ms", times(1)),
    Target("browser", "browser.snapshot, full: answer", "KB", NONE),
    Target("browser", "the first page", "ms", times(1)),
    Target("browser", "memory with a page", "MB", times(1)),
    Target("sessions", "HTTP call, 256 sessions: CPU", "µs", NONE, "ringfence, 1 session"),
    Target("sessions", "idle HTTP session: memory", "MB", NONE),
    Target("sessions", "shell.exec, 64 sessions", "per s", at_least(300), "bwrap"),
    Target("tools", "start, 1,000 configured tools", "ms", at_most(15), "ringfence, 20 tools"),
    Target("tools", "answer to initialize, 1,000 configured tools", "KB", at_most(20), "ringfence, 20 tools"),
    Target("tools", "CPU of one more tool, at 1,000", "µs", times(1.5), "ringfence, at 200"),
    Target("records", "audit, 1,000,000 records: by time", "s CPU", at_most(0.3), "rg"),
    Target("records", "audit, 1,000,000 records: by tool", "s CPU", at_most(0.3), "rg"),
    Target("records", "audit, 1,000,000 records: by trace", "s CPU", at_most(0.3), "rg"),
    Target("records", "audit, 1,000,000 records: --since 1s", "ms", at_most(20), "rg"),
    Target("records", "audit verify, 1,000,000 records", "s CPU", NONE, "sha256sum"),
    Target("files", "file.list, 100,000 files", "ms", times(1.2), "rg"),
    Target("files", "file.search, 100,000 files", "ms", times(1.2), "rg"),
    Target("output", "output of 256 MB: CPU per MB", "ms", NONE, "cat"),
    Target("output", "output of 256 MB: memory", "MB", NONE, "ringfence, 1 MB"),
]

TARGETS = {target.row: target for target in ROWS}
SECTIONS = list(dict.fromkeys(target.section for target in ROWS))
