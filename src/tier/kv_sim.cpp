// SPDX-License-Identifier: MIT
#include "tier/kv_sim.h"

#include <algorithm>
#include <deque>
#include <list>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "device/block_mirror.h"

namespace terrace {
namespace {

class Lru {
  public:
    explicit Lru(size_t slots) : slots_(slots) {}
    bool ask(uint32_t block) {
        const auto found = at_.find(block);
        if (found != at_.end()) {
            order_.splice(order_.begin(), order_, found->second);
            return true;
        }
        if (order_.size() == slots_) {
            at_.erase(order_.back());
            order_.pop_back();
        }
        order_.push_front(block);
        at_[block] = order_.begin();
        return false;
    }

  private:
    size_t slots_;
    std::list<uint32_t> order_;  // latest first
    std::unordered_map<uint32_t, std::list<uint32_t>::iterator> at_;
};

class Clock {
  public:
    explicit Clock(size_t slots) : slots_(slots) {}
    bool ask(uint32_t block) {
        const auto found = at_.find(block);
        if (found != at_.end()) {
            used_[found->second] = true;
            return true;
        }
        if (blocks_.size() < slots_) {
            at_[block] = blocks_.size();
            blocks_.push_back(block);
            used_.push_back(false);
            return false;
        }
        for (; used_[hand_]; hand_ = (hand_ + 1) % slots_)
            used_[hand_] = false;
        at_.erase(blocks_[hand_]);
        blocks_[hand_] = block;
        at_[block] = hand_;
        hand_ = (hand_ + 1) % slots_;
        return false;
    }

  private:
    size_t slots_, hand_ = 0;
    std::vector<uint32_t> blocks_;
    std::vector<bool> used_;
    std::unordered_map<uint32_t, size_t> at_;
};

// Newcomers pass through `small`; those asked for again there go to `main`, the others leave and are
// remembered, so that they go straight to `main` when they come back.
class S3Fifo {
  public:
    explicit S3Fifo(size_t slots)
        : slots_(slots), small_most_(std::max<size_t>(1, slots / 10)), ghost_most_(slots) {}
    bool ask(uint32_t block) {
        const auto found = uses_.find(block);
        if (found != uses_.end()) {
            found->second = std::min(found->second + 1, 3);
            return true;
        }
        while (small_.size() + main_.size() >= slots_)
            make_room();
        if (ghosts_.erase(block) > 0)
            main_.push_back(block);
        else
            small_.push_back(block);
        uses_[block] = 0;
        return false;
    }

  private:
    void make_room() {
        if (small_.size() >= small_most_ || main_.empty()) {
            const uint32_t block = small_.front();
            small_.pop_front();
            if (uses_[block] > 0) {
                uses_[block] = 0;
                main_.push_back(block);
                return;
            }
            uses_.erase(block);
            if (ghosts_.insert(block).second) left_.push_back(block);
            if (left_.size() > ghost_most_) {
                ghosts_.erase(left_.front());
                left_.pop_front();
            }
            return;
        }
        const uint32_t block = main_.front();
        main_.pop_front();
        if (uses_[block] > 0) {
            --uses_[block];
            main_.push_back(block);
            return;
        }
        uses_.erase(block);
    }

    size_t slots_, small_most_, ghost_most_;
    std::deque<uint32_t> small_, main_, left_;
    std::unordered_set<uint32_t> ghosts_;
    std::unordered_map<uint32_t, int> uses_;  // of those present
};

template <class Policy>
int64_t count_hits(Policy policy, const MirrorCalls& calls) {
    int64_t hits = 0;
    for (const auto& call : calls)
        for (const uint32_t block : call)
            hits += policy.ask(block) ? 1 : 0;
    return hits;
}

int64_t mirror_hits(const MirrorCalls& calls, int32_t n) {
    uint32_t most = 0;
    for (const auto& call : calls)
        for (const uint32_t block : call)
            most = std::max(most, block);
    BlockMirror m;
    m.n = n;
    std::vector<int32_t> slots(size_t{most} + 1, kAbsent), owner(static_cast<size_t>(n), -1);
    std::vector<int32_t> spare(2 * static_cast<size_t>(m.spares_most()));
    std::vector<uint32_t> used(static_cast<size_t>(n), 0);
    MirrorHead head;
    m.slots = slots.data();
    m.owner = owner.data();
    m.used = used.data();
    m.spare = spare.data();
    m.head = &head;
    for (const auto& call : calls) {
        for (const uint32_t block : call)
            ask_block(m, block);
        end_epoch(m, 1);
    }
    return static_cast<int64_t>(head.counters.hits());
}

// The block whose next use is farthest leaves, or does not come in.
int64_t belady_hits(const MirrorCalls& calls, size_t slots) {
    std::vector<uint32_t> all;
    for (const auto& call : calls)
        all.insert(all.end(), call.begin(), call.end());
    std::vector<size_t> next(all.size());
    std::unordered_map<uint32_t, size_t> later;
    for (size_t i = all.size(); i-- > 0;) {
        const auto found = later.find(all[i]);
        next[i] = found == later.end() ? all.size() : found->second;
        later[all[i]] = i;
    }
    std::set<std::pair<size_t, uint32_t>> present;  // by next use
    int64_t hits = 0;
    for (size_t i = 0; i < all.size(); ++i) {
        hits += present.erase({i, all[i]}) > 0 ? 1 : 0;
        if (next[i] == all.size()) continue;
        present.insert({next[i], all[i]});
        if (present.size() > slots) present.erase(std::prev(present.end()));
    }
    return hits;
}

}  // namespace

std::string_view to_string(MirrorPolicy policy) {
    switch (policy) {
        case MirrorPolicy::lru:
            return "lru";
        case MirrorPolicy::clock:
            return "clock";
        case MirrorPolicy::s3_fifo:
            return "s3-fifo";
        case MirrorPolicy::mirror:
            return "mirror";
        case MirrorPolicy::belady:
            return "belady";
    }
    return "?";
}

int64_t simulated_hits(MirrorPolicy policy, const MirrorCalls& calls, int32_t slots) {
    const auto n = static_cast<size_t>(slots);
    switch (policy) {
        case MirrorPolicy::lru:
            return count_hits(Lru(n), calls);
        case MirrorPolicy::clock:
            return count_hits(Clock(n), calls);
        case MirrorPolicy::s3_fifo:
            return count_hits(S3Fifo(n), calls);
        case MirrorPolicy::mirror:
            return mirror_hits(calls, slots);
        case MirrorPolicy::belady:
            return belady_hits(calls, n);
    }
    return 0;
}

}  // namespace terrace
