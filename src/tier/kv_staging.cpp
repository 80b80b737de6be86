// SPDX-License-Identifier: MIT
#include "tier/kv_staging.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace terrace {
namespace {

constexpr size_t z(int32_t v) {
    return static_cast<size_t>(v);
}

// The parts of the arena's memory, each at a multiple of 256.
struct Layout {
    size_t tables = 0, blocks = 0, counts = 0, state = 0, end = 0;
    size_t table_bytes = 0;
};
Layout layout(const StagingGeometry& g) {
    constexpr auto up = [](size_t n) { return (n + 255) / 256 * 256; };
    Layout l;
    l.table_bytes = 2 * z(g.arena.most_passes) * z(g.arena.pool_pages) * sizeof(int32_t);
    l.tables = up(z(g.arena.pages()) * g.page_bytes());
    l.blocks = l.tables + up(l.table_bytes);
    const size_t rows = g.many_passes() ? z(g.rows) : 0;
    l.counts = l.blocks + up(rows * z(g.top) * sizeof(int32_t));
    l.state = l.counts + up(rows * sizeof(int32_t));
    l.end = l.state + (rows > 0 ? up(g.state_bytes) : 0);
    return l;
}

}  // namespace

size_t StagingGeometry::page_bytes() const {
    return z(kPageTokens) * planes.kv_bytes_per_token();
}
size_t StagingGeometry::device_bytes() const {
    return arena.half_pages > 0 ? layout(*this).end : 0;
}
size_t StagingGeometry::host_bytes() const {
    return arena.half_pages > 0 ? layout(*this).table_bytes : 0;
}

Result<std::unique_ptr<KvStaging>> KvStaging::create(Device& device, Budget& budget,
                                                     Budget& host_budget,
                                                     const StagingGeometry& geometry) {
    std::unique_ptr<KvStaging> s(new KvStaging(geometry));
    TERRACE_TRY(s->allocate(device, budget, host_budget));
    return s;
}

Status KvStaging::allocate(Device& device, Budget& budget, Budget& host_budget) {
    const StagingGeometry& g = geometry_;
    TERRACE_CHECK(g.arena.half_pages > 0);
    const Layout l = layout(g);
    TERRACE_ASSIGN(memory_,
                   allocate_charged(device, budget, Role::kv_arena, g.device_bytes(),
                                    MemSpace::device, Fill::unspecified,
                                    fmt::format("2 halves of {} pages", g.arena.half_pages)));
    TERRACE_ASSIGN(host_tables_, allocate_charged(device, host_budget, Role::staging,
                                                  g.host_bytes(), MemSpace::host_pinned,
                                                  Fill::unspecified, "tables of staged pages"));
    std::byte* const base = memory_.buffer.device_pointer();
    tables_ = {reinterpret_cast<int32_t*>(base + l.tables), l.table_bytes / sizeof(int32_t)};
    if (g.many_passes()) {
        blocks_ = {reinterpret_cast<int32_t*>(base + l.blocks), z(g.rows) * z(g.top)};
        counts_ = {reinterpret_cast<int32_t*>(base + l.counts), z(g.rows)};
        state_ = {base + l.state, g.state_bytes};
    }
    TERRACE_ASSIGN(copies_, device.make_stream());
    TERRACE_ASSIGN(begun_, device.make_event());
    for (auto* pair : {&freed_, &filled_, &headed_})
        for (std::unique_ptr<Event>& event : *pair) {
            TERRACE_ASSIGN(event, device.make_event());
        }
    by_layer_.assign(z(g.planes.layers), 0);
    return {};
}

Result<bool> KvStaging::begin(Stream& compute, const KvPlanes& planes,
                              std::span<const StagedSeq> seqs) {
    if (seqs.empty() || !plan_.make(seqs)) return false;
    planes_ = &planes;
    auto* const host = reinterpret_cast<int32_t*>(host_tables_.buffer.device_pointer());
    const size_t pages = z(geometry_.arena.pool_pages), n = 2 * z(passes()) * pages;
    for (int32_t pass = 0; pass < passes(); ++pass)
        for (int32_t parity = 0; parity < 2; ++parity)
            plan_.fill_table(pass, parity, {host + z(2 * pass + parity) * pages, pages});
    TERRACE_TRY(compute.copy(tables_.device_pointer(), host, n * sizeof(int32_t)));
    TERRACE_TRY(compute.record(*begun_));
    TERRACE_TRY(hold(Fence::begin, *copies_, *begun_));
    ++traffic_.staged_steps;
    const int32_t items = geometry_.planes.layers * passes();
    for (int32_t item = 0; item < 2 && item < items; ++item)
        TERRACE_TRY(copy_item(item / passes(), item % passes()));
    return true;
}

Status KvStaging::copy_item(int32_t layer, int32_t pass) {
    const RowSource home = planes_->rows(layer);
    const size_t page_bytes = geometry_.page_bytes(), block_bytes = 2 * home.half_extent_bytes();
    const ArenaShape& arena = geometry_.arena;
    int64_t bytes = 0;
    if (pass == 0 && !plan_.heads().empty()) {
        const int32_t own0 = 2 * arena.half_pages + layer % 2 * arena.own_pages;
        for (const StagingPlan::Head& h : plan_.heads()) {
            const size_t blocks = z((h.tokens + home.block_tokens - 1) / home.block_tokens);
            TERRACE_TRY(
                copies_->copy(place(own0 + h.place), home.home(h.page, 0), blocks * block_bytes));
            bytes += static_cast<int64_t>(blocks * block_bytes);
        }
        TERRACE_TRY(copies_->record(*headed_[z(layer % 2)]));
    }
    const int32_t half = plan_.half(layer, pass);
    // Planes that grow are pinned in pieces, and a copy has one piece to read.
    const int32_t piece =
        geometry_.planes.growth_pages > 0 ? geometry_.planes.growth_pages : INT32_MAX;
    for (const StagingPlan::Run& r : plan_.runs(pass)) {
        for (int32_t i = 0, n = 0; i < r.pages; i += n) {
            n = std::min(r.pages - i, piece - (r.page + i) % piece);
            TERRACE_TRY(copies_->copy(place(half * arena.half_pages + r.place + i),
                                      home.home(r.page + i, 0), z(n) * page_bytes));
        }
        traffic_.staged_pages += r.pages;
        bytes += static_cast<int64_t>(z(r.pages) * page_bytes);
    }
    traffic_.staged_bytes += bytes;
    by_layer_[z(layer)] += bytes;
    return copies_->record(*filled_[z(half)]);
}

const int32_t* KvStaging::table(int32_t layer, int32_t pass) const {
    return tables_.device_pointer() + z(2 * pass + layer % 2) * z(geometry_.arena.pool_pages);
}

RowSource KvStaging::rows(int32_t layer, int32_t pass) const {
    RowSource kv = planes_->rows(layer);
    kv.mirror = memory_.buffer.device_pointer();
    kv.slots = table(layer, pass);
    kv.group_shift = std::countr_zero(static_cast<uint32_t>(kPageTokens / kv.block_tokens));
    return kv;
}

Status KvStaging::before_rows_are_written(Stream& compute, int32_t layer) {
    if (plan_.heads().empty()) return {};
    return hold(Fence::heads, compute, *headed_[z(layer % 2)]);
}

Status KvStaging::before_pass(Stream& compute, int32_t layer, int32_t pass) {
    return hold(Fence::filled, compute, *filled_[z(plan_.half(layer, pass))]);
}

Status KvStaging::after_pass(Stream& compute, int32_t layer, int32_t pass) {
    const int32_t item = layer * passes() + pass, next = item + 2;
    if (next >= geometry_.planes.layers * passes()) return {};
    Event& freed = *freed_[z(item % 2)];
    TERRACE_TRY(compute.record(freed));
    TERRACE_TRY(hold(Fence::freed, *copies_, freed));
    return copy_item(next / passes(), next % passes());
}

}  // namespace terrace
