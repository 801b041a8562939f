#!/usr/bin/env bash
# Builds the binary that all packages contain:
#
#   packaging/binary.sh [x86_64|aarch64]
#
# It is the release build, linked by zig against the symbols of glibc 2.17, so that one binary runs on every
# distribution with glibc since 2013. A static build is no alternative: glibc loads the resolver's modules at run time,
# and a static program aborts if they are of another release. The result is target/dist/bin/ringfence-ARCH.
set -euo pipefail
cd "$(dirname "$0")/.."

arch=${1:-$(uname -m)}
floor=2.17
case $arch in
x86_64 | aarch64) ;;
*) echo "no package for processor $arch: use x86_64 or aarch64" >&2; exit 2 ;;
esac
target=$arch-unknown-linux-gnu
PATH=$(packaging/tools.sh):$PATH

if [ ! -d "$(rustc --print sysroot)/lib/rustlib/$target" ]; then
    echo "Rust's standard library for $target is missing: run 'rustup target add $target'" >&2
    exit 1
fi

# Paths of this machine would make two builds of one commit differ.
cargo_home=${CARGO_HOME:-$HOME/.cargo}
export RUSTFLAGS="--remap-path-prefix=$cargo_home/registry/src= --remap-path-prefix=$PWD=ringfence"
cargo zigbuild --locked --release -p ringfence --target "$target.$floor" --target-dir target/dist/build
mkdir -p target/dist/bin
binary=target/dist/bin/ringfence-$arch
install -m 755 "target/dist/build/$target/release/ringfence" "$binary"

# Undefined symbols name the release of glibc that first had them.
highest=$(readelf --version-info "$binary" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
if [ "$(printf '%s\n' "GLIBC_$floor" "$highest" | sort -V | tail -n 1)" != "GLIBC_$floor" ]; then
    echo "$binary needs $highest, but the floor is $floor" >&2
    exit 1
fi
echo "$binary: $(stat -c %s "$binary") bytes, $(gzip -9 <"$binary" | wc -c) with gzip, highest symbol $highest"
