// Finds stop strings in streamed text. Holds back only what could still become the beginning of a
// stop string, so everything else reaches the reader at once. One stream, one thread.
//
// Of several matches the one that starts first wins; of those that start together, the one listed
// first. Nothing at or after the match is ever emitted. The answer does not depend on how the text
// was cut into chunks: a match is reported only when no other listed string that would win over it
// is still possible. Bytes, not characters: stop strings are valid UTF-8, so a match never begins
// or ends inside a character of valid text. Cost per byte: O(longest stop string x number of them).
// SPDX-License-Identifier: MIT
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace terrace {

class StopMatcher {
  public:
    // Empty strings in the list are ignored: they would stop before the first byte. They still
    // count in `which`.
    explicit StopMatcher(std::vector<std::string> stops);

    struct Step {
        std::string emit;      // text that is safe to show
        bool stopped = false;  // a stop string was found; later pushes emit nothing
        int which = -1;        // its index in the list given to the constructor
    };

    Step push(std::string_view text);

    // End of stream: decides what was held back.
    Step flush();

    bool stopped() const { return stopped_; }
    size_t held_bytes() const { return held_.size(); }

  private:
    enum class Input { more_may_come, ended };
    Step scan(Input input);

    std::vector<std::string> stops_;
    std::string held_;
    bool stopped_ = false;
};

}  // namespace terrace
