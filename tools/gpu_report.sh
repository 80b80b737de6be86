#!/usr/bin/env bash
# Tests and measures the CUDA backend on this machine's GPU and prints one report: machine, commit,
# tests with their skips counted, memory checker, kernels, whole models.
#   gpu_report.sh [BIN_DIR] [part ...]      parts: tests golden sanitize kernels models (default: all)
# Without BIN_DIR the programs are built first (make deps, preset cuda-release).
# gpu_report.sh --pack DIR copies programs, libraries and data for a machine that cannot build.
set -uo pipefail
cd "$(dirname "$0")/.."
programs="cuda_tests model_tests bench_cuda terrace"

build() {
  make -s deps && cmake --preset cuda-release >/dev/null && ninja -C build/cuda-release $programs
}

if [ "${1:-}" = --pack ]; then
  to=${2:?--pack needs a folder}
  build || exit 1
  mkdir -p "$to/tools" "$to/tests" "$to/models" "$to/docs"
  for p in $programs; do strip -o "$to/$p" "build/cuda-release/bin/$p"; done
  for p in $programs; do ldd "build/cuda-release/bin/$p"; done | awk '$3 ~ /\/(libfmt|libsimdjson|libpcre2|libutf8proc|libxxhash|libzstd)/ {print $3}' |
    sort -u | xargs -I{} cp -L {} "$to/"
  cp -r tests/data "$to/tests/" && cp -r models/demo "$to/models/" && cp tools/gpu_report.sh "$to/tools/"
  cp docs/qwen3.8-flash-next.config.json "$to/docs/"
  git rev-parse --short HEAD > "$to/COMMIT"
  exit
fi

bin=${1:-}
shift || true
parts=${*:-tests golden sanitize kernels models}
if [ -z "$bin" ]; then
  build || exit 1
  bin=build/cuda-release/bin
fi
export LD_LIBRARY_PATH="$bin${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
config=docs/qwen3.8-flash-next.config.json
status=0
tests() {  # what one gtest program passed, skipped and failed, and what its tests measured
  local log
  log=$("$@" 2>&1) || status=1
  echo "$log" | grep -E '^\[  (PASSED|SKIPPED|FAILED) *\] [0-9]+ test|^\[  FAILED  \] [A-Z].*\(|(KL|ids equal)' | sort -u
}
# Small cases of every family: the checkers slow kernels down by one to two orders.
small='CudaStreams.Hyper*:CudaStreams.Embed*:CudaRecurrent.GdnMatches*:CudaRecurrent.Ple*:CudaQsa*:CudaIndexScores.Match*:CudaSelectBlocks.NaN*:CudaAttend.DenseAnd*:CudaLinear.SeveralWeights*:CudaMoe.PaddedSizes:CudaRoute*:Gemm.PlainWeights*:Gemm.ExpertsOfOdd*:CudaSampleCandidates*:CudaResolve*'

echo "# GPU report"
echo "- commit $(git rev-parse --short HEAD 2>/dev/null || cat COMMIT 2>/dev/null || echo unknown), $(date -u +%F)"
echo "- $(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null || echo 'no nvidia-smi')"
echo "- $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | xargs), $(nproc) CPUs"
for part in $parts; do
  echo
  case $part in
    tests)
      echo "## Operations against the reference"
      tests "$bin/cuda_tests" ;;
    golden)
      echo "## Whole models against recorded activations"
      tests "$bin/model_tests" --gtest_filter='GoldenCuda*:KvMirrorCuda*'
      "$bin/terrace" eval --model models/demo --device cuda --text tests/data/demo/heldout.txt --quiet 2>&1 | tail -3 ;;
    sanitize)
      if ! command -v compute-sanitizer >/dev/null; then
        echo "## compute-sanitizer: skipped, not installed"
        continue
      fi
      for tool in memcheck racecheck initcheck synccheck; do
        echo "## compute-sanitizer $tool"
        compute-sanitizer --tool "$tool" --error-exitcode 1 "$bin/cuda_tests" \
          --gtest_filter="${SANITIZE_FILTER:-$small}" 2>&1 | grep -E "SUMMARY|PASSED|FAILED|=========" | tail -8 || status=1
      done ;;
    kernels)
      echo "## Kernels"
      "$bin/bench_cuda" || status=1 ;;
    models)
      echo "## Demo model"
      "$bin/terrace" bench --model models/demo --device cuda -p 512 -n 128 -r 3 --quiet || status=1
      echo "## Real dims, random weights, 4.05 bpw"
      "$bin/terrace" bench --synthetic $config --bpw 4.05 --device cuda -p 8192 --prefill-chunk 2048 \
        -n 64 -d 0,131072,1040000 --fill-depth -r 2 --kv-offload off --quiet || status=1
      echo "## The same, K/V in pinned host memory: without a mirror; with one, by the share of blocks kept; prefill at depth"
      host() { "$bin/terrace" bench --synthetic $config --bpw 4.05 --device cuda --fill-depth --quiet "$@" || status=1; }
      host -p 0 -n 32 -r 2 -d 1040000 --kv-offload host --kv-mirror off
      host -p 0 -n 32 -r 2 -d 1040000 --kv-offload off --kv-locality 0.95
      for kept in 0 0.9 0.95 1; do host -p 0 -n 32 -r 2 -d 1040000 --kv-offload host --kv-locality $kept; done
      for where in off host; do host -p 8192 --prefill-chunk 2048 -n 0 -r 1 -d 253952 --kv-offload $where; done ;;
    *) echo "unknown part $part: tests golden sanitize kernels models"; exit 2 ;;
  esac
done
exit $status
