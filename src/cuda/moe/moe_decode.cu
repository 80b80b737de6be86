// Experts of few rows, fast path: exact integer sums from mul1 tiles (exl3/product.cuh).
// SPDX-License-Identifier: MIT
#include <algorithm>

#include "cuda/moe/moe_decode.cuh"
#include "cuda/moe/moe_decode.h"
#include "cuda/moe/moe_plan.h"

namespace terrace::cuda {
namespace {

using namespace moe_decode;

constexpr int kPrepareThreads = 512;

// Computes: B planes and scales of every pair's row for its expert's gate and up.
// Grid and block: (pairs, 2), 512 threads.
// Shared memory: the transformed row, padded hidden floats.
// Traffic: x and suh once per pair and matrix.
// Numerics: as gemv's input.
__global__ void __launch_bounds__(kPrepareThreads) prepare_kernel(const __grid_constant__ Moe a) {
    extern __shared__ float xh[];
    __shared__ uint32_t warp_top[kPrepareThreads / 32];
    __shared__ int total;
    const int pair = static_cast<int>(blockIdx.x), up = static_cast<int>(blockIdx.y);
    const int tid = static_cast<int>(threadIdx.x);
    pdl_wait();
    pdl_launch();  // behind the wait: the next kernel reads ids before its own
    const int row = pair < a.pairs ? pair / a.k : pair - a.pairs;
    const ExpertWeights& e = pair < a.pairs ? a.table[a.ids[pair]] : a.shared;
    const Exl3Tensor& t = up ? e.up.exl3 : e.gate.exl3;
    const float* x = a.x + int64_t{row} * a.hidden;
    const int in = t.in;
    if (tid == 0) total = 0;
    uint32_t top = transform_row(x, a.hidden, t.suh, in, xh);
    top = __reduce_max_sync(0xffffffffu, top);
    if (tid % 32 == 0) warp_top[tid / 32] = top;
    __syncthreads();
    top = 0;
    for (uint32_t w : warp_top)
        top = max(top, w);
    const Quantiser q = row_quantiser(kInteger, top);
    std::byte* planes = a.planes + (int64_t{pair} * 2 + up) * (in / 16) * kPlaneBytes;
    int sum = 0;
    for (int i = tid; i < in / 4; i += kPrepareThreads)
        sum += store_planes<kInteger>(xh + 16 * (i / 4), q.inverse, planes, i / 4, i % 4);
    sum = __reduce_add_sync(0xffffffffu, sum);
    if (tid % 32 == 0) atomicAdd(&total, sum);
    __syncthreads();
    if (tid == 0) a.scales[2 * pair + up] = {q.scale, total};
}

// B planes of the first product: in global memory, behind pdl_wait().
struct RowPlanes {
    const Moe& a;
    const Slot& slot;
    int up;
    __device__ const uint32_t* operator()() const {
        pdl_wait();
        pdl_launch();
        return reinterpret_cast<const uint32_t*>(a.planes);
    }
    __device__ int token(int t) const {
        const int tiles = (a.hidden + 127) / 128 * 8;
        return (slot.pair[t] * 2 + up) * tiles * 8;
    }
};

// sigmoid(<x, shared_gate>) of all rows, by the whole block: each warp takes an eighth of the inputs.
__device__ __forceinline__ void shared_gates(const Moe& a, int warp, int lane) {
    __shared__ float parts[kDecodeRows][kWarps];
    for (int r = 0; r < a.rows; ++r) {
        float dot = 0;
#pragma unroll 5
        for (int i = static_cast<int>(threadIdx.x); i < a.hidden; i += kThreads)
            dot = fmaf(a.x[int64_t{r} * a.hidden + i], load_plain(a.shared_gate.plain, i), dot);
        dot = warp_sum(dot);
        if (lane == 0) parts[r][warp] = dot;
    }
    __syncthreads();
    const int r = static_cast<int>(threadIdx.x);
    if (r >= a.rows) return;
    float dot = 0;
    for (float part : parts[r])
        dot += part;
    a.gates[r] = sigmoidf(dot);
}

// Rows that a kernel is made for: up to 4, or up to 16.
enum class Rows : uint8_t { few, many };

// Computes: h = transformed input of down, from silu(gate x) * up x, for every slot.
// Grid and block: (up_groups * up_parts, slots), eight warps: four for gate, four for up, on the same
// 128 columns.
// Shared memory: rings, later the warps' sums and the columns' values.
// Traffic: gate and up of every chosen expert once.
// Numerics: exact integer sums; f32 from there on.
template <Rows ROWS>
__global__ void __launch_bounds__(kThreads, ROWS == Rows::many ? 2 : 3)
    up_kernel(const __grid_constant__ Moe a) {
    extern __shared__ __align__(128) std::byte smem[];
    __shared__ uint64_t barriers[kWarps * 16];
    __shared__ Slot slot;
    const int tid = static_cast<int>(threadIdx.x), lane = tid & 31, warp = uniform_warp();
    const int group = static_cast<int>(blockIdx.x) % a.up_groups;
    const int part = static_cast<int>(blockIdx.x) / a.up_groups;
    const int s = static_cast<int>(blockIdx.y);
    find_slot(a, s, reinterpret_cast<int*>(smem), slot);
    if (slot.tokens == 0) return;
    const ExpertWeights& e = expert_of(a, slot);
    const int groups = e.gate.exl3.out / 128, tokens = slot.tokens;
    if (group >= groups) return;
    __syncthreads();  // smem is free again

    prefetch_l2(e.gate.exl3.svh + 128 * group, 256);
    prefetch_l2(e.up.exl3.svh + 128 * group, 256);
    prefetch_l2(e.down.exl3.suh + 128 * group, 256);

    const int up = warp / 4, tiles = e.gate.exl3.in / 16;
    const Share share{up ? &e.up.exl3 : &e.gate.exl3,  group,    tiles * part / a.up_parts,
                      tiles * (part + 1) / a.up_parts, warp % 4, 4};
    auto* sums = reinterpret_cast<int2*>(smem);
    std::byte* ring =
        smem + warp * a.up_slots * kSlotPieces * 16 * max(e.gate.exl3.n16, e.up.exl3.n16);
    int2* team_sums = sums + up * (ROWS == Rows::many && tokens > 4 ? 2 : 4) * tokens * kSumPitch;
    int shares = 4;
    const RowPlanes planes{a, slot, up};
    if (ROWS == Rows::many && tokens > 4) {
        shares = 2;
        multiply_slot<4, 4>(share, tokens, min(16, 2 * a.up_slots), ring, barriers + 16 * warp,
                            team_sums, planes);
    } else {
        multiply_slot<1, 8>(share, tokens, a.up_slots, ring, barriers + 16 * warp, team_sums,
                            planes);
    }
    if (slot.expert < 0 && group == 0 && part == 0) shared_gates(a, warp, lane);
    const auto value = [&](long long total, int pair, int m) {
        const RowScale row = a.scales[2 * pair + m];
        return sum_value(exact_sum(total, row.sum), row.scale);
    };
    auto* values = reinterpret_cast<float*>(sums + 2 * shares * tokens * kSumPitch);
    for (int i = tid; i < 2 * tokens * 128; i += kThreads) {
        const int m = i / (tokens * 128), token = i / 128 % tokens, column = i % 128;
        const long long total = total_of<kInteger>(sums + m * shares * tokens * kSumPitch, shares,
                                                   tokens, token, column);
        const int pair = slot.pair[token];
        if (a.up_parts > 1)
            a.partial[(((int64_t{pair} * a.up_groups + group) * a.up_parts + part) * 2 + m) * 128 +
                      column] = total;
        else
            values[i] = value(total, pair, m);
    }
    if (a.up_parts > 1) {
        if (!last_block(a.up_counters + s * a.up_groups + group, static_cast<uint32_t>(a.up_parts)))
            return;
        for (int i = tid; i < 2 * tokens * 128; i += kThreads) {
            const int m = i / (tokens * 128), token = i / 128 % tokens, column = i % 128;
            const int pair = slot.pair[token];
            const long long* p =
                a.partial + ((int64_t{pair} * a.up_groups + group) * a.up_parts * 2 + m) * 128 +
                column;
            long long total = 0;
#pragma unroll 8
            for (int q = 0; q < a.up_parts; ++q)
                total += p[256 * q];
            values[i] = value(total, pair, m);
        }
    }
    __syncthreads();
    const int width = slot.expert < 0 ? a.shared_width : a.width;
    const int column = 128 * group + 4 * lane;
    for (int t = warp; t < tokens; t += kWarps) {
        float g[4], u[4], v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            g[i] = values[t * 128 + 4 * lane + i];
            u[i] = values[(tokens + t) * 128 + 4 * lane + i];
        }
        warp_fwht128(g, lane);
        warp_fwht128(u, lane);
        uint32_t top = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float gate = g[i] * f16_value(e.gate.exl3.svh + column + i);
            const float value = u[i] * f16_value(e.up.exl3.svh + column + i);
            v[i] = column + i < width
                       ? siluf(gate) * value * f16_value(e.down.exl3.suh + column + i)
                       : 0.0f;
        }
        warp_fwht128(v, lane);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            top = max(top, __float_as_uint(fabsf(v[i])));
        const int pair = slot.pair[t];
        *reinterpret_cast<float4*>(a.h + int64_t{pair} * 128 * a.up_groups + column) =
            make_float4(v[0], v[1], v[2], v[3]);
        top = __reduce_max_sync(0xffffffffu, top);
        if (lane == 0) a.tops[pair * a.up_groups + group] = top;
    }
}

// B planes of the second product: rounded from h into shared memory, behind pdl_wait().
struct HiddenPlanes {
    const Moe& a;
    const Slot& slot;
    RowScale* scales;  // [tokens], sums zeroed
    std::byte* memory;
    int tiles;
    __device__ const uint32_t* operator()() const {
        pdl_wait();
        pdl_launch();
        // A warp's 32 entries are of one token: a token has 4 entries per row tile, and row tiles
        // come in eights.
        for (int i = static_cast<int>(threadIdx.x); i < slot.tokens * tiles * 4; i += kThreads) {
            const int t = i / (tiles * 4), tile = i / 4 % tiles, pair = slot.pair[t];
            uint32_t top = 0;
            for (int g = 0; g < tiles / 8; ++g)
                top = max(top, a.tops[pair * a.up_groups + g]);
            const Quantiser q = row_quantiser(kInteger, top);
            int sum =
                store_planes<kInteger>(a.h + int64_t{pair} * 128 * a.up_groups + 16 * tile,
                                       q.inverse, memory + t * tiles * kPlaneBytes, tile, i % 4);
            sum = __reduce_add_sync(0xffffffffu, sum);
            if (i % 32 == 0) atomicAdd(&scales[t].sum, sum);
            if (i % (tiles * 4) == 0) scales[t].scale = q.scale;
        }
        __syncthreads();
        return reinterpret_cast<const uint32_t*>(memory);
    }
    __device__ int token(int t) const { return t * tiles * 8; }
};

// Computes: down of every slot, times routing weight, summed over a row's experts.
// Grid and block: (down_groups / teams, slots), eight warps in teams with 128 columns each: the more
// blocks there are, the less is gained by sharing columns, and the dearer is a block's start. The
// block that completes a row's 128 columns adds its experts.
// Shared memory: rings, later the warps' sums; B planes of the tokens.
// Traffic: down of every chosen expert once; outputs per pair through L2.
// Numerics: exact integer sums; experts are added in the order of choices, the shared one last.
template <Rows ROWS>
__global__ void __launch_bounds__(kThreads, ROWS == Rows::many ? 2 : 3)
    down_kernel(const __grid_constant__ Moe a, int planes_at) {
    extern __shared__ __align__(128) std::byte smem[];
    __shared__ uint64_t barriers[kWarps * 16];
    __shared__ Slot slot;
    __shared__ RowScale scales[kDecodeRows];
    __shared__ bool complete[kMaxTeams * kDecodeRows];
    const int tid = static_cast<int>(threadIdx.x), lane = tid & 31, warp = uniform_warp();
    find_slot(a, static_cast<int>(blockIdx.y), reinterpret_cast<int*>(smem), slot);
    if (slot.tokens == 0) return;
    if (tid < kDecodeRows) scales[tid].sum = 0;
    const ExpertWeights& e = expert_of(a, slot);
    const int tokens = slot.tokens, tiles = e.down.exl3.in / 16;
    __syncthreads();

    const int members = kWarps / a.teams, first_group = static_cast<int>(blockIdx.x) * a.teams;
    const int group = first_group + warp / members;
    const int groups = min(a.teams, a.down_groups - first_group);  // of this block
    prefetch_l2(e.down.exl3.svh + 128 * first_group, 256 * groups);
    const Share share{&e.down.exl3,
                      min(group, a.down_groups - 1),
                      0,
                      group < a.down_groups ? tiles : 0,
                      warp % members,
                      members};
    auto* sums = reinterpret_cast<int2*>(smem);
    std::byte* ring = smem + warp * a.down_slots * kSlotPieces * 16 * e.down.exl3.n16;
    const HiddenPlanes planes{a, slot, scales, smem + planes_at, tiles};
    int shares = members;
    if (ROWS == Rows::many && tokens > 4) {
        shares = members / 2;
        multiply_slot<4, 4>(share, tokens, min(16, 2 * a.down_slots), ring, barriers + 16 * warp,
                            sums + warp / members * shares * tokens * kSumPitch, planes);
    } else {
        multiply_slot<1, 8>(share, tokens, a.down_slots, ring, barriers + 16 * warp,
                            sums + warp / members * shares * tokens * kSumPitch, planes);
    }
    for (int i = warp; i < groups * tokens; i += kWarps) {
        const int g = i / tokens, t = i % tokens, column = 128 * (first_group + g) + 4 * lane;
        const int pair = slot.pair[t];
        const float weight = pair < a.pairs ? a.weights[pair] : a.gates[pair - a.pairs];
        const RowScale row = scales[t];
        float v[4];
#pragma unroll
        for (int k = 0; k < 4; ++k)
            v[k] = sum_value(finished_sum(total_of<kInteger>(sums + g * shares * tokens * kSumPitch,
                                                             shares, tokens, t, 4 * lane + k),
                                          row),
                             row.scale);
        warp_fwht128(v, lane);
#pragma unroll
        for (int k = 0; k < 4; ++k)
            if (column + k < a.hidden)
                a.out[int64_t{pair} * a.hidden + column + k] =
                    weight * (v[k] * f16_value(e.down.exl3.svh + column + k));
    }

    __threadfence();
    __syncthreads();
    const auto row_of = [&](int t) {
        const int pair = slot.pair[t];
        return pair < a.pairs ? pair / a.k : pair - a.pairs;
    };
    if (tid < groups * tokens) {
        uint32_t* counter =
            a.down_counters + row_of(tid % tokens) * a.down_groups + first_group + tid / tokens;
        complete[tid] = atomicAdd(counter, 1u) == static_cast<uint32_t>(a.k + a.has_shared - 1);
        if (complete[tid]) *counter = 0;
    }
    __syncthreads();
    __threadfence();
    for (int i = tid; i < groups * tokens * 128; i += kThreads) {
        const int at = i / 128, c = 128 * (first_group + at / tokens) + i % 128;
        if (!complete[at] || c >= a.hidden) continue;
        const int row = row_of(at % tokens);
        float sum = 0;
#pragma unroll 4
        for (int j = 0; j < a.k; ++j)
            sum += a.out[(int64_t{row} * a.k + j) * a.hidden + c];
        if (a.has_shared) sum += a.out[(int64_t{a.pairs} + row) * a.hidden + c];
        a.y[int64_t{row} * a.hidden + c] = sum;
    }
}

constexpr int padded(int n) {
    return (n + 127) / 128 * 128;
}

// Splits of the first product over its inputs, when `slots` experts of `groups` columns of blocks are
// all there is. Any number gives the same bits.
int plan_up_parts(int slots, int groups, int row_tiles, int sms) {
    int best = 1, best_cost = 1 << 30;
    for (int parts = 1; parts <= std::min(kMaxParts, row_tiles / 8); ++parts) {
        const int rows = ((row_tiles + parts - 1) / parts + 3) / 4 * 4;
        const int cost = (slots * groups * parts + sms - 1) / sms * (rows + 6);
        if (cost < best_cost) best = parts, best_cost = cost;
    }
    return best;
}

void carve(Moe& a, Carve& c, int hidden) {
    const size_t pairs = static_cast<size_t>(a.pairs + a.rows);
    const size_t groups = static_cast<size_t>(a.up_groups);
    a.planes =
        c.take<std::byte>(pairs * 2 * static_cast<size_t>(padded(hidden) / 16) * kPlaneBytes);
    a.scales = c.take<RowScale>(pairs * 2);
    a.gates = c.take<float>(kDecodeRows);
    a.partial = c.take<long long>(
        a.up_parts > 1 ? pairs * groups * static_cast<size_t>(a.up_parts) * 256 : 0);
    a.h = c.take<float>(pairs * 128 * groups);
    a.tops = c.take<uint32_t>(pairs * groups);
    a.out = c.take<float>(pairs * static_cast<size_t>(hidden));
}

}  // namespace

size_t moe_decode_scratch_bytes(const DeviceInfo& info, const OpsLimits& l) {
    size_t most = 0;
    for (int rows = 1; rows <= kDecodeRows; ++rows) {
        Moe a = {};
        a.rows = rows;
        a.pairs = rows * l.k;
        a.up_groups = padded(std::max(l.moe_width, l.shared_width)) / 128;
        a.up_parts = plan_up_parts(a.pairs + 1, a.up_groups, padded(l.hidden) / 16, info.sms);
        Carve c(nullptr);
        carve(a, c, l.hidden);
        most = std::max(most, c.used());
    }
    return most;
}

bool moe_decode_is_fast(const MoeArgs& a) {
    const auto fits = [&](const ExpertWeights& e, int width) {
        for (const LinearWeight* w : {&e.gate, &e.up, &e.down})
            if (w->kind != LinearKind::exl3 || w->exl3.codebook != Codebook::mul1 ||
                w->exl3.in > kMaxExactInputs)
                return false;
        return e.gate.exl3.in == padded(a.hidden) && e.up.exl3.in == padded(a.hidden) &&
               e.gate.exl3.out == padded(width) && e.up.exl3.out == padded(width) &&
               e.down.exl3.in == padded(width) && e.down.exl3.out == padded(a.hidden);
    };
    if (a.shared && (!fits(*a.shared, a.shared_width) || a.shared_gate->kind != LinearKind::plain))
        return false;
    for (int i = 0; i < a.table.n; ++i)
        if (!fits(a.table.experts[i], a.width)) return false;
    const int groups = padded(std::max(a.width, a.shared_width)) / 128;
    return (kDecodeRows * a.k + 1) * groups + kDecodeRows * (padded(a.hidden) / 128) <= kCounters &&
           a.k <= 128;
}

Status moe_decode_fast(const Launch& launch, const MoeArgs& args, int row0, int rows) {
    Moe a = {};
    a.x = args.x.device_pointer() + int64_t{row0} * args.hidden;
    a.ids = args.ids.device_pointer() + int64_t{row0} * args.k;
    a.weights = args.weights.device_pointer() + int64_t{row0} * args.k;
    a.y = args.y.device_pointer() + int64_t{row0} * args.hidden;
    a.table = args.table.device.device_pointer();
    if (args.shared) a.shared = *args.shared, a.shared_gate = *args.shared_gate;
    a.has_shared = args.shared ? 1 : 0;
    a.rows = rows;
    a.k = args.k;
    a.hidden = args.hidden;
    a.width = args.width;
    a.shared_width = args.shared_width;
    a.pairs = rows * args.k;
    a.up_groups = padded(std::max(args.width, args.shared ? args.shared_width : 0)) / 128;
    a.down_groups = padded(args.hidden) / 128;
    a.teams = rows <= 2 ? 1 : rows <= 4 ? 2 : kMaxTeams;
    const int slots = std::min(a.pairs, args.table.n) + a.has_shared;
    const int row_tiles = padded(args.hidden) / 16;
    a.up_parts = plan_up_parts(a.pairs + 1, a.up_groups, row_tiles, launch.info->sms);
    int up_n16 = 0, down_n16 = 0;
    const auto widen = [&](const ExpertWeights& e) {
        up_n16 = std::max({up_n16, e.gate.exl3.n16, e.up.exl3.n16});
        down_n16 = std::max(down_n16, e.down.exl3.n16);
    };
    if (args.shared) widen(*args.shared);
    for (int i = 0; i < args.table.n; ++i)
        widen(args.table.experts[i]);

    const MoeShared shared =
        moe_shared({rows, a.pairs, row_tiles, a.up_groups, a.up_parts, a.teams, up_n16, down_n16},
                   gemv_room(launch.info->smem_per_sm));
    if (!moe_fits(shared, launch.info->smem_per_block)) {  // a row's bits do not depend on it
        if (rows == 1) return Error{Code::unsupported, "moe: experts too wide for this device"};
        TERRACE_TRY(moe_decode_fast(launch, args, row0, rows / 2));
        return moe_decode_fast(launch, args, row0 + rows / 2, rows - rows / 2);
    }
    a.up_slots = shared.up_slots;
    a.down_slots = shared.down_slots;

    Carve c(launch.scratch);
    carve(a, c, args.hidden);
    if (c.used() > launch.scratch_bytes)
        return Error{Code::internal, "moe: scratch memory is too small"};
    a.up_counters = launch.counters;
    a.down_counters = launch.counters + slots * a.up_groups;

    const dim3 up_grid(a.up_groups * a.up_parts, slots),
        down_grid((a.down_groups + a.teams - 1) / a.teams, slots);
    TERRACE_TRY(start(launch, "moe input", prepare_kernel,
                      dim3(a.pairs + (args.shared ? rows : 0), 2), dim3(kPrepareThreads),
                      sizeof(float) * static_cast<size_t>(padded(a.hidden)), Start::overlapping,
                      a));
    TERRACE_TRY(start(launch, "moe gate and up",
                      rows > 4 ? up_kernel<Rows::many> : up_kernel<Rows::few>, up_grid,
                      dim3(kThreads), shared.up_bytes, Start::overlapping, a));
    return start(launch, "moe down", rows > 4 ? down_kernel<Rows::many> : down_kernel<Rows::few>,
                 down_grid, dim3(kThreads), shared.down_bytes, Start::overlapping, a,
                 static_cast<int>(shared.planes_at));
}

}  // namespace terrace::cuda
