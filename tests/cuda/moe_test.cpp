// Router and experts of decoded rows on the GPU against the reference.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include "gpu.h"

namespace terrace::test {
namespace {

class CudaRoute : public GpuTest {};

void route_conforms(const RouteCase& c, const std::string& what) {
    const RouteResult expected = run_route(reference(), c), got = run_route(*gpu(), c);
    EXPECT_EQ(got.ids, expected.ids) << what;
    EXPECT_LT(nmse(got.weights, expected.weights), 1e-11) << what;
}
float mixed_logit(int row, int expert) {
    return 4.0f * case_numbers(9, 1, static_cast<uint64_t>(row * 4096 + expert), 1)[0];
}

TEST_F(CudaRoute, LargestFirstForAnyCounts) {
    for (const int experts : {1, 5, 16, 33, 512, 700})
        for (const int k : {1, 2, 10, 40})
            for (const Renormalise r : {Renormalise::yes, Renormalise::no})
                if (k <= experts) {
                    RouteCase c{7, experts, k, r, mixed_logit};
                    route_conforms(c, fmt::format("{} of {}", k, experts));
                }
}

TEST_F(CudaRoute, TiesGoToTheLowerExpert) {
    RouteCase c{3, 512, 10, Renormalise::yes,
                [](int row, int e) { return static_cast<float>((e * 7 + row) % 5); }};
    route_conforms(c, "five values");
    c.logit = [](int, int) { return -2.5f; };
    route_conforms(c, "all equal");
}

TEST_F(CudaRoute, SubnormalAndInfiniteLogitsKeepTheirOrder) {
    RouteCase c{1, 40, 6, Renormalise::no, [](int, int e) {
                    return e == 17 ? -INFINITY : e % 3 ? static_cast<float>(e) * 1e-40f : -0.5f;
                }};
    route_conforms(c, "subnormals");
}

}  // namespace
}  // namespace terrace::test
