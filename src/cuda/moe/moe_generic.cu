// Experts of few rows, any kinds and sizes: one block computes one (row, choice), a second launch adds
// a row's experts. Right, not fast: EXL3 states are read one by one.
// SPDX-License-Identifier: MIT
#include <algorithm>

#include "cuda/exl3/input.cuh"
#include "cuda/moe/moe_decode.h"
#include "cuda/util/common.cuh"

namespace terrace::cuda {
namespace {

constexpr int kThreads = 256;

struct Moe {
    const float* x;  // first row
    const int32_t* ids;
    const float* weights;
    float* y;
    const ExpertWeights* table;
    ExpertWeights shared;
    LinearWeight shared_gate;
    int32_t rows, k, hidden, width, shared_width, has_shared;
    int32_t pairs;                // rows * k; the shared expert's pairs come behind
    int32_t in_pitch, mid_pitch;  // floats of padded hidden and of the widest padded width
    float* out;                   // [pairs + rows][hidden]
};

// y[0, w.out) = w x[0, w.in) in shared memory, by the whole block; `t` holds padded inputs, and y
// padded outputs.
__device__ void multiply(const LinearWeight& w, const float* x, float* t, float* y) {
    const int tid = static_cast<int>(threadIdx.x), lane = tid & 31, warp = tid >> 5;
    __syncthreads();
    if (w.kind == LinearKind::plain) {
        for (int o = warp; o < w.out; o += kThreads / 32) {
            float sum = 0;
            for (int i = lane; i < w.in; i += 32)
                sum = fmaf(x[i], load_plain(w.plain, int64_t{o} * w.in + i), sum);
            sum = warp_sum(sum);
            if (lane == 0) y[o] = sum;
        }
        __syncthreads();
        return;
    }
    const Exl3Tensor& e = w.exl3;
    transform_row(x, w.in, e.suh, e.in, t);
    __syncthreads();
    for (int o = tid; o < e.out; o += kThreads) {
        float sum = 0;
        for (int a = 0; a < e.in / 16; ++a) {
            const uint16_t* tile = e.tile(a, o / 16);
            for (int r = 0; r < 16; ++r) {
                const uint32_t state = state_at(tile, e.n16, ring_position(r, o % 16));
                const uint16_t bits = code_value_bits(e.codebook, state);
                sum = fmaf(t[16 * a + r], __half2float(__ushort_as_half(bits)), sum);
            }
        }
        y[o] = sum;
    }
    __syncthreads();
    for (int b = warp; b < e.out / 128; b += kThreads / 32) {
        float* at = y + 128 * b + 4 * lane;
        float v[4] = {at[0], at[1], at[2], at[3]};
        warp_fwht128(v, lane);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            at[i] = v[i] * f16_value(e.svh + 128 * b + 4 * lane + i);
    }
    __syncthreads();
}

// Computes: out[pair] = weight * expert(x), one pair of row and choice.
// Grid and block: pairs, 256 threads.
// Shared memory: input, its transform, gate, up, output: 3 padded hidden and 2 padded widths.
// Traffic: the expert once per pair.
// Numerics: f32, f16 code values.
__global__ void __launch_bounds__(kThreads) pair_kernel(const __grid_constant__ Moe a) {
    extern __shared__ float smem[];
    const int wide = max(a.in_pitch, a.mid_pitch);
    float *x = smem, *t = x + a.in_pitch, *y = t + wide, *g = y + a.in_pitch, *u = g + a.mid_pitch;
    const int pair = static_cast<int>(blockIdx.x), tid = static_cast<int>(threadIdx.x);
    pdl_launch();
    pdl_wait();
    const bool shared = pair >= a.pairs;
    const int row = shared ? pair - a.pairs : pair / a.k;
    for (int i = tid; i < a.hidden; i += kThreads)
        x[i] = a.x[int64_t{row} * a.hidden + i];
    const ExpertWeights& e = shared ? a.shared : a.table[a.ids[pair]];
    float weight;
    if (shared) {
        multiply(a.shared_gate, x, t, y);
        weight = sigmoidf(y[0]);
    } else {
        weight = a.weights[pair];
    }
    multiply(e.gate, x, t, g);
    multiply(e.up, x, t, u);
    for (int i = tid; i < (shared ? a.shared_width : a.width); i += kThreads)
        g[i] = siluf(g[i]) * u[i];
    multiply(e.down, g, t, y);
    for (int i = tid; i < a.hidden; i += kThreads)
        a.out[int64_t{pair} * a.hidden + i] = weight * y[i];
}

// Computes: y[r] = sum of the row's pairs, choices ascending, the shared expert last.
// Grid and block: (hidden / 256, rows), 256 threads.
// Shared memory: none.
// Traffic: out once.
// Numerics: f32 sums in that order.
__global__ void __launch_bounds__(kThreads) add_kernel(const __grid_constant__ Moe a) {
    const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
    const int row = static_cast<int>(blockIdx.y);
    pdl_launch();
    pdl_wait();
    if (i >= a.hidden) return;
    float sum = 0;
    for (int j = 0; j < a.k; ++j)
        sum += a.out[(int64_t{row} * a.k + j) * a.hidden + i];
    if (a.has_shared) sum += a.out[(int64_t{a.pairs} + row) * a.hidden + i];
    a.y[int64_t{row} * a.hidden + i] = sum;
}

constexpr int padded(int n) {
    return (n + 127) / 128 * 128;
}

}  // namespace

Status moe_decode_any(const Launch& launch, const MoeArgs& args, int row0, int rows) {
    Moe a = {};
    a.x = args.x.device_pointer() + int64_t{row0} * args.hidden;
    a.ids = args.ids.device_pointer() + int64_t{row0} * args.k;
    a.weights = args.weights.device_pointer() + int64_t{row0} * args.k;
    a.y = args.y.device_pointer() + int64_t{row0} * args.hidden;
    a.table = args.table.device.device_pointer();
    if (args.shared) a.shared = *args.shared, a.shared_gate = *args.shared_gate;
    a.has_shared = args.shared ? 1 : 0;
    a.rows = rows;
    a.k = args.k;
    a.hidden = args.hidden;
    a.width = args.width;
    a.shared_width = args.shared_width;
    a.pairs = rows * args.k;
    a.in_pitch = padded(args.hidden);
    a.mid_pitch = padded(std::max(args.width, args.shared ? args.shared_width : 0));
    const int all = a.pairs + (args.shared ? rows : 0);
    const size_t floats = 2 * static_cast<size_t>(a.in_pitch) +
                          2 * static_cast<size_t>(a.mid_pitch) +
                          static_cast<size_t>(std::max(a.in_pitch, a.mid_pitch));
    Carve c(launch.scratch);
    a.out = c.take<float>(static_cast<size_t>(all) * static_cast<size_t>(args.hidden));
    if (c.used() > launch.scratch_bytes || floats * 4 > launch.info->smem_per_block)
        return Error{Code::internal, "moe: sizes beyond what this device's memory allows"};
    TERRACE_TRY(start(launch, "moe pair", pair_kernel, dim3(all), dim3(kThreads), floats * 4,
                      Start::overlapping, a));
    return start(launch, "moe sum", add_kernel, dim3((a.hidden + kThreads - 1) / kThreads, rows),
                 dim3(kThreads), 0, Start::overlapping, a);
}

}  // namespace terrace::cuda
