// Speed of the fused operations at the sizes of the real model (48 layers of hidden 2560), as a
// markdown table. Each call gets other weights, planes or states than the one before, out of a pool
// of --pool MiB, so that bytes come from memory or from whatever cache is larger than the pool.
// The floor is the bytes that a call must move over the read bandwidth of one core, measured in the
// same run by summing the pool. One thread is timed by its processor time, more by the wall clock.
//   bench_ops [--threads N] [--pool MiB] [--reps N] [--isa avx2|avx512|vbmi] [--only NAME]
// SPDX-License-Identifier: MIT
#include <fmt/core.h>
#include <immintrin.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cpu/cpu_ops.h"
#include "read_bandwidth.h"

using namespace terrace;  // NOLINT: a program

namespace {

struct Settings {
    int threads = 1;
    size_t pool_bytes = size_t{1024} << 20;
    int reps = 9;
    std::string isa = "auto";
    std::string only;
};

uint64_t splitmix(uint64_t& s) {
    uint64_t z = (s += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

template <class T>
T must(Result<T> r) {
    if (!r) {
        fmt::print(stderr, "bench_ops: {}\n", r.error().message);
        std::exit(1);
    }
    if constexpr (!std::is_void_v<T>) return std::move(r).value();
}

template <class T>
DevSpan<T> span(std::vector<T>& v) {
    return {v.data(), v.size()};
}

// Fused multiply-adds of one core with nothing to wait for, in operations: what the machine gives
// at this moment, neighbours included. 256-bit: the AVX-512 rate is up to twice this.
__attribute__((target("avx2,fma"))) double fma_operations(int turns) {
    __m256 a[8];
    for (__m256& x : a)
        x = _mm256_set1_ps(1.0f);
    const __m256 b = _mm256_set1_ps(0.999f), c = _mm256_set1_ps(1e-3f);
    for (int i = 0; i < turns; ++i)
#pragma GCC unroll 8
        for (__m256& x : a)
            x = _mm256_fmadd_ps(x, b, c);
    float sum = 0;
    for (const __m256& x : a)
        sum += _mm256_cvtss_f32(x);
    return sum > 0 ? 128.0 * turns : 0;
}

struct Bench {
    Settings s;
    std::unique_ptr<Device> device = make_host_device();
    std::unique_ptr<Stream> stream = must(device->make_stream());
    WorkerPool workers;
    std::unique_ptr<Ops> ops;
    Buffer pool_memory;  // of the device: large pages where the system gives them, as planes have
    std::span<uint64_t> pool;
    double bandwidth = 0, fma_rate = 0;
    size_t next = 0;  // 16-bit words of the pool handed out

    explicit Bench(const Settings& settings) : s(settings), workers(settings.threads) {
        const IsaChoice isa = s.isa == "avx2"     ? IsaChoice::avx2
                              : s.isa == "avx512" ? IsaChoice::avx512
                              : s.isa == "vbmi"   ? IsaChoice::avx512_vbmi
                                                  : IsaChoice::auto_detect;
        ops = must(make_cpu_ops(*device, workers, {isa, Activations::int16}));
        uint64_t seed = 1;
        pool_memory = must(device->allocate(s.pool_bytes, MemSpace::device, Fill::unspecified));
        pool = {reinterpret_cast<uint64_t*>(pool_memory.device_pointer()), s.pool_bytes / 8};
        // As f16: finite, below 1. As a trellis: valid, as any bits are.
        for (uint64_t& w : pool)
            w = splitmix(seed) & 0xbbffbbffbbffbbffu;
        uint64_t sum = 0;
        bandwidth = bench::read_bandwidth(pool, [this] { return now(); }, sum);
        if (sum == 1) fmt::print(" ");  // the sum is used
        for (int r = 0; r < 5; ++r) {
            const double t = now(), n = fma_operations(1 << 22);
            fma_rate = std::max(fma_rate, n / (now() - t));
        }
    }

    double now() const {
        timespec t{};
        clock_gettime(s.threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
        return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
    }

    // `bytes` of the pool that were not used for longest.
    const std::byte* fresh(size_t bytes) {
        bytes = (bytes + 63) / 64 * 64;
        if (next + bytes > pool.size() * 8) next = 0;
        const auto* p = reinterpret_cast<const std::byte*>(pool.data()) + next;
        next += bytes;
        return p;
    }
    std::vector<float> numbers(size_t n, float scale = 1.0f) {
        uint64_t seed = n;
        std::vector<float> v(n);
        for (float& x : v)
            x = scale * (static_cast<float>(splitmix(seed) >> 40) * 0x1p-23f - 1.0f);
        return v;
    }

    bool wanted(const std::string& name) const {
        return s.only.empty() || name.find(s.only) != std::string::npos;
    }
    // flops: multiply-adds count two.
    void row(const std::string& name, double bytes, double flops,
             const std::function<Status()>& call) {
        must(call());
        std::vector<double> t;
        for (int r = 0; r < s.reps; ++r) {
            const double start = now();
            must(call());
            t.push_back(now() - start);
        }
        std::sort(t.begin(), t.end());
        fmt::print("| {} | {} | {:.3f} | {:.3f} | {:.2f} | {:.2f} | {:.0f} % | {:.1f} |\n", name,
                   s.threads, t.front() * 1e3, t[t.size() / 2] * 1e3, bytes * 1e-6,
                   bytes / t.front() * 1e-9, 100 * bytes / t.front() / bandwidth,
                   flops / t.front() * 1e-9);
        std::fflush(stdout);
    }

    PlainTensor plain(size_t n) { return {fresh(2 * n), DType::f16, static_cast<int64_t>(n)}; }
    LinearWeight plain_linear(int in, int out) {
        LinearWeight w;
        w.kind = LinearKind::plain;
        w.in = in;
        w.out = out;
        w.plain = plain(static_cast<size_t>(in) * static_cast<size_t>(out));
        return w;
    }

    void hyper();
    void attention();
    void recurrent();
    void experts();
};

constexpr int kHidden = 2560, kStreams = 4, kWide = kHidden * kStreams;

void Bench::hyper() {
    const int rank = 320;
    auto norm = numbers(kWide);
    for (int rows : {1, 8, 64}) {
        auto h = numbers(static_cast<size_t>(rows * kWide));
        std::vector<float> x(static_cast<size_t>(rows * kHidden)),
            inj(static_cast<size_t>(rows * 4));
        OpsLimits l;
        l.rows = rows;
        l.hidden = kHidden;
        l.streams = kStreams;
        l.rank = rank;
        must(ops->reserve(l));
        const double weights = double{kWide} * (2 * rank + 4);
        if (wanted("hyper_read"))
            row(fmt::format("hyper_read, {} rows", rows), 2 * weights, 2 * weights * rows, [&] {
                HyperWeights w;
                w.norm = {norm.data(), DType::f32, kWide};
                w.down = plain_linear(kWide, rank);
                w.up = plain_linear(rank, kWide);
                w.inject = plain_linear(kWide, kStreams);
                HyperReadArgs a;
                a.h = span(h);
                a.weights = &w;
                a.x = span(x);
                a.inj = span(inj);
                a.rows = rows;
                a.streams = kStreams;
                a.hidden = kHidden;
                a.rank = rank;
                return ops->hyper_read(*stream, a);
            });
        if (wanted("hyper_write"))
            row(fmt::format("hyper_write, {} rows", rows), 9.0 * kWide * rows, 2.0 * kWide * rows,
                [&] {
                    return ops->hyper_write(*stream,
                                            {span(h), span(x), span(inj), rows, kStreams, kHidden});
                });
    }
}

void Bench::attention() {
    const int heads = 24, kv_heads = 2, hd = 256, ih = 4, id = 128, top = 512;
    const auto pages = static_cast<int32_t>(s.pool_bytes / (kPageTokens * 2 * kv_heads * hd * 2));
    uint64_t seed = 3;
    const auto step_of = [&](std::vector<SeqRows>& seqs, std::vector<int32_t>& table,
                             std::vector<int32_t>& row_seq, int pos0, int rows, int32_t most) {
        const int n = (pos0 + rows + kPageTokens - 1) / kPageTokens;
        table.resize(static_cast<size_t>(n));
        for (int32_t i = 0; i < n; ++i)
            table[static_cast<size_t>(i)] = i % most;
        for (size_t i = table.size(); i > 1; --i)
            std::swap(table[i - 1], table[splitmix(seed) % i]);
        seqs = {{0, rows, pos0, 0, n, 0}};
        row_seq.assign(static_cast<size_t>(rows), 0);
        return StepRows{rows, 1, span(seqs), span(table), span(row_seq), seqs.data(), {}};
    };
    std::vector<SeqRows> seqs;
    std::vector<int32_t> table, row_seq;
    auto* base = reinterpret_cast<std::byte*>(pool.data());
    OpsLimits l;
    l.rows = 512;
    l.heads = heads;
    l.head_dim = hd;
    must(ops->reserve(l));

    if (wanted("attend")) {
        const int pos = pages * kPageTokens - 2;  // three tail tokens
        AttendArgs a;
        a.step = step_of(seqs, table, row_seq, pos, 1, pages);
        auto q = numbers(static_cast<size_t>(heads * hd)),
             qg = numbers(static_cast<size_t>(2 * heads * hd));
        std::vector<float> out(q.size());
        std::vector<int32_t> blocks(top), counts{top};
        a.q = span(q);
        a.qg = span(qg);
        a.kv = {base, PlaneType::f16, kv_heads, hd, 4};
        a.blocks = span(blocks);
        a.counts = span(counts);
        a.out = span(out);
        a.rows = 1;
        a.heads = heads;
        a.top = top;
        a.scale = 1.0f / 16;
        row("attend, 1 row, 2051 tokens", 2051.0 * 2048, 4.0 * 2051 * heads * hd, [&] {
            const int stride = (pos + 1) / 4 / top;
            for (int i = 0; i < top; ++i)
                blocks[static_cast<size_t>(i)] =
                    i * stride + static_cast<int>(splitmix(seed) % static_cast<uint64_t>(stride));
            return ops->attend(*stream, a);
        });
    }
    if (wanted("attend")) {
        const int rows = 512;
        AttendArgs a;
        a.step = step_of(seqs, table, row_seq, 0, rows, pages);
        auto q = numbers(static_cast<size_t>(rows * heads * hd));
        auto qg = numbers(static_cast<size_t>(rows * 2 * heads * hd));
        std::vector<float> out(q.size());
        a.q = span(q);
        a.qg = span(qg);
        a.kv = {base, PlaneType::f16, kv_heads, hd, 4};
        a.out = span(out);
        a.rows = rows;
        a.heads = heads;
        a.scale = 1.0f / 16;
        row("attend dense, 512 rows from 0", 512.0 * 2048, 4.0 * (513 * 256) * heads * hd,
            [&] { return ops->attend(*stream, a); });
    }
    for (int tokens : {65536, 262144, 1048576}) {
        const int blocks = tokens / 4;
        for (int rows : {1, 8}) {
            IndexScoresArgs a;
            a.step = step_of(seqs, table, row_seq, tokens - rows, rows,
                             static_cast<int32_t>(s.pool_bytes / (64 * id * 2)));
            auto iq = numbers(static_cast<size_t>(rows * ih * id));
            std::vector<float> scores(static_cast<size_t>(rows * blocks));
            a.iq = span(iq);
            a.index = {nullptr, base, PlaneType::f16, id, 4};
            a.scores = span(scores);
            a.stride = blocks;
            a.rows = rows;
            a.index_heads = ih;
            if (wanted("index_scores"))
                row(fmt::format("index_scores, {} rows, {} Ki tokens", rows, tokens / 1024),
                    256.0 * blocks, 2.0 * blocks * rows * ih * id,
                    [&] { return ops->index_scores(*stream, a); });
            if (!wanted("select_blocks") || rows > 1) continue;
            must(ops->index_scores(*stream, a));
            std::vector<int32_t> chosen(static_cast<size_t>(rows * top)),
                counts(static_cast<size_t>(rows));
            SelectBlocksArgs b{a.step, span(scores), blocks, span(chosen), span(counts), 0,
                               rows,   top,          4};
            row(fmt::format("select_blocks, {} rows, {} Ki tokens", rows, tokens / 1024),
                4.0 * blocks * rows, 0, [&] { return ops->select_blocks(*stream, b); });
        }
    }
}

void Bench::recurrent() {
    const int kh = 16, vh = 48, d = 128, channels = 2 * kh * d + vh * d, slots = 64;
    std::vector<float> state(static_cast<size_t>(slots) * vh * d * d, 0.01f);
    std::vector<float> conv_state(static_cast<size_t>(slots) * 3 * channels);
    auto a_log = numbers(vh), dt = numbers(vh), norm = numbers(d);
    for (int rows : {1, 512}) {
        auto qkv = numbers(static_cast<size_t>(rows * channels)),
             z = numbers(static_cast<size_t>(rows * vh * d));
        auto a1 = numbers(static_cast<size_t>(rows * vh)),
             b1 = numbers(static_cast<size_t>(rows * vh));
        std::vector<float> out(z.size());
        OpsLimits l;
        l.rows = rows;
        l.gdn_channels = channels;
        l.gdn_v_heads = vh;
        l.gdn_k_dim = l.gdn_v_dim = d;
        must(ops->reserve(l));
        std::vector<SeqRows> seqs{{0, rows, 0, 0, 0, 0}};
        std::vector<int32_t> row_seq(static_cast<size_t>(rows));
        GdnArgs a;
        a.step = {rows, 1, span(seqs), {}, span(row_seq), seqs.data(), {}};
        a.qkv = span(qkv);
        a.z = span(z);
        a.a = span(a1);
        a.b = span(b1);
        a.conv = plain(static_cast<size_t>(channels) * 4);
        a.a_log = {a_log.data(), DType::f32, vh};
        a.dt_bias = {dt.data(), DType::f32, vh};
        a.norm = {norm.data(), DType::f32, d};
        a.state = span(state);
        a.conv_state = span(conv_state);
        a.out = span(out);
        a.k_heads = kh;
        a.v_heads = vh;
        a.k_dim = a.v_dim = d;
        if (!wanted("gdn")) continue;
        // The state is read and written; operations as of the recurrent form.
        row(fmt::format("gdn, {} rows", rows), 8.0 * vh * d * d + 8.0 * rows * channels,
            7.0 * vh * d * d * rows, [&] {
                seqs[0].slot = (seqs[0].slot + 1) % slots;
                return ops->gdn(*stream, a);
            });
    }
}

void Bench::experts() {
    const int width = 640, n16 = 64, k = 10;
    std::vector<f16> scales(kHidden);
    uint64_t seed = 9;
    for (f16& v : scales)
        v = f16::from(splitmix(seed) & 1 ? 1.0f : -1.0f);
    const auto exl3 = [&](int in, int out) {
        LinearWeight w;
        w.kind = LinearKind::exl3;
        w.in = in;
        w.out = out;
        w.exl3 = {in, out, n16, Codebook::mul1, nullptr, scales.data(), scales.data()};
        w.exl3.trellis = reinterpret_cast<const uint16_t*>(fresh(w.exl3.trellis_bytes()));
        return w;
    };
    const auto expert = [&] {
        return ExpertWeights{exl3(kHidden, width), exl3(kHidden, width), exl3(width, kHidden)};
    };
    const size_t bytes = 3 * static_cast<size_t>(width) * kHidden / 2;
    const int n = static_cast<int>(std::min<size_t>(512, s.pool_bytes / bytes - 1));
    std::vector<ExpertWeights> table;
    for (int e = 0; e < n; ++e)
        table.push_back(expert());
    const ExpertWeights shared = expert();
    const LinearWeight gate = plain_linear(kHidden, 1), router = plain_linear(kHidden, 512);
    for (int rows : {1, 4, 64, 512}) {
        auto x = numbers(static_cast<size_t>(rows * kHidden)),
             w = numbers(static_cast<size_t>(rows * k));
        std::vector<float> y(x.size()), logits(static_cast<size_t>(rows * 512));
        std::vector<int32_t> ids(static_cast<size_t>(rows * k));
        OpsLimits l;
        l.rows = rows;
        l.hidden = kHidden;
        l.widest = kHidden;
        l.experts = 512;
        l.k = k;
        l.moe_width = l.shared_width = width;
        must(ops->reserve(l));
        const auto choose = [&] {
            for (int r = 0; r < rows; ++r)
                for (int j = 0; j < k; ++j)  // distinct: one of each tenth
                    ids[static_cast<size_t>(r * k + j)] =
                        j * (n / k) +
                        static_cast<int32_t>(splitmix(seed) % static_cast<uint64_t>(n / k));
        };
        choose();
        std::vector<int32_t> used = ids;
        std::sort(used.begin(), used.end());
        const auto distinct =
            static_cast<double>(std::unique(used.begin(), used.end()) - used.begin()) + 1;
        if (wanted("moe"))
            row(fmt::format("moe, {} rows, 10 of {} experts + shared, K = 4", rows, n),
                distinct * static_cast<double>(bytes), 6.0 * width * kHidden * rows * (k + 1), [&] {
                    choose();
                    MoeArgs a{span(x), span(ids), span(w), {table.data(), n, {}},
                              &shared, &gate,     span(y), rows,
                              kHidden, width,     width,   k,
                              {}};
                    return ops->moe(*stream, a);
                });
        if (wanted("route"))
            row(fmt::format("router and choice, {} rows, 10 of 512", rows),
                2.0 * 512 * kHidden + 4.0 * 512 * rows, 2.0 * 512 * kHidden * rows, [&] {
                    RouteArgs a;
                    a.x = span(x);
                    a.router = &router;
                    a.logits = span(logits);
                    a.ids = span(ids);
                    a.weights = span(w);
                    a.rows = rows;
                    a.experts = 512;
                    a.k = k;
                    return ops->route(*stream, a);
                });
    }
}

// What handing one piece of work to every thread costs: a step of the model does so hundreds of times.
void bench_hand_over(Bench& b) {
    constexpr int kTimes = 1000;
    if (b.wanted("hand over"))
        b.row(fmt::format("hand over {} times", kTimes), 0, 0, [&]() -> Status {
            for (int i = 0; i < kTimes; ++i)
                b.workers.run([](int, int) {});
            return {};
        });
}

}  // namespace

int main(int argc, char** argv) {
    Settings s;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string flag = argv[i], value = argv[i + 1];
        if (flag == "--threads")
            s.threads = std::max(1, std::atoi(value.c_str()));
        else if (flag == "--pool")
            s.pool_bytes = static_cast<size_t>(std::max(64, std::atoi(value.c_str()))) << 20;
        else if (flag == "--reps")
            s.reps = std::max(1, std::atoi(value.c_str()));
        else if (flag == "--isa")
            s.isa = value;
        else if (flag == "--only")
            s.only = value;
        else {
            fmt::print(stderr, "bench_ops: unknown option {}\n", flag);
            return 2;
        }
    }
    Bench bench(s);
    fmt::print("{}, one core reads {:.1f} GB/s and does {:.0f} Gop/s of 256-bit fma\n\n",
               bench.ops->name(), bench.bandwidth * 1e-9, bench.fma_rate * 1e-9);
    fmt::print(
        "| operation | threads | best ms | median ms | MB | GB/s | of one core's read | Gop/s |\n"
        "|---|---:|---:|---:|---:|---:|---:|---:|\n");
    bench_hand_over(bench);
    bench.hyper();
    bench.attention();
    bench.recurrent();
    bench.experts();
    return 0;
}
