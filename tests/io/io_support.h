// Crafted files for the io tests: raw safetensors from a header text, and configs with one field
// changed.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "io/mapped_file.h"
#include "io/safetensors.h"
#include "support/support.h"

namespace terrace::test {

inline std::filesystem::path data_path(std::string_view name) {
    return std::filesystem::path(TERRACE_TEST_DATA) / name;
}

// Length, header and `data` as they lie in a file, right or wrong.
inline std::string raw_safetensors(std::string_view header, std::string_view data) {
    std::string out(8, '\0');
    for (size_t i = 0; i < 8; ++i)
        out[i] = static_cast<char>(static_cast<uint64_t>(header.size()) >> (8 * i));
    return out.append(header).append(data);
}

inline std::span<const std::byte> as_bytes(std::string_view text) {
    return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

inline Result<SafetensorsHeader> parse_header(std::string_view file) {
    return parse_safetensors_header(as_bytes(file), file.size(), "x.safetensors");
}

// `text` with its only occurrence of `from` replaced.
inline std::string with(std::string text, std::string_view from, std::string_view to) {
    const size_t at = text.find(from);
    TERRACE_CHECK(at != std::string::npos);
    TERRACE_CHECK(text.find(from, at + 1) == std::string::npos);
    return text.replace(at, from.size(), to);
}

// A file with one U8 tensor per name, each holding its index.
inline void write_small(const std::filesystem::path& path, std::vector<std::string> names) {
    std::vector<std::byte> bytes(names.size());
    std::vector<TensorSource> tensors;
    for (size_t i = 0; i < names.size(); ++i) {
        bytes[i] = static_cast<std::byte>(i);
        tensors.push_back({names[i], DType::u8, {1}, std::span(bytes).subspan(i, 1)});
    }
    must(write_safetensors(path, tensors));
}

}  // namespace terrace::test

// The result is an error with this code whose message contains this text.
#define EXPECT_ERROR(expr, expected_code, text)                                                \
    do {                                                                                       \
        const auto& expect_error_ = (expr);                                                    \
        ASSERT_FALSE(expect_error_.has_value()) << "no error, expected: " << (text);           \
        EXPECT_EQ(expect_error_.error().code, expected_code) << expect_error_.error().message; \
        EXPECT_THAT(expect_error_.error().message, ::testing::HasSubstr(text));                \
    } while (0)
