// SPDX-License-Identifier: MIT
#include "feed.h"

#include <algorithm>
#include <cmath>

#include "common.h"

namespace terrace {

Status feed(Batch& batch, Sequence& sequence, std::span<const TokenId> tokens, int32_t chunk,
            LogitRows rows, const LogitSink& sink) {
    const auto step = static_cast<size_t>(chunk);
    for (size_t at = 0; at < tokens.size(); at += step) {
        if (interrupted()) return Error{Code::cancelled, "interrupted"};
        const std::span<const TokenId> part =
            tokens.subspan(at, std::min(step, tokens.size() - at));
        const bool last = at + part.size() == tokens.size();
        batch.clear();
        TERRACE_TRY(
            batch.add(sequence, part, rows == LogitRows::last && !last ? LogitRows::none : rows));
        TERRACE_TRY(batch.run());
        const auto first = static_cast<int64_t>(at + part.size()) - batch.logit_rows();
        for (int32_t i = 0; sink && i < batch.logit_rows(); ++i)
            TERRACE_TRY(sink(first + i, batch.logits(i)));
    }
    return {};
}

double negative_log_likelihood(std::span<const float> logits, TokenId token) {
    const float top = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float l : logits)
        sum += static_cast<double>(std::exp(l - top));
    return static_cast<double>(top) + std::log(sum) -
           static_cast<double>(logits[static_cast<size_t>(token)]);
}

TokenId arg_max(std::span<const float> logits) {
    return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace terrace
