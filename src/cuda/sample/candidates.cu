// The k largest of a row without sorting it. First launch: the largest logit of each of 1024 parts
// of the row. The k-th largest of these is a bound that at least k logits reach, and few more do,
// unless the largest lie side by side. Second launch: whatever reaches the bound is listed, the
// last block sorts the list. A list that is too long is replaced by a search for the k-th largest
// key, bit by bit; slow, and right for any row.
// SPDX-License-Identifier: MIT
#include "cuda/sample/candidates.h"

#include "cuda/util/common.cuh"

namespace terrace::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kBlocks = 128;              // of a row
constexpr int kParts = kBlocks * kWarps;  // a warp's logits
constexpr int kMostListed = 2048;
static_assert(kParts >= 4 * kMaxCandidates && kParts == 4 * kThreads);

struct Scratch {
    float* largest = nullptr;    // [R][kParts], -inf without a candidate
    float2* mass = nullptr;      // [R][kBlocks]: largest logit and the sum relative to it
    uint64_t* listed = nullptr;  // [R][kMostListed] keys
    size_t used = 0;
};
Scratch take(std::byte* base, int rows) {
    const auto r = static_cast<size_t>(rows);
    Carve carve(base);
    Scratch s;
    s.largest = carve.take<float>(r * kParts);
    s.mass = carve.take<float2>(r * kBlocks);
    s.listed = carve.take<uint64_t>(r * kMostListed);
    s.used = carve.used();
    return s;
}

// Order of floats as that of unsigned numbers; -0 as +0. Not for NaN.
__device__ __forceinline__ uint32_t ordered(float v) {
    const uint32_t b = __float_as_uint(v + 0.0f);
    return b & 0x80000000u ? ~b : b | 0x80000000u;
}
// Larger logits first, then lower ids; 0 is no candidate.
__device__ __forceinline__ uint64_t key_of(float v, int id) {
    return v > -INFINITY ? static_cast<uint64_t>(ordered(v)) << 32 | ~static_cast<uint32_t>(id) : 0;
}

// Calls f with the ids and values of 8 logits of the thread at a time, all loaded before the first
// is looked at; -inf beyond the row. Pieces of a row are dealt out to the blocks, so that
// neighbours, often alike, are in different parts.
constexpr int kAtOnce = 8;
template <class F>
__device__ __forceinline__ void for_logits(const SampleCandidatesArgs& a, int row, F&& f) {
    constexpr int kStep = kBlocks * kThreads;
    const float* logits = a.logits.device_pointer() + int64_t{row} * a.vocab;
    for (int first = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
         first < a.vocab; first += kAtOnce * kStep) {
        float v[kAtOnce];
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j)
            v[j] = first + j * kStep < a.vocab ? logits[first + j * kStep] : -INFINITY;
        f(v, first, kStep);
    }
}

// Grid: (128, rows). Traffic: the logits. A thread's mass is kept relative to its own largest so
// far.
__global__ void __launch_bounds__(kThreads) scan_kernel(SampleCandidatesArgs a, Scratch s) {
    __shared__ float part[32];
    pdl_launch();
    pdl_wait();
    const int row = static_cast<int>(blockIdx.y), block = static_cast<int>(blockIdx.x);
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const float scale = a.inv_temperature.empty() ? 1.0f : a.inv_temperature.device_pointer()[row];
    float own = -INFINITY, sum = 0.0f;
    for_logits(a, row, [&](const float(&v)[kAtOnce], int, int) {
        float most = own;
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j)
            most = fmaxf(most, v[j]);  // NaN drops out
        if (own > -INFINITY) sum *= __expf((own - most) * scale);
        own = most;
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j)
            if (v[j] > -INFINITY) sum += __expf((v[j] - own) * scale);
    });
    float largest = warp_max(own);
    if (threadIdx.x % 32 == 0) {
        s.largest[row * kParts + block * kWarps + warp] = largest;
        part[warp] = largest;
    }
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kWarps; ++w)
        largest = fmaxf(largest, part[w]);
    sum = block_sum(own > -INFINITY ? sum * __expf((own - largest) * scale) : 0.0f, part);
    if (threadIdx.x == 0) s.mass[row * kBlocks + block] = make_float2(largest, sum);
}

// One step of a search for the k-th largest key, 8 bits at a time: of the keys that share `prefix`
// above `shift` + 8, counted in `histogram` by their next 8 bits, the digit where the k-th lies; k
// becomes its rank among the keys of that digit. All threads take part and get the same.
__device__ __forceinline__ uint32_t pick_digit(uint32_t* histogram, int& k) {
    __shared__ uint32_t totals[kWarps], digit, above;
    const int t = static_cast<int>(threadIdx.x), lane = t & 31, warp = t / 32;
    const int bin = kThreads - 1 - t;  // descending
    const uint32_t own = histogram[bin];
    uint32_t upto = own;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const uint32_t other = __shfl_up_sync(0xffffffffu, upto, d);
        if (lane >= d) upto += other;
    }
    if (lane == 31) totals[warp] = upto;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kWarps; ++w)
        if (w < warp) upto += totals[w];
    if (upto >= static_cast<uint32_t>(k) && upto - own < static_cast<uint32_t>(k)) {
        digit = static_cast<uint32_t>(bin);
        above = upto - own;
    }
    histogram[bin] = 0;
    __syncthreads();
    k -= static_cast<int>(above);
    return digit;
}

// The k-th largest of the row's part maxima, rounded down to its upper 18 bits, nine of them its
// mantissa's: hardly more logits reach that, for half the steps. A bit is set if k keys are still not below.
__device__ __forceinline__ uint32_t bound_of(const float* largest, int k) {
    __shared__ __align__(16) int counts[2][kWarps];
    const int t = static_cast<int>(threadIdx.x);
    uint32_t key[kParts / kThreads];
#pragma unroll
    for (int i = 0; i < kParts / kThreads; ++i)
        key[i] = ordered(largest[i * kThreads + t]);
    uint32_t bound = 0;
    for (int bit = 31; bit >= 14; --bit) {
        const uint32_t raised = bound | 1u << bit;
        int n = 0;
#pragma unroll
        for (int i = 0; i < kParts / kThreads; ++i)
            n += __popc(__ballot_sync(0xffffffffu, key[i] >= raised));
        if (t % 32 == 0) counts[bit & 1][t / 32] = n;
        __syncthreads();
        n = 0;
#pragma unroll
        for (int w = 0; w < kWarps; ++w)
            n += counts[bit & 1][w];
        if (n >= k) bound = raised;
    }
    return bound;
}

// The k largest keys of a row into `keys`, unordered; returns how many there are. One block.
__device__ __noinline__ int search_row(const SampleCandidatesArgs& a, int row, uint64_t* keys,
                                       uint32_t* histogram) {
    __shared__ int n;
    const int t = static_cast<int>(threadIdx.x);
    const float* logits = a.logits.device_pointer() + int64_t{row} * a.vocab;
    if (t == 0) n = 0;
    histogram[t] = 0;
    __syncthreads();
    int valid = 0;
    for (int i = t; i < a.vocab; i += kThreads)
        valid += logits[i] > -INFINITY ? 1 : 0;
    atomicAdd(&n, valid);
    __syncthreads();
    const int k = min(a.k, n);
    uint64_t bound = 0;
    int rank = k;
    for (int shift = 56; shift >= 0 && k > 0; shift -= 8) {
        for (int i = t; i < a.vocab; i += kThreads) {
            const uint64_t key = key_of(logits[i], i);
            if (key != 0 && (shift == 56 || (key ^ bound) >> (shift + 8) == 0))
                atomicAdd(&histogram[key >> shift & 255], 1u);
        }
        __syncthreads();
        bound |= static_cast<uint64_t>(pick_digit(histogram, rank)) << shift;
    }
    __syncthreads();
    if (t == 0) n = 0;
    __syncthreads();
    for (int i = t; k > 0 && i < a.vocab; i += kThreads) {
        const uint64_t key = key_of(logits[i], i);
        if (key >= bound) keys[atomicAdd(&n, 1)] = key;
    }
    __syncthreads();
    return k;
}

// Sorts `size` keys, a power of two, descending. One block. Pairs up to 32 apart are within the 64 keys
// that a warp works on, so that warps go on alone between longer distances.
__device__ __forceinline__ void sort_keys(uint64_t* keys, int size) {
    bool alone = false;
    for (int run = 2; run <= size; run *= 2)
        for (int d = run / 2; d > 0; d /= 2) {
            if (alone && d <= 32)
                __syncwarp();
            else
                __syncthreads();
            alone = d <= 32;
            for (int p = static_cast<int>(threadIdx.x); p < size / 2; p += kThreads) {
                const int i = 2 * p - (p & (d - 1)), j = i + d;
                const uint64_t x = keys[i], y = keys[j];
                if ((x < y) == ((i & run) == 0)) keys[i] = y, keys[j] = x;
            }
        }
    __syncthreads();
}

// Lists what reaches the bound; the last block of a row sorts the list and adds up the mass.
// Grid: (128, rows). Counters: two per row, how many are listed and how many blocks are done.
// Traffic: the logits, out of the L2 cache.
__global__ void __launch_bounds__(kThreads)
    pick_kernel(SampleCandidatesArgs a, Scratch s, uint32_t* counters) {
    __shared__ uint64_t keys[kMostListed];
    __shared__ uint32_t histogram[kThreads], place;
    __shared__ float part[32];
    __shared__ int n_own;
    pdl_launch();
    pdl_wait();
    const int t = static_cast<int>(threadIdx.x), row = static_cast<int>(blockIdx.y);
    uint32_t* listed = counters + 2 * row;
    const uint32_t bound = bound_of(s.largest + row * kParts, a.k);
    uint64_t* list = s.listed + int64_t{row} * kMostListed;
    if (t == 0) n_own = 0;
    __syncthreads();
    for_logits(a, row, [&](const float(&v)[kAtOnce], int first, int step) {
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j)
            if (v[j] > -INFINITY && ordered(v[j]) >= bound) {
                const int at = atomicAdd(&n_own, 1);
                if (at < kMostListed) keys[at] = key_of(v[j], first + j * step);
            }
    });
    __syncthreads();
    if (n_own > 0) {  // the same for all threads
        if (t == 0) place = atomicAdd(listed, static_cast<uint32_t>(n_own));
        __syncthreads();
        for (int i = t; i < n_own && place + static_cast<uint32_t>(i) < kMostListed; i += kThreads)
            list[place + static_cast<uint32_t>(i)] = keys[i];
    }
    if (!last_block(counters + 2 * row + 1, kBlocks)) return;

    int n = static_cast<int>(__ldcg(listed));
    if (n > kMostListed)
        n = search_row(a, row, keys, histogram);
    else
        for (int i = t; i < n; i += kThreads)
            keys[i] = __ldcg(list + i);
    int size = 2;
    while (size < n)
        size *= 2;
    for (int i = n + t; i < size; i += kThreads)
        keys[i] = 0;
    sort_keys(keys, size);
    for (int i = t; i < a.k; i += kThreads) {
        const bool there = i < n;
        const int id = there ? static_cast<int>(~static_cast<uint32_t>(keys[i])) : -1;
        a.ids.device_pointer()[row * a.k + i] = id;
        a.values.device_pointer()[row * a.k + i] =
            there ? a.logits.device_pointer()[int64_t{row} * a.vocab + id] : -INFINITY;
    }
    const float scale = a.inv_temperature.empty() ? 1.0f : a.inv_temperature.device_pointer()[row];
    const float2 mass = t < kBlocks ? s.mass[row * kBlocks + t] : make_float2(-INFINITY, 0.0f);
    const float block_largest = warp_max(mass.x);
    __syncthreads();
    if (t % 32 == 0) part[t / 32] = block_largest;
    __syncthreads();
    float largest = part[0];
#pragma unroll
    for (int w = 1; w < kWarps; ++w)
        largest = fmaxf(largest, part[w]);
    const float sum =
        block_sum(mass.x > -INFINITY ? mass.y * expf((mass.x - largest) * scale) : 0.0f, part);
    if (t == 0) {
        a.log_sum.device_pointer()[row] = logf(sum);
        *listed = 0;
    }
}

}  // namespace

size_t sample_scratch_bytes(const OpsLimits& l) {
    return take(nullptr, l.head_rows).used;
}

Status sample_candidates(const Launch& l, const SampleCandidatesArgs& a) {
    if (a.rows == 0) return {};
    if (a.k < 1 || a.k > kMaxCandidates || 2 * a.rows > kCounters)
        return Error{Code::unsupported, "sample_candidates: too many candidates or rows"};
    const Scratch s = take(l.scratch, a.rows);
    const dim3 grid(kBlocks, static_cast<unsigned>(a.rows));
    TERRACE_TRY(start(l, "sample_candidates: scan", scan_kernel, grid, kThreads, 0,
                      Start::overlapping, a, s));
    return start(l, "sample_candidates: pick", pick_kernel, grid, kThreads, 0, Start::overlapping,
                 a, s, l.counters);
}

}  // namespace terrace::cuda
