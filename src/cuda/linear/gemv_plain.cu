// SPDX-License-Identifier: MIT
#include "cuda/linear/gemv_plain.h"

#include "cuda/util/common.cuh"

namespace terrace::cuda {
namespace {

constexpr int kWarps = 4;  // few per block: a router has only 512 outputs
constexpr int kChunk = 8;  // neighbouring weights of one lane, a 16-byte load of 16-bit types
constexpr int kAhead = 5;  // chunks whose loads are under way before the first is used

struct Job {
    const void* w;
    float* y;
    int64_t y_stride;
    DType dtype;
    int32_t in, out, first_block;
};
struct Jobs {
    Job job[kMaxLinearJobs];
    int32_t n;
    const float* x;  // row 0
    int64_t x_stride;
    int32_t rows;
    int32_t x_aligned;  // rows start at multiples of 16 bytes
};

template <DType D>
struct Chunk {
    uint4 raw[D == DType::f32 ? 2 : 1];
    __device__ __forceinline__ void load(const void* w, int64_t at) {
        const auto* p = reinterpret_cast<const uint4*>(static_cast<const std::byte*>(w) +
                                                       at * (D == DType::f32 ? 4 : 2));
        raw[0] = __ldg(p);
        if constexpr (D == DType::f32) raw[1] = __ldg(p + 1);
    }
    __device__ __forceinline__ void values(float (&v)[kChunk]) const {
        const auto* words = reinterpret_cast<const uint32_t*>(raw);
#pragma unroll
        for (int i = 0; i < kChunk; ++i) {
            if constexpr (D == DType::f32) {
                v[i] = __uint_as_float(words[i]);
            } else {
                const uint32_t bits = i % 2 ? words[i / 2] >> 16 : words[i / 2] & 0xffffu;
                v[i] = D == DType::bf16
                           ? __uint_as_float(bits << 16)
                           : __half2float(__ushort_as_half(static_cast<uint16_t>(bits)));
            }
        }
    }
};

// One warp's output of all tokens, inputs in chunks of 8 per lane; `in` is a multiple of 8.
template <DType D, int TOKENS>
__device__ __forceinline__ void multiply_chunks(const Jobs& a, const Job& job, int64_t row,
                                                int lane, float (&acc)[TOKENS]) {
    Chunk<D> chunk[kAhead];
    const auto fetch = [&](int from) {
#pragma unroll
        for (int u = 0; u < kAhead; ++u) {
            const int k = from + 256 * u + kChunk * lane;
            if (k < job.in) chunk[u].load(job.w, row + k);
        }
    };
    fetch(0);
    pdl_wait();
    for (int from = 0; from < job.in; from += 256 * kAhead) {
        if (from > 0) fetch(from);
#pragma unroll
        for (int u = 0; u < kAhead; ++u) {
            const int k = from + 256 * u + kChunk * lane;
            if (k >= job.in) break;
            float w[kChunk];
            chunk[u].values(w);
#pragma unroll
            for (int t = 0; t < TOKENS; ++t) {
                if (t >= a.rows) break;
                const float* x = a.x + t * a.x_stride + k;
                float v[kChunk];
                if (a.x_aligned) {
                    const float4 lo = reinterpret_cast<const float4*>(x)[0];
                    const float4 hi = reinterpret_cast<const float4*>(x)[1];
                    v[0] = lo.x, v[1] = lo.y, v[2] = lo.z, v[3] = lo.w;
                    v[4] = hi.x, v[5] = hi.y, v[6] = hi.z, v[7] = hi.w;
                } else {
#pragma unroll
                    for (int i = 0; i < kChunk; ++i)
                        v[i] = x[i];
                }
#pragma unroll
                for (int i = 0; i < kChunk; ++i)
                    acc[t] = fmaf(w[i], v[i], acc[t]);
            }
        }
    }
}

// Computes: y[r][o] = sum_i x[r][i] * w[o][i].
// Grid and block: sum over jobs of out / 4; four warps, one output each.
// Shared memory: none.
// Traffic: weights once; x through L1, once per warp.
// Numerics: f32 products and sums; per lane ascending, then a butterfly over lanes. How lanes share a
// row depends on `in` alone.
template <int TOKENS>
__global__ void __launch_bounds__(32 * kWarps) plain_kernel(const __grid_constant__ Jobs a) {
    int j = 0;
    while (j + 1 < a.n && static_cast<int>(blockIdx.x) >= a.job[j + 1].first_block)
        ++j;
    const Job& job = a.job[j];
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const int o = (static_cast<int>(blockIdx.x) - job.first_block) * kWarps +
                  (static_cast<int>(threadIdx.x) >> 5);
    pdl_launch();
    if (o >= job.out) return;
    const int64_t row = int64_t{o} * job.in;
    float acc[TOKENS] = {};
    if (job.in % kChunk == 0) {
        if (job.dtype == DType::f16)
            multiply_chunks<DType::f16>(a, job, row, lane, acc);
        else if (job.dtype == DType::bf16)
            multiply_chunks<DType::bf16>(a, job, row, lane, acc);
        else
            multiply_chunks<DType::f32>(a, job, row, lane, acc);
    } else {
        pdl_wait();
        for (int k = lane; k < job.in; k += 32) {
            const float w = load_plain(job.w, job.dtype, row + k);
#pragma unroll
            for (int t = 0; t < TOKENS; ++t)
                if (t < a.rows) acc[t] = fmaf(w, a.x[t * a.x_stride + k], acc[t]);
        }
    }
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
        if (t >= a.rows) break;
        const float sum = warp_sum(acc[t]);
        if (lane == 0) job.y[t * job.y_stride + o] = sum;
    }
}

}  // namespace

Status gemv_plain(const Launch& launch, const LinearArgs& args, std::span<const LinearJob> jobs,
                  int row0, int rows) {
    Jobs a = {};
    int blocks = 0;
    for (const LinearJob& from : jobs) {
        const LinearWeight& w = *from.weight;
        Job& job = a.job[a.n++];
        job.w = w.plain.data;
        job.dtype = w.plain.dtype;
        job.y = from.y.device_pointer() + row0 * from.y_stride;
        job.y_stride = from.y_stride;
        job.in = w.in;
        job.out = w.out;
        job.first_block = blocks;
        blocks += (w.out + kWarps - 1) / kWarps;
    }
    a.x = args.x.device_pointer() + row0 * args.x_stride;
    a.x_stride = args.x_stride;
    a.rows = rows;
    a.x_aligned = reinterpret_cast<uintptr_t>(a.x) % 16 == 0 && a.x_stride % 4 == 0;
    const auto kernel = rows == 1   ? plain_kernel<1>
                        : rows <= 4 ? plain_kernel<4>
                                    : plain_kernel<16>;
    return start(launch, "plain gemv", kernel, dim3(blocks), dim3(32 * kWarps), 0,
                 Start::overlapping, a);
}

}  // namespace terrace::cuda
