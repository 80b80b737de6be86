// SPDX-License-Identifier: MIT
#include "tier/staging_plan.h"

#include <algorithm>

#include "device/planes.h"

namespace terrace {
namespace {
constexpr size_t z(int32_t v) {
    return static_cast<size_t>(v);
}
}  // namespace

ArenaShape arena_shape(int32_t half_pages, int32_t pool_pages, int32_t rows, int32_t seqs) {
    ArenaShape s;
    s.half_pages = std::min(half_pages, pool_pages);
    if (s.half_pages <= 0) return {};
    // A sequence's rows begin and end inside pages.
    s.own_pages = std::min(rows / kPageTokens + 2 * seqs, pool_pages);
    s.pool_pages = pool_pages;
    // A logical page is of up to `seqs` physical ones, which stay together.
    const int32_t filled = std::max(1, s.half_pages - seqs + 1);
    s.most_passes =
        s.half_pages == pool_pages ? 1 : std::min(kMostPasses, (pool_pages + filled - 1) / filled);
    return s;
}

StagingPlan::StagingPlan(const ArenaShape& shape) : shape_(shape), met_(z(shape.pool_pages), 0) {
    own_.reserve(z(shape.own_pages));
    pages_.reserve(z(shape.pool_pages));
    runs_.reserve(z(shape.pool_pages));
    heads_.reserve(z(shape.own_pages));
    for (auto* per_pass : {&first_page_, &first_run_, &borders_})
        per_pass->reserve(z(shape.most_passes) + 2);
}

bool StagingPlan::make(std::span<const StagedSeq> seqs) {
    own_.clear();
    pages_.clear();
    runs_.clear();
    heads_.clear();
    first_page_.assign(1, 0);
    first_run_.assign(1, 0);
    borders_.assign(1, 0);
    ++step_;
    int32_t most = 0;
    for (const StagedSeq& s : seqs) {
        const int32_t first = s.pos0 / kPageTokens, last = (s.pos0 + s.n_rows - 1) / kPageTokens;
        if (s.pos0 % kPageTokens != 0)
            heads_.push_back(
                {s.table[first], static_cast<int32_t>(own_.size()), s.pos0 % kPageTokens});
        for (int32_t j = first; j <= last; ++j) {
            if (own_.size() == z(shape_.own_pages)) return false;
            own_.push_back(s.table[j]);
            met_[z(s.table[j])] = step_;
        }
        most = std::max(most, first);
    }
    const auto close = [&](size_t end, int32_t border) {
        const auto from = pages_.begin() + first_page_.back();
        const auto to = pages_.begin() + static_cast<std::ptrdiff_t>(end);
        // By address, so that what lies together is copied together.
        std::sort(from, to);
        for (auto p = from; p < to; ++p)
            if (p > from && *p == p[-1] + 1)
                ++runs_.back().pages;
            else
                runs_.push_back({*p, static_cast<int32_t>(p - from), 1});
        first_page_.push_back(static_cast<int32_t>(end));
        first_run_.push_back(static_cast<int32_t>(runs_.size()));
        borders_.push_back(border);
        return passes() <= shape_.most_passes;
    };
    for (int32_t j = 0; j < most; ++j) {
        const size_t before = pages_.size();
        for (const StagedSeq& s : seqs) {
            if (j >= s.pos0 / kPageTokens || met_[z(s.table[j])] == step_) continue;
            met_[z(s.table[j])] = step_;
            pages_.push_back(s.table[j]);
        }
        if (pages_.size() - z(first_page_.back()) <= z(shape_.half_pages)) continue;
        if (pages_.size() - before > z(shape_.half_pages) || !close(before, j)) return false;
    }
    return close(pages_.size(), most);
}

std::span<const StagingPlan::Run> StagingPlan::runs(int32_t pass) const {
    const size_t from = z(first_run_[z(pass)]), to = z(first_run_[z(pass) + 1]);
    return std::span(runs_).subspan(from, to - from);
}

void StagingPlan::fill_table(int32_t pass, int32_t layer_parity, std::span<int32_t> table) const {
    std::fill(table.begin(), table.end(), -1);
    const int32_t half0 = half(layer_parity, pass) * shape_.half_pages;
    const int32_t from = first_page_[z(pass)], to = first_page_[z(pass) + 1];
    for (int32_t i = from; i < to; ++i)
        table[z(pages_[z(i)])] = half0 + i - from;
    const int32_t own0 = 2 * shape_.half_pages + layer_parity * shape_.own_pages;
    for (size_t i = 0; i < own_.size(); ++i)
        table[z(own_[i])] = own0 + static_cast<int32_t>(i);
}

}  // namespace terrace
