// index_scores on the matrix units: f16 planes of 128 dims, up to four index heads.
//
// A pooled row is a row of the left operand; a query row of the step gives eight columns of the
// right one: each head's f16 and, scaled by 2^11, the f16 of what that leaves out. So one m16n8k16
// has both products of all heads of a row, and scores have the accuracy of fp32 queries.
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
constexpr int kTile = 32;               // blocks that a warp takes at once
constexpr int kChunk = kWarps * kTile;  // blocks of a work item
constexpr int kGroup = 16;              // rows of a work item
constexpr int kRowWords = 4 * 32;       // uint4 of a query row: [32 dims][lane]
constexpr float kLowScale = 2048.0f;

// Query row as right operand. A lane's 16 bytes of segment j hold dims 32j + 8t .. + 7 of column g:
// the operands of two k-steps, whose k index is permuted so that a lane's share of a pooled row is
// 16 neighbouring bytes too.
__device__ __forceinline__ void load_queries(const IndexScoresArgs& a, int row0, int n_rows,
                                             uint4* queries) {
    for (int i = static_cast<int>(threadIdx.x); i < n_rows * kRowWords; i += 32 * kWarps) {
        const int lane = i % 32, j = i / 32 % 4, row = row0 + i / kRowWords;
        const int column = lane / 4, head = column % 4, dim = 32 * j + 8 * (lane % 4);
        uint32_t words[4] = {};
        if (head < a.index_heads) {
            const float* x =
                a.iq.device_pointer() + (int64_t{row} * a.index_heads + head) * kDim + dim;
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                float x0 = x[2 * k], x1 = x[2 * k + 1];
                if (column >= kHeads) {
                    x0 = (x0 - __half2float(__float2half_rn(x0))) * kLowScale;
                    x1 = (x1 - __half2float(__float2half_rn(x1))) * kLowScale;
                }
                words[k] = pack_f16(x0, x1);
            }
        }
        queries[i] = make_uint4(words[0], words[1], words[2], words[3]);
    }
}

// Scores of a warp's 32 blocks for one query row: lane (g, t) gets that of block
// 16 (t & 1) + 8 (t >> 1) + g.
__device__ __forceinline__ float score(const uint4 (&keys)[4][4], const uint4* query, int lane) {
    float sum[2][4] = {};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const uint4 b = query[32 * j + lane];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            const uint4 low = keys[2 * m][j], high = keys[2 * m + 1][j];
            mma_f16(sum[m], low.x, high.x, low.y, high.y, b.x, b.y);
            mma_f16(sum[m], low.z, high.z, low.w, high.w, b.z, b.w);
        }
    }
    // Lanes t and t ^ 2 hold the two parts of the same heads: one joins them for rows g, the other
    // for rows g + 8. Then t and t ^ 1 hold the two pairs of heads.
    const bool upper = lane & 2;
    float out = 0;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
        float s = 0;
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            const float other = __shfl_xor_sync(0xffffffffu, upper ? sum[m][c] : sum[m][c + 2], 2);
            const float high = upper ? other : sum[m][c], low = upper ? sum[m][c + 2] : other;
            s += fmaxf(high + low * (1.0f / kLowScale), 0.0f);
        }
        s += __shfl_xor_sync(0xffffffffu, s, 1);
        if ((lane & 1) == m) out = s;
    }
    return out;
}

// Computes  scores[r][b] for every complete block of the rows of the listed segments.
// Grid and block  as many blocks as the device holds, 8 warps. Work items are (up to 16 rows) x
//           (256 blocks), by segment, then rows, then blocks; each thread block takes an equal
//           share of neighbouring items, whose number is known on the device only.
// Shared memory   32 KiB: the queries of the current rows.
// Traffic   the pooled plane once per 16 rows of a sequence, scores once.
// Numerics  two f16 products with fp32 sums; a row's score does not depend on the other rows.
__global__ void __launch_bounds__(32 * kWarps, 2)
    scores_kernel(const IndexScoresArgs a, const Segments segments, float scale) {
    __shared__ uint4 queries[kGroup * kRowWords];
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
    const auto items_of = [&](int s) {
        return (segments.at[s].n_rows + kGroup - 1) / kGroup * chunks[s];
    };
    int64_t total = 0;
    for (int s = 0; s < segments.n; ++s)
        total += items_of(s);
    const auto item0 = static_cast<int>(total * blockIdx.x / gridDim.x);
    const auto item1 = static_cast<int>(total * (blockIdx.x + 1) / gridDim.x);
    int segment = 0, before = 0, loaded = -1;
    pdl_wait();
    for (int item = item0; item < item1; ++item) {
        while (item >= before + items_of(segment))
            before += items_of(segment++);
        const SeqRows& seq = seqs[segment];
        const int group = (item - before) / chunks[segment];
        const int chunk = (item - before) % chunks[segment];
        const int row0 = segments.at[segment].row0 + group * kGroup;
        const int n_rows =
            min(kGroup, segments.at[segment].row0 + segments.at[segment].n_rows - row0);
        const int pos0 = seq.pos0 + row0 - seq.row0;
        const int tile = chunk * kChunk + warp * kTile;
        const bool any = tile < (pos0 + n_rows) / bt;
        uint4 keys[4][4];  // [8 blocks][32 dims]
        if (any) {
            const int64_t page =
                a.step.block_tables.device_pointer()[seq.table_offset + tile / page_blocks];
            const auto* p = reinterpret_cast<const uint4*>(a.index.pooled) +
                            (page * page_blocks + tile % page_blocks + lane / 4) * (kDim / 8) +
                            lane % 4;
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    keys[i][j] = load16_once(p + i * 8 * (kDim / 8) + 4 * j);
        }
        if (row0 != loaded) {
            __syncthreads();
            load_queries(a, row0, n_rows, queries);
            __syncthreads();
            loaded = row0;
        }
        if (!any) continue;
        const int block = tile + 16 * (lane & 1) + 8 * (lane >> 1 & 1) + lane / 4;
        float* out = a.scores.device_pointer() + (row0 - a.first_row) * a.stride + block;
#pragma unroll 2
        for (int r = 0; r < n_rows; ++r) {
            const float s = score(keys, queries + r * kRowWords, lane) * scale;
            if (block < (pos0 + r + 1) / bt) out[r * a.stride] = s;
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
