// Cases of the operations that work row by row or on recurrent state: delta net, n-gram injection,
// router, experts.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <numeric>

#include "support/op_case_steps.h"

namespace terrace::test {
namespace {

ExpertWeights make_expert(Rig& rig, const MoeCase& c, ExpertKind kind, uint64_t seed, int width) {
    ExpertWeights e;
    const bool exl3 = kind == ExpertKind::exl3 || (kind == ExpertKind::mixed && seed % 2 == 0);
    const auto linear = [&](uint64_t tag, int in, int out) {
        const uint64_t s = mix(seed, tag);
        if (exl3) {
            const int bits = kind == ExpertKind::mixed ? 16 * (2 + static_cast<int>(seed % 5)) : 64;
            return make_exl3_linear(rig, s, in, out, bits, c.codebook);
        }
        constexpr DType kTypes[] = {DType::bf16, DType::f16, DType::f32};
        return make_plain_linear(rig, s, in, out, kTypes[seed % 3]);
    };
    e.gate = linear(1, c.hidden, width);
    e.up = linear(2, c.hidden, width);
    e.down = linear(3, width, c.hidden);
    return e;
}

}  // namespace

RecurrentResult run_gdn(Rig& rig, const GdnCase& c) {
    const Step step = make_step(rig, c.seqs, 1);
    const size_t channels = static_cast<size_t>(2 * c.k_heads * c.k_dim + c.v_heads * c.v_dim),
                 vw = static_cast<size_t>(c.v_heads * c.v_dim), hv = static_cast<size_t>(c.v_heads),
                 taps = static_cast<size_t>(c.kernel - 1),
                 rows = static_cast<size_t>(step.rows.n_rows),
                 state_size = vw * static_cast<size_t>(c.k_dim);
    GdnArgs a;
    a.step = step.rows;
    a.qkv = rig.upload(seq_rows(c.seqs, 11, channels));
    a.z = rig.upload(seq_rows(c.seqs, 12, vw));
    a.a = rig.upload(seq_rows(c.seqs, 13, hv));
    a.b = rig.upload(seq_rows(c.seqs, 14, hv));
    a.conv = make_plain(rig, case_numbers(1, 21, 0, channels * static_cast<size_t>(c.kernel), 0.5f),
                        c.dtype);
    a.a_log = make_plain(rig, case_numbers(1, 22, 0, hv, 0.5f), DType::f32);
    auto dt = case_numbers(1, 23, 0, hv);
    for (float& v : dt)
        v += c.decay_bias;
    a.dt_bias = make_plain(rig, dt, c.dtype);
    a.norm = make_plain(rig, case_numbers(1, 24, 0, static_cast<size_t>(c.v_dim)), c.dtype);
    std::vector<float> state, conv;
    for (size_t i = c.seqs.size(); i-- > 0;) {  // slots run against the order of the sequences
        append(state, case_numbers(c.seqs[i].seed, 25, 0, state_size, 0.2f));
        append(conv, case_numbers(c.seqs[i].seed, 26, 0, taps * channels));
    }
    if (!c.state.empty()) state = c.state;
    if (!c.conv_state.empty()) conv = c.conv_state;
    a.state = rig.upload(state);
    a.conv_state = rig.upload(conv);
    a.out = rig.poisoned<float>(rows * vw);
    a.k_heads = c.k_heads;
    a.v_heads = c.v_heads;
    a.k_dim = c.k_dim;
    a.v_dim = c.v_dim;
    a.kernel = c.kernel;
    OpsLimits limits;
    limits.rows = step.rows.n_rows;
    limits.gdn_v_heads = c.v_heads;
    limits.gdn_k_dim = c.k_dim;
    limits.gdn_v_dim = c.v_dim;
    limits.gdn_channels = static_cast<int32_t>(channels);
    rig.reserve(limits);
    rig.call([&](Ops& ops, Stream& s) { return ops.gdn(s, a); });
    RecurrentResult r;
    for (const SeqRows& seq : step.seqs) {
        const size_t n = static_cast<size_t>(seq.n_rows), slot = static_cast<size_t>(seq.slot);
        r.out.push_back(rig.download(a.out.sub(static_cast<size_t>(seq.row0) * vw, n * vw)));
        r.state.push_back(rig.download(a.state.sub(slot * state_size, state_size)));
        r.conv.push_back(rig.download(a.conv_state.sub(slot * taps * channels, taps * channels)));
    }
    rig.forget_buffers();
    return r;
}

RecurrentResult run_ple(Rig& rig, const PleCase& c) {
    const Step step = make_step(rig, c.seqs, 1);
    const size_t wide = static_cast<size_t>(c.streams * c.hidden),
                 history = static_cast<size_t>((c.kernel - 1) * c.dilation),
                 rows = static_cast<size_t>(step.rows.n_rows);
    PleInjectArgs a;
    a.step = step.rows;
    a.h = rig.upload(seq_rows(c.seqs, 31, wide, 2.0f));
    a.key = rig.upload(seq_rows(c.seqs, 32, wide));
    a.value = rig.upload(seq_rows(c.seqs, 33, static_cast<size_t>(c.hidden)));
    a.norm_key = make_plain(rig, case_numbers(1, 34, 0, wide, 0.3f), c.dtype);
    a.norm_query = make_plain(rig, case_numbers(1, 35, 0, wide, 0.3f), c.dtype);
    a.norm_conv = make_plain(rig, case_numbers(1, 36, 0, wide, 0.3f), c.dtype);
    a.conv = make_plain(rig, case_numbers(1, 37, 0, wide * static_cast<size_t>(c.kernel), 0.5f),
                        c.dtype);
    std::vector<float> state;
    for (size_t i = c.seqs.size(); i-- > 0;)
        append(state, case_numbers(c.seqs[i].seed, 38, 0, history * wide));
    a.state = rig.upload(state);
    a.streams = c.streams;
    a.hidden = c.hidden;
    a.kernel = c.kernel;
    a.dilation = c.dilation;
    OpsLimits limits;
    limits.rows = static_cast<int32_t>(rows);
    limits.hidden = c.hidden;
    limits.streams = c.streams;
    limits.widest = static_cast<int32_t>(wide);
    rig.reserve(limits);
    rig.call([&](Ops& ops, Stream& s) { return ops.ple_inject(s, a); });
    RecurrentResult r;
    for (const SeqRows& seq : step.seqs) {
        r.out.push_back(rig.download(
            a.h.sub(static_cast<size_t>(seq.row0) * wide, static_cast<size_t>(seq.n_rows) * wide)));
        r.state.push_back(rig.download(
            a.state.sub(static_cast<size_t>(seq.slot) * history * wide, history * wide)));
    }
    rig.forget_buffers();
    return r;
}

RouteResult run_route(Rig& rig, const RouteCase& c) {
    RouteArgs a;
    LinearWeight router;
    if (c.logit) {  // row r is the r-th unit vector
        const auto rows = static_cast<size_t>(c.rows);
        std::vector<float> x(rows * rows, 0.0f), w;
        for (size_t r = 0; r < rows; ++r)
            x[r * rows + r] = 1.0f;
        for (int e = 0; e < c.experts; ++e)
            for (int r = 0; r < c.rows; ++r)
                w.push_back(c.logit(r, e));
        a.x = rig.upload(x);
        router.kind = LinearKind::plain;
        router.in = c.rows;
        router.out = c.experts;
        router.plain = make_plain(rig, w, DType::f32);
    } else {
        const auto wide = static_cast<size_t>(c.hidden);
        a.x = rig.upload(spoiled(rows_of(6, 1, c.first, c.rows, wide, 3.0f), c.spoil, wide));
        router = make_plain_linear(rig, 7, c.hidden, c.experts, c.dtype);
    }
    a.router = &router;
    a.logits = rig.poisoned<float>(static_cast<size_t>(c.rows * c.experts));
    a.ids = rig.poisoned<int32_t>(static_cast<size_t>(c.rows * c.k));
    a.weights = rig.poisoned<float>(static_cast<size_t>(c.rows * c.k));
    a.rows = c.rows;
    a.experts = c.experts;
    a.k = c.k;
    a.renormalise = c.renormalise;
    a.runs = {c.runs.data(), static_cast<int32_t>(c.runs.size())};
    OpsLimits limits;
    limits.rows = c.rows;
    limits.hidden = router.in;
    limits.widest = std::max(router.in, c.experts);
    limits.experts = c.experts;
    limits.k = c.k;
    rig.reserve(limits);
    rig.call([&](Ops& ops, Stream& s) { return ops.route(s, a); });
    RouteResult r{rig.download(a.ids), rig.download(a.weights)};
    rig.forget_buffers();
    return r;
}

std::vector<float> run_moe(Rig& rig, const MoeCase& c) {
    std::vector<ExpertWeights> experts;
    for (int e = 0; e < c.experts; ++e)
        experts.push_back(make_expert(rig, c, c.kind, 1000 + static_cast<uint64_t>(e), c.width));
    const ExpertWeights shared = make_expert(rig, c, c.shared, 2000, c.shared_width);
    const LinearWeight gate = make_plain_linear(rig, 3000, c.hidden, 1, DType::bf16);
    std::vector<int32_t> ids;
    std::vector<float> weights;
    for (int r = c.first; r < c.first + c.rows; ++r) {
        Random random(mix(77, static_cast<uint64_t>(r)));
        std::vector<int32_t> all(static_cast<size_t>(c.experts));
        std::iota(all.begin(), all.end(), 0);
        for (int j = 0; j < c.k; ++j) {
            std::swap(all[static_cast<size_t>(j)],
                      all[static_cast<size_t>(j + random.below(c.experts - j))]);
            if (j == 0 && c.favourite >= 0)
                std::swap(all[0], *std::find(all.begin(), all.end(), c.favourite));
            ids.push_back(all[static_cast<size_t>(j)]);
            weights.push_back(static_cast<float>(random.uniform()));
        }
    }
    MoeArgs a;
    const auto wide = static_cast<size_t>(c.hidden);
    a.x = rig.upload(spoiled(rows_of(8, 1, c.first, c.rows, wide), c.spoil, wide));
    a.ids = rig.upload(ids);
    a.weights = rig.upload(weights);
    a.table = {experts.data(), c.experts, rig.upload(experts)};
    a.runs = {c.runs.data(), static_cast<int32_t>(c.runs.size())};
    if (c.with_shared) {
        a.shared = &shared;
        a.shared_gate = &gate;
    }
    a.y = rig.poisoned<float>(static_cast<size_t>(c.rows * c.hidden));
    a.rows = c.rows;
    a.hidden = c.hidden;
    a.width = c.width;
    a.shared_width = c.with_shared ? c.shared_width : 0;
    a.k = c.k;
    OpsLimits limits;
    limits.rows = c.rows;
    limits.hidden = c.hidden;
    limits.widest = std::max({c.hidden, c.width, c.shared_width});
    limits.experts = c.experts;
    limits.k = c.k;
    limits.moe_width = c.width;
    limits.shared_width = c.shared_width;
    rig.reserve(limits);
    rig.call([&](Ops& ops, Stream& s) { return ops.moe(s, a); });
    auto out = rig.download(a.y);
    rig.forget_buffers();
    return out;
}

}  // namespace terrace::test
