// Made-up selections for terrace bench --kv-locality: random weights select nearly at random, which
// says nothing about a mirror of hot blocks. All lists are made and uploaded before the clock runs; a
// step costs one small copy on the device, and captured steps stay valid. Engine thread only.
// SPDX-License-Identifier: MIT
#pragma once
#include <optional>

#include "engine/runtime.h"

namespace terrace {

class SyntheticSelection {
  public:
    // Lists of `rows` sequences that share the first `depth` tokens, for `steps` steps. Nothing when
    // rows of that depth are not sparse.
    static Result<std::optional<SyntheticSelection>> create(Runtime& runtime, int32_t depth,
                                                            int32_t rows, int32_t steps,
                                                            float locality);
    SyntheticSelection(SyntheticSelection&&) noexcept = default;
    SyntheticSelection& operator=(SyntheticSelection&&) noexcept = default;
    ~SyntheticSelection();

    Status next();  // the lists of the next step, in stream order

  private:
    SyntheticSelection() = default;
    struct Detach {
        void operator()(Runtime* runtime) const { runtime->model().replace_selection({}, 0); }
    };
    std::unique_ptr<Runtime, Detach> runtime_;  // not owned: its model forgets the lists
    Buffer all_, now_;
    int32_t step_ = 0;
};

// One list after another: `keep` of `list` stay, chosen at random, and new ones below `end` that it
// did not have take the places of the others. Ascending.
std::vector<int32_t> next_selection(const std::vector<int32_t>& list, int32_t keep, int32_t end,
                                    uint64_t& random);

}  // namespace terrace
