#!/usr/bin/env python3
"""Tests of what the bench computes: counts, ratios, verdicts, tables and plots."""

import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml
from pathlib import Path

# Write no byte code next to the sources.
sys.dont_write_bytecode = True
import callgrind
import goals
import plot
import report
from measure import OURS, Curve, Row, RowGroup

# Two functions of the binary and one of libc; the 900 are the cost of a call, counted where it is spent.
COUNTED = """# callgrind format
events: Ir
ob=(1) /bin/server
fl=(1) main.rs
fn=(1) main
0 100
cob=(2) /lib/libc.so.6
cfn=(2) memcpy
calls=3 0
0 900
+2 20
ob=(2)
fn=(2)
0 900
ob=(1)
fn=(3) other
0 7

totals: 1027
"""


class Instructions(unittest.TestCase):
    def count(self, text, binary):
        with tempfile.NamedTemporaryFile("w+") as file:
            file.write(text)
            file.flush()
            return callgrind.count_instructions(file.name, binary)

    def test_only_the_binary_itself_counts(self):
        self.assertEqual(self.count(COUNTED, "/bin/server"), 127)
        self.assertEqual(self.count(COUNTED, "/lib/libc.so.6"), 900)

    def test_a_binary_that_is_not_in_the_output_is_an_error(self):
        with self.assertRaisesRegex(RuntimeError, "counted nothing"):
            self.count(COUNTED, "/bin/elsewhere")

    def test_more_than_the_tolerance_is_named(self):
        accepted = {"start": 1000, "read": 1000, "run": 1000}
        lines, grew = callgrind.compare_counts({"start": 1099, "read": 1101, "run": 850}, accepted)
        self.assertTrue(grew)
        self.assertNotIn("TOO MANY", lines[0])
        self.assertIn("read", lines[1])
        self.assertIn("+10.1%: TOO MANY", lines[1])
        self.assertIn("ACCEPT=1", lines[2])
        self.assertFalse(callgrind.compare_counts({"start": 1100}, accepted)[1])

    def test_a_count_that_no_one_accepted_fails(self):
        self.assertTrue(callgrind.compare_counts({"start": 1}, {})[1])


def row(name, ours, **peers):
    found = Row(name)
    for player, rounds in {OURS: ours, **peers}.items():
        for values in rounds:
            found.add(player.replace("_", "-"), values)
    return found


class Verdicts(unittest.TestCase):
    def test_the_ratio_is_that_of_the_same_rounds(self):
        # The machine was ten times as slow in the second round, for both.
        found = row("file.list, 200 files", [[1.0], [10.0], [1.0]], server_filesystem=[[2.0], [20.0], [2.0]])
        self.assertEqual(found.ratio(), 0.5)
        self.assertEqual(found.verdict(), "met")

    def test_a_named_peer_is_compared_even_if_another_is_better(self):
        found = row("start to initialize", [[3.0]], agent_browser=[[5.0]], playwright=[[1.0]])
        self.assertEqual(found.peer(), "agent-browser")
        found = row("file.write, a small file", [[3.0]], server_filesystem=[[5.0]], other=[[1.0]])
        self.assertEqual((found.peer(), found.verdict()), ("other", "MISSED"))

    def test_each_kind_of_goal(self):
        for goal, ours, peer, is_met in (
            (goals.at_most(4), 4.0, 1.0, True),
            (goals.at_most(4), 4.1, 9.0, False),
            (goals.at_least(300), 299.0, 1.0, False),
            (goals.times(1.2), 1.2, 1.0, True),
            (goals.times(1.2), 1.3, 1.0, False),
            (goals.plus(20), 29.0, 10.0, True),
            (goals.plus(20), 31.0, 10.0, False),
        ):
            self.assertEqual(goal.is_met(ours, peer, ours / peer), is_met, (goal, ours))

    def test_no_figure_of_ours_is_a_failure_and_a_missing_peer_is_said(self):
        failed = Row("file.list, 200 files", failed={OURS: "it ended"})
        self.assertEqual(failed.verdict(), "FAILED")
        alone = row("file.list, 200 files", [[1.0]])
        self.assertEqual(alone.verdict(), "no peer")
        reduced = row("file.list, 100,000 files", [[99.0]], rg=[[1.0]])
        reduced.reduced = "1,000 files"
        self.assertEqual(reduced.verdict(), "too small to judge")

    def test_every_goal_names_a_row_once(self):
        self.assertEqual(len(goals.TARGETS), len(goals.ROWS))


class QuietStage:
    quick, missing = False, {"rg": "not installed"}

    def wants(self, *_rows):
        return True

    def progress(self, _text):
        pass


class Rounds(unittest.TestCase):
    def test_every_round_begins_with_another_player_and_a_failure_is_kept(self):
        order, group = [], RowGroup(QuietStage(), "file.write, a small file", rounds=3)

        def turn(name):
            order.append(name)
            if name == "b" and len(order) > 6:
                raise RuntimeError("it broke")
            return 1.0

        for name in ("a", "b", "c", "rg"):
            group.add(name, lambda name=name: turn(name), warm=0)
        (found,) = group.measure()
        self.assertEqual("".join(order), "abcbcacab")
        self.assertEqual(found.failed, {"rg": "not installed", "b": "RuntimeError: it broke"})
        self.assertEqual(found.players(), ["a", "c"])


class Documents(unittest.TestCase):
    def test_the_table_names_what_was_missed_and_who_is_left_out(self):
        found = row("file.write, a small file", [[3.0, 3.1, 9.0]], server_filesystem=[[1.0, 1.1, 1.2]])
        found.failed["desktop-commander"] = "npm failed"
        text = report.format_document({found.name: found}, [], {"Date": "today"})
        self.assertIn("| file.write, a small file | 3.10 / 9.00 ms | server-filesystem 1.10 / 1.20 | 2.82x | ≤ 1x the best | **MISSED** |", text)
        self.assertIn("- desktop-commander: npm failed (file.write, a small file)", text)
        self.assertIn("0 goals met, 1 missed", text)

    def test_a_plot_is_xml_with_a_point_for_each_value_in_both_colour_schemes(self):
        for values in ([(1, 5.0), (1000, 7.0)], [(1, 0.01), (1000, 700.0)], [(1, 0.0), (10, 0.0)]):
            curve = Curve("name", "Title <&>", "sessions", "ms", {"ringfence": values, "peer & co": [(1, 1.0)]}, values[0][1] == 0.01)
            text = plot.draw_curve(curve)
            self.assertEqual(len(xml.fromstring(text).findall(".//{*}circle")), 3)
            self.assertIn("prefers-color-scheme:dark", text)

    def test_what_grows_in_proportion_is_a_straight_line(self):
        curve = Curve("name", "Title", "records", "s", {"ringfence": [(100, 1.0), (200, 2.0), (400, 4.0)]}, True)
        circles = xml.fromstring(plot.draw_curve(curve)).findall(".//{*}circle")
        (ax, ay), (bx, by), (cx, cy) = ((float(circle.get("cx")), float(circle.get("cy"))) for circle in circles)
        self.assertAlmostEqual((by - ay) / (bx - ax), (cy - by) / (cx - bx), places=2)

    def test_ticks_are_round_and_cover_the_values(self):
        self.assertEqual(plot.choose_ticks(7), [0, 2, 4, 6, 8])
        self.assertEqual([plot.format_short(value) for value in (0.25, 16, 1000, 1_000_000)], ["0.25", "16", "1k", "1M"])


if __name__ == "__main__":
    unittest.main()
