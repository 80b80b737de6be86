// How kernels reach paged planes: plain views that tiers make and operations read. Own nothing; any
// thread may copy them. Addresses are of the layer's device.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstddef>
#include <cstdint>

namespace terrace {

// Tokens per page of every KV plane. 256: a multiple of the selection block (4), so that no block
// crosses a page, and 512 KiB of K and V per layer of the real model, a good transfer unit.
constexpr int32_t kPageTokens = 256;

enum class PlaneType : uint8_t { f16, f32 };

constexpr size_t plane_bytes(PlaneType t) {
    return t == PlaneType::f16 ? 2 : 4;
}

// How a kernel reaches the K and V of a layer. A block of `block_tokens` tokens is one extent:
// [K: block_tokens][kv_heads][head_dim] then V the same. Extent e of physical page g is number
// g * (kPageTokens / block_tokens) + e. (Mirrors and host placement extend this with a table of
// addresses; kernels go through block() only.)
struct RowSource {
    std::byte* base = nullptr;
    PlaneType type = PlaneType::f16;
    int32_t kv_heads = 0, head_dim = 0, block_tokens = 4;

    constexpr size_t half_extent_bytes() const {
        return static_cast<size_t>(block_tokens) * static_cast<size_t>(kv_heads) *
               static_cast<size_t>(head_dim) * plane_bytes(type);
    }
    constexpr std::byte* block(int32_t page, int32_t block_in_page) const {
        const int64_t n = static_cast<int64_t>(page) * (kPageTokens / block_tokens) + block_in_page;
        return base + static_cast<size_t>(n) * 2 * half_extent_bytes();
    }
};

// Raw and pooled index keys of a layer: raw [pages][256][dim], pooled [pages][256/block][dim].
struct IndexPlanes {
    std::byte* raw = nullptr;
    std::byte* pooled = nullptr;
    PlaneType type = PlaneType::f16;
    int32_t dim = 0, block_tokens = 4;
};

}  // namespace terrace
