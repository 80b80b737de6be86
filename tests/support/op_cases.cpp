// SPDX-License-Identifier: MIT
#include "support/op_case_steps.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

namespace terrace::test {
uint64_t mix(uint64_t a, uint64_t b) {
    return Random(a * 0x9E3779B97F4A7C15u + b).next();
}

void append(std::vector<float>& to, const std::vector<float>& from) {
    to.insert(to.end(), from.begin(), from.end());
}

// What the rows of an endless batch or token stream hold.
std::vector<float> rows_of(uint64_t seed, uint64_t tag, int first, int rows, size_t width,
                           float scale) {
    std::vector<float> out;
    out.reserve(static_cast<size_t>(rows) * width);
    for (int r = first; r < first + rows; ++r)
        append(out, case_numbers(seed, tag, static_cast<uint64_t>(r), width, scale));
    return out;
}

std::vector<float> seq_rows(const std::vector<SeqCase>& seqs, uint64_t tag, size_t width,
                            float scale) {
    std::vector<float> out;
    for (const SeqCase& s : seqs)
        append(out, rows_of(s.seed, tag, s.pos0, s.rows, width, scale));
    return out;
}

std::vector<float> spoiled(std::vector<float> rows, const Spoil& s, size_t width) {
    if (s.row >= 0)
        rows[static_cast<size_t>(s.row) * width + static_cast<size_t>(s.column)] = s.value;
    return rows;
}

namespace {

// The rule of ops/args.h, RowKind; neighbours of one kind share a run.
std::vector<RowRun> row_runs(const std::vector<SeqRows>& seqs) {
    std::vector<RowRun> runs;
    const auto add = [&](int row0, int n, RowKind kind) {
        if (n == 0) return;
        if (!runs.empty() && runs.back().kind == kind)
            runs.back().n_rows += n;
        else
            runs.push_back({row0, n, kind});
    };
    for (const SeqRows& s : seqs) {
        const int tail = s.n_rows % kGdnChunk, decoded = tail <= kDecodeRows ? tail : 0;
        add(s.row0, s.n_rows - decoded, RowKind::prefill);
        add(s.row0 + s.n_rows - decoded, decoded, RowKind::decode);
    }
    return runs;
}

}  // namespace

// Pages of all sequences in one shuffled order, with a hole of one unused page per sequence.
Step make_step(Rig& rig, const std::vector<SeqCase>& cases, uint64_t page_seed, int mapped_pages) {
    Step step;
    std::vector<int32_t> row_seq;
    int row0 = 0, total = 0;
    for (size_t i = 0; i < cases.size(); ++i) {
        const SeqCase& c = cases[i];
        const int pages = (c.pos0 + c.rows + kPageTokens - 1) / kPageTokens;
        // Slots run against the order of the sequences, so that mixing the two shows.
        step.seqs.push_back(
            {row0, c.rows, c.pos0, total, pages, static_cast<int32_t>(cases.size() - 1 - i)});
        row_seq.insert(row_seq.end(), static_cast<size_t>(c.rows), static_cast<int32_t>(i));
        row0 += c.rows;
        total += pages;
    }
    step.n_pages = (mapped_pages ? mapped_pages : total) + static_cast<int>(cases.size());
    std::vector<int32_t> physical(static_cast<size_t>(step.n_pages));
    std::iota(physical.begin(), physical.end(), 0);
    Random random(page_seed);
    for (size_t i = physical.size(); i > 1; --i)
        std::swap(physical[i - 1],
                  physical[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
    for (int i = 0; i < total; ++i)
        step.table.push_back(physical[static_cast<size_t>(mapped_pages ? i % mapped_pages : i)]);
    step.rows = {row0,
                 static_cast<int32_t>(cases.size()),
                 rig.upload(step.seqs),
                 rig.upload(step.table),
                 rig.upload(row_seq),
                 step.seqs.data(),
                 {}};
    step.runs = row_runs(step.seqs);
    step.rows.runs = {step.runs.data(), static_cast<int32_t>(step.runs.size())};
    return step;
}

namespace {

void put(std::byte* plane, PlaneType type, size_t element, const std::vector<float>& values) {
    for (size_t i = 0; i < values.size(); ++i) {
        if (type == PlaneType::f32) {
            std::memcpy(plane + 4 * (element + i), &values[i], 4);
        } else {
            const uint16_t h = f32_to_f16(values[i]);
            std::memcpy(plane + 2 * (element + i), &h, 2);
        }
    }
}

void get(const std::byte* plane, PlaneType type, size_t element, size_t n,
         std::vector<float>& out) {
    for (size_t i = 0; i < n; ++i) {
        float v;
        if (type == PlaneType::f32) {
            std::memcpy(&v, plane + 4 * (element + i), 4);
        } else {
            uint16_t h;
            std::memcpy(&h, plane + 2 * (element + i), 2);
            v = f16_to_f32(h);
        }
        out.push_back(v);
    }
}

// K, V, raw and pooled planes of a step on the device; all poison but what the tokens hold.
struct Planes {
    RowSource kv;
    IndexPlanes index;
    size_t kv_bytes = 0, raw_bytes = 0, pooled_bytes = 0;
    size_t mirror_bytes = 0;
    std::vector<int32_t> slots;  // of the mirror's groups
};

// Moves about half of the groups of blocks from `home` to a mirror, in another order.
std::vector<std::byte> move_to_mirror(const QsaCase& c, std::vector<std::byte>& home,
                                      std::vector<int32_t>& slots) {
    const size_t group = (size_t{2} << c.mirror_shift) *
                         static_cast<size_t>(c.block_tokens * c.kv_heads * c.head_dim) *
                         plane_bytes(c.type);
    const size_t groups = home.size() / group;
    slots.assign(groups, -1);
    Random random(mix(c.page_seed, 77));
    std::vector<size_t> chosen;
    for (size_t g = 0; g < groups; ++g)
        if (random.below(2) == 0)
            chosen.insert(chosen.begin() + random.below(static_cast<int64_t>(chosen.size()) + 1),
                          g);
    std::vector<std::byte> mirror(std::max(chosen.size(), size_t{1}) * group, std::byte{0xff});
    for (size_t i = 0; i < chosen.size(); ++i) {
        slots[chosen[i]] = static_cast<int32_t>(i);
        const auto from = home.begin() + static_cast<int64_t>(chosen[i] * group);
        std::copy(from, from + static_cast<int64_t>(group),
                  mirror.begin() + static_cast<int64_t>(i * group));
        std::fill(from, from + static_cast<int64_t>(group), std::byte{0xff});
    }
    return mirror;
}

size_t kv_element(const QsaCase& c, int page, int offset, int half, int head) {
    const size_t half_extent =
        static_cast<size_t>(c.block_tokens) * static_cast<size_t>(c.kv_heads * c.head_dim);
    const int extent = page * (kPageTokens / c.block_tokens) + offset / c.block_tokens;
    return (static_cast<size_t>(extent) * 2 + static_cast<size_t>(half)) * half_extent +
           static_cast<size_t>((offset % c.block_tokens) * c.kv_heads + head) *
               static_cast<size_t>(c.head_dim);
}

enum class Filled { none, history, all };

Planes make_planes(Rig& rig, const QsaCase& c, const Step& step, Filled kv, Filled raw,
                   Filled pooled) {
    const size_t pages = static_cast<size_t>(step.n_pages), el = plane_bytes(c.type);
    Planes p;
    p.kv_bytes = pages * kPageTokens * 2 * static_cast<size_t>(c.kv_heads * c.head_dim) * el;
    p.raw_bytes = pages * kPageTokens * static_cast<size_t>(c.index_dim) * el;
    p.pooled_bytes = p.raw_bytes / static_cast<size_t>(c.block_tokens);
    std::vector<std::byte> kv_host(p.kv_bytes, std::byte{0xff});
    std::vector<std::byte> raw_host(p.raw_bytes, std::byte{0xff});
    std::vector<std::byte> pooled_host(p.pooled_bytes, std::byte{0xff});
    const size_t hd = static_cast<size_t>(c.head_dim), id = static_cast<size_t>(c.index_dim);
    for (size_t s = 0; s < c.seqs.size(); ++s) {
        const SeqRows& seq = step.seqs[s];
        const uint64_t seed = c.seqs[s].seed;
        const auto tokens = [&](Filled f) {
            return f == Filled::none ? 0 : f == Filled::history ? seq.pos0 : seq.pos0 + seq.n_rows;
        };
        for (int pos = 0; pos < seq.pos0 + seq.n_rows; ++pos) {
            const int page = step.table[static_cast<size_t>(seq.table_offset + pos / kPageTokens)];
            const int offset = pos % kPageTokens;
            const auto at = static_cast<uint64_t>(pos);
            if (pos < tokens(kv))
                for (int h = 0; h < c.kv_heads; ++h)
                    for (int half = 0; half < 2; ++half)
                        put(kv_host.data(), c.type, kv_element(c, page, offset, half, h),
                            case_numbers(seed, 100 + static_cast<uint64_t>(2 * h + half), at, hd));
            const size_t token = static_cast<size_t>(page * kPageTokens + offset);
            if (pos < tokens(raw))
                put(raw_host.data(), c.type, token * id, case_numbers(seed, 90, at, id));
            if (pos < tokens(pooled) && pos % c.block_tokens == 0)
                put(pooled_host.data(), c.type, token / static_cast<size_t>(c.block_tokens) * id,
                    case_numbers(seed, 91, at, id));
        }
    }
    std::vector<std::byte> mirror;
    if (c.mirror_shift >= 0) mirror = move_to_mirror(c, kv_host, p.slots);
    auto* kv_dev = static_cast<std::byte*>(rig.upload_bytes(kv_host.data(), p.kv_bytes, 0));
    auto* raw_dev = static_cast<std::byte*>(rig.upload_bytes(raw_host.data(), p.raw_bytes, 0));
    auto* pooled_dev =
        static_cast<std::byte*>(rig.upload_bytes(pooled_host.data(), p.pooled_bytes, 0));
    p.kv = {kv_dev, c.type, c.kv_heads, c.head_dim, c.block_tokens};
    if (c.mirror_shift >= 0) {
        p.mirror_bytes = mirror.size();
        p.kv.mirror = static_cast<std::byte*>(rig.upload_bytes(mirror.data(), mirror.size(), 0));
        p.kv.slots = rig.upload(p.slots).device_pointer();
        p.kv.group_shift = c.mirror_shift;
    }
    p.index = {raw_dev, pooled_dev, c.type, c.index_dim, c.block_tokens};
    return p;
}

OpsLimits qsa_limits(const QsaCase& c, const Step& step) {
    OpsLimits l;
    l.rows = step.rows.n_rows;
    l.heads = c.heads;
    l.head_dim = c.head_dim;
    for (const SeqRows& s : step.seqs)
        l.max_blocks = std::max(l.max_blocks, s.n_pages * (kPageTokens / c.block_tokens));
    l.top_blocks = c.top;
    return l;
}

OpsLimits hyper_limits(const HyperCase& c) {
    OpsLimits l;
    l.rows = c.rows;
    l.hidden = c.hidden;
    l.streams = c.streams;
    l.rank = c.rank;
    l.widest = c.streams * c.hidden;
    return l;
}

}  // namespace

Rig::Rig(std::unique_ptr<Device> device, std::unique_ptr<Ops> ops)
    : device_(std::move(device)), stream_(must(device_->make_stream())), ops_(std::move(ops)) {}

void* Rig::upload_bytes(const void* data, size_t bytes, size_t misalign) {
    buffers_.push_back(
        must(device_->allocate(bytes + misalign + 64, MemSpace::device, Fill::unspecified)));
    std::byte* to = buffers_.back().device_pointer() + misalign;
    if (bytes > 0) must(stream_->copy(to, data, bytes));
    must(stream_->synchronize());
    return to;
}

void Rig::download_bytes(void* to, const void* from, size_t bytes) {
    if (bytes > 0) must(stream_->copy(to, from, bytes));
    must(stream_->synchronize());
}

void Rig::call(const std::function<Status(Ops&, Stream&)>& op) {
    const int64_t before = probe ? probe() : 0;
    Status status = op(*ops_, *stream_);
    if (probe) allocations += probe() - before;
    EXPECT_OK(status);
    must(stream_->synchronize());
}

void Rig::reserve(const OpsLimits& limits) {
    if (keep_first_limits && reserved_) return;
    EXPECT_OK(ops_->reserve(limits));
    reserved_ = true;
}

double nmse(std::span<const float> a, std::span<const float> reference) {
    if (a.size() != reference.size()) return INFINITY;
    double error = 0, power = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        const double d = static_cast<double>(a[i]) - static_cast<double>(reference[i]);
        error += d * d;
        power += static_cast<double>(reference[i]) * static_cast<double>(reference[i]);
    }
    const double ratio = power > 0 ? error / power : error;
    return std::isnan(ratio) ? INFINITY : ratio;
}

std::vector<float> case_numbers(uint64_t seed, uint64_t tag, uint64_t index, size_t n,
                                float scale) {
    Random random(mix(mix(seed, tag), index));
    // Sum of four uniforms: bell-shaped enough, and twenty times cheaper than normals.
    std::vector<float> out(n);
    for (float& x : out) {
        const uint64_t bits = random.next();
        const auto sum = static_cast<int32_t>((bits & 0xffff) + (bits >> 16 & 0xffff) +
                                              (bits >> 32 & 0xffff) + (bits >> 48));
        x = static_cast<float>(sum - 131070) * (scale / 37837.0f);
    }
    return out;
}

PlainTensor make_plain(Rig& rig, const std::vector<float>& values, DType dtype) {
    const auto size = static_cast<int64_t>(values.size());
    if (dtype == DType::f32)
        return {rig.upload_bytes(values.data(), values.size() * 4, rig.weight_misalign()), dtype,
                size};
    std::vector<uint16_t> bits(values.size());
    for (size_t i = 0; i < values.size(); ++i)
        bits[i] = dtype == DType::bf16 ? f32_to_bf16(values[i]) : f32_to_f16(values[i]);
    return {rig.upload_bytes(bits.data(), bits.size() * 2, rig.weight_misalign()), dtype, size};
}

LinearWeight make_plain_linear(Rig& rig, uint64_t seed, int in, int out, DType dtype) {
    LinearWeight w;
    w.kind = LinearKind::plain;
    w.in = in;
    w.out = out;
    w.plain =
        make_plain(rig,
                   case_numbers(seed, 7, 0, static_cast<size_t>(in) * static_cast<size_t>(out),
                                1.0f / std::sqrt(static_cast<float>(in))),
                   dtype);
    return w;
}

LinearWeight make_exl3_linear(Rig& rig, uint64_t seed, int in, int out, int n16,
                              Codebook codebook) {
    const auto padded = [](int n) { return (n + 127) / 128 * 128; };
    LinearWeight w;
    w.kind = LinearKind::exl3;
    w.in = in;
    w.out = out;
    w.exl3.in = padded(in);
    w.exl3.out = padded(out);
    w.exl3.n16 = n16;
    w.exl3.codebook = codebook;
    Random random(seed);
    std::vector<uint16_t> trellis(w.exl3.trellis_bytes() / 2);
    for (uint16_t& t : trellis)
        t = static_cast<uint16_t>(random.next());
    w.exl3.trellis = static_cast<const uint16_t*>(
        rig.upload_bytes(trellis.data(), trellis.size() * 2, rig.weight_misalign()));
    const auto signs = [&](int n, float scale) {
        std::vector<uint16_t> v(static_cast<size_t>(n));
        for (uint16_t& s : v) {
            const float magnitude = scale * (0.75f + 0.5f * static_cast<float>(random.uniform()));
            s = f32_to_f16(random.next() & 1 ? magnitude : -magnitude);
        }
        return static_cast<const f16*>(
            rig.upload_bytes(v.data(), v.size() * 2, rig.weight_misalign()));
    };
    w.exl3.suh = signs(w.exl3.in, 1.0f);
    w.exl3.svh = signs(w.exl3.out, 1.0f / std::sqrt(static_cast<float>(in)));
    return w;
}

HyperResult run_hyper_read(Rig& rig, const HyperCase& c) {
    const auto wide = static_cast<size_t>(c.streams * c.hidden);
    HyperWeights w;
    w.norm = make_plain(rig, case_numbers(1, 1, 0, wide, 0.3f), c.dtype);
    w.down = make_plain_linear(rig, 2, c.streams * c.hidden, c.rank, c.dtype);
    w.up = make_plain_linear(rig, 3, c.rank, c.streams * c.hidden, c.dtype);
    if (c.inject) w.inject = make_plain_linear(rig, 4, c.streams * c.hidden, c.streams, c.dtype);
    HyperReadArgs a;
    a.h = rig.upload(rows_of(5, 1, c.first, c.rows, wide, 3.0f));
    a.weights = &w;
    a.x = rig.poisoned<float>(static_cast<size_t>(c.rows * c.hidden));
    if (c.inject) a.inj = rig.poisoned<float>(static_cast<size_t>(c.rows * c.streams));
    a.rows = c.rows;
    a.streams = c.streams;
    a.hidden = c.hidden;
    a.rank = c.rank;
    a.runs = {c.runs.data(), static_cast<int32_t>(c.runs.size())};
    if (c.add) {
        a.add_y = rig.upload(rows_of(5, 2, c.first, c.rows, static_cast<size_t>(c.hidden)));
        a.add_inj = rig.upload(rows_of(5, 3, c.first, c.rows, static_cast<size_t>(c.streams)));
    }
    rig.reserve(hyper_limits(c));
    rig.call([&](Ops& ops, Stream& s) { return ops.hyper_read(s, a); });
    HyperResult r{rig.download(a.x), rig.download(a.inj), rig.download(a.h)};
    rig.forget_buffers();
    return r;
}

std::vector<float> run_hyper_write(Rig& rig, const HyperCase& c) {
    HyperWriteArgs a;
    a.h =
        rig.upload(rows_of(5, 1, c.first, c.rows, static_cast<size_t>(c.streams * c.hidden), 3.0f));
    a.y = rig.upload(rows_of(5, 2, c.first, c.rows, static_cast<size_t>(c.hidden)));
    a.inj = rig.upload(rows_of(5, 3, c.first, c.rows, static_cast<size_t>(c.streams)));
    a.rows = c.rows;
    a.streams = c.streams;
    a.hidden = c.hidden;
    rig.reserve(hyper_limits(c));
    rig.call([&](Ops& ops, Stream& s) { return ops.hyper_write(s, a); });
    auto out = rig.download(a.h);
    rig.forget_buffers();
    return out;
}

std::vector<float> run_embed(Rig& rig, const HyperCase& c) {
    constexpr int kVocab = 50;
    EmbedArgs a;
    std::vector<int32_t> tokens;
    for (int r = c.first; r < c.first + c.rows; ++r)
        tokens.push_back((r * 31 + 7) % kVocab);
    a.tokens = rig.upload(tokens);
    a.table =
        make_plain(rig, case_numbers(9, 1, 0, static_cast<size_t>(kVocab * c.hidden)), c.dtype);
    a.h = rig.poisoned<float>(static_cast<size_t>(c.rows * c.streams * c.hidden));
    a.rows = c.rows;
    a.streams = c.streams;
    a.hidden = c.hidden;
    rig.reserve(hyper_limits(c));
    rig.call([&](Ops& ops, Stream& s) { return ops.embed(s, a); });
    auto out = rig.download(a.h);
    rig.forget_buffers();
    return out;
}

std::vector<std::vector<float>> run_linear(Rig& rig, const LinearCase& c) {
    LinearArgs a;
    OpsLimits limits;
    limits.rows = c.rows;
    limits.widest = c.in;
    std::vector<LinearWeight> weights;
    for (size_t j = 0; j < c.jobs.size(); ++j) {
        const LinearCase::Job& job = c.jobs[j];
        weights.push_back(job.n16
                              ? make_exl3_linear(rig, 20 + j, c.in, job.out, job.n16, job.codebook)
                              : make_plain_linear(rig, 20 + j, c.in, job.out, job.dtype));
        limits.widest = std::max(limits.widest, job.out);
    }
    a.x_stride = c.in + 3;  // a stride that suits no vector
    std::vector<float> x;
    for (int r = c.first; r < c.first + c.rows; ++r) {
        append(x, case_numbers(6, 1, static_cast<uint64_t>(r), static_cast<size_t>(c.in)));
        x.insert(x.end(), 3, NAN);
    }
    a.x = rig.upload(spoiled(x, c.spoil, static_cast<size_t>(a.x_stride)));
    a.rows = c.rows;
    a.n_jobs = static_cast<int32_t>(c.jobs.size());
    a.runs = {c.runs.data(), static_cast<int32_t>(c.runs.size())};
    for (size_t j = 0; j < c.jobs.size(); ++j) {
        const int64_t stride = c.jobs[j].out + 5;
        a.jobs[j] = {&weights[j], rig.poisoned<float>(static_cast<size_t>(stride * c.rows)),
                     stride};
    }
    rig.reserve(limits);
    rig.call([&](Ops& ops, Stream& s) { return ops.linear(s, a); });
    std::vector<std::vector<float>> out;
    for (size_t j = 0; j < c.jobs.size(); ++j) {
        const auto full = rig.download(a.jobs[j].y);
        std::vector<float> y;
        for (int r = 0; r < c.rows; ++r) {
            const auto row = full.begin() + r * a.jobs[j].y_stride;
            y.insert(y.end(), row, row + c.jobs[j].out);
            for (int i = 0; i < 5; ++i)
                EXPECT_TRUE(std::isnan(row[c.jobs[j].out + i])) << "wrote beyond column out";
        }
        out.push_back(std::move(y));
    }
    rig.forget_buffers();
    return out;
}

QsaPrepared run_qsa_prepare(Rig& rig, const QsaCase& c) {
    const Step step = make_step(rig, c.seqs, c.page_seed, c.mapped_pages);
    const Planes planes = make_planes(rig, c, step, Filled::none, Filled::none, Filled::none);
    const size_t rows = static_cast<size_t>(step.rows.n_rows), hd = static_cast<size_t>(c.head_dim),
                 id = static_cast<size_t>(c.index_dim), heads = static_cast<size_t>(c.heads),
                 kvh = static_cast<size_t>(c.kv_heads), ih = static_cast<size_t>(c.index_heads);
    QsaPrepareArgs a;
    a.step = step.rows;
    a.qg = rig.upload(seq_rows(c.seqs, 1, heads * 2 * hd));
    a.k = rig.upload(seq_rows(c.seqs, 2, kvh * hd));
    a.v = rig.upload(seq_rows(c.seqs, 3, kvh * hd));
    a.ix = rig.upload(seq_rows(c.seqs, 4, (ih + 1) * id));
    a.q_norm = make_plain(rig, case_numbers(1, 1, 0, hd, 0.3f), c.norm_dtype);
    a.k_norm = make_plain(rig, case_numbers(1, 2, 0, hd, 0.3f), c.norm_dtype);
    a.index_q_norm = make_plain(rig, case_numbers(1, 3, 0, id, 0.3f), c.norm_dtype);
    a.q = rig.poisoned<float>(rows * heads * hd);
    a.iq = rig.poisoned<float>(rows * ih * id);
    a.kv = planes.kv;
    if (c.mirror_is_staged) {
        a.staged = planes.kv;
        a.kv.slots = nullptr;
    }
    a.index = planes.index;
    a.rope = {c.rope_dims, c.theta};
    a.heads = c.heads;
    a.index_heads = c.index_heads;
    rig.reserve(qsa_limits(c, step));
    rig.call([&](Ops& ops, Stream& s) { return ops.qsa_prepare(s, a); });
    QsaPrepared out;
    out.q = rig.download(a.q);
    out.iq = rig.download(a.iq);
    std::vector<std::byte> kv(planes.kv_bytes), raw(planes.raw_bytes);
    rig.download_bytes(kv.data(), planes.kv.base, kv.size());
    rig.download_bytes(raw.data(), planes.index.raw, raw.size());
    std::vector<std::byte> mirror(planes.mirror_bytes);
    if (!mirror.empty()) rig.download_bytes(mirror.data(), planes.kv.mirror, mirror.size());
    for (const SeqRows& seq : step.seqs)
        for (int pos = seq.pos0; pos < seq.pos0 + seq.n_rows; ++pos) {
            const int page = step.table[static_cast<size_t>(seq.table_offset + pos / kPageTokens)];
            const int offset = pos % kPageTokens;
            if (!mirror.empty()) {
                // The same bytes at home and in the mirror.
                RowSource host = planes.kv;
                host.base = kv.data(), host.mirror = mirror.data(),
                host.slots = planes.slots.data();
                const int block = offset / c.block_tokens;
                const size_t row = host.half_extent_bytes() / static_cast<size_t>(c.block_tokens),
                             at = static_cast<size_t>(offset % c.block_tokens) * row;
                if (const std::byte* copy = host.mirrored(page, block))
                    for (const size_t half : {size_t{0}, host.half_extent_bytes()}) {
                        if (!copy) continue;
                        const std::byte* const home = host.home(page, block);
                        EXPECT_EQ(std::memcmp(copy + half + at, home + half + at, row), 0)
                            << "position " << pos << " is stale in the mirror";
                    }
            }
            for (int h = 0; h < c.kv_heads; ++h) {
                get(kv.data(), c.type, kv_element(c, page, offset, 0, h), hd, out.k);
                get(kv.data(), c.type, kv_element(c, page, offset, 1, h), hd, out.v);
            }
            get(raw.data(), c.type, static_cast<size_t>(page * kPageTokens + offset) * id, id,
                out.raw);
        }
    rig.forget_buffers();
    return out;
}

std::vector<float> run_qsa_pool(Rig& rig, const QsaCase& c) {
    const Step step = make_step(rig, c.seqs, c.page_seed);
    const Planes planes = make_planes(rig, c, step, Filled::none, Filled::all, Filled::none);
    const auto id = static_cast<size_t>(c.index_dim);
    QsaPoolArgs a;
    a.step = step.rows;
    a.index = planes.index;
    a.norm = make_plain(rig, case_numbers(1, 4, 0, id, 0.3f), c.norm_dtype);
    a.rope = {c.rope_dims, c.theta};
    rig.reserve(qsa_limits(c, step));
    rig.call([&](Ops& ops, Stream& s) { return ops.qsa_pool(s, a); });
    std::vector<std::byte> pooled(planes.pooled_bytes);
    rig.download_bytes(pooled.data(), planes.index.pooled, pooled.size());
    std::vector<float> out;
    for (const SeqRows& seq : step.seqs)
        for (int b = seq.pos0 / c.block_tokens; (b + 1) * c.block_tokens <= seq.pos0 + seq.n_rows;
             ++b) {
            const int pos = b * c.block_tokens;
            const int page = step.table[static_cast<size_t>(seq.table_offset + pos / kPageTokens)];
            get(pooled.data(), c.type,
                static_cast<size_t>((page * kPageTokens + pos % kPageTokens) / c.block_tokens) * id,
                id, out);
        }
    rig.forget_buffers();
    return out;
}

std::vector<float> run_index_scores(Rig& rig, const QsaCase& c) {
    const Step step = make_step(rig, c.seqs, c.page_seed);
    const Planes planes = make_planes(rig, c, step, Filled::none, Filled::none, Filled::all);
    const OpsLimits limits = qsa_limits(c, step);
    IndexScoresArgs a;
    a.step = step.rows;
    const auto iq_width = static_cast<size_t>(c.index_heads * c.index_dim);
    a.iq = rig.upload(spoiled(seq_rows(c.seqs, 5, iq_width), c.spoil, iq_width));
    a.index = planes.index;
    a.first_row = c.first_row;
    a.rows = c.rows < 0 ? step.rows.n_rows - c.first_row : c.rows;
    a.stride = limits.max_blocks + 3;
    a.scores = rig.poisoned<float>(static_cast<size_t>(a.rows * a.stride));
    a.index_heads = c.index_heads;
    rig.reserve(limits);
    rig.call([&](Ops& ops, Stream& s) { return ops.index_scores(s, a); });
    const auto full = rig.download(a.scores);
    std::vector<float> out;
    for (int r = 0; r < a.rows; ++r)
        for (const SeqRows& seq : step.seqs) {
            const int row = c.first_row + r;
            if (row < seq.row0 || row >= seq.row0 + seq.n_rows) continue;
            const int complete = (seq.pos0 + row - seq.row0 + 1) / c.block_tokens;
            const auto at = full.begin() + r * a.stride;
            out.insert(out.end(), at, at + complete);
            for (auto i = at + complete; i < at + a.stride; ++i)
                EXPECT_TRUE(std::isnan(*i)) << "wrote a score that does not exist";
        }
    rig.forget_buffers();
    return out;
}

std::vector<float> run_attend(Rig& rig, const QsaCase& c) {
    const Step step = make_step(rig, c.seqs, c.page_seed);
    const Planes planes = make_planes(rig, c, step, Filled::all, Filled::none, Filled::none);
    const size_t rows = static_cast<size_t>(step.rows.n_rows), hd = static_cast<size_t>(c.head_dim),
                 heads = static_cast<size_t>(c.heads);
    AttendArgs a;
    a.step = step.rows;
    a.q = rig.upload(spoiled(seq_rows(c.seqs, 6, heads * hd), c.spoil, heads * hd));
    a.qg = rig.upload(seq_rows(c.seqs, 7, heads * 2 * hd));
    a.kv = planes.kv;
    a.first_row = c.first_row;
    a.rows = c.rows < 0 ? step.rows.n_rows - c.first_row : c.rows;
    a.heads = c.heads;
    a.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
    OpsLimits limits = qsa_limits(c, step);
    if (c.top > 0 || c.select_all) {
        a.top = c.select_all ? limits.max_blocks : c.top;
        std::vector<int32_t> blocks(static_cast<size_t>(a.rows * a.top), -7), counts;
        for (int r = 0; r < a.rows; ++r)
            for (size_t s = 0; s < step.seqs.size(); ++s) {
                const SeqRows& seq = step.seqs[s];
                const int row = c.first_row + r;
                if (row < seq.row0 || row >= seq.row0 + seq.n_rows) continue;
                const int pos = seq.pos0 + row - seq.row0;
                std::vector<int32_t> all(static_cast<size_t>((pos + 1) / c.block_tokens));
                std::iota(all.begin(), all.end(), 0);
                Random random(mix(c.seqs[s].seed, static_cast<uint64_t>(pos)));
                while (!c.select_all && static_cast<int>(all.size()) > c.top)
                    all.erase(all.begin() + random.below(static_cast<int64_t>(all.size())));
                std::copy(all.begin(), all.end(), blocks.begin() + int64_t{r} * a.top);
                counts.push_back(static_cast<int32_t>(all.size()));
            }
        a.blocks = rig.upload(blocks);
        a.counts = rig.upload(counts);
    }
    a.out = rig.poisoned<float>(rows * heads * hd);
    rig.reserve(limits);
    if (!c.passes.empty())
        a.state =
            rig.poisoned<std::byte>(rig.ops().attend_state_bytes(a.rows, a.heads, c.head_dim));
    for (size_t pass = 0; pass <= c.passes.size(); ++pass) {
        const int per_page = kPageTokens / c.block_tokens;
        a.from_block = pass == 0 ? 0 : c.passes[pass - 1] * per_page;
        a.end_block = pass == c.passes.size() ? kLastPass : c.passes[pass] * per_page;
        rig.call([&](Ops& ops, Stream& s) { return ops.attend(s, a); });
    }
    const auto full = rig.download(a.out);
    const auto from = full.begin() + c.first_row * static_cast<int64_t>(heads * hd);
    std::vector<float> out(from, from + a.rows * static_cast<int64_t>(heads * hd));
    rig.forget_buffers();
    return out;
}

std::vector<std::vector<int32_t>> run_select(Rig& rig, const SelectCase& c) {
    const Step step = make_step(rig, {{1, c.pos0, c.rows}}, 1);
    SelectBlocksArgs a;
    a.step = step.rows;
    a.rows = c.rows;
    a.top = c.top;
    const int most = (c.pos0 + c.rows) / a.block_tokens;
    a.stride = most + 1;
    std::vector<float> scores(static_cast<size_t>(a.rows * a.stride), NAN);
    for (int r = 0; r < c.rows; ++r)
        for (int b = 0; b < (c.pos0 + r + 1) / a.block_tokens; ++b)
            scores[static_cast<size_t>(r * a.stride + b)] = c.score(r, b);
    a.scores = rig.upload(scores);
    a.blocks = rig.poisoned<int32_t>(static_cast<size_t>(c.rows * c.top));
    a.counts = rig.poisoned<int32_t>(static_cast<size_t>(c.rows));
    OpsLimits limits;
    limits.rows = c.rows;
    limits.max_blocks = most + 1;
    limits.top_blocks = c.top;
    rig.reserve(limits);
    rig.call([&](Ops& ops, Stream& s) { return ops.select_blocks(s, a); });
    const auto blocks = rig.download(a.blocks);
    const auto counts = rig.download(a.counts);
    std::vector<std::vector<int32_t>> out;
    for (int r = 0; r < c.rows; ++r) {
        const auto at = blocks.begin() + int64_t{r} * c.top;
        out.emplace_back(at, at + std::clamp(counts[static_cast<size_t>(r)], 0, c.top));
    }
    rig.forget_buffers();
    return out;
}

}  // namespace terrace::test
