// See bpe.h.
// SPDX-License-Identifier: MIT
#include "text/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <queue>

#include "text/utf8.h"

namespace terrace {
namespace {

struct Alphabet {
    std::array<char32_t, 256> of_byte{};
    std::array<int16_t, 0x144> of_point{};  // U+0143 is the last one in use

    Alphabet() {
        of_point.fill(-1);
        char32_t next = 0x100;
        for (uint32_t b = 0; b < 256; ++b) {
            const bool printable =
                (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
            const char32_t point = printable ? b : next++;
            of_byte[b] = point;
            of_point[point] = static_cast<int16_t>(b);
        }
    }
};

const Alphabet& alphabet() {
    static const Alphabet instance;
    return instance;
}

constexpr uint64_t mix(uint64_t h) {
    h ^= h >> 32;
    h *= 0x9E3779B97F4A7C15ull;
    return h ^ (h >> 29);
}

uint64_t hash_bytes(std::string_view s) {
    uint64_t h = 0x2545F4914F6CDD1Dull ^ s.size();
    while (s.size() >= 8) {
        uint64_t word = 0;
        std::memcpy(&word, s.data(), 8);
        h = mix(h ^ word) * 0xD6E8FEB86659FD93ull;
        s.remove_prefix(8);
    }
    uint64_t tail = 0;
    if (!s.empty()) std::memcpy(&tail, s.data(), s.size());
    return mix(mix(h ^ tail) * 0xD6E8FEB86659FD93ull);
}

constexpr uint64_t pair_key(TokenId left, TokenId right) {
    return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) |
           static_cast<uint32_t>(right);
}

}  // namespace

std::string byte_alphabet_spelling(uint8_t byte) {
    std::string out;
    append_utf8(out, alphabet().of_byte[byte]);
    return out;
}

SpelledBytes bytes_of_spelling(std::string_view token) {
    SpelledBytes out;
    out.bytes.reserve(token.size());
    std::string_view rest = token;
    while (!rest.empty()) {
        const Utf8Step step = utf8_step(rest);
        const int16_t byte = step.kind == Utf8Kind::valid && step.point < alphabet().of_point.size()
                                 ? alphabet().of_point[step.point]
                                 : int16_t{-1};
        if (byte < 0) return {std::string(token), false};
        out.bytes.push_back(static_cast<char>(byte));
        rest.remove_prefix(step.bytes);
    }
    return out;
}

void BytesIndex::reserve(size_t n) {
    const size_t want = std::bit_ceil(std::max<size_t>(16, n * 2));
    if (want > table_.size()) {
        std::vector<Entry> old(want);
        old.swap(table_);
        for (const Entry& e : old)
            if (e.data) table_[slot_of({e.data, e.size})] = e;
    }
}

size_t BytesIndex::slot_of(std::string_view key) const {
    const size_t mask = table_.size() - 1;
    size_t slot = hash_bytes(key) & mask;
    while (table_[slot].data && std::string_view(table_[slot].data, table_[slot].size) != key)
        slot = (slot + 1) & mask;
    return slot;
}

bool BytesIndex::insert(std::string_view key, TokenId id) {
    reserve(used_ + 1);
    Entry& entry = table_[slot_of(key)];
    if (entry.data) return false;
    entry = {key.data(), static_cast<uint32_t>(key.size()), id};
    ++used_;
    return true;
}

std::optional<TokenId> BytesIndex::find(std::string_view key) const {
    if (table_.empty()) return std::nullopt;
    const Entry& entry = table_[slot_of(key)];
    if (!entry.data) return std::nullopt;
    return entry.id;
}

Bpe::Bpe() {
    std::fill(std::begin(byte_ids_), std::end(byte_ids_), -1);
}

void Bpe::reserve_merges(size_t n) {
    const size_t want = std::bit_ceil(std::max<size_t>(16, n * 2));
    if (want <= table_.size()) return;
    std::vector<Merge> old(want);
    old.swap(table_);
    const size_t mask = table_.size() - 1;
    for (const Merge& m : old) {
        if (m.product < 0) continue;
        size_t slot = mix(m.pair) & mask;
        while (table_[slot].product >= 0)
            slot = (slot + 1) & mask;
        table_[slot] = m;
    }
}

void Bpe::add_merge(TokenId left, TokenId right, TokenId product) {
    reserve_merges(used_ + 1);
    const uint64_t key = pair_key(left, right);
    const size_t mask = table_.size() - 1;
    size_t slot = mix(key) & mask;
    while (table_[slot].product >= 0 && table_[slot].pair != key)
        slot = (slot + 1) & mask;
    if (table_[slot].product < 0) ++used_;
    table_[slot] = {key, next_rank_++, product};
}

const Bpe::Merge* Bpe::find(TokenId left, TokenId right) const {
    if (table_.empty()) return nullptr;
    const uint64_t key = pair_key(left, right);
    const size_t mask = table_.size() - 1;
    for (size_t slot = mix(key) & mask; table_[slot].product >= 0; slot = (slot + 1) & mask)
        if (table_[slot].pair == key) return &table_[slot];
    return nullptr;
}

Status Bpe::merge(std::string_view word, std::vector<TokenId>& out) const {
    const auto missing = [&](size_t i) {
        return Error{
            Code::unsupported,
            fmt::format("byte {:#04x} at {} of a word of {} bytes has no token in the "
                        "vocabulary",
                        static_cast<unsigned>(static_cast<uint8_t>(word[i])), i, word.size())};
    };
    if (word.size() <= kScanLimit) {
        TokenId symbols[kScanLimit];
        for (size_t i = 0; i < word.size(); ++i) {
            symbols[i] = byte_ids_[static_cast<uint8_t>(word[i])];
            if (symbols[i] < 0) return missing(i);
        }
        const size_t n = scan(symbols, word.size());
        out.insert(out.end(), symbols, symbols + n);
        return {};
    }
    std::vector<TokenId> symbols(word.size());
    for (size_t i = 0; i < word.size(); ++i) {
        symbols[i] = byte_ids_[static_cast<uint8_t>(word[i])];
        if (symbols[i] < 0) return missing(i);
    }
    merge_by_heap(symbols);
    out.insert(out.end(), symbols.begin(), symbols.end());
    return {};
}

// Keeps the merge of each neighbouring pair, so that a step looks up only the two pairs it creates.
size_t Bpe::scan(TokenId* symbols, size_t n) const {
    if (n < 2) return n;
    const Merge* merges[kScanLimit];
    for (size_t i = 0; i + 1 < n; ++i)
        merges[i] = find(symbols[i], symbols[i + 1]);
    while (true) {
        size_t best = n;
        for (size_t i = 0; i + 1 < n; ++i)
            if (merges[i] && (best == n || merges[i]->rank < merges[best]->rank)) best = i;
        if (best == n) return n;
        symbols[best] = merges[best]->product;
        for (size_t i = best + 1; i + 1 < n; ++i) {
            symbols[i] = symbols[i + 1];
            merges[i] = merges[i + 1 < kScanLimit ? i + 1 : i];
        }
        --n;
        if (best > 0) merges[best - 1] = find(symbols[best - 1], symbols[best]);
        if (best + 1 < n) merges[best] = find(symbols[best], symbols[best + 1]);
        if (n < 2) return n;
    }
}

void Bpe::merge_by_scan(std::vector<TokenId>& symbols) const {
    TERRACE_CHECK(symbols.size() <= kScanLimit);
    symbols.resize(scan(symbols.data(), symbols.size()));
}

void Bpe::merge_by_heap(std::vector<TokenId>& symbols) const {
    const auto n = static_cast<int32_t>(symbols.size());
    if (n < 2) return;
    struct Candidate {
        uint32_t rank;
        int32_t left;  // position of the pair's left symbol
        TokenId a, b;  // the pair when it was queued: stale once either has changed
        TokenId product;
        bool operator<(const Candidate& o) const {  // the queue pops the largest
            return rank != o.rank ? rank > o.rank : left > o.left;
        }
    };
    std::vector<int32_t> next(symbols.size()), prev(symbols.size());
    std::vector<Candidate> initial;
    const auto candidate = [&](int32_t left, int32_t right) -> std::optional<Candidate> {
        const auto l = static_cast<size_t>(left), r = static_cast<size_t>(right);
        const Merge* m = find(symbols[l], symbols[r]);
        if (!m) return std::nullopt;
        return Candidate{m->rank, left, symbols[l], symbols[r], m->product};
    };
    for (int32_t i = 0; i < n; ++i) {
        next[static_cast<size_t>(i)] = i + 1 < n ? i + 1 : -1;
        prev[static_cast<size_t>(i)] = i - 1;
        if (i + 1 < n)
            if (const auto c = candidate(i, i + 1)) initial.push_back(*c);
    }
    std::priority_queue<Candidate> queue(std::less<Candidate>{}, std::move(initial));
    while (!queue.empty()) {
        const Candidate top = queue.top();
        queue.pop();
        const auto left = static_cast<size_t>(top.left);
        const int32_t right_ix = next[left];
        // A merged-away symbol holds -1, so it equals no queued one.
        if (symbols[left] != top.a || right_ix < 0) continue;
        const auto right = static_cast<size_t>(right_ix);
        if (symbols[right] != top.b) continue;
        symbols[left] = top.product;
        symbols[right] = -1;
        next[left] = next[right];
        if (next[left] >= 0) prev[static_cast<size_t>(next[left])] = top.left;
        if (prev[left] >= 0)
            if (const auto c = candidate(prev[left], top.left)) queue.push(*c);
        if (next[left] >= 0)
            if (const auto c = candidate(top.left, next[left])) queue.push(*c);
    }
    std::erase(symbols, -1);
}

}  // namespace terrace
