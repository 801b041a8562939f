#!/usr/bin/env bash
# Runs in a new Debian system as root, next to the package and session.sh: installs the package, uses it as root and as
# an ordinary user, removes it.
#
#   check.sh VERSION
set -euo pipefail
cd /root

fail() { echo "FAILED: $*"; exit 1; }

dpkg --install ringfence_*_amd64.deb >/dev/null
ringfence --version | grep -qxF "ringfence $1" || fail 'version'

# use_ringfence USER: the first minute of a new user.
use_ringfence() {
    local home as=()
    home=$(getent passwd "$1" | cut -d : -f 6)
    [ "$1" = root ] || as=(setpriv --reuid "$1" --regid "$1" --clear-groups)
    mkdir -p "$home/project"
    chown "$1:" "$home/project"
    cd "$home/project"
    export HOME=$home
    "${as[@]}" ringfence doctor >/tmp/doctor || { cat /tmp/doctor; fail "doctor as $1"; }
    "${as[@]}" ringfence sandbox -- /bin/true || fail "sandbox as $1"
    "${as[@]}" bash /usr/local/bin/session.sh ringfence serve || fail "serve as $1"
    cd /root
}
install -m 755 session.sh /usr/local/bin/
useradd --create-home --uid 1000 somebody
use_ringfence root
use_ringfence somebody

[ "$(stat -c '%U:%G %a' /etc/ringfence/environment)" = 'root:root 600' ] || fail 'environment is readable'
if [ -e /etc/apparmor.d/abi/4.0 ]; then
    apparmor_parser --skip-kernel-load --skip-cache /etc/apparmor.d/ringfence || fail 'AppArmor profile'
    echo 'AppArmor accepts the profile'
else
    [ ! -e /etc/apparmor.d/ringfence ] || fail 'an AppArmor that cannot read the profile would get it'
fi
dpkg --purge ringfence >/dev/null
for path in /usr/bin/ringfence /etc/ringfence /etc/apparmor.d/ringfence /usr/lib/systemd/system/ringfence.service; do
    [ ! -e $path ] || fail "$path is left after purge"
done
echo "ok, with glibc $(getconf GNU_LIBC_VERSION | cut -d ' ' -f 2)"
