# Two commands do everything on a fresh Debian or Ubuntu machine: `make demo` and `make check`.
# `make help` lists the rest. Builds live in build/PRESET.
.DEFAULT_GOAL := help
JOBS ?= $(shell nproc)
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

# Left out under sanitizers, where they take many minutes and add no code that others do not run: the
# scalar reference on whole models, measurements over long texts, searches of the encoder.
SLOW := -GoldenReference.*:*/reference*:Encoder.*:Eval.HeldOut*:Eval.PassKeys*:Allocation.RealDims*:Bench.*

.PHONY: help deps release dev demo check gpu-report asan tsan lint format fuzz bench clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

deps: ## install the packages of tools/packages.txt that are missing
	@tools/install_packages.sh $(SUDO)

build/%/build.ninja: CMakePresets.json
	@cmake --preset $* > build-$*.log 2>&1 || { cat build-$*.log; rm -f build-$*.log; exit 1; }
	@rm -f build-$*.log

release: deps build/release/build.ninja ## optimised build of the program: build/release/bin/terrace
	@ninja -C build/release -j $(JOBS) terrace

dev: deps build/dev/build.ninja ## build with development checks and all tests
	@ninja -C build/dev -j $(JOBS)

demo: release ## build, then generate text with the bundled model and show the memory report
	build/release/bin/terrace generate --model models/demo --prompt "In the beginning" --max-tokens 96 --seed 1 --memory --stats

check: dev ## build, then run all tests
	@cd build/dev && ctest --output-on-failure -j $(JOBS)
	@awk '/\[  SKIPPED \] [0-9]+ test/ {n += $$4} END {printf "%d tests skipped", n}' build/dev/Testing/Temporary/LastTest.log
	@grep -q TERRACE_NVCC:FILEPATH=/ build/dev/CMakeCache.txt && echo " (without a GPU: those of the CUDA backend)" || echo "; no nvcc: built without CUDA"

gpu-report: ## tests and figures of the CUDA backend on this machine's GPU
	@tools/gpu_report.sh

asan: deps build/asan/build.ninja ## tests under AddressSanitizer and UBSan, but the slow ones
	@ninja -C build/asan -j $(JOBS) && cd build/asan && GTEST_FILTER='$(SLOW)' ctest --output-on-failure -j $(JOBS)

tsan: deps build/tsan/build.ninja ## tests that use threads, under ThreadSanitizer
	@ninja -C build/tsan -j $(JOBS) base_tests cpu_tests engine_tests
	@cd build/tsan && GTEST_FILTER='$(SLOW)' ctest --output-on-failure -R '^(base|cpu|engine)$$'

lint: deps ## formatting, layers, file sizes, clang-tidy on what changed
	@tools/lint.sh

format: ## clang-format every source file in place
	@git ls-files '*.h' '*.hpp' '*.c' '*.cpp' '*.cu' '*.cuh' | xargs clang-format-19 -i

fuzz: deps build/fuzz/build.ninja ## every fuzz target for FUZZ_SECONDS (20)
	@ninja -C build/fuzz -j $(JOBS) fuzz_targets
	@tools/run_fuzz.sh $(or $(FUZZ_SECONDS),20)

bench: release ## the README's table, measured here
	@ninja -C build/release -j $(JOBS) && tools/bench.sh

clean: ## remove all builds
	rm -rf build
