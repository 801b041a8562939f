#!/usr/bin/env bash
# Boots kernels that people have and tries a ringfence binary on each:
#
#   conformance/hosts.sh [target/release/ringfence]
#
# The kernels are Debian's, downloaded by name from the suites of the mirror that apt uses here, and booted by qemu
# with a small system of busybox and the binary. Each guest runs doctor, ordinary work in the sandbox (hosts/work),
# attempts to leave it (hosts/attacks), and a call of a server, as root and as an ordinary user, with cgroup v1 and v2,
# and with user namespaces off.
# The table is printed and compared with the one in docs/hosts.md, which RINGFENCE_BLESS=1 writes anew. Needs the
# Debian packages qemu-system-x86, busybox-static and cpio, which it installs if it runs as root.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
binary=$(realpath -- "${1:-$here/../target/release/ringfence}")
[ -x "$binary" ] || { echo "no such binary: $binary" >&2; exit 2; }
cache=$here/.hosts
mkdir -p "$cache"

missing=()
for package in qemu-system-x86 busybox-static cpio; do
    dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
done
if [ ${#missing[@]} != 0 ]; then
    [ "$(id -u)" = 0 ] || { echo "install these packages first: ${missing[*]}" >&2; exit 2; }
    apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

# A private apt with the suites whose kernels are tried. Nothing of the host's apt is changed.
apt_options=(-o "Dir::State=$cache/apt" -o "Dir::State::status=$cache/apt/status" -o "Dir::Cache=$cache/apt/cache"
    -o "Dir::Etc::sourcelist=$cache/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null -o Acquire::Languages=none
    -o APT::Sandbox::User=root)
prepare_apt() {
    local mirror
    mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | head -n 1)
    mkdir -p "$cache"/apt/lists/partial "$cache"/apt/cache/archives/partial
    : >"$cache/apt/status"
    for suite in bullseye bookworm trixie sid; do
        echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main"
    done >"$cache/apt/sources.list"
    apt-get "${apt_options[@]}" -qq update
}

# kernel PATTERN: prints the path of the newest kernel image whose package name matches, downloading it at first.
kernel() {
    local kept package folder
    kept=$(find "$cache/kernel-$1" -name 'vmlinuz*' 2>/dev/null | head -n 1)
    if [ -z "$kept" ]; then
        [ -e "$cache/apt/sources.list" ] || prepare_apt >&2
        package=$(apt-cache "${apt_options[@]}" search --names-only "^linux-(image|binary)-$1\\..*cloud-amd64(-unsigned)?\$" |
            cut -d ' ' -f 1 | grep -e unsigned -e binary | sort -V | tail -n 1)
        [ -n "$package" ] || { echo "Debian has no kernel $1" >&2; return 1; }
        folder=$(mktemp -d -p "$cache")
        (cd "$folder" && apt-get "${apt_options[@]}" -qq download "$package") >&2
        mkdir -p "$cache/kernel-$1"
        dpkg-deb -x "$folder"/*.deb "$cache/kernel-$1"
        rm -r "$folder"
        kept=$(find "$cache/kernel-$1" -name 'vmlinuz*' | head -n 1)
    fi
    echo "$kept"
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
root=$scratch/root
mkdir -p "$root"/{bin,new,etc,lib64}
cp /bin/busybox "$root/bin/"
for name in $(/bin/busybox --list); do
    [ -e "$root/bin/$name" ] || ln -s busybox "$root/bin/$name"
done
cp "$here/hosts/init" "$root/init"
cp "$here/hosts/work" "$here/hosts/attacks" "$root/bin/"
strip -o "$root/bin/ringfence" "$binary"
for library in $(ldd "$binary" | grep -o '/[^ ]*'); do
    mkdir -p "$root$(dirname "$library")"
    cp -L "$library" "$root$library"
done
(cd "$root" && find . | cpio -o -H newc --quiet) >"$scratch/system"

# boot PATTERN CGROUP NAMESPACES: prints what the guest found as root and as a user. Emulated kernels panic now and
# then while they start; a guest that found nothing is booted again, twice at most.
boot() {
    local image rows
    image=$(kernel "$1")
    for attempt in 1 2 3; do
        rows=$(timeout 900 qemu-system-x86_64 -m 4096 -cpu max,-cx16 -nographic -no-reboot -net none -kernel "$image" \
            -initrd "$scratch/system" -append "console=ttyS0 quiet panic=-1 cgroup=$2 namespaces=$3" </dev/null 2>&1 |
            tr -d '\r' | tee "$cache/console" | sed -n 's/.*HOST|/|/p')
        [ "$(grep -c . <<<"$rows")" = 2 ] && break
        echo "hosts: kernel $1, attempt $attempt: the guest ended early:" >&2
        tail -n 25 "$cache/console" >&2
    done
    printf '%s\n' "$rows" | tee -a "$scratch/found"
}
for pattern in '5\.10' '6\.1' '6\.12' '[789]'; do
    boot "$pattern" v2 on
done
boot '6\.1' v1 on
boot '6\.12' v1 on
boot '6\.1' v2 off
boot '6\.12' v2 off

{
    echo '| kernel | user | cgroup | user namespaces | profile | tier | limits | work | attacks | call |'
    echo '|---|---|---|---|---|---|---|---|---|---|'
    sed 's/$/|/; s/||/| – |/g; s/||/| – |/g' "$scratch/found"
} >"$scratch/table"
cat "$scratch/table"
# The page has the table between two comments. Versions change with each update of Debian; the rest must not.
page=$here/../docs/hosts.md
shape() { sed -E -e 's/^\|[789]\.[^|]*/|7 or newer/' -e 's/^\|([0-9]+\.[0-9]+)[^|]*/|\1/' "$1"; }
if [ "${RINGFENCE_BLESS:-}" = 1 ]; then
    sed -i -e '/<!-- hosts -->/,/<!-- end -->/{//!d}' -e "/<!-- hosts -->/r "<(shape "$scratch/table") "$page"
elif ! diff <(shape "$scratch/table") <(sed -n '/<!-- hosts -->/,/<!-- end -->/{//!p}' "$page"); then
    echo 'hosts: this is not what docs/hosts.md says; the end of the last console:' >&2
    tail -n 30 "$cache/console" >&2
    exit 1
fi
echo 'hosts: as docs/hosts.md says'
