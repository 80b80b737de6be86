// index_scores on the matrix units: f16 planes of 128 dims, up to four index heads.
//
// A pooled row is a row of the left operand; two query rows of the step, four heads each, are the
// eight columns of the right one. Queries are split in two f16, the second the rest of the first, and
// both products go to the same sums, so scores have the accuracy of fp32 queries. Each query row is
// scaled by a power of two that keeps its parts in the range of f16.
// SPDX-License-Identifier: MIT
#include <algorithm>

#include "cuda/attn/attn_internal.h"
#include "cuda/attn/attn_plan.h"
#include "cuda/attn/mma.cuh"
#include "cuda/util/common.cuh"

namespace terrace::cuda {
namespace {

constexpr int kDim = 128;
constexpr int kHeads = 4;
constexpr int kWarps = 8;
constexpr int kTile = 32;                    // blocks that a warp takes at once
constexpr int kChunk = kWarps * kTile;       // blocks of a work item
constexpr int kGroup = 16;                   // rows of a work item
constexpr int kParts = 2;                    // f16 and its rest
constexpr int kPairWords = kParts * 4 * 32;  // uint4 of two query rows: [part][32 dims][lane]

struct Queries {
    uint4 words[kGroup / 2 * kPairWords];
    float scale[kGroup];
};

// Rows row0 .. as right operands. A lane's 16 bytes of 32 dims j hold dims 32j + 8t .. + 7 of column
// g: the operands of two k-steps, whose k index is permuted so that a lane's share of a pooled row
// is 16 neighbouring bytes too. A warp per row; a lane reads 16 dims of a head.
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
            const int eight = lane % 8 * 2 + i, column = r % 2 * kHeads + head;
            uint4* to =
                queries.words + r / 2 * kPairWords + eight / 4 * 32 + column * 4 + eight % 4;
            to[0] = make_uint4(rest[0], rest[1], rest[2], rest[3]);
            to[4 * 32] = make_uint4(first[0], first[1], first[2], first[3]);
        }
    }
}

// Unscaled scores of a warp's 32 blocks for two query rows: of row lane >> 1 & 1, out[m] is block
// 16 m + 8 (lane & 1) + lane / 4.
__device__ __forceinline__ void score_pair(const uint4 (&keys)[4][4], const uint4* pair, int lane,
                                           float (&out)[2]) {
    float sum[2][4] = {};
#pragma unroll
    for (int i = 0; i < kParts * 4; ++i) {
        const uint4 b = pair[32 * i + lane];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            const uint4 low = keys[2 * m][i % 4], high = keys[2 * m + 1][i % 4];
            mma_f16(sum[m], low.x, high.x, low.y, high.y, b.x, b.y);
            mma_f16(sum[m], low.z, high.z, low.w, high.w, b.z, b.w);
        }
    }
    // A lane has two of its row's heads for blocks g and g + 8, its neighbour the other two.
#pragma unroll
    for (int m = 0; m < 2; ++m) {
        const float s0 = fmaxf(sum[m][0], 0.0f) + fmaxf(sum[m][1], 0.0f);
        const float s1 = fmaxf(sum[m][2], 0.0f) + fmaxf(sum[m][3], 0.0f);
        const bool odd = lane & 1;
        out[m] = (odd ? s1 : s0) + __shfl_xor_sync(0xffffffffu, odd ? s0 : s1, 1);
    }
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
        if (p && lane == 0) prefetch_l2(p, kTile * kDim * 2);
    };
    int loaded = -1;
    const uint4* next = n_items > 0 ? keys_of(item) : nullptr;
    prefetch(next);
    pdl_wait();
    while (n_items-- > 0) {
        const uint4* p = next;
        const Item now = item;
        uint4 keys[4][4];  // [8 blocks][32 dims]
        if (p) {
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    keys[i][j] =
                        load16_once(p + (8 * i + lane / 4) * (kDim / 8) + lane % 4 + 4 * j);
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
            load_queries(a, row0, n_rows, scale, queries);
            __syncthreads();
            loaded = row0;
        }
        if (!p) continue;
        const int pos0 = seq.pos0 + row0 - seq.row0;
        const int block = now.chunk * kChunk + warp * kTile + 8 * (lane & 1) + lane / 4;
        float* out = a.scores.device_pointer() + (row0 - a.first_row) * a.stride + block;
#pragma unroll 2
        for (int pair = 0; pair < (n_rows + 1) / 2; ++pair) {
            float sums[2];
            score_pair(keys, queries.words + pair * kPairWords, lane, sums);
            const int r = 2 * pair + (lane >> 1 & 1), complete = (pos0 + r + 1) / bt;
            const int end = r < n_rows ? complete : 0;
            if (block < end) out[r * a.stride] = sums[0] * queries.scale[r];
            if (block + 16 < end) out[r * a.stride + 16] = sums[1] * queries.scale[r];
        }
    }
}

}  // namespace

Status index_scores_mma(const Launch& l, const IndexScoresArgs& a, float scale) {
    for (const Segments& s : row_segments(a.step, a.first_row, a.rows))
        TERRACE_TRY(start(l, "index_scores", scores_kernel,
                          dim3(2 * static_cast<unsigned>(l.info->sms)), dim3(32 * kWarps), 0,
                          Start::overlapping, a, s, scale));
    return {};
}

bool index_scores_mma_takes(const IndexScoresArgs& a) {
    return a.index.type == PlaneType::f16 && a.index.dim == kDim && a.index_heads <= kHeads &&
           kPageTokens / a.index.block_tokens % kTile == 0;
}

}  // namespace terrace::cuda
