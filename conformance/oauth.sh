#!/usr/bin/env bash
# Checks the client's OAuth against a real authorization server, npm's oidc-provider, with the example `oauth_client`:
#
#   conformance/oauth.sh [target/debug/examples/oauth_client [target/debug/ringfence]]
#
# Login, expiry, refresh by several processes, rotation, revocation, a server that is down, wrong issuers. The packages
# are installed next to this file once and kept. With the second program, `ringfence auth` is checked too.
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
client=$(realpath -- "${1:-$here/../target/debug/examples/oauth_client}") || exit 2
[ -x "$client" ] || { echo "no such program: $client" >&2; exit 2; }
ringfence=
if [ $# -gt 1 ]; then
    ringfence=$(realpath -- "$2") || exit 2
    [ -x "$ringfence" ] || { echo "no such program: $ringfence" >&2; exit 2; }
fi

# A copy of the lock file identifies the installed version.
installed=$here/node_modules/.installed
if ! cmp -s "$here/package-lock.json" "$installed"; then
    npm ci --prefix "$here" --no-audit --no-fund --loglevel=error || { echo "cannot install the packages" >&2; exit 2; }
    cp "$here/package-lock.json" "$installed"
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
# It is authority and server at once, so that it must not say that it is an authority.
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=localhost \
    -addext subjectAltName=DNS:localhost -addext basicConstraints=critical,CA:FALSE \
    -keyout "$scratch/key.pem" -out "$scratch/certificate.pem" 2>"$scratch/log" || { cat "$scratch/log" >&2; exit 2; }

# The browser of the checks trusts it too.
NODE_EXTRA_CA_CERTS=$scratch/certificate.pem timeout 120 "$here/node_modules/node/bin/node" \
    "$here/oauth/check.mjs" "$client" "$scratch/certificate.pem" "$scratch/key.pem" ${ringfence:+"$ringfence"} 2>&1 |
    # The server comments on settings that are meant for development, such as its forms.
    grep -v '^oidc-provider \(NOTICE\|WARNING\)'
