// A mirror of single blocks of one layer's K and V: which block is in which slot, and which slots go
// to new blocks next. Plain data in the layer's device memory and, for backends whose compute runs on
// the host, the steps that change it; kernels follow the same rules. Owns nothing.
//
// An epoch is one call of resolve_blocks. A slot is
//   published  slots[owner[s]] == s: it holds the bytes that block owner[s] has at home
//   spare      used[s] == kSpareSlot: on a list of spares once, named by no block
//   orphaned   neither: its block was forgotten; it ages and becomes a spare
// The spares of an epoch were put on their list in the epoch before and were unpublished then, so that
// nobody who reads blocks in this epoch can be reading them while they are filled. A slot that is
// unpublished in the epoch in which its block is selected again costs a read at home, never a wrong
// byte.
// SPDX-License-Identifier: MIT
#pragma once
#include <algorithm>
#include <cstdint>

namespace terrace {

constexpr uint32_t kSpareSlot = 0xffffffff;
// `used` starts over before it could reach kSpareSlot.
constexpr uint32_t kLastEpoch = 0xfffffff0;
// Slots that an epoch looks at when it picks the least recently used: all of a mirror of up to this
// size, else a window that moves on. Bounds the time of a call.
constexpr int32_t kMirrorWindow = 8192;
// Epochs that age is told apart by; older is equally old.
constexpr uint32_t kMirrorAges = 4096;

// Entries of slots[] below zero are absent. kAbsent: nobody asked lately. Others: asked for in the
// epoch whose mark it is, and not given a slot (yet).
constexpr int32_t kAbsent = -1;
constexpr int32_t absent_mark(uint32_t epoch) {
    return -2 - static_cast<int32_t>(epoch & 0x3fffffff);
}

struct MirrorCounters {
    uint64_t calls = 0, rows = 0;
    uint64_t entries = 0;  // blocks that rows asked for, each row's own
    uint64_t copied = 0;   // blocks that were given a slot
    uint64_t at_home = 0;  // absent blocks that were not, for want of a spare
    // Rest of the entries: present, or asked for by another row of the same call.
    constexpr uint64_t hits() const { return entries - copied - at_home; }
};

struct MirrorHead {
    uint32_t epoch = 0;           // the last one
    uint32_t last_asked = 0;      // absent blocks of the last epoch
    uint32_t hand = 0;            // where the next window starts
    uint32_t spares[2] = {0, 0};  // on each list; epoch e takes from list e % 2 and fills the other
    // Of the running call, 0 between calls: absent blocks so far; kernels count more in it.
    uint64_t running = 0;
    MirrorCounters counters;
};

struct BlockMirror {
    int32_t* slots = nullptr;  // [blocks of the pool]; RowSource::slots, group_shift 0
    int32_t* owner = nullptr;  // [n] block number, or -1
    uint32_t* used = nullptr;  // [n] last epoch that asked for it, or kSpareSlot
    int32_t* spare = nullptr;  // [2][2 * spares_wanted()]
    MirrorHead* head = nullptr;
    int32_t n = 0;

    // Spares to have at the start of a call: a row's 512 blocks and its tail with some to come, more
    // for large mirrors, which serve more rows; but never hold more than a quarter of the slots.
    constexpr int32_t spares_wanted() const {
        const int32_t wanted = n / 16 < 528 ? 528 : n / 16;
        const int32_t most = n / 8 < 1 ? 1 : n / 8;
        return wanted < most ? wanted : most;
    }
    constexpr int32_t spares_most() const { return 2 * spares_wanted(); }
    // The list that epoch takes from, its last first. The other one is filled meanwhile: new spares,
    // then a copy of this list, of which what was not taken is the first part.
    constexpr int32_t* spares_of(uint32_t epoch) const {
        return spare + static_cast<int64_t>(epoch % 2) * spares_most();
    }
    // Slots to pick in an epoch that starts with `have` spares: as many as bring the list to what is
    // wanted if this epoch asks for as many as the last.
    constexpr int32_t to_pick(int32_t have, int32_t last_asked) const {
        const int32_t most = spares_most() - have, wanted = spares_wanted() - have + last_asked;
        return wanted < 0 ? 0 : wanted < most ? wanted : most;
    }
};

// ---- The rules on the host.

enum class Asked : uint8_t { present, copy, at_home };
struct AskedBlock {
    Asked what = Asked::present;
    int32_t slot = -1;  // copy: home's bytes go there
};

// A row asks for a block. After `copy`, the caller fills the slot before anybody reads it.
inline AskedBlock ask_block(const BlockMirror& m, int64_t number) {
    MirrorHead& head = *m.head;
    const uint32_t epoch = head.epoch + 1;
    int32_t& entry = m.slots[number];
    ++head.counters.entries;
    if (entry >= 0) {
        // A spare is published nowhere, so the mark of one is never overwritten here.
        m.used[entry] = epoch;
        return {Asked::present, entry};
    }
    if (entry == absent_mark(epoch)) return {Asked::present, -1};
    const uint64_t k = head.running++, have = head.spares[epoch % 2];
    if (k >= have) {
        entry = absent_mark(epoch);
        return {Asked::at_home, -1};
    }
    const int32_t slot = m.spares_of(epoch)[have - 1 - k];
    m.owner[slot] = static_cast<int32_t>(number);
    m.used[slot] = epoch;
    entry = slot;
    return {Asked::copy, slot};
}

// Slots that an epoch may give away: not spare already, not asked for in it. A number that is ahead
// of the epoch is left over from before epochs started over, and old.
constexpr bool may_go(uint32_t used, uint32_t epoch) {
    return used != kSpareSlot && used != epoch;
}
constexpr uint32_t age_of(uint32_t used, uint32_t epoch) {
    return epoch - used < kMirrorAges ? epoch - used : kMirrorAges;
}

// Ends the epoch: the least recently used slots of the window are unpublished and become the spares
// of the next, with those that were not needed.
inline void end_epoch(const BlockMirror& m, int32_t rows) {
    MirrorHead& head = *m.head;
    const uint32_t epoch = head.epoch + 1, list = epoch % 2;
    const auto have = static_cast<int32_t>(head.spares[list]);
    const int32_t window = std::min(m.n, kMirrorWindow);
    const auto slot_at = [&](int32_t i) {
        return static_cast<int32_t>((head.hand + static_cast<uint32_t>(i)) %
                                    static_cast<uint32_t>(m.n));
    };
    const auto count = [&](uint32_t age) {
        int32_t older = 0;
        for (int32_t i = 0; i < window; ++i) {
            const uint32_t used = m.used[slot_at(i)];
            older += may_go(used, epoch) && age_of(used, epoch) >= age;
        }
        return older;
    };
    const int32_t pick = m.to_pick(have, static_cast<int32_t>(head.last_asked));
    // The largest age that enough slots have or exceed.
    uint32_t low = 1, high = kMirrorAges;
    while (pick > 0 && low < high) {
        const uint32_t middle = (low + high + 1) / 2;
        if (count(middle) >= pick)
            low = middle;
        else
            high = middle - 1;
    }
    int32_t* const next = m.spares_of(epoch + 1);
    int32_t picked = 0;
    // All that are older, then as many of this age as are still wanted.
    for (const bool older : {true, false})
        for (int32_t i = 0; i < window && picked < pick; ++i) {
            const int32_t slot = slot_at(i);
            const uint32_t used = m.used[slot];
            if (!may_go(used, epoch)) continue;
            const uint32_t age = age_of(used, epoch);
            if (older ? age <= low : age != low) continue;
            const int32_t block = m.owner[slot];
            if (block >= 0 && m.slots[block] == slot) m.slots[block] = kAbsent;
            m.used[slot] = kSpareSlot;
            next[picked++] = slot;
        }
    const auto asked = static_cast<uint32_t>(head.running);
    const auto taken = static_cast<int32_t>(std::min(asked, head.spares[list]));
    for (int32_t i = 0; i < have - taken; ++i)
        next[picked++] = m.spares_of(epoch)[i];
    head.counters.calls += 1;
    head.counters.rows += static_cast<uint64_t>(rows);
    head.counters.copied += static_cast<uint64_t>(taken);
    head.counters.at_home += asked - static_cast<uint32_t>(taken);
    head.spares[list] = 0;
    head.spares[1 - list] = static_cast<uint32_t>(picked);
    head.last_asked = asked;
    head.running = 0;
    if (m.n > window) head.hand = static_cast<uint32_t>(slot_at(window));
    head.epoch = epoch;
    if (epoch < kLastEpoch) return;
    for (int32_t s = 0; s < m.n; ++s)
        if (m.used[s] != kSpareSlot) m.used[s] = 0;
    head.epoch = epoch % 2;  // the lists keep their turns
}

}  // namespace terrace
