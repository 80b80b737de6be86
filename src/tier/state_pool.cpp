// SPDX-License-Identifier: MIT
#include "tier/state_pool.h"

#include <fmt/format.h>

#include <algorithm>

namespace terrace {
namespace {
constexpr size_t z(int32_t v) {
    return static_cast<size_t>(v);
}
}  // namespace

size_t StateGeometry::gdn_floats() const {
    return z(v_heads) * z(k_dim) * z(v_dim);
}
size_t StateGeometry::conv_floats() const {
    return z(conv_rows) * z(channels);
}
size_t StateGeometry::ple_floats() const {
    return z(ple_rows) * z(ple_width);
}
size_t StateGeometry::bytes_per_slot() const {
    return 4 * (z(gdn_layers) * (gdn_floats() + conv_floats()) + z(ple_layers) * ple_floats());
}

Result<StatePool> StatePool::create(Device& device, Budget& budget, const StateGeometry& g) {
    StatePool pool;
    pool.geometry_ = g;
    const auto add = [&](std::vector<ChargedBuffer>& to, size_t floats) -> Status {
        TERRACE_ASSIGN(ChargedBuffer buffer,
                       allocate_charged(device, budget, Role::state, 4 * floats * z(g.slots),
                                        MemSpace::device, Fill::unspecified,
                                        fmt::format("recurrent state of {} slots", g.slots)));
        to.push_back(std::move(buffer));
        return {};
    };
    for (int32_t i = 0; i < g.gdn_layers; ++i) {
        TERRACE_TRY(add(pool.gdn_, g.gdn_floats()));
        TERRACE_TRY(add(pool.conv_, g.conv_floats()));
    }
    for (int32_t i = 0; i < g.ple_layers; ++i)
        TERRACE_TRY(add(pool.ple_, g.ple_floats()));
    for (int32_t s = g.slots; s-- > 0;)
        pool.free_.push_back(SlotId{s});
    return pool;
}

Result<SlotId> StatePool::acquire() {
    if (free_.empty())
        return Error{Code::out_of_memory,
                     fmt::format("recurrent state: all {} slots are in use: raise --max-seqs, or "
                                 "end a sequence",
                                 geometry_.slots)};
    const SlotId slot = free_.back();
    free_.pop_back();
    return slot;
}

void StatePool::release(SlotId slot) {
    TERRACE_CHECK(ix(slot) >= 0 && ix(slot) < geometry_.slots);
    TERRACE_DCHECK(std::find(free_.begin(), free_.end(), slot) == free_.end());
    free_.push_back(slot);
}

Status StatePool::clear(Stream& stream, SlotId slot) const {
    const auto zero = [&](const std::vector<ChargedBuffer>& all, size_t floats) -> Status {
        for (const ChargedBuffer& b : all)
            TERRACE_TRY(stream.fill(b.buffer.device_pointer() + 4 * floats * z(ix(slot)),
                                    std::byte{0}, 4 * floats));
        return {};
    };
    TERRACE_TRY(zero(gdn_, geometry_.gdn_floats()));
    TERRACE_TRY(zero(conv_, geometry_.conv_floats()));
    return zero(ple_, geometry_.ple_floats());
}

Status StatePool::copy(Stream& stream, SlotId from, SlotId to) const {
    const auto move = [&](const std::vector<ChargedBuffer>& all, size_t floats) -> Status {
        for (const ChargedBuffer& b : all) {
            std::byte* base = b.buffer.device_pointer();
            TERRACE_TRY(stream.copy(base + 4 * floats * z(ix(to)), base + 4 * floats * z(ix(from)),
                                    4 * floats));
        }
        return {};
    };
    TERRACE_TRY(move(gdn_, geometry_.gdn_floats()));
    TERRACE_TRY(move(conv_, geometry_.conv_floats()));
    return move(ple_, geometry_.ple_floats());
}

}  // namespace terrace
