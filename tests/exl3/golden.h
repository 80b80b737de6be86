// Test data for the EXL3 tests: hex strings, a small safetensors reader and SHA-256. The reader is
// deliberately not the product's: these tests check the format without src/io.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "exl3/tensor.h"

namespace terrace::test {

struct GoldenTensor {
    std::string dtype;
    std::vector<int64_t> shape;
    std::vector<uint8_t> bytes;

    template <class T>
    const T* as() const {
        return reinterpret_cast<const T*>(bytes.data());
    }
};

using GoldenFile = std::map<std::string, GoldenTensor>;

// Aborts the test binary when the file is missing or malformed.
std::string read_text(const std::string& name);  // relative to tests/data
GoldenFile read_golden(const std::string& name);

std::vector<uint8_t> from_hex(const std::string& hex);
std::vector<uint16_t> words_from_hex(const std::string& hex);  // little-endian
std::string sha256_hex(const void* data, size_t n);

Codebook codebook_named(const std::string& name);

}  // namespace terrace::test
