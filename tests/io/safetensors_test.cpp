// Every rule of the safetensors reader, each with a file that breaks only that rule.
// SPDX-License-Identifier: MIT
#include "io/safetensors.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <chrono>
#include <cstdio>

#include "io_support.h"

namespace terrace::test {
namespace {

constexpr std::string_view kOne = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";

std::string entry(std::string_view dtype, std::string_view shape, std::string_view offsets) {
    return fmt::format(R"({{"a":{{"dtype":"{}","shape":{},"data_offsets":{}}}}})", dtype, shape,
                       offsets);
}

void expect_corrupt(std::string_view header, std::string_view data, const std::string& text) {
    EXPECT_ERROR(parse_header(raw_safetensors(header, data)), Code::corrupt_data, text);
}

const std::string kData(8, 'x');

TEST(Safetensors, OneTensorIsFoundWhereTheHeaderSaysItIs) {
    const auto h = must(parse_header(raw_safetensors(kOne, kData)));
    ASSERT_EQ(h.tensors.size(), 1u);
    EXPECT_EQ(h.tensors[0].name, "a");
    EXPECT_EQ(h.tensors[0].dtype, DType::f32);
    EXPECT_EQ(h.tensors[0].shape, std::vector<int64_t>{2});
    EXPECT_EQ(h.data_begin, 8 + kOne.size());
    EXPECT_EQ(h.tensors[0].begin, h.data_begin);
    EXPECT_EQ(h.tensors[0].end, h.data_begin + 8);
}

TEST(Safetensors, EmptyHeaderIsAFileWithoutTensors) {
    EXPECT_TRUE(must(parse_header(raw_safetensors("{}", ""))).tensors.empty());
}

TEST(Safetensors, HeaderMayEndInSpaces) {
    EXPECT_EQ(
        must(parse_header(raw_safetensors(std::string(kOne) + "     ", kData))).tensors.size(), 1u);
}

TEST(Safetensors, FileShorterThanTheLengthIsRefused) {
    EXPECT_ERROR(parse_header(std::string(7, '\0')), Code::corrupt_data, "has 7 bytes");
    EXPECT_ERROR(parse_header(""), Code::corrupt_data, "has 0 bytes");
}

TEST(Safetensors, AbsurdHeaderLengthIsRefusedBeforeAnythingIsRead) {
    std::string file = raw_safetensors(kOne, kData);
    file[7] = '\x7f';
    EXPECT_ERROR(parse_header(file), Code::corrupt_data, "at most 100000000 are read");
    EXPECT_ERROR(parse_header(std::string(8, '\xff')), Code::corrupt_data, "18446744073709551615");
    EXPECT_ERROR(parse_header(std::string(8, '\0')), Code::corrupt_data, "header length is 0");
}

TEST(Safetensors, TruncatedHeaderIsCalledATruncatedDownload) {
    const std::string file = raw_safetensors(kOne, kData).substr(0, 20);
    EXPECT_ERROR(
        parse_header(file), Code::corrupt_data,
        fmt::format("x.safetensors: header ends at byte {}, file has 20: truncated download?",
                    8 + kOne.size()));
}

TEST(Safetensors, TruncatedDataNamesTheTensorAndBothEnds) {
    const std::string file = raw_safetensors(kOne, kData.substr(0, 5));
    EXPECT_ERROR(
        parse_header(file), Code::corrupt_data,
        fmt::format("x.safetensors: tensor a ends at byte {}, file has {}: truncated download?",
                    16 + kOne.size(), 13 + kOne.size()));
}

TEST(Safetensors, HeaderThatIsNotJsonIsRefused) {
    expect_corrupt(R"({"a":)", "", "not valid JSON");
    expect_corrupt(R"({"a":{}} x)", "", "not valid JSON");
    expect_corrupt("\x80\x81", "", "not valid JSON");
    expect_corrupt("{\"\xff\":1}", "", "not valid JSON");
    expect_corrupt("[]", "", "not a JSON object");
    expect_corrupt("12", "", "not a JSON object");
}

TEST(Safetensors, DeepHeaderIsRefused) {
    const std::string deep = R"({"a":)" + std::string(2000, '[') + std::string(2000, ']') + "}";
    expect_corrupt(deep, "", "nested deeper than");
}

TEST(Safetensors, EntryMustHaveItsThreeFieldsOnceAndNoOthers) {
    expect_corrupt(R"({"a":3})", "", "tensor a is not described by an object");
    expect_corrupt(R"({"a":{"dtype":"U8","shape":[0]}})", "",
                   "needs dtype, shape and data_offsets");
    expect_corrupt(R"({"a":{"dtype":"U8","data_offsets":[0,0]}})", "", "needs dtype, shape and");
    expect_corrupt(R"({"a":{"shape":[0],"data_offsets":[0,0]}})", "", "needs dtype, shape and");
    expect_corrupt(R"({"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})", "",
                   "each once");
    expect_corrupt(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"zip":1}})", "",
                   "unknown field zip");
}

TEST(Safetensors, UnknownDtypeNamesTheKnownOnes) {
    EXPECT_ERROR(parse_header(raw_safetensors(entry("F4", "[2]", "[0,1]"), "x")), Code::unsupported,
                 "tensor a has dtype F4, known are F32, F16, BF16");
    expect_corrupt(R"({"a":{"dtype":7,"shape":[1],"data_offsets":[0,1]}})", "x",
                   "dtype that is not a string");
}

TEST(Safetensors, ShapeMustBeAnArrayOfNonNegativeIntegers) {
    for (const char* shape : {"[-1]", "[1.5]", "[\"1\"]", "[null]", "[9223372036854775808]"})
        expect_corrupt(entry("U8", shape, "[0,1]"), "x", "not an integer >= 0");
    expect_corrupt(entry("U8", "1", "[0,1]"), "x", "shape that is not an array");
    expect_corrupt(entry("U8", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,1]"), "x",
                   "more than 16 dimensions");
}

TEST(Safetensors, ShapeWhoseProductOverflowsIsRefused) {
    // 2^62 x 4 wraps to 0 and would match an empty range if the product were not checked.
    expect_corrupt(entry("U8", "[4611686018427387904,4]", "[0,0]"), "", "more than 2^64 bytes");
    expect_corrupt(entry("F32", "[4611686018427387904]", "[0,0]"), "", "more than 2^64 bytes");
    EXPECT_OK(
        parse_header(raw_safetensors(entry("F32", "[4611686018427387904,4,0]", "[0,0]"), "")));
}

TEST(Safetensors, BytesMustMatchDtypeTimesShape) {
    expect_corrupt(entry("F32", "[2]", "[0,7]"), kData,
                   "of F32 [2] needs 8 bytes, its data_offsets span 7");
    expect_corrupt(entry("BF16", "[2,2]", "[0,4]"), kData, "of BF16 [2, 2] needs 8 bytes");
    expect_corrupt(entry("F64", "[]", "[0,4]"), kData, "needs 8 bytes, its data_offsets span 4");
}

TEST(Safetensors, OffsetsMustBeTwoAscendingIntegers) {
    expect_corrupt(entry("U8", "[1]", "[1,0]"), "x", "run backwards");
    for (const char* offsets : {"[0]", "[0,1,2]", "[]", "[-1,0]", "[0,1.0]", "[\"0\",1]"})
        expect_corrupt(entry("U8", "[1]", offsets), "x", "not two integers >= 0");
    expect_corrupt(entry("U8", "[1]", "7"), "x", "data_offsets that are not an array");
}

TEST(Safetensors, OffsetsNearTheIntegerLimitDoNotWrapAround) {
    expect_corrupt(entry("U8", "[1]", "[18446744073709551614,18446744073709551615]"), "x",
                   "has data_offsets up to 18446744073709551615");
    expect_corrupt(entry("U8", "[1]", "[9223372036854775806,9223372036854775807]"), "x",
                   "truncated download?");
}

TEST(Safetensors, OverlapNamesBothTensors) {
    expect_corrupt(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[2,6]},)"
                   R"("b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
                   kData, "tensor a starts at byte");
    expect_corrupt(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                   R"("b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
                   kData, "inside tensor");
}

TEST(Safetensors, HolesAndTrailingBytesAreTolerated) {
    const std::string h = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},)"
                          R"("b":{"dtype":"U8","shape":[1],"data_offsets":[4,5]}})";
    EXPECT_EQ(must(parse_header(raw_safetensors(h, kData))).tensors.size(), 2u);
}

TEST(Safetensors, NameTwiceIsRefused) {
    expect_corrupt(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                   R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                   kData, "tensor a appears twice");
    expect_corrupt(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                   R"("\u0061":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                   kData, "tensor a appears twice");
}

TEST(Safetensors, MetadataIsAMapOfStrings) {
    const auto h =
        must(parse_header(raw_safetensors(R"({"__metadata__":{"format":"pt","k":"\n"}})", "")));
    EXPECT_EQ(h.metadata.at("format"), "pt");
    EXPECT_EQ(h.metadata.at("k"), "\n");
    expect_corrupt(R"({"__metadata__":{"format":1}})", "", "__metadata__ format is not a string");
    expect_corrupt(R"({"__metadata__":[]})", "", "__metadata__ is not an object");
    expect_corrupt(R"({"__metadata__":{"a":"1","a":"2"}})", "", "__metadata__ has a twice");
    expect_corrupt(R"({"__metadata__":{},"__metadata__":{}})", "", "__metadata__ twice");
}

TEST(Safetensors, LongOrUnprintableNamesAreShortenedInMessages) {
    const std::string name = "n\\n" + std::string(5000, 'n');
    const auto r = parse_header(raw_safetensors("{\"" + name + "\":1}", ""));
    ASSERT_FALSE(r);
    EXPECT_LT(r.error().message.size(), 300u);
    EXPECT_EQ(r.error().message.find('\n'), std::string::npos);
}

TEST(Safetensors, EveryPrefixOfAGoodFileIsRefused) {
    const std::string file = raw_safetensors(
        R"({"__metadata__":{"format":"pt"},"b":{"dtype":"I64","shape":[],"data_offsets":[0,8]}})",
        kData);
    ASSERT_OK(parse_header(file));
    for (size_t n = 0; n < file.size(); ++n)
        EXPECT_FALSE(parse_header(file.substr(0, n))) << n;
}

TEST(Safetensors, AnyFlippedByteGivesAResultOrAnErrorButNeverABadRange) {
    const std::string good = raw_safetensors(
        R"({"b":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},"c":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}})",
        std::string(11, 'x'));
    size_t accepted = 0;
    for (size_t i = 0; i < good.size(); ++i) {
        for (int bit = 0; bit < 8; ++bit) {
            std::string file = good;
            file[i] = static_cast<char>(file[i] ^ (1 << bit));
            const auto h = parse_header(file);
            if (!h) continue;
            ++accepted;
            for (const TensorEntry& t : h->tensors) {
                EXPECT_LE(t.begin, t.end);
                EXPECT_LE(t.end, file.size());
            }
        }
    }
    EXPECT_GE(accepted, 11u * 8u);  // at least every change to the data
}

TEST(Safetensors, OddlyAlignedTensorsAreHandedOutAsRawBytes) {
    const TempDir dir;
    const std::string header = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                               R"("b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}} )";
    const float value = 1.5f;
    std::string data(5, '\7');
    std::memcpy(data.data() + 1, &value, sizeof value);
    write_file(dir.path() / "m.safetensors", raw_safetensors(header, data));
    const auto file = must(SafetensorsFile::open(dir.path() / "m.safetensors"));
    const TensorView b = must(file.require("b"));
    float read = 0;
    ASSERT_EQ(b.bytes, sizeof read);
    std::memcpy(&read, b.data, sizeof read);
    EXPECT_EQ(read, 1.5f);
    EXPECT_EQ(b.file_offset, 8 + header.size() + 1);
    EXPECT_EQ(b.elements(), 1);
}

TEST(Safetensors, AViewOutlivesItsFileObject) {
    const TempDir dir;
    write_small(dir.path() / "m.safetensors", {"x", "y"});
    TensorView y;
    {
        const auto file = must(SafetensorsFile::open(dir.path() / "m.safetensors"));
        y = must(file.require("y"));
    }
    EXPECT_EQ(std::to_integer<int>(y.data[0]), 1);
}

TEST(Safetensors, AbsentTensorAndAbsentFileAreNamed) {
    const TempDir dir;
    const auto path = dir.path() / "m.safetensors";
    EXPECT_ERROR(SafetensorsFile::open(path), Code::not_found, path.string() + ": cannot open");
    EXPECT_ERROR(SafetensorsFile::open(dir.path()), Code::invalid_argument,
                 "is a directory, need a file");
    write_small(path, {"x"});
    const auto file = must(SafetensorsFile::open(path));
    EXPECT_EQ(file.find("z"), nullptr);
    EXPECT_EQ(file.find(""), nullptr);
    EXPECT_ERROR(file.require("z"), Code::not_found, "m.safetensors: has no tensor z (1 tensors");
}

TEST(Safetensors, GoldenLinearsLoad) {
    const auto file = must(SafetensorsFile::open(data_path("exl3-linear.safetensors")));
    const TensorView t = must(file.require("mul1.k4.trellis"));
    EXPECT_EQ(t.dtype, DType::i16);
    EXPECT_EQ(t.shape, (std::vector<int64_t>{16, 8, 64}));
    EXPECT_EQ(describe(t.dtype, t.shape), "I16 [16, 8, 64]");
    const TensorView marker = must(file.require("mul1.k4.mul1"));
    uint32_t value = 0;
    ASSERT_EQ(marker.bytes, sizeof value);
    std::memcpy(&value, marker.data, sizeof value);
    EXPECT_EQ(value, 0x83DCD12Du);
    for (size_t i = 1; i < file.tensors().size(); ++i)
        EXPECT_LT(file.tensors()[i - 1].name, file.tensors()[i].name);
}

// A real EXL3 checkpoint has up to 200,000 tensors (EXL3 format 1.1). The time is printed, since
// this machine is shared; the counts are checked.
TEST(Safetensors, HeaderOf200ThousandTensorsParses) {
    std::string header = "{";
    uint64_t offset = 0;
    constexpr const char* kSuffix[] = {"trellis", "suh", "svh", "mul1"};
    for (int layer = 0; layer < 48; ++layer) {
        for (int expert = 0; expert < 1042; ++expert) {
            for (const char* suffix : kSuffix) {
                if (header.size() > 1) header += ',';
                header +=
                    fmt::format(R"("model.language_model.layers.{}.mlp.experts.{}.gate_proj.{}":)"
                                R"({{"dtype":"I16","shape":[2,1],"data_offsets":[{},{}]}})",
                                layer, expert, suffix, offset, offset + 4);
                offset += 4;
            }
        }
    }
    header += '}';
    const std::string file = raw_safetensors(header, "");
    const auto start = std::chrono::steady_clock::now();
    const auto h = must(parse_safetensors_header(as_bytes(file), file.size() + offset, "big"));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    EXPECT_EQ(h.tensors.size(), 48u * 1042u * 4u);
    std::printf("header: %.1f MB, %zu tensors, %.0f ms\n",
                1e-6 * static_cast<double>(header.size()), h.tensors.size(), 1e3 * took.count());
}

}  // namespace
}  // namespace terrace::test
