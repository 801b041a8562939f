#!/usr/bin/env bash
# Packs the npm packages `ringfence` and `@ringfence/linux-x64`.
source "$(dirname "$0")/common.sh"

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
cp -r packaging/npm/. "$stage/"
for package in ringfence linux-x64; do
    cp LICENSE "$stage/$package/"
done
install -D -m 755 "$binary" "$stage/linux-x64/bin/ringfence"
python3 packaging/notices.py | gzip -9n >"$stage/linux-x64/NOTICES.gz"
for package in linux-x64 ringfence; do
    # npm writes a fixed date into the archive.
    file=$(npm pack --silent --pack-destination "$packages" "$stage/$package")
    report "$packages/$file"
done
