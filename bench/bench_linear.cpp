// Speed of the EXL3 and dense linear layers, as markdown tables. One core unless --threads.
//
// Cold: the weights rotate over copies of --pool bytes in all, so that a layer's tiles come from
// memory (or from whatever cache is larger than that, such as a shared third level). Each figure is
// the best and the median of the repetitions; the floor is the bytes of the weights over the read
// bandwidth measured in the same run by summing 1 GiB.
//   bench_linear [--in N] [--out N] [--pool MiB] [--reps N] [--threads N] [--isa avx2|avx512|vbmi]
//                [--only exl3|dense|quick] [--once K rows]   (--once: one call, for callgrind)
// SPDX-License-Identifier: MIT
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "base/cpu_features.h"
#include "cpu/dense_linear.h"
#include "cpu/exl3_linear.h"
#include "read_bandwidth.h"

using namespace terrace;  // NOLINT: a program

namespace {

struct Settings {
    int in = 4096;
    int out = 4096;
    size_t pool_bytes = size_t{1024} << 20;
    int reps = 7;
    int threads = 1;
    std::string isa = "all";
    std::string only = "all";
    int once_k = 0;
    int once_rows = 0;
};

uint64_t splitmix(uint64_t& s) {
    uint64_t z = (s += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

// Seconds. With one thread the processor time of that thread, so that other work on the machine
// costs little; with more the wall clock.
bool use_cpu_clock = true;
double now() {
    timespec t{};
    clock_gettime(use_cpu_clock ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

struct Timing {
    double best = 0;
    double median = 0;
};
Timing timing(std::vector<double> t) {
    std::sort(t.begin(), t.end());
    return {t.front(), t[t.size() / 2]};
}

const char* name_of(Codebook c) {
    return c == Codebook::mul1 ? "mul1" : c == Codebook::mcg ? "mcg" : "3inst";
}

struct Bench {
    const Settings& s;
    const std::vector<uint64_t>& pool_words;
    double bandwidth;
    std::vector<f16> scales;
    std::vector<float> x, y;
    std::vector<std::byte> scratch;
    WorkerPool workers;

    Bench(const Settings& settings, const std::vector<uint64_t>& words, double bytes_per_s)
        : s(settings), pool_words(words), bandwidth(bytes_per_s), workers(settings.threads) {
        uint64_t seed = 5;
        scales.resize(static_cast<size_t>(std::max(s.in, s.out)));
        for (f16& v : scales)
            v = f16::from(splitmix(seed) & 1 ? 1.0f : -1.0f);
        x.resize(static_cast<size_t>(256 * s.in));
        for (float& v : x)
            v = static_cast<float>(splitmix(seed) >> 40) * 0x1p-23f - 1.0f;
        y.resize(static_cast<size_t>(256 * s.out));
    }

    Timing exl3(const KernelTable& k, int n16, Codebook codebook, Activations form, int rows,
                int reps) {
        Exl3Tensor w{.in = s.in,
                     .out = s.out,
                     .n16 = n16,
                     .codebook = codebook,
                     .suh = scales.data(),
                     .svh = scales.data()};
        const size_t bytes = w.trellis_bytes();
        const size_t copies = std::max<size_t>(1, pool_words.size() * 8 / bytes);
        Exl3Job job{.w = &w, .y = y.data(), .y_stride = static_cast<size_t>(s.out)};
        scratch.resize(exl3_scratch_bytes(k, s.threads, rows, {&job, 1}, form) + 64);
        auto at = reinterpret_cast<uintptr_t>(scratch.data());
        const std::span<std::byte> aligned = std::span(scratch).subspan((at + 63) / 64 * 64 - at);
        // Several copies per sample: one call is too short a time to measure.
        const size_t calls = rows >= 64 ? 1 : std::min<size_t>(copies, rows >= 16 ? 4 : 16);
        std::vector<double> t;
        size_t copy = 0;
        for (int r = 0; r < reps; ++r) {
            const double start = now();
            for (size_t c = 0; c < calls; ++c, copy = (copy + 1) % copies) {
                w.trellis = reinterpret_cast<const uint16_t*>(pool_words.data()) + copy * bytes / 2;
                exl3_linear(k, workers, x.data(), static_cast<size_t>(s.in), rows, s.in, {&job, 1},
                            form, aligned);
            }
            t.push_back((now() - start) / static_cast<double>(calls));
        }
        return timing(t);
    }

    void exl3_row(const KernelTable& k, int n16, Codebook codebook, Activations form, int rows) {
        const Timing t = exl3(k, n16, codebook, form, rows, rows >= 64 ? 3 : s.reps);
        const double weights = static_cast<double>(s.in) * s.out;
        const double bytes = weights * n16 / 128.0;
        fmt::print(
            "| {} | {:g} | {} | {} | {} | {:.3f} | {:.3f} | {:.2f} | {:.2f} | {:.2f} | {:.0f} % "
            "|\n",
            k.name, n16 / 16.0, name_of(codebook), form == Activations::int16 ? "int16" : "f32",
            rows, t.best * 1e3, t.median * 1e3, weights / t.best * 1e-9,
            weights * rows / t.best * 1e-9, bytes / t.best * 1e-9,
            100.0 * bytes / t.best / bandwidth);
    }

    void dense_row(const KernelTable& k, DType type, int rows) {
        const size_t bytes =
            static_cast<size_t>(s.in) * static_cast<size_t>(s.out) * dtype_bytes(type);
        const size_t copies = std::max<size_t>(1, pool_words.size() * 8 / bytes);
        std::vector<double> t;
        for (int r = 0; r < (rows >= 64 ? 3 : s.reps); ++r) {
            const DenseWeight w{.data = reinterpret_cast<const std::byte*>(pool_words.data()) +
                                        static_cast<size_t>(r) % copies * bytes,
                                .type = type,
                                .in = s.in,
                                .out = s.out};
            const double start = now();
            dense_linear(k, workers, w, x.data(), static_cast<size_t>(s.in), rows, y.data(),
                         static_cast<size_t>(s.out));
            t.push_back(now() - start);
        }
        const Timing best = timing(t);
        fmt::print("| {} | {} | {} | {:.3f} | {:.3f} | {:.2f} | {:.2f} | {:.0f} % |\n", k.name,
                   to_string(type), rows, best.best * 1e3, best.median * 1e3,
                   2e-9 * s.in * s.out * rows / best.best,
                   static_cast<double>(bytes) / best.best * 1e-9,
                   100.0 * static_cast<double>(bytes) / best.best / bandwidth);
    }
};

void run(const Settings& s) {
    std::vector<const KernelTable*> tables;
    for (const auto& [choice, name] : {std::pair{IsaChoice::avx2, "avx2"},
                                       {IsaChoice::avx512, "avx512"},
                                       {IsaChoice::avx512_vbmi, "vbmi"}})
        if (const KernelTable* k = select_kernels(choice);
            k != nullptr && (s.isa == "all" || s.isa == name))
            tables.push_back(k);
    std::vector<uint64_t> words(s.pool_bytes / 8);
    uint64_t seed = 1;
    for (uint64_t& v : words)
        v = splitmix(seed);

    if (s.once_k != 0) {  // weights per call are what the profiler's count is divided by
        Bench bench(s, words, 1);
        (void)bench.exl3(*tables.at(0), 16 * s.once_k, Codebook::mul1, Activations::int16,
                         s.once_rows, 1);
        return;
    }
    uint64_t sum = 0;
    const double bandwidth = bench::read_bandwidth(words, now, sum);
    if (sum == 1) fmt::print(" ");  // the sum is used
    fmt::print(
        "{}, {} thread(s), {} x {}, weights rotate over {} MiB\n"
        "One core reads {:.2f} GB/s.\n\n",
        cpu_features().name, s.threads, s.in, s.out, s.pool_bytes >> 20, bandwidth * 1e-9);
    Bench bench(s, words, bandwidth);
    if (s.only == "all" || s.only == "exl3" || s.only == "quick") {
        fmt::print(
            "| kernels | K | codebook | form | rows | best ms | median ms | Gweights/s | "
            "Gweights/s x rows | GB/s | of read |\n"
            "|---|---|---|---|---|---|---|---|---|---|---|\n");
        for (const KernelTable* k : tables)
            for (const int rows : {1, 2, 4, 16, 256}) {
                if (s.only == "quick") {
                    bench.exl3_row(*k, 64, Codebook::mul1, Activations::int16, rows);
                    bench.exl3_row(*k, 64, Codebook::mcg, Activations::f32, rows);
                    continue;
                }
                for (const int n16 : {32, 40, 48, 64, 80, 96, 128})
                    bench.exl3_row(*k, n16, Codebook::mul1, Activations::int16, rows);
                if (rows == 2) continue;
                for (const int n16 : {32, 48, 64, 96})
                    for (const Codebook c : {Codebook::mul1, Codebook::mcg, Codebook::three_inst})
                        if (rows < 256 || n16 == 64)
                            bench.exl3_row(*k, n16, c, Activations::f32, rows);
            }
    }
    if (s.only == "all" || s.only == "dense") {
        // Normal numbers of magnitude below 2 in all three types: subnormals cost a hundred cycles
        // each.
        for (uint64_t& v : words)
            v = (v & 0xbfffbfffbfffbfffu) | 0x2000200020002000u;
        fmt::print(
            "\n| kernels | type | rows | best ms | median ms | GFLOP/s | GB/s | of read |\n"
            "|---|---|---|---|---|---|---|---|\n");
        for (const KernelTable* k : tables)
            for (const DType type : {DType::bf16, DType::f16, DType::f32})
                for (const int rows : {1, 4, 16, 256})
                    bench.dense_row(*k, type, rows);
    }
}

}  // namespace

int main(int argc, char** argv) {
    Settings s;
    for (int i = 1; i < argc; ++i) {
        const std::string a = argv[i];
        const auto next = [&] { return i + 1 < argc ? argv[++i] : "0"; };
        if (a == "--in")
            s.in = std::max(128, std::atoi(next()) / 128 * 128);
        else if (a == "--out")
            s.out = std::max(128, std::atoi(next()) / 128 * 128);
        else if (a == "--pool")
            s.pool_bytes = static_cast<size_t>(std::max(1, std::atoi(next()))) << 20;
        else if (a == "--reps")
            s.reps = std::max(1, std::atoi(next()));
        else if (a == "--threads")
            s.threads = std::max(1, std::atoi(next()));
        else if (a == "--isa")
            s.isa = next();
        else if (a == "--only")
            s.only = next();
        else if (a == "--once") {
            s.once_k = std::atoi(next());
            s.once_rows = std::max(1, std::atoi(next()));
        } else {
            fmt::print(stderr, "unknown option {}; the file's first lines list them\n", a);
            return 2;
        }
    }
    use_cpu_clock = s.threads == 1;
    run(s);
    return 0;
}
