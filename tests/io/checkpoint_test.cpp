// Shards, index and sidecars of a model directory, and every way in which they can disagree.
// SPDX-License-Identifier: MIT
#include "io/checkpoint.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <chrono>
#include <cstdio>

#include "io_support.h"

namespace terrace::test {
namespace {

using ::testing::ElementsAre;
namespace fs = std::filesystem;

std::vector<std::string> names(std::span<const TensorView> tensors) {
    std::vector<std::string> out;
    for (const TensorView& t : tensors)
        out.push_back(t.name);
    return out;
}

std::vector<std::string> file_names(const Checkpoint& c) {
    std::vector<std::string> out;
    for (const fs::path& f : c.files())
        out.push_back(f.filename().string());
    return out;
}

void write_index(const fs::path& dir, std::string_view weight_map) {
    write_file(dir / "model.safetensors.index.json",
               fmt::format(R"({{"metadata":{{"total_size":1}},"weight_map":{}}})", weight_map));
}

TEST(Checkpoint, WithoutAnIndexAllFilesAreMerged) {
    const TempDir dir;
    write_small(dir.path() / "b.safetensors", {"t2", "t0"});
    write_small(dir.path() / "a.safetensors", {"t3", "t1"});
    write_file(dir.path() / "notes.txt", "not a tensor file");
    const auto c = must(Checkpoint::open(dir.path()));
    EXPECT_THAT(names(c.all()), ElementsAre("t0", "t1", "t2", "t3"));
    EXPECT_THAT(file_names(c), ElementsAre("a.safetensors", "b.safetensors"));
    EXPECT_EQ(c.total_bytes(), 4u);
    ASSERT_NE(c.find("t2"), nullptr);
    EXPECT_EQ(c.find("t2")->file->path().filename(), "b.safetensors");
    EXPECT_EQ(std::to_integer<int>(c.find("t0")->data[0]), 1);
    EXPECT_EQ(c.directory(), dir.path());
}

TEST(Checkpoint, LookupsSurviveAMoveOfTheCheckpoint) {
    const TempDir dir;
    write_small(dir.path() / "a.safetensors", {"x", "y"});  // short names: held inside the string
    auto first = must(Checkpoint::open(dir.path()));
    const Checkpoint second = std::move(first);
    ASSERT_NE(second.find("y"), nullptr);
    EXPECT_EQ(second.find("y")->name, "y");
}

TEST(Checkpoint, SidecarsThatTheIndexOmitsAreRead) {
    const TempDir dir;
    write_small(dir.path() / "model-00001-of-00002.safetensors", {"a"});
    write_small(dir.path() / "model-00002-of-00002.safetensors", {"b", "unlisted"});
    write_small(dir.path() / "aaa_ngram_embedding.safetensors", {"table"});
    write_index(
        dir.path(),
        R"({"b":"model-00002-of-00002.safetensors","a":"model-00001-of-00002.safetensors"})");
    const auto c = must(Checkpoint::open(dir.path()));
    EXPECT_THAT(names(c.all()), ElementsAre("a", "b", "table", "unlisted"));
    EXPECT_THAT(file_names(c),
                ElementsAre("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                            "aaa_ngram_embedding.safetensors"));
}

TEST(Checkpoint, MissingShardIsNamedAndCounted) {
    const TempDir dir;
    write_small(dir.path() / "s1.safetensors", {"a"});
    write_index(dir.path(), R"({"a":"s1.safetensors","b":"s2.safetensors","c":"s3.safetensors"})");
    EXPECT_ERROR(Checkpoint::open(dir.path()), Code::not_found,
                 "2 of 3 shards named by model.safetensors.index.json are not there, first "
                 "s2.safetensors: incomplete download?");
}

TEST(Checkpoint, IndexEntryWhoseTensorIsNowhereIsNamed) {
    const TempDir dir;
    write_small(dir.path() / "s1.safetensors", {"a"});
    write_index(dir.path(), R"({"a":"s1.safetensors","b":"s1.safetensors"})");
    EXPECT_ERROR(Checkpoint::open(dir.path()), Code::corrupt_data,
                 "says that s1.safetensors holds tensor b, which no file of the directory does");
}

TEST(Checkpoint, IndexEntryThatPointsToTheWrongShardIsNamed) {
    const TempDir dir;
    write_small(dir.path() / "s1.safetensors", {"a"});
    write_small(dir.path() / "s2.safetensors", {"b"});
    write_index(dir.path(), R"({"a":"s1.safetensors","b":"s1.safetensors"})");
    EXPECT_ERROR(Checkpoint::open(dir.path()), Code::corrupt_data,
                 "says that s1.safetensors holds tensor b, which is in s2.safetensors");
}

TEST(Checkpoint, IndexCannotPointOutsideItsDirectory) {
    const TempDir dir;
    write_small(dir.path() / "s1.safetensors", {"a"});
    for (const char* shard : {"../s1.safetensors", "/etc/passwd", "sub/s1.safetensors", "..", ""}) {
        write_index(dir.path(), fmt::format(R"({{"a":"{}"}})", shard));
        EXPECT_ERROR(
            Checkpoint::open(dir.path()), Code::corrupt_data,
            "weight_map.a is \"" + std::string(shard) + "\", need a file name without folders");
    }
}

TEST(Checkpoint, DamagedIndexIsRefused) {
    const TempDir dir;
    write_small(dir.path() / "s1.safetensors", {"a"});
    const auto index = dir.path() / "model.safetensors.index.json";
    write_file(index, R"({"weight_map":)");
    EXPECT_ERROR(Checkpoint::open(dir.path()), Code::corrupt_data, "index.json: not valid JSON");
    write_file(index, R"({"metadata":{}})");
    EXPECT_ERROR(Checkpoint::open(dir.path()), Code::invalid_argument, "weight_map is missing");
    write_file(index, R"({"weight_map":[]})");
    EXPECT_ERROR(Checkpoint::open(dir.path()), Code::invalid_argument, "weight_map is an array");
    write_file(index, R"({"weight_map":{"a":3}})");
    EXPECT_ERROR(Checkpoint::open(dir.path()), Code::invalid_argument, "weight_map.a is a number");
    write_file(index, R"({"weight_map":{}})");
    EXPECT_ERROR(Checkpoint::open(dir.path()), Code::corrupt_data, "weight_map is empty");
    write_file(index, R"({"weight_map":{"a":"s1.safetensors","a":"s1.safetensors"}})");
    EXPECT_ERROR(Checkpoint::open(dir.path()), Code::corrupt_data, "\"a\" appears twice");
}

TEST(Checkpoint, TensorInTwoFilesNamesBoth) {
    const TempDir dir;
    write_small(dir.path() / "m.safetensors", {"a", "b"});
    write_small(dir.path() / "n.safetensors", {"c", "a"});
    EXPECT_ERROR(Checkpoint::open(dir.path()), Code::corrupt_data,
                 "tensor a is in both m.safetensors and n.safetensors");
}

TEST(Checkpoint, IdenticalCopyOfAFileIsStillRefused) {
    const TempDir dir;
    write_small(dir.path() / "m.safetensors", {"a"});
    fs::copy_file(dir.path() / "m.safetensors", dir.path() / "copy.safetensors");
    EXPECT_ERROR(Checkpoint::open(dir.path()), Code::corrupt_data,
                 "tensor a is in both copy.safetensors and m.safetensors");
}

TEST(Checkpoint, DamagedShardAndBrokenLinkAreErrorsNotSkipped) {
    const TempDir dir;
    write_small(dir.path() / "m.safetensors", {"a"});
    write_file(dir.path() / "n.safetensors", "tiny");
    EXPECT_ERROR(Checkpoint::open(dir.path()), Code::corrupt_data, "n.safetensors: has 4 bytes");
    fs::remove(dir.path() / "n.safetensors");
    fs::create_symlink(dir.path() / "gone", dir.path() / "n.safetensors");
    EXPECT_ERROR(Checkpoint::open(dir.path()), Code::not_found, "n.safetensors: cannot open");
}

TEST(Checkpoint, HiddenFilesAreNotPartOfTheModel) {
    const TempDir dir;
    write_small(dir.path() / "m.safetensors", {"a"});
    write_file(dir.path() / "._m.safetensors", "left by a copy from another system");
    EXPECT_EQ(must(Checkpoint::open(dir.path())).files().size(), 1u);
}

TEST(Checkpoint, EmptyOrAbsentDirectoryIsNamed) {
    const TempDir dir;
    EXPECT_ERROR(Checkpoint::open(dir.path()), Code::not_found, "holds no *.safetensors file");
    EXPECT_ERROR(Checkpoint::open(dir.path() / "no"), Code::not_found,
                 "cannot list the model directory");
}

TEST(Checkpoint, AbsentTensorNamesDirectoryAndFilesSearched) {
    const TempDir dir;
    write_small(dir.path() / "m.safetensors", {"a"});
    EXPECT_ERROR(
        must(Checkpoint::open(dir.path())).require("layers.0.q"), Code::not_found,
        dir.path().string() + ": no tensor layers.0.q among the 1 of its file (m.safetensors)");
    for (int i = 0; i < 9; ++i)
        write_small(dir.path() / fmt::format("x{}.safetensors", i), {fmt::format("t{}", i)});
    EXPECT_ERROR(must(Checkpoint::open(dir.path())).require("b"), Code::not_found,
                 "x4.safetensors, and 4 more)");
}

TEST(Checkpoint, RequireChecksDtypeAndShape) {
    const auto c = must(Checkpoint::open(data_path("tiny-bf16")));
    const std::string name = "model.embed_tokens.weight";
    EXPECT_OK(c.require(name, {DType::bf16}, {512, 128}));
    EXPECT_OK(c.require(name, {DType::f16, DType::bf16}, {-1, 128}));
    EXPECT_ERROR(c.require(name, {DType::f16, DType::f32}, {512, 128}), Code::corrupt_data,
                 "model.safetensors: tensor model.embed_tokens.weight is BF16 [512, 128], need "
                 "dtype F16 or F32");
    EXPECT_ERROR(c.require(name, {DType::bf16}, {512, 64}), Code::corrupt_data,
                 "is BF16 [512, 128], need shape [512, 64]");
    EXPECT_ERROR(c.require(name, {DType::bf16}, {512}), Code::corrupt_data, "need shape [512]");
    EXPECT_ERROR(c.require(name, {DType::bf16}, {512, 128, 1}), Code::corrupt_data,
                 "need shape [512, 128, 1]");
    EXPECT_ERROR(c.require("nope", {DType::bf16}, {1}), Code::not_found, "no tensor nope");
}

TEST(Checkpoint, ScalarAndOneElementVectorMatchEachOther) {
    const TempDir dir;
    write_small(dir.path() / "m.safetensors", {"v"});
    const auto c = must(Checkpoint::open(dir.path()));
    EXPECT_OK(c.require("v", {DType::u8}, {}));
    EXPECT_OK(c.require("v", {DType::u8}, {1}));
    EXPECT_FALSE(c.require("v", {DType::u8}, {1, 1}));
}

TEST(Checkpoint, PrefixSelectsARunOfNames) {
    const TempDir dir;
    write_small(dir.path() / "m.safetensors", {"a.1", "a.10", "a.2", "ab", "b.1", "a"});
    const auto c = must(Checkpoint::open(dir.path()));
    EXPECT_THAT(names(c.with_prefix("a.")), ElementsAre("a.1", "a.10", "a.2"));
    EXPECT_THAT(names(c.with_prefix("a.1")), ElementsAre("a.1", "a.10"));
    EXPECT_EQ(c.with_prefix("").size(), 6u);
    EXPECT_TRUE(c.with_prefix("zz").empty());
    EXPECT_TRUE(c.with_prefix("A").empty());
}

TEST(Checkpoint, RealCheckpointsHaveTheirTensors) {
    const auto exl3 = must(Checkpoint::open(data_path("tiny-exl3")));
    EXPECT_OK(exl3.require("model.language_model.layers.1.ple.ple_embedding.layer_multipliers",
                           {DType::i64}, {3}));
    const auto bf16 = must(Checkpoint::open(data_path("tiny-bf16")));
    EXPECT_OK(bf16.require("lm_head.weight", {DType::bf16}, {512, 128}));
}

// Eight shards with an index and 200,000 tensors; printed, because this machine is shared.
TEST(Checkpoint, TwoHundredThousandTensorsOpenAndAreFound) {
    const TempDir dir;
    constexpr int kShards = 8;
    constexpr int kPerShard = 25000;
    std::string weight_map = "{";
    std::vector<std::string> some;
    for (int shard = 0; shard < kShards; ++shard) {
        std::vector<std::string> all;
        const std::string file = fmt::format("model-{:05}-of-00008.safetensors", shard + 1);
        for (int i = 0; i < kPerShard; ++i) {
            all.push_back(fmt::format(
                "model.language_model.layers.{}.mlp.experts.{}.gate_proj.trellis", shard, i));
            if (weight_map.size() > 1) weight_map += ',';
            weight_map += fmt::format("\"{}\":\"{}\"", all.back(), file);
        }
        some.push_back(all[12345]);
        write_small(dir.path() / file, std::move(all));
    }
    write_index(dir.path(), weight_map + "}");
    const auto start = std::chrono::steady_clock::now();
    const auto c = must(Checkpoint::open(dir.path()));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    EXPECT_EQ(c.all().size(), static_cast<size_t>(kShards * kPerShard));
    for (const std::string& name : some) {
        ASSERT_NE(c.find(name), nullptr);
        EXPECT_EQ(c.find(name)->name, name);
    }
    std::printf("open: %zu tensors in %d shards with an index, %.0f ms\n", c.all().size(), kShards,
                1e3 * took.count());
}

}  // namespace
}  // namespace terrace::test
