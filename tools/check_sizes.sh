#!/usr/bin/env bash
# Source files have at most 600 lines, tests at most 800; each opens with a comment that says what it
# owns and carries an SPDX line.
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"
bad=0
while read -r f; do
  n=$(wc -l < "$f")
  most=600
  case "$f" in tests/*) most=800 ;; esac
  [ "$n" -le "$most" ] || { echo "$f: $n lines, at most $most: split it by duty"; bad=1; }
  head -c 2 "$f" | grep -qE '^(//|/\*)' || { echo "$f: must open with a comment"; bad=1; }
  grep -q 'SPDX-License-Identifier: MIT' "$f" || { echo "$f: no SPDX line"; bad=1; }
done < <(git ls-files 'src/*.h' 'src/*.cpp' 'src/*.cu' 'src/*.cuh' 'bench/*.h' 'apps/*.h' 'apps/*.cpp' 'include/*' 'examples/*.c' 'examples/*.cpp' 'tests/*.h' 'tests/*.cpp' 'bench/*.cpp')
[ $bad -eq 0 ] && echo "file sizes and headers: ok"
exit $bad
