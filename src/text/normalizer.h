// Unicode normalization forms for tokenizer input. Linear time on any text: runs of combining marks
// are ordered by a stable sort, where the library's own loop is quadratic. Any thread, no state.
// Text that cannot change (all below U+0300, or only characters that take no part in decomposition
// or composition) is returned without a copy.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace terrace {

enum class Normalization : uint8_t { none, nfc, nfd, nfkc, nfkd };

// `utf8` must be valid. The result is a view of `utf8` or of `storage`.
std::string_view normalize(std::string_view utf8, Normalization form, std::string& storage);

}  // namespace terrace
