// index_scores on the matrix units: f16 planes of 128 dims, up to four index heads.
//
// A pooled row is a row of the left operand; query rows of the step, four heads each, are the columns
// of the right one. Queries are split in two f16, the second the rest of the first, and both products
// go to the same sums, so scores have the accuracy of fp32 queries. Each query row is scaled by a
// power of two that keeps its parts in the range of f16.
// Decoded rows, often one, take mma in steps of two rows; prefilled rows wgmma in steps of 16 where
// there is wgmma.
// SPDX-License-Identifier: MIT
#include <algorithm>

#include "cuda/attn/attn_internal.h"
#include "cuda/attn/attn_plan.h"
#include "cuda/attn/mma.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/util/common.cuh"

namespace terrace::cuda {
namespace {

constexpr int kDim = 128;
constexpr int kHeads = 4;
constexpr int kWarps = 8;
constexpr int kTile = 32;                         // blocks that a warp takes at once
constexpr int kChunk = kWarps * kTile;            // blocks of a work item
constexpr int kGroup = 16;                        // rows of a work item
constexpr int kParts = 2;                         // f16 and its rest
constexpr int kPairWords = kParts * 4 * 32;       // uint4 of two query rows: [part][32 dims][lane]
constexpr int kWideHalf = kGroup * kHeads * 128;  // bytes of 64 dims of all columns

// The right operand, the rest first. For mma, per two rows: a lane's 16 bytes of 32 dims j hold dims
// 32j + 8t .. + 7 of column g. For wgmma: [part][64 dims][column][64 f16], 128-byte swizzle. The k
// index is permuted so that a lane's share of a pooled row is 16 neighbouring bytes: steps 2j and
// 2j + 1 take the two halves of such 8 dims.
struct Queries {
    alignas(1024) std::byte operand[kGroup / 2 * kPairWords * sizeof(uint4)];
    float scale[kGroup];
};
static_assert(sizeof(Queries::operand) == kParts * 2 * kWideHalf);

template <bool kWide>
__device__ __forceinline__ void store_query(std::byte* operand, int part, int row, int head,
                                            int eight, const uint32_t (&w)[4]) {
    if (kWide) {
        const int column = row * kHeads + head, chunk = eight % 8 / 4 * 4;
        auto* to = operand + (2 * part + eight / 8) * kWideHalf + column * 128 + eight % 4 * 4;
#pragma unroll
        for (int k = 0; k < 4; ++k)
            *reinterpret_cast<uint32_t*>(to + ((chunk + k) ^ (column & 7)) * 16) = w[k];
    } else {
        auto* to = reinterpret_cast<uint4*>(operand) + row / 2 * kPairWords + part * 4 * 32;
        to[eight / 4 * 32 + (row % 2 * kHeads + head) * 4 + eight % 4] =
            make_uint4(w[0], w[1], w[2], w[3]);
    }
}

// Rows row0 .. as right operands. A warp per row; a lane reads 16 dims of a head.
template <bool kWide>
__device__ __forceinline__ void load_queries(const IndexScoresArgs& a, int row0, int n_rows,
                                             float scale, Queries& queries) {
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
    for (int r = warp; r < n_rows; r += kWarps) {
        const int head = lane / 8;
        float4 x[4] = {};
        if (head < a.index_heads) {
            const auto* from = reinterpret_cast<const float4*>(
                a.iq.device_pointer() + (int64_t{row0 + r} * a.index_heads + head) * kDim +
                lane % 8 * 16);
#pragma unroll
            for (int i = 0; i < 4; ++i)
                x[i] = from[i];
        }
        float most = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i)
            most = fmaxf(fmaxf(most, fmaxf(fabsf(x[i].x), fabsf(x[i].y))),
                         fmaxf(fabsf(x[i].z), fabsf(x[i].w)));
        // The largest element goes to [2^10, 2^11).
        const uint32_t bits = __reduce_max_sync(0xffffffffu, __float_as_uint(most));
        const int up = min(max(264 - static_cast<int>(bits >> 23), 1), 253);
        const float factor = __int_as_float(up << 23);
        if (lane == 0) queries.scale[r] = __int_as_float((254 - up) << 23) * scale;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float y[8] = {x[2 * i].x,     x[2 * i].y,     x[2 * i].z,     x[2 * i].w,
                                x[2 * i + 1].x, x[2 * i + 1].y, x[2 * i + 1].z, x[2 * i + 1].w};
            uint32_t first[4], rest[4];
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                const float y0 = y[2 * k] * factor, y1 = y[2 * k + 1] * factor;
                first[k] = pack_f16(y0, y1);
                const float2 f = __half22float2(*reinterpret_cast<const __half2*>(&first[k]));
                rest[k] = pack_f16(y0 - f.x, y1 - f.y);
            }
            store_query<kWide>(queries.operand, 0, r, head, lane % 8 * 2 + i, rest);
            store_query<kWide>(queries.operand, 1, r, head, lane % 8 * 2 + i, first);
        }
    }
    if (kWide) async_proxy_fence();  // wgmma reads it
}

// Scores of two rows from products of one of them with blocks g and g + 8, two heads each: of row
// lane >> 1 & 1 and block 8 (lane & 1) + g.
__device__ __forceinline__ float join_heads(float c0, float c1, float c2, float c3, bool odd) {
    const float s0 = fmaxf(c0, 0.0f) + fmaxf(c1, 0.0f);
    const float s1 = fmaxf(c2, 0.0f) + fmaxf(c3, 0.0f);
    return (odd ? s1 : s0) + __shfl_xor_sync(0xffffffffu, odd ? s0 : s1, 1);
}

// Left operand of a warp's 32 blocks: [16 blocks][16 dims].
using Keys = uint32_t[2][8][4];

// Unscaled scores of a warp's 32 blocks for two query rows: of row lane >> 1 & 1, out[m] is block
// 16 m + 8 (lane & 1) + lane / 4.
__device__ __forceinline__ void score_pair(const Keys& keys, const std::byte* operand, int pair,
                                           int lane, float (&out)[2]) {
    const auto* b = reinterpret_cast<const uint4*>(operand) + pair * kPairWords + lane;
    float sum[2][4] = {};
#pragma unroll
    for (int i = 0; i < kParts * 4; ++i) {
        const uint4 q = b[32 * i];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            const auto& k0 = keys[m][2 * (i % 4)];
            const auto& k1 = keys[m][2 * (i % 4) + 1];
            mma_f16(sum[m], k0[0], k0[1], k0[2], k0[3], q.x, q.y);
            mma_f16(sum[m], k1[0], k1[1], k1[2], k1[3], q.z, q.w);
        }
    }
#pragma unroll
    for (int m = 0; m < 2; ++m)
        out[m] = join_heads(sum[m][0], sum[m][1], sum[m][2], sum[m][3], lane & 1);
}

// Products of 16 blocks per warp with 16 query rows: sum[4j ..] are those of rows 2j and 2j + 1. All
// warps of the warpgroup call it.
__device__ __forceinline__ void multiply_wide(const uint32_t (&keys)[8][4],
                                              const std::byte* operand, float (&sum)[32]) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#pragma unroll
    for (float& v : sum)
        v = 0;
    wgmma_keep(sum);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kParts * 2; ++i) {
        const uint64_t b = wgmma_operand(shared_address(operand) + i * kWideHalf);
#pragma unroll
        for (int k = 0; k < 4; ++k)
            wgmma(sum, keys[i % 2 * 4 + k], b + 2 * k);
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_keep(sum);
#endif
}

// Where a work item is.
struct Item {
    int segment, group, chunk;
};

// Computes  scores[r][b] for every complete block of the rows of the listed segments.
// Grid and block  as many blocks as the device holds, 8 warps. Work items are (up to 16 rows) x
//           (256 blocks), by segment, then rows, then blocks; each thread block takes an equal
//           share of neighbouring items, whose number is known on the device only.
// Shared memory   32 KiB: the queries of the current rows.
// Traffic   the pooled plane once per 16 rows of a sequence, scores once. The next item is on its
//           way to L2 while one is computed, the first one while the kernel waits for its turn.
// Numerics  two f16 products with fp32 sums; a row's score does not depend on the other rows.
template <bool kWide>
__global__ void __launch_bounds__(32 * kWarps, 2)
    scores_kernel(const IndexScoresArgs a, const Segments segments, float scale) {
    __shared__ Queries queries;
    __shared__ SeqRows seqs[kMaxSegments];
    __shared__ int chunks[kMaxSegments];
    pdl_launch();
    const int tid = static_cast<int>(threadIdx.x), lane = tid & 31, warp = tid >> 5;
    const int bt = a.index.block_tokens, page_blocks = kPageTokens / bt;
    if (tid < segments.n) {
        const Segment& s = segments.at[tid];
        const SeqRows seq = a.step.seqs.device_pointer()[s.seq];
        const int last = seq.pos0 + s.row0 + s.n_rows - 1 - seq.row0;
        seqs[tid] = seq;
        chunks[tid] = ((last + 1) / bt + kChunk - 1) / kChunk;
    }
    __syncthreads();
    const auto groups_of = [&](int s) { return (segments.at[s].n_rows + kGroup - 1) / kGroup; };
    int64_t total = 0;
    for (int s = 0; s < segments.n; ++s)
        total += groups_of(s) * chunks[s];
    auto left = static_cast<int>(total * blockIdx.x / gridDim.x);
    int n_items = static_cast<int>(total * (blockIdx.x + 1) / gridDim.x) - left;
    Item item = {0, 0, 0};
    if (n_items > 0) {
        for (; left >= groups_of(item.segment) * chunks[item.segment]; ++item.segment)
            left -= groups_of(item.segment) * chunks[item.segment];
        item.group = left / chunks[item.segment];
        item.chunk = left % chunks[item.segment];
    }
    const auto after = [&](Item i) {
        if (++i.chunk < chunks[i.segment]) return i;
        i.chunk = 0;
        if (++i.group < groups_of(i.segment)) return i;
        i.group = 0;
        do
            ++i.segment;
        while (chunks[i.segment] == 0);
        return i;
    };
    // The warp's pooled rows of an item; null when none of its rows has them.
    const auto keys_of = [&](const Item& i) -> const uint4* {
        const SeqRows& seq = seqs[i.segment];
        const Segment& s = segments.at[i.segment];
        const int end = min(s.row0 + s.n_rows, s.row0 + (i.group + 1) * kGroup);
        const int tile = i.chunk * kChunk + warp * kTile;
        if (tile >= (seq.pos0 + end - seq.row0) / bt) return nullptr;
        const int64_t page =
            a.step.block_tables.device_pointer()[seq.table_offset + tile / page_blocks];
        return reinterpret_cast<const uint4*>(a.index.pooled) +
               (page * page_blocks + tile % page_blocks) * (kDim / 8);
    };
    const auto prefetch = [&](const uint4* p) {
        if (p) prefetch_l2_warp(reinterpret_cast<const std::byte*>(p), kTile * kDim * 2);
    };
    int loaded = -1;
    const uint4* next = n_items > 0 ? keys_of(item) : nullptr;
    prefetch(next);
    pdl_wait();
    while (n_items-- > 0) {
        const uint4* p = next;
        const Item now = item;
        Keys keys = {};
        if (p) {
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const uint4 v =
                        load16_once(p + (8 * i + lane / 4) * (kDim / 8) + lane % 4 + 4 * j);
                    keys[i / 2][2 * j][i % 2] = v.x;
                    keys[i / 2][2 * j][i % 2 + 2] = v.y;
                    keys[i / 2][2 * j + 1][i % 2] = v.z;
                    keys[i / 2][2 * j + 1][i % 2 + 2] = v.w;
                }
        }
        if (n_items > 0) {
            item = after(item);
            next = keys_of(item);
            prefetch(next);
        }
        const SeqRows& seq = seqs[now.segment];
        const Segment& s = segments.at[now.segment];
        const int row0 = s.row0 + now.group * kGroup;
        const int n_rows = min(kGroup, s.row0 + s.n_rows - row0);
        if (row0 != loaded) {
            __syncthreads();
            load_queries<kWide>(a, row0, n_rows, scale, queries);
            __syncthreads();
            loaded = row0;
        }
        const int pos0 = seq.pos0 + row0 - seq.row0, tile = now.chunk * kChunk + warp * kTile;
        const int block = tile + 8 * (lane & 1) + lane / 4;
        float* out = a.scores.device_pointer() + (row0 - a.first_row) * a.stride + block;
        const auto store = [&](int r, int further, float unscaled) {
            const int end = r < n_rows ? (pos0 + r + 1) / bt : 0;
            if (block + further < end) out[r * a.stride + further] = unscaled * queries.scale[r];
        };
        if (kWide) {
            // Warpgroups as a whole: `p` is null for a warp behind the last block.
            if (now.chunk * kChunk + warp / 4 * 4 * kTile >= (pos0 + n_rows) / bt) continue;
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                float sum[32];
                multiply_wide(keys[m], queries.operand, sum);
#pragma unroll
                for (int j = 0; j < kGroup / 2; ++j)
                    store(2 * j + (lane >> 1 & 1), 16 * m,
                          join_heads(sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3],
                                     lane & 1));
            }
            continue;
        }
        if (!p) continue;
#pragma unroll 2
        for (int pair = 0; pair < (n_rows + 1) / 2; ++pair) {
            float sums[2];
            score_pair(keys, queries.operand, pair, lane, sums);
            store(2 * pair + (lane >> 1 & 1), 0, sums[0]);
            store(2 * pair + (lane >> 1 & 1), 16, sums[1]);
        }
    }
}

}  // namespace

Status index_scores_mma(const Launch& l, const IndexScoresArgs& a, float scale) {
    for (const RowRun& run : runs_within(a.step, a.first_row, a.rows))
        for (const Segments& s : row_segments(a.step, run.row0, run.n_rows))
            TERRACE_TRY(start(l, "index_scores",
                              run.kind == RowKind::prefill && l.info->code.wgmma
                                  ? scores_kernel<true>
                                  : scores_kernel<false>,
                              dim3(2 * static_cast<unsigned>(l.info->sms)), dim3(32 * kWarps), 0,
                              Start::overlapping, a, s, scale));
    return {};
}

bool index_scores_mma_takes(const IndexScoresArgs& a) {
    return a.index.type == PlaneType::f16 && a.index.dim == kDim && a.index_heads <= kHeads &&
           kPageTokens / a.index.block_tokens % kTile == 0;
}

}  // namespace terrace::cuda
