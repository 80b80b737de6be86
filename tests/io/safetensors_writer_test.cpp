// What the writer stores, the reader returns; and a failed write leaves nothing behind.
// SPDX-License-Identifier: MIT
#include <gmock/gmock.h>

#include "io/safetensors.h"
#include "io_support.h"

namespace terrace::test {
namespace {

namespace fs = std::filesystem;

size_t entries(const fs::path& dir) {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(dir), fs::directory_iterator()));
}

TEST(SafetensorsWriter, RoundTripKeepsNamesTypesShapesBytesAndMetadata) {
    const TempDir dir;
    const auto path = dir.path() / "m.safetensors";
    Random random(7);
    const DType types[] = {DType::u8,      DType::f64,     DType::bf16, DType::f32,
                           DType::i16,     DType::i8,      DType::i64,  DType::f16,
                           DType::boolean, DType::f8_e4m3, DType::u32};
    std::vector<std::vector<std::byte>> bytes;
    std::vector<TensorSource> tensors;
    for (size_t i = 0; i < std::size(types); ++i) {
        const std::vector<int64_t> shape = {random.below(5), 1 + random.below(7)};
        auto& b =
            bytes.emplace_back(static_cast<size_t>(shape[0] * shape[1]) * dtype_bytes(types[i]));
        for (std::byte& x : b)
            x = static_cast<std::byte>(random.next());
        tensors.push_back({"t \"" + std::to_string(i) + "\"\n\xc3\xa9", types[i], shape, {}});
    }
    for (size_t i = 0; i < tensors.size(); ++i)
        tensors[i].bytes = bytes[i];
    const std::byte scalar[4] = {};
    tensors.push_back({"scalar", DType::i32, {}, scalar});
    must(write_safetensors(path, tensors, {{"format", "pt"}, {"quote\"", "\n"}}));

    const auto file = must(SafetensorsFile::open(path));
    EXPECT_EQ(file.metadata().at("format"), "pt");
    EXPECT_EQ(file.metadata().at("quote\""), "\n");
    EXPECT_EQ(file.tensors().size(), tensors.size());
    for (const TensorSource& t : tensors) {
        const TensorView v = must(file.require(t.name));
        EXPECT_EQ(v.dtype, t.dtype);
        EXPECT_EQ(v.shape, t.shape);
        EXPECT_TRUE(std::equal(v.span().begin(), v.span().end(), t.bytes.begin(), t.bytes.end()));
        EXPECT_EQ(v.file_offset % dtype_bytes(v.dtype), 0u) << describe(v.dtype, v.shape);
    }
    EXPECT_EQ(entries(dir.path()), 1u);
}

TEST(SafetensorsWriter, DataStartsOnEightBytesWhateverTheHeaderLength) {
    const TempDir dir;
    const auto path = dir.path() / "m.safetensors";
    const std::byte value[8] = {};
    for (size_t n = 1; n <= 16; ++n) {
        const TensorSource t{std::string(n, 'n'), DType::f64, {1}, value};
        must(write_safetensors(path, std::span(&t, 1)));
        EXPECT_EQ(must(SafetensorsFile::open(path)).tensors()[0].file_offset % 8, 0u);
    }
}

TEST(SafetensorsWriter, FileWithoutTensorsIsValid) {
    const TempDir dir;
    must(write_safetensors(dir.path() / "m.safetensors", {}));
    EXPECT_TRUE(must(SafetensorsFile::open(dir.path() / "m.safetensors")).tensors().empty());
    must(write_safetensors(dir.path() / "m.safetensors", {}, {{"a", "b"}}));
    EXPECT_EQ(must(SafetensorsFile::open(dir.path() / "m.safetensors")).metadata().at("a"), "b");
}

TEST(SafetensorsWriter, WhatDoesNotFitItsShapeIsRefusedBeforeAnyFileExists) {
    const TempDir dir;
    const auto path = dir.path() / "m.safetensors";
    const std::byte value[4] = {};
    const auto write = [&](const TensorSource& t) {
        return write_safetensors(path, std::span(&t, 1));
    };
    EXPECT_ERROR(write({"a", DType::f32, {2}, value}), Code::invalid_argument,
                 "cannot store tensor \"a\" of F32 [2] from 4 bytes");
    EXPECT_ERROR(write({"a", DType::u8, {-4}, value}), Code::invalid_argument, "cannot store");
    EXPECT_ERROR(write({"", DType::f32, {1}, value}), Code::invalid_argument, "cannot store");
    EXPECT_ERROR(write({"__metadata__", DType::f32, {1}, value}), Code::invalid_argument,
                 "cannot store");
    const TensorSource twice[] = {{"a", DType::f32, {1}, value}, {"a", DType::f32, {1}, value}};
    EXPECT_ERROR(write_safetensors(path, twice), Code::invalid_argument, "tensor a is given twice");
    EXPECT_EQ(entries(dir.path()), 0u);
}

TEST(SafetensorsWriter, ReplacingAFileKeepsItsOpenViewsIntact) {
    const TempDir dir;
    const auto path = dir.path() / "m.safetensors";
    write_small(path, {"a", "b"});
    const auto before = must(SafetensorsFile::open(path));
    write_small(path, {"c"});
    EXPECT_EQ(std::to_integer<int>(must(before.require("b")).data[0]), 1);
    EXPECT_EQ(must(SafetensorsFile::open(path)).tensors()[0].name, "c");
}

TEST(SafetensorsWriter, FailedWriteLeavesNoTemporaryFile) {
    const TempDir dir;
    EXPECT_ERROR(write_safetensors(dir.path() / "no" / "m.safetensors", {}), Code::io,
                 "cannot create");
    const auto occupied = dir.path() / "m.safetensors";
    fs::create_directory(occupied);
    write_file(occupied / "x", "x");
    EXPECT_ERROR(write_safetensors(occupied, {}), Code::io, "m.safetensors: cannot rename");
    EXPECT_EQ(entries(dir.path()), 1u);
}

}  // namespace
}  // namespace terrace::test
