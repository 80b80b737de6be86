// SPDX-License-Identifier: MIT
#include "tier/sequence_rig.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/half.h"

namespace terrace::test {
namespace {

constexpr int32_t kLayers = 2, kHeads = 2, kHeadDim = 2, kIndexDim = 1, kBlock = 4;
constexpr size_t kHalfRow = kHeads * kHeadDim;
constexpr size_t kLayerRow = 2 * kHalfRow + kIndexDim;

// Whole numbers below 1021 are exact in f16.
constexpr int kModulus = 1021;

// Stands for mean, norm and rope: depends on each of the four rows and on their order.
float pool_of(const float* rows) {
    const int sum = static_cast<int>(rows[0]) + 2 * static_cast<int>(rows[1]) +
                    3 * static_cast<int>(rows[2]) + 5 * static_cast<int>(rows[3]);
    return static_cast<float>(sum % kModulus);
}

// Stands for the recurrence: depends on the old state and on the token.
void advance(std::vector<float>& state, const std::vector<float>& row) {
    for (size_t i = 0; i < state.size(); ++i)
        state[i] =
            static_cast<float>((3 * static_cast<int>(state[i]) +
                                static_cast<int>(row[i % row.size()]) + static_cast<int>(i)) %
                               kModulus);
}

StateGeometry state_geometry(int32_t slots) {
    StateGeometry g;
    g.slots = slots;
    g.gdn_layers = 2;
    g.v_heads = 1;
    g.k_dim = 2;
    g.v_dim = 2;
    g.conv_rows = 3;
    g.channels = 1;
    g.ple_layers = 1;
    g.ple_rows = 2;
    g.ple_width = 3;
    return g;
}

}  // namespace

SequenceRig::SequenceRig(int32_t pages, int32_t slots, PlaneType type)
    : stream_(must(device_->make_stream())) {
    PlaneGeometry g;
    g.layers = kLayers;
    g.pages = pages;
    g.kv_heads = kHeads;
    g.head_dim = kHeadDim;
    g.index_dim = kIndexDim;
    g.block_tokens = kBlock;
    g.type = type;
    store_ = std::make_unique<SequenceStore>(
        must(KvPlanes::create(*device_, budget_, budget_, g)),
        must(StatePool::create(*device_, budget_, state_geometry(slots))));
}

Result<TestSequence> SequenceRig::create() {
    TERRACE_ASSIGN(SequenceMemory memory, store_->create(*stream_, 4));
    NaiveSequence naive;
    naive.state.assign(state_geometry(1).bytes_per_slot() / 4, 0.0f);
    return TestSequence{std::move(memory), std::move(naive)};
}

Status SequenceRig::append(TestSequence& s, int32_t n) {
    TERRACE_TRY(store_->reserve(*stream_, s.memory, n));
    const size_t before = s.naive.rows.size(), after = before + static_cast<size_t>(n);
    std::vector<float> state = read_state(s.memory.slot());
    for (size_t position = before; position < after; ++position) {
        std::vector<float> row(kLayers * kLayerRow);
        for (float& v : row)
            v = static_cast<float>(random_.below(kModulus));
        const Place at = place(s.memory, position);
        for (int32_t layer = 0; layer < kLayers; ++layer) {
            const float* values = &row[static_cast<size_t>(layer) * kLayerRow];
            put(kv(layer, at, 0), values, kHalfRow);
            put(kv(layer, at, 1), values + kHalfRow, kHalfRow);
            put(raw(layer, at), values + 2 * kHalfRow, kIndexDim);
        }
        advance(state, row);
        advance(s.naive.state, row);
        s.naive.rows.push_back(std::move(row));
    }
    // As spec 3.5.3: from the block that the first new token lies in, out of the raw plane.
    for (size_t block = before / kBlock; (block + 1) * kBlock <= after; ++block)
        for (int32_t layer = 0; layer < kLayers; ++layer) {
            float rows[kBlock];
            for (size_t t = 0; t < kBlock; ++t)
                rows[t] = get(raw(layer, place(s.memory, block * kBlock + t)), 1)[0];
            const float value = pool_of(rows);
            put(pooled(layer, s.memory, block), &value, 1);
        }
    write_state(s.memory.slot(), state);
    store_->commit(s.memory, n);
    return {};
}

Result<TestSequence> SequenceRig::fork(const TestSequence& s) {
    TERRACE_ASSIGN(SequenceMemory memory, store_->fork(*stream_, s.memory, 4));
    NaiveSequence naive = s.naive;
    naive.checkpoint.reset();
    return TestSequence{std::move(memory), std::move(naive)};
}

void SequenceRig::truncate(TestSequence& s, int32_t length) {
    store_->truncate(s.memory, length);
    s.naive.rows.resize(static_cast<size_t>(length));
    if (s.naive.checkpoint && s.naive.checkpoint->length > s.naive.rows.size())
        s.naive.checkpoint.reset();
}

Status SequenceRig::checkpoint(TestSequence& s) {
    TERRACE_TRY(store_->checkpoint(*stream_, s.memory));
    s.naive.checkpoint = {s.naive.rows.size(), s.naive.state};
    return {};
}

Status SequenceRig::restore(TestSequence& s) {
    TERRACE_TRY(store_->restore(*stream_, s.memory));
    s.naive.rows.resize(s.naive.checkpoint.value().length);
    s.naive.state = s.naive.checkpoint->state;
    return {};
}

std::string SequenceRig::difference(const TestSequence& s) const {
    const size_t length = s.naive.rows.size();
    if (static_cast<size_t>(s.memory.length()) != length)
        return fmt::format("length {}, want {}", s.memory.length(), length);
    if (s.memory.block_table().size() < (length + 255) / 256)
        return fmt::format("{} pages for {} tokens", s.memory.block_table().size(), length);
    for (size_t position = 0; position < length; ++position) {
        const Place at = place(s.memory, position);
        for (int32_t layer = 0; layer < kLayers; ++layer) {
            std::vector<float> got = get(kv(layer, at, 0), kHalfRow);
            for (const float v : get(kv(layer, at, 1), kHalfRow))
                got.push_back(v);
            got.push_back(get(raw(layer, at), 1)[0]);
            if (!std::equal(got.begin(), got.end(),
                            &s.naive.rows[position][static_cast<size_t>(layer) * kLayerRow]))
                return fmt::format("layer {} position {} of {}: another row", layer, position,
                                   length);
        }
    }
    for (size_t block = 0; (block + 1) * kBlock <= length; ++block)
        for (int32_t layer = 0; layer < kLayers; ++layer) {
            float rows[kBlock];
            for (size_t t = 0; t < kBlock; ++t)
                rows[t] = s.naive.rows[block * kBlock + t]
                                      [static_cast<size_t>(layer) * kLayerRow + 2 * kHalfRow];
            if (get(pooled(layer, s.memory, block), 1)[0] != pool_of(rows))
                return fmt::format("layer {} block {} of {} tokens: another pooled row", layer,
                                   block, length);
        }
    if (read_state(s.memory.slot()) != s.naive.state) return "another state";
    const auto checkpoint = s.memory.checkpoint_length();
    if (checkpoint.has_value() != s.naive.checkpoint.has_value() ||
        (checkpoint && static_cast<size_t>(*checkpoint) != s.naive.checkpoint->length))
        return "another checkpoint";
    return {};
}

std::string SequenceRig::leak(const std::vector<const TestSequence*>& live) const {
    const PagePool& pages = store_->pages();
    std::vector<int32_t> held(static_cast<size_t>(pages.capacity()), 0);
    auto slots = static_cast<int32_t>(live.size());
    for (const TestSequence* s : live) {
        for (const int32_t page : s->memory.block_table())
            ++held[static_cast<size_t>(page)];
        slots += s->naive.checkpoint ? 1 : 0;
    }
    for (int32_t p = 0; p < pages.capacity(); ++p)
        if (pages.count(PageId{p}) != held[static_cast<size_t>(p)])
            return fmt::format("page {} has count {}, {} tables name it", p, pages.count(PageId{p}),
                               held[static_cast<size_t>(p)]);
    const auto unused = static_cast<int32_t>(std::count(held.begin(), held.end(), 0));
    if (pages.free_pages() != unused)
        return fmt::format("{} pages are free, {} are in no table", pages.free_pages(), unused);
    const StatePool& states = store_->states();
    if (states.free_slots() != states.geometry().slots - slots)
        return fmt::format("{} of {} slots are free, {} are in use", states.free_slots(),
                           states.geometry().slots, slots);
    return {};
}

SequenceRig::Place SequenceRig::place(const SequenceMemory& m, size_t position) const {
    return {m.block_table().at(position / kPageTokens),
            static_cast<int32_t>(position % kPageTokens)};
}

std::byte* SequenceRig::kv(int32_t layer, Place at, int half) const {
    const RowSource rows = store_->planes().rows(layer);
    return rows.block(at.page, at.offset / kBlock) +
           static_cast<size_t>(half) * rows.half_extent_bytes() +
           static_cast<size_t>(at.offset % kBlock) * kHalfRow * plane_bytes(rows.type);
}

std::byte* SequenceRig::raw(int32_t layer, Place at) const {
    const IndexPlanes index = store_->planes().index(layer);
    return index.raw + static_cast<size_t>(at.page * kPageTokens + at.offset) * kIndexDim *
                           plane_bytes(index.type);
}

std::byte* SequenceRig::pooled(int32_t layer, const SequenceMemory& m, size_t block) const {
    const IndexPlanes index = store_->planes().index(layer);
    const auto page = static_cast<size_t>(m.block_table().at(block * kBlock / kPageTokens));
    constexpr size_t kBlocks = kPageTokens / kBlock;
    return index.pooled + (page * kBlocks + block % kBlocks) * kIndexDim * plane_bytes(index.type);
}

void SequenceRig::put(std::byte* to, const float* values, size_t n) const {
    if (store_->planes().geometry().type == PlaneType::f32) {
        std::memcpy(to, values, 4 * n);
        return;
    }
    for (size_t i = 0; i < n; ++i) {
        const uint16_t half = f32_to_f16(values[i]);
        std::memcpy(to + 2 * i, &half, 2);
    }
}

std::vector<float> SequenceRig::get(const std::byte* from, size_t n) const {
    std::vector<float> out(n);
    if (store_->planes().geometry().type == PlaneType::f32) {
        std::memcpy(out.data(), from, 4 * n);
        return out;
    }
    for (size_t i = 0; i < n; ++i) {
        uint16_t half;
        std::memcpy(&half, from + 2 * i, 2);
        out[i] = f16_to_f32(half);
    }
    return out;
}

namespace {
// Every plane of a state pool as (first float, floats per slot).
std::vector<std::pair<float*, size_t>> state_planes(const StatePool& pool) {
    const StateGeometry& g = pool.geometry();
    std::vector<std::pair<float*, size_t>> out;
    for (int32_t i = 0; i < g.gdn_layers; ++i) {
        out.emplace_back(pool.gdn(i).device_pointer(), g.gdn_floats());
        out.emplace_back(pool.conv(i).device_pointer(), g.conv_floats());
    }
    for (int32_t i = 0; i < g.ple_layers; ++i)
        out.emplace_back(pool.ple(i).device_pointer(), g.ple_floats());
    return out;
}
}  // namespace

std::vector<float> SequenceRig::read_state(SlotId slot) const {
    std::vector<float> out;
    for (const auto& [base, n] : state_planes(store_->states())) {
        const float* from = base + static_cast<size_t>(ix(slot)) * n;
        out.insert(out.end(), from, from + n);
    }
    return out;
}

void SequenceRig::write_state(SlotId slot, const std::vector<float>& values) {
    const float* next = values.data();
    for (const auto& [base, n] : state_planes(store_->states())) {
        std::copy_n(next, n, base + static_cast<size_t>(ix(slot)) * n);
        next += n;
    }
}

}  // namespace terrace::test
