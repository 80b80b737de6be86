// SPDX-License-Identifier: MIT
#include "tier/budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace terrace {

std::string_view to_string(Role role) {
    switch (role) {
        case Role::weights:
            return "weights";
        case Role::experts:
            return "experts";
        case Role::ngram:
            return "n-gram table";
        case Role::kv:
            return "K/V planes";
        case Role::kv_mirror:
            return "K/V mirror";
        case Role::raw_index:
            return "raw index plane";
        case Role::pooled_index:
            return "pooled index plane";
        case Role::state:
            return "recurrent state";
        case Role::kv_arena:
            return "K/V arena";
        case Role::staging:
            return "pinned staging";
        case Role::activations:
            return "activations";
        case Role::workspace:
            return "workspace";
        case Role::logits:
            return "logits";
    }
    return "?";
}

Reservation::~Reservation() {
    if (budget_) budget_->used_[static_cast<size_t>(role_)] -= bytes_;
}

size_t Budget::used() const {
    return std::accumulate(used_.begin(), used_.end(), size_t{0});
}

Result<Reservation> Budget::reserve(Role role, size_t bytes, std::string_view what) {
    const size_t taken = used();
    if (limit_ != 0 && (bytes > limit_ || taken > limit_ - bytes))
        return Error{Code::out_of_memory,
                     fmt::format("{}: {} ({}) needs {} bytes, {} of {} are free{}: lower --ctx or "
                                 "--max-seqs, or raise --host-limit",
                                 name_, what, to_string(role), bytes, limit_ - taken, limit_,
                                 largest_roles())};
    used_[static_cast<size_t>(role)] += bytes;
    return Reservation(this, role, bytes);
}

std::string Budget::largest_roles() const {
    constexpr size_t kNamed = 3;
    std::array<Role, kRoles> roles;
    for (size_t r = 0; r < roles.size(); ++r)
        roles[r] = static_cast<Role>(r);
    std::stable_sort(roles.begin(), roles.end(), [&](Role a, Role b) { return used(a) > used(b); });
    std::string text;
    for (size_t i = 0; i < kNamed && used(roles[i]) > 0; ++i)
        text += fmt::format("{} {} {}", text.empty() ? " (taken:" : ",", to_string(roles[i]),
                            used(roles[i]));
    return text.empty() ? text : text + ")";
}

Result<ChargedBuffer> allocate_charged(Device& device, Budget& budget, Role role, size_t bytes,
                                       MemSpace space, Fill fill, std::string_view what) {
    TERRACE_ASSIGN(Reservation charge, budget.reserve(role, bytes, what));
    auto buffer = device.allocate(bytes, space, fill);
    if (!buffer) return buffer.error().in(what);
    return ChargedBuffer{std::move(charge), std::move(*buffer)};
}

}  // namespace terrace
