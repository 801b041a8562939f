#!/usr/bin/env bash
# Linker of packaging/binary.sh: links with zig, and keeps the linker's command line and all its inputs in $KEPT_LINK,
# so that the same inputs can be linked again. rustc deletes them after the link.
set -euo pipefail

: "${KEPT_LINK:?}"
# The linker that cargo-zigbuild chose; the option that names this script takes precedence over its variable.
for variable in "${!CARGO_TARGET_@}"; do
    [[ $variable != *_LINKER ]] || zig_linker=${!variable}
done
rm -rf "$KEPT_LINK"
mkdir -p "$KEPT_LINK/inputs"
log=$KEPT_LINK/log
"$zig_linker" "$@" --verbose 2>"$log" || { cat "$log" >&2; exit 1; }

# zig prints the command line of its lld, one word per space. With an empty cache it links its own libraries first.
words=$(grep '^ld\.lld ' "$log" | tail -n 1) || { echo 'zig did not print how it linked' >&2; exit 1; }
number=0 before=
for word in ${words#ld.lld }; do
    case $before in
    -o | --dynamic-linker) ;;
    *)
        if [ -f "$word" ]; then
            number=$((number + 1))
            cp "$word" "$KEPT_LINK/inputs/$number-${word##*/}"
            word=$KEPT_LINK/inputs/$number-${word##*/}
        fi
        ;;
    esac
    before=$word
    echo "$word"
done >"$KEPT_LINK/words"
