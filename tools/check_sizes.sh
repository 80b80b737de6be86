#!/usr/bin/env bash
# Source files have at most 600 lines, and open with a comment that says what they own.
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"
bad=0
while read -r f; do
  n=$(wc -l < "$f")
  [ "$n" -le 600 ] || { echo "$f: $n lines, at most 600: split it by duty"; bad=1; }
  head -c 2 "$f" | grep -qE '^(//|/\*)' || { echo "$f: must open with a comment"; bad=1; }
  grep -q 'SPDX-License-Identifier: MIT' "$f" || { echo "$f: no SPDX line"; bad=1; }
done < <(git ls-files 'src/*.h' 'src/*.cpp' 'apps/*.h' 'apps/*.cpp' 'include/*' 'examples/*.c' 'examples/*.cpp' 'tests/*.h' 'tests/*.cpp' 'bench/*.cpp')
[ $bad -eq 0 ] && echo "file sizes and headers: ok"
exit $bad
