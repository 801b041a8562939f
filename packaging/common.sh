# shellcheck shell=bash
# Sourced by the scripts that make packages: the project's directory, version, date and binary.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# shellcheck disable=SC2034  # for the scripts
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
arch=x86_64
dist=$PWD/target/dist
binary=$dist/bin/ringfence-$arch
packages=${RINGFENCE_PACKAGES:-$dist/packages}
# The date of the last commit, so that two builds of one commit have the same bytes.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
umask 022

[ -x "$binary" ] || { echo "$binary does not exist: run 'make binary' first" >&2; exit 1; }
mkdir -p "$packages"

# add_documents DIRECTORY: copies licence, notices, completions and manual pages.
add_documents() {
    install -D -m 644 -t "$1" LICENSE
    python3 packaging/notices.py | gzip -9n >"$1/NOTICES.gz"
    "$binary" completions --help >/dev/null 2>&1 || { echo 'SKIPPED: this binary has no completions' >&2; return 0; }
    mkdir -p "$1"/completions
    "$binary" completions bash >"$1/completions/ringfence.bash"
    "$binary" completions zsh >"$1/completions/_ringfence"
    "$binary" completions fish >"$1/completions/ringfence.fish"
    "$binary" man --help >/dev/null 2>&1 || { echo 'SKIPPED: this binary has no manual pages' >&2; return 0; }
    mkdir -p "$1/man"
    "$binary" man "$1/man"
}

# report FILE: prints the size of a package.
report() { echo "${1#"$PWD"/}: $(stat -c %s "$1") bytes"; }
