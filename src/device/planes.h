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
// g * (kPageTokens / block_tokens) + e, and lies at its home, `base` plus number times extent.
//
// A source may have a mirror in faster memory: slots[number >> group_shift] says where there the
// group of 2^group_shift neighbouring blocks lies that the block belongs to, or -1 when it is absent
// (0: single blocks; 6: pages of 64 blocks). Kernels read at block(), which is the mirrored place if
// there is one; whoever writes K or V writes home() and every mirrored() place, so that a mirror is
// never stale. So a missing entry is slow, never wrong. Entries change between operations only.
struct RowSource {
    std::byte* base = nullptr;
    PlaneType type = PlaneType::f16;
    int32_t kv_heads = 0, head_dim = 0, block_tokens = 4;
    std::byte* mirror = nullptr;
    const int32_t* slots = nullptr;  // device memory; null: no mirror
    int32_t group_shift = 0;

    constexpr size_t half_extent_bytes() const {
        return static_cast<size_t>(block_tokens) * static_cast<size_t>(kv_heads) *
               static_cast<size_t>(head_dim) * plane_bytes(type);
    }
    constexpr int64_t number(int32_t page, int32_t block_in_page) const {
        return static_cast<int64_t>(page) * (kPageTokens / block_tokens) + block_in_page;
    }
    constexpr std::byte* home(int32_t page, int32_t block_in_page) const {
        return base + static_cast<size_t>(number(page, block_in_page)) * 2 * half_extent_bytes();
    }
    // Null when the block is absent. Reads device memory.
    constexpr std::byte* mirrored(int32_t page, int32_t block_in_page) const {
        if (!slots) return nullptr;
        const int64_t n = number(page, block_in_page);
        const int32_t slot = slots[n >> group_shift];
        if (slot < 0) return nullptr;
        const int64_t place =
            (static_cast<int64_t>(slot) << group_shift) + (n & ((int64_t{1} << group_shift) - 1));
        return mirror + static_cast<size_t>(place) * 2 * half_extent_bytes();
    }
    constexpr std::byte* block(int32_t page, int32_t block_in_page) const {
        std::byte* m = mirrored(page, block_in_page);
        return m ? m : home(page, block_in_page);
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
