"""Memory and CPU of processes, as the kernel counts them."""

import os
import time
from pathlib import Path


def find_tree(pid):
    """Returns a process and all its descendants that still exist."""
    found = [pid]
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += find_tree(int(child))
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found


def find_family(pid, mark):
    """Returns the tree of a server and of its daemons, which are recognized by a variable that they inherited."""
    found = set(find_tree(pid))
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and mark.encode() in read_proc(entry.name, "environ").split(b"\0"):
            found |= set(find_tree(int(entry.name)))
    return found


def read_proc(pid, name):
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def read_command_line(pid):
    return read_proc(pid, "cmdline").split(b"\0")


def measure_pss_mb(pids):
    """Returns the proportional memory: shared pages are divided among the processes that share them."""
    lines = (line for pid in pids for line in read_proc(pid, "smaps_rollup").splitlines())
    return sum(int(line.split()[1]) for line in lines if line.startswith(b"Pss:")) / 1024


def read_peak_mb(pid):
    """Returns the most memory that a process has used so far."""
    lines = read_proc(pid, "status").splitlines()
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(b"VmHWM:")), 0)


def read_cpu_ms(pids):
    """Returns the CPU time that processes have used, from their own clocks: /proc counts in ticks of 10 ms."""
    total = 0.0
    for pid in pids:
        try:
            # MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED)
            total += time.clock_gettime((~pid << 3) | 2) * 1000
        except OSError:
            continue
    return total
