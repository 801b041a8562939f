"""Growth in configured tools: the start, the answer to `initialize`, and the work of one more tool."""

import clients
from measure import OURS, Curve, RowGroup, median

from .start import command_entries

PEERS = ()
START, ANSWER = "start, 1,000 configured tools", "answer to initialize, 1,000 configured tools"
SLOPE, FLAT = "CPU of one more tool, at 1,000", "ringfence, at 200"
COUNTS = [20, 50, 100, 200, 500, 1000]
FEW = "ringfence, 20 tools"


def measure(stage):
    place = stage.section("tools")
    group = RowGroup(stage, START, ANSWER, rounds=10, also=(SLOPE,))
    if not group.is_wanted():
        return
    cpu = {}

    def turn(count, argv):
        starts = clients.time_starts(stage, argv, 2)
        cpu.setdefault(count, []).append(starts.cpu_ms)
        return {START: starts.ms, ANSWER: starts.size / 1024}

    names = {count: f"ringfence, {count} tools" for count in COUNTS} | {COUNTS[-1]: OURS}
    for count in COUNTS:
        argv = place.serve("--config", place.write(f"commands{count}.toml", command_entries(count)))
        group.add(names[count], lambda count=count, argv=argv: turn(count, argv), rival=names[count] == FEW)
    yield from group.measure()

    slope = RowGroup(stage, SLOPE, rounds=1)
    if slope.is_wanted() and set(COUNTS) <= set(cpu):
        middle = {count: median(values) for count, values in cpu.items()}
        row = slope.rows[SLOPE]
        row.add(OURS, (middle[1000] - middle[500]) / 500 * 1000)
        row.add(FLAT, (middle[200] - middle[20]) / 180 * 1000)
        yield row
    for row, name, title, unit in ((START, "tools-start", "Start to initialize, by configured tools", "ms"),
                                   (ANSWER, "tools-answer", "Answer to initialize, by configured tools", "KB")):  # fmt: skip
        curve = Curve(name, title, "tools", unit, is_proportional=True)
        for count in COUNTS:
            if group.rows[row].values(names[count]):
                curve.add(OURS, count, group.rows[row].p50(names[count]))
        yield curve
