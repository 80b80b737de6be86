// Reads a tokenizer.json (Hugging Face tokenizers, version 1.0) of the byte-level BPE kind. Every
// field that would change ids and is not implemented is refused by name.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "text/tokenizer_parts.h"
#include "text/utf8.h"

namespace terrace {
namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

// Ids above this are a damaged file, not a vocabulary; it bounds the memory that gaps can cost.
constexpr int64_t kMaxVocab = 4'000'000;
constexpr size_t kMaxTokenBytes = 1 << 16;
constexpr size_t kMaxVocabBytes = size_t{1} << 30;
constexpr int kMaxNesting = 8;

Error unsupported(std::string_view field, std::string_view what) {
    return {Code::unsupported, fmt::format("{}: {} is not supported; Terrace reads byte-level BPE "
                                           "tokenizers",
                                           field, what)};
}
Error malformed(std::string_view field, std::string_view want) {
    return {Code::corrupt_data, fmt::format("{}: need {}", field, want)};
}

// Absent and null are the same to this format.
std::optional<element> field(object o, const char* key) {
    element e;
    if (o[key].get(e) != simdjson::SUCCESS || e.is_null()) return std::nullopt;
    return e;
}

Result<std::string_view> text_of(object o, const char* key, std::string_view where) {
    std::string_view s;
    const auto e = field(o, key);
    if (!e || e->get(s) != simdjson::SUCCESS)
        return malformed(fmt::format("{}.{}", where, key), "a string");
    return s;
}

Result<bool> flag_of(object o, const char* key, bool otherwise, std::string_view where) {
    const auto e = field(o, key);
    if (!e) return otherwise;
    bool b = false;
    if (e->get(b) != simdjson::SUCCESS)
        return malformed(fmt::format("{}.{}", where, key), "true or false");
    return b;
}

Result<object> object_of(element e, std::string_view where) {
    object o;
    if (e.get(o) != simdjson::SUCCESS) return malformed(where, "an object");
    return o;
}

Status read_normalizer(element e, Normalization& out, int depth) {
    TERRACE_ASSIGN(const object o, object_of(e, "normalizer"));
    TERRACE_ASSIGN(const std::string_view type, text_of(o, "type", "normalizer"));
    if (type == "Sequence") {
        array list;
        if (depth > kMaxNesting || o["normalizers"].get(list) != simdjson::SUCCESS)
            return malformed("normalizer.normalizers", "a list, nested at most 8 deep");
        for (const element item : list)
            TERRACE_TRY(read_normalizer(item, out, depth + 1));
        return {};
    }
    Normalization form = Normalization::none;
    if (type == "NFC")
        form = Normalization::nfc;
    else if (type == "NFD")
        form = Normalization::nfd;
    else if (type == "NFKC")
        form = Normalization::nfkc;
    else if (type == "NFKD")
        form = Normalization::nfkd;
    else
        return unsupported("normalizer.type", fmt::format("\"{}\"", type));
    if (out != Normalization::none && out != form)
        return unsupported("normalizer", "a sequence of different normal forms");
    out = form;
    return {};
}

Status read_split(object o, PreTokenizer& out) {
    constexpr std::string_view kWhere = "pre_tokenizer.Split";
    TERRACE_ASSIGN(const std::string_view behavior, text_of(o, "behavior", kWhere));
    SplitBehavior how = SplitBehavior::isolated;
    if (behavior == "Removed")
        how = SplitBehavior::removed;
    else if (behavior == "MergedWithPrevious")
        how = SplitBehavior::merged_with_previous;
    else if (behavior == "MergedWithNext")
        how = SplitBehavior::merged_with_next;
    else if (behavior == "Contiguous")
        how = SplitBehavior::contiguous;
    else if (behavior != "Isolated")
        return unsupported("pre_tokenizer.Split.behavior", fmt::format("\"{}\"", behavior));
    TERRACE_ASSIGN(const bool invert, flag_of(o, "invert", false, kWhere));
    // Inverting swaps matches and the text between them; isolating both is the same either way.
    if (invert && how != SplitBehavior::isolated)
        return unsupported("pre_tokenizer.Split.invert", fmt::format("true with {}", behavior));
    const auto pattern = field(o, "pattern");
    std::string_view text;
    object p;
    if (pattern && pattern->get(p) == simdjson::SUCCESS) {
        if (p["Regex"].get(text) == simdjson::SUCCESS)
            return out.add_regex(text, how, "pre_tokenizer.Split.pattern.Regex");
        if (p["String"].get(text) == simdjson::SUCCESS)
            return out.add_literal(text, how, "pre_tokenizer.Split.pattern.String");
    } else if (pattern && pattern->get(text) == simdjson::SUCCESS) {
        return out.add_literal(text, how, "pre_tokenizer.Split.pattern");
    }
    return malformed("pre_tokenizer.Split.pattern", R"({"Regex": ...} or {"String": ...})");
}

// `byte_level` becomes true when the words end up spelled as bytes, which the rest relies on.
Status read_pre_tokenizer(element e, PreTokenizer& out, bool& byte_level, int depth) {
    TERRACE_ASSIGN(const object o, object_of(e, "pre_tokenizer"));
    TERRACE_ASSIGN(const std::string_view type, text_of(o, "type", "pre_tokenizer"));
    if (type == "Sequence") {
        array list;
        if (depth > kMaxNesting || o["pretokenizers"].get(list) != simdjson::SUCCESS)
            return malformed("pre_tokenizer.pretokenizers", "a list, nested at most 8 deep");
        for (const element item : list)
            TERRACE_TRY(read_pre_tokenizer(item, out, byte_level, depth + 1));
        return {};
    }
    if (byte_level)
        return unsupported("pre_tokenizer", fmt::format("\"{}\" after \"ByteLevel\"", type));
    if (type == "Split") return read_split(o, out);
    if (type == "Digits") {
        TERRACE_ASSIGN(const bool each,
                       flag_of(o, "individual_digits", false, "pre_tokenizer.Digits"));
        return out.add_regex(each ? R"(\p{N})" : R"(\p{N}+)", SplitBehavior::isolated,
                             "pre_tokenizer.Digits");
    }
    if (type == "ByteLevel") {
        byte_level = true;
        TERRACE_ASSIGN(const bool prefix,
                       flag_of(o, "add_prefix_space", true, "pre_tokenizer.ByteLevel"));
        TERRACE_ASSIGN(const bool regex, flag_of(o, "use_regex", true, "pre_tokenizer.ByteLevel"));
        if (prefix) out.add_prefix_space();
        return regex ? out.add_gpt2("pre_tokenizer.ByteLevel") : Status{};
    }
    return unsupported("pre_tokenizer.type", fmt::format("\"{}\"", type));
}

// The decoder must be, or contain nothing but, ByteLevel.
Status check_decoder(element e, int depth) {
    TERRACE_ASSIGN(const object o, object_of(e, "decoder"));
    TERRACE_ASSIGN(const std::string_view type, text_of(o, "type", "decoder"));
    if (type == "Sequence") {
        array list;
        if (depth > kMaxNesting || o["decoders"].get(list) != simdjson::SUCCESS)
            return malformed("decoder.decoders", "a list, nested at most 8 deep");
        for (const element item : list)
            TERRACE_TRY(check_decoder(item, depth + 1));
        return {};
    }
    if (type != "ByteLevel") return unsupported("decoder.type", fmt::format("\"{}\"", type));
    return {};
}

struct Vocab {
    struct Token {
        std::string bytes;
        bool in_alphabet = true;
        uint8_t flags = 0;
    };
    std::vector<Token> tokens;  // by id
    size_t total_bytes = 0;

    Result<Token*> at(int64_t id, std::string_view where) {
        if (id < 0 || id >= kMaxVocab)
            return malformed(where, fmt::format("an id from 0 to {}, have {}", kMaxVocab - 1, id));
        if (static_cast<size_t>(id) >= tokens.size()) tokens.resize(static_cast<size_t>(id) + 1);
        return &tokens[static_cast<size_t>(id)];
    }
    Status set(Token& token, SpelledBytes spelled, std::string_view where) {
        total_bytes += spelled.bytes.size();
        if (spelled.bytes.size() > kMaxTokenBytes || total_bytes > kMaxVocabBytes)
            return malformed(where, "tokens of at most 64 KiB, 1 GiB together");
        token.bytes = std::move(spelled.bytes);
        token.in_alphabet = spelled.in_alphabet;
        token.flags |= TokenizerParts::used;
        return {};
    }
};

Status read_vocab(object model, Vocab& vocab) {
    object entries;
    if (model["vocab"].get(entries) != simdjson::SUCCESS)
        return malformed("model.vocab", "an object of token: id");
    vocab.tokens.reserve(entries.size());
    for (const auto& [key, value] : entries) {
        int64_t id = 0;
        if (value.get(id) != simdjson::SUCCESS)
            return malformed(fmt::format("model.vocab[\"{}\"]", key), "an integer");
        TERRACE_ASSIGN(Vocab::Token * token, vocab.at(id, fmt::format("model.vocab[\"{}\"]", key)));
        if (token->flags & TokenizerParts::used)
            return malformed(fmt::format("model.vocab[\"{}\"]", key),
                             fmt::format("an id of its own, {} is taken", id));
        TERRACE_TRY(vocab.set(*token, bytes_of_spelling(key), "model.vocab"));
    }
    return {};
}

Result<std::vector<AddedToken>> read_added(object root, Vocab& vocab) {
    std::vector<AddedToken> out;
    const auto list = field(root, "added_tokens");
    if (!list) return out;
    array items;
    if (list->get(items) != simdjson::SUCCESS) return malformed("added_tokens", "a list");
    for (const element item : items) {
        const std::string where = fmt::format("added_tokens[{}]", out.size());
        TERRACE_ASSIGN(const object o, object_of(item, where));
        AddedToken token;
        int64_t id = 0;
        if (o["id"].get(id) != simdjson::SUCCESS) return malformed(where + ".id", "an integer");
        TERRACE_ASSIGN(const std::string_view content, text_of(o, "content", where));
        token.content = content;
        TERRACE_ASSIGN(token.special, flag_of(o, "special", false, where));
        TERRACE_ASSIGN(token.normalized, flag_of(o, "normalized", !token.special, where));
        TERRACE_ASSIGN(token.lstrip, flag_of(o, "lstrip", false, where));
        TERRACE_ASSIGN(token.rstrip, flag_of(o, "rstrip", false, where));
        TERRACE_ASSIGN(token.single_word, flag_of(o, "single_word", false, where));
        TERRACE_ASSIGN(Vocab::Token * entry, vocab.at(id, where + ".id"));
        token.id = static_cast<TokenId>(id);
        TERRACE_TRY(vocab.set(*entry, {token.content, true}, where));
        entry->flags |= TokenizerParts::added;
        if (token.special) entry->flags |= TokenizerParts::special;
        out.push_back(std::move(token));
    }
    return out;
}

Status check_model(object model) {
    const auto type = field(model, "type");
    std::string_view name = "BPE";  // older files leave it out
    if (type && type->get(name) != simdjson::SUCCESS) return malformed("model.type", "a string");
    if (name != "BPE") return unsupported("model.type", fmt::format("\"{}\"", name));
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
        std::string_view s;
        const auto e = field(model, key);
        if (e && (e->get(s) != simdjson::SUCCESS || !s.empty()))
            return unsupported(fmt::format("model.{}", key), "a value that is not empty");
    }
    TERRACE_ASSIGN(const bool byte_fallback, flag_of(model, "byte_fallback", false, "model"));
    if (byte_fallback) return unsupported("model.byte_fallback", "true");
    if (const auto dropout = field(model, "dropout")) {
        double p = 0;
        if (dropout->get(p) != simdjson::SUCCESS || p != 0)
            return unsupported("model.dropout", "random dropout of merges");
    }
    return {};
}

Status read_merges(object model, TokenizerParts& parts, const BytesIndex& words) {
    const auto list = field(model, "merges");
    if (!list) return malformed("model.merges", "a list");
    array merges;
    if (list->get(merges) != simdjson::SUCCESS) return malformed("model.merges", "a list");
    parts.bpe.reserve_merges(merges.size());
    size_t i = 0;
    std::string product;
    for (const element merge : merges) {
        std::string_view left, right, both;
        array pair;
        bool good = false;
        if (merge.get(both) == simdjson::SUCCESS) {
            const size_t space = both.find(' ');
            good = space != std::string_view::npos;
            if (good) {
                left = both.substr(0, space);
                right = both.substr(space + 1);
            }
        } else if (merge.get(pair) == simdjson::SUCCESS) {
            good = pair.size() == 2 && pair.at(0).get(left) == simdjson::SUCCESS &&
                   pair.at(1).get(right) == simdjson::SUCCESS;
        }
        if (!good) return malformed(fmt::format("model.merges[{}]", i), R"("a b" or ["a", "b"])");
        const std::string left_bytes = bytes_of_spelling(left).bytes;
        const std::string right_bytes = bytes_of_spelling(right).bytes;
        product.assign(left_bytes).append(right_bytes);
        const auto a = words.find(left_bytes), b = words.find(right_bytes), c = words.find(product);
        if (!a || !b || !c)
            return malformed(
                fmt::format("model.merges[{}]", i),
                fmt::format("\"{}\", \"{}\" and both together in model.vocab", left, right));
        parts.bpe.add_merge(*a, *b, *c);
        ++i;
    }
    return {};
}

// Lays the tokens out in one block and indexes them.
void pack_vocab(const Vocab& vocab, TokenizerParts& parts) {
    const size_t n = vocab.tokens.size();
    parts.offsets.resize(n + 1);
    parts.flags.resize(n);
    // Never the string's own small buffer: the indexes keep pointers while `parts` is moved.
    parts.bytes.reserve(std::max<size_t>(vocab.total_bytes, 64));
    for (size_t id = 0; id < n; ++id) {
        parts.offsets[id] = static_cast<uint32_t>(parts.bytes.size());
        parts.flags[id] = vocab.tokens[id].flags;
        parts.bytes += vocab.tokens[id].bytes;
    }
    parts.offsets[n] = static_cast<uint32_t>(parts.bytes.size());
    parts.ids.reserve(n);
    for (const bool added : {true, false})
        for (size_t id = 0; id < n; ++id) {
            const uint8_t flags = parts.flags[id];
            if ((flags & TokenizerParts::used) && bool(flags & TokenizerParts::added) == added)
                parts.ids.insert(parts.piece(id), static_cast<TokenId>(id));
        }
}

}  // namespace

Result<TokenizerParts> read_tokenizer_json(std::string_view json, std::string_view where) {
    simdjson::dom::parser parser;
    const simdjson::padded_string padded(json);
    element document;
    if (const auto error = parser.parse(padded).get(document))
        return Error{Code::corrupt_data,
                     fmt::format("{}: not JSON: {}", where, simdjson::error_message(error))};
    object root, model;
    if (document.get(root) != simdjson::SUCCESS || root["model"].get(model) != simdjson::SUCCESS)
        return malformed(fmt::format("{}: model", where), "an object");

    TokenizerParts parts;
    const auto read = [&]() -> Status {
        TERRACE_TRY(check_model(model));
        TERRACE_ASSIGN(parts.ignore_merges, flag_of(model, "ignore_merges", false, "model"));
        if (const auto e = field(root, "normalizer"))
            TERRACE_TRY(read_normalizer(*e, parts.normalization, 0));
        bool byte_level = false;
        if (const auto e = field(root, "pre_tokenizer"))
            TERRACE_TRY(read_pre_tokenizer(*e, parts.pre_tokenizer, byte_level, 0));
        if (!byte_level) return unsupported("pre_tokenizer", "anything without \"ByteLevel\"");
        if (const auto e = field(root, "decoder")) TERRACE_TRY(check_decoder(*e, 0));

        Vocab vocab;
        TERRACE_TRY(read_vocab(model, vocab));
        if (vocab.tokens.empty()) return malformed("model.vocab", "at least one token");
        // Merges speak of the vocabulary as it was before added tokens.
        std::vector<bool> in_model(vocab.tokens.size());
        for (size_t id = 0; id < in_model.size(); ++id)
            in_model[id] = (vocab.tokens[id].flags & TokenizerParts::used) != 0;
        TERRACE_ASSIGN(const std::vector<AddedToken> added, read_added(root, vocab));
        pack_vocab(vocab, parts);

        // Tokens spelled in the byte alphabet first: they are the ones that text can reach.
        parts.words.reserve(in_model.size());
        for (const bool in_alphabet : {true, false})
            for (size_t id = 0; id < in_model.size(); ++id)
                if (in_model[id] && vocab.tokens[id].in_alphabet == in_alphabet)
                    parts.words.insert(parts.piece(id), static_cast<TokenId>(id));
        for (int b = 0; b < 256; ++b) {
            const char byte = static_cast<char>(b);
            if (const auto id = parts.words.find({&byte, 1}))
                parts.bpe.set_byte(static_cast<uint8_t>(b), *id);
        }
        TERRACE_TRY(read_merges(model, parts, parts.words));
        if (!parts.ignore_merges) parts.words = {};

        std::string storage;
        for (const AddedToken& token : added) {
            const std::string_view spelled =
                token.normalized ? normalize(token.content, parts.normalization, storage)
                                 : std::string_view(token.content);
            AddedTokenFinder* finders =
                token.normalized ? parts.normalized_tokens : parts.raw_tokens;
            finders[0].add(token, spelled);
            if (!token.special) finders[1].add(token, spelled);
        }
        return {};
    };
    if (auto status = read(); !status) return status.error().in(where);
    return parts;
}

}  // namespace terrace
