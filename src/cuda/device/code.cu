// SPDX-License-Identifier: MIT
#include "cuda/device/code.h"

#include "cuda/env.h"

namespace terrace::cuda {
namespace {

__global__ void empty_kernel() {}

}  // namespace

Result<int> loaded_code() {
    cudaFuncAttributes a = {};
    TERRACE_CUDA_TRY(cudaFuncGetAttributes(&a, reinterpret_cast<const void*>(empty_kernel)));
    return a.ptxVersion;  // binaryVersion is the device's when it was compiled from PTX
}

}  // namespace terrace::cuda
