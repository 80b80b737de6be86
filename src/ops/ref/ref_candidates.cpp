// Reference: a row's largest logits and its mass. The CPU backend uses the same loop.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>

#include "ops/ref/ref_ops.h"

namespace terrace {

void sample_candidates_row(const SampleCandidatesArgs& a, int32_t row) {
    const float* logits = a.logits.device_pointer() + int64_t{row} * a.vocab;
    float* values = a.values.device_pointer() + int64_t{row} * a.k;
    int32_t* ids = a.ids.device_pointer() + int64_t{row} * a.k;
    int32_t n = 0;
    for (int32_t i = 0; i < a.vocab; ++i) {
        const float v = logits[i];
        if (!(v > -INFINITY) || (n == a.k && !(v > values[n - 1]))) continue;
        // Behind its equals, which have lower ids; the last one falls out of a full list.
        const auto at = std::upper_bound(values, values + n, v, std::greater<>()) - values;
        n = std::min(n + 1, a.k);
        std::copy_backward(values + at, values + n - 1, values + n);
        std::copy_backward(ids + at, ids + n - 1, ids + n);
        values[at] = v;
        ids[at] = i;
    }
    std::fill(values + n, values + a.k, -INFINITY);
    std::fill(ids + n, ids + a.k, -1);
    const double scale = a.inv_temperature.empty()
                             ? 1.0
                             : static_cast<double>(a.inv_temperature.device_pointer()[row]);
    double sum = 0;
    for (int32_t i = 0; n > 0 && i < a.vocab; ++i)
        if (logits[i] > -INFINITY)
            sum +=
                std::exp((static_cast<double>(logits[i]) - static_cast<double>(values[0])) * scale);
    a.log_sum.device_pointer()[row] = static_cast<float>(std::log(sum));
}

namespace ref {

Status ReferenceOps::sample_candidates(Stream&, const SampleCandidatesArgs& a) {
    for (int32_t r = 0; r < a.rows; ++r)
        sample_candidates_row(a, r);
    return {};
}

}  // namespace ref
}  // namespace terrace
