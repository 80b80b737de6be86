// EXL3 linear layers on the CPU: y = ((x * suh) Hd Wq) Hd * svh + bias (EXL3 format 2.1).
//
// Two levels. exl3_linear() multiplies one x with several weights over a worker pool. Below it, the
// pieces that an operation with its own schedule (experts) calls from its own workers: pack_row()
// once per row and weight, then column_task() per 128 columns, in any order, on any thread; two
// calls may run at once unless they write the same place. Nothing here allocates: scratch comes
// from the caller, its size from a pure function.
//
// Numerics (linear_exl3.h says how): the bits of a row depend on the row, the weight and the form
// of the activations only, never on the number of rows, threads, tasks or the instruction set.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstddef>
#include <span>

#include "base/worker_pool.h"
#include "cpu/kernels.h"
#include "exl3/tensor.h"

namespace terrace {

// How the transformed input enters the product.
// int16: 16-bit integers with one fp32 scale per row and 128 inputs, exact integer sums, without
// the
//   fp16 rounding of code values (2.1e-4 relative RMS, EXL3 format 2.9). mul1 only.
// f32:   fp32 inputs times the exact fp16 code values. The other codebooks always use it.
enum class Activations { int16, f32 };

constexpr Activations effective_form(Activations wanted, Codebook codebook) {
    return codebook == Codebook::mul1 ? wanted : Activations::f32;
}

// Which kernel runs, for reports: static text such as "int16, decoded to a buffer".
const char* exl3_path(const KernelTable& kernels, const Exl3Tensor& w, int rows, Activations form);

// ---- pieces
// --------------------------------------------------------------------------------------

// Transformed rows of one input for one weight; a view on caller memory.
struct PackedRows {
    Activations form = Activations::int16;
    int rows = 0;
    int n_blocks = 0;            // in / 128
    std::byte* acts = nullptr;   // [n_blocks][rows][act bytes of the form], 64-byte aligned
    ActScale* scales = nullptr;  // [n_blocks][rows]
};

// Bytes that place_rows() needs, a multiple of 64.
size_t packed_rows_bytes(const KernelTable& kernels, Activations form, int rows, int in);
// memory: 64-byte aligned. Contents are undefined until every row is packed.
PackedRows place_rows(const KernelTable& kernels, Activations form, int rows, int in,
                      std::byte* memory);

// Transforms x[0 .. in_valid) for weight w into row `row`; inputs in_valid .. w.in count as zero.
// Block range [block_begin, block_end) of 128 inputs; the form is packed.form.
void pack_row(const KernelTable& kernels, const Exl3Tensor& w, const float* x, int in_valid,
              int row, int block_begin, int block_end, const PackedRows& packed);

struct ColumnTask {
    const Exl3Tensor* w = nullptr;
    int column_block = 0;  // columns 128 * column_block ..
    const PackedRows* x = nullptr;
    int row_begin = 0, row_end = 0;  // rows of x
    float* y = nullptr;              // row row_begin, column 0 of the whole result
    size_t y_stride = 0;             // floats
    int n_out_valid = 0;             // columns at or beyond are not written; 0 = w->out
    const float* bias = nullptr;     // [w->out] or null
    // What the same worker runs next, to have its first tiles fetched; may be null.
    const Exl3Tensor* next_w = nullptr;
    int next_column_block = 0;
};

// Scratch of column_task(): at most 64 KiB, per worker, 64-byte aligned.
size_t column_scratch_bytes(int rows);
void column_task(const KernelTable& kernels, const ColumnTask& task, std::byte* scratch);

// ---- whole layers
// --------------------------------------------------------------------------------

struct Exl3Job {
    const Exl3Tensor* w = nullptr;
    float* y = nullptr;  // [rows][y_stride]
    size_t y_stride = 0;
    int n_out_valid = 0;          // 0 = w->out, else the columns to write, from the first
    const float* bias = nullptr;  // [w->out] or null
};

// Rows are taken in passes of at most so many, which bounds the scratch.
inline constexpr int kExl3PassRows = 512;

// Scratch of exl3_linear(). All weights have the same `in`. n_threads = pool.size().
size_t exl3_scratch_bytes(const KernelTable& kernels, int n_threads, int rows,
                          std::span<const Exl3Job> jobs, Activations form);

// x: [rows][x_stride], in_valid <= in columns are read, the rest of the weights' input is zero.
// scratch: exl3_scratch_bytes(), 64-byte aligned. Called by the pool's own caller.
void exl3_linear(const KernelTable& kernels, WorkerPool& pool, const float* x, size_t x_stride,
                 int rows, int in_valid, std::span<const Exl3Job> jobs, Activations form,
                 std::span<std::byte> scratch);

}  // namespace terrace
