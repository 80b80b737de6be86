// SPDX-License-Identifier: MIT
#include <cstdint>

#include "tier/ngram_table.h"

namespace terrace {
namespace {

uint64_t splitmix64(uint64_t v) {
    v += 0x9E3779B97F4A7C15u;
    v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9u;
    v = (v ^ (v >> 27)) * 0x94D049BB133111EBu;
    return v ^ (v >> 31);
}

bool is_prime(int64_t n) {
    if (n < 4) return n > 1;
    if (n % 2 == 0) return false;
    for (int64_t d = 3; d * d <= n; d += 2)
        if (n % d == 0) return false;
    return true;
}

}  // namespace

NgramHash NgramHash::derive(const ModelConfig& config, int32_t ple_index) {
    NgramHash hash;
    hash.ngram_size = config.ngram_size;
    hash.heads_per_ngram = config.heads_per_ngram;
    hash.separator = config.eos;
    // Model spec 3.7.1: odd multipliers below (2^63 - 1) / vocab.
    const uint64_t half =
        static_cast<uint64_t>(INT64_MAX) / static_cast<uint64_t>(config.vocab) / 2;
    for (int32_t i = 0; i < hash.ngram_size; ++i) {
        const uint64_t base = static_cast<uint64_t>(config.seed) +
                              10007u * static_cast<uint64_t>(ple_index) +
                              0x9E3779B97F4A7C15u * (static_cast<uint64_t>(i) + 1);
        hash.multipliers.push_back(static_cast<int64_t>(2 * (splitmix64(base) % half) + 1));
    }
    int64_t candidate = config.ngram_vocab_base, offset = 0;
    for (int32_t skip = ple_index * hash.heads(), head = 0; head < hash.heads(); ++candidate) {
        if (!is_prime(candidate)) continue;
        if (skip > 0) {
            --skip;
            continue;
        }
        hash.primes.push_back(candidate);
        hash.offsets.push_back(offset);
        offset += candidate;
        ++head;
    }
    return hash;
}

void NgramHash::rows(std::span<const TokenId> ids, int64_t* out) const {
    TERRACE_DCHECK(!ids.empty());
    const auto last = static_cast<int64_t>(ids.size()) - 1;
    // The token's own being the separator does not cut its context.
    int64_t mixed = int64_t{ids[static_cast<size_t>(last)]} * multipliers[0];
    bool cut = false;
    for (int32_t n = 1; n < ngram_size; ++n) {
        const TokenId id = cut || last - n < 0 ? separator : ids[static_cast<size_t>(last - n)];
        cut = cut || id == separator;
        mixed ^= int64_t{id} * multipliers[static_cast<size_t>(n)];
        for (int32_t h = 0; h < heads_per_ngram; ++h) {
            const auto head = static_cast<size_t>((n - 1) * heads_per_ngram + h);
            out[head] = mixed % primes[head] + offsets[head];
        }
    }
}

}  // namespace terrace
