// Sparse attention between its projections on the CPU: CpuOps::qsa_prepare, qsa_pool, index_scores,
// select_blocks and attend. What a task is, and which memory it may touch; the arithmetic is in
// attn_kernels.h, attn_rope.h and select_kernels.h. Engine thread only. Planes are reached through
// block tables; a task never writes what another one reads.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/cpu_ops.h"

namespace terrace {
namespace {

size_t up64(size_t n) {
    return (n + 63) / 64 * 64;
}

// Blocks of one index-score task: 4096 keys of 256 bytes are 1 MiB, a few tens of microseconds.
constexpr int kScoreBlocks = 4096;

TypedRun typed(const PlainTensor& t) {
    return {t.data, static_cast<int>(t.dtype)};
}

const SeqRows& seq_of(const StepRows& step, int row) {
    return step.seqs.device_pointer()[step.row_seq.device_pointer()[row]];
}
int position(const SeqRows& seq, int row) {
    return seq.pos0 + row - seq.row0;
}
const int32_t* table_of(const StepRows& step, const SeqRows& seq) {
    return step.block_tables.device_pointer() + seq.table_offset;
}
const uint8_t* bytes(const std::byte* p) {
    return reinterpret_cast<const uint8_t*>(p);
}

Status check_block_tokens(const char* op, int block_tokens) {
    if (block_tokens > 0 && kPageTokens % block_tokens == 0) return {};
    return Error{Code::unsupported,
                 fmt::format("{}: blocks of {} tokens do not divide a page of {}", op, block_tokens,
                             kPageTokens)};
}

}  // namespace

// `floats` beyond the fixed part: rope scratch and padded index queries of a thread.
CpuOps::Layout CpuOps::index_layout(int floats) const {
    // Index sizes are not among the limits: room for 64 padded queries of 256, and a head of 1024.
    constexpr int kFixed = 16384 + 2 * kMaxRopeDims;
    Layout l;
    l.thread = std::max(up64(static_cast<size_t>(std::max(floats, kFixed)) * sizeof(float)),
                        up64(kSelectScratch * sizeof(uint32_t)));
    return l;
}

CpuOps::Layout CpuOps::attend_layout(int head_dim) const {
    Layout l;
    l.thread =
        up64(std::max(attend_scratch(head_dim), static_cast<size_t>(head_dim) + kMaxRopeDims) *
             sizeof(float));
    return l;
}

void CpuOps::set_rope(const Rope& rope) {
    if (rope.dims == rope_.dims && rope.theta == rope_.theta) return;
    rope_ = rope;
    for (int i = 0; i < rope.dims / 2; ++i)
        inverse_frequency_[i] = std::pow(static_cast<double>(rope.theta), -2.0 * i / rope.dims);
}

// Angles reach millions of radians, where a float has no fraction left: double, then one rounding.
void CpuOps::angles(int64_t pos, float* cos_sin) const {
    const int half = rope_.dims / 2;
    for (int i = 0; i < half; ++i) {
        const double angle = static_cast<double>(pos) * inverse_frequency_[i];
        cos_sin[i] = static_cast<float>(std::cos(angle));
        cos_sin[half + i] = static_cast<float>(std::sin(angle));
    }
}

Status CpuOps::qsa_prepare(Stream&, const QsaPrepareArgs& a) {
    const int hd = a.kv.head_dim, id = a.index.dim, widest = std::max(hd, id);
    TERRACE_TRY(check_block_tokens("qsa_prepare", a.kv.block_tokens));
    if (a.rope.dims < 0 || a.rope.dims % 2 || a.rope.dims > std::min({hd, id, kMaxRopeDims}))
        return Error{
            Code::unsupported,
            fmt::format("qsa_prepare: {} rotary dims with heads of {} and {}: need an even "
                        "number no larger than either or {}",
                        a.rope.dims, hd, id, kMaxRopeDims)};
    TERRACE_TRY(need("qsa_prepare", index_layout(widest + a.rope.dims)));
    set_rope(a.rope);
    const auto shd = static_cast<size_t>(hd);
    const int plane_f32 = a.kv.type == PlaneType::f32, index_f32 = a.index.type == PlaneType::f32;
    tasks(a.step.n_rows, [&](int64_t task, int worker) {
        const int r = static_cast<int>(task);
        const SeqRows& seq = seq_of(a.step, r);
        const int pos = position(seq, r), offset = pos % kPageTokens;
        const int page = table_of(a.step, seq)[pos / kPageTokens];
        float* cos_sin = thread_floats(worker);
        angles(pos, cos_sin);
        RopeArgs rope;
        rope.rope_dims = a.rope.dims;
        rope.cos_sin = cos_sin;
        rope.eps = a.eps;
        rope.scratch = cos_sin + a.rope.dims;
        const auto rotate = [&](const float* x, const PlainTensor& norm, int n, void* y, int f32) {
            rope.x = x;
            rope.norm = typed(norm);
            rope.n = n;
            rope.y = y;
            rope.is_f32 = f32;
            kernels_.ops.rope(rope);
        };
        for (int h = 0; h < a.heads; ++h) {
            const size_t head =
                static_cast<size_t>(r) * static_cast<size_t>(a.heads) + static_cast<size_t>(h);
            rotate(a.qg.device_pointer() + head * 2 * shd, a.q_norm, hd,
                   a.q.device_pointer() + head * shd, 1);
        }
        const int in_page = offset / a.kv.block_tokens;
        std::byte* const block = a.kv.home(page, in_page);
        for (int h = 0; h < a.kv.kv_heads; ++h) {
            const size_t from = (static_cast<size_t>(r) * static_cast<size_t>(a.kv.kv_heads) +
                                 static_cast<size_t>(h)) *
                                shd;
            std::byte* k = block + (static_cast<size_t>(offset % a.kv.block_tokens) *
                                        static_cast<size_t>(a.kv.kv_heads) +
                                    static_cast<size_t>(h)) *
                                       shd * plane_bytes(a.kv.type);
            rotate(a.k.device_pointer() + from, a.k_norm, hd, k, plane_f32);
            kernels_.ops.convert(
                {a.v.device_pointer() + from, k + a.kv.half_extent_bytes(), hd, plane_f32});
        }
        for (std::byte* copy : {a.kv.mirrored(page, in_page), a.staged.mirrored(page, in_page)}) {
            if (!copy) continue;
            const size_t row = a.kv.half_extent_bytes() / static_cast<size_t>(a.kv.block_tokens);
            const size_t at = static_cast<size_t>(offset % a.kv.block_tokens) * row;
            for (const size_t half : {size_t{0}, a.kv.half_extent_bytes()})
                std::memcpy(copy + half + at, block + half + at, row);
        }
        const float* ix = a.ix.device_pointer() + int64_t{r} * (a.index_heads + 1) * id;
        float* iq = a.iq.device_pointer() + int64_t{r} * a.index_heads * id;
        for (int h = 0; h < a.index_heads; ++h)
            rotate(ix + h * id, a.index_q_norm, id, iq + h * id, 1);
        const size_t raw = (static_cast<size_t>(page) * kPageTokens + static_cast<size_t>(offset)) *
                           static_cast<size_t>(id) * plane_bytes(a.index.type);
        kernels_.ops.convert({ix + a.index_heads * id, a.index.raw + raw, id, index_f32});
    });
    return {};
}

Status CpuOps::qsa_pool(Stream&, const QsaPoolArgs& a) {
    const int id = a.index.dim, bt = a.index.block_tokens;
    TERRACE_TRY(check_block_tokens("qsa_pool", bt));
    if (a.rope.dims < 0 || a.rope.dims % 2 || a.rope.dims > std::min(id, kMaxRopeDims))
        return Error{Code::unsupported,
                     fmt::format("qsa_pool: {} rotary dims with keys of {}", a.rope.dims, id)};
    TERRACE_TRY(need("qsa_pool", index_layout(a.rope.dims + 2 * id)));
    set_rope(a.rope);
    const size_t row_bytes = static_cast<size_t>(id) * plane_bytes(a.index.type);
    for (int si = 0; si < a.step.n_seqs; ++si) {
        const SeqRows& seq = a.step.seqs.device_pointer()[si];
        const int32_t* table = table_of(a.step, seq);
        const int first = seq.pos0 / bt, last = (seq.pos0 + seq.n_rows) / bt;
        tasks(last - first, [&](int64_t i, int worker) {
            const int pos = (first + static_cast<int>(i)) * bt;
            const size_t token = static_cast<size_t>(table[pos / kPageTokens]) * kPageTokens +
                                 static_cast<size_t>(pos % kPageTokens);
            float* cos_sin = thread_floats(worker);
            float* mean = cos_sin + a.rope.dims;
            angles(pos, cos_sin);
            const int f32 = a.index.type == PlaneType::f32;
            kernels_.ops.plane_mean({a.index.raw + token * row_bytes, bt, id, f32, mean});
            RopeArgs rope;
            rope.x = mean;
            rope.norm = typed(a.norm);
            rope.n = id;
            rope.rope_dims = a.rope.dims;
            rope.cos_sin = cos_sin;
            rope.eps = a.eps;
            rope.scratch = mean + id;
            rope.y = a.index.pooled + token / static_cast<size_t>(bt) * row_bytes;
            rope.is_f32 = f32;
            kernels_.ops.rope(rope);
        });
    }
    return {};
}

Status CpuOps::index_scores(Stream&, const IndexScoresArgs& a) {
    const int id = a.index.dim, bt = a.index.block_tokens;
    TERRACE_TRY(check_block_tokens("index_scores", bt));
    TERRACE_TRY(
        need("index_scores", index_layout((a.index_heads + 3) / 4 * 4 * ((id + 15) / 16 * 16))));
    int most = 0;
    for (int r = 0; r < a.rows; ++r) {
        const SeqRows& seq = seq_of(a.step, a.first_row + r);
        most = std::max(most, (position(seq, a.first_row + r) + 1) / bt);
    }
    if (most > a.stride)
        return Error{
            Code::invalid_argument,
            fmt::format("index_scores: need {} scores a row, have a stride of {}", most, a.stride)};
    // Rows inside a range of blocks: a range's keys (at most 1 MiB) are then read from memory once.
    // Short contexts get shorter ranges, so that one decode row still occupies every thread.
    const int range = std::clamp(most / (4 * pool_.size()) / 64 * 64, 64, kScoreBlocks);
    const int64_t ranges = (most + range - 1) / range;
    const int row_group = std::max(1, std::min(a.rows, 8));
    const int64_t groups = (a.rows + row_group - 1) / row_group;
    tasks(ranges * groups, [&](int64_t task, int worker) {
        const int begin = static_cast<int>(task / groups) * range;
        const int first = static_cast<int>(task % groups) * row_group;
        for (int r = first; r < std::min(a.rows, first + row_group); ++r) {
            const int row = a.first_row + r;
            const SeqRows& seq = seq_of(a.step, row);
            const int end = std::min(begin + range, (position(seq, row) + 1) / bt);
            if (begin >= end) continue;
            ScoreArgs s;
            s.iq = a.iq.device_pointer() + int64_t{row} * a.index_heads * id;
            s.heads = a.index_heads;
            s.dim = id;
            s.pooled = bytes(a.index.pooled);
            s.is_f32 = a.index.type == PlaneType::f32;
            s.table = table_of(a.step, seq);
            s.blocks_per_page = kPageTokens / bt;
            s.begin = begin;
            s.end = end;
            s.scale = 1.0f / std::sqrt(static_cast<float>(id));
            s.scores = a.scores.device_pointer() + r * a.stride;
            s.scratch = thread_floats(worker);
            kernels_.ops.scores(s);
        }
    });
    return {};
}

Status CpuOps::select_blocks(Stream&, const SelectBlocksArgs& a) {
    TERRACE_TRY(check_block_tokens("select_blocks", a.block_tokens));
    TERRACE_TRY(need("select_blocks", index_layout(0)));
    if (a.top < 1)
        return Error{Code::invalid_argument,
                     fmt::format("select_blocks: top {} selects nothing", a.top)};
    tasks(a.rows, [&](int64_t task, int worker) {
        const int r = static_cast<int>(task), row = a.first_row + r;
        const int complete = (position(seq_of(a.step, row), row) + 1) / a.block_tokens;
        int32_t* out = a.blocks.device_pointer() + int64_t{r} * a.top;
        a.counts.device_pointer()[r] = std::min(complete, a.top);
        if (complete <= a.top) {
            for (int b = 0; b < complete; ++b)
                out[b] = b;
            return;
        }
        kernels_.ops.select({a.scores.device_pointer() + r * a.stride, complete, a.top, out,
                             reinterpret_cast<uint32_t*>(thread_scratch(worker))});
    });
    return {};
}

size_t CpuOps::attend_state_bytes(int32_t rows, int32_t heads, int32_t head_dim) const {
    return static_cast<size_t>(rows) * static_cast<size_t>(heads) * attend_sums(head_dim) *
           sizeof(float);
}

Status CpuOps::attend(Stream&, const AttendArgs& a) {
    const int hd = a.kv.head_dim, bt = a.kv.block_tokens, kv_heads = a.kv.kv_heads;
    TERRACE_TRY(check_block_tokens("attend", bt));
    if (kv_heads < 1 || a.heads % kv_heads)
        return Error{Code::unsupported,
                     fmt::format("attend: {} heads over {} KV heads", a.heads, kv_heads)};
    TERRACE_TRY(need("attend", attend_layout(hd)));
    // A head's bits do not depend on its task, so the split may follow the thread count: all heads
    // of a group in one task, which reads K and V once, unless threads would idle.
    const int group = a.heads / kv_heads;
    int chunks = (group + kAttendHeads - 1) / kAttendHeads;
    while (chunks < group && int64_t{a.rows} * kv_heads * chunks < pool_.size())
        ++chunks;
    const int chunk = (group + chunks - 1) / chunks;
    chunks = (group + chunk - 1) / chunk;
    const auto shd = static_cast<size_t>(hd);
    const size_t head_bytes = shd * plane_bytes(a.kv.type);
    // Last rows first: with dense causal attention they are the longest.
    const int64_t n = int64_t{a.rows} * kv_heads * chunks;
    tasks(n, [&](int64_t task, int worker) {
        task = n - 1 - task;
        const int r = static_cast<int>(task / (kv_heads * chunks)), row = a.first_row + r;
        const int kv_head = static_cast<int>(task / chunks) % kv_heads;
        const int first = static_cast<int>(task % chunks) * chunk;
        const SeqRows& seq = seq_of(a.step, row);
        const int pos = position(seq, row);
        const size_t head = static_cast<size_t>(row) * static_cast<size_t>(a.heads) +
                            static_cast<size_t>(kv_head * group + first);
        AttendTask t;
        t.q = a.q.device_pointer() + head * shd;
        t.gate = a.qg.device_pointer() + head * 2 * shd + shd;
        t.gate_stride = 2 * shd;
        t.out = a.out.device_pointer() + head * shd;
        t.n_heads = std::min(chunk, group - first);
        t.head_dim = hd;
        t.base = bytes(a.kv.base);
        t.mirror = bytes(a.kv.mirror);
        t.slots = a.kv.slots;
        t.group_shift = a.kv.group_shift;
        t.is_f32 = a.kv.type == PlaneType::f32;
        t.block_tokens = bt;
        t.blocks_per_page = kPageTokens / bt;
        t.half_bytes = a.kv.half_extent_bytes();
        t.extent_bytes = 2 * t.half_bytes;
        t.token_bytes = static_cast<size_t>(kv_heads) * head_bytes;
        t.head_offset = static_cast<size_t>(kv_head) * head_bytes;
        t.table = table_of(a.step, seq);
        t.tail_block = (pos + 1) / bt;
        t.tail_tokens = a.last_pass() ? (pos + 1) % bt : 0;
        t.blocks = a.blocks.empty() ? nullptr : a.blocks.device_pointer() + int64_t{r} * a.top;
        t.n_blocks = a.counts.empty() ? t.tail_block : a.counts.device_pointer()[r];
        if (!a.first_pass() || !a.last_pass()) {
            // The page of the tail is one update with it, and so left to the last pass.
            const int most = (pos + 1) % bt > 0
                                 ? t.tail_block / t.blocks_per_page * t.blocks_per_page
                                 : INT32_MAX;
            const auto below = [&](int border) {
                if (border != kLastPass) border = std::min(border, most);
                if (!t.blocks) return std::min(border, t.n_blocks);
                return static_cast<int>(std::lower_bound(t.blocks, t.blocks + t.n_blocks, border) -
                                        t.blocks);
            };
            const int begin = below(a.from_block), end = below(a.end_block);
            if (t.blocks) t.blocks += begin;
            t.first_block = begin;
            t.n_blocks = end - begin;
            float* const sums = reinterpret_cast<float*>(a.state.device_pointer()) +
                                (static_cast<size_t>(r) * static_cast<size_t>(a.heads) +
                                 static_cast<size_t>(kv_head * group + first)) *
                                    attend_sums(hd);
            t.sums = a.first_pass() ? nullptr : sums;
            t.sums_out = a.last_pass() ? nullptr : sums;
        }
        t.scale = a.scale;
        t.scratch = thread_floats(worker);
        kernels_.ops.attend(t);
    });
    return {};
}

}  // namespace terrace
