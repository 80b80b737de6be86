// Any bytes as a safetensors file: the header parser gives an error, or ranges that lie inside the
// file, do not overlap and match their shapes. Each input is tried as a whole file and, so that the
// fuzzer need not guess the length field, as a header with its length put in front.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "io/safetensors.h"

namespace {

using namespace terrace;

void check(std::span<const std::byte> head, uint64_t file_size) {
    const auto header = parse_safetensors_header(head, file_size, "fuzz");
    if (!header) {
        TERRACE_CHECK(!header.error().message.empty());
        return;
    }
    std::vector<std::pair<uint64_t, uint64_t>> ranges;
    for (size_t i = 0; i < header->tensors.size(); ++i) {
        const TensorEntry& t = header->tensors[i];
        TERRACE_CHECK(i == 0 || header->tensors[i - 1].name < t.name);
        TERRACE_CHECK(header->data_begin <= t.begin && t.begin <= t.end && t.end <= file_size);
        uint64_t bytes = dtype_bytes(t.dtype);
        for (const int64_t n : t.shape) {
            TERRACE_CHECK(n >= 0);
            bytes *= static_cast<uint64_t>(n);
        }
        TERRACE_CHECK(bytes == t.end - t.begin);
        ranges.emplace_back(t.begin, t.end);
    }
    std::sort(ranges.begin(), ranges.end());
    for (size_t i = 1; i < ranges.size(); ++i)
        TERRACE_CHECK(ranges[i - 1].second <= ranges[i].first);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
    check(bytes, size);
    std::vector<std::byte> file(8 + size);
    for (size_t i = 0; i < 8; ++i)
        file[i] = static_cast<std::byte>(static_cast<uint64_t>(size) >> (8 * i));
    if (size > 0) std::memcpy(file.data() + 8, data, size);
    check(file, file.size() + 4096);  // as if 4,096 bytes of tensors followed
    return 0;
}
