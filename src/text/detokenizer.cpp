// See detokenizer.h.
// SPDX-License-Identifier: MIT
#include "text/detokenizer.h"

#include "text/utf8.h"

namespace terrace {

std::string Detokenizer::push(TokenId id) {
    if (special_ == Tokenizer::SpecialText::skip && tokenizer_->is_special(id)) return {};
    pending_.append(tokenizer_->piece(id));
    std::string out;
    std::string_view rest = pending_;
    while (!rest.empty()) {
        const Utf8Step step = utf8_step(rest);
        if (step.kind == Utf8Kind::incomplete) break;
        out.append(step.kind == Utf8Kind::valid ? rest.substr(0, step.bytes)
                                                : kReplacementCharacter);
        rest.remove_prefix(step.bytes);
    }
    pending_.erase(0, pending_.size() - rest.size());
    return out;
}

std::string Detokenizer::flush() {
    std::string out = utf8_lossy(pending_);
    pending_.clear();
    return out;
}

}  // namespace terrace
