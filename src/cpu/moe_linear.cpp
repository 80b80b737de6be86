// SPDX-License-Identifier: MIT
#include "cpu/moe_linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace terrace {

DenseWeight dense_weight(const LinearWeight& w) {
    return {.data = w.plain.data, .type = w.plain.dtype, .in = w.in, .out = w.out, .stride = 0};
}

Status LinearPieces::check(const LinearWeight& w, int in, int out, const char* what) {
    if (w.kind == LinearKind::none)
        return Error{Code::invalid_argument, fmt::format("{}: the weight is missing", what)};
    if (w.in != in || w.out != out)
        return Error{
            Code::invalid_argument,
            fmt::format("{}: need a weight of {} x {}, have {} x {}", what, out, in, w.out, w.in)};
    if (w.kind == LinearKind::plain) {
        const DType t = w.plain.dtype;
        if (w.plain.data && w.plain.size >= int64_t{in} * out &&
            (t == DType::f32 || t == DType::f16 || t == DType::bf16))
            return {};
        return Error{Code::unsupported,
                     fmt::format("{}: need {} elements of F32, F16 or BF16, have {} of {}", what,
                                 int64_t{in} * out, w.plain.size, to_string(t))};
    }
    const Exl3Tensor& t = w.exl3;
    if (t.in == column_blocks_of(in) * kColumnBlock &&
        t.out == column_blocks_of(out) * kColumnBlock && t.trellis && t.suh && t.svh &&
        legal_n16(t.n16, t.codebook))
        return {};
    return Error{Code::unsupported,
                 fmt::format("{}: need EXL3 sizes {} x {} rounded up to 128, have {} x {} with {} "
                             "words a tile",
                             what, out, in, t.out, t.in, t.n16)};
}

size_t LinearPieces::input_bytes(int rows, int in) const {
    const int padded = column_blocks_of(in) * kColumnBlock;
    const size_t copy = static_cast<size_t>(rows) * static_cast<size_t>(in) * sizeof(float);
    return std::max({packed_rows_bytes(*kernels_, Activations::int16, rows, padded),
                     packed_rows_bytes(*kernels_, Activations::f32, rows, padded),
                     (copy + 63) / 64 * 64});
}

PackedRows LinearPieces::packed(const LinearWeight& w, Input input) const {
    return place_rows(*kernels_, effective_form(activations_, w.exl3.codebook), input.rows,
                      w.exl3.in, input.data);
}

void LinearPieces::pack(const LinearWeight& w, Input input, int row, const float* x, int begin,
                        int end) const {
    if (w.kind == LinearKind::exl3)
        return pack_row(*kernels_, w.exl3, x, w.in, row, begin, end, packed(w, input));
    float* to =
        reinterpret_cast<float*>(input.data) + static_cast<size_t>(row) * static_cast<size_t>(w.in);
    const int first = begin * kColumnBlock, last = std::min(end * kColumnBlock, w.in);
    std::memcpy(to + first, x + first, static_cast<size_t>(last - first) * sizeof(float));
}

void LinearPieces::columns(const LinearWeight& w, Input input, int block, float* y, size_t y_stride,
                           std::byte* scratch, const LinearWeight* next, int next_block) const {
    if (w.kind == LinearKind::plain) {
        const int first = block * kColumnBlock;
        return dense_outputs(*kernels_, dense_weight(w), first,
                             std::min(first + kColumnBlock, w.out),
                             reinterpret_cast<const float*>(input.data), static_cast<size_t>(w.in),
                             input.rows, y, y_stride);
    }
    const PackedRows x = packed(w, input);
    column_task(*kernels_,
                {.w = &w.exl3,
                 .column_block = block,
                 .x = &x,
                 .row_begin = 0,
                 .row_end = input.rows,
                 .y = y,
                 .y_stride = y_stride,
                 .n_out_valid = w.out,
                 .bias = nullptr,
                 .next_w = next && next->kind == LinearKind::exl3 ? &next->exl3 : nullptr,
                 .next_column_block = next_block},
                scratch);
}

}  // namespace terrace
