"""The common form of every result: a row with our figure and those of the peers, and a curve."""

import subprocess
import sys
from dataclasses import dataclass, field

import goals

OURS = "ringfence"
FAULTS = (RuntimeError, OSError, KeyError, IndexError, ValueError, TypeError, subprocess.SubprocessError)


def percentile(values, part):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def median(values):
    return percentile(values, 0.5)


def explain(error):
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


@dataclass
class Row:
    """Figures of one row of the table, by player: ringfence, and each peer. Every player has a list of values per round."""

    name: str
    rounds: dict = field(default_factory=dict)
    # Players whose figures are shown but not compared, such as another configuration of ringfence.
    bystanders: set = field(default_factory=set)
    failed: dict = field(default_factory=dict)
    notes: list = field(default_factory=list)
    # What was smaller than the goal says, in a quick run.
    reduced: str = ""

    def add(self, player, values):
        self.rounds.setdefault(player, []).append(values if isinstance(values, list) else [values])

    def players(self):
        return [player for player, rounds in self.rounds.items() if any(rounds)]

    def values(self, player):
        return [value for values in self.rounds.get(player, ()) for value in values]

    def p50(self, player):
        return median(self.values(player))

    def p99(self, player):
        return percentile(self.values(player), 0.99)

    @property
    def target(self):
        return goals.TARGETS[self.name]

    def peer(self):
        """Returns the peer that we are compared with: the one that the goals name, or the best."""
        rivals = [player for player in self.players() if player != OURS and player not in self.bystanders]
        if self.target.peer != goals.BEST:
            return self.target.peer if self.target.peer in self.players() else None
        best = max if self.target.goal.more_is_better else min
        return best(rivals, key=self.p50, default=None)

    def ratio(self):
        """Returns the median of the ratios to the peer in the same rounds, so that a slow minute affects both."""
        peer = self.peer()
        if not peer or not self.values(OURS):
            return None
        pairs = zip(self.rounds[OURS], self.rounds[peer])
        ratios = [median(ours) / median(theirs) for ours, theirs in pairs if ours and theirs and median(theirs)]
        return median(ratios) if ratios else None

    def verdict(self):
        """Returns "met", "MISSED", "FAILED", or why there is none."""
        if OURS in self.failed or not self.values(OURS):
            return "FAILED"
        goal = self.target.goal
        if goal.kind is None:
            return "-"
        if self.reduced:
            return "too small to judge"
        peer = self.peer()
        if goal.needs_peer and self.ratio() is None:
            return "no peer"
        is_met = goal.is_met(self.p50(OURS), self.p50(peer) if peer else None, self.ratio())
        return "met" if is_met else "MISSED"


@dataclass
class Curve:
    """How figures grow: a plot with one line per series, each a list of (x, y)."""

    name: str
    title: str
    x: str
    y: str
    series: dict = field(default_factory=dict)
    # Whether y may grow in proportion to x, which is a straight line on linear axes. Otherwise it should stay flat.
    is_proportional: bool = False

    def add(self, series, x, y):
        self.series.setdefault(series, []).append((x, y))


class RowGroup:
    """Rows that are measured together: every player has its turn in each round."""

    def __init__(self, stage, *names, rounds, quick=None, reduced="", also=()):
        """`also` are rows that are derived from these."""
        self.stage, self.rows, self.also = stage, {name: Row(name, reduced=reduced) for name in names}, also
        self.count = (quick or max(3, rounds // 10)) if stage.quick else rounds
        self.turns = {}

    def add(self, player, turn, each=1, every=1, warm=1, rival=True, needs=()):
        """Adds a player. `turn` returns a value or a list of values in the row's unit, or a dictionary of both by row. A
        player takes `each` turns in a round, and part in `every` so many rounds. `needs` are the programs it consists of,
        if its name is not one of them."""
        for program in needs or [player]:
            if reason := self.stage.missing.get(program):
                return self.fail(player, reason)
        if player in next(iter(self.rows.values())).failed:
            return
        self.turns[player] = (turn, each, every, warm)
        if not rival:
            for row in self.rows.values():
                row.bystanders.add(player)

    def require(self, player, check):
        """Leaves a player out if a check raises: what it does would not be the same work."""
        if player in self.stage.missing or not self.is_wanted():
            return
        try:
            check()
        except FAULTS as error:
            self.fail(player, explain(error))

    def fail(self, player, reason):
        """Records that a player cannot take part; it is left out from then on."""
        self.turns.pop(player, None)
        for row in self.rows.values():
            row.failed[player] = reason
            row.rounds.pop(player, None)

    def note(self, text):
        for row in self.rows.values():
            if text not in row.notes:
                row.notes.append(text)

    def run(self, player, count):
        """Takes some turns; returns the values by row, or None if the player failed."""
        found = {}
        try:
            for _ in range(count):
                values = self.turns[player][0]()
                values = values if isinstance(values, dict) else {next(iter(self.rows)): values}
                for name, value in values.items():
                    found.setdefault(name, []).extend(value if isinstance(value, list) else [value])
        except FAULTS as error:
            self.fail(player, explain(error))
            return None
        return found

    def is_wanted(self):
        return self.stage.wants(*self.rows, *self.also)

    def measure(self):
        """Runs all rounds, each starting with another player, so that a slow minute affects all of them. Yields the rows."""
        if not self.is_wanted():
            return
        for player, (_, _, _, warm) in list(self.turns.items()):
            self.run(player, warm)
        for number in range(self.count):
            self.stage.progress(f"{next(iter(self.rows))}: round {number + 1} of {self.count}")
            turns = list(self.turns)
            first = number % max(1, len(turns))
            for player in turns[first:] + turns[:first]:
                _, each, every, _ = self.turns[player]
                found = self.run(player, each) if number % every == 0 else {}
                for name, row in self.rows.items():
                    if found is not None:
                        row.add(player, found.get(name, []))
        yield from (row for row in self.rows.values() if self.stage.wants(row.name))
