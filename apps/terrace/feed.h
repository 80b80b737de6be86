// Feeds known tokens to one sequence and hands out logits: what logits, eval and bench have in
// common. Engine thread only. Reuses one Batch; never samples.
// SPDX-License-Identifier: MIT
#pragma once
#include <functional>
#include <span>

#include "engine/batch.h"

namespace terrace {

// Position of the row among the tokens given to feed(), and its logits [vocab].
using LogitSink = std::function<Status(int64_t row, std::span<const float> logits)>;

// Appends `tokens` in steps of `chunk` rows; the sink sees all rows, the last one of all, or none.
// A chunk of 1 computes decode rows. cancelled after Ctrl-C.
Status feed(Batch& batch, Sequence& sequence, std::span<const TokenId> tokens, int32_t chunk,
            LogitRows rows, const LogitSink& sink);

// -log softmax(logits)[token], in double.
double negative_log_likelihood(std::span<const float> logits, TokenId token);
TokenId arg_max(std::span<const float> logits);  // ties to the lower id

}  // namespace terrace
