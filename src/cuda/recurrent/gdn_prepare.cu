// Gated delta net, chunk form, first launch: all that does not depend on the state, for every chunk at
// once.
// SPDX-License-Identifier: MIT
#include "cuda/recurrent/gdn.h"
#include "cuda/recurrent/gdn_chunk.cuh"

namespace terrace::cuda {
namespace {

using namespace chunk;  // NOLINT: this file is its implementation

constexpr int kThreads = 256;
constexpr int kTaps = 3;
constexpr int kRowStride = kDim + 8;  // f32 rows in shared memory: pairs of 4 rows meet all banks
constexpr int kSquareStride = kRows + 4;

struct Shared {
    float k[kRows][kRowStride];
    union {
        float q[kRows][kRowStride];
        float a[kRows][kSquareStride];  // A transposed, when q has been used
    };
    float kk[kRows][kSquareStride], qk[kRows][kSquareStride];
    float decay[kRows], exp_decay[kRows], beta[kRows];  // G, exp(G)
};

// Inputs of a channel's convolution: 64 rows behind three earlier ones, zero beyond the tile.
struct Channel {
    const float* u;  // the channel in row 0 of the sequence
    float* past;     // in the state
    int channels, done, n_rows;

    __device__ float earlier(int j) const {
        const int at = done - kTaps + j;
        return at < 0 ? past[int64_t{kTaps + at} * channels] : u[int64_t{at} * channels];
    }
    __device__ float now(int i) const {
        return i < n_rows ? u[int64_t{done + i} * channels] : 0.0f;
    }
    // The state behind the sequence's last row; it has more rows than taps.
    __device__ void move_on(int rows) const {
        for (int j = 0; j < kTaps; ++j)
            past[int64_t{j} * channels] = u[int64_t{rows - kTaps + j} * channels];
    }
};

__device__ __forceinline__ float convolve(const float (&w)[kTaps + 1], float x0, float x1, float x2,
                                          float x3) {
    return siluf(fmaf(w[3], x3, fmaf(w[2], x2, fmaf(w[1], x1, w[0] * x0))));
}

// a operand of 16 rows x 16 columns of f32 rows in shared memory, as two f16 each.
__device__ __forceinline__ void load_split_a(uint32_t (&hi)[4], uint32_t (&lo)[4],
                                             const float* rows) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 v = *reinterpret_cast<const float2*>(
            rows + (lane / 4 + (i & 1) * 8) * kRowStride + lane % 4 * 2 + i / 2 * 8);
        const Split s = split(v.x, v.y);
        hi[i] = s.hi, lo[i] = s.lo;
    }
}

// kk[i][j] = <k_i, k_j>, qk[i][j] = <q_i, k_j> for j <= i; a warp per 16 rows x 32 columns.
// Numerics: f16 pairs, the product of the two low parts left out.
__device__ __forceinline__ void pair_products(Shared& m, int warp, int lane) {
    const int row0 = warp % 4 * 16, column0 = warp / 4 * 32;
    float kk[4][4] = {}, qk[4][4] = {};
    for (int d = 0; d < kDim; d += 16) {
        uint32_t k_hi[4], k_lo[4], q_hi[4], q_lo[4];
        load_split_a(k_hi, k_lo, &m.k[row0][d]);
        load_split_a(q_hi, q_lo, &m.q[row0][d]);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            if (column0 + 8 * n > row0 + 15) continue;
            const float* b = &m.k[column0 + 8 * n + lane / 4][d + lane % 4 * 2];
            const Split b0 = split(b[0], b[1]), b1 = split(b[8], b[9]);
            mma(kk[n], k_lo, b0.hi, b1.hi);
            mma(kk[n], k_hi, b0.lo, b1.lo);
            mma(kk[n], k_hi, b0.hi, b1.hi);
            mma(qk[n], q_lo, b0.hi, b1.hi);
            mma(qk[n], q_hi, b0.lo, b1.lo);
            mma(qk[n], q_hi, b0.hi, b1.hi);
        }
    }
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int row = row0 + lane / 4 + 8 * i, column = column0 + 8 * n + lane % 4 * 2;
            *reinterpret_cast<float2*>(&m.kk[row][column]) =
                make_float2(kk[n][2 * i], kk[n][2 * i + 1]);
            *reinterpret_cast<float2*>(&m.qk[row][column]) =
                make_float2(qk[n][2 * i], qk[n][2 * i + 1]);
        }
}

// G, exp(G) and beta of a value head; a warp, two rows per lane.
__device__ __forceinline__ void gates(Shared& m, const GdnArgs& a, const SeqTile& t, int h,
                                      int lane, float* out) {
    const float rate = -expf(load_plain(a.a_log, h)), bias = load_plain(a.dt_bias, h);
    float g[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int row = 2 * lane + i;
        const int64_t at = int64_t{t.row0 + row} * a.v_heads + h;
        const bool there = row < t.n_rows;
        g[i] = there ? rate * softplusf(a.a.device_pointer()[at] + bias) : 0.0f;
        m.beta[row] = there ? sigmoidf(a.b.device_pointer()[at]) : 0.0f;
    }
    float upto = g[0] + g[1];
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const float other = __shfl_up_sync(0xffffffffu, upto, d);
        if (lane >= d) upto += other;
    }
    const float last = __shfl_sync(0xffffffffu, upto, 31);
    const float both[2] = {upto - g[1], upto};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int row = 2 * lane + i;
        m.decay[row] = both[i];
        m.exp_decay[row] = expf(both[i]);
        out[row] = expf(both[i]);
        out[kRows + row] = expf(fminf(last - both[i], 0.0f));
    }
}

// Computes q, k, W, U, P and the gates of a chunk (model spec 3.6, chunk form) for a k head and its
// value heads, and moves the convolution state on where no row of the sequence is decoded.
// Grid: (k heads, tiles). Shared memory: Shared.
// Traffic: u once, a tile's results once: about 180 KiB per chunk and k head.
// Numerics: fp32; products of q and k as f16 pairs; (I + A) X = B column by column in fp32, a thread
// each; W, P, q and k are rounded to f16.
__global__ void __launch_bounds__(kThreads, 2) prepare_kernel(GdnArgs a, Tiles out, int tile0) {
    extern __shared__ __align__(16) unsigned char smem[];
    Shared& m = *reinterpret_cast<Shared*>(smem);
    pdl_launch();
    pdl_wait();
    const int t = static_cast<int>(threadIdx.x), lane = t & 31, warp = t / 32;
    const int kh = static_cast<int>(blockIdx.x), group = a.v_heads / a.k_heads;
    const int64_t slab_tile = blockIdx.y;
    const SeqTile tile =
        find_tile(a.step, Tiled::prefilled, tile0 + static_cast<int>(blockIdx.y), kRows);
    const int channels = (2 * a.k_heads + a.v_heads) * kDim;
    const bool moves = tile.row0 == tile.seq.row0 && decoded_rows(tile.seq.n_rows) == 0;
    const auto channel = [&](int c) {
        return Channel{
            a.qkv.device_pointer() + int64_t{tile.seq.row0} * channels + c,
            a.conv_state.device_pointer() + int64_t{tile.seq.slot} * kTaps * channels + c, channels,
            tile.row0 - tile.seq.row0, tile.n_rows};
    };
    const auto taps = [&](float(&w)[kTaps + 1], int c) {
#pragma unroll
        for (int j = 0; j <= kTaps; ++j)
            w[j] = load_plain(a.conv, int64_t{c} * (kTaps + 1) + j);
    };

    {
        const int c = (t < kDim ? kh : a.k_heads + kh) * kDim + (t & (kDim - 1));
        const Channel ch = channel(c);
        float w[kTaps + 1];
        taps(w, c);
        float x0 = ch.earlier(0), x1 = ch.earlier(1), x2 = ch.earlier(2);
        float* to = t < kDim ? &m.q[0][t] : &m.k[0][t - kDim];
#pragma unroll 16
        for (int i = 0; i < kRows; ++i) {
            const float now = ch.now(i);
            to[i * kRowStride] = i < tile.n_rows ? convolve(w, x0, x1, x2, now) : 0.0f;
            x0 = x1, x1 = x2, x2 = now;
        }
        if (moves) ch.move_on(tile.seq.n_rows);
    }
    __syncthreads();
    for (int row = warp; row < kRows; row += kThreads / 32) {
        const int64_t at = (slab_tile * a.k_heads + kh) * kWideTile + row * kWideStride + 4 * lane;
        const auto normalise = [&](float* x, float scale, __half* to) {
            auto* p = reinterpret_cast<float4*>(x) + lane;
            float4 v = *p;
            const float sum = warp_sum(v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w);
            const float inv = rsqrtf(sum + a.eps) * scale;
            v.x *= inv, v.y *= inv, v.z *= inv, v.w *= inv;
            *p = v;
            *reinterpret_cast<uint2*>(to + at) =
                make_uint2(pack(__floats2half2_rn(v.x, v.y)), pack(__floats2half2_rn(v.z, v.w)));
        };
        normalise(m.q[row], rsqrtf(static_cast<float>(kDim)), out.q);
        normalise(m.k[row], 1.0f, out.k);
    }
    __syncthreads();
    pair_products(m, warp, lane);

    for (int g = 0; g < group; ++g) {
        const int h = kh * group + g;
        const int64_t head_tile = slab_tile * a.v_heads + h;
        __syncthreads();  // the products are there, and A of the head before has been used
        if (warp == 0) gates(m, a, tile, h, lane, out.gates + head_tile * kGates);
        float x[kRows];
        const int c = 2 * a.k_heads * kDim + h * kDim + t;  // of a value, for the first threads
        float w[kTaps + 1], x0 = 0.0f, x1 = 0.0f, x2 = 0.0f;
        if (t < kDim) {
            const Channel ch = channel(c);
            taps(w, c);
            x0 = ch.earlier(0), x1 = ch.earlier(1), x2 = ch.earlier(2);
            // Opaque: 64 multiples of the stride would be kept in registers for all heads.
            int64_t stride = channels;
            asm volatile("" : "+l"(stride));
            const float* from = ch.u + ch.done * stride;
#pragma unroll
            for (int i = 0; i < kRows; ++i, from += stride)
                x[i] = i < tile.n_rows ? *from : 0.0f;
            if (moves) ch.move_on(tile.seq.n_rows);
        }
        __syncthreads();
        for (int e = t; e < kRows * kRows; e += kThreads) {
            const int i = e / kRows, j = e % kRows;
            const float d = j <= i ? expf(m.decay[i] - m.decay[j]) : 0.0f;
            m.a[j][i] = j < i ? m.beta[i] * m.kk[i][j] * d : 0.0f;
            out.p[head_tile * kPairTile + i * kPairStride + j] =
                __float2half_rn(j <= i ? m.qk[i][j] * d : 0.0f);
        }
        __syncthreads();
        if (t < kDim) {
#pragma unroll
            for (int i = kRows - 1; i >= 0; --i) {
                x[i] = m.beta[i] * convolve(w,
                                            i >= 3   ? x[i - 3]
                                            : i == 2 ? x2
                                            : i == 1 ? x1
                                                     : x0,
                                            i >= 2   ? x[i - 2]
                                            : i == 1 ? x2
                                                     : x1,
                                            i >= 1 ? x[i - 1] : x2, x[i]);
            }
        } else {
#pragma unroll
            for (int i = 0; i < kRows; ++i) {
                x[i] = m.beta[i] * m.exp_decay[i] * m.k[i][t - kDim];
            }
        }
#pragma unroll
        for (int j = 0; j < kRows - 1; ++j) {
#pragma unroll
            for (int i4 = (j + 1) / 4 * 4; i4 < kRows; i4 += 4) {
                const float4 v = *reinterpret_cast<const float4*>(&m.a[j][i4]);
                if (i4 > j) x[i4] = fmaf(-v.x, x[j], x[i4]);
                if (i4 + 1 > j) x[i4 + 1] = fmaf(-v.y, x[j], x[i4 + 1]);
                if (i4 + 2 > j) x[i4 + 2] = fmaf(-v.z, x[j], x[i4 + 2]);
                if (i4 + 3 > j) x[i4 + 3] = fmaf(-v.w, x[j], x[i4 + 3]);
            }
        }
        if (t < kDim) {
            auto* to = reinterpret_cast<float4*>(out.u + head_tile * kUTile + t * kPairStride);
#pragma unroll
            for (int i = 0; i < kRows; i += 4)
                to[i / 4] = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
        } else {
            __half* to = out.w + head_tile * kWideTile + t - kDim;
#pragma unroll
            for (int i = 0; i < kRows; ++i)
                to[i * kWideStride] = __float2half_rn(x[i]);
        }
    }
}

}  // namespace

Status gdn_prepare(const Launch& l, const GdnArgs& a, const Tiles& out, int tile0, int n_tiles) {
    return start(l, "gdn: chunks", prepare_kernel,
                 dim3(static_cast<unsigned>(a.k_heads), static_cast<unsigned>(n_tiles)), kThreads,
                 sizeof(Shared), Start::overlapping, a, out, tile0);
}

}  // namespace terrace::cuda
