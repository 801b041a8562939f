#!/usr/bin/env bash
# Makes the archive with the binary for systems without a package manager that we serve, and its checksum.
source "$(dirname "$0")/common.sh"

name=ringfence-$version-$arch-linux-gnu
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
install -D -m 755 "$binary" "$stage/$name/ringfence"
add_documents "$stage/$name"
tar --create --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -C "$stage" "$name" |
    xz -9e -T1 >"$packages/$name.tar.xz"
(cd "$packages" && sha256sum "$name.tar.xz" >"$name.tar.xz.sha256")
report "$packages/$name.tar.xz"
