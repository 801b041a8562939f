"""Plots of growth curves as SVG, readable in light and dark colour schemes."""

import math
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 640, 340
LEFT, RIGHT, TOP, BOTTOM = 64, 150, 44, 48
STYLE = """
svg{--back:#fff;--text:#24292f;--faint:#d8dee4;--s0:#0b62c4;--s1:#b54708;--s2:#1a7f4b;--s3:#8250df}
@media (prefers-color-scheme:dark){svg{--back:#0d1117;--text:#e6edf3;--faint:#30363d;--s0:#6cb2ff;--s1:#ffa657;--s2:#56d68a;--s3:#c9a3ff}}
text{font:12px system-ui,sans-serif;fill:var(--text)}
.title{font-size:14px;font-weight:600}
.grid{stroke:var(--faint);stroke-width:1}
path{fill:none;stroke-width:2}
"""
COLOURS = 4


def draw_curve(curve):
    """Returns the SVG of a curve. Both axes are linear where y may grow in proportion to x; elsewhere the x axis is
    logarithmic, because sizes are multiples."""
    points = [point for line in curve.series.values() for point in line]
    xs = sorted({x for x, _ in points})
    across = make_scale(0 if curve.is_proportional else xs[0], xs[-1], LEFT, WIDTH - RIGHT, not curve.is_proportional)
    ticks = choose_ticks(max(y for _, y in points))
    up = make_scale(ticks[0], ticks[-1], HEIGHT - BOTTOM, TOP, False)
    parts = [f'<text class="title" x="{LEFT}" y="22">{escape(curve.title)}</text>']
    for tick in ticks:
        y = up(tick)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{format_short(tick)}</text>')
    for x in space_labels(xs, across):
        parts.append(f'<text x="{across(x):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{format_short(x)}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 10}" text-anchor="middle">{escape(curve.x)}</text>')
    parts.append(f'<text x="{LEFT}" y="{TOP - 8}">{escape(curve.y)}</text>')
    parts += draw_lines(curve, across, up)
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img">\n'
        f"<title>{escape(curve.title)}</title>\n<style>{STYLE}</style>\n"
        f'<rect width="{WIDTH}" height="{HEIGHT}" style="fill:var(--back)"/>\n{body}\n</svg>\n'
    )


def draw_lines(curve, across, up):
    """Returns each series as a line with points, named at its end."""
    parts, ends = [], []
    for number, (name, line) in enumerate(curve.series.items()):
        colour = f"var(--s{number % COLOURS})"
        line = sorted(line)
        path = "L".join(f"{across(x):.1f} {up(y):.1f}" for x, y in line)
        parts.append(f'<path d="M{path}" style="stroke:{colour}"/>')
        for x, y in line:
            point = f"{escape(name)}: {format_short(y)} {escape(curve.y)} at {format_short(x)} {escape(curve.x)}"
            parts.append(f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="3.5" style="fill:{colour}"><title>{point}</title></circle>')
        ends.append((up(line[-1][1]), f"{name} {format_short(line[-1][1])}", colour))
    at = -math.inf
    for y, text, colour in sorted(ends):
        at = max(y, at + 16)
        parts.append(f'<text x="{WIDTH - RIGHT + 10}" y="{at + 4:.1f}" style="fill:{colour}">{escape(text)}</text>')
    return parts


def make_scale(low, high, start, end, logarithmic):
    """Returns the function from a value to its place."""
    change = math.log if logarithmic else float
    if low == high:
        return lambda value: (start + end) / 2
    return lambda value: start + (change(value) - change(low)) / (change(high) - change(low)) * (end - start)


def choose_ticks(highest):
    """Returns four to six round ticks, from zero to above the highest value."""
    if highest <= 0:
        return [0, 1]
    power = 10 ** math.floor(math.log10(highest))
    size = next(power * part for part in (0.2, 0.5, 1, 2) if highest <= power * part * 5)
    return [number * size for number in range(math.ceil(highest / size) + 1)]


def space_labels(values, place, gap=36):
    """Leaves out values whose labels would overlap the next one."""
    kept = []
    for value in reversed(values):
        if not kept or place(kept[-1]) - place(value) >= gap:
            kept.append(value)
    return kept


def format_short(value):
    for factor, letter in ((1_000_000, "M"), (1_000, "k")):
        if value >= factor:
            return f"{value / factor:.3g}{letter}"
    return f"{value:.3g}"
