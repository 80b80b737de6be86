// mul1 products, all widths and shapes.
// SPDX-License-Identifier: MIT
#include "cuda/gemm/exl3_wgmma.cuh"

namespace terrace::cuda {

Status product_wgmma_mul1(const Launch& l, const Product& p, ProductShape shape) {
    return launch_wgmma_values<Mul1Values>(l, p, shape);
}

}  // namespace terrace::cuda
