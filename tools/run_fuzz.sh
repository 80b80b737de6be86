#!/usr/bin/env bash
# Runs every fuzz target of build/fuzz for $1 seconds on its corpus; new inputs stay in the build tree.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-20}
count=0
for target in build/fuzz/bin/fuzz_*; do
  name=$(basename "$target" | sed 's/^fuzz_//')
  mkdir -p "build/fuzz/corpus/$name"
  seeds=tests/fuzz/corpus/$name
  [ -d "$seeds" ] || seeds=
  "$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=0 \
    -artifact_prefix=build/fuzz/ "build/fuzz/corpus/$name" $seeds > "build/fuzz/$name.log" 2>&1 || {
    tail -40 "build/fuzz/$name.log"
    exit 1
  }
  echo "fuzz $name: $(grep -oE 'Done [0-9]+ runs' "build/fuzz/$name.log" || echo done), clean"
  count=$((count + 1))
done
[ "$count" -gt 0 ]
