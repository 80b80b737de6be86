// See stop_strings.h.
// SPDX-License-Identifier: MIT
#include "text/stop_strings.h"

#include <utility>

namespace terrace {

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

StopMatcher::Step StopMatcher::push(std::string_view text) {
    if (stopped_) return {};
    held_.append(text);
    return scan(Input::more_may_come);
}

StopMatcher::Step StopMatcher::flush() {
    if (stopped_) return {};
    return scan(Input::ended);
}

StopMatcher::Step StopMatcher::scan(Input input) {
    bool first_byte[256] = {};
    for (const std::string& stop : stops_)
        if (!stop.empty()) first_byte[static_cast<unsigned char>(stop[0])] = true;

    Step step;
    size_t start = 0;
    for (; start < held_.size(); ++start) {
        if (!first_byte[static_cast<unsigned char>(held_[start])]) continue;
        const std::string_view rest = std::string_view(held_).substr(start);
        bool possible = false;  // a string of higher priority may still complete here
        for (size_t i = 0; i < stops_.size(); ++i) {
            const std::string& stop = stops_[i];
            if (stop.empty()) continue;
            if (rest.starts_with(stop)) {
                if (possible) break;
                step.emit = held_.substr(0, start);
                step.stopped = true;
                step.which = static_cast<int>(i);
                stopped_ = true;
                held_.clear();
                return step;
            }
            if (input == Input::more_may_come && std::string_view(stop).starts_with(rest))
                possible = true;
        }
        if (possible) break;
    }
    step.emit = held_.substr(0, start);
    held_.erase(0, start);
    return step;
}

}  // namespace terrace
