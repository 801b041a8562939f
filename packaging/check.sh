#!/usr/bin/env bash
# Installs every package where nothing else of the project exists, and uses it there:
#
#   packaging/check.sh [npm|wheel|tarball|deb|service|reproducible]...
#
# npm and wheel are installed in an empty HOME from a registry on the loopback. The Debian package is installed in new
# Debian systems, which needs root and debootstrap; two are booted for the systemd unit. The systems are kept in
# target/dist/roots.
source "$(dirname "$0")/common.sh"

here=$PWD/packaging
tools=$(packaging/tools.sh)
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
steps=("$@")
[ ${#steps[@]} != 0 ] || steps=(npm wheel tarball deb service reproducible)

say() { echo "install-check: $*"; }
fail() { say "FAILED: $*" >&2; exit 1; }

# new_home: makes an empty HOME with a project below it, and goes there. Only system programs are on PATH.
new_home() {
    export HOME
    HOME=$(mktemp -d -p "$stage")
    export PATH=${1:+$1:}/usr/local/bin:/usr/bin:/bin
    mkdir "$HOME/project"
    cd "$HOME/project"
}

# use_ringfence NAME COMMAND...: the first minute of a new user, with the command that starts ringfence.
use_ringfence() {
    local name=$1 from=$EPOCHREALTIME
    shift
    [ "$("$@" --version)" = "ringfence $version" ] || fail "$name: --version"
    say "$name: first run after $(((${EPOCHREALTIME/./} - ${from/./}) / 1000)) ms"
    "$@" doctor >"$stage/doctor" || { cat "$stage/doctor" >&2; fail "$name: doctor"; }
    "$@" sandbox -- /bin/true || fail "$name: sandbox"
    "$here/session.sh" "$@" serve || fail "$name: serve"
    say "$name: ok"
}

check_npm() {
    new_home
    export npm_config_update_notifier=false npm_config_audit=false npm_config_fund=false
    use_ringfence npx npx -y ringfence
    npm install --global --prefix "$HOME/npm" --silent ringfence
    use_ringfence 'npm install' "$HOME/npm/bin/ringfence"
    # Files outside npm's own directories would be left behind when it is removed.
    npm uninstall --global --prefix "$HOME/npm" --silent ringfence
    [ -z "$(find "$HOME/npm" -type f)" ] || fail 'npm uninstall leaves files'

    local code=0 said
    said=$(npx -y --omit=optional ringfence@"$version" --version 2>&1) || code=$?
    if [ "$code" != 69 ] || [[ $said != *'@ringfence/linux-x64'*'--include=optional'* ]]; then
        fail "without the native package: exit $code: $said"
    fi
    say 'npx without optional dependencies: exit 69, and says why'
}

check_wheel() {
    new_home "$tools"
    use_ringfence uvx uvx ringfence
    new_home
    /usr/bin/python3 -m venv "$HOME/venv"
    "$HOME/venv/bin/pip" install --quiet --disable-pip-version-check ringfence
    use_ringfence pip "$HOME/venv/bin/ringfence"
}

check_tarball() {
    new_home
    local name=ringfence-$version-$arch-linux-gnu
    (cd "$packages" && sha256sum --check --quiet "$name.tar.xz.sha256") || fail 'the checksum of the archive'
    tar -xf "$packages/$name.tar.xz"
    use_ringfence tarball "./$name/ringfence"
}

# make_root SUITE: makes a minimal Debian system, once, and prints its directory.
make_root() {
    local root=${RINGFENCE_ROOTS:-$dist/roots}/$1 mirror more=
    case $1 in
    bookworm) more=curl,systemd-sysv ;;
    # The first with an AppArmor that knows the permission of our profile.
    trixie) more=apparmor,curl,systemd-sysv ;;
    esac
    if [ ! -d "$root" ]; then
        # shellcheck disable=SC2016  # apt's own syntax
        mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | head -n 1)
        mkdir -p "${root%/*}"
        rm -rf "$root.new"
        debootstrap --variant=minbase ${more:+--include="$more"} "$1" "$root.new" "$mirror" >"$stage/debootstrap" ||
            { tail -n 20 "$stage/debootstrap" >&2; return 1; }
        mv "$root.new" "$root"
    fi
    echo "$root"
}

# need_debootstrap: what every check in a Debian system needs.
need_debootstrap() {
    [ "$(id -u)" = 0 ] || fail 'the Debian package can only be tried as root'
    PATH=/usr/local/sbin:/usr/sbin:/sbin:$PATH
    command -v debootstrap >/dev/null || { apt-get update -qq && apt-get install -y -qq debootstrap >/dev/null; }
}

check_deb() {
    need_debootstrap
    local suite root package=$packages/ringfence_$version-1_amd64.deb
    for suite in bullseye bookworm trixie; do
        root=$(make_root $suite)
        cp -a "$root" "$stage/$suite"
        cp "$package" "$here/session.sh" "$here/deb/check.sh" "$stage/$suite/root/"
        "$here/in-root.sh" "$stage/$suite" bash /root/check.sh "$version" | sed "s/^/install-check: deb on $suite: /"
        rm -rf "${stage:?}/$suite"
    done
    if command -v lintian >/dev/null; then
        local suppressed=()
        "$binary" man --help >/dev/null 2>&1 || suppressed=(--suppress-tags no-manual-page)
        lintian --allow-root --fail-on error,warning "${suppressed[@]}" "$package" || fail lintian
        say 'deb: lintian has no errors and no warnings'
    else
        say 'SKIPPED: lintian is not installed'
    fi
}

check_service() {
    need_debootstrap
    boot_service bookworm
    boot_service trixie
}

# boot_service SUITE: boots the system with the package installed and a key for tokens set.
boot_service() {
    local root=$stage/service secret
    cp -a "$(make_root "$1")" "$root"
    cp "$packages/ringfence_$version-1_amd64.deb" "$here/deb/check-service.sh" "$root/root/"
    "$here/in-root.sh" "$root" bash -c 'dpkg --install /root/*.deb' >/dev/null 2>&1 || fail "the package in $1"
    secret=$(head -c 32 /dev/urandom | sha256sum | cut -d ' ' -f 1)
    sed -i "s/^#MCP_AUTH_JWT_SECRET=.*/MCP_AUTH_JWT_SECRET=$secret/" "$root/etc/ringfence/environment"
    python3 "$here/deb/token.py" "$secret" >"$root/root/token"
    cat >"$root/etc/systemd/system/check.service" <<'UNIT'
[Service]
ExecStart=/bin/bash /root/check-service.sh
StandardOutput=file:/root/result
StandardError=inherit
UNIT
    ln -s ../check.service "$root/etc/systemd/system/multi-user.target.wants/check.service"
    "$here/boot-root.sh" "$root" >"$stage/console" 2>&1
    [ -s "$root/root/result" ] || { cat "$stage/console" >&2; fail 'the system did not boot'; }
    sed "s/^/install-check: service on $1: /" "$root/root/result"
    grep -q '^ok: ' "$root/root/result" || fail "service on $1"
    rm -rf "$root"
}

check_reproducible() {
    local first=$packages package
    export RINGFENCE_PACKAGES=$stage/again
    for package in npm wheel tarball deb; do
        "$here/$package.sh" >/dev/null
    done
    diff <(cd "$first" && sha256sum -- *) <(cd "$RINGFENCE_PACKAGES" && sha256sum -- *) ||
        fail 'packing a second time gives other bytes'
    say 'packing a second time gives the same bytes'
}

# Registries are replaced by our own, as the package managers of this script see them.
if [ -z "${RINGFENCE_REGISTRY:-}" ]; then
    exec "$here/registry.py" "$packages" "$here/check.sh" "${steps[@]}"
fi
for step in "${steps[@]}"; do
    (cd "$here/.." && "check_$step")
done
say "all passed: ${steps[*]}"
