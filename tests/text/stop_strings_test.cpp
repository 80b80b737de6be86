// Stop strings over chunk borders, against a plain search in the whole text.
// SPDX-License-Identifier: MIT
#include "text/stop_strings.h"

#include "support/support.h"

namespace terrace::test {
namespace {

struct Outcome {
    std::string text;
    bool stopped = false;
    int which = -1;
    bool operator==(const Outcome&) const = default;
};

void PrintTo(const Outcome& o, std::ostream* out) {
    *out << '"' << o.text << "\" stopped " << o.stopped << " by " << o.which;
}

// Earliest start wins, then the order of the list.
Outcome search(const std::string& text, const std::vector<std::string>& stops) {
    for (size_t at = 0; at < text.size(); ++at)
        for (size_t i = 0; i < stops.size(); ++i)
            if (!stops[i].empty() && std::string_view(text).substr(at).starts_with(stops[i]))
                return {text.substr(0, at), true, static_cast<int>(i)};
    return {text};
}

Outcome run(const std::vector<std::string>& chunks, const std::vector<std::string>& stops) {
    StopMatcher m(stops);
    Outcome o;
    const auto take = [&](const StopMatcher::Step& step) {
        o.text += step.emit;
        if (step.stopped) {
            o.stopped = true;
            o.which = step.which;
        }
    };
    for (const auto& c : chunks)
        take(m.push(c));
    take(m.flush());
    return o;
}

TEST(StopMatcher, FindsAStringThatSpansThreeChunks) {
    EXPECT_EQ(run({"one E", "N", "D two"}, {"END"}), (Outcome{"one ", true, 0}));
}

TEST(StopMatcher, HoldsBackOnlyWhatCouldBeAStop) {
    StopMatcher m({"\n\nUser:"});
    EXPECT_EQ(m.push("Hello\n").emit, "Hello");
    EXPECT_EQ(m.held_bytes(), 1u);
    EXPECT_EQ(m.push("world").emit, "\nworld");
    EXPECT_EQ(m.held_bytes(), 0u);
    EXPECT_EQ(m.push("\n\nUse").emit, "");
    EXPECT_EQ(m.flush().emit, "\n\nUse");
}

TEST(StopMatcher, EmitsNothingAfterTheStop) {
    StopMatcher m({"x"});
    const auto step = m.push("axb");
    EXPECT_EQ(step.emit, "a");
    EXPECT_TRUE(step.stopped);
    EXPECT_EQ(m.push("c").emit, "");
    EXPECT_EQ(m.flush().emit, "");
    EXPECT_TRUE(m.stopped());
}

TEST(StopMatcher, EarlierStartBeatsEarlierEnd) {
    EXPECT_EQ(run({"a", "b", "c", "d"}, {"bc", "abcd"}), (Outcome{"", true, 1}));
    EXPECT_EQ(run({"a", "b", "c", "x"}, {"bc", "abcd"}), (Outcome{"a", true, 0}));
}

TEST(StopMatcher, ListOrderBreaksTies) {
    EXPECT_EQ(run({"ab"}, {"a", "ab"}), (Outcome{"", true, 0}));
    EXPECT_EQ(run({"a", "b"}, {"ab", "a"}), (Outcome{"", true, 0}));
    EXPECT_EQ(run({"a", "c"}, {"ab", "a"}), (Outcome{"", true, 1}));
    EXPECT_EQ(run({"a"}, {"ab", "a"}), (Outcome{"", true, 1}));
}

TEST(StopMatcher, WithoutStringsEverythingPasses) {
    EXPECT_EQ(run({"a", "", "b"}, {}), (Outcome{"ab"}));
    EXPECT_EQ(run({"a", "b"}, {""}), (Outcome{"ab"}));
}

TEST(StopMatcher, AnyCutOfTheTextGivesTheSameAnswer) {
    Random random(3);
    int stopped = 0;
    for (int round = 0; round < 5000; ++round) {
        const auto letters = [&](int64_t n) {
            std::string s;
            for (int64_t i = 0; i < n; ++i)
                s += static_cast<char>('a' + random.below(2));
            return s;
        };
        std::vector<std::string> stops;
        for (int64_t i = random.below(4); i > 0; --i)
            stops.push_back(letters(random.below(6)));
        const std::string text = letters(random.below(30));
        std::vector<std::string> chunks;
        for (size_t at = 0; at < text.size();) {
            const auto n = static_cast<size_t>(random.below(5));
            chunks.push_back(text.substr(at, n));
            at += n;
        }
        const Outcome want = search(text, stops);
        stopped += want.stopped;
        ASSERT_EQ(run(chunks, stops), want) << text;
    }
    EXPECT_GT(stopped, 1000);
}

}  // namespace
}  // namespace terrace::test
