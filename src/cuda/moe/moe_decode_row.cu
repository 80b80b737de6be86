// Experts of one row, made for latency (exl3/row_product.cuh): two launches, the second of which has
// its weights in shared memory when the first ends. Same bits as the kernels for several rows.
// SPDX-License-Identifier: MIT
#include <algorithm>

#include "cuda/exl3/row_product.cuh"
#include "cuda/linear/plan.h"
#include "cuda/moe/moe_decode.h"
#include "cuda/ptx/cluster.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#pragma nv_diag_suppress 177  // the kernels are empty there, and what they call is not used
#endif

namespace terrace::cuda {
namespace {

constexpr int kTeams = 2;  // gate and up; two experts of the second product
// Units of the first product that are asked for in front of the input and its scales, which would
// else wait behind all of the weights.
constexpr int kUnitsAhead = 1;
// Of a team. A block of the second product fits beside one of the first: with 48 KiB it does not, and
// takes 8 us longer.
constexpr int kTeamRing = 40 * 1024;
using Team = RowTeam<kTeams>;

// Slots: the row's choices, then the shared expert.
struct Moe {
    const float* x;
    const int32_t* ids;
    const float* weights;
    float* y;
    const ExpertWeights* table;
    ExpertWeights shared;
    PlainTensor shared_gate;
    int32_t k, slots, hidden, width, shared_width;
    int32_t blocks;                // Hadamard blocks of hidden
    int32_t up_groups, up_parts;   // of the widest expert; of the inputs
    int32_t down_groups, members;  // blocks that share a group's experts
    int32_t ring_bytes;            // of a team
    // Places in shared memory, per kernel.
    int32_t planes_at, team_planes, sums_at, gather_at;
    float* h;        // [slots][128 * up_groups] transformed inputs of down
    uint32_t* tops;  // [slots][up_groups] their largest absolute value's bits
};

__device__ __forceinline__ UnitStream stream_of(const Moe& a, UnitRing* ring, std::byte* slots,
                                                const Exl3Tensor& t, int group, int first,
                                                int units) {
    const int n16 = t.n16;
    const uint32_t row_bytes = static_cast<uint32_t>(t.out) * n16 / 8;
    return {ring,
            slots,
            reinterpret_cast<const std::byte*>(t.trellis) + int64_t{8} * first * row_bytes +
                group * 16 * n16,
            row_bytes,
            units,
            min(a.ring_bytes / unit_bytes(n16), kMaxUnitSlots),
            n16};
}

__device__ __forceinline__ void prefetch_bulk(const std::byte* from, uint32_t bytes) {
    if (elect_lane() && bytes > 0)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes)
                     : "memory");
}

// Computes: h = transformed input of down, from silu(gate x) * up x, for every slot.
// Grid and block: (up_groups * up_parts, slots), sixteen warps: a team for gate, one for up, on the
// same 128 columns; the parts are a cluster, whose first block adds them.
// Shared memory: rings, planes of the part for either matrix, the warps' sums, the parts' sums.
// Traffic: gate and up of every chosen expert once; x and suh once per block.
// Numerics: exact integer sums; f32 from there on.
template <Widths WIDTHS>
__global__ void __launch_bounds__(kRowThreads, kRowResident)
    up_kernel(const __grid_constant__ Moe a) {
#if __CUDA_ARCH__ >= 900  // serves() keeps others away
    extern __shared__ __align__(128) std::byte smem[];
    __shared__ UnitRing rings[kTeams];
    __shared__ RowInput input;
    __shared__ float scale[kTeams];
    __shared__ uint2 out_scales[3][32];  // svh of gate and up, suh of down
    const int tid = static_cast<int>(threadIdx.x), lane = tid & 31;
    const Team team(uniform_warp());
    cluster_arrive();
    const int group = static_cast<int>(blockIdx.x) / a.up_parts;
    const int part = static_cast<int>(blockIdx.x) % a.up_parts;
    const int slot = static_cast<int>(blockIdx.y);
    const int first = a.blocks * part / a.up_parts, last = a.blocks * (part + 1) / a.up_parts;
    if (tid < kTeams) rings[tid].init(), input.sum[tid] = 0;
    __syncthreads();
    if (slot == a.k && blockIdx.x == 0)  // for the next kernel
        prefetch_l2(a.shared_gate.data, a.hidden * (a.shared_gate.dtype == DType::f32 ? 4 : 2));
    // Whose weights are known does not wait for the choice of experts. The next kernel is let go
    // behind the wait: it reads ids before its own.
    const bool chosen = slot < a.k;
    if (chosen) {
        pdl_wait();
        pdl_launch();
    }
    const ExpertWeights& e = chosen ? a.table[a.ids[slot]] : a.shared;
    const Exl3Tensor& t = team.team ? e.up.exl3 : e.gate.exl3;
    const int groups = t.out / 128;
    const f16* suh = t.suh;
    InputScales<kRowHeld> scales;
    scales.hold(suh, a.blocks, team.warp, Team::kWarps, lane);
    const UnitStream stream = stream_of(a, &rings[team.team], smem + team.team * a.ring_bytes, t,
                                        group, first, group < groups ? last - first : 0);
    if (part == 0 && team.team == 0 && team.warp < 3 && group < groups)
        out_scales[team.warp][lane] = scales.load(team.warp == 0   ? e.gate.exl3.svh
                                                  : team.warp == 1 ? e.up.exl3.svh
                                                                   : e.down.exl3.suh,
                                                  group, lane);
    stream.start(team.warp, Team::kWarps, 0, kUnitsAhead);
    if (!chosen) {
        pdl_wait();
        pdl_launch();
    }
    std::byte* planes = smem + a.planes_at + team.team * a.team_planes;
    const Quantiser q = make_row_input(a.x, a.hidden, suh, scales, 128 * a.blocks, first, last,
                                       team, lane, planes, input);
    stream.start(team.warp, Team::kWarps, kUnitsAhead);
    if (team.warp == 0 && group < groups) {
        // A block's share of the expert's second product, which the next kernel asks for.
        const auto bytes = static_cast<uint32_t>(e.down.exl3.trellis_bytes());
        const uint32_t share = bytes / (kTeams * groups * a.up_parts) / 16 * 16;
        prefetch_bulk(reinterpret_cast<const std::byte*>(e.down.exl3.trellis) +
                          share * (kTeams * (a.up_parts * group + part) + team.team),
                      share);
    }
    if (team.warp == 0 && lane == 0) scale[team.team] = q.scale;
    auto* sums = reinterpret_cast<int2*>(smem + a.sums_at);
    row_sums<WIDTHS>(stream, planes, team, lane, sums + 128 * Team::kShares * team.team);
    __syncthreads();
    cluster_wait();  // the first block has started

    auto* gather = reinterpret_cast<long long*>(smem + a.gather_at);  // [parts][gate, up][128]
    if (tid < kTeams * 128) {
        const int m = tid / 128;
        store_remote(gather + 128 * kTeams * part + tid, 0,
                     exact_sum(row_total<Team::kShares>(sums + 128 * Team::kShares * m, tid % 128),
                               input.sum[m]));
    }
    cluster_arrive();
    cluster_wait();
    if (part > 0 || tid >= 32 || group >= groups) return;
    float v[kTeams][4];
#pragma unroll
    for (int m = 0; m < kTeams; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            long long total = 0;
            for (int p = 0; p < a.up_parts; ++p)
                total += gather[128 * (kTeams * p + m) + 4 * lane + i];
            v[m][i] = sum_value(total, scale[m]);
        }
        warp_fwht128(v[m], lane);
        apply_scales(out_scales[m][lane], v[m]);
    }
    const int width = chosen ? a.width : a.shared_width, column = 128 * group + 4 * lane;
    float w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
        w[i] = column + i < width ? siluf(v[0][i]) * v[1][i] : 0.0f;
    apply_scales(out_scales[2][lane], w);
    warp_fwht128(w, lane);
    uint32_t top = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i)
        top = max(top, __float_as_uint(fabsf(w[i])));
    *reinterpret_cast<float4*>(a.h + int64_t{slot} * 128 * a.up_groups + column) =
        make_float4(w[0], w[1], w[2], w[3]);
    top = __reduce_max_sync(0xffffffffu, top);
    if (lane == 0) a.tops[slot * a.up_groups + group] = top;
#endif
}

// A warp's part of <x, shared_gate>, by eight warps. All loads of a turn are on their way before the
// first is used.
__device__ __forceinline__ float gate_part(const Moe& a, int warp, int lane) {
    static_assert(Team::kWarps == 8);
    constexpr int kTurn = 10;
    float dot = 0;
    const auto add = [&](auto weight) {
        for (int i0 = 32 * warp + lane; i0 < a.hidden; i0 += 256 * kTurn) {
            float x[kTurn], w[kTurn];
#pragma unroll
            for (int u = 0; u < kTurn; ++u) {
                const int i = min(i0 + 256 * u, a.hidden - 1);
                x[u] = a.x[i];
                w[u] = weight(i);
            }
#pragma unroll
            for (int u = 0; u < kTurn; ++u)
                if (i0 + 256 * u < a.hidden) dot = fmaf(x[u], w[u], dot);
        }
    };
    const void* data = a.shared_gate.data;
    if (a.shared_gate.dtype == DType::f16)
        add([&](int i) { return load_plain(data, DType::f16, i); });
    else if (a.shared_gate.dtype == DType::bf16)
        add([&](int i) { return load_plain(data, DType::bf16, i); });
    else
        add([&](int i) { return load_plain(data, DType::f32, i); });
    return warp_sum(dot);
}

// Computes: down of every slot, times routing weight, summed over the slots.
// Grid and block: down_groups * members, sixteen warps in two teams with an expert each; the members
// of a group are a cluster, whose first block adds their experts.
// Shared memory: rings, planes, the warps' sums, the experts' outputs.
// Traffic: down of every chosen expert once; h of a team's expert.
// Numerics: exact integer sums; experts are added in the order of choices, the shared one last.
template <Widths WIDTHS>
__global__ void __launch_bounds__(kRowThreads, kRowResident)
    down_kernel(const __grid_constant__ Moe a) {
#if __CUDA_ARCH__ >= 900  // serves() keeps others away
    extern __shared__ __align__(128) std::byte smem[];
    __shared__ UnitRing rings[kTeams];
    __shared__ int plane_sums[kTeams];
    __shared__ float gate_parts[Team::kWarps];
    const int tid = static_cast<int>(threadIdx.x), lane = tid & 31;
    const Team team(uniform_warp());
    cluster_arrive();
    const int group = static_cast<int>(blockIdx.x) / a.members;
    const int member = static_cast<int>(blockIdx.x) % a.members;
    const int slot = kTeams * member + team.team;
    const bool active = slot < a.slots, chosen = slot < a.k;
    if (tid < kTeams) rings[tid].init(), plane_sums[tid] = 0;
    __syncthreads();
    if (active && !chosen) {  // in front of the weights: behind them its way is long
        const float dot = gate_part(a, team.warp, lane);
        if (lane == 0) gate_parts[team.warp] = dot;
    }
    const ExpertWeights& e = chosen ? a.table[a.ids[slot]] : a.shared;
    int blocks = 0;  // Hadamard blocks of the expert's width
    UnitStream stream = {};
    uint2 svh = make_uint2(0, 0);
    if (active) {
        blocks = e.down.exl3.in / 128;
        stream = stream_of(a, &rings[team.team], smem + team.team * a.ring_bytes, e.down.exl3,
                           group, 0, blocks);
        stream.start(team.warp, Team::kWarps);
        if (team.warp == 0) svh = InputScales<1>::load(e.down.exl3.svh, group, lane);
    }
    pdl_wait();
    pdl_launch();
    std::byte* planes = smem + a.planes_at + team.team * a.team_planes;
    uint32_t top = 0;
    for (int g = 0; g < blocks; ++g)
        top = max(top, a.tops[slot * a.up_groups + g]);
    const Quantiser q = row_quantiser(Arithmetic::integer, top);
    int sum = 0;
    for (int b = team.warp; b < blocks; b += Team::kWarps)
        sum += store_spread(reinterpret_cast<const float4*>(
                                a.h + int64_t{slot} * 128 * a.up_groups + 128 * b)[lane],
                            q.inverse, planes + b * kUnitPlaneBytes, lane);
    sum = __reduce_add_sync(0xffffffffu, sum);
    if (lane == 0 && sum != 0) atomicAdd(&plane_sums[team.team], sum);
    __syncthreads();
    auto* sums = reinterpret_cast<int2*>(smem + a.sums_at) + 128 * Team::kShares * team.team;
    row_sums<WIDTHS>(stream, planes, team, lane, sums);
    __syncthreads();
    cluster_wait();  // the first block has started

    auto* gather = reinterpret_cast<float*>(smem + a.gather_at);  // [slots][128]
    if (team.warp == 0 && active) {
        float weight = 0;
        if (chosen) {
            weight = a.weights[slot];
        } else {
            for (float part : gate_parts)
                weight += part;
            weight = sigmoidf(weight);
        }
        float v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            v[i] = sum_value(
                exact_sum(row_total<Team::kShares>(sums, 4 * lane + i), plane_sums[team.team]),
                q.scale);
        warp_fwht128(v, lane);
        apply_scales(svh, v);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            store_remote(gather + 128 * slot + 4 * lane + i, 0, weight * v[i]);
    }
    cluster_arrive();
    cluster_wait();
    if (member > 0 || tid >= 128 || 128 * group + tid >= a.hidden) return;
    float y = 0;
    for (int s = 0; s < a.slots; ++s)
        y += gather[128 * s + tid];
    a.y[128 * group + tid] = y;
#endif
}

constexpr int padded(int n) {
    return (n + 127) / 128 * 128;
}

void carve(Moe& a, Carve& c) {
    const auto blocks = static_cast<size_t>(a.slots) * static_cast<size_t>(a.up_groups);
    a.h = c.take<float>(128 * blocks);
    a.tops = c.take<uint32_t>(blocks);
}

RowPlan up_plan(const Launch& launch, const MoeArgs& args) {
    const int slots = args.k + (args.shared ? 1 : 0);
    const int groups = padded(std::max(args.width, args.shared ? args.shared_width : 0)) / 128;
    return plan_row(padded(args.hidden) / 128, slots * groups, launch.info->sms);
}

}  // namespace

bool moe_decode_row_serves(const Launch& launch, const MoeArgs& args) {
    const int slots = args.k + (args.shared ? 1 : 0);
    return launch.info->code.large && slots <= kTeams * kMaxParts &&
           up_plan(launch, args).parts > 0;
}

Status moe_decode_row(const Launch& launch, const MoeArgs& args, int row) {
    Moe a = {};
    a.x = args.x.device_pointer() + int64_t{row} * args.hidden;
    a.ids = args.ids.device_pointer() + int64_t{row} * args.k;
    a.weights = args.weights.device_pointer() + int64_t{row} * args.k;
    a.y = args.y.device_pointer() + int64_t{row} * args.hidden;
    a.table = args.table.device.device_pointer();
    if (args.shared) a.shared = *args.shared, a.shared_gate = args.shared_gate->plain;
    a.k = args.k;
    a.slots = args.k + (args.shared ? 1 : 0);
    a.hidden = args.hidden;
    a.width = args.width;
    a.shared_width = args.shared_width;
    a.blocks = padded(args.hidden) / 128;
    a.up_groups = padded(std::max(args.width, args.shared ? args.shared_width : 0)) / 128;
    a.down_groups = padded(args.hidden) / 128;
    a.members = (a.slots + kTeams - 1) / kTeams;
    a.up_parts = up_plan(launch, args).parts;
    int widest = 0;
    bool whole = true;
    const auto widen = [&](const ExpertWeights& e) {
        for (const LinearWeight* w : {&e.gate, &e.up, &e.down}) {
            widest = std::max(widest, w->exl3.n16);
            whole = whole && is_whole(w->exl3.n16);
        }
    };
    if (args.shared) widen(*args.shared);
    for (int i = 0; i < args.table.n; ++i)
        widen(args.table.experts[i]);
    Carve c(launch.scratch);
    carve(a, c);
    if (c.used() > launch.scratch_bytes)
        return Error{Code::internal, "moe: scratch memory is too small"};

    a.ring_bytes = std::max(kTeamRing, unit_bytes(widest)) + 128;  // the decoder reads behind tiles
    a.planes_at = kTeams * a.ring_bytes;
    const auto place = [&](int units, int gather_bytes) {
        a.team_planes = units * kUnitPlaneBytes;
        a.sums_at = a.planes_at + kTeams * a.team_planes;
        a.gather_at = a.sums_at + kTeams * Team::kShares * 1024;
        return static_cast<size_t>(a.gather_at + gather_bytes);
    };
    const size_t up_bytes =
        place((a.blocks + a.up_parts - 1) / a.up_parts, 1024 * kTeams * a.up_parts);
    TERRACE_TRY(start_clusters(launch, "moe row: gate and up",
                               whole ? up_kernel<Widths::whole> : up_kernel<Widths::any>,
                               dim3(a.up_groups * a.up_parts, a.slots), dim3(kRowThreads),
                               a.up_parts, up_bytes, Start::overlapping, a));
    const size_t down_bytes = place(a.up_groups, 512 * a.slots);
    return start_clusters(launch, "moe row: down",
                          whole ? down_kernel<Widths::whole> : down_kernel<Widths::any>,
                          dim3(a.down_groups * a.members), dim3(kRowThreads), a.members, down_bytes,
                          Start::overlapping, a);
}

}  // namespace terrace::cuda
