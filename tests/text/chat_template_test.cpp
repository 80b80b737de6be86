// Chat templates against Jinja2 itself (vectors: tools/text_vectors), and how they fail.
// SPDX-License-Identifier: MIT
#include "text/chat_template.h"

#include <gmock/gmock.h>

#include <thread>

#include "text_data.h"

namespace terrace::test {
namespace {

using testing::HasSubstr;

Result<std::string> render(std::string_view source, const Value& context,
                           const RenderLimits& limits = {}) {
    const auto t = ChatTemplate::parse(source, "t");
    if (!t) return t.error();
    return t->render(context, limits);
}

std::string error_of(std::string_view source, const Value& context = Value::dict(),
                     const RenderLimits& limits = {}) {
    const auto r = render(source, context, limits);
    return r ? "rendered: " + *r : r.error().message;
}

Value json(std::string_view text) {
    return must(Value::from_json(text));
}

TEST(ChatTemplate, SnippetsRenderAsJinja2RendersThem) {
    const auto vectors = read_test_json("text/templates.json");
    const Value context = json(vectors.at("context").dump());
    ASSERT_GE(vectors.at("snippets").size(), 120u);
    int failures = 0;
    for (const auto& c : vectors.at("snippets")) {
        const auto source = c.at("template").get<std::string>();
        const auto have = render(source, context);
        if (c.at("want").is_null()) {
            EXPECT_FALSE(have.has_value()) << source << "\nrendered: " << *have;
            ++failures;
        } else if (have.has_value()) {
            EXPECT_EQ(*have, c.at("want").get<std::string>()) << source;
        } else {
            ADD_FAILURE() << source << "\n" << have.error().message;
        }
    }
    EXPECT_GE(failures, 25);
}

void expect_chats_equal(std::string_view source, const char* name) {
    const auto vectors = read_test_json("text/templates.json");
    const ChatTemplate t = must(ChatTemplate::parse(source, name));
    ASSERT_GE(vectors.at("chats").size(), 20u);
    for (const auto& chat : vectors.at("chats")) {
        const auto have = t.render(json(chat.at("context").dump()));
        const auto& want = chat.at(name);
        if (want.is_null()) {
            EXPECT_FALSE(have.has_value()) << chat.at("name");
        } else {
            ASSERT_OK(have);
            EXPECT_EQ(*have, want.get<std::string>()) << chat.at("name");
        }
    }
}

TEST(ChatTemplate, Qwen3ConversationsRenderAsJinja2RendersThem) {
    expect_chats_equal(read_test_file("text/qwen3-chat-template.jinja"), "qwen3");
}

TEST(ChatTemplate, DemoModelConversationsRenderAsJinja2RendersThem) {
    expect_chats_equal(must(load_chat_template(TERRACE_SOURCE_DIR "/models/demo")), "demo");
}

TEST(ChatTemplate, MessagesFromStructsEqualMessagesFromJson) {
    ChatMessage call{.role = "assistant", .content = "c"};
    call.reasoning_content = "why";
    call.tool_calls = json(R"([{"name": "f", "arguments": {}}])");
    ChatMessage answer{.role = "tool", .content = "4"};
    answer.tool_call_id = "id";
    answer.name = "f";
    EXPECT_TRUE(equal(messages_value({call, answer}), json(R"([
        {"role": "assistant", "content": "c", "reasoning_content": "why",
         "tool_calls": [{"name": "f", "arguments": {}}]},
        {"role": "tool", "content": "4", "name": "f", "tool_call_id": "id"}])")));
}

TEST(ChatTemplate, ErrorsNameTheTemplateTheLineAndTheValue) {
    EXPECT_THAT(error_of("a\nb\n{{ messages[0].role.x.y }}", json(R"({"messages": []})")),
                testing::AllOf(HasSubstr("t: line 3"), HasSubstr("'messages[0]' is undefined")));
    EXPECT_THAT(error_of("\n{% if x %}"), HasSubstr("endif"));
    EXPECT_THAT(error_of("{% include 'x' %}"), HasSubstr("'include' is not supported"));
    EXPECT_THAT(error_of("{{ raise_exception('Roles must alternate') }}"),
                HasSubstr("refuses: Roles must alternate"));
    EXPECT_THAT(error_of("{{ [1].append(2) }}"), HasSubstr("would change a list"));
    EXPECT_THAT(error_of("{{ 'a' + 1 }}"), HasSubstr("'str' + 'int'"));
    EXPECT_THAT(error_of("{{ 'x' | shout }}"), HasSubstr("no filter named 'shout'"));
    EXPECT_THAT(error_of("\xFF"), HasSubstr("not UTF-8"));
}

TEST(ChatTemplate, ClockFunctionFollowsItsFormat) {
    const std::string year = must(render("{{ strftime_now('%Y') }}", Value::dict()));
    ASSERT_EQ(year.size(), 4u);
    EXPECT_EQ(year.substr(0, 2), "20");
    EXPECT_THAT(must(render("{{ strftime_now('%d %b') }}", Value::dict())),
                testing::MatchesRegex("[0-3][0-9] [A-Z][a-z][a-z]"));
}

TEST(ChatTemplate, NothingRunsForever) {
    const RenderLimits small{.max_output = 10'000, .max_steps = 100'000, .max_bytes = 1'000'000};
    const auto fails = [&](std::string_view source, std::string_view why) {
        EXPECT_THAT(error_of(source, Value::dict(), small), HasSubstr(std::string(why))) << source;
    };
    fails("{% for i in range(1000000000) %}x{% endfor %}", "steps");
    fails("{% for i in range(30000) %}{{ i }}{% endfor %}", "exceeds 10000 bytes");
    fails(
        "{% for a in range(300) %}{% for b in range(300) %}{% for c in range(300) %}"
        "{% endfor %}{% endfor %}{% endfor %}",
        "steps");
    fails("{{ 'x' * 1000000000 }}", "too long");
    fails(
        "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}"
        "{% endfor %}",
        "a string of");
    fails(
        "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}"
        "{% endfor %}",
        "steps");
    fails("{{ [0] * 1000000000000 }}", "steps");
    fails("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "too deeply");
    fails("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "too deeply");
    fails(
        "{% set ns = namespace(x=[]) %}{% for i in range(500) %}{% set ns.x = [ns.x] %}"
        "{% endfor %}",
        "nested too deeply");
    // Each turn doubles what printing would cost, with hardly any memory.
    fails(
        "{% set ns = namespace(x=[]) %}{% for i in range(80) %}{% set ns.x = [ns.x, ns.x] %}"
        "{% endfor %}{{ ns.x }}",
        "steps");
    fails(
        "{% set ns = namespace(x=[]) %}{% for i in range(80) %}{% set ns.x = [ns.x, ns.x] %}"
        "{% endfor %}{{ ns.x == [ns.x[0], ns.x[1]] }}",
        "steps");
    fails("{{ 'a' | indent(1000000) | indent(1000) | center(100000000) }}", "a string of");
    fails("{{ 'aaaaaaaaaaaaaaaa' | replace('a', 'a' * 9000) }}", "too long");
}

TEST(ChatTemplate, DeepSourcesAreRefused) {
    const auto repeat = [](std::string_view s, int n) {
        std::string out;
        for (int i = 0; i < n; ++i)
            out += s;
        return out;
    };
    for (const std::string& source :
         {"{{ " + repeat("(", 5000) + "1" + repeat(")", 5000) + " }}",
          "{{ " + repeat("[", 5000) + repeat("]", 5000) + " }}",
          "{{ 1" + repeat(" + 1", 5000) + " }}", "{{ " + repeat("-", 5000) + "1 }}",
          "{{ " + repeat("not ", 5000) + "1 }}", "{{ x" + repeat(".a", 5000) + " }}",
          "{{ x" + repeat("|upper", 5000) + " }}",
          repeat("{% if 1 %}", 5000) + repeat("{% endif %}", 5000),
          repeat("{% for i in x %}", 5000), "{{ 1" + repeat(" if 1 else 1", 5000) + " }}",
          "{{ x" + repeat("(1)", 5000) + " }}",
          "{% set " + repeat("(", 5000) + "x" + repeat(")", 5000) + " = 1 %}"})
        EXPECT_THAT(error_of(source), HasSubstr("nested too deeply")) << source.substr(0, 30);
    // Long is not deep.
    EXPECT_OK(render("{{ 1" + repeat(" + 1", 100) + " }}", Value::dict()));
    EXPECT_OK(render(repeat("{% if x %}{% elif y %}{% endif %}{{ 1 }}", 3000), Value::dict()));
}

TEST(ChatTemplate, NamespacesThatHoldThemselvesAreFreed) {
    // The leak checker of the sanitizer build sees it if not.
    EXPECT_OK(
        render("{% set a = namespace() %}{% set b = namespace(a=a) %}{% set a.b = b %}"
               "{% set a.self = [a] %}{{ a.self|length }}",
               Value::dict()));
}

TEST(ChatTemplate, CallerOutsideItsBlockIsAnError) {
    EXPECT_THAT(
        error_of("{% set ns = namespace() %}{% macro m() %}{% set ns.c = caller %}{% endmacro %}"
                 "{% call m() %}x{% endcall %}{{ ns.c() }}"),
        HasSubstr("caller() outside"));
    EXPECT_THAT(
        error_of("{% set ns = namespace() %}{% for i in [1] recursive %}{% set ns.l = loop %}"
                 "{% endfor %}{{ ns.l([2]) }}"),
        HasSubstr("running"));
}

TEST(ChatTemplate, ThreadsShareOneTemplate) {
    const ChatTemplate t =
        must(ChatTemplate::parse(read_test_file("text/qwen3-chat-template.jinja"), "qwen3"));
    const Value context = json(R"({"messages": [{"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Ho"}], "add_generation_prompt": true})");
    const std::string want = must(t.render(context));
    std::vector<std::thread> threads;
    std::vector<int> good(4);
    for (int& g : good)
        threads.emplace_back([&] {
            for (int i = 0; i < 200; ++i)
                g += must(t.render(context)) == want;
        });
    for (auto& thread : threads)
        thread.join();
    EXPECT_THAT(good, testing::Each(200));
}

TEST(ChatTemplateFiles, ReadsTheDemoModel) {
    const auto files = must(read_chat_template_files(TERRACE_SOURCE_DIR "/models/demo"));
    ASSERT_EQ(files.templates.size(), 1u);
    EXPECT_EQ(files.templates[0].name, "default");
    EXPECT_EQ(files.eos_token, "<|im_end|>");
    EXPECT_EQ(files.bos_token, std::nullopt);
    Value context = Value::dict();
    files.add_tokens_to(context);
    EXPECT_EQ(context.find("eos_token")->as_string(), "<|im_end|>");
    EXPECT_EQ(context.find("bos_token"), nullptr);
}

TEST(ChatTemplateFiles, JinjaFileWinsAndNamedTemplatesAreListed) {
    const TempDir dir;
    write_file(dir.path() / "tokenizer_config.json",
               R"({"bos_token": {"content": "<s>"}, "chat_template": [
                   {"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]})");
    auto files = must(read_chat_template_files(dir.path()));
    ASSERT_EQ(files.templates.size(), 2u);
    EXPECT_EQ(files.templates[0].source, "D");
    EXPECT_EQ(files.find("tool_use")->source, "T");
    EXPECT_EQ(files.find("rag"), nullptr);
    EXPECT_EQ(files.bos_token, "<s>");
    write_file(dir.path() / "chat_template.jinja", "J");
    EXPECT_EQ(must(load_chat_template(dir.path())), "J");
}

TEST(ChatTemplateFiles, FolderWithoutTemplateSaysSo) {
    const TempDir dir;
    EXPECT_TRUE(must(read_chat_template_files(dir.path())).templates.empty());
    const auto r = load_chat_template(dir.path());
    ASSERT_FALSE(r.has_value());
    EXPECT_EQ(r.error().code, Code::not_found);
    write_file(dir.path() / "tokenizer_config.json", R"({"chat_template": 5})");
    EXPECT_FALSE(read_chat_template_files(dir.path()).has_value());
    write_file(dir.path() / "tokenizer_config.json", "{");
    EXPECT_FALSE(read_chat_template_files(dir.path()).has_value());
}

}  // namespace
}  // namespace terrace::test
