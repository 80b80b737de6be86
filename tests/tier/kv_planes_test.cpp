// Layout, charges and page copies of the K/V, raw and pooled planes. Expected addresses are
// computed here, per token, from the layout that the header states.
// SPDX-License-Identifier: MIT
#include "tier/kv_planes.h"

#include <gmock/gmock.h>

#include <cstring>

#include "support/support.h"

namespace terrace::test {
namespace {

struct Case {
    PlaneType type = PlaneType::f16;
    int32_t block_tokens = 4;
};

class KvPlanesOfType : public ::testing::TestWithParam<Case> {};

PlaneGeometry small_geometry(const Case& c) {
    PlaneGeometry g;
    g.layers = 2;
    g.pages = 4;
    g.kv_heads = 2;
    g.head_dim = 6;
    g.index_dim = 5;
    g.block_tokens = c.block_tokens;
    g.type = c.type;
    return g;
}

// One plane's bytes: its start and size.
struct Bytes {
    std::byte* at;
    size_t n;
};
std::vector<Bytes> all_planes(const KvPlanes& planes) {
    const PlaneGeometry& g = planes.geometry();
    const size_t tokens = static_cast<size_t>(g.pages) * 256, e = plane_bytes(g.type);
    const auto dim = static_cast<size_t>(g.index_dim);
    std::vector<Bytes> out;
    for (int32_t i = 0; i < g.layers; ++i) {
        out.push_back(
            {planes.rows(i).base, tokens * 2 * static_cast<size_t>(g.kv_heads * g.head_dim) * e});
        out.push_back({planes.index(i).raw, tokens * dim * e});
        out.push_back(
            {planes.index(i).pooled, tokens / static_cast<size_t>(g.block_tokens) * dim * e});
    }
    return out;
}

// Copies what a page copy must copy, row by row, in a second set of plane bytes.
void copy_by_rows(std::vector<std::vector<std::byte>>& planes, const PlaneGeometry& g, size_t from,
                  size_t to, size_t n) {
    const size_t e = plane_bytes(g.type), block = static_cast<size_t>(g.block_tokens);
    const size_t row = static_cast<size_t>(g.kv_heads * g.head_dim) * e;
    const size_t index_row = static_cast<size_t>(g.index_dim) * e;
    const auto kv_at = [&](size_t page, size_t t, size_t half) {
        return (((page * 256 + t) / block * 2 + half) * block + t % block) * row;
    };
    for (size_t layer = 0; layer < static_cast<size_t>(g.layers); ++layer) {
        std::byte* kv = planes[3 * layer].data();
        std::byte* raw = planes[3 * layer + 1].data();
        std::byte* pooled = planes[3 * layer + 2].data();
        for (size_t t = 0; t < n; ++t) {
            for (size_t half = 0; half < 2; ++half)
                std::memcpy(kv + kv_at(to, t, half), kv + kv_at(from, t, half), row);
            std::memcpy(raw + (to * 256 + t) * index_row, raw + (from * 256 + t) * index_row,
                        index_row);
            const size_t b = t / block, per_page = 256 / block;
            std::memcpy(pooled + (to * per_page + b) * index_row,
                        pooled + (from * per_page + b) * index_row, index_row);
        }
    }
}

TEST_P(KvPlanesOfType, CopyPageCopiesTheseRowsAndTouchesNothingElse) {
    const auto device = make_host_device();
    const auto stream = must(device->make_stream());
    Budget budget("host memory", 0);
    const PlaneGeometry g = small_geometry(GetParam());
    const KvPlanes planes = must(KvPlanes::create(*device, budget, budget, g));
    // Random bytes everywhere: a row copied to a wrong place or from a wrong one shows.
    std::vector<std::vector<std::byte>> start;
    Random random(5);
    for (const Bytes& p : all_planes(planes)) {
        std::vector<std::byte> bytes(p.n);
        for (std::byte& b : bytes)
            b = static_cast<std::byte>(random.next());
        start.push_back(std::move(bytes));
    }
    const std::pair<size_t, size_t> pairs[] = {{1, 2}, {3, 0}};
    for (const auto& [from, to] : pairs)
        for (size_t n = 1; n <= 256; ++n) {
            const auto now = all_planes(planes);
            for (size_t p = 0; p < now.size(); ++p)
                std::memcpy(now[p].at, start[p].data(), now[p].n);
            auto want = start;
            copy_by_rows(want, g, from, to, n);
            ASSERT_OK(planes.copy_page(*stream, PageId{static_cast<int32_t>(from)},
                                       PageId{static_cast<int32_t>(to)}, static_cast<int32_t>(n)));
            for (size_t p = 0; p < now.size(); ++p)
                ASSERT_EQ(std::memcmp(now[p].at, want[p].data(), now[p].n), 0)
                    << "plane " << p << ", " << n << " tokens";
        }
}

INSTANTIATE_TEST_SUITE_P(Types, KvPlanesOfType,
                         ::testing::Values(Case{PlaneType::f16, 4}, Case{PlaneType::f32, 4},
                                           Case{PlaneType::f16, 1}, Case{PlaneType::f32, 16}),
                         [](const auto& p) {
                             return std::string(p.param.type == PlaneType::f16 ? "F16" : "F32") +
                                    "Block" + std::to_string(p.param.block_tokens);
                         });

// Model spec 3.5.1 and 7.3: 1024 B of K, as much of V, 256 raw and 64 pooled.
TEST(KvPlanes, RealModelTakes2368BytesPerTokenAndLayer) {
    PlaneGeometry g;
    g.layers = 12;
    g.kv_heads = 2;
    g.head_dim = 256;
    g.index_dim = 128;
    EXPECT_EQ(g.kv_bytes_per_token(), 2048u);
    EXPECT_EQ(g.raw_bytes_per_token(), 256u);
    EXPECT_EQ(g.pooled_bytes_per_token(), 64u);
    g.type = PlaneType::f32;
    EXPECT_EQ(g.kv_bytes_per_token() + g.raw_bytes_per_token() + g.pooled_bytes_per_token(), 4736u);
}

TEST(KvPlanes, EachPlaneIsChargedToItsRole) {
    const auto device = make_host_device();
    Budget budget("host memory", 0);
    const PlaneGeometry g = small_geometry({});
    {
        const KvPlanes planes = must(KvPlanes::create(*device, budget, budget, g));
        const size_t tokens = 2 * 4 * 256;
        EXPECT_EQ(budget.used(Role::kv), tokens * 2 * 2 * 6 * 2);
        EXPECT_EQ(budget.used(Role::raw_index), tokens * 5 * 2);
        EXPECT_EQ(budget.used(Role::pooled_index), tokens / 4 * 5 * 2);
        EXPECT_NE(planes.rows(0).base, planes.rows(1).base);
        EXPECT_EQ(planes.index(1).dim, 5);
        EXPECT_EQ(planes.rows(1).kv_heads, 2);
    }
    EXPECT_EQ(budget.used(), 0u);
}

TEST(KvPlanes, ABudgetTooSmallForTheSecondLayerLeavesNothingCharged) {
    const auto device = make_host_device();
    const PlaneGeometry g = small_geometry({});
    const size_t layer =
        size_t{1024} * (g.kv_bytes_per_token() + g.raw_bytes_per_token()) + size_t{256} * 5 * 2;
    Budget budget("host memory", layer + 100);
    const auto r = KvPlanes::create(*device, budget, budget, g);
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().code, Code::out_of_memory);
    EXPECT_THAT(r.error().message, ::testing::HasSubstr("attention layer 2 of 2"));
    EXPECT_EQ(budget.used(), 0u);
}

}  // namespace
}  // namespace terrace::test
