"""Reads the output of callgrind, and compares counts with those that were accepted."""

import re

# A count may grow by this before someone has to accept it.
TOLERANCE = 0.10
# `ob=` names the object of the lines that follow, `cob=` that of a called function; a name comes once, then its number.
OBJECT = re.compile(r"(c?)ob=(\(\d+\))? ?(.*)")


def count_instructions(path, binary):
    """Returns the instructions that functions of a binary executed themselves, without those of libraries."""
    total, names, is_counted, is_call = 0, {}, False, False
    with open(path) as lines:
        for line in lines:
            if line[0] in "0123456789+-*":
                # The line after `calls=` is the cost of the called function, which is counted there.
                if is_counted and not is_call:
                    total += int(line.split()[1])
                is_call = False
            elif line.startswith("calls="):
                is_call = True
            elif found := OBJECT.match(line):
                called, number, name = found.groups()
                if name:
                    names[number] = name
                if not called:
                    is_counted = (name or names[number]) == binary
    if total == 0:
        raise RuntimeError(f"callgrind counted nothing of {binary}")
    return total


def compare_counts(counts, accepted):
    """Returns a line for each count, and whether one grew too much."""
    lines, grew = [], False
    for name, count in counts.items():
        if name not in accepted:
            lines.append(f"{name:6} {count:>13,} instructions, not accepted yet")
            grew = True
            continue
        change = count / accepted[name] - 1
        text = f"{name:6} {count:>13,} instructions, accepted {accepted[name]:,}: {change:+.1%}"
        if count > accepted[name] * (1 + TOLERANCE):
            text, grew = f"{text}: TOO MANY, at most {TOLERANCE:+.0%}", True
        elif count < accepted[name] * (1 - TOLERANCE):
            text += ": fewer; run `make instructions ACCEPT=1` to keep the gain"
        lines.append(text)
    return lines, grew
