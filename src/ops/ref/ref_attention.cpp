// Reference: the sparse-attention layer between its projections.
// SPDX-License-Identifier: MIT
#include <algorithm>

#include "ops/ref/ref_math.h"
#include "ops/ref/ref_ops.h"

namespace terrace::ref {
namespace {

struct Place {
    int page;    // physical
    int offset;  // token inside the page
};

Place place_of(const StepRows& step, const SeqRows& seq, int pos) {
    TERRACE_DCHECK(pos / kPageTokens < seq.n_pages);
    return {step.block_tables.device_pointer()[seq.table_offset + pos / kPageTokens],
            pos % kPageTokens};
}

const SeqRows& seq_of(const StepRows& step, int row) {
    return step.seqs.device_pointer()[step.row_seq.device_pointer()[row]];
}

int position(const SeqRows& seq, int row) {
    return seq.pos0 + row - seq.row0;
}

// Bytes from the start of a block to element (offset % block_tokens, head, 0) of K (half 0) or V (1).
size_t head_offset(const RowSource& kv, int offset, int half, int head) {
    const int64_t element = (int64_t{offset % kv.block_tokens} * kv.kv_heads + head) * kv.head_dim;
    return static_cast<size_t>(half) * kv.half_extent_bytes() +
           static_cast<size_t>(element) * plane_bytes(kv.type);
}

const std::byte* kv_head(const StepRows& step, const SeqRows& seq, const RowSource& kv, int pos,
                         int half, int head) {
    const Place p = place_of(step, seq, pos);
    return kv.block(p.page, p.offset / kv.block_tokens) + head_offset(kv, p.offset, half, head);
}

}  // namespace

Status ReferenceOps::qsa_prepare(Stream&, const QsaPrepareArgs& a) {
    const int hd = a.kv.head_dim, id = a.index.dim;
    const double eps = static_cast<double>(a.eps);
    std::vector<double> y(static_cast<size_t>(std::max(hd, id)));
    for (int r = 0; r < a.step.n_rows; ++r) {
        const SeqRows& seq = seq_of(a.step, r);
        const int pos = position(seq, r);
        for (int h = 0; h < a.heads; ++h) {
            const auto x = widen(a.qg.device_pointer() + (int64_t{r} * a.heads + h) * 2 * hd, hd);
            zero_centred_norm(x.data(), hd, a.q_norm, 0, eps, y.data());
            rope(y.data(), a.rope, pos);
            std::copy_n(y.begin(), hd, a.q.device_pointer() + (int64_t{r} * a.heads + h) * hd);
        }
        for (int h = 0; h < a.kv.kv_heads; ++h) {
            const int64_t at0 = (int64_t{r} * a.kv.kv_heads + h) * hd;
            const auto x = widen(a.k.device_pointer() + at0, hd);
            zero_centred_norm(x.data(), hd, a.k_norm, 0, eps, y.data());
            rope(y.data(), a.rope, pos);
            const Place p = place_of(a.step, seq, pos);
            const int block = p.offset / a.kv.block_tokens;
            for (std::byte* to : {a.kv.home(p.page, block), a.kv.mirrored(p.page, block),
                                  a.staged.mirrored(p.page, block)}) {
                if (!to) continue;
                std::byte* k = to + head_offset(a.kv, p.offset, 0, h);
                std::byte* v = to + head_offset(a.kv, p.offset, 1, h);
                for (int i = 0; i < hd; ++i) {
                    store_plane(k, a.kv.type, i, y[i]);
                    store_plane(v, a.kv.type, i,
                                static_cast<double>(a.v.device_pointer()[at0 + i]));
                }
            }
        }
        const float* ix = a.ix.device_pointer() + int64_t{r} * (a.index_heads + 1) * id;
        for (int h = 0; h < a.index_heads; ++h) {
            const auto x = widen(ix + h * id, id);
            zero_centred_norm(x.data(), id, a.index_q_norm, 0, eps, y.data());
            rope(y.data(), a.rope, pos);
            std::copy_n(y.begin(), id,
                        a.iq.device_pointer() + (int64_t{r} * a.index_heads + h) * id);
        }
        const Place p = place_of(a.step, seq, pos);
        const int64_t raw0 = (int64_t{p.page} * kPageTokens + p.offset) * id;
        for (int i = 0; i < id; ++i)
            store_plane(a.index.raw, a.index.type, raw0 + i,
                        static_cast<double>(ix[a.index_heads * id + i]));
    }
    return {};
}

Status ReferenceOps::qsa_pool(Stream&, const QsaPoolArgs& a) {
    const int id = a.index.dim, bt = a.index.block_tokens;
    std::vector<double> mean(id), y(id);
    for (int si = 0; si < a.step.n_seqs; ++si) {
        const SeqRows& seq = a.step.seqs.device_pointer()[si];
        const int end = seq.pos0 + seq.n_rows;
        for (int b = seq.pos0 / bt; (b + 1) * bt <= end; ++b) {
            std::fill(mean.begin(), mean.end(), 0.0);
            for (int t = 0; t < bt; ++t) {
                const Place p = place_of(a.step, seq, b * bt + t);
                const int64_t raw0 = (int64_t{p.page} * kPageTokens + p.offset) * id;
                for (int i = 0; i < id; ++i)
                    mean[i] += load_plane(a.index.raw, a.index.type, raw0 + i) / bt;
            }
            zero_centred_norm(mean.data(), id, a.norm, 0, static_cast<double>(a.eps), y.data());
            rope(y.data(), a.rope, b * bt);
            const Place p = place_of(a.step, seq, b * bt);
            const int64_t to = (int64_t{p.page} * (kPageTokens / bt) + p.offset / bt) * id;
            for (int i = 0; i < id; ++i)
                store_plane(a.index.pooled, a.index.type, to + i, y[i]);
        }
    }
    return {};
}

Status ReferenceOps::index_scores(Stream&, const IndexScoresArgs& a) {
    const int id = a.index.dim, bt = a.index.block_tokens;
    for (int r = 0; r < a.rows; ++r) {
        const int row = a.first_row + r;
        const SeqRows& seq = seq_of(a.step, row);
        const int complete = (position(seq, row) + 1) / bt;
        const float* iq = a.iq.device_pointer() + int64_t{row} * a.index_heads * id;
        for (int b = 0; b < complete; ++b) {
            const Place p = place_of(a.step, seq, b * bt);
            const int64_t key = (int64_t{p.page} * (kPageTokens / bt) + p.offset / bt) * id;
            double score = 0;
            for (int h = 0; h < a.index_heads; ++h) {
                double dot = 0;
                for (int i = 0; i < id; ++i)
                    dot += static_cast<double>(iq[h * id + i]) *
                           load_plane(a.index.pooled, a.index.type, key + i);
                score += std::max(0.0, dot);
            }
            a.scores.device_pointer()[r * a.stride + b] =
                static_cast<float>(score / std::sqrt(static_cast<double>(id)));
        }
    }
    return {};
}

Status ReferenceOps::select_blocks(Stream&, const SelectBlocksArgs& a) {
    for (int r = 0; r < a.rows; ++r) {
        const int row = a.first_row + r;
        const int complete = (position(seq_of(a.step, row), row) + 1) / a.block_tokens;
        std::vector<int32_t> order(static_cast<size_t>(complete));
        for (int b = 0; b < complete; ++b)
            order[b] = b;
        if (complete > a.top) {
            const float* scores = a.scores.device_pointer() + r * a.stride;
            const auto rank = [&](int b) {  // NaN is below everything, -inf too
                return std::isnan(scores[b]) ? std::pair{false, 0.0f} : std::pair{true, scores[b]};
            };
            std::stable_sort(order.begin(), order.end(),
                             [&](int x, int y) { return rank(x) > rank(y); });
            order.resize(static_cast<size_t>(a.top));
            std::sort(order.begin(), order.end());
        }
        std::copy(order.begin(), order.end(), a.blocks.device_pointer() + int64_t{r} * a.top);
        a.counts.device_pointer()[r] = static_cast<int32_t>(order.size());
    }
    return {};
}

namespace {

// Sums of a head over part of its tokens, kept as of the largest score so far.
struct Running {
    double top = -INFINITY, total = 0;
    std::vector<double> acc;
};

// Adds tokens [begin, end) of a row's list, all of one page.
void add_page(const AttendArgs& a, const SeqRows& seq, const float* q, int kv_head_index,
              const int* begin, const int* end, Running& x) {
    const int hd = a.kv.head_dim;
    std::vector<double> scores;
    double top = x.top;
    for (const int* p = begin; p < end; ++p) {
        const std::byte* k = kv_head(a.step, seq, a.kv, *p, 0, kv_head_index);
        double dot = 0;
        for (int i = 0; i < hd; ++i)
            dot += static_cast<double>(q[i]) * load_plane(k, a.kv.type, i);
        scores.push_back(dot * static_cast<double>(a.scale));
        top = std::max(top, scores.back());
    }
    const double keep = std::exp(x.top - top);
    x.top = top;
    x.total *= keep;
    for (double& v : x.acc)
        v *= keep;
    for (const int* p = begin; p < end; ++p) {
        const double w = std::exp(scores[static_cast<size_t>(p - begin)] - top);
        x.total += w;
        const std::byte* v = kv_head(a.step, seq, a.kv, *p, 1, kv_head_index);
        for (int i = 0; i < hd; ++i)
            x.acc[i] += w * load_plane(v, a.kv.type, i);
    }
}

}  // namespace

// One running update per page, so that passes, whose borders are pages, change nothing.
Status ReferenceOps::attend(Stream&, const AttendArgs& a) {
    const int hd = a.kv.head_dim, bt = a.kv.block_tokens, group = a.heads / a.kv.kv_heads;
    std::vector<int> visible;
    for (int r = 0; r < a.rows; ++r) {
        const int row = a.first_row + r;
        const SeqRows& seq = seq_of(a.step, row);
        const int pos = position(seq, row), complete = (pos + 1) / bt;
        visible.clear();
        // The page of the tail is one update with it, and so left to the last pass.
        const int page_blocks = kPageTokens / bt;
        const int most = (pos + 1) % bt > 0 ? complete / page_blocks * page_blocks : INT32_MAX;
        const int from = std::min(a.from_block, most);
        const int below = a.last_pass() ? kLastPass : std::min(a.end_block, most);
        const int n = a.counts.empty() ? complete : a.counts.device_pointer()[r];
        for (int i = 0; i < n; ++i) {
            const int b = a.blocks.empty() ? i : a.blocks.device_pointer()[int64_t{r} * a.top + i];
            if (b < from || b >= below) continue;
            for (int t = 0; t < bt; ++t)
                visible.push_back(b * bt + t);
        }
        for (int p = complete * bt; a.last_pass() && p <= pos; ++p)
            visible.push_back(p);
        for (int h = 0; h < a.heads; ++h) {
            const int64_t head = int64_t{row} * a.heads + h;
            double* const state = reinterpret_cast<double*>(a.state.device_pointer()) +
                                  (int64_t{r} * a.heads + h) * (2 + hd);
            Running x;
            x.acc.assign(static_cast<size_t>(hd), 0.0);
            if (!a.first_pass()) {
                x.top = state[0];
                x.total = state[1];
                std::copy_n(state + 2, hd, x.acc.begin());
            }
            const int* const end = visible.data() + visible.size();
            for (const int* p = visible.data(); p < end;) {
                const int page = *p / kPageTokens;
                const int* const next =
                    std::find_if(p, end, [&](int t) { return t / kPageTokens != page; });
                add_page(a, seq, a.q.device_pointer() + head * hd, h / group, p, next, x);
                p = next;
            }
            if (!a.last_pass()) {
                state[0] = x.top;
                state[1] = x.total;
                std::copy_n(x.acc.begin(), hd, state + 2);
                continue;
            }
            const float* gate = a.qg.device_pointer() + head * 2 * hd + hd;
            for (int i = 0; i < hd; ++i)
                a.out.device_pointer()[head * hd + i] = static_cast<float>(
                    x.total > 0 ? x.acc[i] / x.total * sigmoid(static_cast<double>(gate[i])) : 0.0);
        }
    }
    return {};
}

}  // namespace terrace::ref
