// SPDX-License-Identifier: MIT
#include "model/golden_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace terrace::test {
namespace {

const char* const kCases[] = {"len1",  "len3",  "len5_eos", "len66",
                              "len67", "len68", "len131",   "len300"};
constexpr float kExcusedGap = 1e-5f;

// First row whose selection may legitimately differ: positions from there on are not compared.
int32_t first_excused(const Golden& golden, const std::string& c, const ModelRunner& run, int32_t n,
                      int32_t top, int32_t block) {
    int32_t first = n;
    for (int32_t layer = 0; layer < run.config().n_layers; ++layer) {
        const std::string name = fmt::format("{}.block_gap.{}", c, layer);
        if (!golden.has(name)) continue;
        const auto gaps = golden.floats(name);
        for (int32_t p = 0; p < n; ++p) {
            const float gap = gaps[static_cast<size_t>(p)];
            if ((p + 1) / block > top && gap > 0 && gap < kExcusedGap) {
                first = std::min(first, p);
                break;
            }
        }
    }
    return first;
}

std::vector<int32_t> positions_of(const std::vector<int32_t>& blocks, int32_t pos, int32_t block) {
    std::vector<int32_t> out;
    for (const int32_t b : blocks)
        for (int32_t t = 0; t < block; ++t)
            out.push_back(b * block + t);
    for (int32_t p = (pos + 1) / block * block; p <= pos; ++p)
        out.push_back(p);
    return out;
}

// Compares rows; a row beyond the first excused one may differ, and is then counted.
int compare_rows(const std::string& what, const std::vector<float>& got, const float* want,
                 int32_t first_row, int32_t rows, size_t vocab, int32_t excused, float limit) {
    int skipped = 0;
    for (int32_t r = 0; r < rows; ++r) {
        const float d = max_abs_difference(&got[static_cast<size_t>(first_row + r) * vocab],
                                           want + static_cast<size_t>(r) * vocab, vocab);
        if (d <= limit) continue;
        if (first_row + r >= excused && std::isfinite(d)) {
            ++skipped;
            continue;
        }
        ADD_FAILURE() << what << " row " << first_row + r << ": off by " << d << ", limit "
                      << limit;
        return skipped;
    }
    return skipped;
}

}  // namespace

void run_golden_cases(const std::string& name, Ops& ops, const GoldenLimits& limits) {
    const Golden golden(std::filesystem::path(TERRACE_TEST_DATA) / (name + ".golden.safetensors"));
    ModelRunner run(name, ops, {});
    const auto vocab = static_cast<size_t>(run.config().vocab);
    const int32_t top = run.config().block_top_k(), block = run.config().index_block;
    int skipped = 0, selections = 0;
    float worst = 0;
    for (const std::string c : kCases) {
        const auto ids = golden.ints(c + ".tokens");
        const std::vector<TokenId> tokens(ids.begin(), ids.end());
        const auto n = static_cast<int32_t>(tokens.size());
        const auto want = golden.floats(c + ".logits");
        const auto rows = static_cast<int32_t>(want.size() / vocab);
        const int32_t excused = first_excused(golden, c, run, n, top, block);
        for (const int32_t chunk : limits.chunks) {
            run.selected_blocks.clear();
            auto seq = run.start();
            const auto got = run.feed(seq, tokens, chunk);
            skipped += compare_rows(fmt::format("{} {} chunk {}", name, c, chunk), got, want.data(),
                                    n - rows, rows, vocab, excused, limits.logits);
            if (excused == n)
                worst =
                    std::max(worst, max_abs_difference(&got[static_cast<size_t>(n - rows) * vocab],
                                                       want.data(), want.size()));
            for (const auto& [layer, by_position] : run.selected_blocks)
                for (const auto& [pos, blocks] : by_position) {
                    const std::string key = fmt::format("{}.selected.{}.{}", c, layer, pos);
                    if (!golden.has(key)) continue;
                    const auto positions = positions_of(blocks, pos, block);
                    ++selections;
                    if (positions == golden.ints(key)) continue;
                    if (pos >= excused)
                        ++skipped;
                    else
                        ADD_FAILURE() << name << " " << key << " chunk " << chunk
                                      << ": other positions are selected";
                }
            if (chunk < n || excused < n - 2) continue;
            for (int32_t layer = 0; layer < run.config().n_layers; ++layer) {
                const auto hidden = golden.floats(fmt::format("{}.hidden.{}", c, layer));
                const auto& mine = run.hidden[layer];
                EXPECT_LE(max_abs_difference(&mine[mine.size() - hidden.size()], hidden.data(),
                                             hidden.size()),
                          limits.logits * 10)
                    << c << " residual streams after layer " << layer;
            }
        }
        if (golden.has(c + ".decode_logits")) {
            const auto decode = golden.floats(c + ".decode_logits");
            const auto steps = static_cast<int32_t>(decode.size() / vocab) - 1;
            auto seq = run.start();
            const auto split = tokens.end() - steps;
            auto got = run.feed(seq, {tokens.begin(), split}, 512);
            const auto rest = run.feed(seq, {split, tokens.end()}, 1);
            got.insert(got.end(), rest.begin(), rest.end());
            skipped += compare_rows(name + " " + c + " decoded one by one", got, decode.data(),
                                    n - steps - 1, steps + 1, vocab, excused, limits.logits);
        }
        if (golden.has(c + ".greedy")) {
            const auto greedy = golden.ints(c + ".greedy");
            auto seq = run.start();
            auto logits = run.feed(seq, tokens, 512);
            std::vector<int32_t> mine;
            for (size_t i = 0; i < greedy.size(); ++i) {
                const auto last = logits.end() - static_cast<int64_t>(vocab);
                mine.push_back(static_cast<int32_t>(std::max_element(last, logits.end()) - last));
                if (i + 1 < greedy.size()) logits = run.feed(seq, {mine.back()}, 1);
            }
            EXPECT_EQ(mine, greedy) << name << " " << c << " greedy";
        }
    }
    fmt::print(
        "{} on {}: worst {:.2e} absolute, {} selections compared, {} rows excused by a gap "
        "below 1e-5\n",
        name, ops.name(), worst, selections, skipped);
    EXPECT_GT(selections, 0);
}

}  // namespace terrace::test
