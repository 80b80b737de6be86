// SPDX-License-Identifier: MIT
#include "ops/emulated_ops.h"

#include <algorithm>

#include "device/emulated_device.h"
#include "ops/mirror_args.h"

namespace terrace {
namespace {

using Touched = std::vector<MemoryAccess>;

template <class T>
void reads(Touched& t, DevSpan<T> span) {
    t.push_back({reinterpret_cast<const std::byte*>(span.device_pointer()), span.size() * sizeof(T),
                 AccessKind::read});
}
template <class T>
void writes(Touched& t, DevSpan<T> span) {
    t.push_back({reinterpret_cast<const std::byte*>(span.device_pointer()), span.size() * sizeof(T),
                 AccessKind::write});
}
void reads(Touched& t, const PlainTensor& p) {
    t.push_back({static_cast<const std::byte*>(p.data),
                 static_cast<size_t>(p.size) * dtype_bytes(p.dtype), AccessKind::read});
}
void reads(Touched& t, const LinearWeight& w) {
    if (w.kind == LinearKind::plain) reads(t, w.plain);
    if (w.kind != LinearKind::exl3) return;
    t.push_back({reinterpret_cast<const std::byte*>(w.exl3.trellis), w.exl3.trellis_bytes(),
                 AccessKind::read});
}

constexpr size_t z(int64_t v) {
    return static_cast<size_t>(v);
}

// First n elements of a span: buffers are sized for the largest step, a step touches its own part.
template <class T>
DevSpan<T> first(DevSpan<T> s, int64_t n) {
    return s.empty() ? s : s.sub(0, z(n));
}

// The host side of a step, owned by a queued call.
struct HostStep {
    std::vector<SeqRows> seqs;
    std::vector<RowRun> runs;

    explicit HostStep(const StepRows& s) : HostStep(s.runs) {
        for (int32_t i = 0; s.host_seqs && i < s.n_seqs; ++i) {
            SeqRows seq = s.host_seqs[i];
            seq.pos0 = seq.table_offset = seq.n_pages = seq.slot = -1;
            seqs.push_back(seq);
        }
    }
    explicit HostStep(const RowRuns& r) : runs(r.data, r.data + r.n) {}
    void give(StepRows& s) const {
        s.host_seqs = seqs.data();
        give(s.runs);
    }
    void give(RowRuns& r) const { r = {runs.data(), static_cast<int32_t>(runs.size())}; }
};

void reads_step(Touched& t, const StepRows& s) {
    reads(t, first(s.seqs, s.n_seqs));
    reads(t, first(s.row_seq, s.n_rows));
}

// Calls f(page, first token, tokens) for the parts of pages that hold positions [from, to) of a
// sequence. Device memory must be readable.
template <class F>
void pages_of(const StepRows& s, const SeqRows& seq, int32_t from, int32_t to, F&& f) {
    for (int32_t pos = from; pos < to;) {
        const int32_t page = s.block_tables.device_pointer()[seq.table_offset + pos / kPageTokens];
        const int32_t offset = pos % kPageTokens, n = std::min(kPageTokens - offset, to - pos);
        f(page, offset, n);
        pos += n;
    }
}

void touch_kv(Touched& t, const RowSource& kv, int32_t page, int32_t offset, int32_t n,
              AccessKind kind) {
    const int32_t bt = kv.block_tokens, last = (offset + n - 1) / bt;
    const size_t bytes = 2 * kv.half_extent_bytes();
    for (int32_t b = offset / bt; b <= last; ++b) {
        if (kv.slots)
            t.push_back({reinterpret_cast<const std::byte*>(kv.slots +
                                                            (kv.number(page, b) >> kv.group_shift)),
                         sizeof(int32_t), AccessKind::read});
        const std::byte* const mirrored = kv.mirrored(page, b);
        if (kind == AccessKind::write || !mirrored) t.push_back({kv.home(page, b), bytes, kind});
        if (mirrored) t.push_back({mirrored, bytes, kind});
    }
}

MemoryAccess raw_rows(const IndexPlanes& p, int32_t page, int32_t offset, int32_t n,
                      AccessKind kind) {
    const size_t row = z(p.dim) * plane_bytes(p.type);
    return {p.raw + (z(page) * kPageTokens + z(offset)) * row, z(n) * row, kind};
}

MemoryAccess pooled_rows(const IndexPlanes& p, int32_t page, int32_t offset, int32_t n,
                         AccessKind kind) {
    const size_t row = z(p.dim) * plane_bytes(p.type), bt = z(p.block_tokens);
    return {p.pooled + (z(page) * (kPageTokens / bt) + z(offset) / bt) * row,
            (z(n) + bt - 1) / bt * row, kind};
}

class EmulatedOps final : public Ops {
  public:
    explicit EmulatedOps(std::unique_ptr<Ops> inner)
        : inner_(std::move(inner)),
          host_(make_host_device()),
          inline_(std::move(host_->make_stream()).value()),
          name_("emulated " + inner_->name()) {}

    const std::string& name() const override { return name_; }
    size_t workspace_bytes(const OpsLimits& l) const override { return inner_->workspace_bytes(l); }
    Status reserve(const OpsLimits& l) override { return inner_->reserve(l); }
    size_t attend_state_bytes(int32_t rows, int32_t heads, int32_t head_dim) const override {
        return inner_->attend_state_bytes(rows, heads, head_dim);
    }

    Status embed(Stream& s, const EmbedArgs& a) override {
        return queue(
            s, "embed",
            [a](Touched& t) {
                reads(t, first(a.tokens, a.rows));
                reads(t, a.table);
                writes(t, first(a.h, int64_t{a.rows} * a.streams * a.hidden));
            },
            [this, a] { return inner_->embed(*inline_, a); });
    }

    Status hyper_read(Stream& s, const HyperReadArgs& a) override {
        return queue(
            s, "hyper_read",
            [a](Touched& t) {
                const DevSpan<float> h = first(a.h, int64_t{a.rows} * a.streams * a.hidden);
                if (a.add_y.empty())
                    reads(t, h);
                else
                    writes(t, h);
                reads(t, first(a.add_y, int64_t{a.rows} * a.hidden));
                reads(t, first(a.add_inj, int64_t{a.rows} * a.streams));
                reads(t, a.weights->down);
                reads(t, a.weights->up);
                writes(t, first(a.x, int64_t{a.rows} * a.hidden));
                writes(t, first(a.inj, int64_t{a.rows} * a.streams));
            },
            with_runs(a,
                      [this](const HyperReadArgs& b) { return inner_->hyper_read(*inline_, b); }));
    }

    Status hyper_write(Stream& s, const HyperWriteArgs& a) override {
        return queue(
            s, "hyper_write",
            [a](Touched& t) {
                writes(t, first(a.h, int64_t{a.rows} * a.streams * a.hidden));
                reads(t, first(a.y, int64_t{a.rows} * a.hidden));
                reads(t, first(a.inj, int64_t{a.rows} * a.streams));
            },
            [this, a] { return inner_->hyper_write(*inline_, a); });
    }

    Status linear(Stream& s, const LinearArgs& a) override {
        return queue(
            s, "linear",
            [a](Touched& t) {
                reads(t, first(a.x, int64_t{a.rows} * a.x_stride));
                for (int32_t j = 0; j < a.n_jobs; ++j) {
                    reads(t, *a.jobs[j].weight);
                    writes(t, first(a.jobs[j].y, int64_t{a.rows} * a.jobs[j].y_stride));
                }
            },
            with_runs(a, [this](const LinearArgs& b) { return inner_->linear(*inline_, b); }));
    }

    Status gdn(Stream& s, const GdnArgs& a) override {
        return queue(
            s, "gdn",
            [a](Touched& t) {
                reads_step(t, a.step);
                const int64_t rows = a.step.n_rows, values = int64_t{a.v_heads} * a.v_dim;
                const int64_t channels = 2 * int64_t{a.k_heads} * a.k_dim + values;
                reads(t, first(a.qkv, rows * channels));
                reads(t, first(a.z, rows * values));
                writes(t, first(a.out, rows * values));
                for (int32_t i = 0; i < a.step.n_seqs; ++i) {
                    const int64_t slot = a.step.seqs.device_pointer()[i].slot;
                    const int64_t state = values * a.k_dim, conv = (a.kernel - 1) * channels;
                    writes(t, a.state.sub(z(slot * state), z(state)));
                    writes(t, a.conv_state.sub(z(slot * conv), z(conv)));
                }
            },
            with_step(a, [this](const GdnArgs& b) { return inner_->gdn(*inline_, b); }));
    }

    Status qsa_prepare(Stream& s, const QsaPrepareArgs& a) override {
        return queue(
            s, "qsa_prepare",
            [a](Touched& t) {
                reads_step(t, a.step);
                const int64_t rows = a.step.n_rows;
                reads(t, first(a.qg, rows * a.heads * 2 * a.kv.head_dim));
                reads(t, first(a.k, rows * a.kv.kv_heads * a.kv.head_dim));
                reads(t, first(a.v, rows * a.kv.kv_heads * a.kv.head_dim));
                reads(t, first(a.ix, rows * (a.index_heads + 1) * a.index.dim));
                writes(t, first(a.q, rows * a.heads * a.kv.head_dim));
                writes(t, first(a.iq, rows * a.index_heads * a.index.dim));
                for_new_rows(a.step, [&](int32_t page, int32_t offset, int32_t n) {
                    touch_kv(t, a.kv, page, offset, n, AccessKind::write);
                    if (a.staged.slots) touch_kv(t, a.staged, page, offset, n, AccessKind::write);
                    t.push_back(raw_rows(a.index, page, offset, n, AccessKind::write));
                });
            },
            with_step(
                a, [this](const QsaPrepareArgs& b) { return inner_->qsa_prepare(*inline_, b); }));
    }

    Status qsa_pool(Stream& s, const QsaPoolArgs& a) override {
        return queue(
            s, "qsa_pool",
            [a](Touched& t) {
                reads_step(t, a.step);
                for_new_rows(a.step, [&](int32_t page, int32_t offset, int32_t n) {
                    const int32_t before = offset % a.index.block_tokens;
                    t.push_back(
                        raw_rows(a.index, page, offset - before, n + before, AccessKind::read));
                    t.push_back(
                        pooled_rows(a.index, page, offset - before, n + before, AccessKind::write));
                });
            },
            with_step(a, [this](const QsaPoolArgs& b) { return inner_->qsa_pool(*inline_, b); }));
    }

    Status index_scores(Stream& s, const IndexScoresArgs& a) override {
        return queue(
            s, "index_scores",
            [a](Touched& t) {
                reads_step(t, a.step);
                reads(t, first(a.iq, int64_t{a.step.n_rows} * a.index_heads * a.index.dim));
                writes(t, first(a.scores, a.rows * a.stride));
                for_history(
                    a.step, a.first_row, a.rows, 0, kLastPass,
                    [&](int32_t page, int32_t offset, int32_t n) {
                        t.push_back(pooled_rows(a.index, page, offset, n, AccessKind::read));
                    });
            },
            with_step(
                a, [this](const IndexScoresArgs& b) { return inner_->index_scores(*inline_, b); }));
    }

    Status select_blocks(Stream& s, const SelectBlocksArgs& a) override {
        return queue(
            s, "select_blocks",
            [a](Touched& t) {
                reads_step(t, a.step);
                reads(t, first(a.scores, a.rows * a.stride));
                writes(t, first(a.blocks, int64_t{a.rows} * a.top));
                writes(t, first(a.counts, a.rows));
            },
            with_step(a, [this](const SelectBlocksArgs& b) {
                return inner_->select_blocks(*inline_, b);
            }));
    }

    Status resolve_blocks(Stream& s, const ResolveBlocksArgs& a) override {
        return queue(
            s, "resolve_blocks",
            [a](Touched& t) {
                reads_step(t, a.step);
                reads(t, first(a.blocks, int64_t{a.rows} * a.top));
                reads(t, first(a.counts, a.rows));
                const BlockMirror& m = a.mirror;
                const auto all = [&t](const auto* data, int64_t n, AccessKind kind) {
                    t.push_back(
                        {reinterpret_cast<const std::byte*>(data), z(n) * sizeof(*data), kind});
                };
                all(m.head, 1, AccessKind::write);
                all(m.owner, m.n, AccessKind::write);
                all(m.used, m.n, AccessKind::write);
                all(m.spare, 2 * m.spares_most(), AccessKind::write);
                // Entries of blocks that slots hold may be unpublished: all between the first and the
                // last of them. What the rows ask for is looked up, and copied to any slot.
                int32_t first_owned = INT32_MAX, last_owned = -1;
                for (int32_t slot = 0; slot < m.n; ++slot) {
                    if (m.owner[slot] < 0) continue;
                    first_owned = std::min(first_owned, m.owner[slot]);
                    last_owned = std::max(last_owned, m.owner[slot]);
                }
                if (last_owned >= 0)
                    all(m.slots + first_owned, int64_t{last_owned} - first_owned + 1,
                        AccessKind::write);
                all(a.kv.mirror, m.n * static_cast<int64_t>(2 * a.kv.half_extent_bytes()),
                    AccessKind::write);
                for_history(a.step, a.first_row, a.rows, 0, kLastPass,
                            [&](int32_t page, int32_t offset, int32_t n) {
                                const int32_t from = offset / a.kv.block_tokens;
                                const int32_t to = (offset + n - 1) / a.kv.block_tokens;
                                all(m.slots + a.kv.number(page, from), to - from + 1,
                                    AccessKind::write);
                                t.push_back({a.kv.home(page, from),
                                             z(to - from + 1) * 2 * a.kv.half_extent_bytes(),
                                             AccessKind::read});
                            });
            },
            with_step(a, [this](const ResolveBlocksArgs& b) {
                return inner_->resolve_blocks(*inline_, b);
            }));
    }

    Status attend(Stream& s, const AttendArgs& a) override {
        return queue(
            s, "attend",
            [a](Touched& t) {
                reads_step(t, a.step);
                const int64_t all = int64_t{a.step.n_rows} * a.heads * a.kv.head_dim;
                reads(t, first(a.q, all));
                reads(t, first(a.blocks, int64_t{a.rows} * a.top));
                reads(t, first(a.counts, a.rows));
                const int64_t row = int64_t{a.heads} * a.kv.head_dim;
                if (a.last_pass()) writes(t, a.out.sub(z(a.first_row * row), z(a.rows * row)));
                writes(t, a.state);
                const int32_t bt = a.kv.block_tokens;
                for_history(a.step, a.first_row, a.rows, a.from_block * bt,
                            a.last_pass() ? kLastPass : a.end_block * bt,
                            [&](int32_t page, int32_t offset, int32_t n) {
                                touch_kv(t, a.kv, page, offset, n, AccessKind::read);
                            });
            },
            with_step(a, [this](const AttendArgs& b) { return inner_->attend(*inline_, b); }));
    }

    Status route(Stream& s, const RouteArgs& a) override {
        return queue(
            s, "route",
            [a](Touched& t) {
                reads(t, first(a.x, int64_t{a.rows} * a.router->in));
                reads(t, *a.router);
                writes(t, first(a.logits, int64_t{a.rows} * a.experts));
                writes(t, first(a.ids, int64_t{a.rows} * a.k));
                writes(t, first(a.weights, int64_t{a.rows} * a.k));
            },
            with_runs(a, [this](const RouteArgs& b) { return inner_->route(*inline_, b); }));
    }

    // The wrapped operations read the host's entries, so those are refreshed from the device's, as a
    // kernel would read them.
    Status moe(Stream& s, const MoeArgs& a) override {
        return queue(
            s, "moe",
            [a](Touched& t) {
                reads(t, first(a.x, int64_t{a.rows} * a.hidden));
                reads(t, first(a.ids, int64_t{a.rows} * a.k));
                reads(t, first(a.weights, int64_t{a.rows} * a.k));
                reads(t, a.table.device);
                writes(t, first(a.y, int64_t{a.rows} * a.hidden));
                for (int64_t i = 0; i < int64_t{a.rows} * a.k; ++i) {
                    const int32_t id = a.ids.device_pointer()[i];
                    if (id < 0 || id >= a.table.n) continue;  // refused by the operation
                    const ExpertWeights& e = a.table.device.device_pointer()[id];
                    for (const LinearWeight* w : {&e.gate, &e.up, &e.down})
                        reads(t, *w);
                }
            },
            with_runs(a, [this](const MoeArgs& b) {
                MoeArgs seen = b;
                seen.table.experts = b.table.device.device_pointer();
                return inner_->moe(*inline_, seen);
            }));
    }

    Status ple_inject(Stream& s, const PleInjectArgs& a) override {
        return queue(
            s, "ple_inject",
            [a](Touched& t) {
                reads_step(t, a.step);
                const int64_t rows = a.step.n_rows, wide = int64_t{a.streams} * a.hidden;
                writes(t, first(a.h, rows * wide));
                reads(t, first(a.key, rows * wide));
                reads(t, first(a.value, rows * a.hidden));
                const int64_t state = int64_t{a.kernel - 1} * a.dilation * wide;
                for (int32_t i = 0; i < a.step.n_seqs; ++i)
                    writes(t,
                           a.state.sub(z(a.step.seqs.device_pointer()[i].slot * state), z(state)));
            },
            with_step(a,
                      [this](const PleInjectArgs& b) { return inner_->ple_inject(*inline_, b); }));
    }

    Status gather_rows(Stream& s, const GatherRowsArgs& a) override {
        return queue(
            s, "gather_rows",
            [a](Touched& t) {
                reads(t, first(a.rows, a.n));
                for (int32_t i = 0; i < a.n; ++i)
                    reads(t,
                          a.in.sub(z(int64_t{a.rows.device_pointer()[i]} * a.width), z(a.width)));
                writes(t, first(a.out, int64_t{a.n} * a.width));
            },
            [this, a] { return inner_->gather_rows(*inline_, a); });
    }

    Status sample_candidates(Stream& s, const SampleCandidatesArgs& a) override {
        return queue(
            s, "sample_candidates",
            [a](Touched& t) {
                reads(t, first(a.logits, int64_t{a.rows} * a.vocab));
                reads(t, first(a.inv_temperature, a.rows));
                writes(t, first(a.values, int64_t{a.rows} * a.k));
                writes(t, first(a.ids, int64_t{a.rows} * a.k));
                writes(t, first(a.log_sum, a.rows));
            },
            [this, a] { return inner_->sample_candidates(*inline_, a); });
    }

  private:
    static Status queue(Stream& s, const char* what, std::function<void(Touched&)> touch,
                        std::function<Status()> run) {
        return static_cast<EmulatedStream&>(s).enqueue({what, std::move(touch), std::move(run)});
    }

    template <class Args, class F>
    static std::function<Status()> with_runs(const Args& a, F call) {
        return [a, call, host = std::make_shared<const HostStep>(a.runs)] {
            Args b = a;
            host->give(b.runs);
            return call(b);
        };
    }
    template <class Args, class F>
    static std::function<Status()> with_step(const Args& a, F call) {
        return [a, call, host = std::make_shared<const HostStep>(a.step)] {
            Args b = a;
            host->give(b.step);
            return call(b);
        };
    }

    // Parts of pages with the rows that the step adds.
    template <class F>
    static void for_new_rows(const StepRows& s, F&& f) {
        for (int32_t i = 0; i < s.n_seqs; ++i) {
            const SeqRows& seq = s.seqs.device_pointer()[i];
            pages_of(s, seq, seq.pos0, seq.pos0 + seq.n_rows, f);
        }
    }
    // Parts of pages with everything that rows [first_row, first_row + rows) can see of positions
    // [from, to).
    template <class F>
    static void for_history(const StepRows& s, int32_t first_row, int32_t rows, int32_t from,
                            int32_t to, F&& f) {
        for (int32_t i = 0; i < s.n_seqs; ++i) {
            const SeqRows& seq = s.seqs.device_pointer()[i];
            const int32_t last = std::min(seq.row0 + seq.n_rows, first_row + rows) - 1;
            if (last < std::max(seq.row0, first_row)) continue;
            pages_of(s, seq, from, std::min(to, seq.pos0 + last - seq.row0 + 1), f);
        }
    }

    std::unique_ptr<Ops> inner_;
    std::unique_ptr<Device> host_;
    std::unique_ptr<Stream> inline_;
    std::string name_;
};

}  // namespace

std::unique_ptr<Ops> make_emulated_ops(std::unique_ptr<Ops> inner) {
    return std::make_unique<EmulatedOps>(std::move(inner));
}

}  // namespace terrace
