// Arguments of the vector kernels behind the fused operations: plain types only, since the
// isa_*.cpp files read this header (see simd_common.h). One call is one task of an operation:
// CpuOps decides what a task is and which thread runs it; a kernel touches only what its arguments
// name.
//
// Invariant: every sum has one order, a function of the task's shapes; element types are values of
// enum class DType (f32 0, f16 1, bf16 2) in `dtype` fields and 0 / 1 in `is_f32`.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstddef>
#include <cstdint>

namespace terrace {

// A run of f32, f16 or bf16 values, 2-byte aligned.
struct TypedRun {
    const void* data = nullptr;
    int dtype = 0;
};

// y[i] = float(src[first + i]).
struct WidenArgs {
    TypedRun src;
    int64_t first = 0;
    int64_t n = 0;
    float* y = nullptr;
};

// y = x * rsqrt(mean(x^2) + eps) * (1 + w[first..]) (model spec 3.1, ZRMS).
struct NormArgs {
    const float* x = nullptr;
    TypedRun w;
    int64_t first = 0;
    int n = 0;
    float eps = 0;
    float* y = nullptr;
};

// x[i] = mean over streams of sigmoid(g[s][i]) * n[s][i], i < count (model spec 3.3).
struct MixArgs {
    const float* g = nullptr;
    const float* n = nullptr;
    size_t stride = 0;  // from one stream to the next, in both
    int streams = 0;
    int count = 0;
    float* x = nullptr;
};

enum class Unary : int {
    silu,         // y = silu(x * a)
    two_sigmoid,  // y = 2 sigmoid(x * a)
};
struct UnaryArgs {
    Unary op = Unary::silu;
    float a = 1.0f;
    const float* x = nullptr;
    float* y = nullptr;
    int64_t n = 0;
};

// y[i] += a * x[i], fused.
struct AxpyArgs {
    float a = 0;
    const float* x = nullptr;
    float* y = nullptr;
    int64_t n = 0;
};

// y[i] = silu(gate[i]) * up[i].
struct SwigluArgs {
    const float* gate = nullptr;
    const float* up = nullptr;
    float* y = nullptr;
    int n = 0;
};

// y[i] = sum_j w[j] * x[j][i], j ascending.
struct CombineArgs {
    const float* const* x = nullptr;  // [n_terms]
    const float* w = nullptr;         // [n_terms]
    int n_terms = 0;
    float* y = nullptr;
    int n = 0;
};

// Norm, then rotation of the first rope_dims by the row's angles, into f32 or a plane.
struct RopeArgs {
    const float* x = nullptr;  // [n]
    TypedRun norm;             // [n], zero-centred
    int n = 0;
    int rope_dims = 0;
    const float* cos_sin = nullptr;  // [rope_dims/2] cosines, then sines
    float eps = 0;
    float* scratch = nullptr;  // [n]
    void* y = nullptr;         // [n] f32 or f16
    int is_f32 = 1;
};

// Plane element conversion: y[i] = x[i] as f32 or f16; and back.
struct ConvertArgs {
    const float* x = nullptr;
    void* y = nullptr;
    int64_t n = 0;
    int is_f32 = 0;
};

// y[i] = mean over rows of x[row][i]: planes to f32.
struct PlaneMeanArgs {
    const void* x = nullptr;  // [rows][n]
    int rows = 0, n = 0, is_f32 = 0;
    float* y = nullptr;
};

// Scores of blocks [begin, end) for one row (model spec 3.4.3).
struct ScoreArgs {
    const float* iq = nullptr;  // [heads][dim]
    int heads = 0, dim = 0;
    const uint8_t* pooled = nullptr;  // [pages][blocks_per_page][dim]
    int is_f32 = 0;
    const int32_t* table = nullptr;  // physical page of each logical page
    int blocks_per_page = 0;
    int begin = 0, end = 0;
    float scale = 0;
    float* scores = nullptr;   // [end], elements begin.. written
    float* scratch = nullptr;  // [round_up(heads, 4)][round_up(dim, 16)]
};

// The `top` best of n scores, ties to the lower index, in ascending order; n > top >= 1.
struct SelectArgs {
    const float* scores = nullptr;
    int n = 0, top = 0;
    int32_t* out = nullptr;       // [top]
    uint32_t* scratch = nullptr;  // [kSelectScratch]
};
inline constexpr int kSelectGroups = 4096;       // at most: maxima that give the first bound
inline constexpr int kSelectCandidates = 16384;  // what passes the bound, else the long way
inline constexpr int kSelectScratch = kSelectGroups + 2 * kSelectCandidates + 2048;

// One row, one KV head, some of its query heads (model spec 3.4.5).
inline constexpr int kAttendHeads = 16;  // query heads of a task, at most
inline constexpr int kAttendPage = 256;
struct AttendTask {
    const float* q = nullptr;     // [n_heads][head_dim]
    const float* gate = nullptr;  // first head's gate; next head at + gate_stride
    size_t gate_stride = 0;
    float* out = nullptr;  // [n_heads][head_dim]
    int n_heads = 0, head_dim = 0;
    const uint8_t* base = nullptr;    // plane of the layer
    const uint8_t* mirror = nullptr;  // of a RowSource
    const int32_t* slots = nullptr;
    int group_shift = 0;
    int is_f32 = 0;
    int block_tokens = 0, blocks_per_page = 0;
    size_t extent_bytes = 0, half_bytes = 0;  // K half, then V half
    size_t token_bytes = 0;                   // all KV heads of one token
    size_t head_offset = 0;                   // bytes to this KV head inside a token
    const int32_t* table = nullptr;
    const int32_t* blocks = nullptr;  // ascending; null: first_block + 0, 1, ...
    int first_block = 0, n_blocks = 0;
    int tail_block = 0, tail_tokens = 0;  // tokens behind the last complete block
    float scale = 0;
    // A pass over part of the list, borders at pages: sums of the pass before (null: the first) and
    // for the next one (null: the last, which writes `out`). A head's m, l, and acc [head_dim].
    const float* sums = nullptr;
    float* sums_out = nullptr;
    float* scratch = nullptr;  // [attend_scratch(head_dim)]
};
constexpr size_t attend_sums(int head_dim) {
    return 2 + static_cast<size_t>(head_dim);
}
constexpr size_t attend_scratch(int head_dim) {
    const size_t wide = (static_cast<size_t>(head_dim) + 15) / 16 * 16;
    return 2 * kAttendHeads * wide + kAttendHeads * kAttendPage + 2 * kAttendPage + 64;
}

// The k largest of n logits, descending, ties to the lower index, and their softmax weights.
struct RouteTask {
    const float* logits = nullptr;
    int n = 0, k = 0;
    int renormalise = 1;
    int32_t* ids = nullptr;
    float* weights = nullptr;
};

// Causal depthwise convolution over channels [begin, end) of one sequence's rows; with
// `dilation` 1 and `add` null, y = silu(conv(x)); else y[c] = base[c] + add[c] + silu(conv(x)).
// The state is brought forward by `rows`.
inline constexpr int kMaxTaps = 16;
struct ConvArgs {
    const float* x = nullptr;  // [rows][stride]
    size_t stride = 0;
    int rows = 0, begin = 0, end = 0;
    TypedRun taps;  // [channels][kernel]
    int kernel = 0, dilation = 1;
    float* state = nullptr;       // [(kernel-1)*dilation][stride], oldest first
    const float* base = nullptr;  // [rows][stride] or null
    const float* add = nullptr;   // [rows][stride] or null
    float* y = nullptr;           // [rows][stride]; may be base
};

// One head of one sequence through the gated delta rule (model spec 3.6), rows in order.
inline constexpr int kGdnRows = 64;
struct GdnTask {
    const float* q = nullptr;  // [rows][stride] after convolution
    const float* k = nullptr;
    const float* v = nullptr;
    size_t stride = 0;
    const float* z = nullptr;  // [rows][z_stride]
    float* out = nullptr;      // [rows][z_stride]
    size_t z_stride = 0;
    const float* g = nullptr;     // [rows][g_stride] log decay
    const float* beta = nullptr;  // [rows][g_stride]
    size_t g_stride = 0;
    int rows = 0, k_dim = 0, v_dim = 0;
    float eps = 0;
    TypedRun norm;             // [v_dim]
    float* state = nullptr;    // [k_dim][v_dim]
    float* scratch = nullptr;  // [gdn_scratch(k_dim, v_dim)]
};
constexpr size_t gdn_scratch(int k_dim, int v_dim) {
    const size_t k = (static_cast<size_t>(k_dim) + 15) / 16 * 16;
    const size_t v = (static_cast<size_t>(v_dim) + 15) / 16 * 16;
    // q, k, k transposed, kd; rhs and o; state copy; three score squares; decay vectors.
    return kGdnRows * (4 * k + 3 * v) + k * v + 3 * kGdnRows * kGdnRows + 4 * kGdnRows;
}

// Model spec 3.7.2 for one row and stream: gate, gated value and its norm.
struct PleGateArgs {
    const float* h = nullptr;      // [n] the stream
    const float* key = nullptr;    // [n] before its norm
    const float* value = nullptr;  // [n]
    TypedRun norm_key, norm_query, norm_conv;
    int64_t first = 0;
    int n = 0;
    float eps = 0;
    float* gated = nullptr;   // [n] out
    float* normed = nullptr;  // [n] out
};

struct OpKernels {
    void (*widen)(const WidenArgs&) = nullptr;
    void (*norm)(const NormArgs&) = nullptr;
    void (*mix)(const MixArgs&) = nullptr;
    void (*unary)(const UnaryArgs&) = nullptr;
    void (*axpy)(const AxpyArgs&) = nullptr;
    void (*swiglu)(const SwigluArgs&) = nullptr;
    void (*combine)(const CombineArgs&) = nullptr;
    void (*rope)(const RopeArgs&) = nullptr;
    void (*convert)(const ConvertArgs&) = nullptr;
    void (*plane_mean)(const PlaneMeanArgs&) = nullptr;
    void (*scores)(const ScoreArgs&) = nullptr;
    void (*select)(const SelectArgs&) = nullptr;
    void (*attend)(const AttendTask&) = nullptr;
    void (*route)(const RouteTask&) = nullptr;
    void (*conv)(const ConvArgs&) = nullptr;
    void (*gdn_step)(const GdnTask&) = nullptr;   // every row in the recurrent form
    void (*gdn_chunk)(const GdnTask&) = nullptr;  // chunks of kGdnRows rows
    void (*ple_gate)(const PleGateArgs&) = nullptr;
};

}  // namespace terrace
