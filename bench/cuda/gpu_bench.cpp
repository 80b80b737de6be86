// bench_cuda [group ...]: runs the registered groups, or those named, and prints one row per figure.
// SPDX-License-Identifier: MIT
#include "gpu_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cuda/cuda_backend.h"

namespace terrace::bench {
namespace {

struct Group {
    const char* name;
    std::function<void(Gpu&)> run;
};
std::vector<Group>& groups() {
    static std::vector<Group> all;
    return all;
}

template <class T>
T need(Result<T> r) {
    if (!r) {
        fmt::print(stderr, "{}\n", r.error().message);
        std::exit(1);
    }
    return std::move(r).value();
}
void need(Status s) {
    if (!s) {
        fmt::print(stderr, "{}\n", s.error().message);
        std::exit(1);
    }
}

uint64_t next(uint64_t& s) {
    s += 0x9E3779B97F4A7C15u;
    uint64_t z = s;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

}  // namespace

Gpu::Gpu(std::unique_ptr<Device> device, std::unique_ptr<Ops> ops)
    : device_(std::move(device)), stream_(need(device_->make_stream())), ops_(std::move(ops)) {}

std::byte* Gpu::raw(size_t bytes) {
    buffers_.push_back(need(device_->allocate(bytes, MemSpace::device, Fill::unspecified)));
    return buffers_.back().device_pointer();
}

std::byte* Gpu::upload(const void* data, size_t bytes) {
    std::byte* p = raw(bytes);
    need(stream_->copy(p, data, bytes));
    need(stream_->synchronize());
    return p;
}

// 16 MiB of random bits, repeated: random enough for a trellis, and quick to make.
std::byte* Gpu::random_bytes(size_t bytes) {
    const size_t unit = std::min(bytes, size_t{16} << 20);
    std::vector<uint64_t> host((unit + 7) / 8);
    for (uint64_t& w : host)
        w = next(seed_);
    std::byte* p = raw(bytes);
    for (size_t at = 0; at < bytes; at += unit)
        need(stream_->copy(p + at, host.data(), std::min(unit, bytes - at)));
    need(stream_->synchronize());
    return p;
}

DevSpan<float> Gpu::random_floats(size_t n, float scale) {
    std::vector<float> host(n);
    for (float& v : host)
        v = scale * (static_cast<float>(next(seed_) >> 40) * 0x1p-23f - 1.0f);
    return upload(host);
}

PlainTensor Gpu::plain_f16_vector(int64_t n, float scale) {
    std::vector<uint16_t> host(static_cast<size_t>(n));
    for (uint16_t& v : host)
        v = f32_to_f16(scale * (static_cast<float>(next(seed_) >> 40) * 0x1p-23f - 1.0f));
    return {upload(host.data(), host.size() * 2), DType::f16, n};
}

LinearWeight Gpu::plain_f16(int in, int out) {
    LinearWeight w;
    w.kind = LinearKind::plain;
    w.in = in;
    w.out = out;
    w.plain = plain_f16_vector(int64_t{in} * out, 1.7f / std::sqrt(static_cast<float>(in)));
    return w;
}

LinearWeight Gpu::exl3(int in, int out, int n16, Codebook codebook) {
    const auto pad = [](int n) { return (n + 127) / 128 * 128; };
    LinearWeight w;
    w.kind = LinearKind::exl3;
    w.in = in;
    w.out = out;
    w.exl3.in = pad(in);
    w.exl3.out = pad(out);
    w.exl3.n16 = n16;
    w.exl3.codebook = codebook;
    w.exl3.trellis = reinterpret_cast<const uint16_t*>(random_bytes(w.exl3.trellis_bytes()));
    const auto signs = [&](int n, float m) {
        std::vector<uint16_t> v(static_cast<size_t>(n));
        for (uint16_t& s : v)
            s = f32_to_f16(next(seed_) & 1 ? m : -m);
        return reinterpret_cast<const f16*>(upload(v.data(), v.size() * 2));
    };
    w.exl3.suh = signs(w.exl3.in, 1.0f / std::sqrt(static_cast<float>(in)));
    w.exl3.svh = signs(w.exl3.out, 1.0f);
    return w;
}

double Gpu::time_us(int per_graph, const std::function<Status(int)>& op) {
    need(op(0));  // module load and shared-memory limits, outside the capture
    need(stream_->synchronize());
    need(stream_->begin_capture());
    for (int i = 0; i < per_graph; ++i)
        need(op(i));
    const auto graph = need(stream_->end_capture());
    const auto from = need(device_->make_event()), to = need(device_->make_event());
    std::vector<double> us;
    double total = 0;
    for (int rep = 0; rep < 40 && (rep < 8 || total < 4e5); ++rep) {
        need(stream_->record(*from));
        need(stream_->launch(*graph));
        need(stream_->record(*to));
        need(stream_->synchronize());
        const double t = need(to->since(*from)) * 1e3;
        total += t;
        if (rep >= 3) us.push_back(t / per_graph);
    }
    std::sort(us.begin(), us.end());
    return us[us.size() / 2];
}

void report(const std::string& what, double us, double bytes, double flops) {
    std::string row = fmt::format("{:<58} {:>10.2f} us", what, us);
    if (bytes > 0)
        row += fmt::format("  {:>7.0f} GB/s ({:>3.0f} % of {:.0f})", bytes / us * 1e-3,
                           100 * bytes / us * 1e-3 / kReadGBs, kReadGBs);
    if (flops > 0)
        row += fmt::format("  {:>6.1f} TFLOP/s ({:>3.0f} % of {:.0f})", flops / us * 1e-6,
                           100 * flops / us * 1e-6 / kMatrixTFlops, kMatrixTFlops);
    fmt::print("{}\n", row);
    std::fflush(stdout);
}

Register::Register(const char* group, std::function<void(Gpu&)> run) {
    groups().push_back({group, std::move(run)});
}

int run(int argc, char** argv) {
    const CudaProbe probe = probe_cuda();
    if (!probe.usable()) {
        fmt::print("skipped: {}\n", probe.reason);
        return 0;
    }
    for (const Group& g : groups()) {
        bool wanted = argc < 2;
        for (int i = 1; i < argc; ++i)
            wanted = wanted || std::strcmp(argv[i], g.name) == 0;
        if (!wanted) continue;
        auto device = need(make_cuda_device(0));
        fmt::print("--- {} on {}\n", g.name, device->name());
        auto ops = need(make_cuda_ops(*device));
        Gpu gpu(std::move(device), std::move(ops));
        g.run(gpu);
    }
    return 0;
}

}  // namespace terrace::bench

int main(int argc, char** argv) {
    return terrace::bench::run(argc, argv);
}
