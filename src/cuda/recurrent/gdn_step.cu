// Gated delta net, recurrent form: decay, error, rank-one update, read-out, gated RMS norm, row after
// row of a sequence.
// SPDX-License-Identifier: MIT
#include "cuda/recurrent/gdn.h"
#include "cuda/util/async.cuh"
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
    pdl_launch();
    pdl_wait();
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

// ---- 128 x 128, four taps: from the projections to the output in one launch

constexpr int kDim = 128;
constexpr int kSlices = 4;  // blocks of a value head, a cluster
constexpr int kColumns = kDim / kSlices;
constexpr int kStateThreads = 256;                // 4 columns x 4 rows of the slice's state each
constexpr int kStepThreads = kStateThreads + 32;  // and a warp for the slice's values and output
constexpr int kTaps = 3;

// Computes the decoded rows of a sequence for a slice of a value head's columns.
// Grid: (value heads x slices, sequences). Every block convolves its head's q and k again: they are
// 256 of 10240 channels.
// Shared memory: q, k, v of the rows, sums across warps.
// Traffic: the state in and out once; asked for into the L2 cache before the projections are done.
// Numerics: fp32. o = decay * q.S + (q.k) * err, so that one pass over the old state gives both the
// error and the output; sums over a thread's 4 rows of the state, its lanes, then warps in order.
// Convolution state: the last block that has read a q/k head's part of it writes the new one.
__global__ void __cluster_dims__(kSlices, 1, 1) __launch_bounds__(kStepThreads)
    step_kernel(GdnArgs a, uint32_t* counters) {
    __shared__ __align__(16) float q[kDecodeRows][kDim], k[kDecodeRows][kDim];
    __shared__ __align__(16) float v[kDecodeRows][kColumns];
    __shared__ __align__(16) float sums[2][kStateThreads / 32][kColumns];  // k.S, q.S
    __shared__ float decays[kDecodeRows], betas[kDecodeRows];
    __shared__ float squares[2][kSlices];
    __shared__ bool moves_state;
    const int t = static_cast<int>(threadIdx.x), lane = t & 31, warp = t / 32;
    const int h = static_cast<int>(blockIdx.x) / kSlices, slice = cluster_rank();
    const int si = static_cast<int>(blockIdx.y), group = a.v_heads / a.k_heads, kh = h / group;
    const int channels = (2 * a.k_heads + a.v_heads) * kDim;
    const bool values = t >= kStateThreads;  // this warp convolves v and writes the output
    const int channel = values ? 2 * a.k_heads * kDim + h * kDim + slice * kColumns + lane
                               : (t < kDim ? kh : a.k_heads + kh) * kDim + (t & (kDim - 1));
    const SeqRows* seqs = a.step.seqs.device_pointer();

    {  // The slot may be an old one here; then the hint is for nothing.
        const int64_t guess = __ldcg(&seqs[si].slot);
        const int64_t at = ((guess * a.v_heads + h) * kDim + t) * kDim + slice * kColumns;
        if (t < kDim && guess >= 0 && at < static_cast<int64_t>(a.state.size()))
            prefetch_l2(a.state.device_pointer() + at);
    }
    float w[kTaps + 1];
#pragma unroll
    for (int j = 0; j <= kTaps; ++j)
        w[j] = load_plain(a.conv, int64_t{channel} * (kTaps + 1) + j);
    const float rate = -expf(load_plain(a.a_log, h)), bias = load_plain(a.dt_bias, h);
    const float norm = load_plain(a.norm, slice * kColumns + lane);
    cluster_arrive();
    pdl_launch();
    pdl_wait();

    const SeqRows seq = seqs[si];
    const int rows = decoded_rows(seq.n_rows), done = seq.n_rows - rows, row0 = seq.row0 + done;
    if (rows == 0) {
        cluster_wait();
        return;
    }
    float* state = a.state.device_pointer() +
                   ((int64_t{seq.slot} * a.v_heads + h) * kDim + t / 8) * kDim + slice * kColumns +
                   t % 8 * 4;
    float4 s[4];  // rows t / 8 + 32 p of the state
    if (!values)
#pragma unroll
        for (int p = 0; p < 4; ++p)
            s[p] = *reinterpret_cast<const float4*>(state + int64_t{p} * 32 * kDim);

    const float* u = a.qkv.device_pointer() + channel;
    float* past = a.conv_state.device_pointer() + int64_t{seq.slot} * kTaps * channels + channel;
    float x[kTaps];
#pragma unroll
    for (int j = 0; j < kTaps; ++j) {
        const int at = done - kTaps + j;  // row of the sequence; negative: in the state
        x[j] = at < 0 ? past[int64_t{kTaps + at} * channels] : u[int64_t{seq.row0 + at} * channels];
    }
    float* to = values ? &v[0][lane] : t < kDim ? &q[0][t] : &k[0][t - kDim];
    for (int i = 0; i < rows; ++i) {
        const float now = u[int64_t{row0 + i} * channels];
        float sum = w[0] * x[0];
        sum = fmaf(w[1], x[1], sum);
        sum = fmaf(w[2], x[2], sum);
        sum = fmaf(w[3], now, sum);
        to[i * (values ? kColumns : kDim)] = siluf(sum);
        x[0] = x[1], x[1] = x[2], x[2] = now;
    }
    if (values) {
        if (lane < rows) {
            const int64_t rh = int64_t{row0 + lane} * a.v_heads + h;
            decays[lane] = expf(rate * softplusf(a.a.device_pointer()[rh] + bias));
            betas[lane] = sigmoidf(a.b.device_pointer()[rh]);
        }
#pragma unroll
        for (int j = 0; j < kTaps; ++j)
            past[int64_t{j} * channels] = x[j];
    }
    __syncthreads();
    uint32_t* counter = counters + si * a.k_heads + kh;
    uint32_t ticket = 0;
    if (t == kStateThreads) ticket = atomicAdd(counter, 1u);
    cluster_wait();  // the other slices have started

    for (int i = 0; i < rows; ++i) {
        const int64_t rh = int64_t{row0 + i} * a.v_heads + h;
        const int64_t out_at = rh * kDim + slice * kColumns + lane;
        const float z = values ? a.z.device_pointer()[out_at] : 0.0f;
        const float4 q4 = *reinterpret_cast<const float4*>(&q[i][4 * lane]);
        const float4 k4 = *reinterpret_cast<const float4*>(&k[i][4 * lane]);
        const float qq = warp_sum(q4.x * q4.x + q4.y * q4.y + q4.z * q4.z + q4.w * q4.w);
        const float kk = warp_sum(k4.x * k4.x + k4.y * k4.y + k4.z * k4.z + k4.w * k4.w);
        const float qk = warp_sum(q4.x * k4.x + q4.y * k4.y + q4.z * k4.z + q4.w * k4.w);
        const float inv_q = rsqrtf(qq + a.eps) * rsqrtf(static_cast<float>(kDim));
        const float inv_k = rsqrtf(kk + a.eps);
        const float decay = decays[i], beta = betas[i];
        float ks[4];
        if (!values) {
            float d[8] = {};  // k.S of 4 columns, then q.S
#pragma unroll
            for (int p = 0; p < 4; ++p) {
                ks[p] = k[i][t / 8 + 32 * p] * inv_k;
                const float qs = q[i][t / 8 + 32 * p] * inv_q;
                d[0] = fmaf(ks[p], s[p].x, d[0]);
                d[1] = fmaf(ks[p], s[p].y, d[1]);
                d[2] = fmaf(ks[p], s[p].z, d[2]);
                d[3] = fmaf(ks[p], s[p].w, d[3]);
                d[4] = fmaf(qs, s[p].x, d[4]);
                d[5] = fmaf(qs, s[p].y, d[5]);
                d[6] = fmaf(qs, s[p].z, d[6]);
                d[7] = fmaf(qs, s[p].w, d[7]);
            }
#pragma unroll
            for (int n = 4; n >= 2; n /= 2) {  // lanes 16, then 8 apart, each keeping one half
                const bool upper = lane & (4 * n);
#pragma unroll
                for (int j = 0; j < n; ++j) {
                    const float keep = upper ? d[j + n] : d[j], send = upper ? d[j] : d[j + n];
                    d[j] = keep + __shfl_xor_sync(0xffffffffu, send, 4 * n);
                }
            }
            *reinterpret_cast<float2*>(&sums[lane >> 4][warp][lane % 8 * 4 + (lane >> 3 & 1) * 2]) =
                make_float2(d[0], d[1]);
        }
        __syncthreads();
        float o = 0.0f;
        if (values) {
            float dot = 0.0f, old = 0.0f;
#pragma unroll
            for (int j = 0; j < kStateThreads / 32; ++j) {
                dot += sums[0][j][lane];
                old += sums[1][j][lane];
            }
            const float err = beta * (v[i][lane] - decay * dot);
            o = fmaf(qk * inv_q * inv_k, err, decay * old);
            const float square = warp_sum(o * o);
            if (lane < kSlices) store_remote(&squares[i & 1][slice], lane, square);
        } else {
            float4 dot = {};
#pragma unroll
            for (int j = 0; j < kStateThreads / 32; ++j) {
                const float4 d = *reinterpret_cast<const float4*>(&sums[0][j][t % 8 * 4]);
                dot.x += d.x, dot.y += d.y, dot.z += d.z, dot.w += d.w;
            }
            const float4 v4 = *reinterpret_cast<const float4*>(&v[i][t % 8 * 4]);
            const float4 err = {beta * (v4.x - decay * dot.x), beta * (v4.y - decay * dot.y),
                                beta * (v4.z - decay * dot.z), beta * (v4.w - decay * dot.w)};
#pragma unroll
            for (int p = 0; p < 4; ++p) {
                s[p].x = fmaf(ks[p], err.x, decay * s[p].x);
                s[p].y = fmaf(ks[p], err.y, decay * s[p].y);
                s[p].z = fmaf(ks[p], err.z, decay * s[p].z);
                s[p].w = fmaf(ks[p], err.w, decay * s[p].w);
            }
        }
        cluster_arrive();
        if (!values && i + 1 == rows)
#pragma unroll
            for (int p = 0; p < 4; ++p)
                *reinterpret_cast<float4*>(state + int64_t{p} * 32 * kDim) = s[p];
        cluster_wait();
        if (values) {
            const float* sq = squares[i & 1];
            const float square = ((sq[0] + sq[1]) + sq[2]) + sq[3];
            a.out.device_pointer()[out_at] =
                o * rsqrtf(square / static_cast<float>(kDim) + a.eps) * norm * sigmoidf(z);
        }
    }
    if (t == kStateThreads) {
        moves_state = ticket == static_cast<uint32_t>(kSlices * group - 1);
        if (moves_state) *counter = 0;
    }
    __syncthreads();
    if (moves_state && !values)
#pragma unroll
        for (int j = 0; j < kTaps; ++j)
            past[int64_t{j} * channels] = x[j];
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

bool gdn_step_serves(const Launch& l, const GdnArgs& a) {
    return l.info->cc >= 90 && a.k_dim == kDim && a.v_dim == kDim && a.kernel == kTaps + 1;
}

Status gdn_step(const Launch& l, const GdnArgs& a) {
    if (int64_t{a.step.n_seqs} * a.k_heads > kCounters)
        return Error{Code::unsupported, "gdn: too many sequences in a step"};
    return start(
        l, "gdn: step", step_kernel,
        dim3(static_cast<unsigned>(a.v_heads * kSlices), static_cast<unsigned>(a.step.n_seqs)),
        kStepThreads, 0, Start::overlapping, a, l.counters);
}

}  // namespace terrace::cuda
