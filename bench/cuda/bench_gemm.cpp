// Tiled products: linears of the real model, its experts, its plain matrices.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cuda/device/cuda_device.h"
#include "cuda/gemm/gemm.h"
#include "gpu_bench.h"

namespace terrace::bench {
namespace {

// Scratch of the tiled family, and its launches on the bench's stream.
class Tiled {
  public:
    Tiled(Gpu& gpu, const OpsLimits& limits)
        : gpu_(gpu), info_(static_cast<cuda::CudaDevice&>(gpu.device()).info()) {
        bytes_ = cuda::gemm_scratch_bytes(info_, limits);
        scratch_ = gpu.space<std::byte>(bytes_).device_pointer();
    }
    cuda::Launch launch() const {
        return {static_cast<cuda::CudaStream&>(gpu_.stream()).handle(), &info_, scratch_, bytes_,
                nullptr};
    }

  private:
    Gpu& gpu_;
    const cuda::DeviceInfo& info_;
    std::byte* scratch_ = nullptr;
    size_t bytes_ = 0;
};

double gemm_flops(double rows, double in, double out) {
    return 2 * rows * in * out;
}

void linear(Gpu& gpu, const std::string& name, int in, int out, int n16, int rows,
            Codebook codebook = Codebook::mul1) {
    OpsLimits limits;
    limits.rows = rows;
    limits.hidden = in;
    limits.widest = std::max(in, out);
    const Tiled tiled(gpu, limits);
    const LinearWeight weight = gpu.exl3(in, out, n16, codebook);
    const int copies = static_cast<int>(
        std::clamp<size_t>((size_t{150} << 20) / weight.exl3.trellis_bytes() + 1, 1, 8));
    std::vector<LinearWeight> weights(static_cast<size_t>(copies), weight);
    for (LinearWeight& w : weights)
        w.exl3.trellis =
            reinterpret_cast<const uint16_t*>(gpu.random_bytes(w.exl3.trellis_bytes()));
    LinearArgs a;
    a.x = gpu.random_floats(static_cast<size_t>(rows) * static_cast<size_t>(in));
    a.x_stride = in;
    a.rows = rows;
    a.n_jobs = 1;
    a.jobs[0].y = gpu.space<float>(static_cast<size_t>(rows) * static_cast<size_t>(out));
    a.jobs[0].y_stride = out;
    const double us = gpu.time_us(2 * copies, [&](int i) {
        LinearArgs b = a;
        b.jobs[0].weight = &weights[static_cast<size_t>(i % copies)];
        return cuda::gemm_linear(tiled.launch(), b, 0, rows);
    });
    report(
        fmt::format("{} {}x{} K={} {} m={}", name, in, out, n16 / 16.0, to_string(codebook), rows),
        us, 0, gemm_flops(rows, in, out));
    gpu.forget();
}

void plain(Gpu& gpu, const std::string& name, int in, int out, int rows) {
    const Tiled tiled(gpu, {});
    const LinearWeight w = gpu.plain_f16(in, out);
    const auto x = gpu.plain_f16_vector(int64_t{rows} * in);
    const auto y = gpu.space<float>(static_cast<size_t>(rows) * static_cast<size_t>(out));
    const double us = gpu.time_us(8, [&](int) {
        return cuda::gemm_plain(tiled.launch(), w.plain, in, out,
                                static_cast<const __half*>(x.data), in, rows, y.device_pointer(),
                                out);
    });
    report(fmt::format("{} {}x{} f16 m={}", name, in, out, rows), us, 0, gemm_flops(rows, in, out));
    gpu.forget();
}

void experts(Gpu& gpu, int n16, int rows, int shared_n16) {
    constexpr int kExperts = 512, kHidden = 2560, kWidth = 640, kTop = 10;
    OpsLimits limits;
    limits.rows = rows;
    limits.hidden = limits.widest = kHidden;
    limits.experts = kExperts;
    limits.k = kTop;
    limits.moe_width = limits.shared_width = kWidth;
    const Tiled tiled(gpu, limits);
    // 1.3 GB of experts: far more than L2 holds, so one copy will do. Scales are shared.
    const LinearWeight in = gpu.exl3(kHidden, kWidth, n16), out = gpu.exl3(kWidth, kHidden, n16);
    std::vector<ExpertWeights> table(kExperts);
    const std::byte* bits = gpu.random_bytes(in.exl3.trellis_bytes() * 3 * kExperts);
    for (size_t e = 0; e < table.size(); ++e) {
        table[e] = {in, in, out};
        LinearWeight* all[] = {&table[e].gate, &table[e].up, &table[e].down};
        for (size_t i = 0; i < 3; ++i)
            all[i]->exl3.trellis =
                reinterpret_cast<const uint16_t*>(bits + (3 * e + i) * in.exl3.trellis_bytes());
    }
    ExpertWeights shared{gpu.exl3(kHidden, kWidth, shared_n16),
                         gpu.exl3(kHidden, kWidth, shared_n16),
                         gpu.exl3(kWidth, kHidden, shared_n16)};
    const LinearWeight gate = gpu.plain_f16(kHidden, 1);
    std::vector<int32_t> ids;
    std::vector<float> weights;
    uint64_t s = 1;
    for (int r = 0; r < rows; ++r) {
        std::vector<int32_t> chosen;
        while (chosen.size() < kTop) {
            s = s * 6364136223846793005u + 1442695040888963407u;
            const auto e = static_cast<int32_t>(s >> 55);
            if (std::find(chosen.begin(), chosen.end(), e) == chosen.end()) chosen.push_back(e);
        }
        ids.insert(ids.end(), chosen.begin(), chosen.end());
        weights.insert(weights.end(), kTop, 0.1f);
    }
    MoeArgs a;
    a.x = gpu.random_floats(static_cast<size_t>(rows) * kHidden);
    a.ids = gpu.upload(ids);
    a.weights = gpu.upload(weights);
    a.table = {table.data(), kExperts, gpu.upload(table)};
    a.y = gpu.space<float>(static_cast<size_t>(rows) * kHidden);
    a.rows = rows;
    a.hidden = kHidden;
    a.width = a.shared_width = kWidth;
    a.k = kTop;
    for (const bool with_shared : {false, true}) {
        a.shared = with_shared ? &shared : nullptr;
        a.shared_gate = with_shared ? &gate : nullptr;
        const double us =
            gpu.time_us(2, [&](int) { return cuda::moe_prefill(tiled.launch(), a, 0, rows); });
        report(
            fmt::format("experts K={}{} m={}", n16 / 16.0, with_shared ? " and shared" : "", rows),
            us, 3.0 * kExperts * static_cast<double>(in.exl3.trellis_bytes()),
            3 * gemm_flops(rows * (kTop + (with_shared ? 1 : 0)), kHidden, kWidth));
    }
    gpu.forget();
}

const Register linears("gemm", [](Gpu& gpu) {
    for (const int m : {2048, 512, 256, 128, 64})
        linear(gpu, "q_proj", 2560, 12288, 96, m);
    for (const int m : {64, 512, 2048}) {
        linear(gpu, "o_proj", 6144, 2560, 96, m);
        linear(gpu, "k_proj", 2560, 512, 96, m);
    }
    for (const int n16 : {32, 64, 72, 128})
        linear(gpu, "q_proj", 2560, 12288, n16, 2048);
    linear(gpu, "q_proj", 2560, 12288, 64, 2048, Codebook::mcg);
    linear(gpu, "q_proj", 2560, 12288, 64, 2048, Codebook::three_inst);
});
const Register moe("gemm_moe", [](Gpu& gpu) {
    for (const int m : {2048, 512, 64})
        experts(gpu, 64, m, 96);
    experts(gpu, 48, 2048, 96);
});
const Register dense("gemm_plain", [](Gpu& gpu) {
    for (const int m : {64, 512, 2048}) {
        plain(gpu, "hyper down", 10240, 320, m);
        plain(gpu, "hyper up", 320, 10240, m);
    }
    plain(gpu, "router", 2560, 512, 2048);
    plain(gpu, "gdn a", 2560, 48, 2048);
});

}  // namespace
}  // namespace terrace::bench
