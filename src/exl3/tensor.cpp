// SPDX-License-Identifier: MIT
#include "exl3/tensor.h"

#include <fmt/format.h>

namespace terrace {

std::string_view to_string(Codebook codebook) {
    switch (codebook) {
        case Codebook::three_inst:
            return "3inst";
        case Codebook::mcg:
            return "mcg";
        case Codebook::mul1:
            return "mul1";
    }
    return "unknown codebook";
}

Status check(const Exl3Tensor& t, std::string_view name) {
    if (t.in <= 0 || t.out <= 0 || t.in % 128 != 0 || t.out % 128 != 0)
        return Error{
            Code::corrupt_data,
            fmt::format("{}: an EXL3 linear has padded sizes, positive multiples of 128, but "
                        "its trellis gives in {} and out {}",
                        name, t.in, t.out)};
    if (!legal_n16(t.n16, t.codebook))
        return Error{
            Code::corrupt_data,
            fmt::format("{}: trellis has {} 16-bit words per tile; {} allows 16*K for K in "
                        "1..8, and mul1 also 16*K + 8 for K in 1..7",
                        name, t.n16, to_string(t.codebook))};
    if (!t.trellis || !t.suh || !t.svh)
        return Error{Code::corrupt_data,
                     fmt::format("{}: needs trellis, suh and svh; {} is missing", name,
                                 !t.trellis ? "trellis"
                                 : !t.suh   ? "suh"
                                            : "svh")};
    if (reinterpret_cast<uintptr_t>(t.trellis) % 2 || reinterpret_cast<uintptr_t>(t.suh) % 2 ||
        reinterpret_cast<uintptr_t>(t.svh) % 2)
        return Error{Code::corrupt_data,
                     fmt::format("{}: data starts at an odd address; copy it to an aligned buffer "
                                 "before use",
                                 name)};
    return {};
}

}  // namespace terrace
