// Gated delta net, chunk form, second launch: the state walks over the chunks of its sequence;
// third launch: the outputs' norm and gate.
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
    __half k[kWideTile], q[kWideTile], t[kPairTile], p[kPairTile];
    float v[kColumns * kPairStride];
    float gates[kGates];
};
// Two stages, or one on GPUs without the room.
template <int kStages>
struct Shared {
    Stage stage[kStages];
    uint64_t full[kStages];
};

// The power of two that brings the largest of the warp's numbers near 2^8, where a pair of f16 has
// its 22 bits; its reciprocal is exact.
__device__ __forceinline__ float near_256(float largest) {
    largest = warp_max(largest);
    const int e = static_cast<int>(__float_as_uint(largest) >> 23) - 127;
    return __int_as_float((127 + min(max(8 - e, -40), 40)) << 23);
}

template <int N>
__device__ __forceinline__ float largest_of(const float (&c)[N][4]) {
    float m = 0.0f;
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            m = fmaxf(m, fabsf(c[n][i]));
    return m;
}

// The a operand that two neighbouring accumulator tiles are, times a factor per column: two columns
// of the first tile, two of the second.
__device__ __forceinline__ void split_tiles(uint32_t (&hi)[4], uint32_t (&lo)[4],
                                            const float (&c0)[4], const float (&c1)[4], float f0,
                                            float f1, float f2, float f3) {
    const Split s[4] = {split(c0[0] * f0, c0[1] * f1), split(c0[2] * f0, c0[3] * f1),
                        split(c1[0] * f2, c1[1] * f3), split(c1[2] * f2, c1[3] * f3)};
#pragma unroll
    for (int i = 0; i < 4; ++i)
        hi[i] = s[i].hi, lo[i] = s[i].lo;
}

// Four neighbouring column tiles; their sums are independent, which is what keeps the tensor cores
// busy with one warp per scheduler.
__device__ __forceinline__ void mma4(float (*c)[4], const uint32_t (&a)[4], const uint32_t (&b0)[4],
                                     const uint32_t (&b1)[4]) {
    mma(c[0], a, b0[0], b0[1]);
    mma(c[1], a, b0[2], b0[3]);
    mma(c[2], a, b1[0], b1[1]);
    mma(c[3], a, b1[2], b1[3]);
}

// c[.][i] += a[.][j] * m[i][j] for the 16 tokens j of tile kt and all i of tiles that are not
// earlier.
__device__ __forceinline__ void lower_product(float (&c)[8][4], const uint32_t (&hi)[4],
                                              const uint32_t (&lo)[4], const __half* m, int kt) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const __half* at = m + (lane % 8 + lane / 16 * 8) * kPairStride + 16 * kt + lane / 8 % 2 * 8;
    uint32_t b[4][4];
#pragma unroll
    for (int n = 0; n < 4; ++n)
        if (n >= kt) load_b(b[n], at + 16 * n * kPairStride);
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int n = 0; n < 4; ++n)
            if (n >= kt) {
                mma(c[2 * n], half ? hi : lo, b[n][0], b[n][1]);
                mma(c[2 * n + 1], half ? hi : lo, b[n][2], b[n][3]);
            }
}

// Computes, chunk by chunk with state S (model spec 3.6; W and U of there are not formed, since
// U - W S = T (beta V - beta exp(G) K S)): V' = T (beta_i v_i - beta_i exp(G_i) k_i S),
// o_i = exp(G_i) q_i S + sum_j P_ij V'_j, S = exp(G_last) S + sum_j exp(G_last - G_j) k_j V'_j.
// Everything is transposed: S^T lies in accumulators [16 value columns of the warp][128], which are
// the next product's operand as they are; so a warp needs nothing from the others.
// Grid: (value heads x halves, sequences). Shared memory: two chunks' tiles, the next one arriving
// while one is worked on; with one stage it arrives between two.
// Traffic: 72 KiB per chunk and block, out of the L2 cache for the most part; the state in and out.
// Numerics: f16 products, fp32 sums; S, V' and what T is applied
// to as pairs of f16, scaled per chunk and warp.
template <int kStages>
__global__ void __launch_bounds__(kThreads, 1)
    walk_kernel(GdnArgs a, Tiles tiles, int tile0, int n_tiles) {
    extern __shared__ __align__(128) unsigned char smem[];
    Shared<kStages>& m = *reinterpret_cast<Shared<kStages>*>(smem);
    const int t = static_cast<int>(threadIdx.x), lane = t & 31, warp = t / 32;
    const int h = static_cast<int>(blockIdx.x) / kHalves, half = static_cast<int>(blockIdx.x) % 2;
    const int kh = h / (a.v_heads / a.k_heads);
    if (t == 0) {
        for (uint64_t& full : m.full)
            mbarrier_init(shared_address(&full), BlockCopies::arrivals());
        mbarrier_init_fence();
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
        Stage& s = m.stage[(c - begin) % kStages];
        const BlockCopies copies{shared_address(&m.full[(c - begin) % kStages])};
        const int64_t key = int64_t{c} * a.k_heads + kh, head = int64_t{c} * a.v_heads + h;
        copies.expect(sizeof(Stage));
        copies.piece(s.k, tiles.k + key * kWideTile, sizeof s.k);
        copies.piece(s.q, tiles.q + key * kWideTile, sizeof s.q);
        copies.piece(s.v, tiles.v + head * kValueTile + half * kColumns * kPairStride, sizeof s.v);
        copies.piece(s.t, tiles.t + head * kPairTile, sizeof s.t);
        copies.piece(s.p, tiles.p + head * kPairTile, sizeof s.p);
        copies.piece(s.gates, tiles.gates + head * kGates, sizeof s.gates);
        copies.done();
    };
    for (int c = begin; c < min(begin + kStages, end); ++c)
        fetch(c);

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

    float scale = 1.0f;  // a power of two
    for (int c = begin; c < end; ++c) {
        const Stage& tile = m.stage[(c - begin) % kStages];
        mbarrier_wait(shared_address(&m.full[(c - begin) % kStages]),
                      static_cast<uint32_t>((c - begin) / kStages & 1));

        // s is S^T times `scale`.
        const float up = near_256(largest_of(s)), down = 1.0f / (up * scale);
        float r[8][4] = {}, o[8][4] = {};  // (k S)^T, (q S)^T
#pragma unroll
        for (int kt = 0; kt < 8; ++kt) {
            uint32_t hi[4], lo[4];
            split_tiles(hi, lo, s[2 * kt], s[2 * kt + 1], up, up, up, up);
#pragma unroll
            for (int n = 0; n < 4; n += 2) {
                const int at = (16 * n + plain_row) * kWideStride + 16 * kt + plain_column;
                uint32_t k0[4], k1[4], q0[4], q1[4];
                load_b(k0, tile.k + at);
                load_b(k1, tile.k + at + 16 * kWideStride);
                load_b(q0, tile.q + at);
                load_b(q1, tile.q + at + 16 * kWideStride);
                mma4(&r[2 * n], lo, k0, k1);
                mma4(&o[2 * n], lo, q0, q1);
                mma4(&r[2 * n], hi, k0, k1);
                mma4(&o[2 * n], hi, q0, q1);
            }
        }
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            const float2 g =
                *reinterpret_cast<const float2*>(tile.gates + 2 * kRows + 8 * n + lane % 4 * 2);
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                const float2 v = *reinterpret_cast<const float2*>(
                    tile.v + (warp * 16 + lane / 4 + i * 4) * kPairStride + 8 * n + lane % 4 * 2);
                r[n][i] = fmaf(-down * g.x, r[n][i], v.x);
                r[n][i + 1] = fmaf(-down * g.y, r[n][i + 1], v.y);
            }
        }
        const float r_up = near_256(largest_of(r)), r_down = 1.0f / r_up;
        float v[8][4] = {};  // V'^T
#pragma unroll
        for (int kt = 0; kt < 4; ++kt) {
            uint32_t hi[4], lo[4];
            split_tiles(hi, lo, r[2 * kt], r[2 * kt + 1], r_up, r_up, r_up, r_up);
            lower_product(v, hi, lo, tile.t, kt);
        }
#pragma unroll
        for (int n = 0; n < 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                v[n][i] *= r_down;
        const float v_up = near_256(largest_of(v)), v_down = 1.0f / v_up;
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            const float2 g = *reinterpret_cast<const float2*>(tile.gates + 8 * n + lane % 4 * 2);
            const float even = g.x * down * v_up, odd = g.y * down * v_up;
            o[n][0] *= even, o[n][1] *= odd, o[n][2] *= even, o[n][3] *= odd;
        }
        const float keep = tile.gates[kRows - 1] * v_up / scale;
        scale = v_up;
#pragma unroll
        for (int n = 0; n < 16; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                s[n][i] *= keep;
#pragma unroll
        for (int kt = 0; kt < 4; ++kt) {  // 16 tokens of V'
            uint32_t hi[4], lo[4];
            split_tiles(hi, lo, v[2 * kt], v[2 * kt + 1], v_up, v_up, v_up, v_up);
            lower_product(o, hi, lo, tile.p, kt);
            const float* g = tile.gates + kRows + 16 * kt + lane % 4 * 2;
            split_tiles(hi, lo, v[2 * kt], v[2 * kt + 1], g[0] * v_up, g[1] * v_up, g[8] * v_up,
                        g[9] * v_up);
#pragma unroll
            for (int n = 0; n < 8; n += 4) {
                const int at = (16 * kt + trans_row) * kWideStride + 16 * n + trans_column;
                uint32_t k0[4], k1[4], k2[4], k3[4];
                load_b_transposed(k0, tile.k + at);
                load_b_transposed(k1, tile.k + at + 16);
                load_b_transposed(k2, tile.k + at + 32);
                load_b_transposed(k3, tile.k + at + 48);
                mma4(&s[2 * n], lo, k0, k1);
                mma4(&s[2 * n + 4], lo, k2, k3);
                mma4(&s[2 * n], hi, k0, k1);
                mma4(&s[2 * n + 4], hi, k2, k3);
            }
        }
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
        if (c + kStages < end) fetch(c + kStages);
    }
#pragma unroll
    for (int n = 0; n < 16; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            state[(8 * n + lane % 4 * 2 + (i & 1)) * kDim + i / 2 * 8] = s[n][i] / scale;
}

// Computes out = o * rsqrt(mean(o^2) + eps) * norm * sigmoid(z) in place. Grid: tiles; a warp per
// row and head. Traffic: out in and out, z.
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
    const bool two = sizeof(Shared<2>) <= l.info->smem_per_block;
    TERRACE_TRY(start(
        l, "gdn: walk", two ? walk_kernel<2> : walk_kernel<1>,
        dim3(static_cast<unsigned>(a.v_heads * kHalves), static_cast<unsigned>(a.step.n_seqs)),
        kThreads, two ? sizeof(Shared<2>) : sizeof(Shared<1>), Start::overlapping, a, tiles, tile0,
        n_tiles));
    return start(
        l, "gdn: gate", gate_kernel,
        dim3(static_cast<unsigned>((kRows * a.v_heads + 7) / 8), static_cast<unsigned>(n_tiles)),
        256, 0, Start::overlapping, a, tile0);
}

}  // namespace terrace::cuda
