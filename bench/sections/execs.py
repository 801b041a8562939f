"""What watching costs an exec. A load times itself, from inside: no figure includes the start of a sandbox."""

import json
import shutil
import subprocess

import clients
import goals
import peers
from measure import OURS, Row, RowGroup, median

from . import rulefile

PEER, NATIVE = "codex-shell-tool-mcp", "native"
PEERS = (PEER,)
RULES = 200
UNWATCHED, NO_RULES = "ringfence, not watched", "ringfence, no rules"
BASH = "watched exec, bash loop"
BASH_RATIO = f"{BASH}: times native"

CLOCK = "a=$EPOCHREALTIME; {}; b=$EPOCHREALTIME; echo $((${{b/[.,]/}} - ${{a/[.,]/}}))"
LOOP = CLOCK.format("for ((i = 0; i < COUNT; i++)); do /bin/true; done")
CROWD = CLOCK.format("seq COUNT | xargs -P64 -n1 /bin/true")
COMPILE = "make -s clean; " + CLOCK.format("make -s -j2 >/dev/null")
PYTHON = """
import subprocess, time
began = time.perf_counter()
for _ in range(COUNT): subprocess.run(["/bin/true"], check=True)
print(int((time.perf_counter() - began) * 1e6))
"""


def loads(stage, spawn):
    """Returns, by row, the command, its execs in a round, and in which rounds it runs. It prints microseconds."""
    bash, count = ["bash", "--norc", "-c"], stage.size(100, 50)
    return {
        "watched exec, posix_spawn": ([spawn, "time", "COUNT", "/bin/true"], count, 1),
        BASH: ([*bash, LOOP], count, 1),
        "watched exec, python": ([stage.python, "-IS", "-c", PYTHON], count, 1),
        "watched exec, xargs -P64": ([*bash, CROWD], count, 1),
        # Its figure is the whole compile, because it consists of more than execs.
        "watched exec, make -j2": ([*bash, COMPILE], 1, 4),
    }


def write_sources(place, spawn, sources):
    """Writes the sources, the timer and the settings."""
    (place.workspace / "spawn").write_bytes(spawn.read_bytes())
    (place.workspace / "spawn").chmod(0o755)
    for number in range(sources):
        lines = ["#include <stdio.h>", "#include <stdlib.h>", "#include <string.h>"]
        lines += [f'int f{number}_{at}(int x) {{ return x * {at} + (int)strlen("{number}"); }}' for at in range(20)]
        (place.workspace / f"part{number}.c").write_text("\n".join(lines) + "\n")
    objects = " ".join(f"part{number}.o" for number in range(sources))
    (place.workspace / "Makefile").write_text(f"all: {objects}\n%.o: %.c\n\tgcc -O1 -c -o $@ $<\nclean:\n\trm -f {objects}\n")
    rules = place.folder / "codex/rules/default.rules"
    rules.parent.mkdir(parents=True)
    rules.write_text(rulefile.make_rules(RULES))
    return place.write("unwatched.toml", "[policy]\nintercept = false\n"), str(rules)


class Local:
    """Runs commands, natively or in a sandbox."""

    def __init__(self, stage, place, *prefix):
        self.place, self.prefix = place, prefix
        # The peer reads rules from the home of Codex; our sandbox only those of --rules.
        self.env = {**stage.env, "CODEX_HOME": str(place.folder / "nowhere")}

    def output(self, argv):
        ended = subprocess.run([*self.prefix, *argv], cwd=self.place.workspace, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, timeout=300)
        if ended.returncode != 0:
            raise RuntimeError(f"{argv[0]}: exit code {ended.returncode}: {ended.stderr.decode(errors='replace')[-300:]}")
        return ended.stdout.decode() + ended.stderr.decode(errors="replace")


class Peer:
    """The peer's server in one long session, without any sandbox: only its watching is measured."""

    def __init__(self, stage, place):
        self.env, self.workspace, self.client = {**stage.env, "CODEX_HOME": str(place.folder / "codex")}, str(place.workspace), None

    def connect(self):
        self.client = clients.Client(peers.make_argv(PEER), self.env)
        self.client.initialize()
        state = {"sandboxPolicy": {"type": "danger-full-access"}, "codexLinuxSandboxExe": None}
        self.client.request("codex/sandbox-state/update", {**state, "sandboxCwd": self.workspace, "useLinuxSandboxBwrap": False})

    def output(self, argv):
        if not self.client:
            self.connect()
        words = {"command": argv[-1], "workdir": self.workspace, "login": False, "timeout_ms": 55_000}
        _, result = self.client.call("shell", words)
        return json.loads(result["content"][0]["text"])["output"]

    def close(self):
        if self.client:
            self.client.close()


def require_rules(player, are_in_force):
    """Raises if rules are not enforced where they should be; a figure without enforcement would be meaningless."""
    refused = "refused" in player.output(["bash", "--norc", "-c", f"{rulefile.FORBIDDEN} || echo refused"])
    if refused != are_in_force:
        raise RuntimeError("it does not enforce its rules" if are_in_force else "it refuses what no rule forbids")


def run_load(player, argv, count):
    """Returns the microseconds of one exec: the median if the load prints one figure per exec, otherwise the average."""
    figures = [int(line) for line in player.output([word.replace("COUNT", str(count)) for word in argv]).split()]
    return figures[0] / count if len(figures) == 1 else median(figures) / 1000


def measure(stage):
    if lacking := [program for program in ("gcc", "make", "xargs") if not shutil.which(program, path=stage.path)]:
        raise RuntimeError(f"{', '.join(lacking)} missing: conformance/packages.sh --bench installs what is needed")
    place = stage.section("execs")
    sources = stage.size(150, 40)
    unwatched, rules = write_sources(place, stage.spawn, sources)
    players = {
        NATIVE: Local(stage, place),
        OURS: Local(stage, place, *place.sandbox("--rules", rules)),
        UNWATCHED: Local(stage, place, *place.sandbox("--config", unwatched)),
        NO_RULES: Local(stage, place, *place.sandbox()),
    }
    for name, player in players.items():
        require_rules(player, name == OURS)
    peer = Peer(stage, place)
    try:
        for row, load in loads(stage, str(place.workspace / "spawn")).items():
            reduced = stage.reduced(f"{sources} files") if load[2] > 1 else ""
            group = RowGroup(stage, row, rounds=20, reduced=reduced, also=(BASH_RATIO,) if row == BASH else ())
            for name, player in players.items():
                # The last two are our own configurations, shown to tell where the time goes.
                group.add(name, load_turn(player, row, load), every=1 if stage.quick else load[2], rival=name not in (UNWATCHED, NO_RULES))
            if row == BASH and group.is_wanted():
                # The peer watches only what its own bash runs, so only this load is comparable.
                group.require(PEER, lambda: require_rules(peer, True))
                group.add(PEER, load_turn(peer, row, load))
            yield from group.measure()
            if row == BASH and stage.wants(BASH_RATIO):
                yield compute_native_ratios(group.rows[BASH])
    finally:
        peer.close()


def load_turn(player, row, load):
    argv, count, _ = load
    scale = 1000 if goals.TARGETS[row].unit == "ms" else 1
    return lambda: run_load(player, argv, count) / scale


def compute_native_ratios(loop):
    """Returns the loop once more, as the factor of the native loop in the same round."""
    row = Row(BASH_RATIO, bystanders=loop.bystanders, failed=loop.failed, reduced=loop.reduced)
    for player in loop.players():
        for values, base in zip(loop.rounds[player], loop.rounds[NATIVE]):
            if player != NATIVE and values and base:
                row.add(player, median(values) / median(base))
    return row
