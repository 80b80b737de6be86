// SPDX-License-Identifier: MIT
#include "tier/kv_mirror.h"

#include <fmt/format.h>

#include "tier/kv_planes.h"

namespace terrace {
namespace {

constexpr size_t z(int32_t v) {
    return static_cast<size_t>(v);
}

size_t extent_bytes(const PlaneGeometry& g) {
    return z(g.block_tokens) * g.kv_bytes_per_token();
}

// The tables of a layer, one after another: those that start as 0, then those that start as -1.
struct Layout {
    size_t used, spare, zeroed, slots, owner, total;  // where each begins; head is at 0
};
Layout layout(const PlaneGeometry& g, int32_t n_slots) {
    const auto up = [](size_t n) { return (n + 63) / 64 * 64; };
    BlockMirror m;
    m.n = n_slots;
    Layout l;
    l.used = up(sizeof(MirrorHead));
    l.spare = l.used + up(4 * z(n_slots));
    l.zeroed = l.slots = l.spare + up(8 * z(m.spares_most()));
    l.owner = l.slots + up(4 * z(g.pages) * z(kPageTokens / g.block_tokens));
    l.total = l.owner + up(4 * z(n_slots));
    return l;
}

}  // namespace

uint64_t KvMirror::bytes(const PlaneGeometry& g, int32_t n_slots) {
    if (n_slots == 0) return 0;
    return z(g.layers) * (z(n_slots) * extent_bytes(g) + layout(g, n_slots).total);
}

Result<KvMirror> KvMirror::create(Device& device, Stream& stream, Budget& budget,
                                  const PlaneGeometry& g, int32_t n_slots) {
    TERRACE_CHECK(n_slots >= 1);
    KvMirror mirror;
    mirror.n_slots_ = n_slots;
    mirror.blocks_per_page_ = kPageTokens / g.block_tokens;
    const Layout at = layout(g, n_slots);
    for (int32_t i = 0; i < g.layers; ++i) {
        const auto make = [&](size_t bytes) {
            return allocate_charged(device, budget, Role::kv_mirror, bytes, MemSpace::device,
                                    Fill::unspecified,
                                    fmt::format("attention layer {} of {}", i + 1, g.layers));
        };
        Layer layer;
        TERRACE_ASSIGN(layer.slots, make(z(n_slots) * extent_bytes(g)));
        TERRACE_ASSIGN(layer.memory, make(at.total));
        std::byte* const base = layer.memory.buffer.device_pointer();
        TERRACE_TRY(stream.fill(base, std::byte{0}, at.zeroed));
        TERRACE_TRY(stream.fill(base + at.slots, std::byte{0xff}, at.total - at.zeroed));
        layer.tables.head = reinterpret_cast<MirrorHead*>(base);
        layer.tables.used = reinterpret_cast<uint32_t*>(base + at.used);
        layer.tables.spare = reinterpret_cast<int32_t*>(base + at.spare);
        layer.tables.slots = reinterpret_cast<int32_t*>(base + at.slots);
        layer.tables.owner = reinterpret_cast<int32_t*>(base + at.owner);
        layer.tables.n = n_slots;
        mirror.layers_.push_back(std::move(layer));
    }
    TERRACE_TRY(stream.synchronize());  // who gives up opening frees nothing that is being cleared
    return mirror;
}

void KvMirror::apply(int32_t layer, RowSource& rows) const {
    const Layer& l = layers_[z(layer)];
    rows.mirror = l.slots.buffer.device_pointer();
    rows.slots = l.tables.slots;
    rows.group_shift = 0;
}

Status KvMirror::forget(Stream& stream, PageId page) const {
    for (const Layer& l : layers_)
        TERRACE_TRY(stream.fill(l.tables.slots + int64_t{ix(page)} * blocks_per_page_,
                                std::byte{0xff}, 4 * z(blocks_per_page_)));
    return {};
}

Result<std::vector<MirrorCounters>> KvMirror::read_counters(Stream& stream) const {
    std::vector<MirrorCounters> out(layers_.size());
    for (size_t i = 0; i < layers_.size(); ++i)
        TERRACE_TRY(
            stream.copy(&out[i], &layers_[i].tables.head->counters, sizeof(MirrorCounters)));
    TERRACE_TRY(stream.synchronize());
    return out;
}

}  // namespace terrace
