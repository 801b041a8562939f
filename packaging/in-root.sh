#!/usr/bin/env bash
# Runs a command in a directory as if it were the root of a machine:
#
#   packaging/in-root.sh ROOT COMMAND...
#
# It uses pivot_root: the kernel forbids user namespaces in a chroot. Needs root. The command's mounts and processes end
# with it.
set -euo pipefail

root=$(realpath -- "$1")
shift
# shellcheck disable=SC2016  # expanded by the inner shell
exec unshare --mount --pid --fork --kill-child --propagation private bash -euo pipefail -c '
    root=$1
    shift
    mount --bind "$root" "$root"
    mount --rbind /dev "$root/dev"
    mount --rbind /sys "$root/sys"
    mount -t proc proc "$root/proc"
    mkdir -p "$root/.old"
    cd "$root"
    pivot_root . .old
    umount --lazy /.old
    rmdir /.old
    exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 "$@"
' in-root "$root" "$@"
