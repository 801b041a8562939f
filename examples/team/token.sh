#!/bin/sh
# A token for somebody, good for eight hours: token.sh NAME
set -eu

here=$(dirname "$0")
encode() { openssl base64 -A | tr '+/' '-_' | tr -d '='; }
head=$(printf '{"alg":"HS256","typ":"JWT"}' | encode)
body=$(printf '{"sub":"%s","aud":"ringfence","exp":%s}' "$1" "$(($(date +%s) + 28800))" | encode)
key=$(od -An -v -tx1 < "$here/jwt-secret" | tr -d ' \n')
# A final newline of the file does not count.
seal=$(printf '%s.%s' "$head" "$body" | openssl dgst -sha256 -mac HMAC -macopt "hexkey:${key%0a}" -binary | encode)
echo "$head.$body.$seal"
