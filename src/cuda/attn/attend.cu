// attend on the matrix units: f16 planes, heads of 256, up to 16 query heads per K/V head.
//
// The heads of one K/V head are the rows of the left operand, the row's own list of tokens, cut in
// tiles of 32, the columns. A prefilled row is one thread block per K/V head; a decoded row is a
// cluster of 16, each with a sixteenth of the list, joined through shared memory. Both cuts follow
// from the length of the list and the kind alone.
// SPDX-License-Identifier: MIT
#include <algorithm>

#include "cuda/attn/attn_internal.h"
#include "cuda/attn/attn_plan.h"
#include "cuda/attn/cluster.cuh"
#include "cuda/attn/mma.cuh"

namespace terrace::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kDim = 256;
constexpr int kHeads = 16;  // rows of the left operand
constexpr int kBlockTokens = 4;
constexpr int kTile = 8 * kWarps;  // tokens; a warp scores 8
constexpr int kTileBlocks = kTile / kBlockTokens;
constexpr int kStages = 3;
constexpr int kRowBytes = 2 * kDim + 16;  // of K and V in shared memory: no bank conflicts
constexpr int kHalfStage = kTile * kRowBytes;
constexpr int kScorePitch = kTile + 8;
constexpr int kWindow = 96 * kTileBlocks;  // blocks whose addresses are kept
constexpr int kDecodeCluster = 16;
constexpr int kRingBytes = kStages * 2 * kHalfStage;
constexpr int kScoreBytes = 2 * kHeads * kScorePitch * static_cast<int>(sizeof(float));
constexpr int kSharedBytes = kRingBytes + kScoreBytes + kWindow * static_cast<int>(sizeof(void*));
static_assert(2 * (kSharedBytes + 1024) <= 228 * 1024, "two thread blocks per SM");
static_assert(kHeads * kDim * static_cast<int>(sizeof(float)) <= kRingBytes);

// The tokens of a row that a thread block attends to: entries [first, first + n) of the list of
// blocks, where entry n_blocks is the incomplete block behind the last complete one.
struct Part {
    const int32_t* list;  // null: entry i is block i
    const int32_t* table;
    int n_blocks, complete;
    int first, n;
    int n_tokens;
};

struct Softmax {
    float top[2], total[2];  // of heads g and g + 8; totals per lane
    float sum[kDim / kWarps / 8][4];
};

class Ring {
  public:
    __device__ __forceinline__ Ring(std::byte* base, const RowSource& kv, int kv_head,
                                    std::byte* const* blocks)
        : base_(shared_address(base)), blocks_(blocks) {
        half_ = kv.half_extent_bytes();
        token_bytes_ = static_cast<uint32_t>(kv.kv_heads) * 2 * kDim;
        head_bytes_ = static_cast<uint32_t>(kv_head) * 2 * kDim;
    }
    __device__ __forceinline__ uint32_t k(int tile) const {
        return base_ + static_cast<uint32_t>(tile % kStages * 2 * kHalfStage);
    }
    __device__ __forceinline__ uint32_t v(int tile) const { return k(tile) + kHalfStage; }
    // Starts the copies of a tile of the window, tokens behind the last one as zeros.
    __device__ __forceinline__ void fetch(int tile, int n_tokens) const {
        const int lane = static_cast<int>(threadIdx.x) & 31;
        const int warp = static_cast<int>(threadIdx.x) >> 5;
#pragma unroll
        for (int i = 0; i < kTileBlocks / kWarps; ++i) {
            const int b = warp + kWarps * i;
            const int token0 = tile * kTile + b * kBlockTokens;
            const bool some = token0 < n_tokens;
            const std::byte* from =
                blocks_[some ? tile * kTileBlocks + b : 0] + head_bytes_ + 16 * lane;
            const uint32_t to =
                k(tile) + static_cast<uint32_t>(b * kBlockTokens * kRowBytes + 16 * lane);
#pragma unroll
            for (int t = 0; t < kBlockTokens; ++t) {
                const uint32_t bytes = token0 + t < n_tokens ? 16 : 0;
                copy16_async(to + t * kRowBytes, from + t * token_bytes_, bytes);
                copy16_async(to + t * kRowBytes + kHalfStage, from + t * token_bytes_ + half_,
                             bytes);
            }
        }
    }

  private:
    uint32_t base_;
    std::byte* const* blocks_;
    size_t half_;
    uint32_t token_bytes_, head_bytes_;
};

// Scores of the warp's 8 tokens of a tile, in units of log2: to scores[head][token].
__device__ __forceinline__ void score_tile(const uint32_t (&q)[kDim / 16][4], uint32_t k,
                                           float* scores) {
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
    const uint32_t row =
        k + static_cast<uint32_t>((8 * warp + lane % 8) * kRowBytes + lane / 8 * 16);
    float c[4][4] = {};  // four chains, so that sums do not wait for each other
#pragma unroll
    for (int i = 0; i < kDim / 32; ++i) {
        uint32_t b[4];
        load_matrices(b, row + 64 * i);
        const auto& q0 = q[2 * i];
        const auto& q1 = q[2 * i + 1];
        mma_f16(c[i % 2 * 2], q0[0], q0[1], q0[2], q0[3], b[0], b[1]);
        mma_f16(c[i % 2 * 2 + 1], q1[0], q1[1], q1[2], q1[3], b[2], b[3]);
    }
    float s[4];
#pragma unroll
    for (int j = 0; j < 4; ++j)
        s[j] = (c[0][j] + c[1][j]) + (c[2][j] + c[3][j]);
    float* to = scores + lane / 4 * kScorePitch + 8 * warp + 2 * (lane % 4);
    *reinterpret_cast<float2*>(to) = make_float2(s[0], s[1]);
    *reinterpret_cast<float2*>(to + 8 * kScorePitch) = make_float2(s[2], s[3]);
}

// Adds a tile of `n` tokens to the warp's 64 dims of all heads. Every warp repeats the softmax of
// the tile, which costs less than a second barrier.
__device__ __forceinline__ void add_tile(Softmax& x, const float* scores, uint32_t v, int n) {
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
    float2 s[2][kTile / 8];  // [head g, g + 8][8 tokens]
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int i = 0; i < kTile / 8; ++i) {
            const int token = 8 * i + 2 * (lane % 4);
            s[h][i] =
                *reinterpret_cast<const float2*>(scores + (lane / 4 + 8 * h) * kScorePitch + token);
            if (token >= n) s[h][i].x = -INFINITY;
            if (token + 1 >= n) s[h][i].y = -INFINITY;
        }
    uint32_t p[2][kTile / 8];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float m = x.top[h];
#pragma unroll
        for (int i = 0; i < kTile / 8; ++i)
            m = fmaxf(m, fmaxf(s[h][i].x, s[h][i].y));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
        const float old = exp2_fast(x.top[h] - m);
        x.top[h] = m;
        float total = x.total[h] * old;
#pragma unroll
        for (int i = 0; i < kTile / 8; ++i) {
            p[h][i] = pack_f16(exp2_fast(s[h][i].x - m), exp2_fast(s[h][i].y - m));
            const float2 used = __half22float2(*reinterpret_cast<const __half2*>(&p[h][i]));
            total += used.x + used.y;
        }
        x.total[h] = total;
#pragma unroll
        for (int d = 0; d < kDim / kWarps / 8; ++d) {
            x.sum[d][2 * h] *= old;
            x.sum[d][2 * h + 1] *= old;
        }
    }
    const uint32_t row = v + static_cast<uint32_t>((lane % 16) * kRowBytes +
                                                   (warp * (kDim / kWarps) + lane / 16 * 8) * 2);
#pragma unroll
    for (int k = 0; k < kTile / 16; ++k)
#pragma unroll
        for (int d = 0; d < kDim / kWarps / 16; ++d) {
            uint32_t b[4];
            load_matrices_transposed(b, row + static_cast<uint32_t>(16 * k * kRowBytes + 32 * d));
            mma_f16(x.sum[2 * d], p[0][2 * k], p[1][2 * k], p[0][2 * k + 1], p[1][2 * k + 1], b[0],
                    b[1]);
            mma_f16(x.sum[2 * d + 1], p[0][2 * k], p[1][2 * k], p[0][2 * k + 1], p[1][2 * k + 1],
                    b[2], b[3]);
        }
}

// All tiles of the part. K and V of three tiles are on their way or in use; the scores of a tile
// are made while the one before is added, so there is one barrier per tile.
__device__ __forceinline__ void attend_part(const AttendArgs& a, const Part& part, int kv_head,
                                            const uint32_t (&q)[kDim / 16][4], std::byte* shared,
                                            Softmax& x) {
    auto* scores = reinterpret_cast<float*>(shared + kRingBytes);
    auto** blocks = reinterpret_cast<std::byte**>(shared + kRingBytes + kScoreBytes);
    const Ring ring(shared, a.kv, kv_head, blocks);
    constexpr int kScores = kHeads * kScorePitch;
    for (int window = 0; window < part.n; window += kWindow) {
        const int n_blocks = min(kWindow, part.n - window);
        const int n_tokens = min(n_blocks * kBlockTokens, part.n_tokens - window * kBlockTokens);
        const int tiles = (n_tokens + kTile - 1) / kTile;
        __syncthreads();
        for (int i = static_cast<int>(threadIdx.x); i < n_blocks; i += kThreads) {
            const int entry = part.first + window + i;
            int block = entry;
            if (entry >= part.n_blocks)
                block = part.complete;
            else if (part.list)
                block = part.list[entry];
            const int pos = block * kBlockTokens;
            blocks[i] = a.kv.block(part.table[pos / kPageTokens], pos % kPageTokens / kBlockTokens);
        }
        __syncthreads();
        for (int t = 0; t < kStages; ++t) {
            if (t < tiles) ring.fetch(t, n_tokens);
            commit_copies();
        }
        wait_copies<kStages - 1>();
        __syncthreads();
        score_tile(q, ring.k(0), scores);
        for (int t = 0; t < tiles; ++t) {
            if (t == 0)
                wait_copies<kStages - 2>();
            else
                wait_copies<0>();
            __syncthreads();
            if (t > 0 && t + kStages - 1 < tiles) ring.fetch(t + kStages - 1, n_tokens);
            commit_copies();
            if (t + 1 < tiles) score_tile(q, ring.k(t + 1), scores + (t + 1) % 2 * kScores);
            add_tile(x, scores + t % 2 * kScores, ring.v(t), min(kTile, n_tokens - t * kTile));
        }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        x.total[h] += __shfl_xor_sync(0xffffffffu, x.total[h], 1);
        x.total[h] += __shfl_xor_sync(0xffffffffu, x.total[h], 2);
    }
}

// Output of the heads that a lane holds, from its own sums.
__device__ __forceinline__ void write_row(const AttendArgs& a, int row, int head0, int group,
                                          const Softmax& x) {
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int g = lane / 4 + 8 * h;
        if (g >= group) continue;
        const float inv = x.total[h] > 0 ? 1.0f / x.total[h] : 0.0f;
        const int64_t at = (int64_t{row} * a.heads + head0 + g) * kDim;
        const float* gate = a.qg.device_pointer() + 2 * at + kDim;
        float* out = a.out.device_pointer() + at;
#pragma unroll
        for (int d = 0; d < kDim / kWarps / 8; ++d) {
            const int dim = warp * (kDim / kWarps) + 8 * d + 2 * (lane % 4);
            const float2 z = *reinterpret_cast<const float2*>(gate + dim);
            *reinterpret_cast<float2*>(out + dim) = make_float2(
                x.sum[d][2 * h] * inv * sigmoidf(z.x), x.sum[d][2 * h + 1] * inv * sigmoidf(z.y));
        }
    }
}

// Joins the parts of a cluster: each block adds, rank after rank, a sixteenth of the dims.
__device__ __forceinline__ void join_and_write(const AttendArgs& a, int row, int head0, int group,
                                               const Softmax& x, std::byte* shared) {
    constexpr int kShare = kDim / kDecodeCluster, kQuads = kShare / 4;
    static_assert(kHeads * kQuads <= kThreads);
    __shared__ float2 own[kHeads];  // maximum and total
    __shared__ float2 parts[kDecodeCluster][kHeads];
    const int tid = static_cast<int>(threadIdx.x), lane = tid & 31, warp = tid >> 5;
    auto* sums = reinterpret_cast<float*>(shared);  // [kHeads][kDim], where the ring was
    __syncthreads();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int g = lane / 4 + 8 * h;
        if (warp == 0 && lane % 4 == 0) own[g] = make_float2(x.top[h], x.total[h]);
#pragma unroll
        for (int d = 0; d < kDim / kWarps / 8; ++d)
            *reinterpret_cast<float2*>(sums + g * kDim + warp * (kDim / kWarps) + 8 * d +
                                       2 * (lane % 4)) =
                make_float2(x.sum[d][2 * h], x.sum[d][2 * h + 1]);
    }
    cluster_arrive();
    cluster_wait();
    const int rank = cluster_rank(), head = tid / kQuads;
    const int dim = rank * kShare + tid % kQuads * 4;
    float4 sum[kDecodeCluster];
    if (head < group) {
#pragma unroll
        for (int r = 0; r < kDecodeCluster; ++r)
            sum[r] = cluster_load4(cluster_address(sums + head * kDim + dim, r));
    }
    for (int i = tid; i < kDecodeCluster * kHeads; i += kThreads) {
        const uint32_t from = cluster_address(&own[i % kHeads], i / kHeads);
        parts[i / kHeads][i % kHeads] = make_float2(__uint_as_float(cluster_load(from)),
                                                    __uint_as_float(cluster_load(from + 4)));
    }
    __syncthreads();
    cluster_arrive();  // this block has read what it wants of the others
    if (head < group) {
        float top = -INFINITY;
        for (int r = 0; r < kDecodeCluster; ++r)
            top = fmaxf(top, parts[r][head].x);
        float total = 0;
        float4 y = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int r = 0; r < kDecodeCluster; ++r) {
            const float2 part = parts[r][head];
            if (part.y == 0) continue;
            const float w = exp2_fast(part.x - top);
            total += part.y * w;
            y.x += sum[r].x * w;
            y.y += sum[r].y * w;
            y.z += sum[r].z * w;
            y.w += sum[r].w * w;
        }
        const float inv = total > 0 ? 1.0f / total : 0.0f;
        const int64_t at = (int64_t{row} * a.heads + head0 + head) * kDim;
        const float4 z =
            *reinterpret_cast<const float4*>(a.qg.device_pointer() + 2 * at + kDim + dim);
        *reinterpret_cast<float4*>(a.out.device_pointer() + at + dim) =
            make_float4(y.x * inv * sigmoidf(z.x), y.y * inv * sigmoidf(z.y),
                        y.z * inv * sigmoidf(z.z), y.w * inv * sigmoidf(z.w));
    }
    cluster_wait();
}

// Computes  softmax attention of one row and K/V head over the row's list, times sigmoid(gate).
// Grid and block  rows x kv_heads x kCluster, 4 warps, two blocks per SM. QK: a warp per 8 tokens;
//           PV: a warp per 64 dims.
// Shared memory   three stages of 32 tokens of K and V, two tiles of scores, block addresses.
// Traffic   K and V of the list once per row, from L2 when rows share blocks.
// Numerics  q (with the scale) and weights as f16, products summed in fp32; running maximum per
//           tile; the sum of weights is that of the rounded ones.
template <int kCluster>
__global__ void __launch_bounds__(kThreads, 2) attend_kernel(const AttendArgs a, int first) {
    extern __shared__ __align__(128) std::byte shared[];
    pdl_launch();
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const int unit = static_cast<int>(blockIdx.x) / kCluster, kv_heads = a.kv.kv_heads;
    const int row = first + unit / kv_heads, kv_head = unit % kv_heads, r = row - a.first_row;
    const int group = a.heads / kv_heads, head0 = kv_head * group;
    const RowPlace at = place_row(a.step, row);
    Part part;
    part.complete = (at.pos + 1) / kBlockTokens;
    part.list = a.blocks.empty() ? nullptr : a.blocks.device_pointer() + int64_t{r} * a.top;
    part.table = a.step.block_tables.device_pointer() + at.seq.table_offset;
    pdl_wait();
    part.n_blocks = a.counts.empty() ? part.complete : a.counts.device_pointer()[r];
    const int tail = at.pos + 1 - part.complete * kBlockTokens;
    const int entries = part.n_blocks + (tail > 0 ? 1 : 0);
    part.first = 0;
    part.n = entries;
    if (kCluster > 1) {
        const int rank = cluster_rank(), each = entries / kCluster, more = entries % kCluster;
        part.first = rank * each + min(rank, more);
        part.n = each + (rank < more ? 1 : 0);
    }
    part.n_tokens = min(part.n * kBlockTokens, (part.n_blocks - part.first) * kBlockTokens + tail);

    uint32_t q[kDim / 16][4];
    const float scale = a.scale * 1.4426950408889634f;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int g = lane / 4 + 8 * h;
        const float* x = a.q.device_pointer() +
                         (int64_t{row} * a.heads + head0 + min(g, group - 1)) * kDim +
                         2 * (lane % 4);
#pragma unroll
        for (int i = 0; i < kDim / 16; ++i)
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const float2 v = *reinterpret_cast<const float2*>(x + 16 * i + 8 * c);
                q[i][h + 2 * c] = pack_f16(v.x * scale, v.y * scale);
            }
    }
    Softmax x;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        x.top[h] = -INFINITY;
        x.total[h] = 0;
    }
#pragma unroll
    for (auto& s : x.sum)
        s[0] = s[1] = s[2] = s[3] = 0;
    attend_part(a, part, kv_head, q, shared, x);
    if (kCluster > 1)
        join_and_write(a, row, head0, group, x, shared);
    else
        write_row(a, row, head0, group, x);
}

}  // namespace

Status attend_mma(const Launch& l, const AttendArgs& a) {
    for (const RowRun& run : runs_within(a.step, a.first_row, a.rows)) {
        const auto units = static_cast<unsigned>(run.n_rows) * static_cast<unsigned>(a.kv.kv_heads);
        if (run.kind == RowKind::decode)
            TERRACE_TRY(start_clusters(l, "attend", attend_kernel<kDecodeCluster>, kDecodeCluster,
                                       dim3(units * kDecodeCluster), dim3(kThreads), kSharedBytes,
                                       a, run.row0));
        else
            TERRACE_TRY(start_clusters(l, "attend", attend_kernel<1>, 1, dim3(units),
                                       dim3(kThreads), kSharedBytes, a, run.row0));
    }
    return {};
}

bool attend_mma_takes(const AttendArgs& a) {
    return a.kv.type == PlaneType::f16 && a.kv.head_dim == kDim &&
           a.kv.block_tokens == kBlockTokens && a.heads / a.kv.kv_heads <= kHeads;
}

}  // namespace terrace::cuda
