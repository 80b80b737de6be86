// Experts of few rows, fast path. Pairs: (row, choice) is row * k + choice, and the shared expert's
// pair of a row is rows * k + row. Slots: the shared expert, then the distinct experts in the order
// of their first pair; every block finds its slot from the ids by itself, so that the weights' stream
// starts before the kernel in front has ended.
// SPDX-License-Identifier: MIT
#include <algorithm>

#include "cuda/exl3/block_sum.cuh"
#include "cuda/linear/plan.h"
#include "cuda/moe/moe_decode.h"
#include "cuda/util/common.cuh"

namespace terrace::cuda {
namespace {

constexpr int kWarps = kGemvWarps;
constexpr int kThreads = 32 * kWarps;
constexpr int kPrepareThreads = 512;
constexpr size_t kRingBudget = 64 * 1024;
constexpr auto kInteger = Arithmetic::integer;

struct Moe {
    const float* x;  // first row
    const int32_t* ids;
    const float* weights;
    float* y;
    const ExpertWeights* table;
    ExpertWeights shared;
    LinearWeight shared_gate;
    int32_t rows, k, hidden, width, shared_width, has_shared;
    int32_t pairs;      // rows * k
    int32_t up_groups;  // of the widest expert
    int32_t up_parts, down_groups;
    int32_t up_slots, down_slots;  // of each warp's ring
    std::byte* planes;             // [pairs][gate, up][hidden tiles] 32 bytes
    RowScale* scales;              // [pairs][gate, up]
    float* gates;                  // [rows] sigmoid of the shared gate
    long long* partial;            // [pairs][up_groups][up_parts][gate, up][128]
    float* h;                      // [pairs][128 * up_groups] transformed inputs of down
    uint32_t* tops;                // [pairs] their largest absolute value's bits
    float* out;                    // [pairs][hidden] outputs times routing weight
    uint32_t* up_counters;         // [slots][up_groups]
    uint32_t* down_counters;       // [rows][down_groups]
};

struct Slot {
    int tokens;  // 0: no such slot
    int expert;  // -1: the shared one
    int pair[kDecodeRows];
};

// Fills `slot` with number `s`. Every thread calls it; ids: shared memory for the pairs' ids.
__device__ __forceinline__ void find_slot(const Moe& a, int s, int* ids, Slot& slot) {
    __shared__ int firsts[kWarps];
    const int tid = static_cast<int>(threadIdx.x);
    if (tid == 0) slot.tokens = 0, slot.expert = -1;
    if (s < a.has_shared) {
        if (tid < a.rows) slot.pair[tid] = a.pairs + tid;
        __syncthreads();
        if (tid == 0) slot.tokens = a.rows;
        __syncthreads();
        return;
    }
    s -= a.has_shared;
    for (int q = tid; q < a.pairs; q += kThreads)
        ids[q] = a.ids[q];
    __syncthreads();
    int before = 0;  // distinct experts of the pairs in front of this round
    for (int base = 0; base < a.pairs; base += kThreads) {
        const int q = base + tid;
        int earlier = 1;
        if (q < a.pairs) {
            earlier = 0;
            for (int p = 0; p < q; ++p)
                earlier += ids[p] == ids[q];
        }
        const uint32_t vote = __ballot_sync(0xffffffffu, earlier == 0);
        if (tid % 32 == 0) firsts[tid / 32] = __popc(vote);
        __syncthreads();
        int rank = before + __popc(vote & ((1u << (tid % 32)) - 1u));
        for (int w = 0; w < kWarps; ++w) {
            if (w < tid / 32) rank += firsts[w];
            before += firsts[w];
        }
        if (earlier == 0 && rank == s) slot.expert = ids[q];
        __syncthreads();
    }
    const int expert = slot.expert;
    if (expert < 0) return;
    // An expert is chosen at most once per row, so its tokens are in the order of rows.
    for (int q = tid; q < a.pairs; q += kThreads)
        if (ids[q] == expert) {
            int earlier = 0;
            for (int p = 0; p < q; ++p)
                earlier += ids[p] == expert;
            if (earlier < kDecodeRows) slot.pair[earlier] = q;
            atomicMax(&slot.tokens, min(earlier + 1, kDecodeRows));
        }
    __syncthreads();
}

__device__ __forceinline__ const ExpertWeights& expert_of(const Moe& a, const Slot& slot) {
    return slot.expert < 0 ? a.shared : a.table[slot.expert];
}

// Computes: B planes and scales of every pair's row for its expert's gate and up; the shared gate.
// Grid and block: (pairs, 2), 512 threads.
// Shared memory: the transformed row, padded hidden floats.
// Traffic: x and suh once per pair and matrix.
// Numerics: as gemv's input. The shared gate: f32, block_sum.
__global__ void __launch_bounds__(kPrepareThreads) prepare_kernel(const __grid_constant__ Moe a) {
    extern __shared__ float xh[];
    __shared__ uint32_t warp_top[kPrepareThreads / 32];
    __shared__ float sums[32];
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
    if (tid == 0) {
        a.scales[2 * pair + up] = {q.scale, total};
        if (!up) a.tops[pair] = 0;
    }
    if (pair < a.pairs || up) return;
    float dot = 0;
    for (int i = tid; i < a.hidden; i += kPrepareThreads)
        dot = fmaf(x[i], load_plain(a.shared_gate.plain, i), dot);
    dot = block_sum(dot, sums);
    if (tid == 0) a.gates[row] = sigmoidf(dot);
}

// What a warp multiplies: its tensor and its place among the warps that share the tensor.
struct Share {
    const Exl3Tensor* tensor;
    int column_group;
    int first_tile, last_tile;  // row tiles of the block
    int warp, warps;            // of the tensor
};

// Starts the ring and, when `wait_and_plan` has run, multiplies and leaves sums in shared memory:
// [shares][tokens][kSumPitch] at `sums`.
template <int GROUPS, int TILES, class Planes>
__device__ __forceinline__ void multiply_slot(const Share& s, int tokens, int slots,
                                              std::byte* ring_memory, uint64_t* barriers,
                                              int2* sums, const Planes& planes_after_wait) {
    constexpr int kHalves = 8 / TILES;
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const int shares = s.warps / kHalves, share = s.warp / kHalves, half = s.warp % kHalves;
    const int first = s.first_tile + share;
    const int n = max(0, (s.last_tile - first + shares - 1) / shares);
    const int n16 = s.tensor->n16, bytes = TILES * n16 * 2;
    const uint32_t row_bytes = static_cast<uint32_t>(s.tensor->out) * n16 / 8;
    WarpRing ring(
        reinterpret_cast<const std::byte*>(s.tensor->trellis) +
            static_cast<int64_t>(first) * row_bytes + (s.column_group * 8 + half * TILES) * 2 * n16,
        static_cast<uint32_t>(shares) * row_bytes, n, ring_memory, barriers, slots, bytes);
    WarpWork<kInteger, GROUPS> work;
    work.ring = &ring;
    work.n = n;
    work.planes = planes_after_wait();
    work.step = shares * 8;
    work.n16 = n16;
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
        const int token = 4 * g + lane / 8;
        work.from[g] = token < tokens ? planes_after_wait.token(token) + first * 8 + lane % 8 : -1;
    }
    int acc[TILES][GROUPS][4] = {};
    multiply_warp<kInteger, GROUPS, TILES>(work, lane, acc);
    __syncthreads();  // rings are idle: their memory takes the sums
    store_sums<kInteger, GROUPS, TILES>(acc, sums + share * tokens * kSumPitch, half * TILES,
                                        tokens, lane);
    __syncthreads();
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

// Computes: h = transformed input of down, from silu(gate x) * up x, for every slot.
// Grid and block: (up_groups * up_parts, slots), eight warps: four for gate, four for up, on the same
// 128 columns.
// Shared memory: rings, then sums, then the columns' values.
// Traffic: gate and up of every chosen expert once.
// Numerics: exact integer sums; f32 from there on.
template <bool MANY>
__global__ void __launch_bounds__(kThreads, MANY ? 2 : 3) up_kernel(const __grid_constant__ Moe a) {
    extern __shared__ __align__(128) std::byte smem[];
    __shared__ uint64_t barriers[kWarps * 16];
    __shared__ Slot slot;
    const int tid = static_cast<int>(threadIdx.x), lane = tid & 31, warp = tid >> 5;
    const int group = static_cast<int>(blockIdx.x) % a.up_groups;
    const int part = static_cast<int>(blockIdx.x) / a.up_groups;
    const int s = static_cast<int>(blockIdx.y);
    find_slot(a, s, reinterpret_cast<int*>(smem), slot);
    if (slot.tokens == 0) return;
    const ExpertWeights& e = expert_of(a, slot);
    const int groups = e.gate.exl3.out / 128, tokens = slot.tokens;
    if (group >= groups) return;
    __syncthreads();  // smem is free again

    const int up = warp / 4, tiles = e.gate.exl3.in / 16;
    const Share share{up ? &e.up.exl3 : &e.gate.exl3,  group,    tiles * part / a.up_parts,
                      tiles * (part + 1) / a.up_parts, warp % 4, 4};
    auto* sums = reinterpret_cast<int2*>(smem);
    std::byte* ring = smem + warp * a.up_slots * 16 * max(e.gate.exl3.n16, e.up.exl3.n16);
    const RowPlanes planes{a, slot, up};
    int shares;
    if (MANY && tokens > 4) {
        shares = 2;
        multiply_slot<4, 4>(share, tokens, min(16, 2 * a.up_slots), ring, barriers + 16 * warp,
                            sums + up * shares * tokens * kSumPitch, planes);
    } else {
        shares = 4;
        multiply_slot<1, 8>(share, tokens, a.up_slots, ring, barriers + 16 * warp,
                            sums + up * shares * tokens * kSumPitch, planes);
    }

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
            values[i] = sum_value(total, a.scales[2 * pair + m]);
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
            for (int q = 0; q < a.up_parts; ++q)
                total += p[256 * q];
            values[i] = sum_value(total, a.scales[2 * pair + m]);
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
        if (lane == 0) atomicMax(a.tops + pair, top);
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
            const Quantiser q = row_quantiser(kInteger, a.tops[pair]);
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
// Grid and block: (down_groups, slots), eight warps; the block that completes a row's 128 columns adds
// its experts.
// Shared memory: rings (later sums, then values), B planes of the tokens.
// Traffic: down of every chosen expert once; outputs per pair through L2.
// Numerics: exact integer sums; experts are added in the order of choices, the shared one last.
template <bool MANY>
__global__ void __launch_bounds__(kThreads, MANY ? 2 : 3)
    down_kernel(const __grid_constant__ Moe a, int planes_at) {
    extern __shared__ __align__(128) std::byte smem[];
    __shared__ uint64_t barriers[kWarps * 16];
    __shared__ Slot slot;
    __shared__ RowScale scales[kDecodeRows];
    __shared__ bool complete[kDecodeRows];
    const int tid = static_cast<int>(threadIdx.x), lane = tid & 31, warp = tid >> 5;
    const int group = static_cast<int>(blockIdx.x);
    find_slot(a, static_cast<int>(blockIdx.y), reinterpret_cast<int*>(smem), slot);
    if (slot.tokens == 0) return;
    if (tid < kDecodeRows) scales[tid].sum = 0;
    const ExpertWeights& e = expert_of(a, slot);
    const int tokens = slot.tokens, tiles = e.down.exl3.in / 16;
    __syncthreads();

    const Share share{&e.down.exl3, group, 0, tiles, warp, kWarps};
    auto* sums = reinterpret_cast<int2*>(smem);
    std::byte* ring = smem + warp * a.down_slots * 16 * e.down.exl3.n16;
    const HiddenPlanes planes{a, slot, scales, smem + planes_at, tiles};
    int shares;
    if (MANY && tokens > 4) {
        shares = 4;
        multiply_slot<4, 4>(share, tokens, min(16, 2 * a.down_slots), ring, barriers + 16 * warp,
                            sums, planes);
    } else {
        shares = 8;
        multiply_slot<1, 8>(share, tokens, a.down_slots, ring, barriers + 16 * warp, sums, planes);
    }
    auto* values = reinterpret_cast<float*>(sums + shares * tokens * kSumPitch);
    for (int i = tid; i < tokens * 128; i += kThreads)
        values[i] =
            sum_value(total_of<kInteger>(sums, shares, tokens, i / 128, i % 128), scales[i / 128]);
    __syncthreads();
    const int column = 128 * group + 4 * lane;
    for (int t = warp; t < tokens; t += kWarps) {
        const int pair = slot.pair[t];
        const float weight = pair < a.pairs ? a.weights[pair] : a.gates[pair - a.pairs];
        float v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            v[i] = values[t * 128 + 4 * lane + i];
        warp_fwht128(v, lane);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (column + i < a.hidden)
                a.out[int64_t{pair} * a.hidden + column + i] =
                    weight * (v[i] * f16_value(e.down.exl3.svh + column + i));
    }

    __threadfence();
    __syncthreads();
    if (tid < tokens) {
        const int pair = slot.pair[tid];
        const int row = pair < a.pairs ? pair / a.k : pair - a.pairs;
        uint32_t* counter = a.down_counters + row * a.down_groups + group;
        complete[tid] = atomicAdd(counter, 1u) == static_cast<uint32_t>(a.k + a.has_shared - 1);
        if (complete[tid]) *counter = 0;
    }
    __syncthreads();
    __threadfence();
    for (int i = tid; i < tokens * 128; i += kThreads) {
        const int t = i / 128, c = 128 * group + i % 128;
        if (!complete[t] || c >= a.hidden) continue;
        const int pair = slot.pair[t];
        const int row = pair < a.pairs ? pair / a.k : pair - a.pairs;
        float sum = 0;
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
    for (int parts = 1; parts <= std::min(8, row_tiles / 8); ++parts) {
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
    a.tops = c.take<uint32_t>(pairs);
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

    Carve c(launch.scratch);
    carve(a, c, args.hidden);
    if (c.used() > launch.scratch_bytes)
        return Error{Code::internal, "moe: scratch memory is too small"};
    a.up_counters = launch.counters;
    a.down_counters = launch.counters + slots * a.up_groups;

    TERRACE_TRY(start(launch, "moe input", prepare_kernel,
                      dim3(a.pairs + (args.shared ? rows : 0), 2), dim3(kPrepareThreads),
                      sizeof(float) * static_cast<size_t>(padded(a.hidden)), Start::overlapping,
                      a));

    // Sums of the tokens that a slot may have, for either cut of a block, then values.
    const auto sum_bytes = [&](int few_shares, int matrices) {
        const int few = std::min(rows, 4);
        size_t bytes =
            warp_sum_bytes(kInteger, few_shares * matrices, few) + size_t{512} * few * matrices;
        if (rows > 4)
            bytes = std::max(bytes, warp_sum_bytes(kInteger, few_shares / 2 * matrices, rows) +
                                        size_t{512} * rows * matrices);
        return std::max(bytes, sizeof(int) * static_cast<size_t>(a.pairs));
    };
    const int up_bytes = 16 * up_n16, down_bytes = 16 * down_n16;
    a.up_slots = ring_slots((row_tiles + 4 * a.up_parts - 1) / (4 * a.up_parts), up_bytes, kWarps,
                            kRingBudget);
    const int down_tiles = 8 * a.up_groups;
    a.down_slots = ring_slots((down_tiles + kWarps - 1) / kWarps, down_bytes, kWarps, kRingBudget);
    const size_t up_smem =
        std::max(static_cast<size_t>(a.up_slots) * up_bytes * kWarps, sum_bytes(4, 2)) + 16;
    const size_t planes_at =
        (std::max(static_cast<size_t>(a.down_slots) * down_bytes * kWarps, sum_bytes(8, 1)) + 16 +
         127) /
        128 * 128;
    const size_t down_smem = planes_at + static_cast<size_t>(rows * down_tiles) * kPlaneBytes;
    const bool many = rows > 4;
    TERRACE_TRY(start(launch, "moe gate and up", many ? up_kernel<true> : up_kernel<false>,
                      dim3(a.up_groups * a.up_parts, slots), dim3(kThreads), up_smem,
                      Start::overlapping, a));
    return start(launch, "moe down", many ? down_kernel<true> : down_kernel<false>,
                 dim3(a.down_groups, slots), dim3(kThreads), down_smem, Start::overlapping, a,
                 static_cast<int>(planes_at));
}

}  // namespace terrace::cuda
