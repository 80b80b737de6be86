// SPDX-License-Identifier: MIT
#include "base/error.h"

#include <cstdio>
#include <cstdlib>

namespace terrace {

std::string_view to_string(Code code) {
    switch (code) {
        case Code::invalid_argument:
            return "invalid argument";
        case Code::not_found:
            return "not found";
        case Code::unsupported:
            return "unsupported";
        case Code::corrupt_data:
            return "corrupt data";
        case Code::out_of_memory:
            return "out of memory";
        case Code::io:
            return "i/o";
        case Code::cancelled:
            return "cancelled";
        case Code::internal:
            return "internal";
    }
    return "unknown";
}

Error Error::in(std::string_view where) const& {
    return Error{code, std::string(where) + ": " + message};
}

void check_failed(const char* expr, const char* file, int line, std::string_view detail) {
    std::fprintf(stderr, "terrace: broken promise at %s:%d: %s %.*s\n", file, line, expr,
                 static_cast<int>(detail.size()), detail.data());
    std::abort();
}

}  // namespace terrace
