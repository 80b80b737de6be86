// Gated delta net, chunk form, first launch: all that does not depend on the state, for every chunk
// at once.
// SPDX-License-Identifier: MIT
#include "cuda/recurrent/gdn.h"
#include "cuda/recurrent/gdn_chunk.cuh"
#include "cuda/recurrent/gdn_taps.cuh"

namespace terrace::cuda {
namespace {

using namespace chunk;  // NOLINT: this file is its implementation

constexpr int kThreads = 256;
constexpr int kRowStride = kDim + 8;  // f32 rows in shared memory: pairs of 4 rows meet all banks
constexpr int kSquareStride = kRows + 4;

constexpr int kHeads = 3;  // value heads that are worked on together

struct Shared {
    union {
        struct {
            float q[kRows][kRowStride], k[kRows][kRowStride];
        };
        struct {                                    // when q and k have been used
            float a[kHeads][kRows][kSquareStride];  // A transposed
            float kk[kRows][kSquareStride];
        };
    };
    float qk[kRows][kSquareStride];
    float decay[kHeads][kRows], beta[kHeads][kRows];  // G, beta
};

// Inputs of a channel's convolution: 64 rows behind three earlier ones, zero beyond the tile.
struct Channel {
    const float* u;  // the channel in row 0 of the sequence
    float* past;     // in the state
    int channels, done, n_rows;

    __device__ float earlier(int j) const {
        const int at = done - kTaps + j;
        return *(at < 0 ? past + int64_t{kTaps + at} * channels : u + int64_t{at} * channels);
    }
    // Loads without a condition, so that many are on their way together.
    __device__ float now(int i) const {
        const float v = u[int64_t{done + min(i, n_rows - 1)} * channels];
        return i < n_rows ? v : 0.0f;
    }
    // The state behind the sequence's last row; it has more rows than taps.
    __device__ void move_on(int rows) const {
        for (int j = 0; j < kTaps; ++j)
            past[int64_t{j} * channels] = u[int64_t{rows - kTaps + j} * channels];
    }
};

// Fast exponential and division: a few units in the last place.
__device__ __forceinline__ float convolve(const float (&w)[kTaps + 1], float x0, float x1, float x2,
                                          float x3) {
    const float y = fmaf(w[3], x3, fmaf(w[2], x2, fmaf(w[1], x1, w[0] * x0)));
    return __fdividef(y, 1.0f + __expf(-y));
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
// Numerics: f16 pairs, the product of the two low parts left out. Passes a barrier of the block.
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
    __syncthreads();  // kk takes the place of q and k
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

// G and beta of a value head; a warp, two rows per lane.
__device__ __forceinline__ void gates(float* decay, float* beta, const GdnArgs& a, const SeqTile& t,
                                      int h, int lane, float* out) {
    const float rate = -expf(load_plain(a.a_log, h)), bias = load_plain(a.dt_bias, h);
    float g[2], b[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int row = 2 * lane + i;
        const int64_t at = int64_t{t.row0 + row} * a.v_heads + h;
        const bool there = row < t.n_rows;
        g[i] = there ? rate * softplusf(a.a.device_pointer()[at] + bias) : 0.0f;
        b[i] = there ? sigmoidf(a.b.device_pointer()[at]) : 0.0f;
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
        decay[row] = both[i];
        beta[row] = b[i];
        out[row] = expf(both[i]);
        out[kRows + row] = expf(fminf(last - both[i], 0.0f));
        out[2 * kRows + row] = b[i] * expf(both[i]);
    }
}

// Column `column` of (I + A)^-1, A strictly lower and given transposed; columns from kFirst on have
// zeros above row kFirst. A thread per column: each row's unknown, once known, leaves all later
// rows.
template <int kFirst>
__device__ __forceinline__ void invert(const float (*a)[kSquareStride], int column, __half* out) {
    float x[kRows - kFirst];
#pragma unroll
    for (int i = kFirst; i < kRows; ++i)
        x[i - kFirst] = i == column ? 1.0f : 0.0f;
#pragma unroll
    for (int j = kFirst; j < kRows - 1; ++j)
#pragma unroll
        for (int i4 = (j + 1) / 4 * 4; i4 < kRows; i4 += 4) {
            const float4 v = *reinterpret_cast<const float4*>(&a[j][i4]);
            const float m = -x[j - kFirst];
            float* to = x + i4 - kFirst;
            if (i4 > j) to[0] = fmaf(v.x, m, to[0]);
            if (i4 + 1 > j) to[1] = fmaf(v.y, m, to[1]);
            if (i4 + 2 > j) to[2] = fmaf(v.z, m, to[2]);
            if (i4 + 3 > j) to[3] = fmaf(v.w, m, to[3]);
        }
#pragma unroll
    for (int i = 0; i < kRows; ++i)
        out[i * kPairStride + column] = __float2half_rn(i < kFirst ? 0.0f : x[max(i - kFirst, 0)]);
}

// Computes q, k, T, P, beta V and the gates of a chunk (model spec 3.6, chunk form) for a k head
// and its value heads, and moves the convolution state on where no row of the sequence is decoded.
// Grid: (k heads, tiles). Shared memory: Shared.
// Traffic: u once, a tile's results once: about 210 KiB per chunk and k head.
// Numerics: fp32; products of q and k as f16 pairs; T column by column in fp32; T, P, q and k are
// rounded to f16 at the end.
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
    {
        const int c = (t < kDim ? kh : a.k_heads + kh) * kDim + (t & (kDim - 1));
        const Channel ch = channel(c);
        float w[kTaps + 1];
        load_taps(a.conv, c, w);
        float x0 = ch.earlier(0), x1 = ch.earlier(1), x2 = ch.earlier(2);
        float* to = t < kDim ? &m.q[0][t] : &m.k[0][t - kDim];
        for (int i = 0; i < kRows; i += 32) {
            float u[32];  // all on their way before the first is stored
#pragma unroll
            for (int j = 0; j < 32; ++j)
                u[j] = ch.now(i + j);
#pragma unroll
            for (int j = 0; j < 32; ++j) {
                float y = convolve(w, x0, x1, x2, u[j]);
                if (i + j >= tile.n_rows) y = 0.0f;
                to[(i + j) * kRowStride] = y;
                x0 = x1, x1 = x2, x2 = u[j];
            }
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

    for (int g0 = 0; g0 < group; g0 += kHeads) {
        const int heads = min(kHeads, group - g0), h0 = kh * group + g0;
        const int64_t head_tile = slab_tile * a.v_heads + h0;
        if (warp < heads)
            gates(m.decay[warp], m.beta[warp], a, tile, h0 + warp, lane,
                  out.gates + (head_tile + warp) * kGates);
        __syncthreads();  // the gates and the products are there, and A of heads before is used
        for (int e = t; e < heads * kRows * kRows; e += kThreads) {
            const int g = e / (kRows * kRows), i = e / kRows % kRows, j = e % kRows;
            __half* p = out.p + (head_tile + g) * kPairTile + i * kPairStride + j;
            if (j > i) {
                *p = __half{};
                continue;
            }
            const float d = __expf(m.decay[g][i] - m.decay[g][j]);
            m.a[g][j][i] = m.beta[g][i] * m.kk[i][j] * d;
            *p = __float2half_rn(m.qk[i][j] * d);
        }
        __syncthreads();
        // Warps 0 to 5 invert, two per head: the columns of its first half take three times as long
        // as those of its second. The values' 32-channel parts go to the other warps.
        if (warp < 2 * heads) {
            __half* to = out.t + (head_tile + warp / 2) * kPairTile;
            if (warp % 2 == 0)
                invert<0>(m.a[warp / 2], lane, to);
            else
                invert<kRows / 2>(m.a[warp / 2], kRows / 2 + lane, to);
        }
        const auto values = [&](int part) {
            const int g = part / 4, d = part % 4 * 32 + lane;
            if (g >= heads) return;
            const int c = 2 * a.k_heads * kDim + (h0 + g) * kDim + d;
            const Channel ch = channel(c);
            float w[kTaps + 1];
            load_taps(a.conv, c, w);
            float x0 = ch.earlier(0), x1 = ch.earlier(1), x2 = ch.earlier(2);
            float* to = out.v + (head_tile + g) * kValueTile + d * kPairStride;
            for (int i = 0; i < kRows; i += 32) {
                float u[32];
#pragma unroll
                for (int k = 0; k < 32; ++k)
                    u[k] = ch.now(i + k);
#pragma unroll
                for (int k = 0; k < 32; k += 4) {
                    const float4 beta = *reinterpret_cast<const float4*>(&m.beta[g][i + k]);
                    float4 y;
                    y.x = beta.x * convolve(w, x0, x1, x2, u[k]);
                    y.y = beta.y * convolve(w, x1, x2, u[k], u[k + 1]);
                    y.z = beta.z * convolve(w, x2, u[k], u[k + 1], u[k + 2]);
                    y.w = beta.w * convolve(w, u[k], u[k + 1], u[k + 2], u[k + 3]);
                    *reinterpret_cast<float4*>(to + i + k) = y;
                    x0 = u[k + 1], x1 = u[k + 2], x2 = u[k + 3];
                }
            }
            if (moves) ch.move_on(tile.seq.n_rows);
        };
        static_assert(kHeads == 3 && kThreads == 256);
        if (warp >= 6) {
            for (int part = warp - 6; part < 6; part += 2)
                values(part);
        } else if (warp % 2 == 1) {
            values(6 + warp / 2);
            values(9 + warp / 2);
        }
        __syncthreads();  // beta and A are written again
    }
}

static_assert(sizeof(Shared) <= 96 * 1024, "8.6, 8.9 and 12.0 have 99 KiB per block");

}  // namespace

Status gdn_prepare(const Launch& l, const GdnArgs& a, const Tiles& out, int tile0, int n_tiles) {
    return start(l, "gdn: chunks", prepare_kernel,
                 dim3(static_cast<unsigned>(a.k_heads), static_cast<unsigned>(n_tiles)), kThreads,
                 sizeof(Shared), Start::overlapping, a, out, tile0);
}

}  // namespace terrace::cuda
