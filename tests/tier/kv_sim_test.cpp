// Replacement policies on traces made by hand, and the file that traces come from.
// SPDX-License-Identifier: MIT
#include "tier/kv_sim.h"

#include <gmock/gmock.h>

#include <fstream>

#include "support/support.h"
#include "tier/kv_trace.h"

namespace terrace::test {
namespace {

MirrorCalls one_by_one(const std::vector<uint32_t>& blocks) {
    MirrorCalls calls;
    for (const uint32_t b : blocks)
        calls.push_back({b});
    return calls;
}
int64_t hits(MirrorPolicy p, const std::vector<uint32_t>& blocks, int32_t slots) {
    return simulated_hits(p, one_by_one(blocks), slots);
}

TEST(KvSim, LruForgetsTheLeastRecentlyUsed) {
    EXPECT_EQ(hits(MirrorPolicy::lru, {1, 2, 1, 3, 1, 2}, 2), 2);
    EXPECT_EQ(hits(MirrorPolicy::lru, {1, 2, 3, 1, 2, 3}, 2), 0);  // a loop just too long
    EXPECT_EQ(hits(MirrorPolicy::lru, {1, 2, 3, 1, 2, 3}, 3), 3);
}

TEST(KvSim, ClockGivesASecondChance) {
    // 1 was used since it came: 2 goes.
    EXPECT_EQ(hits(MirrorPolicy::clock, {1, 2, 1, 3, 1}, 2), 2);
    EXPECT_EQ(hits(MirrorPolicy::clock, {1, 2, 3, 1}, 2), 0);
}

TEST(KvSim, S3FifoKeepsAScanFromPushingOutWhatIsUsed) {
    std::vector<uint32_t> blocks;
    for (int i = 0; i < 4; ++i)
        for (uint32_t b = 0; b < 9; ++b)
            blocks.push_back(b);
    for (uint32_t b = 100; b < 200; ++b)
        blocks.push_back(b);
    for (uint32_t b = 0; b < 9; ++b)
        blocks.push_back(b);
    EXPECT_EQ(hits(MirrorPolicy::lru, blocks, 10), 27);
    EXPECT_GE(hits(MirrorPolicy::s3_fifo, blocks, 10), 34);
}

TEST(KvSim, BeladyIsTheMostThatCanBeHad) {
    EXPECT_EQ(hits(MirrorPolicy::belady, {1, 2, 3, 1, 2, 3}, 2), 2);
    EXPECT_EQ(hits(MirrorPolicy::belady, {1, 2, 3, 4, 1}, 1), 1);
    Random random(3);
    std::vector<uint32_t> blocks;
    for (int i = 0; i < 3000; ++i)
        blocks.push_back(static_cast<uint32_t>(random.below(1 + random.below(200))));
    for (const int32_t slots : {8, 32, 64}) {
        const int64_t best = hits(MirrorPolicy::belady, blocks, slots);
        for (const MirrorPolicy p : {MirrorPolicy::lru, MirrorPolicy::clock, MirrorPolicy::s3_fifo,
                                     MirrorPolicy::mirror}) {
            EXPECT_LE(hits(p, blocks, slots), best) << to_string(p) << " " << slots;
            EXPECT_GT(hits(p, blocks, slots), best / 6) << to_string(p) << " " << slots;
        }
    }
}

TEST(KvSim, TheMirrorMissesACallThatFindsNoSparesAndThenBehavesLikeLru) {
    MirrorCalls calls(5, {1, 2, 3});
    EXPECT_EQ(simulated_hits(MirrorPolicy::mirror, calls, 64), 9);
}

TEST(KvTraceFile, GivesBackWhatWasWritten) {
    const TempDir dir;
    const auto file = dir.path() / "t.kv";
    {
        KvTraceWriter w = must(KvTraceWriter::create(file, 3, 4));
        w.add({1, 0, 5, 4000, {7, 9, 1000}});
        w.add({1, 2, 5, 4000, {}});
        must(w.close());
    }
    const KvTrace t = must(read_kv_trace(file));
    EXPECT_EQ(t.layers, 3u);
    EXPECT_EQ(t.block_tokens, 4u);
    ASSERT_EQ(t.records.size(), 2u);
    EXPECT_EQ(t.records[0].position, 4000u);
    EXPECT_THAT(t.records[0].blocks, testing::ElementsAre(7u, 9u, 1000u));
    EXPECT_EQ(t.records[1].layer, 2u);
    EXPECT_TRUE(t.records[1].blocks.empty());
}

TEST(KvTraceFile, BrokenFilesAreErrorsThatNameTheRecord) {
    const TempDir dir;
    const auto file = dir.path() / "t.kv";
    EXPECT_EQ(read_kv_trace(file).error().code, Code::io);
    write_file(file, "hello, this is no trace");
    EXPECT_EQ(read_kv_trace(file).error().code, Code::corrupt_data);
    {
        KvTraceWriter w = must(KvTraceWriter::create(file, 1, 4));
        w.add({1, 0, 0, 1, {1, 2, 3}});
        must(w.close());
    }
    std::filesystem::resize_file(file, std::filesystem::file_size(file) - 2);
    const auto cut = read_kv_trace(file);
    ASSERT_FALSE(cut);
    EXPECT_THAT(cut.error().message, testing::HasSubstr("record 0"));
}

}  // namespace
}  // namespace terrace::test
