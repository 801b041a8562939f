#!/usr/bin/env bash
# Boots the systemd of a directory as if it were the root of a machine, until it powers off:
#
#   packaging/boot-root.sh ROOT
#
# Needs root. The system has its own processes, mounts, network and control groups, and none of the host's.
set -euo pipefail

root=$(realpath -- "$1")
groups=()
finish() {
    local group
    for group in "${groups[@]}"; do
        find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
    done
}
trap finish EXIT

# systemd takes over the control group in which it starts. It needs version 2, or its own hierarchy of version 1.
for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/unified /sys/fs/cgroup/systemd; do
    if [ -e "$hierarchy/cgroup.procs" ]; then
        group=$(mktemp -d -p "$hierarchy" ringfence-check-XXXXXX)
        groups+=("$group")
    fi
done

(
    for group in "${groups[@]}"; do
        echo "$BASHPID" >"$group/cgroup.procs"
    done
    # shellcheck disable=SC2016  # expanded by the inner shell
    exec timeout --kill-after 5 120 unshare --mount --pid --net --ipc --uts --cgroup --fork --kill-child \
        --propagation private bash -euo pipefail -c '
        root=$1
        mount --bind "$root" "$root"
        mount --rbind /dev "$root/dev"
        mount -t proc proc "$root/proc"
        mount -t sysfs sysfs "$root/sys"
        mount -t tmpfs tmpfs "$root/run"
        mount -t tmpfs tmpfs "$root/tmp"
        cgroup=$root/sys/fs/cgroup
        if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
            mount -t cgroup2 cgroup2 "$cgroup"
        else
            mount -t tmpfs tmpfs "$cgroup"
            mkdir "$cgroup/systemd" "$cgroup/unified"
            mount -t cgroup -o none,name=systemd cgroup "$cgroup/systemd"
            mount -t cgroup2 cgroup2 "$cgroup/unified"
        fi
        mkdir -p "$root/.old"
        cd "$root"
        pivot_root . .old
        umount --lazy /.old
        rmdir /.old
        # Without this setting, systemd from 256 on refuses control groups of version 1.
        exec env -i container=other SYSTEMD_PROC_CMDLINE=SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1 \
            PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --show-status=no
    ' boot-root "$root"
) || true
