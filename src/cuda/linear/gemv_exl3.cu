// SPDX-License-Identifier: MIT
#include "cuda/linear/gemv_exl3.h"

#include <algorithm>

#include "cuda/exl3/block_sum.cuh"
#include "cuda/exl3/cluster.cuh"
#include "cuda/linear/plan.h"
#include "cuda/util/common.cuh"

namespace terrace::cuda {
namespace {

constexpr int kThreads = 32 * kGemvWarps;
constexpr size_t kRingBudget = 64 * 1024;  // per block: three blocks share a multiprocessor
constexpr int kPrepareThreads = 768;

struct Job {
    const f16* suh;
    const f16* svh;
    const uint16_t* trellis;
    std::byte* planes;
    RowScale* scales;  // [kDecodeRows]
    void* partial;     // [groups][parts][rows][128] long long or float; for Meet::memory
    float* y;
    int64_t y_stride;
    int32_t in, out, padded_in, n16;
    int32_t groups, first_block, first_counter;
    uint32_t multiplier, addend;
};

struct Jobs {
    Job job[kMaxLinearJobs];
    int32_t n;
    const float* x;  // row 0
    int64_t x_stride;
    int32_t rows;
    int32_t slots;  // of each warp's ring
    int32_t parts;  // of the inputs, a block each
    Meet meet;      // how the parts of a group meet
    uint32_t* counters;
    int32_t gather_at;  // where the sums of a block's rows come together
};

// Computes: each row's B planes and scale, for each job (each has its own suh).
// Grid and block: (rows, jobs), 768 threads; a block takes one row.
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
// Grid and block: sum over jobs of groups x parts, the parts of a group being a cluster for
// Meet::cluster; eight warps. A block takes 128 outputs and one part of the inputs; its warps take row tiles in turn (in pairs that
// halve the outputs when TILES is 4, so that sums of 16 tokens fit registers). The blocks of a
// cluster share its rows' output transforms.
// Shared memory: rings, later the warps' sums; the parts' sums.
// Traffic: each tile once.
// Numerics: integer sums are exact, order is free; f32 sums go warp by warp, then part by part.
template <Arithmetic A, int GROUPS, int TILES>
__global__ void __launch_bounds__(kThreads, GROUPS == 1 ? 3 : 2)
    gemv_kernel(const __grid_constant__ Jobs a) {
    using Sum = typename WarpSum<A>::Type;
    using Total = typename Arith<A>::Total;
    constexpr int kHalves = 8 / TILES, kShares = kGemvWarps / kHalves;
    extern __shared__ __align__(128) std::byte smem[];
    __shared__ uint64_t barriers[kGemvWarps * 16];
    const int tid = static_cast<int>(threadIdx.x), lane = tid & 31, warp = uniform_warp();

    cluster_arrive();
    int j = 0;
    while (j + 1 < a.n && static_cast<int>(blockIdx.x) >= a.job[j + 1].first_block)
        ++j;
    const Job& job = a.job[j];
    const int local = static_cast<int>(blockIdx.x) - job.first_block;
    const int group = local / a.parts, part = local % a.parts;
    const int row_tiles = job.padded_in / 16;
    const int first = row_tiles * part / a.parts, last = row_tiles * (part + 1) / a.parts;
    const int share = warp / kHalves, half = warp % kHalves;

    const int n = max(0, (last - first - share + kShares - 1) / kShares);
    const int bytes = TILES * job.n16 * 2;
    const int64_t row_bytes = int64_t{job.groups} * 16 * job.n16;
    prefetch_l2(job.svh + 128 * group, 256);
    WarpRing ring(reinterpret_cast<const std::byte*>(job.trellis) + (first + share) * row_bytes +
                      (group * 8 + half * TILES) * 2 * job.n16,
                  static_cast<uint32_t>(kShares * row_bytes), n,
                  smem + warp * a.slots * kSlotPieces * bytes, barriers + warp * 16, a.slots,
                  bytes);
    pdl_launch();
    pdl_wait();
    ring.fill();

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

    const int column = 128 * group + 4 * lane;
    const auto output = [&](Total total, int r) {
        const RowScale scale = job.scales[r];
        return sum_value(finished_sum(total, scale), scale.scale);
    };
    const auto finish = [&](float(&v)[4], int r) {
        warp_fwht128(v, lane);
        float* y = job.y + r * job.y_stride;
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (column + i < job.out) y[column + i] = v[i] * f16_value(job.svh + column + i);
    };

    if (a.meet == Meet::cluster) {
        // Row r goes to block r % parts of the cluster, as its row r / parts.
        auto* gather = reinterpret_cast<Total*>(smem + a.gather_at);  // [parts][most][128]
        const int most = (a.rows + a.parts - 1) / a.parts;
        cluster_wait();
        for (int i = tid; i < a.rows * 128; i += kThreads) {
            const int r = i / 128;
            const Total total = total_of<A>(sums, kShares, a.rows, r, i % 128);
            store_remote(gather + (part * most + r / a.parts) * 128 + i % 128, r % a.parts, total);
        }
        cluster_arrive();
        cluster_wait();
        for (int l = warp; l * a.parts + part < a.rows; l += kGemvWarps) {
            float v[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                Total total = 0;
                for (int p = 0; p < a.parts; ++p)
                    total += gather[(p * most + l) * 128 + 4 * lane + i];
                v[i] = output(total, l * a.parts + part);
            }
            finish(v, l * a.parts + part);
        }
        return;
    }

    auto* out = reinterpret_cast<float*>(smem + a.gather_at);  // [rows][128]
    auto* all = static_cast<Total*>(job.partial) + int64_t{group} * a.parts * a.rows * 128;
    for (int i = tid; i < a.rows * 128; i += kThreads) {
        const Total total = total_of<A>(sums, kShares, a.rows, i / 128, i % 128);
        if (a.parts > 1)
            all[int64_t{part} * a.rows * 128 + i] = total;
        else
            out[i] = output(total, i / 128);
    }
    if (a.parts > 1) {
        if (!last_block(a.counters + job.first_counter + group, static_cast<uint32_t>(a.parts)))
            return;
        for (int i = tid; i < a.rows * 128; i += kThreads) {
            Total total = 0;
#pragma unroll 8
            for (int p = 0; p < a.parts; ++p)
                total += all[int64_t{p} * a.rows * 128 + i];
            out[i] = output(total, i / 128);
        }
    }
    __syncthreads();
    for (int r = warp; r < a.rows; r += kGemvWarps) {
        const float4 four = *reinterpret_cast<const float4*>(out + 128 * r + 4 * lane);
        float v[4] = {four.x, four.y, four.z, four.w};
        finish(v, r);
    }
}

struct Batch {
    Jobs jobs = {};
    int blocks = 0;
    int widest = 0;  // padded input
    int n16 = 0;     // largest
    int part = 0;    // row tiles of the largest part
};

template <Arithmetic A, int GROUPS, int TILES>
Status launch_gemv(const Launch& l, Batch& b) {
    constexpr int kShares = kGemvWarps / (8 / TILES);
    Jobs& jobs = b.jobs;
    const int bytes = TILES * b.n16 * 2 * kSlotPieces;
    const int deepest = (b.part + kShares * kSlotPieces - 1) / (kShares * kSlotPieces);
    jobs.slots = ring_slots(deepest, bytes, kGemvWarps, kRingBudget);
    const size_t ring = static_cast<size_t>(jobs.slots) * bytes * kGemvWarps + 16;
    const size_t sums = warp_sum_bytes(A, kShares, jobs.rows);
    size_t smem = (std::max(ring, sums) + 127) / 128 * 128;
    jobs.gather_at = static_cast<int32_t>(smem);
    smem += size_t{1024} * jobs.parts * ((jobs.rows + jobs.parts - 1) / jobs.parts);
    return start_clusters(l, "gemv", gemv_kernel<A, GROUPS, TILES>, dim3(b.blocks), dim3(kThreads),
                          jobs.meet == Meet::cluster ? jobs.parts : 1, smem, Start::overlapping,
                          jobs);
}

template <Arithmetic A>
Status run_batch(const Launch& l, Batch& b) {
    const int rows = b.jobs.rows;
    TERRACE_TRY(start(l, "gemv input", prepare_kernel<A>, dim3(rows, b.jobs.n),
                      dim3(kPrepareThreads), sizeof(float) * b.widest, Start::overlapping, b.jobs));
    if constexpr (A == Arithmetic::half) {
        return launch_gemv<A, 2, 8>(l, b);
    } else {
        if (rows <= 4) return launch_gemv<A, 1, 8>(l, b);
        if (rows <= 8) return launch_gemv<A, 2, 8>(l, b);
        return launch_gemv<A, 4, 4>(l, b);
    }
}

}  // namespace

size_t gemv_exl3_scratch_bytes(const DeviceInfo& info, int32_t widest) {
    const size_t in = static_cast<size_t>(widest + 127) / 128 * 128;
    return size_t{8 * 128 * kDecodeRows} * kMostPartBlocks * static_cast<size_t>(info.sms) +
           kMaxLinearJobs * (in / 16 * kPlaneBytes * kDecodeRows + 2048);
}

Status gemv_exl3(const Launch& launch, const LinearArgs& args, std::span<const LinearJob> jobs,
                 int row0, int rows) {
    for (const Arithmetic arithmetic : {Arithmetic::integer, Arithmetic::half}) {
        Batch b;
        b.jobs.x = args.x.device_pointer() + row0 * args.x_stride;
        b.jobs.x_stride = args.x_stride;
        b.jobs.rows = rows;
        Carve carve(launch.scratch);
        int groups = 0;
        for (const LinearJob& from : jobs) {
            const LinearWeight& w = *from.weight;
            const Exl3Tensor& t = w.exl3;
            if ((t.codebook == Codebook::mul1) != (arithmetic == Arithmetic::integer)) continue;
            Job& job = b.jobs.job[b.jobs.n++];
            job.suh = t.suh;
            job.svh = t.svh;
            job.trellis = t.trellis;
            job.planes = carve.take<std::byte>(t.in / 16 * kPlaneBytes * kDecodeRows);
            job.scales = carve.take<RowScale>(kDecodeRows);
            job.y = from.y.device_pointer() + row0 * from.y_stride;
            job.y_stride = from.y_stride;
            job.in = w.in;
            job.out = w.out;
            job.padded_in = t.in;
            job.n16 = t.n16;
            job.groups = t.out / 128;
            job.multiplier = t.codebook == Codebook::mcg ? kMcgMultiplier : kThreeInstMultiplier;
            job.addend = t.codebook == Codebook::mcg ? 0 : kThreeInstAddend;
            groups += job.groups;
            b.widest = std::max(b.widest, t.in);
            b.n16 = std::max(b.n16, t.n16);
        }
        if (b.jobs.n == 0) continue;
        // Float sums must not depend on what else is in the launch, so their parts follow from the
        // number of inputs alone; all jobs have the same.
        const GemvPlan plan =
            plan_gemv(b.widest, groups, kMaxExactInputs, launch.info->sms,
                      arithmetic == Arithmetic::half ? Cut::by_inputs : Cut::by_device);
        if (plan.parts == 0)
            return Error{Code::internal, "gemv: too many inputs for this weight's product"};
        b.jobs.parts = plan.parts;
        b.jobs.meet = plan.meet;
        b.jobs.counters = launch.counters;
        b.part = (b.widest / 16 + plan.parts - 1) / plan.parts;
        int counters = 0;
        for (int j = 0; j < b.jobs.n; ++j) {
            Job& job = b.jobs.job[j];
            job.first_block = b.blocks;
            job.first_counter = counters;
            b.blocks += job.groups * plan.parts;
            counters += job.groups;
            if (plan.parts > 1 && plan.meet == Meet::memory)
                job.partial =
                    carve.take<std::byte>(size_t{8 * 128} * job.groups * plan.parts * rows);
        }
        if (carve.used() > launch.scratch_bytes || (plan.parts > 1 && counters > kCounters))
            return Error{Code::internal, "gemv: scratch memory is too small for this weight"};
        TERRACE_TRY(arithmetic == Arithmetic::integer ? run_batch<Arithmetic::integer>(launch, b)
                                                      : run_batch<Arithmetic::half>(launch, b));
    }
    return {};
}

}  // namespace terrace::cuda
