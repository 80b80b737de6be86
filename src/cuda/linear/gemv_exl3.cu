// SPDX-License-Identifier: MIT
#include "cuda/linear/gemv_exl3.h"

#include <algorithm>

#include "cuda/exl3/block_sum.cuh"
#include "cuda/linear/plan.h"
#include "cuda/util/common.cuh"

namespace terrace::cuda {
namespace {

constexpr int kThreads = 32 * kGemvWarps;
constexpr size_t kRingBudget = 64 * 1024;     // per block: three blocks share a multiprocessor
constexpr size_t kPartialBudget = 24u << 20;  // partial sums of a launch
constexpr int kPrepareThreads = 512;

struct Job {
    const f16* suh;
    const f16* svh;
    const uint16_t* trellis;
    std::byte* planes;
    RowScale* scales;  // [kDecodeRows]
    void* partial;     // [groups][parts][rows][128] long long or float; null with one part
    float* y;
    int64_t y_stride;
    int32_t in, out, padded_in, n16;
    int32_t groups, parts, first_block, first_counter;
    uint32_t multiplier, addend;
};

struct Jobs {
    Job job[kMaxLinearJobs];
    int32_t n;
    const float* x;  // row 0
    int64_t x_stride;
    int32_t rows;
    int32_t slots;  // of each warp's ring
    uint32_t* counters;
};

// Computes: each row's B planes and scale, for each job (each has its own suh).
// Grid and block: (rows, jobs), 512 threads; a block takes one row.
// Shared memory: the transformed row, padded_in floats.
// Traffic: 4 bytes read and 2 written per input.
// Numerics: exact rounding of the fp32 transform to int16 or f16, one scale per row.
template <Arithmetic A>
__global__ void __launch_bounds__(kPrepareThreads) prepare_kernel(const __grid_constant__ Jobs a) {
    extern __shared__ float xh[];
    __shared__ uint32_t warp_top[kPrepareThreads / 32];
    __shared__ int warp_total[kPrepareThreads / 32];
    const Job& job = a.job[blockIdx.y];
    const int row = static_cast<int>(blockIdx.x), tid = static_cast<int>(threadIdx.x);
    pdl_launch();
    pdl_wait();
    uint32_t top = transform_row(a.x + row * a.x_stride, job.in, job.suh, job.padded_in, xh);
    top = __reduce_max_sync(0xffffffffu, top);
    if (tid % 32 == 0) warp_top[tid / 32] = top;
    __syncthreads();
    top = 0;
    for (uint32_t t : warp_top)
        top = max(top, t);
    const Quantiser q = row_quantiser(A, top);
    int sum = 0;
    std::byte* planes = job.planes + row * (job.padded_in / 16 * static_cast<int>(kPlaneBytes));
    for (int i = tid; i < job.padded_in / 4; i += kPrepareThreads)
        sum += store_planes<A>(xh + 16 * (i / 4), q.inverse, planes, i / 4, i % 4);
    sum = __reduce_add_sync(0xffffffffu, sum);
    if (tid % 32 == 0) warp_total[tid / 32] = sum;
    __syncthreads();
    if (tid == 0) {
        sum = 0;
        for (int s : warp_total)
            sum += s;
        job.scales[row] = {q.scale, sum};
    }
}

// Computes: y = output transform of planes x tiles, for the rows of a group.
// Grid and block: sum over jobs of groups x parts; eight warps. A block takes 128 outputs and one
// part of the inputs; its warps take row tiles in turn (in pairs that halve the outputs when TILES
// is 4, so that sums of 16 tokens fit registers).
// Shared memory: rings, then the warps' sums and the outputs of the last block.
// Traffic: each tile once; 8 bytes per output, part and row through L2 when parts > 1.
// Numerics: integer sums are exact, order is free; f32 sums go warp by warp, then part by part.
template <Arithmetic A, int GROUPS, int TILES>
__global__ void __launch_bounds__(kThreads, GROUPS == 1 ? 3 : 2)
    gemv_kernel(const __grid_constant__ Jobs a) {
    using Sum = typename WarpSum<A>::Type;
    using Total = typename Arith<A>::Total;
    constexpr int kHalves = 8 / TILES, kShares = kGemvWarps / kHalves;
    extern __shared__ __align__(128) std::byte smem[];
    __shared__ uint64_t barriers[kGemvWarps * 16];
    const int tid = static_cast<int>(threadIdx.x), lane = tid & 31, warp = tid >> 5;

    int j = 0;
    while (j + 1 < a.n && static_cast<int>(blockIdx.x) >= a.job[j + 1].first_block)
        ++j;
    const Job& job = a.job[j];
    const int local = static_cast<int>(blockIdx.x) - job.first_block;
    const int group = local % job.groups, part = local / job.groups;
    const int row_tiles = job.padded_in / 16;
    const int first = row_tiles * part / job.parts, last = row_tiles * (part + 1) / job.parts;
    const int share = warp / kHalves, half = warp % kHalves;

    const int n = max(0, (last - first - share + kShares - 1) / kShares);
    const int bytes = TILES * job.n16 * 2;
    const int64_t row_bytes = int64_t{job.groups} * 16 * job.n16;
    WarpRing ring(reinterpret_cast<const std::byte*>(job.trellis) + (first + share) * row_bytes +
                      (group * 8 + half * TILES) * 2 * job.n16,
                  static_cast<uint32_t>(kShares * row_bytes), n, smem + warp * a.slots * bytes,
                  barriers + warp * 16, a.slots, bytes);
    pdl_launch();
    pdl_wait();

    typename Arith<A>::Acc acc[TILES][GROUPS][4] = {};
    constexpr int kWords = Arith<A>::kWords;
    WarpWork<A, GROUPS> work;
    work.ring = &ring;
    work.n = n;
    work.planes = reinterpret_cast<const typename Arith<A>::Word*>(job.planes);
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
        const int token = g * Arith<A>::kTokens + lane / kWords;
        work.from[g] =
            token < a.rows ? (token * row_tiles + first + share) * kWords + lane % kWords : -1;
    }
    work.step = kShares * kWords;
    work.n16 = job.n16;
    work.multiplier = job.multiplier;
    work.addend = job.addend;
    multiply_warp<A, GROUPS, TILES>(work, lane, acc);

    __syncthreads();  // all rings are idle: their memory takes the sums
    auto* sums = reinterpret_cast<Sum*>(smem);
    store_sums<A, GROUPS, TILES>(acc, sums + share * a.rows * kSumPitch, half * TILES, a.rows,
                                 lane);
    __syncthreads();

    auto* out = reinterpret_cast<float*>(smem + warp_sum_bytes(A, kShares, a.rows));
    auto* partial =
        static_cast<Total*>(job.partial) + (int64_t{group} * job.parts + part) * a.rows * 128;
    for (int i = tid; i < a.rows * 128; i += kThreads) {
        const Total total = total_of<A>(sums, kShares, a.rows, i / 128, i % 128);
        if (job.parts > 1)
            partial[i] = total;
        else
            out[i] = sum_value(total, job.scales[i / 128]);
    }
    if (job.parts > 1) {
        if (!last_block(a.counters + job.first_counter + group, static_cast<uint32_t>(job.parts)))
            return;
        const auto* all =
            static_cast<const Total*>(job.partial) + int64_t{group} * job.parts * a.rows * 128;
        for (int i = tid; i < a.rows * 128; i += kThreads) {
            Total total = 0;
            for (int p = 0; p < job.parts; ++p)
                total += all[int64_t{p} * a.rows * 128 + i];
            out[i] = sum_value(total, job.scales[i / 128]);
        }
    }
    __syncthreads();
    const int column = 128 * group + 4 * lane;
    for (int r = warp; r < a.rows; r += kGemvWarps) {
        const float4 v4 = *reinterpret_cast<const float4*>(out + 128 * r + 4 * lane);
        float v[4] = {v4.x, v4.y, v4.z, v4.w};
        warp_fwht128(v, lane);
        float* y = job.y + r * job.y_stride;
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (column + i < job.out) y[column + i] = v[i] * f16_value(job.svh + column + i);
    }
}

template <Arithmetic A, int GROUPS, int TILES>
Status launch_gemv(const Launch& l, const Jobs& jobs, int blocks, size_t ring_bytes) {
    const int shares = kGemvWarps / (8 / TILES);
    const size_t sums = warp_sum_bytes(A, shares, jobs.rows) + size_t{512} * jobs.rows;
    return start(l, "gemv", gemv_kernel<A, GROUPS, TILES>, dim3(blocks), dim3(kThreads),
                 std::max(ring_bytes, sums) + 16, Start::overlapping, jobs);
}

struct Batch {
    Jobs jobs = {};
    int blocks = 0;
    int counters = 0;
    int widest = 0;   // padded input
    int n16 = 0;      // largest
    int deepest = 0;  // row tiles per warp
};

template <Arithmetic A>
Status run_batch(const Launch& l, Batch& b) {
    Jobs& jobs = b.jobs;
    const bool halves = A == Arithmetic::integer && jobs.rows > 8;  // TILES is 4
    const int bytes = (halves ? 4 : 8) * b.n16 * 2;
    jobs.slots = ring_slots(halves ? 2 * b.deepest : b.deepest, bytes, kGemvWarps, kRingBudget);
    const size_t ring_bytes = static_cast<size_t>(jobs.slots) * bytes * kGemvWarps;
    TERRACE_TRY(start(l, "gemv input", prepare_kernel<A>, dim3(jobs.rows, jobs.n),
                      dim3(kPrepareThreads), sizeof(float) * b.widest, Start::overlapping, jobs));
    if constexpr (A == Arithmetic::half) {
        return launch_gemv<A, 2, 8>(l, jobs, b.blocks, ring_bytes);
    } else {
        if (jobs.rows <= 4) return launch_gemv<A, 1, 8>(l, jobs, b.blocks, ring_bytes);
        if (jobs.rows <= 8) return launch_gemv<A, 2, 8>(l, jobs, b.blocks, ring_bytes);
        return launch_gemv<A, 4, 4>(l, jobs, b.blocks, ring_bytes);
    }
}

}  // namespace

size_t gemv_exl3_scratch_bytes(const DeviceInfo&, int32_t widest) {
    const size_t in = static_cast<size_t>(widest + 127) / 128 * 128;
    return kPartialBudget + kMaxLinearJobs * (in / 16 * kPlaneBytes * kDecodeRows + 1024);
}

Status gemv_exl3(const Launch& launch, const LinearArgs& args, std::span<const LinearJob> jobs,
                 int row0, int rows) {
    for (const Arithmetic arithmetic : {Arithmetic::integer, Arithmetic::half}) {
        size_t next = 0;
        while (next < jobs.size()) {
            Batch b;
            b.jobs.x = args.x.device_pointer() + row0 * args.x_stride;
            b.jobs.x_stride = args.x_stride;
            b.jobs.rows = rows;
            b.jobs.counters = launch.counters;
            Carve carve(launch.scratch);
            size_t partials = 0;
            for (; next < jobs.size(); ++next) {
                const LinearWeight& w = *jobs[next].weight;
                const Exl3Tensor& t = w.exl3;
                const bool integer = t.codebook == Codebook::mul1;
                if (integer != (arithmetic == Arithmetic::integer)) continue;
                const GemvPlan plan =
                    plan_gemv(t.in, t.out, kMaxExactInputs / 128 * 128, launch.info->sms);
                const size_t partial =
                    plan.parts == 1 ? 0
                                    : size_t{128} * 8 * rows * static_cast<size_t>(plan.blocks());
                if (b.jobs.n > 0 && partials + partial > kPartialBudget) break;
                partials += partial;
                Job& job = b.jobs.job[b.jobs.n++];
                job.suh = t.suh;
                job.svh = t.svh;
                job.trellis = t.trellis;
                job.planes = carve.take<std::byte>(t.in / 16 * kPlaneBytes * kDecodeRows);
                job.scales = carve.take<RowScale>(kDecodeRows);
                job.partial = partial ? carve.take<std::byte>(partial) : nullptr;
                job.y = jobs[next].y.device_pointer() + row0 * jobs[next].y_stride;
                job.y_stride = jobs[next].y_stride;
                job.in = w.in;
                job.out = w.out;
                job.padded_in = t.in;
                job.n16 = t.n16;
                job.groups = plan.groups;
                job.parts = plan.parts;
                job.first_block = b.blocks;
                job.first_counter = b.counters;
                job.multiplier =
                    t.codebook == Codebook::mcg ? kMcgMultiplier : kThreeInstMultiplier;
                job.addend = t.codebook == Codebook::mcg ? 0 : kThreeInstAddend;
                b.blocks += plan.blocks();
                b.counters += plan.groups;
                b.widest = std::max(b.widest, t.in);
                b.n16 = std::max(b.n16, t.n16);
                b.deepest =
                    std::max(b.deepest, (plan.row_tiles / plan.parts + kGemvWarps) / kGemvWarps);
            }
            if (b.jobs.n == 0) break;
            if (carve.used() > launch.scratch_bytes || b.counters > kCounters)
                return Error{Code::internal, "gemv: scratch memory is too small for this weight"};
            TERRACE_TRY(arithmetic == Arithmetic::integer
                            ? run_batch<Arithmetic::integer>(launch, b)
                            : run_batch<Arithmetic::half>(launch, b));
        }
    }
    return {};
}

}  // namespace terrace::cuda
