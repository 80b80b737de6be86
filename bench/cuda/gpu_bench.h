// Timing of GPU operations: a bench registers itself, makes inputs larger than the L2 cache in rotating
// copies, and times captured graphs of its launches, so that launch gaps are those of a captured
// step. Every row says bytes or operations, time, and the share of the ceiling.
// SPDX-License-Identifier: MIT
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "ops/ops.h"

namespace terrace::bench {

// Ceilings that shares refer to; H200, measured (docs/perf.md).
constexpr double kReadGBs = 4540.0;
constexpr double kMatrixTFlops = 790.0;

class Gpu {
  public:
    Gpu(std::unique_ptr<Device> device, std::unique_ptr<Ops> ops);
    Device& device() { return *device_; }
    Ops& ops() { return *ops_; }
    Stream& stream() { return *stream_; }

    // Random bytes (any bits), f16 values or f32 values in device memory, freed by forget().
    std::byte* random_bytes(size_t bytes);
    DevSpan<float> random_floats(size_t n, float scale = 1.0f);
    std::byte* upload(const void* data, size_t bytes);
    template <class T>
    DevSpan<T> upload(const std::vector<T>& v) {
        return {reinterpret_cast<T*>(upload(v.data(), v.size() * sizeof(T))), v.size()};
    }
    template <class T>
    DevSpan<T> space(size_t n) {
        return {reinterpret_cast<T*>(raw(n * sizeof(T))), n};
    }
    LinearWeight exl3(int in, int out, int n16, Codebook codebook = Codebook::mul1);
    LinearWeight plain_f16(int in, int out);
    PlainTensor plain_f16_vector(int64_t n, float scale = 1.0f);
    void forget() { buffers_.clear(); }

    // Median microseconds of one call of `op(i)`, i counting calls so that it can rotate copies:
    // `per_graph` calls are captured, the graph is replayed.
    double time_us(int per_graph, const std::function<Status(int)>& op);

  private:
    std::byte* raw(size_t bytes);
    std::unique_ptr<Device> device_;
    std::unique_ptr<Stream> stream_;
    std::unique_ptr<Ops> ops_;
    std::vector<Buffer> buffers_;
    uint64_t seed_ = 1;
};

// One printed row. bytes or flops may be 0.
void report(const std::string& what, double us, double bytes, double flops);

// static const Register r("linear", [](Gpu& gpu) { ... });
struct Register {
    Register(const char* group, std::function<void(Gpu&)> run);
};

}  // namespace terrace::bench
