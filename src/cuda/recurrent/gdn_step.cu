// Gated delta net, recurrent form: decay, error, rank-one update, read-out, gated RMS norm, row after
// row of a sequence.
// SPDX-License-Identifier: MIT
#include "cuda/recurrent/gdn.h"
#include "cuda/util/common.cuh"

namespace terrace::cuda {
namespace {

// Any dims. Grid: (value heads, sequences), a thread per value column.
// Shared memory: q and k of the row; the head's state [k_dim][v_dim] when it fits, else it is worked
// on where it lies. Numerics: fp32, sums over k_dim in ascending order.
template <bool kStateInShared>
__global__ void recur_kernel(GdnArgs a, const float* y, int channels) {
    extern __shared__ float smem[];
    __shared__ float part[32];
    pdl_wait();
    pdl_launch();
    const int h = static_cast<int>(blockIdx.x), j = static_cast<int>(threadIdx.x);
    const int dk = a.k_dim, dv = a.v_dim, threads = static_cast<int>(blockDim.x);
    const SeqRows seq = a.step.seqs.device_pointer()[blockIdx.y];
    float *q = smem, *k = smem + dk;
    float* global = a.state.device_pointer() + (int64_t{seq.slot} * a.v_heads + h) * dk * dv;
    float* s = kStateInShared ? smem + 2 * dk : global;
    if (kStateInShared)
        for (int i = j; i < dk * dv; i += threads)
            s[i] = global[i];
    const int kh = h / (a.v_heads / a.k_heads);
    const float rate = -expf(load_plain(a.a_log, h)), bias = load_plain(a.dt_bias, h);
    for (int r = seq.row0; r < seq.row0 + seq.n_rows; ++r) {
        const float* row = y + int64_t{r} * channels;
        const int64_t rh = int64_t{r} * a.v_heads + h;
        __syncthreads();
        for (int i = j; i < dk; i += threads) {
            q[i] = row[kh * dk + i];
            k[i] = row[(a.k_heads + kh) * dk + i];
        }
        __syncthreads();
        float o = 0.0f;
        if (j < dv) {
            const float decay = expf(rate * softplusf(a.a.device_pointer()[rh] + bias));
            float dot = 0.0f;
            for (int i = 0; i < dk; ++i)
                dot = fmaf(k[i], s[i * dv + j], dot);
            const float v = row[2 * a.k_heads * dk + h * dv + j];
            const float err = sigmoidf(a.b.device_pointer()[rh]) * (v - decay * dot);
            for (int i = 0; i < dk; ++i) {
                const float next = fmaf(k[i], err, decay * s[i * dv + j]);
                s[i * dv + j] = next;
                o = fmaf(q[i], next, o);
            }
        }
        const float inv = rsqrtf(block_sum(o * o, part) / static_cast<float>(dv) + a.eps);
        if (j < dv)
            a.out.device_pointer()[rh * dv + j] =
                o * inv * load_plain(a.norm, j) * sigmoidf(a.z.device_pointer()[rh * dv + j]);
    }
    if (kStateInShared) {
        __syncthreads();
        for (int i = j; i < dk * dv; i += threads)
            global[i] = s[i];
    }
}

}  // namespace

Status gdn_recur(const Launch& l, const GdnArgs& a, const float* y) {
    if (a.v_dim > 1024) return Error{Code::unsupported, "gdn: more than 1024 value columns"};
    const dim3 grid(static_cast<unsigned>(a.v_heads), static_cast<unsigned>(a.step.n_seqs));
    const auto threads = static_cast<unsigned>((a.v_dim + 31) / 32 * 32);
    const size_t rows = 2 * sizeof(float) * static_cast<size_t>(a.k_dim);
    const size_t with_state = rows + sizeof(float) * static_cast<size_t>(a.k_dim * a.v_dim);
    if (with_state + 1024 <= l.info->smem_per_block)
        return start(l, "gdn: recurrence", recur_kernel<true>, grid, threads, with_state,
                     Start::overlapping, a, y, gdn_channels(a));
    return start(l, "gdn: recurrence", recur_kernel<false>, grid, threads, rows, Start::overlapping,
                 a, y, gdn_channels(a));
}

}  // namespace terrace::cuda
