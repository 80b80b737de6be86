// SPDX-License-Identifier: MIT
#include "support/mirror_rig.h"

#include <algorithm>
#include <set>

namespace terrace::test {
namespace {
constexpr size_t z(int64_t v) {
    return static_cast<size_t>(v);
}
}  // namespace

MirrorRig::MirrorRig(Rig& rig, const Shape& shape, uint64_t seed)
    : rig_(rig), shape_(shape), random_(seed) {
    kv_.kv_heads = shape.kv_heads;
    kv_.head_dim = shape.head_dim;
    kv_.block_tokens = shape.block_tokens;
    const int32_t blocks = shape.pages * (kPageTokens / shape.block_tokens);
    std::vector<uint16_t> home(z(blocks) * extent() / 2);
    for (uint16_t& v : home)
        v = static_cast<uint16_t>(random_.next());
    kv_.base = reinterpret_cast<std::byte*>(rig.upload(home).device_pointer());
    mirror_.n = shape.slots;
    const std::vector<std::byte> poison(z(shape.slots) * extent(), std::byte{0xff});
    kv_.mirror = rig.upload(poison).device_pointer();
    mirror_.slots = rig.upload(std::vector<int32_t>(z(blocks), -1)).device_pointer();
    mirror_.owner = rig.upload(std::vector<int32_t>(z(shape.slots), -1)).device_pointer();
    mirror_.used = rig.upload(std::vector<uint32_t>(z(shape.slots), 0)).device_pointer();
    mirror_.spare = rig.upload(std::vector<int32_t>(z(2 * mirror_.spares_most()))).device_pointer();
    mirror_.head = rig.upload(std::vector<MirrorHead>(1)).device_pointer();
    kv_.slots = mirror_.slots;
}

ResolveBlocksArgs MirrorRig::args(const std::vector<Row>& rows, Lists lists) {
    std::vector<int32_t> tables, row_seq, blocks, counts;
    host_seqs_.clear();
    for (const Row& row : rows) {
        const auto r = static_cast<int32_t>(host_seqs_.size());
        host_seqs_.push_back({r, 1, row.pos, static_cast<int32_t>(tables.size()),
                              static_cast<int32_t>(row.pages.size()), 0});
        tables.insert(tables.end(), row.pages.begin(), row.pages.end());
        row_seq.push_back(r);
        counts.push_back(static_cast<int32_t>(row.blocks.size()));
        TERRACE_CHECK(counts.back() <= shape_.top);
        blocks.insert(blocks.end(), row.blocks.begin(), row.blocks.end());
        blocks.resize(host_seqs_.size() * z(shape_.top), -1);
    }
    ResolveBlocksArgs a;
    a.step.n_rows = a.step.n_seqs = a.rows = static_cast<int32_t>(rows.size());
    a.step.seqs = rig_.upload(host_seqs_);
    a.step.block_tables = rig_.upload(tables);
    a.step.row_seq = rig_.upload(row_seq);
    a.step.host_seqs = host_seqs_.data();
    a.kv = kv_;
    a.mirror = mirror_;
    a.top = shape_.top;
    a.call = call;
    if (lists == Lists::given) {
        a.blocks = rig_.upload(blocks);
        a.counts = rig_.upload(counts);
    }
    return a;
}

void MirrorRig::resolve(const std::vector<Row>& rows, Lists lists) {
    const ResolveBlocksArgs a = args(rows, lists);
    rig_.reserve({});
    rig_.call([&](Ops& ops, Stream& s) { return ops.resolve_blocks(s, a); });
}

void MirrorRig::rewrite_page_behind(int32_t page) {
    const size_t bytes = z(kPageTokens / shape_.block_tokens) * extent();
    std::vector<uint16_t> fresh(bytes / 2);
    for (uint16_t& v : fresh)
        v = static_cast<uint16_t>(random_.next());
    must(rig_.stream().copy(kv_.base + z(page) * bytes, fresh.data(), bytes));
    must(rig_.stream().synchronize());
}

void MirrorRig::rewrite_page(int32_t page) {
    rewrite_page_behind(page);
    const int32_t blocks = kPageTokens / shape_.block_tokens;
    must(
        rig_.stream().fill(mirror_.slots + int64_t{page} * blocks, std::byte{0xff}, 4 * z(blocks)));
}

std::vector<int32_t> MirrorRig::slots() {
    return rig_.download(
        DevSpan<int32_t>(mirror_.slots, z(shape_.pages) * z(kPageTokens / shape_.block_tokens)));
}

MirrorHead MirrorRig::head() {
    return rig_.download(DevSpan<MirrorHead>(mirror_.head, 1))[0];
}

void MirrorRig::set_epoch(uint32_t epoch) {
    MirrorHead h = head();
    h.epoch = epoch;
    must(rig_.stream().copy(mirror_.head, &h, sizeof h));
    must(rig_.stream().synchronize());
}

int32_t MirrorRig::number(const Row& row, int32_t block) const {
    const int32_t pos = block * shape_.block_tokens;
    return static_cast<int32_t>(
        kv_.number(row.pages[z(pos / kPageTokens)], pos % kPageTokens / shape_.block_tokens));
}

bool MirrorRig::contents_are_right() {
    const auto slot_of = slots();
    std::vector<std::byte> home(slot_of.size() * extent()), copies(z(shape_.slots) * extent());
    rig_.download_bytes(home.data(), kv_.base, home.size());
    rig_.download_bytes(copies.data(), kv_.mirror, copies.size());
    for (size_t b = 0; b < slot_of.size(); ++b)
        if (slot_of[b] >= 0 &&
            std::memcmp(&home[b * extent()], &copies[z(slot_of[b]) * extent()], extent()) != 0)
            return false;
    return true;
}

void MirrorRig::check(const std::string& what) {
    EXPECT_TRUE(contents_are_right()) << what << ": a published slot is not what is at home";
    const auto slot_of = slots();
    const auto owner = rig_.download(DevSpan<int32_t>(mirror_.owner, z(shape_.slots)));
    const auto used = rig_.download(DevSpan<uint32_t>(mirror_.used, z(shape_.slots)));
    const auto spare = rig_.download(DevSpan<int32_t>(mirror_.spare, z(2 * mirror_.spares_most())));
    const MirrorHead h = head();
    EXPECT_EQ(h.running, 0u) << what;
    std::set<int32_t> published, spares;
    for (size_t b = 0; b < slot_of.size(); ++b) {
        if (slot_of[b] < 0) continue;
        ASSERT_LT(slot_of[b], shape_.slots) << what;
        EXPECT_TRUE(published.insert(slot_of[b]).second) << what << ": two blocks in one slot";
        EXPECT_EQ(owner[z(slot_of[b])], static_cast<int32_t>(b)) << what;
    }
    const uint32_t list = (h.epoch + 1) % 2;  // of the next call
    ASSERT_LE(h.spares[list], static_cast<uint32_t>(mirror_.spares_most())) << what;
    EXPECT_EQ(h.spares[1 - list], 0u) << what;
    for (uint32_t i = 0; i < h.spares[list]; ++i) {
        const int32_t s = spare[list * z(mirror_.spares_most()) + i];
        ASSERT_TRUE(s >= 0 && s < shape_.slots) << what;
        EXPECT_TRUE(spares.insert(s).second) << what << ": slot " << s << " is spare twice";
        EXPECT_FALSE(published.count(s)) << what << ": slot " << s << " is spare and published";
    }
    for (int32_t s = 0; s < shape_.slots; ++s) {
        EXPECT_EQ(used[z(s)] == kSpareSlot, spares.count(s) == 1)
            << what << ": slot " << s << " is lost or not marked";
        EXPECT_TRUE(used[z(s)] == kSpareSlot || used[z(s)] <= h.epoch) << what;
    }
}

std::vector<int32_t> some_blocks(Random& random, int32_t n, int32_t end) {
    std::set<int32_t> out;
    while (static_cast<int32_t>(out.size()) < std::min(n, end))
        out.insert(static_cast<int32_t>(random.below(end)));
    return {out.begin(), out.end()};
}

}  // namespace terrace::test
