// SPDX-License-Identifier: MIT
#include "bench_selection.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace terrace {
namespace {

// SplitMix64.
uint64_t draw(uint64_t& state) {
    uint64_t v = state += 0x9E3779B97F4A7C15u;
    v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9u;
    v = (v ^ (v >> 27)) * 0x94D049BB133111EBu;
    return v ^ (v >> 31);
}

}  // namespace

std::vector<int32_t> next_selection(const std::vector<int32_t>& list, int32_t keep, int32_t end,
                                    uint64_t& random) {
    std::vector<int32_t> out = list;
    for (size_t i = 0; i < static_cast<size_t>(keep); ++i)
        std::swap(out[i], out[i + draw(random) % (out.size() - i)]);
    std::vector<int32_t> taken = list;  // ascending
    for (size_t i = static_cast<size_t>(keep); i < out.size(); ++i) {
        for (;;) {
            const auto block = static_cast<int32_t>(draw(random) % static_cast<uint64_t>(end));
            const auto at = std::lower_bound(taken.begin(), taken.end(), block);
            if (at != taken.end() && *at == block) continue;
            taken.insert(at, block);
            out[i] = block;
            break;
        }
    }
    std::sort(out.begin(), out.end());
    return out;
}

Result<std::optional<SyntheticSelection>> SyntheticSelection::create(Runtime& runtime,
                                                                     int32_t depth, int32_t rows,
                                                                     int32_t steps,
                                                                     float locality) {
    const ModelConfig& c = runtime.config();
    const int32_t top = c.block_top_k(), end = depth / c.index_block;
    const int32_t layers = c.count(LayerKind::qsa);
    // Room for a whole list of others.
    if (end < 2 * top) return std::optional<SyntheticSelection>{};
    const auto keep = static_cast<int32_t>(std::lround(locality * static_cast<float>(top)));
    uint64_t random = 77;
    std::vector<std::vector<int32_t>> lists(static_cast<size_t>(layers * rows));
    for (auto& list : lists) {
        for (int32_t i = 0; i < top; ++i)
            list.push_back(i);
        list = next_selection(list, 0, end, random);
    }
    const size_t of_step = lists.size() * static_cast<size_t>(top) * sizeof(int32_t);
    SyntheticSelection s;
    Device& device = *runtime.backend().device;
    const size_t bytes = of_step * static_cast<size_t>(steps);
    TERRACE_ASSIGN(s.all_, device.allocate(bytes, MemSpace::device, Fill::unspecified));
    TERRACE_ASSIGN(s.now_, device.allocate(of_step, MemSpace::device, Fill::unspecified));
    TERRACE_ASSIGN(const Buffer host,
                   device.allocate(bytes, MemSpace::host_pinned, Fill::unspecified));
    std::byte* to = host.device_pointer();
    for (int32_t step = 0; step < steps; ++step)
        for (auto& list : lists) {
            std::memcpy(to, list.data(), list.size() * sizeof(int32_t));
            to += list.size() * sizeof(int32_t);
            list = next_selection(list, keep, end, random);
        }
    TERRACE_TRY(runtime.stream().copy(s.all_.device_pointer(), host.device_pointer(), bytes));
    TERRACE_TRY(runtime.stream().synchronize());
    runtime.model().replace_selection(s.now_.span<int32_t>(), rows);
    s.runtime_.reset(&runtime);
    return std::optional<SyntheticSelection>(std::move(s));
}

SyntheticSelection::~SyntheticSelection() = default;

Status SyntheticSelection::next() {
    const size_t of_step = now_.bytes();
    const auto at = static_cast<size_t>(step_++) * of_step;
    TERRACE_CHECK(at + of_step <= all_.bytes());
    return runtime_->stream().copy(now_.device_pointer(), all_.device_pointer() + at, of_step);
}

}  // namespace terrace
