#!/usr/bin/env bash
# Installs what the tests of ordinary work and the bench of the fence run, on Debian and its relatives:
#
#   conformance/packages.sh [--check] [--bench]
#
# What is there already is left as it is, so that a second run does nothing. With --check nothing is installed: what
# is missing is named, and the exit code says whether anything is. With --bench come the packages that only the peers
# in bench/fence need.
set -euo pipefail

check=0 bench=0
for option in "$@"; do
    case $option in
    --check) check=1 ;;
    --bench) bench=1 ;;
    *) echo "$option: no such option; there are --check and --bench" >&2; exit 2 ;;
    esac
done

# A program and the package that brings it.
programs=(
    bwrap:bubblewrap chromium-headless-shell:chromium-headless-shell curl:curl dbus-run-session:dbus-daemon find:findutils flock:util-linux gcc:gcc gdb:gdb git:git gnome-keyring-daemon:gnome-keyring inotifywait:inotify-tools make:make
    node:nodejs openssl:openssl perl:perl ps:procps python3:python3 redis-cli:redis-tools redis-server:redis-server rg:ripgrep rsync:rsync script:bsdutils secret-tool:libsecret-tools setpriv:util-linux
    setsid:util-linux shellcheck:shellcheck sqlite3:sqlite3 strace:strace tar:tar tmux:tmux unzip:unzip zip:zip
)
[ $bench = 0 ] || programs+=(socat:socat)
# What is no program of its own. /usr/bin/time is one, but every shell has a word of that name.
packages=(ca-certificates fonts-dejavu-core libc6-dev python3-matplotlib python3-pytest python3-venv time tzdata)

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

missing=()
for entry in "${programs[@]}"; do
    command -v "${entry%%:*}" >/dev/null || missing+=("${entry#*:}")
done
if command -v dpkg-query >/dev/null; then
    for package in "${packages[@]}"; do
        installed "$package" || missing+=("$package")
    done
fi

if [ ${#missing[@]} = 0 ]; then
    echo 'every package the tests need is here'
    exit 0
fi
echo "missing: ${missing[*]}"
[ $check = 0 ] || exit 1

by_hand="install by hand what brings them on this system: ${missing[*]}"
command -v apt-get >/dev/null || { echo "there is no apt-get here: $by_hand" >&2; exit 1; }
as_root=()
if [ "$(id -u)" != 0 ]; then
    # Without a password or not at all: nobody is there to type one.
    sudo -n true 2>/dev/null || {
        echo "this needs root: run 'sudo apt-get install ${missing[*]}', or this script as root" >&2
        exit 1
    }
    as_root=(sudo -n)
fi

install() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}
# The lists of a fresh machine are empty or old: they are fetched once what they say cannot be installed.
install 2>/dev/null || { "${as_root[@]}" apt-get update -qq && install; } || { echo "apt-get failed: $by_hand" >&2; exit 1; }
echo "installed: ${missing[*]}"
