// Routed and shared experts on the CPU: CpuOps::route and moe. Engine thread only.
//
// (row, slot) pairs are grouped by expert, ascending rows inside a group; the shared expert is one
// more group with every row. Four parallel sections for any number of rows:
//   pack     each pair's input for gate and for up (each has its own signs), the shared gate's dot
//   gate+up  (group, 128 columns): both products, SwiGLU, and the packing of down's input block
//   down     (group, 128 columns) into one result per pair
//   combine  per row: slots ascending, then the shared expert
// Invariant: a pair's results depend on its row and expert only, so neither grouping nor the split
// of long calls into blocks of rows changes a bit.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "cpu/cpu_ops.h"

namespace terrace {
namespace {

size_t up64(size_t n) {
    return (n + 63) / 64 * 64;
}

// Bound of the [pairs][hidden] result buffer; the inputs take about twice that once more.
constexpr size_t kMoeResultBytes = size_t{64} << 20;
constexpr int kMaxSlots = 64;
constexpr int kCombineColumns = 512;

}  // namespace

struct CpuOps::MoePlan {
    // Where the parts of the shared scratch are, for `pairs` pairs.
    struct Group {
        const ExpertWeights* expert = nullptr;
        int first = 0, n = 0;  // pairs
        int width = 0;
        int32_t first_task = 0;  // gate+up tasks before this group
    };
    Group* groups = nullptr;  // [min(experts, rows * k) + 1]
    int n_groups = 0, n_up_tasks = 0;
    int32_t* first_pair = nullptr;  // [experts + 1]
    int32_t* pair_row = nullptr;    // [pairs] row of the block
    int32_t* pair_of = nullptr;     // [rows][k] pair of a slot
    std::byte *gate_in = nullptr, *up_in = nullptr, *down_in = nullptr;
    float *gate = nullptr, *up = nullptr, *result = nullptr;
    size_t in_bytes = 0, down_bytes = 0;  // of one packed row
    int widest = 0, pairs = 0;
    size_t total = 0;

    const Group& group_of_up_task(int32_t task) const {
        const Group* g =
            std::upper_bound(groups, groups + n_groups, task,
                             [](int32_t t, const Group& x) { return t < x.first_task; });
        return g[-1];
    }
    LinearPieces::Input input(std::byte* base, size_t row_bytes, const Group& g) const {
        return {base + static_cast<size_t>(g.first) * row_bytes, g.n};
    }

    // Places every part in `memory`; with null only `total` counts.
    void place(const LinearPieces& pieces, std::byte* memory, int rows, int k, int experts,
               int hidden, int width, int shared_width) {
        size_t at = 0;
        const auto take = [&]<class T>(T*& p, size_t n) {
            p = memory ? reinterpret_cast<T*>(memory + at) : nullptr;
            at += up64(n * sizeof(T));
        };
        const auto slots = static_cast<size_t>(rows) * static_cast<size_t>(k);
        const size_t n = slots + (shared_width > 0 ? static_cast<size_t>(rows) : 0);
        pairs = static_cast<int>(n);
        widest = std::max(width, shared_width);
        in_bytes = pieces.input_bytes(1, hidden);
        down_bytes = pieces.input_bytes(1, widest);
        take(groups, std::min(static_cast<size_t>(experts), slots) + 1);
        take(first_pair, static_cast<size_t>(experts) + 1);
        take(pair_row, n);
        take(pair_of, slots);
        take(gate_in, n * in_bytes);
        take(up_in, n * in_bytes);
        take(down_in, n * down_bytes);
        take(gate, n * static_cast<size_t>(widest));
        take(up, n * static_cast<size_t>(widest));
        take(result, n * static_cast<size_t>(hidden));
        total = at;
    }
};

int CpuOps::moe_block_rows(int rows, int k, int hidden) const {
    const size_t row =
        static_cast<size_t>(k + 1) * static_cast<size_t>(std::max(hidden, 1)) * sizeof(float);
    return static_cast<int>(
        std::clamp<size_t>(kMoeResultBytes / row, 1, static_cast<size_t>(std::max(rows, 1))));
}

CpuOps::Layout CpuOps::moe_layout(int rows, int k, int experts, int hidden, int width,
                                  int shared_width) const {
    MoePlan plan;
    plan.place(pieces_, nullptr, moe_block_rows(rows, k, hidden), k, experts, hidden, width,
               shared_width);
    Layout l;
    l.shared = plan.total;
    l.rows = up64(static_cast<size_t>(rows) * sizeof(float));
    l.thread = up64(column_scratch_bytes(kExl3RowChunk));
    return l;
}

Status CpuOps::route(Stream& stream, const RouteArgs& a) {
    if (a.k < 1 || a.k > a.experts)
        return Error{Code::invalid_argument,
                     fmt::format("route: {} of {} experts", a.k, a.experts)};
    LinearArgs l;
    l.x = a.x;
    l.x_stride = a.router->in;
    l.rows = a.rows;
    l.n_jobs = 1;
    l.jobs[0] = {a.router, a.logits, a.experts};
    TERRACE_TRY(linear(stream, l));
    tasks(a.rows, [&](int64_t r, int) {
        kernels_.ops.route({a.logits.device_pointer() + r * a.experts, a.experts, a.k,
                            a.renormalise == Renormalise::yes ? 1 : 0,
                            a.ids.device_pointer() + r * a.k,
                            a.weights.device_pointer() + r * a.k});
    });
    return {};
}

Status CpuOps::moe(Stream& stream, const MoeArgs& a) {
    if (a.k < 1 || a.k > kMaxSlots)
        return Error{Code::unsupported,
                     fmt::format("moe: {} experts a row, at most {}", a.k, kMaxSlots)};
    const int shared_width = a.shared ? a.shared_width : 0;
    TERRACE_TRY(need("moe", moe_layout(a.rows, a.k, a.table.n, a.hidden, a.width, shared_width)));
    const auto check = [&](const ExpertWeights& e, int width) -> Status {
        TERRACE_TRY(LinearPieces::check(e.gate, a.hidden, width, "moe gate"));
        TERRACE_TRY(LinearPieces::check(e.up, a.hidden, width, "moe up"));
        return LinearPieces::check(e.down, width, a.hidden, "moe down");
    };
    for (int64_t i = 0; i < int64_t{a.rows} * a.k; ++i) {
        const int id = a.ids.device_pointer()[i];
        if (id < 0 || id >= a.table.n)
            return Error{Code::invalid_argument, fmt::format("moe: row {} asks for expert {} of {}",
                                                             i / a.k, id, a.table.n)};
        TERRACE_TRY(check(a.table.experts[id], a.width));
    }
    if (a.shared) {
        if (!a.shared_gate)
            return Error{Code::invalid_argument, "moe: a shared expert without its gate"};
        TERRACE_TRY(check(*a.shared, a.shared_width));
        TERRACE_TRY(LinearPieces::check(*a.shared_gate, a.hidden, 1, "moe shared gate"));
        if (a.shared_gate->kind != LinearKind::plain) {  // plain ones join the first section
            LinearArgs l;
            l.x = a.x;
            l.x_stride = a.hidden;
            l.rows = a.rows;
            l.n_jobs = 1;
            l.jobs[0] = {a.shared_gate, {row_scratch(), static_cast<size_t>(a.rows)}, 1};
            TERRACE_TRY(linear(stream, l));
        }
    }
    const int block = moe_block_rows(a.rows, a.k, a.hidden);
    for (int r = 0; r < a.rows; r += block)
        moe_block(a, r, std::min(block, a.rows - r));
    return {};
}

// Counting sort of the block's pairs by expert.
void CpuOps::moe_plan(const MoeArgs& a, int first_row, int rows, MoePlan& p) const {
    const int32_t* ids = a.ids.device_pointer() + int64_t{first_row} * a.k;
    const int slots = rows * a.k;
    p.place(pieces_, shared_scratch(), rows, a.k, a.table.n, a.hidden, a.width,
            a.shared ? a.shared_width : 0);
    std::fill_n(p.first_pair, a.table.n + 1, 0);
    for (int i = 0; i < slots; ++i)
        ++p.first_pair[ids[i] + 1];
    for (int e = 0; e < a.table.n; ++e) {
        const int n = p.first_pair[e + 1];
        p.first_pair[e + 1] += p.first_pair[e];
        if (n == 0) continue;
        p.groups[p.n_groups++] = {&a.table.experts[e], p.first_pair[e], n, a.width, p.n_up_tasks};
        p.n_up_tasks += column_blocks_of(a.width);
    }
    for (int i = 0; i < slots; ++i) {
        const int pair = p.first_pair[ids[i]]++;
        p.pair_row[pair] = i / a.k;
        p.pair_of[i] = pair;
    }
    if (!a.shared) return;
    p.groups[p.n_groups++] = {a.shared, slots, rows, a.shared_width, p.n_up_tasks};
    p.n_up_tasks += column_blocks_of(a.shared_width);
    for (int r = 0; r < rows; ++r)
        p.pair_row[slots + r] = r;
}

void CpuOps::moe_block(const MoeArgs& a, int first_row, int rows) {
    MoePlan p;
    moe_plan(a, first_row, rows, p);
    const float* x = a.x.device_pointer() + int64_t{first_row} * a.hidden;
    const auto shidden = static_cast<size_t>(a.hidden), swidest = static_cast<size_t>(p.widest);
    const int in_blocks = column_blocks_of(a.hidden), slots = rows * a.k;
    float* shared_gate = row_scratch() + first_row;
    const bool gate_here = a.shared && a.shared_gate->kind == LinearKind::plain;

    // A task packs up to ten blocks: a decode pair of the real model is then two tasks of 1 us.
    const int span = 10, spans = (in_blocks + span - 1) / span;
    const int gate_rows = 16;
    const int64_t pack_tasks = int64_t{p.pairs} * 2 * spans;
    const int64_t gate_tasks = gate_here ? (rows + gate_rows - 1) / gate_rows : 0;
    tasks(gate_tasks + pack_tasks, [&](int64_t task, int) {
        if (task < gate_tasks) {
            const int r = static_cast<int>(task) * gate_rows;
            return dense_outputs(kernels_, dense_weight(*a.shared_gate), 0, 1, x + r * a.hidden,
                                 shidden, std::min(gate_rows, rows - r), shared_gate + r, 1);
        }
        task -= gate_tasks;
        const int pair = static_cast<int>(task / (2 * spans));
        const int begin = static_cast<int>(task % spans) * span;
        const bool is_up = task / spans % 2 != 0;
        const auto* g =
            std::upper_bound(p.groups, p.groups + p.n_groups, pair,
                             [](int i, const MoePlan::Group& y) { return i < y.first; }) -
            1;
        pieces_.pack(is_up ? g->expert->up : g->expert->gate,
                     p.input(is_up ? p.up_in : p.gate_in, p.in_bytes, *g), pair - g->first,
                     x + int64_t{p.pair_row[pair]} * a.hidden, begin,
                     std::min(begin + span, in_blocks));
    });

    tasks(p.n_up_tasks, [&](int64_t task, int worker) {
        const MoePlan::Group& g = p.group_of_up_task(static_cast<int32_t>(task));
        const int block = static_cast<int>(task) - g.first_task;
        float* gate = p.gate + static_cast<size_t>(g.first) * swidest;
        float* up = p.up + static_cast<size_t>(g.first) * swidest;
        const bool more = (block + 1) * kColumnBlock < g.width;
        pieces_.columns(g.expert->gate, p.input(p.gate_in, p.in_bytes, g), block, gate, swidest,
                        thread_scratch(worker), &g.expert->up, block);
        pieces_.columns(g.expert->up, p.input(p.up_in, p.in_bytes, g), block, up, swidest,
                        thread_scratch(worker), more ? &g.expert->gate : nullptr, block + 1);
        const int first = block * kColumnBlock, n = std::min(kColumnBlock, g.width - first);
        for (int r = 0; r < g.n; ++r) {
            float* h = gate + static_cast<size_t>(r) * swidest;
            kernels_.ops.swiglu(
                {h + first, up + static_cast<size_t>(r) * swidest + first, h + first, n});
            pieces_.pack(g.expert->down, p.input(p.down_in, p.down_bytes, g), r, h, block,
                         block + 1);
        }
    });

    tasks(int64_t{p.n_groups} * in_blocks, [&](int64_t task, int worker) {
        const MoePlan::Group& g = p.groups[task / in_blocks];
        const int block = static_cast<int>(task % in_blocks);
        pieces_.columns(g.expert->down, p.input(p.down_in, p.down_bytes, g), block,
                        p.result + static_cast<size_t>(g.first) * shidden, shidden,
                        thread_scratch(worker), block + 1 < in_blocks ? &g.expert->down : nullptr,
                        block + 1);
    });

    const int col_tasks = (a.hidden + kCombineColumns - 1) / kCombineColumns;
    tasks(int64_t{rows} * col_tasks, [&](int64_t task, int) {
        const int r = static_cast<int>(task / col_tasks);
        const int begin = static_cast<int>(task % col_tasks) * kCombineColumns;
        const float* terms[kMaxSlots + 1];
        float weights[kMaxSlots + 1];
        int n = 0;
        for (; n < a.k; ++n) {
            const int pair = p.pair_of[r * a.k + n];
            terms[n] = p.result + static_cast<size_t>(pair) * shidden + begin;
            weights[n] = a.weights.device_pointer()[int64_t{first_row + r} * a.k + n];
        }
        if (a.shared) {
            terms[n] = p.result + static_cast<size_t>(slots + r) * shidden + begin;
            float twice;  // 2 sigmoid; halving is exact
            kernels_.ops.unary({Unary::two_sigmoid, 1.0f, shared_gate + r, &twice, 1});
            weights[n++] = 0.5f * twice;
        }
        kernels_.ops.combine({terms, weights, n,
                              a.y.device_pointer() + int64_t{first_row + r} * a.hidden + begin,
                              std::min(kCombineColumns, a.hidden - begin)});
    });
}

}  // namespace terrace
