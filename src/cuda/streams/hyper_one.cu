// hyper_read of one decoded row in one launch: what a step of a single sequence does twice a layer.
// Blocks hand each other the middle values while they run.
// SPDX-License-Identifier: MIT
#include <algorithm>

#include "cuda/streams/hyper_decode.cuh"
#include "cuda/util/mailbox.cuh"

namespace terrace::cuda::hyper {
namespace {

// Boxes: two sets that launches use in turn, the one in use filled once and the other emptied; then
// the number of launches so far. A set holds [rank + 5][4 streams]: what each stream gives to each
// output of down and inject, then the streams' 1 / rms.
constexpr int kSet = 2048;
constexpr int kTurn = 2 * kSet;
static_assert(kTurn < kBoxes);
constexpr int kPieceRanks = 40;  // of a thread at most, in registers

// Computes: h += add_inj * add_y; the parts of down(n) and inject(n) that each stream gives; when all
// blocks' are there, mid = silu(down(n) / 4), inj and x.
// Grid: (4 streams x groups of 10 outputs), 132 blocks at the real size, all on the device at once; the
// first ones also take 20 columns of x each. A thread has 8 columns of the stream, then a pair of
// gates and an eighth of the rank.
// Shared memory: UpPlan. The block's weights of both products are on their way before the row is there,
// those of down in registers; those of up get there while the boxes fill.
// Traffic: weights once; the stream and the boxes in every block, out of the L2 cache.
// Numerics: as the two launches for more rows, to the bit: fp32, the norm factored out of the dot
// products, a thread's columns in order, lanes as a butterfly, warps in order.
// h is written where no block reads it any more: behind the boxes, which are filled from it.
template <DType T>
__global__ void __launch_bounds__(kThreads, 1) one_row_kernel(const __grid_constant__ Args a) {
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ float part[kWarps][16];
    const UpPlan plan = up_plan(a.rank, 1);
    auto* mid = reinterpret_cast<float*>(smem + plan.mid);
    auto* up_part = reinterpret_cast<float*>(smem + plan.part);

    const int t = static_cast<int>(threadIdx.x), warp = t / 32, lane = t & 31;
    const int block = static_cast<int>(blockIdx.x);
    const int s = block % kStreams, first = block / kStreams * kOuts;
    const int column = 8 * t;
    const bool active = column < a.hidden;
    const int outs = min(kOuts, a.rank + (a.inj ? kStreams : 0) - first);
    uint4 packed[kOuts];
#pragma unroll
    for (int o = 0; o < kOuts; ++o)
        packed[o] = o < outs && active
                        ? load_weight(weights_of(a, first + o) + s * a.hidden + column)
                        : uint4{};
    copy_up(a, smem, plan.row_bytes);  // behind what is needed first
    const auto* norm = static_cast<const uint16_t*>(a.norm.data);
    const uint4 packed_norm = active ? load_weight(norm + s * a.hidden + column) : uint4{};
    // The gate that a thread finishes.
    const int own_stream = t % kStreams, own_column = block * kColumns + t / kStreams;
    const bool own = t < kGates && own_column < a.hidden;
    const int own_at = own_stream * a.hidden + own_column;
    const float own_scale = own ? 1.0f + load_plain(norm, T, own_at) : 0.0f;
    pdl_launch();
    float w[kOuts][8], scale[8];
#pragma unroll
    for (int o = 0; o < kOuts; ++o)
        widen8<T>(packed[o], w[o]);
    widen8<T>(packed_norm, scale);
    pdl_wait();

    const uint32_t turn = __ldcg(a.boxes + kTurn);
    uint32_t* boxes = a.boxes + (turn & 1) * kSet;
    float h[8], own_h = own ? a.h[own_at] : 0.0f;
    {
        const int at = min(column, a.hidden - 8);
        const auto load8 = [](const float* from, float(&to)[8]) {
            const auto* p = reinterpret_cast<const float4*>(from);
            const float4 lo = p[0], hi = p[1];
            to[0] = lo.x, to[1] = lo.y, to[2] = lo.z, to[3] = lo.w;
            to[4] = hi.x, to[5] = hi.y, to[6] = hi.z, to[7] = hi.w;
        };
        load8(a.h + s * a.hidden + at, h);
        if (a.add_y) {
            float y[8];
            load8(a.add_y + at, y);
            const float inj = a.add_inj[s];
            if (own) own_h = fmaf(a.add_inj[own_stream], a.add_y[own_column], own_h);
#pragma unroll
            for (int i = 0; i < 8; ++i)
                h[i] = fmaf(inj, y[i], h[i]);
        }
    }
    {
        float v[16] = {};
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            h[i] = active ? h[i] : 0.0f;
            v[kOuts] = fmaf(h[i], h[i], v[kOuts]);
            h[i] *= scale[i] + 1.0f;
        }
#pragma unroll
        for (int o = 0; o < kOuts; ++o)
#pragma unroll
            for (int i = 0; i < 8; ++i)
                v[o] = fmaf(h[i], w[o][i], v[o]);
        const float sum = warp_sums16(v);
        if ((lane & 1) == 0) part[warp][lane / 2] = sum;
    }
    __syncthreads();
    if (warp == 0) {
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < kWarps; ++j)
            sum += part[j][lane % 16];
        const float square = __shfl_sync(0xffffffffu, sum, kOuts);
        const float inv = rsqrtf(fmaf(square, a.per_hidden, a.eps));
        if (t < outs) post_float(boxes + (first + t) * kStreams + s, sum * inv);
        if (first == 0 && t == 0) post_float(boxes + (a.rank + kStreams) * kStreams + s, inv);
    }

    float4 first_sums = peek_float4(boxes + min(t, a.rank - 1) * kStreams);  // while up is widened
    for (int i = block * kThreads + t; i < kSet; i += static_cast<int>(gridDim.x) * kThreads)
        a.boxes[(~turn & 1) * kSet + i] = 0;
    cp_async_wait_all();
    __syncthreads();
    const int pair = t % kPairs, piece = t / kPairs, ranks = a.rank / kParts;
    float up[kPieceRanks / 8][2][8];
#pragma unroll
    for (int k = 0; k < kPieceRanks / 8; ++k)
        if (8 * k < ranks)
            load_pair<T>(smem + pair * plan.row_bytes + 2 * piece * ranks, plan.row_bytes, 8 * k,
                         up[k]);
    for (int i = t; i < a.rank; i += kThreads) {
        const float4 v = wait_float4(boxes + i * kStreams, first_sums);
        mid[i] = middle(v.x, v.y, v.z, v.w);
        first_sums = {};
    }
    const float inv = own ? wait_float(boxes + (a.rank + kStreams) * kStreams + own_stream) : 0.0f;
    if (block == 0 && a.inj && t < kStreams) {
        const float4 v = wait_float4(boxes + (a.rank + t) * kStreams, {});
        a.inj[t] = injection(v.x, v.y, v.z, v.w);
    }
    __syncthreads();
    // Every block has posted, so none still asks for the turn or for the old h.
    if (block == 0 && t == 0) a.boxes[kTurn] = turn + 1;
    if (a.add_y && own) a.h[own_at] = own_h;
    if (block * kColumns >= a.hidden) return;
    float sum[2][2] = {};
#pragma unroll
    for (int k = 0; k < kPieceRanks / 8; ++k)
        if (8 * k < ranks) multiply_pair(mid + piece * ranks + 8 * k, up[k], sum);
#pragma unroll
    for (int g = 0; g < 2; ++g)
        up_part[piece * kGates + pair + g * kPairs] = sum[g][0] + sum[g][1];
    __syncthreads();
    if (t >= (kGates + 31) / 32 * 32) return;
    const float x = mean_gated(up_part + min(t, kGates - 1), own_h * inv * own_scale);
    if (own && own_stream == 0) a.x[own_column] = x;
}

struct Grid {
    int down, up;
};
Grid grid_of(const Args& a) {
    const int outs = a.rank + (a.inj ? kStreams : 0);
    return {kStreams * ((outs + kOuts - 1) / kOuts), (a.hidden + kColumns - 1) / kColumns};
}

}  // namespace

// Blocks wait for each other, so all must fit on the device at once: one to a multiprocessor does, as
// the launch bounds say. Every block posts, so that none is behind by a turn.
bool one_row_serves(const Launch& l, const Args& a) {
    const Grid g = grid_of(a);
    return a.rows == 1 && g.up <= g.down && g.down <= l.info->sms &&
           a.rank <= kParts * kPieceRanks && (a.rank + kStreams + 1) * kStreams <= kSet;
}

Status one_row(const Launch& l, const Args& a, DType dtype) {
    const auto kernel =
        dtype == DType::f16 ? one_row_kernel<DType::f16> : one_row_kernel<DType::bf16>;
    return start(l, "hyper_read: one row", kernel, static_cast<unsigned>(grid_of(a).down), kThreads,
                 up_plan(a.rank, 1).bytes, Start::overlapping, a);
}

}  // namespace terrace::cuda::hyper
