// Entry points of the tiled family: what is launched for a linear and for a layer of experts.
// SPDX-License-Identifier: MIT
#include "cuda/gemm/gemm.h"

#include <algorithm>
#include <bitset>

#include "cuda/gemm/moe.h"
#include "cuda/gemm/plain.h"
#include "cuda/gemm/prep.h"

namespace terrace::cuda {
namespace {

// Experts of more rows are done in pieces: activations of 11 experts a row need 0.2 MB of scratch.
int moe_rows(int k) {
    return std::min(2048, kMaxChoices / k);
}

int64_t up_to(int64_t n, int64_t unit) {
    return (n + unit - 1) / unit * unit;
}
int pad128(int n) {
    return static_cast<int>(up_to(n, 128));
}

Status run_product(const Launch& l, Product& p) {
    if (!l.info->code.wgmma) {
        p.tile_rows = kExpertTileRows;
        return product_sync(l, p);
    }
    const ProductShape shape =
        p.row_tiles ? ProductShape::rows64 : choose_shape(p.rows, p.col_tiles, l.info->sms);
    p.tile_rows = shape_rows(shape);
    return p.codebook == Codebook::mul1 ? product_wgmma_mul1(l, p, shape)
                                        : product_wgmma_xor(l, p, shape);
}

// The distinct (n16, codebook) among some weights, in order of appearance.
class Widths {
  public:
    void add(const LinearWeight& w) {
        if (w.kind != LinearKind::exl3) return;
        const int n16 = w.exl3.n16;
        auto& seen = seen_[static_cast<int>(w.exl3.codebook)];
        if (seen[n16]) return;
        seen[n16] = true;
        list_[n_++] = {n16, w.exl3.codebook};
    }
    struct Width {
        int n16 = 0;
        Codebook codebook = Codebook::mul1;
    };
    const Width* begin() const { return list_; }
    const Width* end() const { return list_ + n_; }

  private:
    std::bitset<129> seen_[3];
    Width list_[3 * 16];
    int n_ = 0;
};

// Products of the sides of `p`, linears, one launch per width.
Status run_linears(const Launch& l, const Product& p) {
    Widths widths;
    for (int i = 0; i < p.n_sides; ++i)
        widths.add(p.side[i].weight);
    for (const Widths::Width& width : widths) {
        Product q = p;
        q.n16 = width.n16;
        q.codebook = width.codebook;
        q.n_sides = q.col_tiles = 0;
        for (int i = 0; i < p.n_sides; ++i) {
            const Exl3Tensor& w = p.side[i].weight.exl3;
            if (w.n16 != width.n16 || w.codebook != width.codebook) continue;
            q.side[q.n_sides++] = p.side[i];
            q.col_tiles += p.side[i].col_tiles;
        }
        TERRACE_TRY(run_product(l, q));
    }
    return {};
}

Status linear_exl3(const Launch& l, const LinearArgs& a, int row0, int rows) {
    const int64_t slots = up_to(rows, kSlotAlign);
    for (int j = 0; j < a.n_jobs;) {
        // As many jobs at a time as the scratch holds.
        Carve carve(l.scratch);
        PrepRows prep;
        prep.x = a.x.device_pointer() + row0 * a.x_stride;
        prep.x_stride = a.x_stride;
        prep.rows = rows;
        prep.slots = slots;
        Product p;
        p.slots = slots;
        p.rows = rows;
        for (; j < a.n_jobs; ++j) {
            const LinearWeight& w = *a.jobs[j].weight;
            if (w.kind != LinearKind::exl3) continue;
            Carve grown = carve;
            auto* x = grown.take<__half>(static_cast<size_t>(slots * w.exl3.in));
            auto* unscale = grown.take<float>(static_cast<size_t>(slots));
            if (grown.used() > l.scratch_bytes) break;
            carve = grown;
            prep.in = w.in;
            prep.side[prep.n_sides++] = {w.exl3.suh, w.exl3.in, x, unscale};
            ProductSide& side = p.side[p.n_sides++];
            side.weight = w;
            side.col_tiles = w.exl3.out / kProductCols;
            side.x = x;
            side.unscale = unscale;
            side.y = a.jobs[j].y.device_pointer() + row0 * a.jobs[j].y_stride;
            side.y_stride = a.jobs[j].y_stride;
        }
        if (p.n_sides == 0)
            return j == a.n_jobs ? Status{} : Error{Code::internal, "gemm_linear: scratch"};
        TERRACE_TRY(prep_rows(l, prep));
        TERRACE_TRY(run_linears(l, p));
    }
    return {};
}

Status linear_plain(const Launch& l, const LinearArgs& a, int row0, int rows) {
    PlainProduct p;
    for (int j = 0; j < a.n_jobs; ++j) {
        const LinearWeight& w = *a.jobs[j].weight;
        if (w.kind != LinearKind::plain) continue;
        p.in = w.in;
        p.jobs[p.n_jobs++] = {w.plain, w.out,
                              a.jobs[j].y.device_pointer() + row0 * a.jobs[j].y_stride,
                              a.jobs[j].y_stride};
    }
    if (p.n_jobs == 0) return {};
    p.rows = rows;
    p.x_stride = up_to(p.in, 64);
    Carve carve(l.scratch);
    auto* x = carve.take<__half>(static_cast<size_t>(rows * p.x_stride));
    auto* unscale = carve.take<float>(static_cast<size_t>(rows));
    if (carve.used() > l.scratch_bytes) return Error{Code::internal, "gemm_linear: scratch"};
    TERRACE_TRY(prep_plain(l, a.x.device_pointer() + row0 * a.x_stride, a.x_stride, rows, p.in, x,
                           p.x_stride, unscale));
    p.x = x;
    p.unscale = unscale;
    return plain_product(l, p);
}

// Scratch of a piece of experts.
struct MoeScratch {
    int64_t slots = 0;
    RowTiles* tiles = nullptr;
    int32_t* slot_of_item = nullptr;
    float *gate_unscale = nullptr, *up_unscale = nullptr, *down_unscale = nullptr;
    __half *gate_x = nullptr, *up_x = nullptr, *down_x = nullptr;
    float *g = nullptr, *u = nullptr;
    // [slots][hidden], f16 or f32; lies where gate_x and up_x, which are done with, were.
    float* e = nullptr;
    float* e_unscale = nullptr;
    float* gate_dot = nullptr;
};

MoeScratch carve_moe(Carve& carve, int rows, int k, int n_experts, int hidden, int width) {
    MoeScratch s;
    const int64_t items = int64_t{rows} * (k + 1);
    const int64_t used = std::min<int64_t>(n_experts + 1, items);
    s.slots = up_to(items + (kSlotAlign - 1) * used, kSlotAlign);
    const int64_t tiles = items / kExpertTileRows + used;
    s.tiles = reinterpret_cast<RowTiles*>(carve.take<int32_t>(static_cast<size_t>(2 + 3 * tiles)));
    const auto n = static_cast<size_t>(s.slots);
    s.slot_of_item = carve.take<int32_t>(static_cast<size_t>(items));
    s.gate_unscale = carve.take<float>(n);
    s.up_unscale = carve.take<float>(n);
    s.down_unscale = carve.take<float>(n);
    s.gate_dot = carve.take<float>(static_cast<size_t>(rows));
    const auto wide = static_cast<size_t>(pad128(hidden));
    s.e_unscale = carve.take<float>(n * wide / 128);
    s.gate_x = carve.take<__half>(n * 2 * wide);
    s.up_x = s.gate_x ? s.gate_x + n * wide : nullptr;
    s.e = reinterpret_cast<float*>(s.gate_x);
    s.g = carve.take<float>(n * static_cast<size_t>(width));
    s.u = carve.take<float>(n * static_cast<size_t>(width));
    s.down_x = carve.take<__half>(n * static_cast<size_t>(pad128(width)));
    return s;
}

// What the table holds: which kernels a layer needs. Follows from the weights, not from the rows.
struct Contents {
    Widths in, down;     // of routed experts
    bool plain[3] = {};  // gate, up, down; the shared expert's too
    bool gated = true;   // every EXL3 gate has an up projection of the same width and codebook
};
Contents contents_of(const MoeArgs& a) {
    Contents c;
    const auto add_plain = [&](const ExpertWeights& e) {
        c.plain[0] |= e.gate.kind == LinearKind::plain;
        c.plain[1] |= e.up.kind == LinearKind::plain;
        c.plain[2] |= e.down.kind == LinearKind::plain;
    };
    for (int i = 0; i < a.table.n; ++i) {
        const ExpertWeights& e = a.table.experts[i];
        add_plain(e);
        c.in.add(e.gate);
        c.in.add(e.up);
        c.down.add(e.down);
        c.gated &=
            e.gate.kind == e.up.kind &&
            (e.gate.kind != LinearKind::exl3 ||
             (e.gate.exl3.n16 == e.up.exl3.n16 && e.gate.exl3.codebook == e.up.exl3.codebook));
    }
    if (a.shared) add_plain(*a.shared);
    return c;
}

Status moe_piece(const Launch& l, const MoeArgs& a, const Contents& contents, int row0, int rows) {
    const int width = std::max(a.width, a.shared ? a.shared_width : 0);
    Carve carve(l.scratch);
    const MoeScratch s = carve_moe(carve, rows, a.k, a.table.n, a.hidden, width);
    if (carve.used() > l.scratch_bytes) return Error{Code::internal, "moe_prefill: scratch"};
    const float* x = a.x.device_pointer() + int64_t{row0} * a.hidden;
    const ExpertWeights* experts = a.table.device.device_pointer();
    const ExpertWeights shared = a.shared ? *a.shared : ExpertWeights{};

    ExpertItems items;
    items.ids = a.ids.device_pointer() + int64_t{row0} * a.k;
    items.rows = rows;
    items.k = a.k;
    items.n_experts = a.table.n;
    items.with_shared = a.shared != nullptr;
    items.tiles = s.tiles;
    items.slot_of_item = s.slot_of_item;
    TERRACE_TRY(group_items(l, items));

    PlainExperts plain;
    plain.items = &items;
    plain.experts = experts;
    plain.shared = shared;
    const auto run_plain = [&](int projection, const float* from, int64_t from_stride, float* to,
                               int64_t to_stride) -> Status {
        plain.projection = projection;
        plain.x = from;
        plain.x_stride = from_stride;
        plain.y = to;
        plain.y_stride = to_stride;
        return plain_experts(l, plain);
    };
    if (contents.plain[0]) TERRACE_TRY(run_plain(0, x, a.hidden, s.g, width));
    if (contents.plain[1]) TERRACE_TRY(run_plain(1, x, a.hidden, s.u, width));

    PrepExperts prep;
    prep.items = &items;
    prep.x = x;
    prep.hidden = a.hidden;
    prep.experts = experts;
    prep.shared = shared;
    prep.slots = s.slots;
    prep.gate_x = s.gate_x;
    prep.up_x = s.up_x;
    prep.gate_unscale = s.gate_unscale;
    prep.up_unscale = s.up_unscale;
    prep.g = s.g;
    prep.u = s.u;
    prep.fused = contents.gated;
    prep.width = width;
    prep.down_x = s.down_x;
    prep.down_unscale = s.down_unscale;

    Product p;
    p.slots = s.slots;
    p.row_tiles = s.tiles;
    p.experts = experts;
    const auto run_products = [&](const Widths& widths) -> Status {
        p.col_tiles = 0;
        for (int i = 0; i < p.n_sides; ++i)
            p.col_tiles += p.side[i].col_tiles;
        for (const Widths::Width& w : widths) {
            p.n16 = w.n16;
            p.codebook = w.codebook;
            TERRACE_TRY(run_product(l, p));
        }
        return {};
    };
    Product dense;  // of the shared expert
    dense.slots = s.slots;
    dense.rows = rows;
    const auto add_shared = [&](const LinearWeight& w, const ProductSide& like) {
        if (w.kind != LinearKind::exl3) return;
        ProductSide& side = dense.side[dense.n_sides++];
        side = like;
        side.weight = w;
        side.col_tiles = w.exl3.out / kProductCols;
    };
    const int col_tiles = pad128(a.width) / kProductCols;
    const ProductSide gate_side{{}, 0, col_tiles, s.gate_x, s.gate_unscale, s.g, width};
    const ProductSide up_side{{}, 1, col_tiles, s.up_x, s.up_unscale, s.u, width};
    TERRACE_TRY(prep_experts_in(l, prep));
    p.n_sides = 2;
    p.gated = contents.gated;
    p.side[0] = gate_side;
    p.side[1] = up_side;
    if (p.gated) p.side[1].y = s.g;
    TERRACE_TRY(run_products(contents.in));
    add_shared(shared.gate, gate_side);
    add_shared(shared.up, up_side);
    TERRACE_TRY(run_linears(l, dense));

    TERRACE_TRY(prep_experts_down(l, prep));
    if (contents.plain[2]) TERRACE_TRY(run_plain(2, s.g, width, s.e, a.hidden));
    float* e_unscale = !contents.plain[2] && a.hidden % 128 == 0 ? s.e_unscale : nullptr;
    const ProductSide down_side{
        {}, 2, pad128(a.hidden) / kProductCols, s.down_x, s.down_unscale, s.e, a.hidden, e_unscale};
    p.n_sides = 1;
    p.gated = false;
    p.side[0] = down_side;
    TERRACE_TRY(run_products(contents.down));
    dense.n_sides = 0;
    add_shared(shared.down, down_side);
    TERRACE_TRY(run_linears(l, dense));

    ExpertSum sum;
    if (a.shared && a.shared_gate->kind == LinearKind::plain) {
        sum.gate = a.shared_gate->plain;
    } else if (a.shared) {
        LinearArgs gate;
        gate.x = a.x;
        gate.x_stride = a.hidden;
        gate.rows = a.rows;
        gate.n_jobs = 1;
        gate.jobs[0] = {a.shared_gate, DevSpan<float>(s.gate_dot - row0, a.x.size()), 1};
        Launch rest = l;
        rest.scratch += carve.used();
        rest.scratch_bytes -= carve.used();
        TERRACE_TRY(linear_exl3(rest, gate, row0, rows));
        sum.gate_dot = s.gate_dot;
    }
    sum.x = x;
    sum.weights = a.weights.device_pointer() + int64_t{row0} * a.k;
    sum.items = &items;
    sum.e = s.e;
    sum.block_unscale = e_unscale;
    sum.y = a.y.device_pointer() + int64_t{row0} * a.hidden;
    sum.hidden = a.hidden;
    return sum_experts(l, sum);
}

}  // namespace

size_t gemm_scratch_bytes(const DeviceInfo&, const OpsLimits& limits) {
    const int64_t rows = up_to(limits.rows, kSlotAlign);
    const auto linear = [&](int in, int jobs) {
        Carve carve(nullptr);
        for (int j = 0; j < jobs; ++j) {
            carve.take<__half>(static_cast<size_t>(rows * pad128(in)));
            carve.take<float>(static_cast<size_t>(rows));
        }
        return carve.used();
    };
    // Four linears of the hidden state at once: the queries, keys, values and index of a layer.
    size_t bytes = std::max(linear(limits.hidden, 4), linear(limits.widest, 1));
    if (limits.experts > 0) {
        Carve carve(nullptr);
        carve_moe(carve, std::min(limits.rows, moe_rows(limits.k)), limits.k, limits.experts,
                  limits.hidden, std::max(limits.moe_width, limits.shared_width));
        bytes = std::max(bytes, carve.used() + linear(limits.hidden, 1));
    }
    return bytes;
}

Status gemm_linear(const Launch& l, const LinearArgs& a, int row0, int n_rows) {
    if (n_rows == 0) return {};
    TERRACE_TRY(linear_exl3(l, a, row0, n_rows));
    return linear_plain(l, a, row0, n_rows);
}

Status gemm_plain(const Launch& l, const PlainTensor& w, int in, int out, const __half* x,
                  int64_t x_stride, int rows, float* y, int64_t y_stride) {
    if (rows == 0) return {};
    PlainProduct p;
    p.in = in;
    p.rows = rows;
    p.x = x;
    p.x_stride = x_stride;
    p.n_jobs = 1;
    p.jobs[0] = {w, out, y, y_stride};
    return plain_product(l, p);
}

Status moe_prefill(const Launch& l, const MoeArgs& a, int row0, int n_rows) {
    const Contents contents = contents_of(a);
    const int most = moe_rows(a.k);
    for (int r = 0; r < n_rows; r += most)
        TERRACE_TRY(moe_piece(l, a, contents, row0 + r, std::min(most, n_rows - r)));
    return {};
}

}  // namespace terrace::cuda
