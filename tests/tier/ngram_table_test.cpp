// n-gram tables made on the spot: plain rows of every type and the row codec, one piece and
// several, in every placement; and every way in which a table can be wrong.
// SPDX-License-Identifier: MIT
#include "tier/ngram_table.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstring>
#include <filesystem>
#include <numeric>

#include "exl3/ngram_codec.h"
#include "io/model_dir.h"
#include "support/support.h"

namespace terrace::test {
namespace {

using ::testing::HasSubstr;

const std::string kPrefix = "model.layers.1.ple.ple_embedding.";
const std::string kBase = kPrefix + "ngram_embedding.";
constexpr NgramPlacement kPlacements[] = {NgramPlacement::mapped, NgramPlacement::pread,
                                          NgramPlacement::ram};

// 4 heads of 32 values; primes 11 13 17 19: 60 rows used.
constexpr int kValues = 32, kRows = 64, kShardRows = 16;
ModelConfig small_config() {
    ModelConfig c;
    c.vocab = 100;
    c.eos = 7;
    c.ngram_size = 3;
    c.heads_per_ngram = 2;
    c.ngram_vocab_base = 11;
    c.ple_layers = {LayerIx{1}};
    c.ple_dim = 4 * kValues;
    return c;
}

// Tensors being put together for one or more files.
class Pack {
  public:
    template <class T>
    void add(const std::string& name, DType dtype, std::vector<int64_t> shape,
             const std::vector<T>& values) {
        const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
        data_.push_back(
            std::make_unique<std::vector<std::byte>>(bytes, bytes + values.size() * sizeof(T)));
        tensors_.push_back({name, dtype, std::move(shape), *data_.back()});
    }
    void remove(const std::string& name) {
        std::erase_if(tensors_, [&](const TensorSource& t) { return t.name == name; });
    }
    Checkpoint open(const TempDir& dir) {
        must(write_safetensors(dir.path() / "table.safetensors", tensors_));
        return must(Checkpoint::open(dir.path()));
    }

  private:
    std::vector<std::unique_ptr<std::vector<std::byte>>> data_;
    std::vector<TensorSource> tensors_;
};

float value(int row, int j) {
    return static_cast<float>(row * 0.25 + j);  // exact in bf16 for j < 32 only up to 8 bits
}

template <class T, class F>
std::vector<T> rows_as(int first, int rows, F convert) {
    std::vector<T> out;
    for (int r = first; r < first + rows; ++r)
        for (int j = 0; j < kValues; ++j)
            out.push_back(convert(value(r, j)));
    return out;
}

void add_plain(Pack& pack, DType dtype, const std::string& name, int first, int rows) {
    const std::vector<int64_t> shape = {rows, kValues};
    if (dtype == DType::f32)
        pack.add(name, dtype, shape, rows_as<float>(first, rows, [](float v) { return v; }));
    else
        pack.add(name, dtype, shape, rows_as<uint16_t>(first, rows, [&](float v) {
                     return dtype == DType::bf16 ? f32_to_bf16(v) : f32_to_f16(v);
                 }));
}

Pack plain_shards(DType dtype) {
    Pack pack;
    for (int s = 0; s < kRows / kShardRows; ++s)
        add_plain(pack, dtype, fmt::format("{}shard_{}.weight", kBase, s), s * kShardRows,
                  kShardRows);
    return pack;
}

std::vector<float> gather(NgramTable& table, const std::vector<int64_t>& rows) {
    std::vector<float> out(rows.size() * kValues, -1.0f);
    must(table.gather(rows, out.data()));
    return out;
}

Result<NgramTable> open_table(const Checkpoint& c, NgramPlacement placement, Budget& budget) {
    return NgramTable::open(c, kPrefix, small_config(), 0, placement, budget);
}

std::vector<int64_t> all_rows() {
    std::vector<int64_t> rows(kRows);
    std::iota(rows.begin(), rows.end(), 0);
    return rows;
}

TEST(NgramTable, PlainRowsOfEveryTypeComeBackInEveryPlacement) {
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
        const TempDir dir;
        const Checkpoint c = plain_shards(dtype).open(dir);
        for (const NgramPlacement placement : kPlacements) {
            Budget budget("host memory", 0);
            NgramTable table = must(open_table(c, placement, budget));
            EXPECT_EQ(table.placement(), placement);
            EXPECT_EQ(table.row_values(), kValues);
            EXPECT_EQ(table.row_bytes(), kValues * static_cast<int64_t>(dtype_bytes(dtype)));
            EXPECT_EQ(table.bytes(), kRows * table.row_bytes());
            const auto got = gather(table, all_rows());
            for (int r = 0; r < kRows; ++r)
                for (int j = 0; j < kValues; ++j) {
                    const float v = value(r, j);
                    const float want = dtype == DType::f32    ? v
                                       : dtype == DType::bf16 ? bf16_to_f32(f32_to_bf16(v))
                                                              : f16_to_f32(f32_to_f16(v));
                    ASSERT_EQ(got[static_cast<size_t>(r * kValues + j)], want) << r << " " << j;
                }
            EXPECT_EQ(table.rows_read(), kRows);
            gather(table, {3, 63, 3, 0});
            EXPECT_EQ(table.rows_read(), kRows + 4);
        }
    }
}

TEST(NgramTable, OnlyACopyInMemoryIsCharged) {
    const TempDir dir;
    const Checkpoint c = plain_shards(DType::bf16).open(dir);
    for (const NgramPlacement placement : kPlacements) {
        Budget budget("host memory", 0);
        {
            NgramTable table = must(open_table(c, placement, budget));
            const size_t want = placement == NgramPlacement::ram ? kRows * kValues * 2 : 0;
            EXPECT_EQ(budget.used(Role::ngram), want);
            EXPECT_EQ(budget.used(), want);
            NgramTable moved = std::move(table);
            EXPECT_EQ(budget.used(), want);
        }
        EXPECT_EQ(budget.used(), 0u);
    }
    Budget small("host memory", kRows * kValues * 2 - 1);
    const auto r = open_table(c, NgramPlacement::ram, small);
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().code, Code::out_of_memory);
    EXPECT_THAT(r.error().message, HasSubstr("n-gram table"));
    EXPECT_EQ(small.used(), 0u);
}

TEST(NgramTable, TablesMoveOverEachOtherAndOutliveTheCheckpoint) {
    for (const NgramPlacement placement : kPlacements) {
        const TempDir dir;
        Budget budget("host memory", 0);
        auto c = std::make_unique<Checkpoint>(plain_shards(DType::f32).open(dir));
        NgramTable table = must(open_table(*c, placement, budget));
        table = must(open_table(*c, placement, budget));
        c.reset();
        EXPECT_EQ(gather(table, {20})[5], value(20, 5));
    }
}

TEST(NgramTable, OnePieceAndAShortLastPieceAreRead) {
    for (const bool one : {true, false}) {
        const TempDir dir;
        Pack pack;
        if (one) {
            add_plain(pack, DType::f32, kBase + "weight", 0, 60);
        } else {
            add_plain(pack, DType::f32, kBase + "shard_0.weight", 0, 50);
            add_plain(pack, DType::f32, kBase + "shard_1.weight", 50, 10);
        }
        const Checkpoint c = pack.open(dir);
        for (const NgramPlacement placement : kPlacements) {
            Budget budget("host memory", 0);
            NgramTable table = must(open_table(c, placement, budget));
            const auto got = gather(table, {59, 50, 49, 0});
            EXPECT_EQ(got[0], value(59, 0));
            EXPECT_EQ(got[kValues], value(50, 0));
            EXPECT_EQ(got[2 * kValues + 31], value(49, 31));
            EXPECT_EQ(got[3 * kValues], value(0, 0));
        }
    }
}

// Stored constants win over derived ones, under either of their names.
TEST(NgramTable, StoredConstantsAreTaken) {
    for (const bool codec_names : {true, false}) {
        const TempDir dir;
        Pack pack = plain_shards(DType::bf16);
        const std::string p = codec_names ? kBase : kPrefix;
        pack.add<int64_t>(p + "layer_multipliers", DType::i64, {3}, {3, 5, 7});
        pack.add<int64_t>(p + (codec_names ? "head_vocab_sizes" : "ngram_heads_vocab_sizes"),
                          DType::i64, {4}, {16, 15, 14, 13});
        pack.add<int64_t>(p + (codec_names ? "head_offsets" : "ngram_heads_offsets"), DType::i64,
                          {4}, {0, 16, 31, 45});
        const Checkpoint c = pack.open(dir);
        Budget budget("host memory", 0);
        const NgramTable table = must(open_table(c, NgramPlacement::mapped, budget));
        int64_t rows[4];
        const TokenId ids[] = {20, 10, 30};
        table.hash().rows(ids, rows);
        const int64_t two = (30 * 3) ^ (10 * 5), three = two ^ (20 * 7);
        EXPECT_EQ(rows[0], two % 16);
        EXPECT_EQ(rows[1], two % 15 + 16);
        EXPECT_EQ(rows[2], three % 14 + 31);
        EXPECT_EQ(rows[3], three % 13 + 45);
    }
}

// --- the row codec
// --------------------------------------------------------------------------------

struct CodecTable {
    std::vector<float> want;  // [kRows][kValues] decoded with the head that owns the row
    Pack pack;
};

CodecTable make_codec_table(int bits, bool one_piece) {
    CodecTable out;
    const NgramHash hash = NgramHash::derive(small_config(), 0);
    const int words = ngram_row_words(kValues, bits);
    Random random(static_cast<uint64_t>(bits));
    std::vector<f16> bias;
    for (int i = 0; i < 4 * kValues; ++i)
        bias.push_back(f16::from(static_cast<float>(random.normal())));
    std::vector<uint16_t> trellis(static_cast<size_t>(kRows * words));
    NgramEncoder encoder(kValues, bits);
    for (int r = 0; r < kRows; ++r) {
        size_t head = 0;
        while (head < 3 && r >= hash.offsets[head + 1])
            ++head;
        const auto values = random.normals(kValues, 0.1f);
        uint16_t* row = &trellis[static_cast<size_t>(r * words)];
        must(encoder.encode(values.data(), &bias[head * kValues], row));
        std::vector<float> decoded(kValues);
        decode_ngram_row(row, kValues, bits, &bias[head * kValues], decoded.data());
        out.want.insert(out.want.end(), decoded.begin(), decoded.end());
    }
    if (one_piece) {
        out.pack.add(kBase + "trellis", DType::i16, {kRows, words}, trellis);
    } else {
        for (int s = 0; s < 4; ++s)
            out.pack.add(fmt::format("{}shard_{}.trellis", kBase, s), DType::i16,
                         {kShardRows, words},
                         std::vector<uint16_t>(trellis.begin() + s * kShardRows * words,
                                               trellis.begin() + (s + 1) * kShardRows * words));
    }
    out.pack.add(kBase + "head_bias", DType::f16, {4, kValues}, bias);
    out.pack.add(kBase + "head_offsets", DType::i64, {4}, hash.offsets);
    out.pack.add(kBase + "head_vocab_sizes", DType::i64, {4}, hash.primes);
    out.pack.add(kBase + "layer_multipliers", DType::i64, {3}, hash.multipliers);
    return out;
}

TEST(NgramTable, CodecRowsDecodeWithTheBiasOfTheirHeadInEveryPlacement) {
    for (const int bits : {5, 4, 3})
        for (const bool one_piece : {true, false}) {
            const TempDir dir;
            CodecTable made = make_codec_table(bits, one_piece);
            const Checkpoint c = made.pack.open(dir);
            for (const NgramPlacement placement : kPlacements) {
                Budget budget("host memory", 0);
                NgramTable table = must(open_table(c, placement, budget));
                EXPECT_EQ(table.row_bytes(), 2 * (1 + 2 * bits));
                Random random(9);
                for (int t = 0; t < 50; ++t) {
                    const TokenId ids[] = {static_cast<TokenId>(random.below(100)),
                                           static_cast<TokenId>(random.below(100)),
                                           static_cast<TokenId>(random.below(100))};
                    std::vector<int64_t> rows(4);
                    table.hash().rows(ids, rows.data());
                    const auto got = gather(table, rows);
                    for (size_t h = 0; h < 4; ++h)
                        ASSERT_EQ(std::memcmp(&got[h * kValues],
                                              &made.want[static_cast<size_t>(rows[h]) * kValues],
                                              kValues * sizeof(float)),
                                  0)
                            << bits << " bits, head " << h;
                }
            }
        }
}

TEST(NgramTable, BundledModelsRowsAreTheSameInEveryPlacement) {
    const auto dir = must(ModelDir::open(std::filesystem::path(TERRACE_TEST_DATA) / "tiny-exl3"));
    const ModelConfig& c = dir.config();
    for (int32_t i = 0; i < 2; ++i) {
        const std::string prefix = fmt::format("{}layers.{}.ple.ple_embedding.", c.tensor_prefix,
                                               ix(c.ple_layers[static_cast<size_t>(i)]));
        std::vector<float> first;
        for (const NgramPlacement placement : kPlacements) {
            Budget budget("host memory", 0);
            NgramTable table =
                must(NgramTable::open(dir.checkpoint(), prefix, c, i, placement, budget));
            std::vector<int64_t> rows(static_cast<size_t>(table.hash().rows_used() / 8 * 8));
            std::iota(rows.begin(), rows.end(), 0);
            std::vector<float> got(rows.size() * static_cast<size_t>(table.row_values()));
            must(table.gather(rows, got.data()));
            if (first.empty()) first = got;
            ASSERT_EQ(std::memcmp(first.data(), got.data(), got.size() * 4), 0);
        }
        EXPECT_NE(first, std::vector<float>(first.size(), 0.0f));
    }
}

// --- what can be wrong
// ----------------------------------------------------------------------------

void expect_bad(Pack& pack, std::initializer_list<std::string> parts) {
    const TempDir dir;
    const Checkpoint c = pack.open(dir);
    for (const NgramPlacement placement : kPlacements) {
        Budget budget("host memory", 0);
        const auto r = open_table(c, placement, budget);
        ASSERT_FALSE(r) << "expected: " << *parts.begin();
        EXPECT_TRUE(r.error().code == Code::corrupt_data || r.error().code == Code::not_found);
        for (const std::string& part : parts)
            EXPECT_THAT(r.error().message, HasSubstr(part));
        EXPECT_THAT(r.error().message, HasSubstr(dir.path().string()));
        EXPECT_EQ(budget.used(), 0u);
    }
}

TEST(NgramTable, AMissingTableNamesTheTensorAndTheFolder) {
    Pack pack;
    pack.add<float>("other", DType::f32, {1}, {0.0f});
    expect_bad(pack, {kBase + "shard_0.weight"});
}

TEST(NgramTable, AMissingPieceIsNamedWhereverItWas) {
    for (const int missing : {1, 3}) {
        Pack pack = plain_shards(DType::bf16);
        pack.remove(fmt::format("{}shard_{}.weight", kBase, missing));
        expect_bad(pack, {fmt::format("{}shard_{}", kBase, missing), "table.safetensors"});
    }
    CodecTable made = make_codec_table(5, false);
    made.pack.remove(kBase + "shard_3.trellis");
    expect_bad(made.pack, {kBase + "shard_3", "head 3 needs row 59", "48 rows"});
}

TEST(NgramTable, RowsOfAnotherWidthAreRefused) {
    Pack plain;
    plain.add(kBase + "shard_0.weight", DType::f32, {64, 16}, std::vector<float>(64 * 16));
    expect_bad(plain, {"shard_0.weight", "table.safetensors", "rows of 16", "asks for 32"});
    for (const int words : {1, 2, 10, 12, 19}) {
        Pack codec;
        codec.add(kBase + "trellis", DType::i16, {64, words},
                  std::vector<int16_t>(static_cast<size_t>(64 * words)));
        expect_bad(codec, {"trellis", "table.safetensors", fmt::format("{} words", words)});
    }
}

TEST(NgramTable, PiecesThatDisagreeAreRefused) {
    Pack rows = plain_shards(DType::bf16);
    rows.remove(kBase + "shard_1.weight");
    add_plain(rows, DType::bf16, kBase + "shard_1.weight", 0, kShardRows - 1);
    expect_bad(rows, {kBase + "shard_1.weight", "table.safetensors", "unlike the pieces"});
    Pack types = plain_shards(DType::bf16);
    types.remove(kBase + "shard_2.weight");
    add_plain(types, DType::f16, kBase + "shard_2.weight", 0, kShardRows);
    expect_bad(types, {kBase + "shard_2.weight", "F16 [16, 32]", "unlike the pieces"});
    Pack last = plain_shards(DType::bf16);
    last.remove(kBase + "shard_3.weight");
    add_plain(last, DType::bf16, kBase + "shard_3.weight", 0, kShardRows + 1);
    expect_bad(last, {kBase + "shard_3.weight", "unlike the pieces"});
}

TEST(NgramTable, ShapesAndTypesThatAreNoTableAreRefused) {
    Pack flat;
    flat.add(kBase + "weight", DType::f32, {2048}, std::vector<float>(2048));
    expect_bad(flat, {kBase + "weight", "F32 [2048]"});
    Pack ints;
    ints.add(kBase + "weight", DType::i32, {64, 32}, std::vector<int32_t>(2048));
    expect_bad(ints, {kBase + "weight", "I32 [64, 32]"});
    Pack none;
    none.add(kBase + "weight", DType::f32, {0, 32}, std::vector<float>());
    expect_bad(none, {kBase + "weight", "0 rows"});
}

TEST(NgramTable, ACodecTableWithoutItsBiasesIsRefused) {
    CodecTable made = make_codec_table(4, true);
    made.pack.remove(kBase + "head_bias");
    expect_bad(made.pack, {kBase + "head_bias"});
}

TEST(NgramTable, ConstantsThatCannotBeAreRefused) {
    const struct {
        const char* name;
        std::vector<int64_t> values;
        const char* part;
    } cases[] = {
        {"layer_multipliers", {3, INT64_MAX / 100 + 1, 5}, "overflows"},
        {"layer_multipliers", {3, -1, 5}, "overflows"},
        {"layer_multipliers", {3, 5}, "layer_multipliers"},
        {"ngram_heads_vocab_sizes", {11, 0, 17, 19}, "head 1"},
        {"ngram_heads_vocab_sizes", {11, 13, 17, 1000}, "1040"},
        {"ngram_heads_offsets", {0, 11, -24, 41}, "head 2"},
        {"ngram_heads_offsets", {0, 11, INT64_MAX - 3, 41}, "head 2"},
    };
    for (const auto& bad : cases) {
        const TempDir dir;
        Pack pack = plain_shards(DType::bf16);
        pack.add(kPrefix + bad.name, DType::i64, {static_cast<int64_t>(bad.values.size())},
                 bad.values);
        const Checkpoint c = pack.open(dir);
        Budget budget("host memory", 0);
        const auto r = open_table(c, NgramPlacement::mapped, budget);
        ASSERT_FALSE(r) << bad.part;
        EXPECT_EQ(r.error().code, Code::corrupt_data);
        EXPECT_THAT(r.error().message, HasSubstr(bad.part));
    }
}

TEST(NgramTable, AFileCutShortWhileInUseIsAnErrorThatNamesTheRow) {
    const TempDir dir;
    const Checkpoint c = plain_shards(DType::bf16).open(dir);
    Budget budget("host memory", 0);
    NgramTable table = must(open_table(c, NgramPlacement::pread, budget));
    const auto file = dir.path() / "table.safetensors";
    std::filesystem::resize_file(file, std::filesystem::file_size(file) - 10);
    float out[kValues];
    const int64_t row = 63;
    const Status s = table.gather({&row, 1}, out);
    ASSERT_FALSE(s);
    EXPECT_EQ(s.error().code, Code::io);
    for (const char* part : {"table.safetensors", "shard_3.weight", "row 63", "54 of 64 bytes"})
        EXPECT_THAT(s.error().message, HasSubstr(part));
    const int64_t good = 62;
    EXPECT_OK(table.gather({&good, 1}, out));
}

}  // namespace
}  // namespace terrace::test
