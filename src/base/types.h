// Ids that cross folders: one enum class each, so that a page cannot be passed for a slot, and the
// element types of stored tensors.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace terrace {

enum class PageId : int32_t {};   // physical page of the pool, 0..capacity-1
enum class SlotId : int32_t {};   // place for one sequence's recurrent state
enum class SeqId : uint64_t {};   // a sequence of the engine
enum class LayerIx : int32_t {};  // 0-based layer of the trunk

using TokenId = int32_t;

constexpr int32_t ix(PageId id) {
    return static_cast<int32_t>(id);
}
constexpr int32_t ix(SlotId id) {
    return static_cast<int32_t>(id);
}
constexpr int32_t ix(LayerIx id) {
    return static_cast<int32_t>(id);
}
constexpr uint64_t ix(SeqId id) {
    return static_cast<uint64_t>(id);
}

enum class DType : uint8_t {
    f32,
    f16,
    bf16,
    f64,
    i8,
    u8,
    i16,
    u16,
    i32,
    u32,
    i64,
    u64,
    boolean,
    f8_e4m3,
    f8_e5m2
};

constexpr size_t dtype_bytes(DType t) {
    switch (t) {
        case DType::f64:
        case DType::i64:
        case DType::u64:
            return 8;
        case DType::f32:
        case DType::i32:
        case DType::u32:
            return 4;
        case DType::f16:
        case DType::bf16:
        case DType::i16:
        case DType::u16:
            return 2;
        default:
            return 1;
    }
}

std::string_view to_string(DType t);  // safetensors' names: "F32", "BF16", ...

}  // namespace terrace
