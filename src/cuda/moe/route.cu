// Router and its choice on the GPU: logits of each row, the k largest and their softmax weights. Few
// rows take one launch; others a linear and a launch that chooses. Entry point in moe_ops.h.
// SPDX-License-Identifier: MIT
#include <algorithm>

#include "cuda/linear/linear_ops.h"
#include "cuda/moe/moe_ops.h"
#include "cuda/ptx/async.cuh"
#include "cuda/util/common.cuh"
#include "cuda/util/mailbox.cuh"

namespace terrace::cuda {
namespace {

constexpr int kPerLane = 16;          // keys of a lane in registers
constexpr int kMost = 32 * kPerLane;  // experts that a warp holds so
constexpr uint32_t kAll = 0xffffffffu;

// Order of floats as unsigned numbers; 0 is kept for "none", and NaNs are the least of all others,
// so that ids are always valid.
__device__ __forceinline__ uint32_t sort_key(float v) {
    if (isnan(v)) return 1;
    const uint32_t bits = __float_as_uint(v);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float key_value(uint32_t key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// How many of 32 keys in shared memory come before the lane's own there: larger ones, and equal ones
// of lower lanes. No lane's own key is 0 that asks.
__device__ __forceinline__ int rank_of(const uint32_t* keys, int lane) {
    const uint32_t own = keys[lane];
    int rank = 0;
#pragma unroll
    for (int j = 0; j < 32; j += 4) {
        const uint4 four = *reinterpret_cast<const uint4*>(keys + j);
        rank += four.x > own - (j < lane ? 1u : 0u);
        rank += four.y > own - (j + 1 < lane ? 1u : 0u);
        rank += four.z > own - (j + 2 < lane ? 1u : 0u);
        rank += four.w > own - (j + 3 < lane ? 1u : 0u);
    }
    return rank;
}

// A lane's keys, of experts lane, lane + 32, ...: in registers, or in shared memory.
struct OwnKeys {
    uint32_t key[kPerLane];
    __device__ __forceinline__ void take(int id, int lane) {
#pragma unroll
        for (int i = 0; i < kPerLane; ++i)
            if (lane + 32 * i == id) key[i] = 0;
    }
    __device__ __forceinline__ void best(int lane, int, uint32_t& most, int& at) const {
        most = 0;
#pragma unroll
        for (int i = 0; i < kPerLane; ++i)
            if (key[i] > most) most = key[i], at = lane + 32 * i;
    }
    __device__ __forceinline__ float mass(int, int, float top) const {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < kPerLane; ++i)
            if (key[i] != 0) sum += expf(key_value(key[i]) - top);
        return sum;
    }
};
struct SharedKeys {
    uint32_t* key;
    __device__ __forceinline__ void take(int id, int) { key[id] = 0; }
    __device__ __forceinline__ void best(int lane, int experts, uint32_t& most, int& at) const {
        most = 0;
        for (int e = lane; e < experts; e += 32)
            if (key[e] > most) most = key[e], at = e;
    }
    __device__ __forceinline__ float mass(int lane, int experts, float top) const {
        float sum = 0;
        for (int e = lane; e < experts; e += 32)
            sum += expf(key_value(key[e]) - top);
        return sum;
    }
};

struct Choice {
    int32_t* ids;  // [k]
    float* weights;
    int experts, k;
    Renormalise renormalise;
};

// One after another: right for any k and any number of equal keys. A warp.
template <class Keys>
__device__ __noinline__ void choose_in_turn(Keys keys, const Choice& c, int lane) {
    uint32_t best;
    int at = 0;
    keys.best(lane, c.experts, best, at);
    const float top = key_value(__reduce_max_sync(kAll, best));
    float sum = c.renormalise == Renormalise::no ? keys.mass(lane, c.experts, top) : 0.0f;
    for (int first = 0; first < c.k; first += 32) {  // lane j keeps choice first + j
        uint32_t my_key = 0;
        int my_id = 0;
        const int n = min(32, c.k - first);
        for (int j = 0; j < n; ++j) {
            const uint32_t most = __reduce_max_sync(kAll, best);
            const int id = __reduce_min_sync(kAll, best == most ? at : c.experts);
            if (j == lane) my_key = most, my_id = id;
            if (best == most && at == id) {  // the owner looks for its next best
                keys.take(id, lane);
                keys.best(lane, c.experts, best, at);
            }
        }
        if (lane < n) {
            const float e = expf(key_value(my_key) - top);
            if (c.renormalise == Renormalise::yes) sum += e;
            c.ids[first + lane] = my_id;
            c.weights[first + lane] = e;
        }
    }
    sum = warp_sum(sum);
    for (int j = lane; j < c.k; j += 32)
        c.weights[j] /= sum;
}

// Shared memory of a warp that chooses.
struct alignas(16) Lists {
    uint32_t largest[32];  // of each lane
    uint32_t keys[32];     // that reach the bound, in the order of experts
    int ids[32];
};

// The k-th largest of the lanes' largest keys is a bound that at least k keys reach, and hardly more
// do: those are listed and sorted by counting.
__device__ __forceinline__ void choose(const OwnKeys& keys, const Choice& c, int lane,
                                       Lists& lists) {
    uint32_t most = 1;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
        most = max(most, keys.key[i]);
    lists.largest[lane] = most;
    lists.keys[lane] = 0;
    __syncwarp();
    const uint32_t last = __ballot_sync(kAll, rank_of(lists.largest, lane) == min(c.k, 32) - 1);
    const uint32_t bound = __shfl_sync(kAll, most, __ffs(static_cast<int>(last)) - 1);
    uint32_t votes[kPerLane];
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
        votes[i] = __ballot_sync(kAll, keys.key[i] >= bound);
    int n = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
        const int place = n + __popc(votes[i] & ((1u << lane) - 1u));
        if (keys.key[i] >= bound && place < 32)
            lists.keys[place] = keys.key[i], lists.ids[place] = lane + 32 * i;
        n += __popc(votes[i]);
    }
    if (n > 32 || n < c.k) return choose_in_turn(keys, c, lane);
    __syncwarp();
    const uint32_t key = lists.keys[lane];
    const float top = key_value(__reduce_max_sync(kAll, key));
    const int rank = lane < n ? rank_of(lists.keys, lane) : c.k;
    const float e = rank < c.k ? expf(key_value(key) - top) : 0.0f;
    const float sum =
        warp_sum(c.renormalise == Renormalise::yes ? e : keys.mass(lane, c.experts, top));
    if (rank < c.k) {
        c.ids[rank] = lists.ids[lane];
        c.weights[rank] = e / sum;
    }
}

constexpr int kChooseWarps = 4;

// Computes: the k largest logits of a row, ties to the lower expert, and their softmax weights.
// Grid and block: rows / 4; four warps, one row each.
// Shared memory: [4][experts] keys where registers do not hold them.
// Traffic: logits once.
// Numerics: f32; sums lane by lane, then a butterfly.
template <bool kInRegisters>
__global__ void __launch_bounds__(32 * kChooseWarps)
    choose_kernel(const float* logits, int32_t* ids, float* weights, int rows, int experts, int k,
                  Renormalise renormalise) {
    extern __shared__ uint32_t all_keys[];
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
    const int row = static_cast<int>(blockIdx.x) * kChooseWarps + warp;
    pdl_launch();
    pdl_wait();
    if (row >= rows) return;
    logits += int64_t{row} * experts;
    const Choice c{ids + int64_t{row} * k, weights + int64_t{row} * k, experts, k, renormalise};
    if constexpr (kInRegisters) {
        __shared__ Lists lists[kChooseWarps];
        OwnKeys keys;
#pragma unroll
        for (int i = 0; i < kPerLane; ++i)
            keys.key[i] = lane + 32 * i < experts ? sort_key(logits[lane + 32 * i]) : 0;
        choose(keys, c, lane, lists[warp]);
    } else {
        SharedKeys keys{all_keys + warp * experts};
        for (int e = lane; e < experts; e += 32)
            keys.key[e] = sort_key(logits[e]);
        choose_in_turn(keys, c, lane);
    }
}

// ---- few rows: one launch

constexpr int kThreads = 320;  // 8 inputs each: a row of 2560
constexpr int kWarps = kThreads / 32;
constexpr int kOutputs = 4;  // of a block: 128 blocks for 512 experts

struct Args {
    const float* x;          // [rows][hidden]
    const uint16_t* router;  // [experts][hidden]
    int32_t* ids;
    float* weights;
    uint32_t* boxes;  // [rows][experts] keys of logits, 0: not there yet
    int rows, hidden, experts, k;
    Renormalise renormalise;
};

// Sums four values over a warp in a fixed order; lanes 8i to 8i + 7 get the sum of value i.
__device__ __forceinline__ float warp_sums4(const float (&v)[4]) {
    const bool high = threadIdx.x & 16, odd = threadIdx.x & 8;
    const float a = (high ? v[2] : v[0]) + __shfl_xor_sync(kAll, high ? v[0] : v[2], 16);
    const float b = (high ? v[3] : v[1]) + __shfl_xor_sync(kAll, high ? v[1] : v[3], 16);
    float sum = (odd ? b : a) + __shfl_xor_sync(kAll, odd ? a : b, 8);
#pragma unroll
    for (int d = 4; d > 0; d >>= 1)
        sum += __shfl_xor_sync(kAll, sum, d);
    return sum;
}

// Computes: the router's logits and their choice.
// Grid and block: experts / 4, ten warps that share the inputs of four outputs. When its logits are
// written, block r waits for those of row r and chooses; at most 16 of 128 blocks wait, so the others
// always find a place.
// Shared memory: the warps' sums.
// Traffic: weights once, on their way before the rows are there; x in every block, out of the L2
// cache.
// Numerics: f32; a lane's inputs in order, lanes as a butterfly, warps in order.
// Boxes: the block that reads one empties it.
template <DType T, int kGroup>
__global__ void __launch_bounds__(kThreads) route_kernel(const __grid_constant__ Args a) {
    __shared__ float part[kDecodeRows][kWarps][kOutputs];
    __shared__ Lists lists[kWarps];
    const int t = static_cast<int>(threadIdx.x), warp = t / 32, lane = t & 31;
    const int first = static_cast<int>(blockIdx.x) * kOutputs;
    const auto fetch = [&](int at, uint4(&packed)[kOutputs]) {
#pragma unroll
        for (int o = 0; o < kOutputs; ++o)
            packed[o] =
                load_weight(a.router + int64_t{min(first + o, a.experts - 1)} * a.hidden + at);
    };
    const auto widen = [&](const uint4(&packed)[kOutputs], float(&w)[kOutputs][8]) {
#pragma unroll
        for (int o = 0; o < kOutputs; ++o)
            widen8<T>(packed[o], w[o]);
    };
    uint4 packed[kOutputs] = {};
    if (8 * t < a.hidden) fetch(8 * t, packed);
    pdl_launch();
    float own[kOutputs][8];
    widen(packed, own);
    pdl_wait();

    for (int r0 = 0; r0 < a.rows; r0 += kGroup) {
        float sum[kGroup][kOutputs] = {};
        const auto add = [&](const float(&w)[kOutputs][8], int at) {
            float x[kGroup][8];
#pragma unroll
            for (int q = 0; q < kGroup; ++q) {  // rows that are not there are not looked at
                const auto* p = reinterpret_cast<const float4*>(
                    a.x + int64_t{min(r0 + q, a.rows - 1)} * a.hidden + at);
                const float4 lo = p[0], hi = p[1];
                x[q][0] = lo.x, x[q][1] = lo.y, x[q][2] = lo.z, x[q][3] = lo.w;
                x[q][4] = hi.x, x[q][5] = hi.y, x[q][6] = hi.z, x[q][7] = hi.w;
            }
#pragma unroll
            for (int o = 0; o < kOutputs; ++o)
#pragma unroll
                for (int q = 0; q < kGroup; ++q)
#pragma unroll
                    for (int i = 0; i < 8; ++i)
                        sum[q][o] = fmaf(x[q][i], w[o][i], sum[q][o]);
        };
        if (8 * t < a.hidden) add(own, 8 * t);
        for (int at = 8 * (t + kThreads); at < a.hidden; at += 8 * kThreads) {
            float w[kOutputs][8];
            fetch(at, packed);
            widen(packed, w);
            add(w, at);
        }
#pragma unroll
        for (int q = 0; q < kGroup; ++q) {
            const float v = warp_sums4(sum[q]);
            if (lane % 8 == 0 && r0 + q < kDecodeRows) part[r0 + q][warp][lane / 8] = v;
        }
    }
    __syncthreads();
    const int o = t % kOutputs, r = t / kOutputs;  // 16 rows, 64 threads
    if (r < a.rows && first + o < a.experts) {
        float v = part[r][0][o];
#pragma unroll
        for (int w = 1; w < kWarps; ++w)
            v += part[r][w][o];
        post(a.boxes + r * a.experts + first + o, sort_key(v));
    }

    const int row = static_cast<int>(blockIdx.x) + warp * static_cast<int>(gridDim.x);
    for (int mine = row; mine < a.rows; mine += kWarps * static_cast<int>(gridDim.x)) {
        uint32_t* boxes = a.boxes + mine * a.experts;
        OwnKeys keys;
        bool missing;
        do {  // all under way at once, again and again
            missing = false;
#pragma unroll
            for (int i = 0; i < kPerLane; ++i)
                keys.key[i] = peek(boxes + min(lane + 32 * i, a.experts - 1));
#pragma unroll
            for (int i = 0; i < kPerLane; ++i)
                missing |= keys.key[i] == 0;
        } while (__any_sync(kAll, missing));
#pragma unroll
        for (int i = 0; i < kPerLane; ++i)
            if (lane + 32 * i >= a.experts) keys.key[i] = 0;
#pragma unroll
        for (int i = 0; i < kPerLane; ++i)
            if (lane + 32 * i < a.experts) boxes[lane + 32 * i] = 0;
        choose(keys, {a.ids + mine * a.k, a.weights + mine * a.k, a.experts, a.k, a.renormalise},
               lane, lists[warp]);
        __syncwarp();
    }
}

bool serves(const RouteArgs& a) {
    const LinearWeight& w = *a.router;
    return w.kind == LinearKind::plain &&
           (w.plain.dtype == DType::f16 || w.plain.dtype == DType::bf16) && w.in % 8 == 0 &&
           a.experts <= kMost && reinterpret_cast<uintptr_t>(a.x.device_pointer()) % 16 == 0;
}

Status few(const Launch& l, const RouteArgs& a, int row0, int rows) {
    const LinearWeight& w = *a.router;
    Args d{};
    d.x = a.x.device_pointer() + int64_t{row0} * w.in;
    d.router = static_cast<const uint16_t*>(w.plain.data);
    d.ids = a.ids.device_pointer() + int64_t{row0} * a.k;
    d.weights = a.weights.device_pointer() + int64_t{row0} * a.k;
    d.boxes = l.counters;
    d.rows = rows;
    d.hidden = w.in;
    d.experts = a.experts;
    d.k = a.k;
    d.renormalise = a.renormalise;
    const bool f16 = w.plain.dtype == DType::f16;
    const auto kernel = rows == 1 ? f16 ? route_kernel<DType::f16, 1> : route_kernel<DType::bf16, 1>
                        : f16 ? route_kernel<DType::f16, 4>
                                  : route_kernel<DType::bf16, 4>;
    return start(l, "route", kernel, static_cast<unsigned>((a.experts + kOutputs - 1) / kOutputs),
                 kThreads, 0, Start::overlapping, d);
}

Status many(const Launch& l, const RouteArgs& a, const RowRun& run) {
    const auto first = static_cast<size_t>(run.row0), n = static_cast<size_t>(run.n_rows);
    const auto in = static_cast<size_t>(a.router->in), experts = static_cast<size_t>(a.experts);
    const DevSpan<float> logits = a.logits.sub(first * experts, n * experts);
    const RowRun whole{0, run.n_rows, run.kind};
    LinearArgs linears;
    linears.x = a.x.sub(first * in, n * in);
    linears.x_stride = a.router->in;
    linears.rows = run.n_rows;
    linears.runs = {&whole, 1};
    linears.n_jobs = 1;
    linears.jobs[0] = {a.router, logits, a.experts};
    TERRACE_TRY(linear(l, linears));
    const bool registers = a.experts <= kMost;
    return start(l, "route: choose", registers ? choose_kernel<true> : choose_kernel<false>,
                 static_cast<unsigned>((run.n_rows + kChooseWarps - 1) / kChooseWarps),
                 32 * kChooseWarps, registers ? 0 : sizeof(uint32_t) * kChooseWarps * experts,
                 Start::overlapping, logits.device_pointer(),
                 a.ids.device_pointer() + run.row0 * int64_t{a.k},
                 a.weights.device_pointer() + run.row0 * int64_t{a.k}, run.n_rows, a.experts, a.k,
                 a.renormalise);
}

}  // namespace

Status route(const Launch& l, const RouteArgs& a) {
    const RowRun whole{0, a.rows, a.rows <= kDecodeRows ? RowKind::decode : RowKind::prefill};
    const RowRun* runs = a.runs.n > 0 ? a.runs.data : &whole;
    for (int i = 0; i < std::max(a.runs.n, 1); ++i) {
        const RowRun& run = runs[i];
        if (run.n_rows == 0) continue;
        if (run.kind == RowKind::prefill || !serves(a)) {
            TERRACE_TRY(many(l, a, run));
            continue;
        }
        for (int r = 0; r < run.n_rows; r += kDecodeRows)
            TERRACE_TRY(few(l, a, run.row0 + r, std::min(kDecodeRows, run.n_rows - r)));
    }
    return {};
}

}  // namespace terrace::cuda
