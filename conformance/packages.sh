#!/usr/bin/env bash
# Installs the programs that the tests of ordinary work, the instruction counts and the bench run, on Debian and its
# derivatives:
#
#   conformance/packages.sh [--check] [--bench]
#
# Installed packages are left unchanged, so a second run does nothing. With --check nothing is installed: the script
# lists missing packages, and the exit code says whether any are missing. --bench adds the packages that only the
# peers of the bench need.
set -euo pipefail

check=0 bench=0
for option in "$@"; do
    case $option in
    --check) check=1 ;;
    --bench) bench=1 ;;
    *) echo "unknown option $option; use --check or --bench" >&2; exit 2 ;;
    esac
done

# Programs, each with the package that provides it.
programs=(
    bwrap:bubblewrap chromium-headless-shell:chromium-headless-shell curl:curl dbus-run-session:dbus-daemon find:findutils flock:util-linux gcc:gcc gdb:gdb git:git gnome-keyring-daemon:gnome-keyring inotifywait:inotify-tools make:make
    node:nodejs openssl:openssl perl:perl ps:procps python3:python3 redis-cli:redis-tools redis-server:redis-server rg:ripgrep rsync:rsync script:bsdutils secret-tool:libsecret-tools setpriv:util-linux
    setsid:util-linux shellcheck:shellcheck sqlite3:sqlite3 strace:strace tar:tar tmux:tmux unzip:unzip valgrind:valgrind zip:zip
)
[ $bench = 0 ] || programs+=(socat:socat)
# Packages without a program to look for. `time` has one, but in every shell that name is a keyword.
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
    echo 'all packages for the tests are installed'
    exit 0
fi
echo "missing: ${missing[*]}"
[ $check = 0 ] || exit 1

by_hand="install the equivalent packages for this system manually: ${missing[*]}"
command -v apt-get >/dev/null || { echo "apt-get not found: $by_hand" >&2; exit 1; }
as_root=()
if [ "$(id -u)" != 0 ]; then
    # Only without a password: no one may be present to type it.
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
# A fresh machine has empty or old package lists: update them if the first attempt fails.
install 2>/dev/null || { "${as_root[@]}" apt-get update -qq && install; } || { echo "apt-get failed: $by_hand" >&2; exit 1; }
echo "installed: ${missing[*]}"
