// Chat templates: the Jinja subset that model repositories ship, rendered the way transformers does
// (trim_blocks, lstrip_blocks, loop controls, `generation` tags, `tojson` without HTML escapes,
// raise_exception, strftime_now; values cannot be changed except through namespace()).
//
// A parsed template is immutable; render may be called by any number of threads at once. Any
// template and any context end within the limits: a mistake in either is an error with a line
// number, never a crash or a hang.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/template_value.h"

namespace terrace {

struct RenderLimits {
    size_t max_output = 64u << 20;    // bytes of the result and of any string on the way
    uint64_t max_steps = 50'000'000;  // expressions, loop turns, list elements
    uint64_t max_bytes = 2ull << 30;  // bytes of all strings made on the way
    int max_call_depth = 40;          // macros and recursive loops inside each other
};

class ChatTemplate {
  public:
    // `where` names the source in errors. At most 1 MiB.
    static Result<ChatTemplate> parse(std::string_view source, std::string_view where);

    ChatTemplate(ChatTemplate&&) noexcept;
    ChatTemplate& operator=(ChatTemplate&&) noexcept;
    ~ChatTemplate();

    // `context` is a dictionary: messages, tools, add_generation_prompt, bos_token ...
    // An exception raised by the template itself is Code::invalid_argument with its message.
    Result<std::string> render(const Value& context, const RenderLimits& limits = {}) const;

  private:
    struct Impl;
    explicit ChatTemplate(std::unique_ptr<const Impl> impl);
    std::unique_ptr<const Impl> impl_;
};

// One turn of a conversation, for callers that do not pass request JSON through.
struct ChatMessage {
    std::string role;  // "system", "user", "assistant", "tool"
    std::string content;
    std::optional<std::string> reasoning_content = {};
    std::optional<std::string> name = {};
    std::optional<std::string> tool_call_id = {};
    Value tool_calls = {};  // list as in the OpenAI schema, or none

    Value value() const;  // absent members are left out
};

Value messages_value(const std::vector<ChatMessage>& messages);

// What a model folder says about prompts.
struct ChatTemplateFiles {
    struct Named {
        std::string name;  // "default", "tool_use", ...
        std::string source;
    };
    std::vector<Named> templates;  // the one to use by default first
    // Text of special tokens, as templates expect them in the context; absent when null.
    std::optional<std::string> bos_token;
    std::optional<std::string> eos_token;
    std::optional<std::string> pad_token;
    std::optional<std::string> unk_token;

    const Named* find(std::string_view name) const;
    // Adds bos_token and so on to a context that has them not.
    void add_tokens_to(Value& context) const;
};

// chat_template.jinja (and additional_chat_templates/*.jinja), chat_template.json, or
// tokenizer_config.json's chat_template, string or list of named ones. No template at all is not an
// error: `templates` is empty.
Result<ChatTemplateFiles> read_chat_template_files(const std::filesystem::path& dir);

// The source of the default template. Error when the folder has none.
Result<std::string> load_chat_template(const std::filesystem::path& dir);

}  // namespace terrace
