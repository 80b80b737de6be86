// Activation buffers of a step: one allocation, carved by name. Internal to src/model.
// SPDX-License-Identifier: MIT
#pragma once
#include "model/model.h"

namespace terrace {

// How rows reach the K and V of their sequence: at home, or by way of the arena.
enum class Reach : uint8_t { direct, staged };

// Neighbouring rows of a step with the same reach.
struct RowSpan {
    int32_t row0 = 0, n_rows = 0;
    Reach reach = Reach::direct;
};

struct StepBuffers {
    ChargedBuffer memory, logit_memory;

    // Host side of the step's metadata, filled before the copy to the device. Pinned where the
    // device has its own memory, and laid out as there, so that one copy carries all of it; the
    // engine synchronises once per step, so the next step may refill it.
    ChargedBuffer staging;
    size_t meta_bytes = 0;  // of [seqs .. block_tables], at the start of `memory` and `staging`
    std::vector<int64_t> ngram_rows;
    DevSpan<float> ngram_host;  // [ple layers][rows][ple_dim] in `staging`
    std::vector<TokenId> window;
    std::vector<SeqRows> host_seqs;
    std::vector<RowRun> runs;
    std::vector<RowSpan> spans;  // covering all rows of the step
    std::vector<StagedSeq> staged;

    DevSpan<int32_t> tokens, row_seq, block_tables, logit_rows;
    DevSpan<SeqRows> seqs;
    DevSpan<float> h;       // [rows][streams*hidden]
    DevSpan<float> x;       // [rows][hidden]
    DevSpan<float> inj[2];  // [rows][streams]: of the last read, and of the one before
    DevSpan<float> y;       // [rows][hidden]
    DevSpan<float> wide;    // [rows][widest of qkv, q|gate, key]
    DevSpan<float> z;       // [rows][v_heads*v_dim] | K, V
    DevSpan<float> a, b;    // [rows][v_heads]
    DevSpan<float> mixed;   // [rows][v_heads*v_dim or heads*head_dim] before the output projection
    DevSpan<float> q;       // [rows][heads*head_dim]
    DevSpan<float> k, v;    // [rows][kv_heads*head_dim]
    DevSpan<float> ix, iq;  // [rows][(index_heads+1)*index_dim], [rows][index_heads*index_dim]
    DevSpan<float> scores;  // [slab_rows][max_blocks]
    DevSpan<int32_t> blocks, counts;  // [slab_rows][top], [slab_rows]
    DevSpan<float> router;            // [rows][experts]
    DevSpan<int32_t> ids;             // [rows][k]
    DevSpan<float> id_weights;
    DevSpan<float> ngram;           // [ple layers][rows][ple_dim]
    DevSpan<float> tail_h, tail_x;  // rows whose logits are wanted
    DevSpan<float> logits;          // [logit_rows][vocab]
    int32_t slab_rows = 0;
    int32_t max_blocks = 0;
};

// The rule of ops/args.h (RowKind) over the sequences of a step; neighbours of one kind share a run.
// Decoded rows of a sequence's rows in a step: the last ones.
int32_t decoded_rows(int32_t n_rows);
void row_runs(std::span<const SeqRows> seqs, std::vector<RowRun>& runs);

}  // namespace terrace
