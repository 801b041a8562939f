#!/usr/bin/env bash
# Installs Codex under .node/, unless it is already installed, and prints the path of its program:
#
#   codex=$(conformance/codex-install.sh [VERSION])
#
# The first run of a version needs node, npm and the network, and takes some 400 MB.
set -euo pipefail

version=${1:-0.166.0}
home=$(cd "$(dirname "$0")/.." && pwd)/.node/codex-$version
wrapper=$home/node_modules/.bin/codex

installed() { [ "$("$wrapper" --version 2>/dev/null)" = "codex-cli $version" ]; }

# Several tests may run this at once; one of them installs.
mkdir -p "$home"
exec 9<"$home"
flock 9
if ! installed; then
    npm install --prefix "$home" --save-exact --no-audit --no-fund --loglevel=error "@openai/codex@$version" >&2
    installed || { echo "cannot install Codex $version" >&2; exit 2; }
fi

# Starting the program directly takes a tenth of the time of its wrapper script.
program=$(find "$home/node_modules/@openai" -path "*/vendor/$(uname -m)-*linux*/codex" -type f -perm -u+x -print -quit 2>/dev/null || true)
echo "${program:-$wrapper}"
