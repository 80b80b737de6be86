// Gated delta net, recurrent form: decay, error, rank-one update, read-out, gated RMS norm, row
// after row of a sequence.
// SPDX-License-Identifier: MIT
#include <type_traits>

#include "cuda/ptx/cluster.cuh"
#include "cuda/recurrent/gdn.h"
#include "cuda/recurrent/gdn_taps.cuh"
#include "cuda/util/common.cuh"

namespace terrace::cuda {
namespace {

// Any dims. Grid: (value heads, sequences), a thread per value column.
// Shared memory: q and k of the row; the head's state [k_dim][v_dim] when it fits, else it is
// worked on where it lies. Numerics: fp32, sums over k_dim in ascending order.
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
constexpr int kGroups = 16;                 // of threads, by rows of the state
constexpr int kStateRows = kDim / kGroups;  // of a thread

// A value head is one block's, or a cluster's of four that own 32 columns each: faster alone,
// slower among many. Both add up in the same order, so the choice changes no bit.
template <int kSlices>
struct StepShape {
    static constexpr int kColumns = kDim / kSlices;
    static constexpr int kPer = kSlices == 1 ? 4 : 2;  // neighbouring columns of a thread
    static constexpr int kLanes = kColumns / kPer;     // threads of a group
    static constexpr int kStateThreads = kGroups * kLanes;
    static constexpr int kThreads = kSlices == 1 ? kStateThreads : kStateThreads + kColumns;
    static constexpr int kFirstOut = 2 * kDim;  // threads that convolve v and write the output
    static constexpr int kFirstGate = kSlices == 1 ? 3 * kDim : kFirstOut;
};
template <int N>
struct alignas(4 * N) Columns {
    float v[N];
};
struct Place {
    int row0, n_rows, slot;
};

// Computes the decoded rows of a sequence for the columns of a slice of a value head.
// Grid: (value heads x slices, sequences). Every block convolves its q/k head again.
// Shared memory: q, k, v of the rows, sums across groups.
// Traffic: the state in and out once, in registers meanwhile; asked for into the L2 cache before
// the projections are done.
// Numerics: fp32. o = decay * q.S + (q.k) * err, so that one pass over the old state gives both the
// error and the output; sums over a group's 8 rows of the state, then groups, in order.
// Convolution state: the last block that has read a q/k head's part of it writes the new one.
template <int kSlices>
__global__ void TERRACE_CLUSTER(kSlices)
    __launch_bounds__(StepShape<kSlices>::kThreads, kSlices == 1 ? 2 : 3)
        step_kernel(GdnArgs a, uint32_t* counters) {
    if (kSlices > 1 && !kCopyEngine) return;  // never started so
    using Shape = StepShape<kSlices>;
    using Part = Columns<Shape::kPer>;
    __shared__ __align__(16) float q[kDecodeRows][kDim], k[kDecodeRows][kDim];
    __shared__ float v[kDecodeRows][Shape::kColumns];
    __shared__ __align__(16) float sums[2][kGroups][Shape::kColumns];  // k.S, q.S
    __shared__ __align__(16) float errs[Shape::kColumns];
    __shared__ float decays[kDecodeRows], betas[kDecodeRows], squares[kDecodeRows][4];
    __shared__ uint64_t arrived[kSlices > 1 ? kDecodeRows : 1];  // a row's squares, of all slices
    __shared__ bool moves_state;
    const int t = static_cast<int>(threadIdx.x), lane = t & 31;
    const int slice = static_cast<int>(blockIdx.x) % kSlices;
    const int h = static_cast<int>(blockIdx.x) / kSlices, si = static_cast<int>(blockIdx.y);
    const int group = a.v_heads / a.k_heads, kh = h / group;
    const int channels = (2 * a.k_heads + a.v_heads) * kDim;
    const bool holds = t < Shape::kStateThreads;  // a part of the state
    const bool writes = t >= Shape::kFirstOut && t < Shape::kFirstOut + Shape::kColumns;
    const bool convolves = t < Shape::kFirstOut || writes;
    const int own = t - Shape::kFirstOut;  // a writer's column of the slice
    const int column = slice * Shape::kColumns + own;
    const int channel = t < kDim               ? kh * kDim + t
                        : t < Shape::kFirstOut ? a.k_heads * kDim + kh * kDim + t - kDim
                                               : (2 * a.k_heads + h) * kDim + column;
    const int row_group = t / Shape::kLanes, first = t % Shape::kLanes * Shape::kPer;
    const int64_t in_state =
        (int64_t{h} * kDim + row_group * kStateRows) * kDim + slice * Shape::kColumns + first;
    const int64_t head_size = int64_t{a.v_heads} * kDim * kDim;
    const SeqRows* seqs = a.step.seqs.device_pointer();

    // Where the sequence's rows and state will be, unless an earlier kernel still says otherwise: then
    // the hints are for nothing, and what is loaded first is loaded again.
    Place place = {__ldcg(&seqs[si].row0), __ldcg(&seqs[si].n_rows), __ldcg(&seqs[si].slot)};
    if (place.slot < 0 || (place.slot + 1) * head_size > static_cast<int64_t>(a.state.size()))
        place.slot = 0;
    if (place.row0 < 0 || place.n_rows < 1 || place.row0 > a.step.n_rows - place.n_rows)
        place.row0 = 0, place.n_rows = 1;
    {
        const float* from = a.state.device_pointer() + place.slot * head_size + in_state;
        if (holds && t % (32 / Shape::kPer) == 0)  // a line each
#pragma unroll
            for (int p = 0; p < kStateRows; ++p)
                prefetch_l2(from + p * kDim);
        if (convolves && lane < kTaps)
            prefetch_l2(a.conv_state.device_pointer() +
                        (int64_t{place.slot} * kTaps + lane) * channels + channel - lane);
    }
    float w[kTaps + 1];
    if (convolves) load_taps(a.conv, channel, w);
    const float rate = load_plain(a.a_log, h), bias = load_plain(a.dt_bias, h);
    const float norm = writes ? load_plain(a.norm, column) : 0.0f;
    if constexpr (kSlices > 1) {
        if (t < kDecodeRows) {
            mbarrier_init(shared_address(&arrived[t]), 1);
            mbarrier_init_fence();
            mbarrier_expect(shared_address(&arrived[t]), kSlices * sizeof(float));
        }
        __syncwarp();
        cluster_arrive();
    }
    pdl_launch();
    pdl_wait();

    // All loads are under way together, the rows' true place among them.
    const SeqRows seq = seqs[si];
    // Blocks of whole heads are many, and have no registers for it.
    if constexpr (kSlices == 1) place = {seq.row0, seq.n_rows, seq.slot};
    int rows, row0;
    float *state, *past;
    Part s[kStateRows];
    float x[kTaps], now = 0.0f, gate_a = 0.0f, gate_b = 0.0f;
    const float* u = a.qkv.device_pointer() + channel;
    const int gate_row = t - Shape::kFirstGate;
    for (;;) {
        rows = decoded_rows(place.n_rows);
        const int done = place.n_rows - rows;
        row0 = place.row0 + done;
        state = a.state.device_pointer() + place.slot * head_size + in_state;
        past = a.conv_state.device_pointer() + int64_t{place.slot} * kTaps * channels + channel;
        if (rows > 0) {
            if (convolves) {
#pragma unroll
                for (int j = 0; j < kTaps; ++j) {
                    const int at = done - kTaps + j;  // row of the sequence; negative: in the state
                    x[j] = *(at < 0 ? past + int64_t{kTaps + at} * channels
                                    : u + int64_t{place.row0 + at} * channels);
                }
                now = u[int64_t{row0} * channels];
            }
            if (gate_row >= 0 && gate_row < rows) {
                const int64_t rh = int64_t{row0 + gate_row} * a.v_heads + h;
                gate_a = a.a.device_pointer()[rh];
                gate_b = a.b.device_pointer()[rh];
            }
            if (holds)
#pragma unroll
                for (int p = 0; p < kStateRows; ++p)
                    s[p] = *reinterpret_cast<const Part*>(state + p * kDim);
        }
        if (place.row0 == seq.row0 && place.n_rows == seq.n_rows && place.slot == seq.slot) break;
        place = {seq.row0, seq.n_rows, seq.slot};
    }
    if (rows == 0) {
        if constexpr (kSlices > 1) cluster_wait();
        return;
    }

    if (convolves) {
        float* to = t < kDim ? &q[0][t] : t < Shape::kFirstOut ? &k[0][t - kDim] : &v[0][own];
        const int stride = t < Shape::kFirstOut ? kDim : Shape::kColumns;
        for (int i = 0; i < rows; ++i) {
            if (i > 0) now = u[int64_t{row0 + i} * channels];
            to[i * stride] =
                siluf(fmaf(w[3], now, fmaf(w[2], x[2], fmaf(w[1], x[1], w[0] * x[0]))));
            x[0] = x[1], x[1] = x[2], x[2] = now;
        }
    }
    if (gate_row >= 0 && gate_row < rows) {
        decays[gate_row] = expf(-expf(rate) * softplusf(gate_a + bias));
        betas[gate_row] = sigmoidf(gate_b);
    }
    __syncthreads();
    uint32_t* counter = counters + si * a.k_heads + kh;
    uint32_t ticket = 0;
    if (t == Shape::kThreads - 1) ticket = atomicAdd(counter, 1u);
    if constexpr (kSlices > 1) cluster_wait();  // the other slices have started

    for (int i = 0; i < rows; ++i) {
        const int64_t out_at = (int64_t{row0 + i} * a.v_heads + h) * kDim + column;
        const float z = writes ? a.z.device_pointer()[out_at] : 0.0f;
        const float4 q4 = *reinterpret_cast<const float4*>(&q[i][4 * lane]);
        const float4 k4 = *reinterpret_cast<const float4*>(&k[i][4 * lane]);
        const float qq = warp_sum(q4.x * q4.x + q4.y * q4.y + q4.z * q4.z + q4.w * q4.w);
        const float kk = warp_sum(k4.x * k4.x + k4.y * k4.y + k4.z * k4.z + k4.w * k4.w);
        const float qk = warp_sum(q4.x * k4.x + q4.y * k4.y + q4.z * k4.z + q4.w * k4.w);
        const float inv_q = rsqrtf(qq + a.eps) * rsqrtf(static_cast<float>(kDim));
        const float inv_k = rsqrtf(kk + a.eps);
        const float decay = decays[i], beta = betas[i];
        const float* ks = &k[i][row_group % kGroups * kStateRows];
        if (holds) {
            const float* qs = &q[i][row_group * kStateRows];
            Part dk = {}, dq = {};
#pragma unroll
            for (int p = 0; p < kStateRows; ++p)
#pragma unroll
                for (int j = 0; j < Shape::kPer; ++j) {
                    dk.v[j] = fmaf(ks[p], s[p].v[j], dk.v[j]);
                    dq.v[j] = fmaf(qs[p], s[p].v[j], dq.v[j]);
                }
            *reinterpret_cast<Part*>(&sums[0][row_group][first]) = dk;
            *reinterpret_cast<Part*>(&sums[1][row_group][first]) = dq;
        }
        __syncthreads();
        float dot = 0.0f;  // k.S of a column in the first threads, q.S in the writers
        if (t < Shape::kColumns || writes) {
            const float* from = writes ? &sums[1][0][own] : &sums[0][0][t];
#pragma unroll
            for (int j = 0; j < kGroups; ++j)
                dot += from[j * Shape::kColumns];
            if (!writes) errs[t] = beta * (v[i][t] - decay * (dot * inv_k));
        }
        __syncthreads();
        float o = 0.0f;
        if (writes) {
            o = fmaf(qk * inv_q * inv_k, errs[own], decay * (dot * inv_q));
            const float square = warp_sum(o * o);
            if constexpr (kSlices > 1) {
                if (lane < kSlices) send_remote(&squares[i][slice], &arrived[i], lane, square);
            } else {
                if (lane == 0) squares[i][own / 32] = square;
                asm volatile("bar.sync 1, 128;" ::: "memory");  // of these four warps
            }
        }
        if (holds) {
            const Part e = *reinterpret_cast<const Part*>(&errs[first]);
#pragma unroll
            for (int p = 0; p < kStateRows; ++p)
#pragma unroll
                for (int j = 0; j < Shape::kPer; ++j)
                    s[p].v[j] = fmaf(ks[p] * inv_k, e.v[j], decay * s[p].v[j]);
            if (i + 1 == rows)
#pragma unroll
                for (int p = 0; p < kStateRows; ++p)
                    *reinterpret_cast<Part*>(state + p * kDim) = s[p];
        }
        if (writes) {
            if constexpr (kSlices > 1) mbarrier_wait(shared_address(&arrived[i]), 0);
            const float* sq = squares[i];
            const float sum = ((sq[0] + sq[1]) + sq[2]) + sq[3];
            a.out.device_pointer()[out_at] =
                o * rsqrtf(sum / static_cast<float>(kDim) + a.eps) * norm * sigmoidf(z);
        }
    }
    if (t == Shape::kThreads - 1) {
        moves_state = ticket == static_cast<uint32_t>(kSlices * group - 1);
        if (moves_state) *counter = 0;
    }
    __syncthreads();
    if (writes || (t < Shape::kFirstOut && moves_state))
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

bool gdn_step_serves(const GdnArgs& a) {
    return a.k_dim == kDim && a.v_dim == kDim && a.kernel == kTaps + 1;
}

Status gdn_step(const Launch& l, const GdnArgs& a) {
    if (int64_t{a.step.n_seqs} * a.k_heads > kCounters)
        return Error{Code::unsupported, "gdn: too many sequences in a step"};
    const auto run = [&]<int kSlices>(std::integral_constant<int, kSlices>) {
        return start(
            l, "gdn: step", step_kernel<kSlices>,
            dim3(static_cast<unsigned>(a.v_heads * kSlices), static_cast<unsigned>(a.step.n_seqs)),
            StepShape<kSlices>::kThreads, 0, Start::overlapping, a, l.counters);
    };
    // While slices leave no multiprocessor with more than two of them.
    if (l.info->code.most_cluster >= 4 && 4 * a.v_heads * a.step.n_seqs <= 2 * l.info->sms)
        return run(std::integral_constant<int, 4>{});
    return run(std::integral_constant<int, 1>{});
}

}  // namespace terrace::cuda
