// Two ways in. Inputs that begin with "{" are tokenizer.json files. All others are text for a small
// fixed tokenizer: encode, decode and stream must agree, whatever the bytes.
// SPDX-License-Identifier: MIT
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "text/bpe.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

using namespace terrace;

namespace {

void check(bool good) {
    if (!good) std::abort();
}

std::string escaped(std::string_view s) {  // a JSON string
    std::string out = "\"";
    for (const char c : s) {
        if (c == '"' || c == '\\') out += '\\';
        out += c;
    }
    return out + "\"";
}

const Tokenizer& fixed_tokenizer() {
    static const Tokenizer tokenizer = [] {
        std::string json =
            R"({"added_tokens": [{"id": 300, "content": "<|end|>", "special": true},
                {"id": 301, "content": "<x>", "special": false, "lstrip": true, "rstrip": true},
                {"id": 302, "content": "word", "special": false, "single_word": true, "normalized": true}],
                "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "behavior": "Isolated",
                "pattern": {"Regex": "(?i:'s|'t|'re)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
                {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]},
                "model": {"type": "BPE", "vocab": {)";
        for (int b = 0; b < 256; ++b)
            json += escaped(byte_alphabet_spelling(static_cast<uint8_t>(b))) + ": " +
                    std::to_string(b) + ",";
        json += R"("th": 256, "the": 257, "aa": 258, "aaaa": 259, "--": 260},
                "merges": ["t h", "th e", "a a", "aa aa", "- -"]}})";
        auto t = Tokenizer::from_json(json, "fixed");
        check(t.has_value());
        return std::move(*t);
    }();
    return tokenizer;
}

void exercise(const Tokenizer& t, std::string_view text) {
    const auto specials =
        text.size() % 2 ? Tokenizer::Specials::parse : Tokenizer::Specials::as_text;
    const auto ids = t.encode(text, specials);
    if (!ids) return;
    check(!first_invalid_utf8(t.decode(*ids)));
    Detokenizer stream(t, Tokenizer::SpecialText::keep);
    StopMatcher stop({"\n\n", "<|end|>", "the"});
    std::string out, until_stop;
    for (const TokenId id : *ids) {
        const std::string part = stream.push(id);
        check(!first_invalid_utf8(part));
        out += part;
        until_stop += stop.push(part).emit;
    }
    const std::string tail = stream.flush();
    out += tail;
    until_stop += stop.push(tail).emit + stop.flush().emit;
    check(out == t.decode(*ids));
    check(std::string_view(out).starts_with(until_stop));
    check(stop.stopped() || until_stop == out);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string_view input(reinterpret_cast<const char*>(data), size);
    if (input.starts_with('{')) {
        const auto t = Tokenizer::from_json(input, "fuzz");
        if (t) exercise(*t, "Hello <|end|> the world's  12\n\n\xC3\xA9 e\xCC\x81 \xF0\x9F\x98\x80");
        return 0;
    }
    const Tokenizer& t = fixed_tokenizer();
    exercise(t, input);
    exercise(t, utf8_lossy(input));
    // Arbitrary ids, out of range ones included.
    Detokenizer stream(t);
    std::string out;
    std::vector<TokenId> ids;
    for (size_t i = 0; i + 1 < size; i += 2)
        ids.push_back(static_cast<TokenId>(data[i] | (data[i + 1] << 8)) % 320 - 4);
    for (const TokenId id : ids)
        out += stream.push(id);
    check(out + stream.flush() == t.decode(ids, Tokenizer::SpecialText::skip));
    return 0;
}
