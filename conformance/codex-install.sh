#!/usr/bin/env bash
# Installs Codex beside this file, if it is not there yet, and prints where its program is:
#
#   codex=$(conformance/codex-install.sh)
#
# The first run needs node, npm and the network, and takes some 400 MB.
set -euo pipefail

version=0.166.0
here=$(cd "$(dirname "$0")" && pwd)
home=$here/.codex
wrapper=$home/node_modules/.bin/codex

installed() { [ "$("$wrapper" --version 2>/dev/null)" = "codex-cli $version" ]; }

# Several tests may ask at once; one of them installs.
mkdir -p "$home"
exec 9<"$home"
flock 9
if ! installed; then
    npm install --prefix "$home" --save-exact --no-audit --no-fund --loglevel=error "@openai/codex@$version" >&2
    installed || { echo "cannot install Codex $version" >&2; exit 2; }
fi

# The program itself starts in a tenth of the time of the script that starts it.
program=$(find "$home/node_modules/@openai" -path '*/vendor/*/codex' -type f -perm -u+x -print -quit 2>/dev/null || true)
echo "${program:-$wrapper}"
