// Results and errors, used by every folder. Any thread. Expected failures (bad file, bad request,
// over budget) are a Result that must be checked; a broken promise between functions is a
// TERRACE_CHECK and stops the process. Exceptions never cross a folder.
//
// An error message says what, where, need, have and remedy, in one line.
// SPDX-License-Identifier: MIT
#pragma once
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace terrace {

enum class Code {
    invalid_argument,  // the caller's request is wrong
    not_found,         // a file, tensor or id does not exist
    unsupported,       // understood, but not something we do
    corrupt_data,      // a file contradicts itself or its format
    out_of_memory,     // a budget or the machine has not enough
    io,                // the operating system refused
    cancelled,
    internal,  // a defect of Terrace
};

std::string_view to_string(Code code);

struct Error {
    Code code = Code::internal;
    std::string message;

    // The same error, with where it happened put in front: "model.safetensors: ...".
    [[nodiscard]] Error in(std::string_view where) const&;
};

template <class T>
class [[nodiscard]] Result : public tl::expected<T, Error> {
  public:
    using tl::expected<T, Error>::expected;
    Result(Error error) : tl::expected<T, Error>(tl::unexpect, std::move(error)) {}  // NOLINT
};

using Status = Result<void>;

[[noreturn]] void check_failed(const char* expr, const char* file, int line,
                               std::string_view detail = {});

}  // namespace terrace

#define TERRACE_CHECK(expr) ((expr) ? void(0) : ::terrace::check_failed(#expr, __FILE__, __LINE__))

#if defined(TERRACE_DCHECKS)
#define TERRACE_DCHECK(expr) TERRACE_CHECK(expr)
#else
#define TERRACE_DCHECK(expr) void(0)
#endif

#define TERRACE_CONCAT2(a, b) a##b
#define TERRACE_CONCAT(a, b) TERRACE_CONCAT2(a, b)

// TERRACE_TRY(status_or_result): return its error, or go on.
#define TERRACE_TRY(expr)                                                            \
    do {                                                                             \
        auto&& terrace_try_ = (expr);                                                \
        if (!terrace_try_) return ::terrace::Error(std::move(terrace_try_).error()); \
    } while (0)

// TERRACE_ASSIGN(auto x, result): return its error, or bind its value. Several statements: brace it
// behind an if.
#define TERRACE_ASSIGN(lhs, expr) TERRACE_ASSIGN_(TERRACE_CONCAT(terrace_r_, __LINE__), lhs, expr)
#define TERRACE_ASSIGN_(tmp, lhs, expr)                        \
    auto tmp = (expr);                                         \
    if (!tmp) return ::terrace::Error(std::move(tmp).error()); \
    lhs = std::move(tmp).value()
