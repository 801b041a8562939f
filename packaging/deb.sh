#!/usr/bin/env bash
# Makes the Debian package, with the same bytes for the same commit.
source "$(dirname "$0")/common.sh"

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
root=$stage/root
from=packaging/deb
doc=$root/usr/share/doc/ringfence
date=$(date -u -R -d "@$SOURCE_DATE_EPOCH")

install -D -m 755 "$binary" "$root/usr/bin/ringfence"
install -D -m 644 -t "$root/usr/lib/systemd/system" $from/ringfence.service
install -D -m 644 $from/sysusers.conf "$root/usr/lib/sysusers.d/ringfence.conf"
install -D -m 644 $from/config.toml "$root/etc/ringfence/config.toml"
install -D -m 600 $from/environment "$root/etc/ringfence/environment"
install -D -m 644 $from/apparmor "$root/usr/share/ringfence/apparmor"
install -D -m 644 $from/lintian-overrides "$root/usr/share/lintian/overrides/ringfence"
install -D -m 644 -t "$doc" $from/copyright $from/README.Debian
gzip -9n <CHANGELOG.md >"$doc/changelog.gz"
{
    printf 'ringfence (%s) unstable; urgency=medium\n\n  * See changelog.gz.\n\n' "$version-1"
    printf ' -- Ringfence maintainers <maintainers@ringfence.invalid>  %s\n' "$date"
} | gzip -9n >"$doc/changelog.Debian.gz"

add_documents "$stage/documents"
install -m 644 "$stage/documents/NOTICES.gz" "$doc/"
if [ -d "$stage/documents/completions" ]; then
    completions=$stage/documents/completions
    install -D -m 644 "$completions/ringfence.bash" "$root/usr/share/bash-completion/completions/ringfence"
    install -D -m 644 -t "$root/usr/share/zsh/vendor-completions" "$completions/_ringfence"
    install -D -m 644 -t "$root/usr/share/fish/vendor_completions.d" "$completions/ringfence.fish"
fi
if [ -d "$stage/documents/man" ]; then
    install -d "$root/usr/share/man/man1"
    install -m 644 -t "$root/usr/share/man/man1" "$stage"/documents/man/*.1
    gzip -9n "$root"/usr/share/man/man1/*.1
fi

install -d "$root/DEBIAN"
install -m 755 -t "$root/DEBIAN" $from/postinst $from/prerm $from/postrm
printf '%s\n' /etc/ringfence/config.toml /etc/ringfence/environment >"$root/DEBIAN/conffiles"
size=$(du -k --summarize --apparent-size --exclude DEBIAN "$root" | cut -f 1)
sed "s/@VERSION@/$version-1/; s/@SIZE@/$size/" $from/control >"$root/DEBIAN/control"
(cd "$root" && find etc usr -type f | LC_ALL=C sort | xargs md5sum) >"$root/DEBIAN/md5sums"
chmod 644 "$root"/DEBIAN/{conffiles,control,md5sums}
find "$root" -newermt "@$SOURCE_DATE_EPOCH" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +

package=$packages/ringfence_$version-1_amd64.deb
dpkg-deb --root-owner-group -Zxz --build "$root" "$package" >/dev/null
report "$package"
