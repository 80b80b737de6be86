#!/usr/bin/env bash
# Installs the packages of tools/packages.txt that this machine lacks. $1: "sudo" or nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
mapfile -t wanted < <(grep -vE '^\s*(#|$)' tools/packages.txt)
missing=()
for p in "${wanted[@]}"; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing+=("$p")
done
[ ${#missing[@]} -eq 0 ] && exit 0
echo "installing: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
${1:-} apt-get update -qq
${1:-} apt-get install -y -qq --no-install-recommends "${missing[@]}" > /tmp/terrace-apt.log 2>&1 || {
  cat /tmp/terrace-apt.log
  exit 1
}
