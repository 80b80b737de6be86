// Argument structs of the operations, one per fused operation, with shapes. All activations are f32
// on every backend's border except where said. R = rows of the call. Checked by ops/check.h on the
// caller's side; backends may assume what is written here.
//
// Rows: a step has rows from several sequences, grouped by sequence in order; a row is one token at
// one position. SeqRows says which rows, where they start, which pages and which state slot.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>

#include "device/device.h"
#include "device/planes.h"
#include "ops/weights.h"

namespace terrace {

// One sequence's rows in a step: rows [row0, row0 + n_rows) at positions pos0, pos0 + 1, ...
struct SeqRows {
    int32_t row0 = 0;
    int32_t n_rows = 0;
    int32_t pos0 = 0;          // tokens the sequence already has
    int32_t table_offset = 0;  // first entry of its block table in StepRows::block_tables
    int32_t n_pages = 0;       // entries there; covers pos0 + n_rows tokens
    int32_t slot = 0;          // recurrent-state slot
};

// How a row is computed on backends that have one arithmetic for few rows and another for many. It
// follows from the row's own sequence alone, so batch mates cannot change a bit: of a sequence's
// rows in a step, those behind its last whole run of kGdnChunk are decoded when they are at most
// kDecodeRows, all others are prefilled. (A prompt may be cut at any multiple of kGdnChunk.)
enum class RowKind : uint8_t { decode, prefill };
constexpr int32_t kDecodeRows = 16;
constexpr int32_t kGdnChunk = 64;

// Neighbouring rows of one kind. Host memory.
struct RowRun {
    int32_t row0 = 0;
    int32_t n_rows = 0;
    RowKind kind = RowKind::decode;
};

// The runs of a call, ascending, covering all its rows. Empty: one run, decode up to kDecodeRows.
struct RowRuns {
    const RowRun* data = nullptr;
    int32_t n = 0;
};

struct StepRows {
    int32_t n_rows = 0;
    int32_t n_seqs = 0;
    DevSpan<const SeqRows> seqs;          // [n_seqs]
    DevSpan<const int32_t> block_tables;  // physical pages, sequence after sequence
    DevSpan<const int32_t> row_seq;       // [n_rows] index into seqs
    // The same sequences in host memory, for launch shapes. A captured step is replayed with other
    // positions, pages and slots: of these, only row0 and n_rows may shape a launch.
    const SeqRows* host_seqs = nullptr;
    RowRuns runs;
};

// h[r][s][:] = table[token[r]][:] for every stream s.
struct EmbedArgs {
    DevSpan<const int32_t> tokens;  // [R], in [0, vocab)
    PlainTensor table;              // [vocab][H]
    DevSpan<float> h;               // [R][S][H]
    int32_t rows = 0, streams = 0, hidden = 0;
};

// Model spec 3.3 read(): n = grouped zero-centred norm of h; x = mean over streams of
// sigmoid(up(silu(down(n)/S))) * n; inj = 2 sigmoid(inject(n)/S).
// With add_y, first what hyper_write does with it: h[r][s][:] += add_inj[r][s] * add_y[r][:], to the
// same bits.
struct HyperReadArgs {
    DevSpan<float> h;  // [R][S][H]; not written without add_y
    const HyperWeights* weights = nullptr;
    DevSpan<float> x;    // [R][H]
    DevSpan<float> inj;  // [R][S]; empty at the final mixer
    int32_t rows = 0, streams = 0, hidden = 0, rank = 0;
    float eps = 1e-6f;
    RowRuns runs;
    DevSpan<const float> add_y;    // [R][H] or empty
    DevSpan<const float> add_inj;  // [R][S], other memory than inj
};

// h[r][s][:] += inj[r][s] * y[r][:].
struct HyperWriteArgs {
    DevSpan<float> h;          // [R][S][H]
    DevSpan<const float> y;    // [R][H]
    DevSpan<const float> inj;  // [R][S]
    int32_t rows = 0, streams = 0, hidden = 0;
};

constexpr int kMaxLinearJobs = 8;

struct LinearJob {
    const LinearWeight* weight = nullptr;
    DevSpan<float> y;  // [R][y_stride], columns [0, out) written
    int64_t y_stride = 0;
};

// Up to kMaxLinearJobs linears of the same input in one call.
struct LinearArgs {
    DevSpan<const float> x;  // [R][x_stride]
    int64_t x_stride = 0;
    int32_t rows = 0;
    int32_t n_jobs = 0;
    LinearJob jobs[kMaxLinearJobs];
    RowRuns runs;
};

// Gated delta net between its projections (model spec 3.6): causal depthwise convolution + SiLU
// over qkv, L2-normalised q and k, gated delta rule, per-head RMS norm times sigmoid(z).
// A sequence's rows are taken in runs of kGdnChunk from its first row; a short run takes the
// recurrent form, a longer one the chunk form (each backend draws the line, at 1 to kDecodeRows). So a prompt may be split over calls at any multiple
// of kGdnChunk without changing a bit.
struct GdnArgs {
    StepRows step;
    DevSpan<const float> qkv;   // [R][2*Hk*dk + Hv*dv] pre-convolution
    DevSpan<const float> z;     // [R][Hv*dv]
    DevSpan<const float> a;     // [R][Hv]
    DevSpan<const float> b;     // [R][Hv]
    PlainTensor conv;           // [channels][kernel], tap kernel-1 is the current token
    PlainTensor a_log;          // [Hv]
    PlainTensor dt_bias;        // [Hv]
    PlainTensor norm;           // [dv], plain scale
    DevSpan<float> state;       // [slots][Hv][dk][dv]
    DevSpan<float> conv_state;  // [slots][kernel-1][channels], oldest first
    DevSpan<float> out;         // [R][Hv*dv]
    int32_t k_heads = 0, v_heads = 0, k_dim = 0, v_dim = 0, kernel = 4;
    float eps = 1e-6f;
};

// Rotary embedding on the first `dims` of a vector, halves (i, i + dims/2), angle pos *
// theta^(-2i/dims).
struct Rope {
    int32_t dims = 0;
    float theta = 1e6f;
};

// Model spec 3.4.1: per-head zero-centred norm and rope of q, k and the index queries, in place or
// into the planes; K, V and raw index keys are stored at their positions.
struct QsaPrepareArgs {
    StepRows step;
    DevSpan<const float> qg;     // [R][heads][2*head_dim]: query | gate per head
    DevSpan<const float> k;      // [R][kv_heads][head_dim]
    DevSpan<const float> v;      // [R][kv_heads][head_dim]
    DevSpan<const float> ix;     // [R][index_heads*index_dim + index_dim]: queries, raw key
    PlainTensor q_norm, k_norm;  // [head_dim]
    PlainTensor index_q_norm;    // [index_dim]
    DevSpan<float> q;            // [R][heads][head_dim] out
    DevSpan<float> iq;           // [R][index_heads][index_dim] out
    RowSource kv;
    RowSource
        staged;  // optional second view of the same planes: its mirrored blocks are written too
    IndexPlanes index;
    Rope rope;
    int32_t heads = 0, index_heads = 0;
    float eps = 1e-6f;
};

// Model spec 3.5.3: pooled rows of every block the step touched and completed, from raw rows.
// Always from block floor(pos0/4), so that a rollback needs no watermark.
struct QsaPoolArgs {
    StepRows step;
    IndexPlanes index;
    PlainTensor norm;  // [index_dim], zero-centred
    Rope rope;
    float eps = 1e-6f;
};

// Rows [first_row, first_row + rows) of the step: one slab of the score buffer.
// scores[r][b] = 1/sqrt(dim) * sum_heads max(0, <iq, pooled_b>) for b < floor((p+1)/block);
// entries from there up to `stride` are not written.
struct IndexScoresArgs {
    StepRows step;
    DevSpan<const float> iq;  // [R][index_heads][dim] of the whole step
    IndexPlanes index;
    DevSpan<float> scores;  // [rows][stride]
    int64_t stride = 0;
    int32_t first_row = 0, rows = 0, index_heads = 0;
};

// The `top` best complete blocks of each row, ties to the lower block; ascending block order.
// Rows with no more than `top` complete blocks get all of them without looking at the scores.
struct SelectBlocksArgs {
    StepRows step;
    DevSpan<const float> scores;  // [rows][stride]
    int64_t stride = 0;
    DevSpan<int32_t> blocks;  // [rows][top] out, ascending
    DevSpan<int32_t> counts;  // [rows] out
    int32_t first_row = 0, rows = 0, top = 0, block_tokens = 4;
};

constexpr int32_t kLastPass = INT32_MAX;
// Softmax attention of each row over its selected blocks and the tail tokens behind the last
// complete block, then times sigmoid(gate). `blocks` empty = every complete block (dense).
// Order of summation: a function of the row's own list of tokens (ascending) and kind, so that
// staging and placement cannot change a bit; dense and "everything selected" agree bit for bit.
struct AttendArgs {
    StepRows step;
    DevSpan<const float> q;   // [R][heads][head_dim] of the whole step
    DevSpan<const float> qg;  // [R][heads][2*head_dim]: the gate is the second half
    RowSource kv;
    DevSpan<const int32_t> blocks;  // [rows][top] or empty
    DevSpan<const int32_t> counts;  // [rows] or empty
    DevSpan<float> out;             // [R][heads*head_dim] of the whole step
    int32_t first_row = 0, rows = 0, heads = 0, top = 0;
    float scale = 1.0f;
    // A pass over part of the history, for staging: attends to blocks below end_block, from where the
    // pass with end_block = from_block stopped; the last pass (end_block = kLastPass) adds the tail
    // tokens and writes `out`. A pass may leave work to the next one, which then reads those blocks
    // at their home. Running sums stay in `state` (Ops::attend_state_bytes), unnormalised, so that
    // any cut in passes gives the bits of one pass. Borders are multiples of a page; prefilled rows
    // only.
    int32_t from_block = 0, end_block = kLastPass;
    DevSpan<std::byte> state;  // of the call's rows; empty when there is one pass

    constexpr bool first_pass() const { return from_block == 0; }
    constexpr bool last_pass() const { return end_block == kLastPass; }
};

// The k largest of logits[r] = router x[r], ties to the lower expert, in descending order; weights =
// softmax over all experts, divided by their sum over the chosen when `renormalise`.
enum class Renormalise : uint8_t { no, yes };
struct RouteArgs {
    DevSpan<const float> x;                // [R][hidden]
    const LinearWeight* router = nullptr;  // [experts][hidden]
    DevSpan<float> logits;                 // [R][experts], room to work in
    DevSpan<int32_t> ids;                  // [R][k]
    DevSpan<float> weights;                // [R][k]
    int32_t rows = 0, experts = 0, k = 0;
    Renormalise renormalise = Renormalise::yes;
    RowRuns runs;
};

// Where each expert of a layer is. Tiers move records and change entries; kernels only read it.
struct ExpertTable {
    const ExpertWeights* experts =
        nullptr;  // [n] in host memory; the addresses inside are the device's
    int32_t n = 0;
    DevSpan<const ExpertWeights> device;  // the same entries in device memory
};

// y[r] = sum_j w[r][j] * expert_{ids[r][j]}(x[r])  (j ascending)
//      + sigmoid(<x, shared_gate>) * shared(x).
struct MoeArgs {
    DevSpan<const float> x;        // [R][hidden]
    DevSpan<const int32_t> ids;    // [R][k]
    DevSpan<const float> weights;  // [R][k]
    ExpertTable table;
    const ExpertWeights* shared = nullptr;  // optional
    const LinearWeight* shared_gate = nullptr;
    DevSpan<float> y;  // [R][hidden]
    int32_t rows = 0, hidden = 0, width = 0, shared_width = 0, k = 0;
    RowRuns runs;
};

// Model spec 3.7.2. key = e.key_proj, value = e.value_proj were computed by `linear`.
struct PleInjectArgs {
    StepRows step;
    DevSpan<float> h;                             // [R][S][H], read and added to
    DevSpan<const float> key;                     // [R][S*H]
    DevSpan<const float> value;                   // [R][H]
    PlainTensor norm_key, norm_query, norm_conv;  // [S*H]
    PlainTensor conv;                             // [S*H][kernel]
    DevSpan<float> state;                         // [slots][(kernel-1)*dilation][S*H], oldest first
    int32_t streams = 0, hidden = 0, kernel = 4, dilation = 3;
    float eps = 1e-6f;
};

// out[i][:] = in[rows[i]][:].
struct GatherRowsArgs {
    DevSpan<const float> in;
    DevSpan<const int32_t> rows;  // [n]
    DevSpan<float> out;
    int32_t n = 0, width = 0;
};

// What a sampler needs of a row of logits: its k largest, descending, ties to the lower id, and the
// mass of all. NaN and -inf are no candidates. Places without a candidate hold id -1 and -inf.
// log_sum[r] = log of the sum over all candidates of exp((logit - largest) * inv_temperature[r]);
// -inf without any.
constexpr int32_t kMaxCandidates = 256;
struct SampleCandidatesArgs {
    DevSpan<const float> logits;           // [R][vocab]
    DevSpan<const float> inv_temperature;  // [R], above 0; empty: 1
    DevSpan<float> values;                 // [R][k]
    DevSpan<int32_t> ids;                  // [R][k]
    DevSpan<float> log_sum;                // [R]
    int32_t rows = 0, vocab = 0, k = 0;    // k at most kMaxCandidates
};

}  // namespace terrace
