#!/bin/sh
# Puts `site` of the workspace in the place of `releases/TARGET`, whole or not at all: deploy.sh TARGET REASON
set -eu

target=$1 reason=$2
[ -d site ] || { echo "there is no directory 'site' to deploy" >&2; exit 1; }

mkdir -p releases
fresh=$(mktemp -d "releases/.$target.XXXXXX")
trap 'rm -rf "$fresh"' EXIT
cp -R site/. "$fresh"
printf '%s\n' "$reason" > "$fresh/RELEASE"
rm -rf "releases/$target.old"
[ ! -d "releases/$target" ] || mv "releases/$target" "releases/$target.old"
mv "$fresh" "releases/$target"
trap - EXIT
echo "deployed to $target: $(find "releases/$target" -type f | wc -l) files"
