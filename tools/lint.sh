#!/usr/bin/env bash
# Formatting, layers, file sizes, then clang-tidy on the files that differ from the merge base (all
# files with TIDY=all). Prints one line per stage; the first failure stops it.
set -euo pipefail
cd "$(dirname "$0")/.."
mapfile -t sources < <(git ls-files '*.h' '*.hpp' '*.c' '*.cpp' '*.cu' '*.cuh')
clang-format-19 --dry-run -Werror "${sources[@]}"
echo "format: ok"
tools/check_layers.sh
tools/check_sizes.sh
cmake --preset tidy > /dev/null
base=$(git rev-parse --verify -q "${TIDY_BASE:-HEAD~1}" || git rev-list --max-parents=0 HEAD | tail -n 1)
if [ "${TIDY:-changed}" = all ]; then
  mapfile -t files < <(git ls-files 'src/*.cpp' ':!src/cuda')  # nvcc's own warnings check src/cuda
else
  mapfile -t files < <(git diff --name-only --diff-filter=d "$base" -- 'src/*.cpp' ':!src/cuda')
fi
# About 20 s a file on two cores: a large change is checked in part here and in full by TIDY=all.
most=${TIDY_MOST:-24} left=0
if [ "${TIDY:-changed}" != all ] && [ ${#files[@]} -gt "$most" ]; then
  left=$((${#files[@]} - most))
  files=("${files[@]:0:$most}")
fi
if [ ${#files[@]} -gt 0 ]; then
  printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -n 2 clang-tidy-19 --quiet -p build/tidy
fi
echo "clang-tidy: ${#files[@]} files ok, $left not looked at"
