// Chat templates from hostile repositories and requests: the input is a template, a zero byte, and
// the context as JSON. Must neither crash, nor leak, nor run on.
// SPDX-License-Identifier: MIT
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "text/chat_template.h"
#include "text/utf8.h"

using namespace terrace;

namespace {

constexpr std::string_view kContext =
    R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "<think>a</think>b",
        "tool_calls": [{"function": {"name": "f", "arguments": {"x": [1, 2.5, null, "\u00e9"]}}}]}],
        "tools": [{"type": "function"}], "x": {"a": [3, 1, 2]}, "s": "Hello World", "add_generation_prompt": true})";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string_view input(reinterpret_cast<const char*>(data), size);
    const size_t zero = input.find('\0');
    const auto source = ChatTemplate::parse(input.substr(0, zero), "fuzz");
    if (!source) return 0;
    auto context = Value::from_json(zero == input.npos ? kContext : input.substr(zero + 1));
    if (!context) return 0;
    const RenderLimits limits{.max_output = 1 << 16, .max_steps = 20'000, .max_bytes = 1 << 22};
    const auto out = source->render(*context, limits);
    if (out && (out->size() > limits.max_output || first_invalid_utf8(*out))) std::abort();
    return 0;
}
