// SPDX-License-Identifier: MIT
#include "cuda/linear/gemv_exl3.h"

#include <algorithm>

#include "cuda/exl3/block_sum.cuh"
#include "cuda/linear/plan.h"
#include "cuda/ptx/cluster.cuh"
#include "cuda/util/common.cuh"

namespace terrace::cuda {
namespace {

constexpr int kThreads = 32 * kGemvWarps;
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
    int32_t chunk;  // blocks of 128 inputs that are transformed together
    int32_t slots;  // of each warp's ring
    int32_t parts;  // of the inputs, a block each
    Meet meet;      // how the parts of a group meet
    uint32_t* counters;
    int32_t gather_at;  // where the sums of a block's rows come together
};

// Computes: each row's B planes and scale, for each job (each has its own suh).
// Grid and block: (rows, jobs), 768 threads; a block takes one row.
// Shared memory: the transformed row, or a.chunk blocks of 128 inputs of it at a time.
// Traffic: 4 bytes read, once per chunk, and 2 written per input.
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
    constexpr int kWarps = kPrepareThreads / 32;
    const int blocks = job.padded_in / 128;
    InputScales<6> scales;
    scales.hold(job.suh, blocks, tid / 32, kWarps, tid & 31);
    std::byte* planes = job.planes + row * (job.padded_in / 16 * static_cast<int>(kPlaneBytes));
    Quantiser q;
    int sum = 0;
    for (int first = 0; first < blocks; first += a.chunk) {
        const int last = min(first + a.chunk, blocks);
        uint32_t top = __reduce_max_sync(
            0xffffffffu, transform_blocks(a.x + row * a.x_stride, job.in, job.suh, scales,
                                          job.padded_in, tid / 32, kWarps, first, last, xh, 128));
        if (tid % 32 == 0) warp_top[tid / 32] = top;
        __syncthreads();
        top = 0;
        for (uint32_t t : warp_top)
            top = max(top, t);
        q = row_quantiser(A, top);
        for (int i = 32 * first + tid; i < 32 * last; i += kPrepareThreads)
            sum += store_planes<A>(xh + 16 * (i / 4 - 8 * first), q.inverse, planes, i / 4, i % 4);
        if (last < blocks) __syncthreads();  // xh is written again
    }
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
    GemvRoom room;
};

template <Arithmetic A, int GROUPS, int TILES>
Status launch_gemv(const Launch& l, Batch& b) {
    constexpr int kShares = kGemvWarps / (8 / TILES);
    Jobs& jobs = b.jobs;
    const int bytes = TILES * b.n16 * 2 * kSlotPieces;
    const int deepest = (b.part + kShares * kSlotPieces - 1) / (kShares * kSlotPieces);
    const GemvShared shared =
        gemv_shared(b.room, deepest, bytes,
                    warp_sum_bytes(sizeof(typename WarpSum<A>::Type), kShares, jobs.rows),
                    jobs.parts, jobs.rows);
    jobs.slots = shared.slots;
    jobs.gather_at = static_cast<int32_t>(shared.gather_at);
    return start_clusters(l, "gemv", gemv_kernel<A, GROUPS, TILES>, dim3(b.blocks), dim3(kThreads),
                          jobs.meet == Meet::cluster ? jobs.parts : 1, shared.bytes,
                          Start::overlapping, jobs);
}

template <Arithmetic A>
Status run_batch(const Launch& l, Batch& b) {
    const int rows = b.jobs.rows;
    TERRACE_TRY(start(l, "gemv input", prepare_kernel<A>, dim3(rows, b.jobs.n),
                      dim3(kPrepareThreads), size_t{512} * b.jobs.chunk, Start::overlapping,
                      b.jobs));
    if constexpr (A == Arithmetic::half) {
        return launch_gemv<A, 2, 8>(l, b);
    } else {
        if (rows <= 4) return launch_gemv<A, 1, 8>(l, b);
        if (rows <= 8) return launch_gemv<A, 2, 8>(l, b);
        return launch_gemv<A, 4, 4>(l, b);
    }
}

// The first rows of [row0, row0 + rows) that memory for the parts' sums allows, times the weights of
// one arithmetic. Returns their number.
template <Arithmetic A>
Result<int> run_rows(const Launch& launch, const LinearArgs& args, std::span<const LinearJob> jobs,
                     int row0, int rows) {
    Batch b;
    b.jobs.x = args.x.device_pointer() + row0 * args.x_stride;
    b.jobs.x_stride = args.x_stride;
    b.room = gemv_room(launch.info->smem_per_sm);
    Carve carve(launch.scratch);
    int groups = 0;
    for (const LinearJob& from : jobs) {
        const LinearWeight& w = *from.weight;
        const Exl3Tensor& t = w.exl3;
        if ((t.codebook == Codebook::mul1) != (A == Arithmetic::integer)) continue;
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
    if (b.jobs.n == 0) return rows;
    // Float sums must not depend on what else is in the launch, so their parts follow from the
    // number of inputs alone; all jobs have the same.
    const GemvPlan plan = plan_gemv(b.widest, groups, kMaxExactInputs, launch.info->sms,
                                    launch.info->code.most_cluster,
                                    A == Arithmetic::half ? Cut::by_inputs : Cut::by_device);
    if (plan.parts == 0)
        return Error{Code::internal, "gemv: too many inputs for this weight's product"};
    const size_t left = launch.scratch_bytes - std::min(carve.used(), launch.scratch_bytes);
    rows = std::min(rows, rows_per_launch(plan, groups, left));
    if (rows == 0 || carve.used() > launch.scratch_bytes || (plan.parts > 1 && groups > kCounters))
        return Error{Code::internal, "gemv: scratch memory is too small for this weight"};
    b.jobs.rows = rows;
    b.jobs.parts = plan.parts;
    b.jobs.meet = plan.meet;
    b.jobs.counters = launch.counters;
    b.jobs.chunk = input_chunk(b.widest, launch.info->smem_per_block);
    b.part = (b.widest / 16 + plan.parts - 1) / plan.parts;
    int counters = 0;
    for (int j = 0; j < b.jobs.n; ++j) {
        Job& job = b.jobs.job[j];
        job.first_block = b.blocks;
        job.first_counter = counters;
        b.blocks += job.groups * plan.parts;
        counters += job.groups;
        if (plan.parts > 1 && plan.meet == Meet::memory)  // a multiple of 256 bytes each
            job.partial = carve.take<std::byte>(kPartSumBytes * job.groups * plan.parts * rows);
    }
    TERRACE_TRY(run_batch<A>(launch, b));
    return rows;
}

template <Arithmetic A>
Status run_all_rows(const Launch& launch, const LinearArgs& args, std::span<const LinearJob> jobs,
                    int row0, int rows) {
    for (int done = 0, n = 0; done < rows; done += n) {
        TERRACE_ASSIGN(n, run_rows<A>(launch, args, jobs, row0 + done, rows - done));
    }
    return {};
}

}  // namespace

size_t gemv_exl3_scratch_bytes(const DeviceInfo& info, int32_t widest, int32_t outputs) {
    const size_t in = static_cast<size_t>(widest + 127) / 128 * 128;
    return part_sum_bytes(info.sms, info.code.most_cluster, outputs) +
           kMaxLinearJobs * (in / 16 * kPlaneBytes * kDecodeRows + 2048);
}

Status gemv_exl3(const Launch& launch, const LinearArgs& args, std::span<const LinearJob> jobs,
                 int row0, int rows) {
    TERRACE_TRY(run_all_rows<Arithmetic::integer>(launch, args, jobs, row0, rows));
    return run_all_rows<Arithmetic::half>(launch, args, jobs, row0, rows);
}

}  // namespace terrace::cuda
