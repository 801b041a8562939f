#!/usr/bin/env bash
# Installs the tools of packaging/requirements.txt from PyPI under .tools/packaging, once, and prints the directory of
# their programs. Nothing is installed in the system.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=.tools/packaging
# The copy is made last, so that an interrupted installation is repeated.
if ! cmp -s packaging/requirements.txt "$tools/requirements.txt"; then
    python3 -m venv "$tools" >&2
    "$tools/bin/pip" install --quiet --disable-pip-version-check --requirement packaging/requirements.txt >&2
    cp packaging/requirements.txt "$tools/requirements.txt"
fi
echo "$PWD/$tools/bin"
