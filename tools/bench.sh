#!/usr/bin/env bash
# Measures what README and docs/perf.md show and prints one report: machine, kernels on one core, whole
# models. Run it on a quiet machine.  bench.sh [BIN_DIR] [quick]: quick leaves out the long rows.
# The full-size synthetic model is run when memory allows (80 GiB free), else as many layers as fit.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${1:-build/release/bin}
quick=${2:-}
config=docs/qwen3.8-flash-next.config.json
free_gib=$(awk '/MemAvailable/ {print int($2 / 1048576)}' /proc/meminfo)
echo "# Report"
echo "- commit $(git rev-parse --short HEAD 2>/dev/null || cat COMMIT 2>/dev/null || echo unknown), $(date -u +%F)"
echo "- $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | xargs), $(nproc) CPUs, $free_gib GiB free, load $(cut -d' ' -f1-3 /proc/loadavg)"
echo
echo "## Linears, one core"
"$bin/bench_linear" --pool 1024 --reps "$([ -n "$quick" ] && echo 3 || echo 5)" $([ -n "$quick" ] && echo "--only quick")
echo
echo "## Operations at real dims, one core"
"$bin/bench_ops" --pool 1024 --reps 3
echo
echo "## Demo model"
for threads in 1 2 0; do
  "$bin/terrace" bench --model models/demo --threads "$threads" -p 512 -n 128 -r 3 --quiet
done
"$bin/terrace" bench --model models/demo -p 0 -n 128 -d 16384 -r 2 --quiet
"$bin/terrace" bench --model models/demo -p 0 -n 128 --batch 8 -r 2 --quiet
echo
echo "## Real dims, random weights, 4.05 bpw"
layers=$(( (free_gib - 8) / 2 ))
[ "$layers" -gt 48 ] && layers=48
if [ "$layers" -ge 4 ]; then
  "$bin/terrace" bench --synthetic "$config" --bpw 4.05 --layers "$layers" -p 512 -n 32 -r 2 --quiet
  "$bin/terrace" bench --synthetic "$config" --bpw 4.05 --layers "$layers" -p 0 -n 32 -d 4096,32768 --fill-depth -r 2 --quiet
else
  echo "skipped: needs 16 GiB of free memory, $free_gib are"
fi
