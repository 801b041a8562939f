"""What an idle server occupies, with everything that it keeps running, and what its list of tools costs a client."""

import os
import time

import clients
import processes
from measure import OURS, RowGroup

PEERS = ("agent-browser", "server-filesystem", "playwright", "chrome-devtools", "desktop-commander")
IDLE, LIST = "idle memory", "tools/list"
SETTLED = 2


def measure(stage):
    place = stage.section("memory")
    group = RowGroup(stage, IDLE, LIST, rounds=5)
    for name in (OURS, *PEERS):
        group.add(name, lambda name=name: measure_idle(stage, place, name), warm=0)
    yield from group.measure()


def measure_idle(stage, place, name):
    """Measures one server at a time: memory that several share would be divided among them."""
    mark = f"RINGFENCE_BENCH={name}-{os.getpid()}-{time.monotonic_ns()}"
    client = clients.connect_stdio(stage, place.argv(name), mark=mark)
    try:
        listed = client.request("tools/list", {})
        # The memory of a server that is open and not used: the allocator and node's collector need a moment.
        time.sleep(SETTLED)
        return {IDLE: processes.measure_pss_mb(processes.find_family(client.server, mark)), LIST: listed.size / 1024}
    finally:
        client.close()
