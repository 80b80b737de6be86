// SPDX-License-Identifier: MIT
#include "ops/traced_ops.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "support/op_cases.h"

namespace terrace::test {
namespace {

std::string slurp(const std::filesystem::path& file) {
    std::ifstream in(file);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
}

TEST(TracedOps, WritesOneSpanPerOperationAndChangesNoResult) {
    const auto file = std::filesystem::temp_directory_path() /
                      ("terrace-trace-" + std::to_string(::getpid()) + ".json");
    const HyperCase c{.rows = 2, .hidden = 48};
    Rig plain(make_host_device(), make_reference_ops());
    const auto want = run_hyper_read(plain, c);
    {
        auto device = make_host_device();
        auto ops = must(make_traced_ops(make_reference_ops(), *device, file));
        EXPECT_EQ(ops->name(), "reference");
        Rig rig(std::move(device), std::move(ops));
        EXPECT_EQ(run_hyper_read(rig, c).x, want.x);
        run_linear(rig, {.rows = 3, .in = 40, .jobs = {{.out = 24}, {.out = 8}}});
    }
    const std::string json = slurp(file);
    std::filesystem::remove(file);
    EXPECT_EQ(json.find("{\"displayTimeUnit\""), 0u) << json;
    EXPECT_NE(json.find("\"name\":\"hyper_read\""), std::string::npos) << json;
    EXPECT_NE(json.find("\"name\":\"linear 40x24 40x8\""), std::string::npos) << json;
    EXPECT_NE(json.find("\"args\":{\"rows\":3}"), std::string::npos) << json;
}

TEST(TracedOps, FileThatCannotBeWrittenIsNamed) {
    auto device = make_host_device();
    const auto refused = make_traced_ops(make_reference_ops(), *device, "/no/such/folder/t.json");
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::io);
    EXPECT_NE(refused.error().message.find("/no/such/folder/t.json"), std::string::npos);
}

}  // namespace
}  // namespace terrace::test
