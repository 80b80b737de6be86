// Tokens to tree, for the Jinja subset that chat templates use. Internal to src/text.
// SPDX-License-Identifier: MIT
#pragma once
#include <string_view>

#include "text/template_ast.h"

namespace terrace::jinja {

// Throws Failure with the line and what was expected.
Body parse(std::string_view source, std::string_view where);

}  // namespace terrace::jinja
