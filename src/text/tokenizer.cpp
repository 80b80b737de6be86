// See tokenizer.h. The per-thread word cache is direct-mapped: 16384 entries of 64 bytes, keyed by
// the word's bytes themselves and the tokenizer's serial number, so a hit is never wrong and
// nothing is shared between threads.
// SPDX-License-Identifier: MIT
#include "text/tokenizer.h"

#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <deque>

#include "io/mapped_file.h"
#include "text/tokenizer_parts.h"
#include "text/utf8.h"

namespace terrace {
namespace {

constexpr size_t kMaxInputBytes = size_t{1} << 30;  // positions inside BPE are 32 bits
constexpr size_t kMaxFileBytes = size_t{1} << 30;

struct WordCache {
    static constexpr size_t kEntries = 16384;
    static constexpr size_t kMaxWord = 24;
    static constexpr size_t kMaxIds = 7;
    struct Entry {
        uint64_t key[3] = {};  // the word, zero padded
        uint32_t serial = 0;   // 0: empty
        uint8_t bytes = 0;
        uint8_t n_ids = 0;
        TokenId ids[kMaxIds];
    };
    static_assert(sizeof(Entry) == 64);
    Entry entries[kEntries];
};

WordCache& word_cache() {
    thread_local const std::unique_ptr<WordCache> cache = std::make_unique<WordCache>();
    return *cache;
}

uint64_t mix(uint64_t h, uint64_t word) {
    h = (h ^ word) * 0x9E3779B97F4A7C15ull;
    return h ^ (h >> 32);
}

}  // namespace

struct Tokenizer::Impl {
    TokenizerParts parts;
    uint32_t serial = 0;

    Status encode_word(std::string_view word, WordCache& cache, std::vector<TokenId>& out) const {
        if (word.size() > WordCache::kMaxWord) return merge_word(word, out);
        uint64_t key[3] = {};
        std::memcpy(key, word.data(), word.size());
        const uint64_t hash = mix(mix(mix(word.size(), key[0]), key[1]), key[2]);
        WordCache::Entry& entry = cache.entries[hash % WordCache::kEntries];
        if (entry.serial == serial && entry.bytes == word.size() && entry.key[0] == key[0] &&
            entry.key[1] == key[1] && entry.key[2] == key[2]) {
            out.insert(out.end(), entry.ids, entry.ids + entry.n_ids);
            return {};
        }
        const size_t before = out.size();
        TERRACE_TRY(merge_word(word, out));
        const size_t n = out.size() - before;
        if (n <= WordCache::kMaxIds) {
            std::memcpy(entry.key, key, sizeof(key));
            entry.serial = serial;
            entry.bytes = static_cast<uint8_t>(word.size());
            entry.n_ids = static_cast<uint8_t>(n);
            std::copy(out.begin() + static_cast<ptrdiff_t>(before), out.end(), entry.ids);
        }
        return {};
    }

    Status merge_word(std::string_view word, std::vector<TokenId>& out) const {
        if (parts.ignore_merges) {
            if (const auto id = parts.words.find(word)) {
                out.push_back(*id);
                return {};
            }
        }
        return parts.bpe.merge(word, out);
    }
};

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::load(const std::filesystem::path& dir_or_tokenizer_json) {
    std::error_code ignored;
    const auto path = std::filesystem::is_directory(dir_or_tokenizer_json, ignored)
                          ? dir_or_tokenizer_json / "tokenizer.json"
                          : dir_or_tokenizer_json;
    TERRACE_ASSIGN(const std::string json, read_text_file(path, kMaxFileBytes));
    return from_json(json, path.string());
}

Result<Tokenizer> Tokenizer::from_json(std::string_view tokenizer_json, std::string_view where) {
    static std::atomic<uint32_t> serials{0};
    auto impl = std::make_unique<Impl>();
    TERRACE_ASSIGN(impl->parts, read_tokenizer_json(tokenizer_json, where));
    impl->serial = ++serials;
    return Tokenizer(std::move(impl));
}

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view utf8, Specials specials) const {
    if (utf8.size() > kMaxInputBytes)
        return Error{Code::invalid_argument,
                     fmt::format("text of {} bytes, at most {}", utf8.size(), kMaxInputBytes)};
    if (const auto bad = first_invalid_utf8(utf8))
        return Error{
            Code::invalid_argument,
            fmt::format("text is not UTF-8: ill-formed at byte {} of {}", *bad, utf8.size())};
    const TokenizerParts& parts = impl_->parts;
    const int which = specials == Specials::parse ? 0 : 1;
    WordCache& cache = word_cache();

    std::vector<TokenId> ids;
    ids.reserve(utf8.size() / 4 + 8);
    std::vector<AddedTokenFinder::Section> outer, inner;
    std::vector<std::string_view> words;
    std::deque<std::string> word_storage;
    std::string normal_storage;
    parts.raw_tokens[which].split(utf8, outer);
    for (const auto& section : outer) {
        if (section.id >= 0) {
            ids.push_back(section.id);
            continue;
        }
        inner.clear();
        parts.normalized_tokens[which].split(
            normalize(section.text, parts.normalization, normal_storage), inner);
        for (const auto& piece : inner) {
            if (piece.id >= 0) {
                ids.push_back(piece.id);
                continue;
            }
            word_storage.clear();
            TERRACE_TRY(parts.pre_tokenizer.split(piece.text, words, word_storage));
            for (const std::string_view word : words)
                TERRACE_TRY(impl_->encode_word(word, cache, ids));
        }
    }
    return ids;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, SpecialText special) const {
    std::string bytes;
    bytes.reserve(ids.size() * 4);
    for (const TokenId id : ids)
        if (special == SpecialText::keep || !is_special(id)) bytes += piece(id);
    return utf8_lossy(bytes);
}

std::string_view Tokenizer::piece(TokenId id) const {
    if (id < 0 || id >= vocab_size()) return {};
    return impl_->parts.piece(static_cast<size_t>(id));
}

int Tokenizer::vocab_size() const {
    return static_cast<int>(impl_->parts.flags.size());
}

std::optional<TokenId> Tokenizer::token_to_id(std::string_view bytes) const {
    return impl_->parts.ids.find(bytes);
}

bool Tokenizer::is_special(TokenId id) const {
    return id >= 0 && id < vocab_size() &&
           (impl_->parts.flags[static_cast<size_t>(id)] & TokenizerParts::special);
}

bool Tokenizer::is_added(TokenId id) const {
    return id >= 0 && id < vocab_size() &&
           (impl_->parts.flags[static_cast<size_t>(id)] & TokenizerParts::added);
}

}  // namespace terrace
