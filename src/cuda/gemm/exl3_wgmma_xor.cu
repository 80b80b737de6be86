// mcg and 3inst products, all widths and shapes. Only mul1 has half-integer widths.
// SPDX-License-Identifier: MIT
#include "cuda/gemm/exl3_wgmma.cuh"

namespace terrace::cuda {

Status product_wgmma_xor(const Launch& l, const Product& p, ProductShape shape) {
    return launch_wgmma_values<XorValues>(l, p, shape);
}

}  // namespace terrace::cuda
