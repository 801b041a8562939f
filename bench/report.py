"""Results as a table on the terminal and as a document with plots."""

import datetime
import subprocess

import goals
import peers
import plot
from measure import OURS

COLUMNS = ("", "ringfence, p50 / p99", "peer, p50 / p99", "ratio", "goal", "")
MARKS = {"MISSED": "**MISSED**", "FAILED": "**FAILED**"}


def format_number(value):
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def format_figure(row, player):
    values = row.values(player)
    text = format_number(row.p50(player))
    return f"{text} / {format_number(row.p99(player))}" if len(values) > 2 else text


def format_cells(row):
    """Returns the columns of a row."""
    target, peer, ratio = row.target, row.peer(), row.ratio()
    ours = f"{format_figure(row, OURS)} {target.unit}" if row.values(OURS) else "-"
    theirs = f"{peer} {format_figure(row, peer)}" if peer else "-"
    name = f"{row.name} ({row.reduced})" if row.reduced else row.name
    goal = target.goal.text(target.unit, "the best" if target.peer == goals.BEST else target.peer)
    verdict = row.verdict()
    return [name, ours, theirs, f"{format_number(ratio)}x" if ratio else "-", goal, "" if verdict == "-" else verdict]


def group_rows(rows):
    """Returns the rows by section, in the order of the goals."""
    found = {}
    for target in goals.ROWS:
        if target.row in rows:
            found.setdefault(target.section, []).append(rows[target.row])
    return found


def format_terminal(rows):
    lines = [[*COLUMNS]] + [format_cells(row) for group in group_rows(rows).values() for row in group]
    widths = [max(len(line[at]) for line in lines) for at in range(len(COLUMNS))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip() for line in lines)


def format_others(row):
    """Returns the players that are neither ours nor the peer."""
    shown = [player for player in row.players() if player not in (OURS, row.peer())]
    return "; ".join(f"{player} {format_figure(row, player)}" for player in shown)


def group_failures(rows):
    """Returns, by player and reason, the rows that it is left out of."""
    found = {}
    for row in rows.values():
        for player, reason in row.failed.items():
            found.setdefault((player, reason), []).append(row.name)
    return found


def format_table(rows):
    lines = ["| " + " | ".join([*COLUMNS, "others"]) + " |", "|---|---|---|---|---|---|---|"]
    for section, group in group_rows(rows).items():
        lines.append(f"| **{section}** | | | | | | |")
        for row in group:
            columns = format_cells(row)
            columns[-1] = MARKS.get(columns[-1], columns[-1])
            lines.append("| " + " | ".join(text.replace("|", "\\|") for text in [*columns, format_others(row)]) + " |")
    return "\n".join(lines)


def summarize(rows):
    verdicts = [row.verdict() for row in rows.values()]
    goals_met = f"{verdicts.count('met')} goals met, {verdicts.count('MISSED')} missed"
    return goals_met + (f", {verdicts.count('FAILED')} rows failed" if "FAILED" in verdicts else "")


def format_document(rows, curves, facts):
    """Returns the text of docs/benchmarks.md."""
    parts = [
        "# Benchmarks",
        "`make bench` writes this page; [bench](../bench/README.md) explains each row. Every row and its peers ran in the same "
        "rounds, on one machine. The ratio is the median of the ratios in the same round; below 1 is faster or smaller than "
        "the peer (with a goal of ≥, above 1 is better).",
        "\n".join(f"- {name}: {text}" for name, text in facts.items()),
        f"## Results\n\n{summarize(rows)}.",
        format_table(rows),
    ]
    if curves:
        parts.append("## Growth\n\n" + "\n\n".join(f"![{curve.title}](benchmarks/{curve.name}.svg)" for curve in curves))
    if left_out := group_failures(rows):
        lines = [f"- {player}: {reason} ({', '.join(names)})" for (player, reason), names in left_out.items()]
        parts.append("## Left out\n\n" + "\n".join(lines))
    if notes := [(row.name, note) for row in rows.values() for note in row.notes]:
        parts.append("## Notes\n\n" + "\n".join(f"- {name}: {note}" for name, note in notes))
    return "\n\n".join(parts) + "\n"


def write_results(folder, rows, curves, facts):
    """Writes the document and its plots, and removes plots that no longer belong to it."""
    plots = folder / "benchmarks"
    plots.mkdir(parents=True, exist_ok=True)
    for old in plots.glob("*.svg"):
        old.unlink()
    for curve in curves:
        (plots / f"{curve.name}.svg").write_text(plot.draw_curve(curve))
    (folder / "benchmarks.md").write_text(format_document(rows, curves, facts))


def describe_run(stage, machine, loads, seconds):
    """Returns what the figures depend on."""
    now = datetime.datetime.now(datetime.timezone.utc)
    found = {
        "Date": f"{now:%Y-%m-%d %H:%M} UTC, {seconds / 60:.0f} minutes" + (", QUICK: fewer rounds, smaller sizes" if stage.quick else ""),
        "Machine": f"{machine['processor']}, {machine['cores']} cores, {machine['memory']}, Linux {machine['kernel']}; "
        f"load {loads[0]:.2f} before, {loads[1]:.2f} after",
        "Binary": f"ringfence {peers.read_program_version(stage.binary)}, {describe_commit()}, {stage.binary_size()}",
    }
    programs = {"node": peers.NODE, "python3": stage.python, "browser": stage.browser}
    versions = {name: peers.read_program_version(program) for name, program in programs.items() if program}
    versions |= {name: peers.read_version(name) for name in stage.present}
    found["Others"] = ", ".join(f"{name} {version}" for name, version in versions.items())
    return found


def describe_commit():
    """Returns the commit of the sources, which should be that of the binary."""
    words = ["git", "-C", str(peers.HERE), "describe", "--always", "--dirty", "--exclude=*"]
    ended = subprocess.run(words, capture_output=True, text=True)
    return f"sources at {ended.stdout.strip()}" if ended.returncode == 0 else "sources without git"
