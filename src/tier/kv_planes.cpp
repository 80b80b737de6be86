// SPDX-License-Identifier: MIT
#include "tier/kv_planes.h"

#include <fmt/format.h>

namespace terrace {
namespace {
constexpr size_t z(int32_t v) {
    return static_cast<size_t>(v);
}
Result<ChargedBuffer> reserve_charged(GrowsPinned& device, Budget& payer, Role role, size_t bytes,
                                      const std::string& what) {
    ChargedBuffer b;
    TERRACE_ASSIGN(b.charge, payer.reserve(role, bytes, what));
    TERRACE_ASSIGN(b.buffer, device.reserve_pinned(bytes));
    return b;
}
}  // namespace

size_t PlaneGeometry::kv_bytes_per_token() const {
    return 2 * z(kv_heads) * z(head_dim) * plane_bytes(type);
}
size_t PlaneGeometry::raw_bytes_per_token() const {
    return z(index_dim) * plane_bytes(type);
}
size_t PlaneGeometry::pooled_bytes_per_token() const {
    return z(index_dim) * plane_bytes(type) / z(block_tokens);
}
size_t PlaneGeometry::pooled_bytes_per_page() const {
    return z(kPageTokens / block_tokens) * raw_bytes_per_token();
}

Result<KvPlanes> KvPlanes::create(Device& device, Budget& budget, Budget& host_budget,
                                  const PlaneGeometry& g) {
    KvPlanes planes;
    planes.geometry_ = g;
    auto* const grows = g.growth_pages > 0 ? dynamic_cast<GrowsPinned*>(&device) : nullptr;
    planes.layers_.reserve(z(g.layers));  // growth keeps the addresses of buffers
    std::vector<PlaneGrowth::Plane> growing;
    for (int32_t i = 0; i < g.layers; ++i) {
        const auto make = [&](Role role, size_t page_bytes, MemSpace space) {
            Budget& payer = space == MemSpace::device ? budget : host_budget;
            const size_t bytes = z(g.pages) * page_bytes;
            const std::string what = fmt::format("attention layer {} of {}", i + 1, g.layers);
            if (!grows || space != MemSpace::host_pinned)
                return allocate_charged(device, payer, role, bytes, space, Fill::unspecified, what);
            return reserve_charged(*grows, payer, role, bytes, what);
        };
        Layer layer;
        TERRACE_ASSIGN(layer.kv,
                       make(Role::kv, z(kPageTokens) * g.kv_bytes_per_token(), g.kv_space));
        TERRACE_ASSIGN(layer.raw, make(Role::raw_index, z(kPageTokens) * g.raw_bytes_per_token(),
                                       g.raw_space));
        TERRACE_ASSIGN(layer.pooled,
                       make(Role::pooled_index, g.pooled_bytes_per_page(), MemSpace::device));
        planes.layers_.push_back(std::move(layer));
        const Layer& kept = planes.layers_.back();
        if (grows && g.kv_space == MemSpace::host_pinned)
            growing.push_back({&kept.kv.buffer, z(kPageTokens) * g.kv_bytes_per_token()});
        if (grows && g.raw_space == MemSpace::host_pinned)
            growing.push_back({&kept.raw.buffer, z(kPageTokens) * g.raw_bytes_per_token()});
    }
    if (!growing.empty()) {
        planes.growth_ =
            std::make_unique<PlaneGrowth>(*grows, std::move(growing), g.pages, g.growth_pages);
        TERRACE_TRY(planes.growth_->step());
    }
    return planes;
}

RowSource KvPlanes::rows(int32_t i) const {
    RowSource source{layers_[z(i)].kv.buffer.device_pointer(), geometry_.type, geometry_.kv_heads,
                     geometry_.head_dim, geometry_.block_tokens};
    if (mirror_) mirror_->apply(i, source);
    return source;
}

IndexPlanes KvPlanes::index(int32_t i) const {
    const Layer& layer = layers_[z(i)];
    return IndexPlanes{layer.raw.buffer.device_pointer(), layer.pooled.buffer.device_pointer(),
                       geometry_.type, geometry_.index_dim, geometry_.block_tokens};
}

Status KvPlanes::copy_page(Stream& stream, PageId from, PageId to, int32_t n) const {
    TERRACE_CHECK(n >= 1 && n <= kPageTokens && from != to);
    const PlaneGeometry& g = geometry_;
    const int32_t whole = n / g.block_tokens, rest = n % g.block_tokens;
    TERRACE_TRY(forget(stream, to));
    for (int32_t i = 0; i < g.layers; ++i) {
        const RowSource kv = rows(i);
        if (whole > 0)
            TERRACE_TRY(stream.copy(kv.home(ix(to), 0), kv.home(ix(from), 0),
                                    z(whole) * 2 * kv.half_extent_bytes()));
        if (rest > 0) {
            // The partial block: its first `rest` tokens of K, then of V.
            const size_t row = kv.half_extent_bytes() / z(g.block_tokens);
            for (size_t half = 0; half < 2; ++half)
                TERRACE_TRY(stream.copy(kv.home(ix(to), whole) + half * kv.half_extent_bytes(),
                                        kv.home(ix(from), whole) + half * kv.half_extent_bytes(),
                                        z(rest) * row));
        }
        const IndexPlanes index_planes = index(i);
        const size_t raw_page = z(kPageTokens) * g.raw_bytes_per_token();
        TERRACE_TRY(stream.copy(index_planes.raw + z(ix(to)) * raw_page,
                                index_planes.raw + z(ix(from)) * raw_page,
                                z(n) * g.raw_bytes_per_token()));
        const size_t pooled_row = g.raw_bytes_per_token();
        const size_t pooled_page = g.pooled_bytes_per_page();
        TERRACE_TRY(stream.copy(index_planes.pooled + z(ix(to)) * pooled_page,
                                index_planes.pooled + z(ix(from)) * pooled_page,
                                z(whole + (rest > 0 ? 1 : 0)) * pooled_row));
    }
    return {};
}

}  // namespace terrace
