// attend for planes and shapes that the matrix path does not take.
// SPDX-License-Identifier: MIT
#include "cuda/attn/attn_internal.h"
#include "cuda/attn/entries.cuh"
#include "cuda/util/common.cuh"

namespace terrace::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kTile = 64;  // tokens between two looks at the running maximum

// Computes  softmax attention of one (row, head) over the row's list of tokens, times sigmoid(gate).
// Grid and block  rows x heads, 4 warps. Scores: a warp per token. Sum: a thread per element of V.
// Shared memory   head_dim floats of the sum, 64 weights and V addresses.
// Traffic   K and V of the list once per head.
// Numerics  fp32; running maximum per tile of 64 tokens of the list, tokens added in list order. A
//           pass takes whole tiles and leaves the sums as they are to the next.
__global__ void __launch_bounds__(kThreads) attend_any_kernel(const AttendArgs a) {
    extern __shared__ float sum[];  // [head_dim]
    __shared__ float weight[kTile];
    __shared__ const std::byte* value[kTile];
    pdl_launch();
    pdl_wait();
    const int tid = static_cast<int>(threadIdx.x), lane = tid & 31, warp = tid >> 5;
    const int r = static_cast<int>(blockIdx.x) / a.heads, row = a.first_row + r;
    const int head = static_cast<int>(blockIdx.x) % a.heads;
    const int hd = a.kv.head_dim, bt = a.kv.block_tokens,
              kv_head = head / (a.heads / a.kv.kv_heads);
    const RowPlace at = place_row(a.step, row);
    const int complete = (at.pos + 1) / bt;
    const int n_blocks = a.counts.empty() ? complete : a.counts.device_pointer()[r];
    const int n_tokens = n_blocks * bt + at.pos + 1 - complete * bt;
    const int32_t* list =
        a.blocks.empty() ? nullptr : a.blocks.device_pointer() + int64_t{r} * a.top;
    const float* q = a.q.device_pointer() + (int64_t{row} * a.heads + head) * hd;
    for (int i = tid; i < hd; i += kThreads)
        sum[i] = 0;
    const bool first_pass = a.first_pass(), last_pass = a.last_pass();
    // The tiles of this pass: those behind the ones that the pass before did, up to the last that
    // ends before the border.
    const auto tokens_before = [&](int border) {
        return entries_below(list, n_blocks, border) * bt / kTile * kTile;
    };
    const int begin = first_pass ? 0 : tokens_before(a.from_block);
    const int end = last_pass ? n_tokens : tokens_before(a.end_block);
    float* const state = reinterpret_cast<float*>(a.state.device_pointer()) +
                         (int64_t{r} * a.heads + head) * attend_sums(hd);
    float top = -INFINITY, total = 0;
    if (!first_pass) {
        top = state[0];
        total = state[2];
        for (int i = tid; i < hd; i += kThreads)
            sum[i] = state[8 + i];
    }
    for (int first = begin; first < end; first += kTile) {
        const int n = min(kTile, end - first);
        __syncthreads();
        for (int t = warp; t < n; t += kWarps) {
            const int entry = (first + t) / bt;
            const int block = entry >= n_blocks ? complete : list ? list[entry] : entry;
            const int pos = block * bt;
            const std::byte* extent =
                a.kv.block(physical_page(a.step, at.seq, pos), pos % kPageTokens / bt);
            const std::byte* k =
                extent + static_cast<size_t>((first + t) % bt * a.kv.kv_heads + kv_head) *
                             static_cast<size_t>(hd) * plane_bytes(a.kv.type);
            float dot = 0;
            for (int i = lane; i < hd; i += 32)
                dot += q[i] * load_plane(k, a.kv.type, i);
            dot = warp_sum(dot);
            if (lane == 0) {
                weight[t] = dot * a.scale;
                value[t] = k + a.kv.half_extent_bytes();
            }
        }
        __syncthreads();
        float m = top;
        for (int t = 0; t < n; ++t)
            m = fmaxf(m, weight[t]);
        const float old = expf(top - m);
        top = m;
        __syncthreads();
        if (tid < n) weight[tid] = expf(weight[tid] - m);
        __syncthreads();
        total *= old;
        for (int t = 0; t < n; ++t)
            total += weight[t];
        for (int i = tid; i < hd; i += kThreads) {
            float s = sum[i] * old;
            for (int t = 0; t < n; ++t)
                s += weight[t] * load_plane(value[t], a.kv.type, i);
            sum[i] = s;
        }
    }
    if (!last_pass) {
        if (tid == 0) {
            state[0] = top;
            state[2] = total;
        }
        for (int i = tid; i < hd; i += kThreads)
            state[8 + i] = sum[i];
        return;
    }
    const float inv = total > 0 ? 1.0f / total : 0.0f;
    const float* gate = a.qg.device_pointer() + (int64_t{row} * a.heads + head) * 2 * hd + hd;
    float* out = a.out.device_pointer() + (int64_t{row} * a.heads + head) * hd;
    for (int i = tid; i < hd; i += kThreads)
        out[i] = sum[i] * inv * sigmoidf(gate[i]);
}

}  // namespace

Status attend_any(const Launch& l, const AttendArgs& a) {
    return start(l, "attend", attend_any_kernel,
                 dim3(static_cast<unsigned>(a.rows) * static_cast<unsigned>(a.heads)),
                 dim3(kThreads), static_cast<size_t>(a.kv.head_dim) * sizeof(float),
                 Start::overlapping, a);
}

}  // namespace terrace::cuda
