// See chat_template.h.
// SPDX-License-Identifier: MIT
#include "text/chat_template.h"

#include <fmt/format.h>

#include <algorithm>

#include "io/mapped_file.h"
#include "text/template_interpreter.h"
#include "text/template_parser.h"
#include "text/utf8.h"

namespace terrace {
namespace {

constexpr size_t kMaxSource = 1 << 20;
constexpr size_t kMaxConfig = 64u << 20;  // tokenizer_config.json lists every added token

}  // namespace

struct ChatTemplate::Impl {
    std::string where;
    jinja::Body body;
};

ChatTemplate::ChatTemplate(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::parse(std::string_view source, std::string_view where) {
    if (source.size() > kMaxSource)
        return Error{Code::invalid_argument, fmt::format("{}: a template of {} bytes, at most {}",
                                                         where, source.size(), kMaxSource)};
    if (const auto bad = first_invalid_utf8(source))
        return Error{Code::invalid_argument,
                     fmt::format("{}: not UTF-8: ill-formed at byte {}", where, *bad)};
    auto impl = std::make_unique<Impl>();
    impl->where = where;
    try {
        impl->body = jinja::parse(source, where);
    } catch (jinja::Failure& failure) {
        return std::move(failure.error);
    }
    return ChatTemplate(std::move(impl));
}

Result<std::string> ChatTemplate::render(const Value& context, const RenderLimits& limits) const {
    try {
        return jinja::interpret(impl_->body, impl_->where, context, limits);
    } catch (jinja::Failure& failure) {
        return std::move(failure.error);
    }
}

Value ChatMessage::value() const {
    Value v = Value::dict();
    v.set("role", role).set("content", content);
    if (reasoning_content) v.set("reasoning_content", *reasoning_content);
    if (name) v.set("name", *name);
    if (tool_call_id) v.set("tool_call_id", *tool_call_id);
    if (!tool_calls.is_none()) v.set("tool_calls", tool_calls);
    return v;
}

Value messages_value(const std::vector<ChatMessage>& messages) {
    std::vector<Value> list;
    list.reserve(messages.size());
    for (const ChatMessage& m : messages)
        list.push_back(m.value());
    return Value::list(std::move(list));
}

const ChatTemplateFiles::Named* ChatTemplateFiles::find(std::string_view name) const {
    for (const Named& t : templates)
        if (t.name == name) return &t;
    return nullptr;
}

void ChatTemplateFiles::add_tokens_to(Value& context) const {
    const std::pair<const char*, const std::optional<std::string>*> tokens[] = {
        {"bos_token", &bos_token},
        {"eos_token", &eos_token},
        {"pad_token", &pad_token},
        {"unk_token", &unk_token}};
    for (const auto& [name, token] : tokens)
        if (*token && !context.find(name)) context.set(name, **token);
}

Result<ChatTemplateFiles> read_chat_template_files(const std::filesystem::path& dir) {
    ChatTemplateFiles files;
    const auto exists = [](const std::filesystem::path& p) {
        std::error_code ignored;
        return std::filesystem::is_regular_file(p, ignored);
    };
    const auto add = [&](std::string name, std::string source) {
        if (!files.find(name)) files.templates.push_back({std::move(name), std::move(source)});
    };
    if (const auto path = dir / "chat_template.jinja"; exists(path)) {
        TERRACE_ASSIGN(std::string source, read_text_file(path, kMaxSource));
        add("default", std::move(source));
    }
    std::error_code ignored;
    std::vector<std::filesystem::path> more;
    for (const auto& entry :
         std::filesystem::directory_iterator(dir / "additional_chat_templates", ignored))
        if (entry.path().extension() == ".jinja") more.push_back(entry.path());
    std::sort(more.begin(), more.end());
    for (const auto& path : more) {
        TERRACE_ASSIGN(std::string source, read_text_file(path, kMaxSource));
        add(path.stem().string(), std::move(source));
    }
    for (const char* file : {"chat_template.json", "tokenizer_config.json"}) {
        const auto path = dir / file;
        if (!exists(path)) continue;
        TERRACE_ASSIGN(const std::string text, read_text_file(path, kMaxConfig));
        TERRACE_ASSIGN(const Value config, Value::from_json(text, path.string()));
        if (const Value* t = config.find("chat_template")) {
            if (t->is_string()) {
                add("default", t->as_string());
            } else if (t->is_list()) {
                for (const Value& item : t->as_list()) {
                    const Value *name = item.find("name"), *source = item.find("template");
                    if (!name || !source || !name->is_string() || !source->is_string())
                        return Error{Code::corrupt_data,
                                     fmt::format("{}: chat_template: need a string or a list of "
                                                 "{{name, template}}",
                                                 path.string())};
                    add(name->as_string(), source->as_string());
                }
            } else if (!t->is_none()) {
                return Error{Code::corrupt_data,
                             fmt::format("{}: chat_template: need a string or a list of "
                                         "{{name, template}}",
                                         path.string())};
            }
        }
        // "<|im_end|>", or {"content": "<|im_end|>", ...} in older files.
        const std::pair<const char*, std::optional<std::string>*> tokens[] = {
            {"bos_token", &files.bos_token},
            {"eos_token", &files.eos_token},
            {"pad_token", &files.pad_token},
            {"unk_token", &files.unk_token}};
        for (const auto& [name, token] : tokens) {
            const Value* v = config.find(name);
            if (v && v->is_dict()) v = v->find("content");
            if (v && v->is_string()) *token = v->as_string();
        }
    }
    const auto first = std::find_if(files.templates.begin(), files.templates.end(),
                                    [](const auto& t) { return t.name == "default"; });
    if (first != files.templates.end()) std::rotate(files.templates.begin(), first, first + 1);
    return files;
}

Result<std::string> load_chat_template(const std::filesystem::path& dir) {
    TERRACE_ASSIGN(ChatTemplateFiles files, read_chat_template_files(dir));
    if (files.templates.empty())
        return Error{Code::not_found,
                     fmt::format("{}: no chat template: need chat_template.jinja, or chat_template "
                                 "in tokenizer_config.json",
                                 dir.string())};
    return std::move(files.templates.front().source);
}

}  // namespace terrace
