// Table of the vector kernels of one instruction set, and its choice at run time. The tables are
// constant: any thread, any number at once. A kernel never allocates, never starts threads, never
// checks shapes: its caller in this folder does.
//
// Invariant: the tables differ in speed only. For equal arguments every table gives equal bits, and
// a row's bits do not depend on how many rows share the call.
//
// This header is also read by the isa_*.cpp files, so it holds plain types only (see
// simd_common.h).
// SPDX-License-Identifier: MIT
#pragma once
#include <cstddef>
#include <cstdint>

#include "cpu/op_kernels.h"

namespace terrace {

// ---- EXL3 linear (EXL3 format 2)
// ----------------------------------------------------------------- Activations of one row and one
// 128-wide Hadamard block of the input are prepared once and then used by every column block. Their
// packed form belongs to the table that made them: its size is act_bytes_*, its alignment 64.
struct ActScale {
    float scale = 0;  // int16 form: xh = scale * a, a = packed integers. f32 form: unused, 0
    float sum = 0;    // int16 form: sum of the block's a, exact (|sum| < 2^23). f32 form: 0
};

struct Exl3TransformArgs {
    const float* x = nullptr;       // [n_valid] of the block's 128 inputs; the rest counts as zero
    int n_valid = 128;              // 0..128
    const uint16_t* suh = nullptr;  // [128] f16
    void* act = nullptr;            // [act_bytes_*] out
    ActScale* scale = nullptr;      // [1] out
};

struct Exl3GemmArgs {
    const uint16_t* trellis = nullptr;   // first of the block's 8 column tiles in row tile 0
    size_t row_tile_stride = 0;          // 16-bit words from one row tile to the next
    int n16 = 0;                         // 16-bit words per tile
    int codebook = 0;                    // value of enum class Codebook
    int n_blocks = 0;                    // 128-wide input blocks
    int rows = 0;                        // >= 1; best at most kExl3RowChunk
    const void* acts = nullptr;          // [n_blocks][act_stride rows][act_bytes_*]
    const ActScale* scales = nullptr;    // [n_blocks][act_stride rows]
    size_t act_stride = 0;               // rows from one input block to the next
    float* y = nullptr;                  // [rows][128] out, dense: sums before the output transform
    const uint16_t* prefetch = nullptr;  // what this thread will pass as trellis next, or null
};

struct Exl3FinishArgs {
    const float* sums = nullptr;    // [128]
    const uint16_t* svh = nullptr;  // [128] f16
    const float* bias = nullptr;    // [128] or null
    float* y = nullptr;             // [n_valid] out
    int n_valid = 128;              // 0..128
};

inline constexpr int kExl3RowChunk =
    128;  // activations and sums of so many rows stay in a 512 KiB L2

struct Exl3Kernels {
    size_t act_bytes_int16 = 0;
    size_t act_bytes_f32 = 0;
    // xh = fwht128(x * suh) / sqrt(128), packed as int16 with one scale, or as f32.
    void (*transform_int16)(const Exl3TransformArgs&) = nullptr;
    void (*transform_f32)(const Exl3TransformArgs&) = nullptr;
    // xh . Wq for 128 columns. The int16 form is for mul1 only (codebook is not read).
    void (*gemm_int16)(const Exl3GemmArgs&) = nullptr;
    void (*gemm_f32)(const Exl3GemmArgs&) = nullptr;
    // y = fwht128(sums) / sqrt(128) * svh + bias.
    void (*finish)(const Exl3FinishArgs&) = nullptr;
    // Names for reports, such as "int16, decoded into the product"; static storage.
    const char* (*path_int16)(int n16, int rows) = nullptr;
    const char* (*path_f32)(int n16, int rows) = nullptr;
};

// ---- dense linear
// --------------------------------------------------------------------------------
struct DenseArgs {
    const void* w = nullptr;  // [out][w_stride] row-major, the element type is the kernel's
    size_t w_stride = 0;      // elements
    int in = 0;
    int out_begin = 0, out_end = 0;  // weight rows this call computes
    const float* x = nullptr;        // [rows][x_stride]
    size_t x_stride = 0;
    int rows = 0;
    float* y = nullptr;  // [rows][y_stride], element [r][o] for o in [out_begin, out_end)
    size_t y_stride = 0;
};

struct DenseKernels {
    // y[r][o] = sum_k w[o][k] x[r][k]. 16-bit weights need 2-byte alignment only.
    void (*bf16)(const DenseArgs&) = nullptr;
    void (*f16)(const DenseArgs&) = nullptr;
    void (*f32)(const DenseArgs&) = nullptr;
};

// ---- the table
// -----------------------------------------------------------------------------------
struct KernelTable {
    const char* name = "";  // "avx2", "avx512", "avx512vbmi"
    Exl3Kernels exl3;
    DenseKernels dense;
    OpKernels ops;
};

enum class IsaChoice { auto_detect, avx2, avx512, avx512_vbmi };

// The best table the machine can run, or the chosen one. nullptr when the machine lacks it; the
// caller then uses the scalar reference or says so.
const KernelTable* select_kernels(IsaChoice choice = IsaChoice::auto_detect);

}  // namespace terrace
