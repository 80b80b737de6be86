// What the kernels of hyper_read for decoded rows share: how outputs and columns are dealt out to
// blocks and threads, which fixes every sum's order, and the sums themselves.
// SPDX-License-Identifier: MIT
#pragma once
#include "cuda/ptx/async.cuh"
#include "cuda/streams/hyper_read.h"
#include "cuda/util/common.cuh"

namespace terrace::cuda::hyper {

constexpr int kStreams = 4;
constexpr int kThreads = 320;  // 8 columns each: a stream of 2560
constexpr int kWarps = kThreads / 32;
constexpr int kOuts = 10;     // outputs of a block: 33 groups for 320 + 4 of them
constexpr int kColumns = 20;  // of x per block: 128 blocks for 2560
constexpr int kParts = 8;     // pieces of the rank that threads sum side by side
constexpr int kGates = kColumns * kStreams;
constexpr int kPairs = kGates / 2;  // of gates that a thread sums together
static_assert(kPairs * kParts == kThreads && 4 * kGates == kThreads);

struct Args {
    float* h;  // [rows][4][hidden]
    PlainTensor norm;
    const uint16_t *down, *inject, *up;
    float *x, *inj;                // inj null at the final mixer
    const float *add_y, *add_inj;  // null: nothing to add
    float* sums;                   // [rows][4][rank + 4]
    float* inv;                    // [rows][4], 1 / rms of the streams
    uint32_t* boxes;
    int rows, hidden, rank;
    float per_hidden;  // 1 / hidden
    float eps;
};

// Within 2 ulp, at half the time of what is exact.
__device__ __forceinline__ float quick_sigmoid(float x) {
    return __fdividef(1.0f, 1.0f + __expf(-x));
}

// Row of down or inject that gives output `out`.
__device__ __forceinline__ const uint16_t* weights_of(const Args& a, int out) {
    const int64_t wide = kStreams * a.hidden;
    return out < a.rank ? a.down + out * wide : a.inject + (out - a.rank) * wide;
}

// Sums 16 values over a warp in a fixed order; lanes 2i and 2i + 1 get the sum of value i. Lanes 2N
// apart keep one half of their values each.
template <int N>
__device__ __forceinline__ void fold(float (&v)[16]) {
    const bool upper = threadIdx.x & (2 * N);
#pragma unroll
    for (int i = 0; i < N; ++i) {
        const float keep = upper ? v[i + N] : v[i], send = upper ? v[i] : v[i + N];
        v[i] = keep + __shfl_xor_sync(0xffffffffu, send, 2 * N);
    }
}
__device__ __forceinline__ float warp_sums16(float (&v)[16]) {
    fold<8>(v);
    fold<4>(v);
    fold<2>(v);
    fold<1>(v);
    return v[0] + __shfl_xor_sync(0xffffffffu, v[0], 1);
}

// A block's rows of `up`, its middle values and sums, in shared memory.
struct UpPlan {
    int row_bytes;  // of a row of weights; 16 more than its data, so that 8 rows meet all banks
    size_t mid, part, bytes;
};
__host__ __device__ inline UpPlan up_plan(int rank, int batch) {
    UpPlan p{};
    p.row_bytes = 2 * rank + 16;
    p.mid = static_cast<size_t>(kGates * p.row_bytes);
    p.part = p.mid + sizeof(float) * static_cast<size_t>(batch * rank);
    p.bytes = p.part + sizeof(float) * static_cast<size_t>(batch * kParts * kGates);
    return p;
}

// Has the block's rows of `up` copied; gate g of the block is that of stream g % 4 and the block's
// column g / 4.
__device__ __forceinline__ void copy_up(const Args& a, unsigned char* smem, int row_bytes) {
    const int first = static_cast<int>(blockIdx.x) * kColumns;
    const int columns = min(kColumns, a.hidden - first), chunks = a.rank / 8;
#pragma unroll 5
    for (int i = static_cast<int>(threadIdx.x); i < columns * kStreams * chunks; i += kThreads) {
        const int g = i / chunks, c = i - g * chunks;
        const int64_t row = int64_t{g % kStreams} * a.hidden + first + g / kStreams;
        cp_async16(shared_address(smem + g * row_bytes + 16 * c), a.up + row * a.rank + 8 * c);
    }
}

// A thread's pair of gates: 8 neighbouring ranks of both, as floats.
template <DType T>
__device__ __forceinline__ void load_pair(const unsigned char* weights, int row_bytes, int k,
                                          float (&w)[2][8]) {
#pragma unroll
    for (int g = 0; g < 2; ++g)
        widen8<T>(*reinterpret_cast<const uint4*>(weights + g * kPairs * row_bytes + 2 * k), w[g]);
}

// Two gates, each in two chains: what is read of mid serves both.
__device__ __forceinline__ void multiply_pair(const float* mid, const float (&w)[2][8],
                                              float (&sum)[2][2]) {
    const float4 lo = *reinterpret_cast<const float4*>(mid);
    const float4 hi = *reinterpret_cast<const float4*>(mid + 4);
#pragma unroll
    for (int g = 0; g < 2; ++g) {
        float(&c)[2] = sum[g];
        c[0] = fmaf(lo.x, w[g][0], c[0]), c[1] = fmaf(hi.x, w[g][4], c[1]);
        c[0] = fmaf(lo.y, w[g][1], c[0]), c[1] = fmaf(hi.y, w[g][5], c[1]);
        c[0] = fmaf(lo.z, w[g][2], c[0]), c[1] = fmaf(hi.z, w[g][6], c[1]);
        c[0] = fmaf(lo.w, w[g][3], c[0]), c[1] = fmaf(hi.w, w[g][7], c[1]);
    }
}

// The mean over the streams of sigmoid(gate) * n, in the four lanes of a column. p: the gate's
// pieces; n: the stream's normed value.
__device__ __forceinline__ float mean_gated(const float* p, float n) {
    float g = p[0];
#pragma unroll
    for (int i = 1; i < kParts; ++i)
        g += p[i * kGates];
    float v = quick_sigmoid(g) * n;
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    v += __shfl_xor_sync(0xffffffffu, v, 2);
    return v * (1.0f / kStreams);
}

// An output of down and one of inject, from what the streams give.
__device__ __forceinline__ float mean_streams(float s0, float s1, float s2, float s3) {
    return (((s0 + s1) + s2) + s3) * (1.0f / kStreams);
}
__device__ __forceinline__ float middle(float s0, float s1, float s2, float s3) {
    const float mean = mean_streams(s0, s1, s2, s3);
    return mean * quick_sigmoid(mean);
}
__device__ __forceinline__ float injection(float s0, float s1, float s2, float s3) {
    return 2.0f * sigmoidf(mean_streams(s0, s1, s2, s3));
}

// One row in one launch; false where the launch does not serve.
bool one_row_serves(const Launch& launch, const Args& args);
Status one_row(const Launch& launch, const Args& args, DType dtype);

}  // namespace terrace::cuda::hyper
