#!/usr/bin/env python3
"""Runs MCP clients against a ringfence binary, and fills docs/clients/matrix.md with what was observed.

    conformance/clients/run.py [--short] [--only NAME,NAME] [--keep] [target/debug/ringfence]

Every client takes the same steps (steps.py) over every transport that it has. The packages come from npm and PyPI; after
that nothing leaves the machine. The exit code is 1 if a cell failed, or if one that the page calls `ok` is not `ok`.
RINGFENCE_BLESS=1 writes these rows of the page and does not fail. --short is four small and fast clients over stdio and HTTP.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent.parent
# codex_run.py and codex_model.py are shared with the tests next to this directory.
sys.path.insert(1, str(PROJECT / "conformance"))

import clients  # noqa: E402
import matrix  # noqa: E402
import packages  # noqa: E402
from place import Place  # noqa: E402
from steps import CELLS, FAILED, OK, Judge  # noqa: E402


def run_client(client, transport, binary, at):
    """One client over one transport: its row of the matrix, and details of what failed."""
    began = time.monotonic()
    with Place(at, binary, transport) as place:
        reports = client.take_steps(place)
        place.wait_for_calls()
        records = place.records()
    judge = Judge(reports, records, client.lacks(transport))
    start = next((record for record in records if record["event"] == "call.start"), {})
    row = {"client": client.title, "version": client.version, "transport": transport, "protocol": start.get("protocol", "?"),
           "cells": judge.cells()}
    good = sum(cell == OK for cell in row["cells"].values())
    print(f"{client.title:22} {client.version:10} {transport:6} {row['protocol']:11} {good:2} of {len(CELLS)} ok "
          f"{time.monotonic() - began:5.1f} s  {start.get('client', '')}", flush=True)
    for name, cell in row["cells"].items():
        if cell == FAILED:
            print(f"    {name}: FAILED: {judge.detail(name)}", flush=True)
        elif cell != OK:
            print(f"    {name}: {cell}", flush=True)
    return row


def main():
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--short", action="store_true", help="four small and fast clients, over stdio and HTTP")
    words.add_argument("--only", help="names of clients, with commas between them")
    words.add_argument("--keep", action="store_true", help="keep the files of all runs")
    words.add_argument("binary", nargs="?", default=PROJECT / "target/debug/ringfence")
    given = words.parse_args()
    binary = Path(given.binary).resolve(strict=True)
    names = given.only.split(",") if given.only else clients.SHORT if given.short else list(clients.CLIENTS)
    packages.install_node()
    chosen = [clients.CLIENTS[name]() for name in names]

    scratch, rows = Path(tempfile.mkdtemp(prefix="clients-")), []
    try:
        for name, client in zip(names, chosen):
            transports = [transport for transport in client.transports if transport != "sse" or not given.short]
            rows += [run_client(client, transport, binary, scratch / f"{name}-{transport}") for transport in transports]
    finally:
        print(f"files: {scratch}") if given.keep else shutil.rmtree(scratch, ignore_errors=True)

    lost = matrix.lost_cells(matrix.read_page(), rows)
    for line in lost:
        print(f"clients: {line}", file=sys.stderr)
    if "RINGFENCE_BLESS" in os.environ:
        matrix.update_page(rows)
        return 0
    good = sum(cell == OK for row in rows for cell in row["cells"].values())
    print(f"clients: {len(rows)} rows, {good} cells ok, {len(lost)} lost or failed")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
