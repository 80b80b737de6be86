// attend on the matrix units: f16 planes, heads of 256, up to 16 query heads per K/V head.
//
// The heads of one K/V head are the rows of the left operand, the row's own list of blocks, cut in
// tiles, the columns. A prefilled row is one thread block per K/V head. A decoded row's list is dealt
// to 16 parts (part p has entries p, p + 16, ...), shared by a team of 1 to 16 thread blocks; each
// part's sums go to scratch and are joined in the order of parts, by all blocks where the team is a
// cluster, else by its last one. So a row's bits follow from its list and its kind, whatever the team.
// SPDX-License-Identifier: MIT
#include <algorithm>

#include "cuda/attn/attn_internal.h"
#include "cuda/attn/attn_plan.h"
#include "cuda/attn/entries.cuh"
#include "cuda/attn/mma.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/util/common.cuh"

namespace terrace::cuda {
namespace {

constexpr int kDim = 256;
constexpr int kHeads = 16;  // rows of the left operand
constexpr int kBlockTokens = 4;
constexpr int kRowBytes = 2 * kDim + 16;  // of K and V in shared memory: no bank conflicts
constexpr int kDecodeParts = 16;
constexpr int kDecodeRowsPerLaunch = 64;

// Warps and the ring's stages of tiles follow from the multiprocessor's memory: 9.0's has room for three
// stages, and for eight warps of decoded rows; others, with as little as 99 KiB, have two of 4 warps.
template <int kWarps>
struct Shape {
    static constexpr int kTile = 8 * kWarps;  // tokens; a warp scores 8
    static constexpr int kTileBlocks = kTile / kBlockTokens;
    static constexpr int kDims = kDim / kWarps;  // of V, that a warp adds
    static constexpr int kHalfStage = kTile * kRowBytes;
    static constexpr int kPitch = kTile + 8;  // of scores
    static constexpr int kScores = kHeads * kPitch;
    static constexpr int ring_bytes(int stages) { return stages * 2 * kHalfStage; }
    static constexpr int shared_bytes(int stages) {
        return ring_bytes(stages) + 2 * kScores * static_cast<int>(sizeof(float));
    }
};
static_assert(Shape<8>::shared_bytes(3) <= 227 * 1024);
static_assert(2 * (Shape<4>::shared_bytes(3) + 1024) <= 228 * 1024);
static_assert(Shape<4>::shared_bytes(2) <= 99 * 1024);
// Code of an architecture has the kernels that its GPUs run: CodeFeatures::large.
#if __CUDA_ARCH__ == 900
constexpr int kCodeStages = 3;
#else
constexpr int kCodeStages = 2;
#endif

// A part's maximum and total per head, and its sums.
struct Partial {
    float2 weight[kHeads];
    float sum[kHeads][kDim];
};
constexpr size_t partial_bytes_per_row(int kv_heads) {
    return static_cast<size_t>(kv_heads) * kDecodeParts * sizeof(Partial);
}

// The list of a row as a thread block walks it: its own parts one after another, each in tiles.
// Entry n_blocks is the incomplete block behind the last complete one.
template <int kWarps, int kParts>
struct Walk {
    static constexpr int kTileBlocks = Shape<kWarps>::kTileBlocks;
    const int32_t* list;  // null: entry i is block i
    const int32_t* table;
    int complete, n_blocks, tail, entries;
    int first, own;  // parts of this thread block
    int longer;      // of them, those with one entry more
    int tiles_long, tiles_short, tiles;

    __device__ __forceinline__ void cut(int n, int tail_tokens, int first_part, int parts) {
        n_blocks = n;
        tail = tail_tokens;
        entries = n + (tail > 0 ? 1 : 0);
        first = first_part;
        own = parts;
        const int each = entries / kParts;
        longer = min(max(entries % kParts - first, 0), own);
        tiles_long = each / kTileBlocks + 1;
        tiles_short = (each + kTileBlocks - 1) / kTileBlocks;
        tiles = longer * tiles_long + (own - longer) * tiles_short;
    }
    __device__ __forceinline__ int tiles_of(int part) const {
        return part < longer ? tiles_long : tiles_short;
    }
    __device__ __forceinline__ int tokens_of(int part) const {
        const int p = first + part, n = (entries - p + kParts - 1) / kParts;
        const bool has_tail = tail > 0 && (entries - 1) % kParts == p;
        return n * kBlockTokens - (has_tail ? kBlockTokens - tail : 0);
    }
    // Entry number i of a tile, in the row's list.
    __device__ __forceinline__ int entry(int tile, int i) const {
        int part = 0;
        if (kParts > 1 && own > 1) {
            const int n_long = longer * tiles_long;
            if (tile < n_long) {
                part = tile / tiles_long;
                tile -= part * tiles_long;
            } else if (tiles_short > 0) {
                part = (tile - n_long) / tiles_short;
                tile -= n_long + part * tiles_short;
                part += longer;
            }
        }
        return first + part + kParts * (tile * kTileBlocks + i);
    }
};

// The thread blocks of a row and K/V head: neighbours of the grid.
struct Team {
    int blocks;
    uint32_t* arrivals;  // a counter per team; null: the team is a cluster
};

struct Softmax {
    float top[2], total[2];  // of heads g and g + 8; totals per lane
};
template <int kWarps>
struct State : Softmax {
    float sum[Shape<kWarps>::kDims / 8][4];
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            top[h] = -INFINITY;
            total[h] = 0;
        }
#pragma unroll
        for (auto& s : sum)
            s[0] = s[1] = s[2] = s[3] = 0;
    }
    __device__ __forceinline__ void join_totals() {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            this->total[h] += __shfl_xor_sync(0xffffffffu, this->total[h], 1);
            this->total[h] += __shfl_xor_sync(0xffffffffu, this->total[h], 2);
        }
    }
};

// Copies tiles of K and V to a ring in shared memory, K one tile ahead of V because it is needed one
// tile ahead. A warp copies two blocks of each tile; its lanes hold the addresses of 16 tiles' blocks,
// with the number of tokens in the low bits: of the 16 tiles that K is in, and of the 16 others.
template <int kWarps, int kParts, int kStages>
class Ring {
  public:
    using S = Shape<kWarps>;
    __device__ __forceinline__ Ring(std::byte* base, const RowSource& kv, int kv_head)
        : base_(shared_address(base)), kv_(kv) {
        half_ = kv.half_extent_bytes();
        token_bytes_ = static_cast<uint32_t>(kv.kv_heads) * 2 * kDim;
        head_bytes_ = static_cast<uint32_t>(kv_head) * 2 * kDim;
    }
    __device__ __forceinline__ uint32_t k(int tile) const {
        return base_ + static_cast<uint32_t>(tile % kStages * 2 * S::kHalfStage);
    }
    __device__ __forceinline__ uint32_t v(int tile) const { return k(tile) + S::kHalfStage; }

    // `listed`: the list's value at entry(batch * 16 + lane / 2, ...), or anything without a list.
    __device__ __forceinline__ void resolve(const Walk<kWarps, kParts>& w, int batch, int entry,
                                            int listed) {
        int block = entry, n = kBlockTokens;
        if (entry >= w.n_blocks) {
            block = w.complete;
            n = entry == w.n_blocks ? w.tail : 0;
        } else if (w.list) {
            block = listed;
        }
        uint64_t address = 0;
        if (n > 0) {
            const int pos = block * kBlockTokens;
            const std::byte* at =
                kv_.block(w.table[pos / kPageTokens], pos % kPageTokens / kBlockTokens);
            address = reinterpret_cast<uint64_t>(at + head_bytes_) + static_cast<uint64_t>(n);
        }
        if (batch % 2)
            odd_ = address;
        else
            even_ = address;
    }
    __device__ __forceinline__ static int lane_entry(const Walk<kWarps, kParts>& w, int batch) {
        const int lane = static_cast<int>(threadIdx.x) & 31;
        const int warp = static_cast<int>(threadIdx.x) >> 5;
        return w.entry(16 * batch + lane / 2, warp + kWarps * (lane % 2));
    }
    // Start the copies of a tile; tokens that do not exist become zeros.
    __device__ __forceinline__ void fetch_k(const Walk<kWarps, kParts>& w, int tile) {
        if (tile >= w.tiles) return;
        if (tile > 0 && tile % 16 == 0) {
            const int entry = lane_entry(w, tile / 16);
            resolve(w, tile / 16, entry, w.list && entry < w.n_blocks ? w.list[entry] : 0);
        }
        copy(tile, k(tile), 0);
    }
    __device__ __forceinline__ void fetch_v(const Walk<kWarps, kParts>& w, int tile) const {
        if (tile < w.tiles) copy(tile, v(tile), half_);
    }

  private:
    __device__ __forceinline__ void copy(int tile, uint32_t base, size_t half) const {
        const int lane = static_cast<int>(threadIdx.x) & 31;
        const int warp = static_cast<int>(threadIdx.x) >> 5;
        const unsigned long long mine = tile / 16 % 2 ? odd_ : even_;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint64_t packed = __shfl_sync(0xffffffffu, mine, tile % 16 * 2 + i);
            const auto n = static_cast<int>(packed & 7);
            const std::byte* from =
                (n > 0 ? reinterpret_cast<const std::byte*>(packed & ~uint64_t{7}) + half
                       : kv_.base) +
                16 * lane;
            const uint32_t to =
                base +
                static_cast<uint32_t>((warp + kWarps * i) * kBlockTokens * kRowBytes + 16 * lane);
#pragma unroll
            for (int t = 0; t < kBlockTokens; ++t)
                cp_async16(to + t * kRowBytes, from + t * token_bytes_, t < n ? 16 : 0);
        }
    }

    uint32_t base_;
    RowSource kv_;
    size_t half_;
    uint32_t token_bytes_, head_bytes_;
    uint64_t even_ = 0, odd_ = 0;
};

// Left operand of all heads, scaled; by way of `room` in shared memory, because a lane's own share
// of the rows lies scattered. A barrier is passed.
template <int kWarps>
__device__ __forceinline__ void load_queries(const AttendArgs& a, int row, int head0, int group,
                                             uint32_t room, uint32_t (&q)[kDim / 16][4]) {
    const int tid = static_cast<int>(threadIdx.x), lane = tid & 31;
    const float scale = a.scale * 1.4426950408889634f;
    const auto* from = reinterpret_cast<const float4*>(a.q.device_pointer() +
                                                       (int64_t{row} * a.heads + head0) * kDim);
#pragma unroll
    for (int i = 0; i < kHeads * kDim / 4 / (32 * kWarps); ++i) {
        const int at = tid + 32 * kWarps * i, head = at / (kDim / 4);
        const float4 v = head < group ? from[at] : make_float4(0, 0, 0, 0);
        store8_shared(room + static_cast<uint32_t>(head * kRowBytes + at % (kDim / 4) * 8),
                      pack_f16(v.x * scale, v.y * scale), pack_f16(v.z * scale, v.w * scale));
    }
    __syncthreads();
    const uint32_t at = room + static_cast<uint32_t>(lane % 16 * kRowBytes + lane / 16 * 16);
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i)
        load_matrices(q[i], at + 32 * i);
}

// Scores of the warp's 8 tokens of a tile, in units of log2: to scores[head][token].
template <int kWarps>
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
    float* to = scores + lane / 4 * Shape<kWarps>::kPitch + 8 * warp + 2 * (lane % 4);
    *reinterpret_cast<float2*>(to) = make_float2(s[0], s[1]);
    *reinterpret_cast<float2*>(to + 8 * Shape<kWarps>::kPitch) = make_float2(s[2], s[3]);
}

// Adds a tile of `n` tokens to the warp's dims of all heads. Every warp repeats the softmax of the
// tile, which costs less than a second barrier.
template <int kWarps>
__device__ __forceinline__ void add_tile(State<kWarps>& x, const float* scores, uint32_t v, int n) {
    using S = Shape<kWarps>;
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
    uint32_t p[2][S::kTile / 8];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float2 s[S::kTile / 8];
        float m = x.top[h];
#pragma unroll
        for (int i = 0; i < S::kTile / 8; ++i) {
            const int token = 8 * i + 2 * (lane % 4);
            s[i] =
                *reinterpret_cast<const float2*>(scores + (lane / 4 + 8 * h) * S::kPitch + token);
            if (token >= n) s[i].x = -INFINITY;
            if (token + 1 >= n) s[i].y = -INFINITY;
            m = fmaxf(m, fmaxf(s[i].x, s[i].y));
        }
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
        const float old = exp2_fast(x.top[h] - m);
        x.top[h] = m;
        float total = x.total[h] * old;
#pragma unroll
        for (int i = 0; i < S::kTile / 8; ++i) {
            p[h][i] = pack_f16(exp2_fast(s[i].x - m), exp2_fast(s[i].y - m));
            const float2 used = __half22float2(*reinterpret_cast<const __half2*>(&p[h][i]));
            total += used.x + used.y;
        }
        x.total[h] = total;
#pragma unroll
        for (int d = 0; d < S::kDims / 8; ++d) {
            x.sum[d][2 * h] *= old;
            x.sum[d][2 * h + 1] *= old;
        }
    }
    const uint32_t row =
        v + static_cast<uint32_t>((lane % 16) * kRowBytes + (warp * S::kDims + lane / 16 * 8) * 2);
#pragma unroll
    for (int k = 0; k < S::kTile / 16; ++k)
#pragma unroll
        for (int d = 0; d < S::kDims / 16; ++d) {
            uint32_t b[4];
            load_matrices_transposed(b, row + static_cast<uint32_t>(16 * k * kRowBytes + 32 * d));
            mma_f16(x.sum[2 * d], p[0][2 * k], p[1][2 * k], p[0][2 * k + 1], p[1][2 * k + 1], b[0],
                    b[1]);
            mma_f16(x.sum[2 * d + 1], p[0][2 * k], p[1][2 * k], p[0][2 * k + 1], p[1][2 * k + 1],
                    b[2], b[3]);
        }
}

// f(head, h, dim, d) for the pairs of sums that a lane holds: sum[d][2h] is dim `dim` of `head`.
template <int kWarps, class F>
__device__ __forceinline__ void each_sum(int group, F f) {
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int head = lane / 4 + 8 * h;
        if (head >= group) continue;
#pragma unroll
        for (int d = 0; d < Shape<kWarps>::kDims / 8; ++d)
            f(head, h, warp * Shape<kWarps>::kDims + 8 * d + 2 * (lane % 4), d);
    }
}

// f(mine, kept) for all that a lane holds of a unit and its place in the state of its heads. Warps have
// the same maxima and totals: all of them write them.
template <int kWarps, class F>
__device__ __forceinline__ void each_state(State<kWarps>& x, int group, float* state, F f) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int head = lane / 4 + 8 * h;
        if (head >= group) continue;
        float* const of = state + head * attend_sums(kDim);
        f(x.top[h], of[0]);
        f(x.total[h], of[2 + lane % kAttendTotals]);
    }
    each_sum<kWarps>(group, [&](int head, int h, int dim, int d) {
        float* const of = state + head * attend_sums(kDim) + 8 + dim;
        f(x.sum[d][2 * h], of[0]);
        f(x.sum[d][2 * h + 1], of[1]);
    });
}

// Joins the parts of a row: each of `sharers` thread blocks has a share of the dims.
template <int kWarps>
__device__ __forceinline__ void join(const AttendArgs& a, int row, int head0, int group,
                                     int n_parts, int rank, int sharers, const Partial* parts) {
    const int quads = kDim / 4 / sharers;
    for (int i = static_cast<int>(threadIdx.x); i < group * quads; i += 32 * kWarps) {
        const int head = i / quads, dim = 4 * (rank * quads + i % quads);
        float2 weight[kDecodeParts];
        float4 sum[kDecodeParts];
        float top = -INFINITY;
#pragma unroll
        for (int p = 0; p < kDecodeParts; ++p) {
            const Partial& from = parts[min(p, max(n_parts - 1, 0))];
            weight[p] = __ldcg(&from.weight[head]);
            sum[p] = __ldcg(reinterpret_cast<const float4*>(&from.sum[head][dim]));
        }
        const int64_t at = (int64_t{row} * a.heads + head0 + head) * kDim;
        const float4 z =
            *reinterpret_cast<const float4*>(a.qg.device_pointer() + 2 * at + kDim + dim);
#pragma unroll
        for (int p = 0; p < kDecodeParts; ++p)
            if (p < n_parts) top = fmaxf(top, weight[p].x);
        float total = 0;
        float4 y = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int p = 0; p < kDecodeParts; ++p) {
            if (p >= n_parts) continue;
            const float w = exp2_fast(weight[p].x - top);
            total += weight[p].y * w;
            y.x += sum[p].x * w;
            y.y += sum[p].y * w;
            y.z += sum[p].z * w;
            y.w += sum[p].w * w;
        }
        const float inv = total > 0 ? 1.0f / total : 0.0f;
        *reinterpret_cast<float4*>(a.out.device_pointer() + at + dim) =
            make_float4(y.x * inv * sigmoidf(z.x), y.y * inv * sigmoidf(z.y),
                        y.z * inv * sigmoidf(z.z), y.w * inv * sigmoidf(z.w));
    }
}

// Computes  softmax attention of one row and K/V head over the row's list, times sigmoid(gate).
// Grid and block  rows x kv_heads x team. Prefill: 4 warps, two blocks per SM; decode: 8 warps, or 4.
//           QK: a warp per 8 tokens; PV: a warp per 256 / warps dims.
// Shared memory   stages of a tile (32 or 64 tokens) of K and V, two tiles of scores.
// Traffic   K and V of the list once per row, from L2 when rows share blocks; decode: 12 KiB per
//           part to L2 and back.
// Numerics  q (with the scale) and weights as f16, products summed in fp32; running maximum per
//           tile; the sum of weights is that of the rounded ones. A query that is not finite gives NaN
//           in its own head, where the reference gives zeros.
template <int kWarps, int kParts, int kStages>
__global__ void __launch_bounds__(32 * kWarps, kParts > 1 ? 1 : 2)
    attend_kernel(const AttendArgs a, int first, Team team, Partial* partials) {
    if constexpr (kStages != kCodeStages) return;
    using S = Shape<kWarps>;
    extern __shared__ __align__(128) std::byte shared[];
    pdl_launch();
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
    const int unit = static_cast<int>(blockIdx.x) / team.blocks, kv_heads = a.kv.kv_heads;
    const int row = first + unit / kv_heads, kv_head = unit % kv_heads, r = row - a.first_row;
    const int group = a.heads / kv_heads, head0 = kv_head * group;
    const int rank = static_cast<int>(blockIdx.x) % team.blocks;
    const RowPlace at = place_row(a.step, row);
    Walk<kWarps, kParts> walk;
    walk.complete = (at.pos + 1) / kBlockTokens;
    walk.list = a.blocks.empty() ? nullptr : a.blocks.device_pointer() + int64_t{r} * a.top;
    walk.table = a.step.block_tables.device_pointer() + at.seq.table_offset;
    Ring<kWarps, kParts, kStages> ring(shared, a.kv, kv_head);
    pdl_wait();
    // With one part per thread block, entries do not depend on the length of the list: its values
    // are asked for together with the length.
    const int parts = kParts / team.blocks;
    int listed = 0;
    if (walk.list) {
        const int entry =
            rank * parts + kParts * (lane / 2 * S::kTileBlocks + warp + kWarps * (lane % 2));
        listed = walk.list[min(entry, a.top - 1)];
    }
    walk.cut(a.counts.empty() ? walk.complete : a.counts.device_pointer()[r],
             at.pos + 1 - walk.complete * kBlockTokens, rank * parts, parts);
    // A pass takes whole tiles: from the one where the pass before stopped, to the last whose entries
    // all lie below its border.
    const bool first_pass = a.first_pass(), last_pass = a.last_pass();
    int tile0 = 0;
    if (kParts == 1) {
        const auto tiles_below = [&](int border) {
            return entries_below(walk.list, walk.n_blocks, border) / S::kTileBlocks;
        };
        if (!first_pass) tile0 = tiles_below(a.from_block);
        if (!last_pass) walk.tiles = tiles_below(a.end_block);
        if (tile0 >= walk.tiles && !first_pass && !last_pass) return;
    }
    uint32_t q[kDim / 16][4];
    load_queries<kWarps>(a, row, head0, group, ring.v(tile0 + kStages - 1), q);

    const int entry0 = ring.lane_entry(walk, tile0 / 16);
    if ((parts > 1 || tile0 >= 16) && walk.list)
        listed = entry0 < walk.n_blocks ? walk.list[entry0] : 0;
    ring.resolve(walk, tile0 / 16, entry0, listed);
    // Groups of copies: K of tile i + 1 and V of tile i.
#pragma unroll
    for (int i = -1; i < kStages - 1; ++i) {
        ring.fetch_k(walk, tile0 + i + 1);
        if (i >= 0) ring.fetch_v(walk, tile0 + i);
        cp_async_commit();
    }

    // The scores of a tile are made while the one before is added: one barrier per tile.
    auto* scores = reinterpret_cast<float*>(shared + S::ring_bytes(kStages));
    State<kWarps> x;
    x.clear();
    float* const state = reinterpret_cast<float*>(a.state.device_pointer()) +
                         (int64_t{r} * a.heads + head0) * attend_sums(kDim);
    if (kParts == 1 && !first_pass)
        each_state(x, group, state, [](float& mine, float& kept) { mine = kept; });
    cp_async_wait<kStages - 1>();
    __syncthreads();
    if (walk.tiles > tile0) score_tile<kWarps>(q, ring.k(tile0), scores + tile0 % 2 * S::kScores);
    int part = 0, tile_of_part = tile0;
    for (int t = tile0; t < walk.tiles; ++t) {
        cp_async_wait<kStages - 2>();
        __syncthreads();
        ring.fetch_k(walk, t + kStages);
        ring.fetch_v(walk, t + kStages - 1);
        cp_async_commit();
        if (t + 1 < walk.tiles)
            score_tile<kWarps>(q, ring.k(t + 1), scores + (t + 1) % 2 * S::kScores);
        add_tile<kWarps>(x, scores + t % 2 * S::kScores, ring.v(t),
                         min(S::kTile, walk.tokens_of(part) - tile_of_part * S::kTile));
        if (++tile_of_part < walk.tiles_of(part)) continue;
        if (kParts > 1) {
            tile_of_part = 0;
            x.join_totals();
            Partial& to = partials[int64_t{unit} * kParts + walk.first + part++];
            each_sum<kWarps>(group, [&](int head, int h, int dim, int d) {
                if (dim == 0) to.weight[head] = make_float2(x.top[h], x.total[h]);
                *reinterpret_cast<float2*>(&to.sum[head][dim]) =
                    make_float2(x.sum[d][2 * h], x.sum[d][2 * h + 1]);
            });
            x.clear();
        }
    }
    if (kParts > 1) {
        const Partial* of_row = partials + int64_t{unit} * kParts;
        const int n_parts = min(walk.entries, kParts);
        if (!team.arrivals) {
            cluster_arrive();
            cluster_wait();
            join<kWarps>(a, row, head0, group, n_parts, rank, team.blocks, of_row);
        } else if (last_block(team.arrivals + unit, static_cast<uint32_t>(team.blocks))) {
            join<kWarps>(a, row, head0, group, n_parts, 0, 1, of_row);
        }
        return;
    }
    if (!last_pass) {
        each_state(x, group, state, [](float& mine, float& kept) { kept = mine; });
        return;
    }
    x.join_totals();
    each_sum<kWarps>(group, [&](int head, int h, int dim, int d) {
        const float inv = x.total[h] > 0 ? 1.0f / x.total[h] : 0.0f;
        const int64_t to = (int64_t{row} * a.heads + head0 + head) * kDim + dim;
        const float2 z =
            *reinterpret_cast<const float2*>(a.qg.device_pointer() + 2 * (to - dim) + kDim + dim);
        *reinterpret_cast<float2*>(a.out.device_pointer() + to) = make_float2(
            x.sum[d][2 * h] * inv * sigmoidf(z.x), x.sum[d][2 * h + 1] * inv * sigmoidf(z.y));
    });
}

// As many thread blocks per row and K/V head as the device has SMs for.
int team_blocks(int units, int sms) {
    int blocks = kDecodeParts;
    while (blocks > 1 && units * blocks > sms)
        blocks /= 2;
    return blocks;
}

}  // namespace

size_t attend_mma_scratch_bytes(const OpsLimits& l) {
    if (l.head_dim != kDim) return 0;
    // The number of K/V heads is not known here: as few as can be, and one row in any case.
    const int units = std::min(l.rows, kDecodeRowsPerLaunch) * ((l.heads + kHeads - 1) / kHeads);
    return partial_bytes_per_row(std::max(units, l.heads));
}

Status attend_mma(const Launch& l, const AttendArgs& a) {
    const int kv_heads = a.kv.kv_heads, sms = l.info->sms;
    const bool large = l.info->code.large;
    const auto launch = [&](const RowRun& run) {
        const int units = run.n_rows * kv_heads;
        if (run.kind == RowKind::prefill)
            return start(l, "attend", large ? attend_kernel<4, 1, 3> : attend_kernel<4, 1, 2>,
                         dim3(static_cast<unsigned>(units)), dim3(32 * 4),
                         Shape<4>::shared_bytes(large ? 3 : 2), Start::overlapping, a, run.row0,
                         Team{1, nullptr}, nullptr);
        const int blocks = team_blocks(units, sms);
        // A few SMs are left over when a device is filled with clusters.
        const bool clusters =
            blocks > 1 && blocks <= l.info->code.most_cluster && units * blocks <= sms - sms / 7;
        const dim3 grid(static_cast<unsigned>(units * blocks));
        const Team team{blocks, clusters ? nullptr : l.counters};
        const auto cluster = static_cast<unsigned>(clusters ? blocks : 1);
        auto* partials = reinterpret_cast<Partial*>(l.scratch);
        return large ? start_clusters(l, "attend", attend_kernel<8, kDecodeParts, 3>, grid,
                                      dim3(32 * 8), cluster, Shape<8>::shared_bytes(3),
                                      Start::overlapping, a, run.row0, team, partials)
                     : start_clusters(l, "attend", attend_kernel<4, kDecodeParts, 2>, grid,
                                      dim3(32 * 4), cluster, Shape<4>::shared_bytes(2),
                                      Start::overlapping, a, run.row0, team, partials);
    };
    const auto fit = static_cast<int>(
        std::min(l.scratch_bytes / partial_bytes_per_row(kv_heads), size_t{kDecodeRowsPerLaunch}));
    for (RowRun run : runs_within(a.step, a.first_row, a.rows)) {
        const int most = run.kind == RowKind::decode ? fit : run.n_rows;
        if (most == 0) return Error{Code::internal, "attend: no scratch memory for decoded rows"};
        for (int left = run.n_rows; left > 0; left -= run.n_rows, run.row0 += run.n_rows) {
            run.n_rows = std::min(left, most);
            TERRACE_TRY(launch(run));
        }
    }
    return {};
}

bool attend_mma_takes(const AttendArgs& a) {
    return a.kv.type == PlaneType::f16 && a.kv.head_dim == kDim &&
           a.kv.block_tokens == kBlockTokens && a.heads / a.kv.kv_heads <= kHeads;
}

}  // namespace terrace::cuda
