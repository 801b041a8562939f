#!/usr/bin/env bash
# Builds the binary that all packages contain:
#
#   packaging/binary.sh [x86_64|aarch64]
#
# It is the release build, linked by zig against the symbols of glibc 2.17, so that one binary runs on every
# distribution with glibc since 2013. A static build is no alternative: glibc loads the resolver's modules at run time,
# and a static program aborts if they are of another release. The result is target/dist/bin/ringfence-ARCH.
#
# It is linked twice from the same inputs: packaging/order.py runs the first result and finds which functions a start
# needs, and the second link places them next to each other. The list of functions is kept next to the result;
# ORDER=LIST uses an earlier one instead, to build the same bytes again.
set -euo pipefail
cd "$(dirname "$0")/.."

arch=${1:-$(uname -m)}
floor=2.17
case $arch in
x86_64 | aarch64) ;;
*) echo "no package for processor $arch: use x86_64 or aarch64" >&2; exit 2 ;;
esac
if [ -z "${ORDER:-}" ]; then
    if [ "$arch" != "$(uname -m)" ]; then
        echo "the binary has to run here once: build on $arch, or name a list of functions with ORDER=LIST" >&2
        exit 2
    fi
    packaging/order.py --check
fi
target=$arch-unknown-linux-gnu
PATH=$(packaging/tools.sh):$PATH

if [ ! -d "$(rustc --print sysroot)/lib/rustlib/$target" ]; then
    echo "Rust's standard library for $target is missing: run 'rustup target add $target'" >&2
    exit 1
fi

# Paths of this machine would make two builds of one commit differ.
cargo_home=${CARGO_HOME:-$HOME/.cargo}
build=$PWD/target/dist/build
export KEPT_LINK=$build/link
export RUSTFLAGS="--remap-path-prefix=$cargo_home/registry/src= --remap-path-prefix=$PWD=ringfence -C linker=$PWD/packaging/keep-link.sh"
cargo zigbuild --locked --release -p ringfence --target "$target.$floor" --target-dir "$build"
if [ ! -f "$KEPT_LINK/words" ]; then
    echo "$KEPT_LINK is missing: remove $build and build again" >&2
    exit 1
fi

# link OUTPUT [OPTION...]: links the kept inputs again with zig's own lld. Its `-s` is left out: a profile needs the names.
link() {
    local output=$1
    shift
    grep -vx -e '-s' "$KEPT_LINK/words" >"$KEPT_LINK/unstripped"
    python-zig ld.lld "@$KEPT_LINK/unstripped" -o "$output" "$@"
}
mkdir -p target/dist/bin
binary=target/dist/bin/ringfence-$arch
link "$KEPT_LINK/first"
if [ -n "${ORDER:-}" ]; then
    cmp -s "$ORDER" "$binary.order" || cp "$ORDER" "$binary.order"
else
    packaging/order.py "$KEPT_LINK/first" >"$KEPT_LINK/order"
    cp "$KEPT_LINK/order" "$binary.order"
fi
link "$KEPT_LINK/second" --strip-all --symbol-ordering-file="$binary.order"
install -m 755 "$KEPT_LINK/second" "$binary"

# What the linker driver decides elsewhere: no fixed address, no executable data, and no writable table of functions.
headers=$(readelf --wide --file-header --program-headers --dynamic "$binary")
for property in 'Type: +DYN' 'GNU_STACK .* RW ' 'GNU_RELRO ' 'FLAGS_1\).* NOW PIE'; do
    if ! grep -qE "$property" <<<"$headers"; then
        echo "$binary is not linked as it has to be: readelf shows no '$property'" >&2
        exit 1
    fi
done

# Undefined symbols name the release of glibc that first had them.
highest=$(readelf --version-info "$binary" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
if [ "$(printf '%s\n' "GLIBC_$floor" "$highest" | sort -V | tail -n 1)" != "GLIBC_$floor" ]; then
    echo "$binary needs $highest, but the floor is $floor" >&2
    exit 1
fi
echo "$binary: $(stat -c %s "$binary") bytes, $(gzip -9 <"$binary" | wc -c) with gzip, highest symbol $highest"
