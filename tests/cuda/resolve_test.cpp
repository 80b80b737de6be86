// resolve_blocks on the GPU: warps ask in any order, so what is held to is what device/block_mirror.h
// promises, not which block got which slot; counters are exact.
// SPDX-License-Identifier: MIT
#include <algorithm>

#include "gpu.h"
#include "support/mirror_rig.h"

namespace terrace::test {
namespace {

class CudaResolve : public GpuTest {};
using Row = MirrorRig::Row;

std::vector<Row> random_rows(Random& random, int32_t most, int32_t pages, int32_t top) {
    std::vector<Row> rows;
    for (int64_t r = random.below(most); r >= 0; --r) {
        Row row;
        row.pages = {static_cast<int32_t>(random.below(pages)),
                     static_cast<int32_t>(random.below(pages))};
        row.pos = static_cast<int32_t>(random.below(512));
        row.blocks =
            some_blocks(random, static_cast<int32_t>(random.below(top + 1)), (row.pos + 1) / 4);
        rows.push_back(std::move(row));
    }
    return rows;
}

TEST_F(CudaResolve, RandomRowsPagesAndRewritesNeverShowAWrongByte) {
    for (uint64_t seed = 0; seed < 12; ++seed) {
        Random random(seed + 100);
        const int32_t sizes[] = {1, 8, 40, 300};
        const int32_t dims[] = {16, 5, 256};
        MirrorRig m(*gpu(),
                    {.slots = sizes[seed % 4], .pages = 6, .top = 24, .head_dim = dims[seed % 3]},
                    seed);
        if (seed % 2) m.call = MirrorCall::first_of_step;
        for (int i = 0; i < 40; ++i) {
            m.resolve(random_rows(random, 5, 6, 24));
            if (random.below(5) == 0) m.rewrite_page(static_cast<int32_t>(random.below(6)));
            m.check("seed " + std::to_string(seed) + " call " + std::to_string(i));
        }
    }
}

TEST_F(CudaResolve, CountersOfSingleRowsAreThoseOfTheReference) {
    for (const int32_t slots : {8192, 2048, 20'000}) {
        const MirrorRig::Shape shape{.slots = slots, .pages = 200, .top = 512, .head_dim = 256};
        MirrorRig on_gpu(*gpu(), shape, 5), want(reference(), shape, 5);
        on_gpu.call = MirrorCall::first_of_step;
        Random random(6);
        std::vector<int32_t> pages(200);
        for (int32_t i = 0; i < 200; ++i)
            pages[static_cast<size_t>(i)] = 199 - i;
        std::vector<int32_t> list = some_blocks(random, 512, 12'700);
        for (int i = 0; i < 60; ++i) {
            // A part of the list changes, another one in each call.
            for (int64_t k = random.below(100); k > 0; --k)
                list[static_cast<size_t>(random.below(512))] =
                    static_cast<int32_t>(random.below(12'700));
            std::sort(list.begin(), list.end());
            Row row{pages, 51'000 + i, list};
            row.blocks.erase(std::unique(row.blocks.begin(), row.blocks.end()), row.blocks.end());
            on_gpu.resolve({row});
            want.resolve({row});
        }
        on_gpu.check("slots " + std::to_string(slots));
        const MirrorCounters a = on_gpu.head().counters, b = want.head().counters;
        EXPECT_EQ(a.calls, b.calls);
        EXPECT_EQ(a.rows, b.rows);
        EXPECT_EQ(a.entries, b.entries);
        if (slots > 2048) {
            // Nothing that is asked for again was pushed out.
            EXPECT_EQ(a.copied, b.copied);
            EXPECT_EQ(a.at_home, b.at_home);
        }
    }
}

TEST_F(CudaResolve, ManyRowsBringTheirUnionOnce) {
    const MirrorRig::Shape shape{.slots = 8192, .pages = 64, .top = 512, .head_dim = 256};
    MirrorRig m(*gpu(), shape, 7);
    m.resolve({Row{{0}, 3, {}}});
    std::vector<int32_t> pages(32);
    for (int32_t i = 0; i < 32; ++i)
        pages[static_cast<size_t>(i)] = 2 * i;
    Random random(8);
    const auto list = some_blocks(random, 300, 2000);
    const Row row{pages, 8191, list};
    m.resolve(std::vector<Row>(9, row));
    m.check("nine rows");
    const MirrorCounters c = m.head().counters;
    EXPECT_EQ(c.copied, 300u);
    EXPECT_EQ(c.hits(), 8u * 300u);
}

TEST_F(CudaResolve, DenseRowsAskForAllCompleteBlocks) {
    MirrorRig m(*gpu(), {.slots = 1024, .pages = 8, .top = 16}, 9);
    m.resolve({Row{{0}, 3, {}}});
    m.resolve({Row{{6, 1}, 421, {}}}, MirrorRig::Lists::dense);
    EXPECT_EQ(m.head().counters.copied, 106u);
    m.check("dense");
}

TEST_F(CudaResolve, TheEpochStartsOverWithoutLosingASlot) {
    MirrorRig m(*gpu(), {.slots = 64}, 11);
    m.set_epoch(kLastEpoch - 6);
    Random random(12);
    for (int i = 0; i < 14; ++i) {
        m.resolve({Row{{1}, 255, some_blocks(random, 10, 64)}});
        m.check("call " + std::to_string(i));
    }
    EXPECT_LT(m.head().epoch, 20u);
}

TEST_F(CudaResolve, ACapturedCallIsRightWithOtherLists) {
    Rig& rig = *gpu();
    const MirrorRig::Shape shape{.slots = 2048, .pages = 16, .top = 64, .head_dim = 256};
    MirrorRig m(rig, shape, 13);
    Random random(14);
    Row row{{4, 5, 6, 7}, 1023, some_blocks(random, 64, 256)};
    m.resolve({row});
    const ResolveBlocksArgs a = m.args({row}, MirrorRig::Lists::given);
    must(rig.stream().begin_capture());
    must(rig.ops().resolve_blocks(rig.stream(), a));
    const auto graph = must(rig.stream().end_capture());
    for (int i = 0; i < 50; ++i) {
        row.blocks = some_blocks(random, 64, 256);
        must(rig.stream().copy(const_cast<int32_t*>(a.blocks.device_pointer()), row.blocks.data(),
                               4 * row.blocks.size()));
        must(rig.stream().launch(*graph));
        must(rig.stream().synchronize());
        m.check("replay " + std::to_string(i));
        const auto slots = m.slots();
        for (const int32_t b : row.blocks)
            EXPECT_GE(slots[static_cast<size_t>(m.number(row, b))], 0) << "replay " << i;
    }
    EXPECT_EQ(m.head().counters.calls, 51u);
}

}  // namespace
}  // namespace terrace::test
