// What is decided on the host for each class of GPU: which code runs, what is slower and said so, and
// launches within the device's shared memory. Needs no GPU, but for the driver's own choice.
// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "cuda/cuda_backend.h"
#include "cuda/device/code.h"
#include "cuda/device/cuda_device.h"
#include "cuda/device/notes.h"
#include "cuda/linear/plan.h"
#include "cuda/moe/moe_plan.h"
#include "device_classes.h"
#include "gpu.h"
#include "ops/args.h"

namespace terrace::test {
namespace {

using cuda::code_for;
using cuda::DeviceInfo;

TEST(DeviceCode, MachineCodeOfTheMajorVersionIsTakenBeforePtx) {
    EXPECT_EQ(code_for("80-real,86-real", 86).arch, 86);
    EXPECT_EQ(code_for("80-real,86-real", 89).arch, 86);
    EXPECT_EQ(code_for("80-real,89-virtual", 89).arch, 80);
    EXPECT_EQ(code_for("80-virtual", 86).arch, 80);
    EXPECT_EQ(code_for("80-virtual", 90).arch, 80);
    EXPECT_EQ(code_for("80,86-virtual", 120).arch, 86);
    EXPECT_EQ(code_for("80-real,120", 121).arch, 120);
}

TEST(DeviceCode, NothingRunsOnAnEarlierDeviceOrInAnotherMajorVersion) {
    EXPECT_EQ(code_for("86-real", 80).arch, 0);
    EXPECT_EQ(code_for("86-virtual", 80).arch, 0);
    EXPECT_EQ(code_for("80-real", 90).arch, 0);
    EXPECT_EQ(code_for("", 90).arch, 0);
    EXPECT_TRUE(cuda::has_code_for("80-real,120", 130));
    EXPECT_FALSE(cuda::has_code_for("80-real,90a-real", 120));
}

TEST(DeviceCode, CodeOfAnExactArchitectureRunsThereOnly) {
    EXPECT_TRUE(code_for("80-virtual,90a-real", 90).exact);
    EXPECT_EQ(code_for("90a-real", 100).arch, 0);
    EXPECT_EQ(code_for("90a-virtual", 100).arch, 0);
    EXPECT_EQ(code_for("80-virtual,90a-real", 100).arch, 80);
}

TEST(DeviceCode, FeaturesAreThoseOfTheCodeAndNotOfTheDevice) {
    const auto old = cuda::features_of(code_for("80-virtual", 90));
    EXPECT_FALSE(old.overlap || old.wgmma || old.large);
    EXPECT_EQ(old.most_cluster, 1);
    const auto own = cuda::features_of(code_for("80-real,90a-real", 90));
    EXPECT_TRUE(own.overlap && own.wgmma && own.large);
    EXPECT_EQ(own.most_cluster, 16);
    const auto blackwell = cuda::features_of(code_for("120-real", 120));
    EXPECT_TRUE(blackwell.overlap);
    EXPECT_FALSE(blackwell.wgmma || blackwell.large);
    EXPECT_EQ(blackwell.most_cluster, 8);
}

TEST(DeviceNotes, SayWhatIsSlowerThanTheFastestKernels) {
    for (const DeviceInfo& info : device_classes()) {
        const auto notes = cuda::notes_of(info);
        EXPECT_EQ(notes.size(), info.cc == 90 ? 0U : info.cc == 120 ? 1U : 2U) << info.name;
        for (const std::string& note : notes)
            EXPECT_NE(note.find(info.name), std::string::npos) << note;
    }
    DeviceInfo h200 = device_classes()[4];
    h200.code = cuda::features_of(code_for("80-virtual", 90));
    const auto notes = cuda::notes_of(h200);
    ASSERT_EQ(notes.size(), 3U);
    EXPECT_NE(notes[0].find("code for 8.0"), std::string::npos) << notes[0];
    EXPECT_NE(notes[0].find("TERRACE_CUDA_ARCHITECTURES=90a"), std::string::npos) << notes[0];
}

// Static memory of the few-row kernels, at most.
constexpr size_t kStatic = 2048;

TEST(DevicePlans, FewRowProductsFitEveryDevice) {
    for (const DeviceInfo& info : device_classes()) {
        const cuda::GemvRoom room = cuda::gemv_room(info.smem_per_sm);
        for (const int n16 : {16, 40, 64, 96, 128})
            for (const int in : {128, 640, 2560, 6144, 10240, 15872})
                for (const int groups : {1, 5, 20, 96, 1940})
                    for (const int rows : {1, 4, 8, 16}) {
                        const auto plan =
                            cuda::plan_gemv(in, groups, 16000, info.sms, info.code.most_cluster,
                                            cuda::Cut::by_device);
                        EXPECT_LE(plan.meet == cuda::Meet::cluster ? plan.parts : 1,
                                  info.code.most_cluster);
                        const int tiles = rows > 8 ? 4 : 8, shares = cuda::kGemvWarps * tiles / 8;
                        const int part = (in / 16 + plan.parts - 1) / plan.parts;
                        const auto shared = cuda::gemv_shared(
                            room, (part + 2 * shares - 1) / (2 * shares), tiles * n16 * 4,
                            cuda::warp_sum_bytes(8, shares, rows), plan.parts, rows);
                        EXPECT_GE(shared.slots, 2);
                        EXPECT_LE(shared.bytes + kStatic, info.smem_per_block)
                            << info.name << " bits/16 " << n16 << " in " << in << " rows " << rows
                            << " groups " << groups;
                    }
    }
}

TEST(DevicePlans, TransformsOfLongRowsFitEveryDevicePieceByPiece) {
    for (const DeviceInfo& info : device_classes())
        for (const int in : {128, 2560, 24448, 40064, 120064}) {
            const int chunk = cuda::input_chunk(in, info.smem_per_block);
            EXPECT_GE(chunk, 1);
            EXPECT_LE(chunk, in / 128);
            EXPECT_LE(size_t{512} * static_cast<size_t>(chunk) + kStatic, info.smem_per_block);
        }
}

TEST(DevicePlans, FourBitWeightsLeaveTwoBlocksPerMultiprocessor) {
    for (const DeviceInfo& info : device_classes()) {
        const cuda::GemvRoom room = cuda::gemv_room(info.smem_per_sm);
        const auto shared =
            cuda::gemv_shared(room, 10, 8 * 64 * 4, cuda::warp_sum_bytes(8, 8, 1), 4, 1);
        EXPECT_LE(2 * (shared.bytes + kStatic + 1024), info.smem_per_sm) << info.name;
    }
}

TEST(DevicePlans, PartsOfTheWidestProductMeetInMemoryRowByRowAtLeast) {
    for (const DeviceInfo& info : device_classes())
        for (const int groups : {20, 96, 1940}) {
            const auto plan = cuda::plan_gemv(2560, groups, 16000, info.sms, info.code.most_cluster,
                                              cuda::Cut::by_inputs);
            EXPECT_EQ(plan.parts, 4);  // sums of floats: the same on every device
            const size_t bytes =
                cuda::part_sum_bytes(info.sms, info.code.most_cluster, 128 * groups);
            const int rows = cuda::rows_per_launch(plan, groups, bytes);
            EXPECT_GE(rows, 1) << info.name;
            if (plan.meet == cuda::Meet::cluster) {
                EXPECT_EQ(rows, kDecodeRows);
            } else {
                EXPECT_LE(cuda::kPartSumBytes * static_cast<size_t>(groups * plan.parts * rows),
                          bytes);
            }
        }
}

TEST(DevicePlans, ExpertsOfTheRealModelFitEveryDeviceInOneLaunchOfEightRows) {
    for (const DeviceInfo& info : device_classes())
        for (const int n16 : {48, 64, 128})
            for (int rows = 1; rows <= kDecodeRows; ++rows) {
                const int teams = rows <= 2 ? 1 : rows <= 4 ? 2 : 4;
                const auto shared = cuda::moe_shared({rows, rows * 10, 160, 5, 4, teams, n16, n16},
                                                     cuda::gemv_room(info.smem_per_sm));
                EXPECT_TRUE(rows > 8 || cuda::moe_fits(shared, info.smem_per_block))
                    << info.name << " rows " << rows << ": " << shared.up_bytes << " and "
                    << shared.down_bytes;
                EXPECT_GE(shared.up_slots, 2);
                EXPECT_GE(shared.down_slots, 2);
            }
}

class LoadedCode : public GpuTest {};

TEST_F(LoadedCode, TheDriverTakesTheCodeThatPlansExpect) {
    auto device = must(make_cuda_device(0));
    const DeviceInfo& info = static_cast<cuda::CudaDevice&>(*device).info();
    EXPECT_EQ(must(cuda::loaded_code()), info.code.arch);
}

}  // namespace
}  // namespace terrace::test
