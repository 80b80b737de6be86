// SPDX-License-Identifier: MIT
#include "cuda/linear/gemv_row.h"

#include <algorithm>

#include "cuda/exl3/row_product.cuh"
#include "cuda/linear/plan.h"
#include "cuda/ptx/cluster.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#pragma nv_diag_suppress 177  // the kernels are empty there, and what they call is not used
#endif

namespace terrace::cuda {
namespace {

// Units that are asked for in front of the input, which would else wait behind all of them (qkv + z:
// 17.6 us, 20.0 with all).
constexpr int kUnitsAhead = 3;

struct Job {
    const f16* suh;
    const f16* svh;
    const uint16_t* trellis;
    float* y;
    int32_t out, n16, groups, first_block;
};

struct Jobs {
    Job job[kMaxLinearJobs];
    int32_t n;
    int32_t in, blocks;  // inputs; Hadamard blocks of the padded ones
    const float* x;
    int32_t parts;  // of the inputs, a block each
    int32_t slots;  // of the ring
    // Places in shared memory.
    int32_t planes_at, sums_at, gather_at;
};

// Computes: y = W x of one row, for every job.
// Grid and block: sum over jobs of groups x parts; sixteen warps. A block takes 128 outputs and one
// part of the inputs; the parts of a group are a cluster, whose first block adds them.
// Shared memory: ring, planes of the part, the warps' sums, the parts' sums.
// Traffic: each tile once; x and suh once per block, for the row's scale follows from all of it.
// Numerics: exact integer sums.
template <Widths WIDTHS>
__global__ void __launch_bounds__(kRowThreads, kRowResident)
    row_kernel(const __grid_constant__ Jobs a) {
#if __CUDA_ARCH__ >= 900  // serves() keeps others away
    extern __shared__ __align__(128) std::byte smem[];
    __shared__ UnitRing ring;
    __shared__ RowInput input;
    const int tid = static_cast<int>(threadIdx.x), lane = tid & 31;
    const RowTeam<1> team(uniform_warp());
    cluster_arrive();
    int j = 0;
    while (j + 1 < a.n && static_cast<int>(blockIdx.x) >= a.job[j + 1].first_block)
        ++j;
    const Job& job = a.job[j];
    const int local = static_cast<int>(blockIdx.x) - job.first_block;
    const int group = local / a.parts, part = local % a.parts;
    const int first = a.blocks * part / a.parts, last = a.blocks * (part + 1) / a.parts;
    if (tid == 0) ring.init(), input.sum[0] = 0;
    InputScales<kRowHeld> scales;
    scales.hold(job.suh, a.blocks, team.warp, kRowWarps, lane);
    uint2 svh = make_uint2(0, 0);
    if (team.warp == 0) svh = scales.load(job.svh, group, lane);
    __syncthreads();
    const uint32_t row_bytes = static_cast<uint32_t>(job.groups) * 16 * job.n16;
    const UnitStream stream{&ring,
                            smem,
                            reinterpret_cast<const std::byte*>(job.trellis) +
                                int64_t{8} * first * row_bytes + group * 16 * job.n16,
                            row_bytes,
                            last - first,
                            a.slots,
                            job.n16};
    stream.start(team.warp, kRowWarps, 0, kUnitsAhead);
    pdl_wait();
    pdl_launch();  // behind the wait: the next kernel may take the input as complete

    std::byte* planes = smem + a.planes_at;
    const Quantiser q = make_row_input(a.x, a.in, job.suh, scales, 128 * a.blocks, first, last,
                                       team, lane, planes, input);
    stream.start(team.warp, kRowWarps, kUnitsAhead);
    auto* sums = reinterpret_cast<int2*>(smem + a.sums_at);
    row_sums<WIDTHS>(stream, planes, team, lane, sums);
    __syncthreads();
    cluster_wait();  // the first block has started

    auto* gather = reinterpret_cast<long long*>(smem + a.gather_at);  // [parts][128]
    if (tid < 128)
        store_remote(gather + 128 * part + tid, 0,
                     exact_sum(row_total<RowTeam<1>::kShares>(sums, tid), input.sum[0]));
    cluster_arrive();
    cluster_wait();
    if (part > 0 || team.warp > 0) return;
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        long long total = 0;
        for (int p = 0; p < a.parts; ++p)
            total += gather[128 * p + 4 * lane + i];
        v[i] = sum_value(total, q.scale);
    }
    warp_fwht128(v, lane);
    apply_scales(svh, v);
    const int column = 128 * group + 4 * lane;
#pragma unroll
    for (int i = 0; i < 4; ++i)
        if (column + i < job.out) job.y[column + i] = v[i];
#endif
}

}  // namespace

bool gemv_row_serves(const Launch& l, std::span<const LinearJob> jobs) {
    int32_t groups = 0;
    for (const LinearJob& job : jobs) {
        const Exl3Tensor& t = job.weight->exl3;
        if (t.codebook != Codebook::mul1 || t.in != jobs[0].weight->exl3.in ||
            job.weight->in != jobs[0].weight->in)
            return false;
        groups += t.out / 128;
    }
    return l.info->code.large && !jobs.empty() &&
           plan_row(jobs[0].weight->exl3.in / 128, groups, l.info->sms).parts > 0;
}

Status gemv_row(const Launch& launch, const LinearArgs& args, std::span<const LinearJob> jobs,
                int row) {
    Jobs a = {};
    a.x = args.x.device_pointer() + row * args.x_stride;
    a.in = jobs[0].weight->in;
    a.blocks = jobs[0].weight->exl3.in / 128;
    int groups = 0, n16 = 0;
    bool whole = true;
    for (const LinearJob& from : jobs) {
        const Exl3Tensor& t = from.weight->exl3;
        Job& job = a.job[a.n++];
        job.suh = t.suh;
        job.svh = t.svh;
        job.trellis = t.trellis;
        job.y = from.y.device_pointer() + row * from.y_stride;
        job.out = from.weight->out;
        job.n16 = t.n16;
        job.groups = t.out / 128;
        groups += job.groups;
        n16 = std::max(n16, t.n16);
        whole = whole && is_whole(t.n16);
    }
    const RowPlan plan = plan_row(a.blocks, groups, launch.info->sms);
    a.parts = plan.parts;
    int blocks = 0;
    for (int j = 0; j < a.n; ++j) {
        a.job[j].first_block = blocks;
        blocks += a.job[j].groups * plan.parts;
    }
    const int units = (a.blocks + plan.parts - 1) / plan.parts;
    a.slots = std::max(1, std::min({units, kMaxUnitSlots, plan.ring_bytes / unit_bytes(n16)}));
    // The decoder reads a little behind a tile.
    a.planes_at = a.slots * unit_bytes(n16) + 128;
    a.sums_at = a.planes_at + units * kUnitPlaneBytes;
    a.gather_at = a.sums_at + RowTeam<1>::kShares * 1024;
    const size_t smem = static_cast<size_t>(a.gather_at + 1024 * plan.parts);
    return start_clusters(launch, "gemv row",
                          whole ? row_kernel<Widths::whole> : row_kernel<Widths::any>, dim3(blocks),
                          dim3(kRowThreads), plan.parts, smem, Start::overlapping, a);
}

}  // namespace terrace::cuda
