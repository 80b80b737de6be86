// Gated delta net, chunk form, second launch: the state walks over the chunks of its sequence; third
// launch: the outputs' norm and gate.
// SPDX-License-Identifier: MIT
#include <algorithm>

#include "cuda/recurrent/gdn.h"
#include "cuda/recurrent/gdn_chunk.cuh"

namespace terrace::cuda {
namespace {

using namespace chunk;  // NOLINT: this file is its implementation

constexpr int kHalves = 2;  // blocks per value head
constexpr int kColumns = kDim / kHalves;
constexpr int kThreads = kColumns / 16 * 32;  // a warp per 16 columns

struct alignas(128) Stage {
    __half w[kWideTile], q[kWideTile], k[kWideTile], p[kPairTile];
    float u[kColumns * kPairStride];
    float gates[kGates];
};
struct Shared {
    Stage stage[2];
    uint64_t full[2];
};

// The power of two that brings the largest of the warp's numbers near 2^8, where a pair of f16 has
// its 22 bits; its reciprocal is exact.
__device__ __forceinline__ float near_256(float largest) {
    largest = warp_max(largest);
    const int e = static_cast<int>(__float_as_uint(largest) >> 23) - 127;
    return __int_as_float((127 + min(max(8 - e, -40), 40)) << 23);
}

// Computes, chunk by chunk with state S (model spec 3.6): V' = U - W S,
// o_i = exp(G_i) q_i S + sum_j P_ij V'_j, S = exp(G_last) S + sum_j exp(G_last - G_j) k_j V'_j.
// Everything is transposed: S^T lies in accumulators [16 value columns of the warp][128], which are
// the next product's operand as they are; so a warp needs nothing from the others.
// Grid: (value heads x halves, sequences). Shared memory: two chunks' tiles, the next one arriving
// while one is worked on.
// Traffic: 80 KiB per chunk and block, out of the L2 cache for the most part; the state in and out.
// Numerics: f16 products, fp32 sums; S and V' as pairs of f16, scaled per chunk and warp.
__global__ void __launch_bounds__(kThreads, 1)
    walk_kernel(GdnArgs a, Tiles tiles, int tile0, int n_tiles) {
    extern __shared__ __align__(128) unsigned char smem[];
    Shared& m = *reinterpret_cast<Shared*>(smem);
    const int t = static_cast<int>(threadIdx.x), lane = t & 31, warp = t / 32;
    const int h = static_cast<int>(blockIdx.x) / kHalves, half = static_cast<int>(blockIdx.x) % 2;
    const int kh = h / (a.v_heads / a.k_heads);
    if (t == 0) {
        barrier_init(&m.full[0], 1);
        barrier_init(&m.full[1], 1);
    }
    pdl_launch();
    pdl_wait();
    __syncthreads();
    const SeqRows seq = a.step.seqs.device_pointer()[blockIdx.y];
    const int seq_tile0 = first_tile(a.step, Tiled::prefilled, static_cast<int>(blockIdx.y), kRows);
    const int seq_tiles = tiles_of(seq.n_rows, Tiled::prefilled, kRows);
    // The sequence's chunks in this slab, as numbers of the slab.
    const int begin = max(seq_tile0 - tile0, 0);
    const int end = min(seq_tile0 + seq_tiles - tile0, n_tiles);
    if (begin >= end) return;

    const auto fetch = [&](int c) {
        Stage& s = m.stage[(c - begin) & 1];
        uint64_t* full = &m.full[(c - begin) & 1];
        const int64_t key = int64_t{c} * a.k_heads + kh, head = int64_t{c} * a.v_heads + h;
        barrier_expect(full, sizeof(Stage));
        bulk_copy(s.w, tiles.w + head * kWideTile, sizeof s.w, full);
        bulk_copy(s.q, tiles.q + key * kWideTile, sizeof s.q, full);
        bulk_copy(s.u, tiles.u + head * kUTile + half * kColumns * kPairStride, sizeof s.u, full);
        bulk_copy(s.p, tiles.p + head * kPairTile, sizeof s.p, full);
        bulk_copy(s.k, tiles.k + key * kWideTile, sizeof s.k, full);
        bulk_copy(s.gates, tiles.gates + head * kGates, sizeof s.gates, full);
    };
    if (t == 0) {
        fetch(begin);
        if (begin + 1 < end) fetch(begin + 1);
    }

    const int column = half * kColumns + warp * 16 + lane / 4;  // of the values, and 8 further
    float* state =
        a.state.device_pointer() + (int64_t{seq.slot} * a.v_heads + h) * kDim * kDim + column;
    float s[16][4];  // S^T: columns of 8 rows of the state each
#pragma unroll
    for (int n = 0; n < 16; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            s[n][i] = state[(8 * n + lane % 4 * 2 + (i & 1)) * kDim + i / 2 * 8];
    // Rows and columns of an ldmatrix address: plain for [n][k], transposed for [k][n].
    const int plain_row = lane % 8 + lane / 16 * 8, plain_column = lane / 8 % 2 * 8;
    const int trans_row = lane % 16, trans_column = lane / 16 * 8;

    for (int c = begin; c < end; ++c) {
        const Stage& tile = m.stage[(c - begin) & 1];
        barrier_wait(&m.full[(c - begin) & 1], static_cast<uint32_t>((c - begin) / 2 & 1));

        float largest = 0.0f;
#pragma unroll
        for (int n = 0; n < 16; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                largest = fmaxf(largest, fabsf(s[n][i]));
        const float up = near_256(largest), down = 1.0f / up;
        float v[8][4] = {}, o[8][4] = {};  // (W S)^T, then V'^T; (q S)^T, then o^T
#pragma unroll
        for (int kt = 0; kt < 8; ++kt) {
            uint32_t hi[4], lo[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float* pair = &s[2 * kt + i / 2][(i & 1) * 2];
                const Split p = split(pair[0] * up, pair[1] * up);
                hi[i] = p.hi, lo[i] = p.lo;
            }
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                const int at = (16 * n + plain_row) * kWideStride + 16 * kt + plain_column;
                uint32_t b[4];
                load_b(b, tile.w + at);
                mma(v[2 * n], lo, b[0], b[1]);
                mma(v[2 * n + 1], lo, b[2], b[3]);
                mma(v[2 * n], hi, b[0], b[1]);
                mma(v[2 * n + 1], hi, b[2], b[3]);
                load_b(b, tile.q + at);
                mma(o[2 * n], lo, b[0], b[1]);
                mma(o[2 * n + 1], lo, b[2], b[3]);
                mma(o[2 * n], hi, b[0], b[1]);
                mma(o[2 * n + 1], hi, b[2], b[3]);
            }
        }
        largest = 0.0f;
#pragma unroll
        for (int n = 0; n < 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                const float2 u = *reinterpret_cast<const float2*>(
                    tile.u + (warp * 16 + lane / 4 + i * 4) * kPairStride + 8 * n + lane % 4 * 2);
                v[n][i] = fmaf(-down, v[n][i], u.x);
                v[n][i + 1] = fmaf(-down, v[n][i + 1], u.y);
                largest = fmaxf(largest, fmaxf(fabsf(v[n][i]), fabsf(v[n][i + 1])));
            }
        const float v_up = near_256(largest), v_down = 1.0f / v_up;
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            const float2 g = *reinterpret_cast<const float2*>(tile.gates + 8 * n + lane % 4 * 2);
            const float even = g.x * down * v_up, odd = g.y * down * v_up;
            o[n][0] *= even, o[n][1] *= odd, o[n][2] *= even, o[n][3] *= odd;
        }
        const float keep = tile.gates[kRows - 1] * v_up;
#pragma unroll
        for (int n = 0; n < 16; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                s[n][i] *= keep;
#pragma unroll
        for (int kt = 0; kt < 4; ++kt) {  // 16 tokens of V'
            uint32_t hi[4], lo[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float* pair = &v[2 * kt + i / 2][(i & 1) * 2];
                const Split p = split(pair[0] * v_up, pair[1] * v_up);
                hi[i] = p.hi, lo[i] = p.lo;
            }
#pragma unroll
            for (int n = kt; n < 4; ++n) {  // of tokens at least as late
                uint32_t b[4];
                load_b(b, tile.p + (16 * n + plain_row) * kPairStride + 16 * kt + plain_column);
                mma(o[2 * n], lo, b[0], b[1]);
                mma(o[2 * n + 1], lo, b[2], b[3]);
                mma(o[2 * n], hi, b[0], b[1]);
                mma(o[2 * n + 1], hi, b[2], b[3]);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 g = *reinterpret_cast<const float2*>(tile.gates + kRows + 16 * kt +
                                                                  i / 2 * 8 + lane % 4 * 2);
                const float* pair = &v[2 * kt + i / 2][(i & 1) * 2];
                const Split p = split(pair[0] * (g.x * v_up), pair[1] * (g.y * v_up));
                hi[i] = p.hi, lo[i] = p.lo;
            }
#pragma unroll
            for (int n = 0; n < 8; ++n) {
                uint32_t b[4];
                load_b_transposed(
                    b, tile.k + (16 * kt + trans_row) * kWideStride + 16 * n + trans_column);
                mma(s[2 * n], lo, b[0], b[1]);
                mma(s[2 * n + 1], lo, b[2], b[3]);
                mma(s[2 * n], hi, b[0], b[1]);
                mma(s[2 * n + 1], hi, b[2], b[3]);
            }
        }
#pragma unroll
        for (int n = 0; n < 16; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                s[n][i] *= v_down;
        const int row0 = seq.row0 + (tile0 + c - seq_tile0) * kRows;
        const int rows = min(kRows, seq.row0 + tiled_rows(seq.n_rows, Tiled::prefilled) - row0);
#pragma unroll
        for (int n = 0; n < 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row = 8 * n + lane % 4 * 2 + (i & 1);
                if (row < rows)
                    a.out.device_pointer()[(int64_t{row0 + row} * a.v_heads + h) * kDim + column +
                                           i / 2 * 8] = o[n][i] * v_down;
            }
        __syncthreads();  // every warp is done with this stage
        if (t == 0 && c + 2 < end) fetch(c + 2);
    }
#pragma unroll
    for (int n = 0; n < 16; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            state[(8 * n + lane % 4 * 2 + (i & 1)) * kDim + i / 2 * 8] = s[n][i];
}

// Computes out = o * rsqrt(mean(o^2) + eps) * norm * sigmoid(z) in place. Grid: tiles; a warp per row
// and head. Traffic: out in and out, z.
__global__ void __launch_bounds__(256) gate_kernel(GdnArgs a, int tile0) {
    pdl_launch();
    pdl_wait();
    const SeqTile t =
        find_tile(a.step, Tiled::prefilled, tile0 + static_cast<int>(blockIdx.y), kRows);
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const int warp = (static_cast<int>(blockIdx.x) * 256 + static_cast<int>(threadIdx.x)) / 32;
    const int row = warp / a.v_heads, h = warp % a.v_heads;
    if (row >= t.n_rows) return;
    const int64_t at = (int64_t{t.row0 + row} * a.v_heads + h) * kDim + 4 * lane;
    auto* out = reinterpret_cast<float4*>(a.out.device_pointer() + at);
    float4 o = *out;
    const float* z = a.z.device_pointer() + at;
    const float4 gate = *reinterpret_cast<const float4*>(z);
    const float sum = warp_sum(o.x * o.x + o.y * o.y + o.z * o.z + o.w * o.w);
    const float inv = rsqrtf(sum * (1.0f / kDim) + a.eps);
    o.x *= inv * load_plain(a.norm, 4 * lane) * sigmoidf(gate.x);
    o.y *= inv * load_plain(a.norm, 4 * lane + 1) * sigmoidf(gate.y);
    o.z *= inv * load_plain(a.norm, 4 * lane + 2) * sigmoidf(gate.z);
    o.w *= inv * load_plain(a.norm, 4 * lane + 3) * sigmoidf(gate.w);
    *out = o;
}

}  // namespace

Status gdn_walk(const Launch& l, const GdnArgs& a, const Tiles& tiles, int tile0, int n_tiles) {
    TERRACE_TRY(start(
        l, "gdn: walk", walk_kernel,
        dim3(static_cast<unsigned>(a.v_heads * kHalves), static_cast<unsigned>(a.step.n_seqs)),
        kThreads, sizeof(Shared), Start::overlapping, a, tiles, tile0, n_tiles));
    return start(
        l, "gdn: gate", gate_kernel,
        dim3(static_cast<unsigned>((kRows * a.v_heads + 7) / 8), static_cast<unsigned>(n_tiles)),
        256, 0, Start::overlapping, a, tile0);
}

}  // namespace terrace::cuda
