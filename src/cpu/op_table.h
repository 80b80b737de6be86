// The operation kernels of one instruction set as a table. Included by the isa_*.cpp files only.
// SPDX-License-Identifier: MIT
#pragma once
#include "cpu/attn_kernels.h"
#include "cpu/gdn_conv.h"
#include "cpu/gdn_kernels.h"
#include "cpu/select_kernels.h"

namespace terrace::TERRACE_ISA {

inline constexpr OpKernels kOpKernels = {
    .widen = widen_rows,
    .norm = norm_row,
    .mix = mix_row,
    .unary = unary_row,
    .axpy = axpy_row,
    .swiglu = swiglu_row,
    .combine = combine_row,
    .rope = rope_row,
    .convert = convert_row,
    .plane_mean = plane_mean_row,
    .scores = scores_task,
    .select = select_task,
    .attend = attend_task,
    .route = route_task,
    .conv = conv_task,
    .gdn_step = gdn_step_task,
    .gdn_chunk = gdn_chunk_task,
    .ple_gate = ple_gate_row,
};

}  // namespace terrace::TERRACE_ISA
