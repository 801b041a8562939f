"""How long a server takes from before its process exists to its answer to `initialize`."""

import tempfile

import clients
from measure import OURS, RowGroup

from . import rulefile

PEERS = ("agent-browser", "server-filesystem", "playwright", "chrome-devtools", "desktop-commander")
PLAIN, LOADED = "start to initialize", "start to initialize, 200 rules and 20 commands"
MEMORY = "start to initialize, root on tmpfs"
RULES, COMMANDS = 200, 20


def command_entries(count):
    """Returns a configuration with so many commands, each with a schema of its own."""
    entry = """[mcp.command{n}]
command = "true"
args = ["--number={{number}}", "--", "{{paths}}"]
description = "Command number {n}, as a project has some."
requires_approval = false
[mcp.command{n}.input_schema]
type = "object"
required = ["paths"]
properties = {{ number = {{ type = "integer" }}, paths = {{ type = "array", items = {{ type = "string", format = "path" }} }} }}
"""
    return "\n".join(entry.format(n=number) for number in range(count))


def measure(stage):
    place = stage.section("start")
    group = RowGroup(stage, PLAIN, rounds=20)
    for name in (OURS, *PEERS):
        # The peers that node runs take some hundred times as long.
        each = 4 if name in (OURS, "agent-browser") else 1
        group.add(name, lambda name=name, each=each: clients.time_starts(stage, place.argv(name), each).ms)
    yield from group.measure()

    # What a start writes must not wait for a disk.
    with tempfile.TemporaryDirectory(prefix="ringfence-bench-", dir="/dev/shm") as root:
        group = RowGroup(stage, MEMORY, rounds=20)
        argv = [stage.binary, "serve", "--root", root, "--workspace", str(place.workspace)]
        group.add(OURS, lambda: clients.time_starts(stage, argv, 4).ms)
        yield from group.measure()

    config = place.write("commands.toml", command_entries(COMMANDS))
    rules = place.write("bench.rules", rulefile.make_rules(RULES))
    group = RowGroup(stage, LOADED, rounds=20)
    group.add(OURS, lambda: clients.time_starts(stage, place.serve("--config", config, "--rules", rules), 4).ms)
    yield from group.measure()
