"""Rules for the sections that need some."""

import os

# Programs that the loads run; no rule may name them.
USED = "true bash sh dash env seq xargs make gcc cc cc1 as ld collect2 python python3 cat false".split()
# Proves that the rules are in force; the loads do not run it.
FORBIDDEN = "uname"


def make_rules(count):
    """Returns rules of which half name installed programs, whose files must be compared with every exec. None names a
    program that the loads run."""
    every = {entry.name for folder in ("/usr/bin", "/bin", "/usr/sbin") if os.path.isdir(folder) for entry in os.scandir(folder)}
    plain = [name for name in sorted(every) if name.isalnum() and name not in {*USED, FORBIDDEN}]
    names = plain[:: max(1, len(plain) // (count // 2))][: count // 2]
    names += [f"tool{number}" for number in range(count - 1 - len(names))]
    decisions = ("forbidden", "prompt", "allow")
    lines = [f'prefix_rule(pattern=["{FORBIDDEN}"], decision="forbidden")']
    for number, name in enumerate(names):
        pattern = f'["{name}"]' if number % 2 else f'["{name}", ["push", "publish"]]'
        lines.append(f'prefix_rule(pattern={pattern}, decision="{decisions[number % 3]}")')
    return "\n".join(lines) + "\n"
