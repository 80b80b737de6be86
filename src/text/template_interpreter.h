// Walks a parsed template over a context. Internal to src/text. One call, one thread.
// SPDX-License-Identifier: MIT
#pragma once
#include <string>
#include <string_view>

#include "text/chat_template.h"
#include "text/template_ast.h"

namespace terrace::jinja {

// Throws Failure.
std::string interpret(const Body& body, std::string_view where, const Value& context,
                      const RenderLimits& limits);

}  // namespace terrace::jinja
