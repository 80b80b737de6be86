// SPDX-License-Identifier: MIT
#include "cuda/linear/gemv_plain.h"

#include "cuda/util/common.cuh"

namespace terrace::cuda {
namespace {

constexpr int kWarps = 4;    // they share a block's inputs
constexpr int kOutputs = 4;  // of a block: each x that is loaded serves four weights
constexpr int kChunk = 4;    // neighbouring inputs of one lane
constexpr int kAhead = 5;    // chunks whose loads are under way before the first is used

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
    Input input;
};

template <DType D>
struct Chunk {
    uint32_t raw[D == DType::f32 ? 4 : 2];
    __device__ __forceinline__ void load(const void* w, int64_t at) {
        if constexpr (D == DType::f32) {
            const uint4 v =
                __ldg(reinterpret_cast<const uint4*>(static_cast<const float*>(w) + at));
            raw[0] = v.x, raw[1] = v.y, raw[2] = v.z, raw[3] = v.w;
        } else {
            const uint2 v =
                __ldg(reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(w) + at));
            raw[0] = v.x, raw[1] = v.y;
        }
    }
    __device__ __forceinline__ float value(int i) const {
        if constexpr (D == DType::f32) return __uint_as_float(raw[i]);
        const uint32_t bits = i % 2 ? raw[i / 2] >> 16 : raw[i / 2] & 0xffffu;
        if constexpr (D == DType::bf16) return __uint_as_float(bits << 16);
        return __half2float(__ushort_as_half(static_cast<uint16_t>(bits)));
    }
};

// A warp's share of a block's outputs, inputs in chunks of four per lane; `in` is a multiple of 4.
template <DType D, int TOKENS>
__device__ __forceinline__ void multiply_chunks(const Jobs& a, const Job& job, int o, int warp,
                                                int lane, float (&acc)[kOutputs][TOKENS]) {
    constexpr int kStep = 32 * kChunk * kWarps;
    Chunk<D> chunk[kAhead][kOutputs];
    const int mine = 32 * kChunk * warp + kChunk * lane;
    const auto fetch = [&](int from) {
#pragma unroll
        for (int u = 0; u < kAhead; ++u)
#pragma unroll
            for (int p = 0; p < kOutputs; ++p) {
                const int k = from + kStep * u + mine;
                if (k < job.in && o + p < job.out)
                    chunk[u][p].load(job.w, int64_t{o + p} * job.in + k);
                else
                    for (uint32_t& r : chunk[u][p].raw)
                        r = 0;
            }
    };
    fetch(0);
    if (a.input == Input::of_previous) pdl_wait();
    for (int from = 0; from < job.in; from += kStep * kAhead) {
        if (from > 0) fetch(from);
#pragma unroll
        for (int u = 0; u < kAhead; ++u) {
            const int k = from + kStep * u + mine;
            if (k >= job.in) break;
#pragma unroll
            for (int t = 0; t < TOKENS; ++t) {
                if (t >= a.rows) break;
                const float* x = a.x + t * a.x_stride + k;
                float v[kChunk];
                if (a.x_aligned) {
                    const float4 four = *reinterpret_cast<const float4*>(x);
                    v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
                } else {
#pragma unroll
                    for (int i = 0; i < kChunk; ++i)
                        v[i] = x[i];
                }
#pragma unroll
                for (int p = 0; p < kOutputs; ++p)
#pragma unroll
                    for (int i = 0; i < kChunk; ++i)
                        acc[p][t] = fmaf(chunk[u][p].value(i), v[i], acc[p][t]);
            }
        }
    }
}

// Computes: y[r][o] = sum_i x[r][i] * w[o][i].
// Grid and block: sum over jobs of out / 4; four warps share the inputs of four outputs.
// Shared memory: the warps' sums, 1 KiB.
// Traffic: weights once; x through L1 and L2, once per block.
// Numerics: f32 products and sums; per lane ascending, then a butterfly over lanes, then the warps in
// order. How lanes and warps share a row depends on `in` alone.
template <int TOKENS>
__global__ void __launch_bounds__(32 * kWarps) plain_kernel(const __grid_constant__ Jobs a) {
    __shared__ float sums[kWarps][kOutputs][TOKENS];
    int j = 0;
    while (j + 1 < a.n && static_cast<int>(blockIdx.x) >= a.job[j + 1].first_block)
        ++j;
    const Job& job = a.job[j];
    const int tid = static_cast<int>(threadIdx.x), lane = tid & 31, warp = tid >> 5;
    const int o = (static_cast<int>(blockIdx.x) - job.first_block) * kOutputs;
    pdl_launch();
    float acc[kOutputs][TOKENS] = {};
    if (job.in % kChunk == 0) {
        if (job.dtype == DType::f16)
            multiply_chunks<DType::f16>(a, job, o, warp, lane, acc);
        else if (job.dtype == DType::bf16)
            multiply_chunks<DType::bf16>(a, job, o, warp, lane, acc);
        else
            multiply_chunks<DType::f32>(a, job, o, warp, lane, acc);
    } else {
        if (a.input == Input::of_previous) pdl_wait();
        for (int k = tid; k < job.in; k += 32 * kWarps)
#pragma unroll
            for (int p = 0; p < kOutputs; ++p) {
                if (o + p >= job.out) break;
                const float w = load_plain(job.w, job.dtype, int64_t{o + p} * job.in + k);
#pragma unroll
                for (int t = 0; t < TOKENS; ++t)
                    if (t < a.rows) acc[p][t] = fmaf(w, a.x[t * a.x_stride + k], acc[p][t]);
            }
    }
#pragma unroll
    for (int p = 0; p < kOutputs; ++p)
#pragma unroll
        for (int t = 0; t < TOKENS; ++t) {
            const float sum = warp_sum(acc[p][t]);
            if (lane == 0) sums[warp][p][t] = sum;
        }
    // Whoever waits for this kernel waits for the one in front too.
    if (a.input == Input::ready) pdl_wait();
    __syncthreads();
    const int p = tid % kOutputs, t = tid / kOutputs;
    if (t >= a.rows || o + p >= job.out) return;
    float sum = sums[0][p][t];
#pragma unroll
    for (int w = 1; w < kWarps; ++w)
        sum += sums[w][p][t];
    job.y[t * job.y_stride + o + p] = sum;
}

}  // namespace

Status gemv_plain(const Launch& launch, const LinearArgs& args, std::span<const LinearJob> jobs,
                  int row0, int rows, Input input) {
    Jobs a = {};
    a.input = input;
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
        blocks += (w.out + kOutputs - 1) / kOutputs;
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
