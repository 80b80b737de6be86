// A warp's private stream of equally long, equally spaced pieces of global memory through a ring in
// shared memory: bulk copies issued by one lane, one mbarrier per slot, no barrier of the block. A
// slot takes two pieces, which halves the cost of waiting and refilling. Pieces are at least some
// hundred bytes, so that few requests keep memory busy: eight warps with two slots of two 1.5 KiB
// pieces have 48 KiB on the way.
// Addresses and lengths are multiples of 16. Memory read this way must be immutable weights when
// the stream starts before pdl_wait().
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>

namespace terrace::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Brings `bytes` from `p` on into the L2 cache, 128 per thread of the block.
__device__ __forceinline__ void prefetch_l2(const void* p, int bytes) {
    const int at = static_cast<int>(threadIdx.x) * 128;
    if (at < bytes)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const std::byte*>(p) + at));
}

// A value that is the same in all lanes, in a form that lets the compiler know: what goes to the copy
// engine would else pass a loop over lanes.
template <class T>
__device__ __forceinline__ T uniform(T v) {
    return __shfl_sync(0xffffffffu, v, 0);
}
__device__ __forceinline__ int uniform_warp() {
    return uniform(static_cast<int>(threadIdx.x) >> 5);
}
__device__ __forceinline__ bool elect_lane() {
    uint32_t yes;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}\n"
                 : "=r"(yes));
    return yes != 0;
}

constexpr int kSlotPieces = 2;
// Slots that a ring fills when it is made, in front of pdl_wait(); fill() does the others. More would
// stand in the way of what ends the kernel in front and of the input (2560 x 12288, one row: 14.6 us
// with one, 15.7 with all, 17.3 with none).
constexpr int kSlotsAhead = 1;

class WarpRing {
  public:
    // n pieces of `bytes` from `from` on, `step` bytes apart. slots: [n_slots][kSlotPieces][bytes] of
    // this warp; barriers: [n_slots] of this warp. All arguments are the same in every lane.
    __device__ __forceinline__ WarpRing(const std::byte* from, uint32_t step, int n,
                                        std::byte* slots, uint64_t* barriers, int n_slots,
                                        int bytes)
        : next_(reinterpret_cast<const std::byte*>(
              uniform(reinterpret_cast<unsigned long long>(from)))),
          step_(uniform(step)),
          left_(uniform(n)),
          slots_(slots),
          barriers_(shared_address(barriers)),
          n_slots_(n_slots),
          bytes_(uniform(bytes)) {
        if (elect_lane()) {
            for (int i = 0; i < n_slots_; ++i)
                asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barriers_ + 8 * i)
                             : "memory");
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        }
        __syncwarp();
        for (int i = 0; i < kSlotsAhead; ++i)
            issue(i);
    }

    // Fills the other slots; once, before the first acquire().
    __device__ __forceinline__ void fill() {
        for (int i = kSlotsAhead; i < n_slots_; ++i)
            issue(i);
    }

    // Waits for the next kSlotPieces pieces, or those that are left; valid until release().
    __device__ __forceinline__ const uint32_t* acquire() {
        asm volatile(
            "{\n.reg .pred p;\n"
            "wait_%=:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
            "@!p bra wait_%=;\n}\n" ::"r"(barriers_ + 8 * slot_),
            "r"(phase_)
            : "memory");
        return reinterpret_cast<const uint32_t*>(slots_ + slot_ * (kSlotPieces * bytes_));
    }
    // Every lane has read what it needs: the slot is refilled.
    __device__ __forceinline__ void release() {
        __syncwarp();
        issue(slot_);
        if (++slot_ == n_slots_) slot_ = 0, phase_ ^= 1;
    }

  private:
    __device__ __forceinline__ void copy(uint32_t to, const std::byte* from, uint32_t barrier) {
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
            "[%3];" ::"r"(to),
            "l"(from), "r"(bytes_), "r"(barrier)
            : "memory");
    }
    __device__ __forceinline__ void issue(int slot) {
        static_assert(kSlotPieces == 2);
        if (left_ <= 0) return;
        if (elect_lane()) {
            const uint32_t barrier = barriers_ + 8 * slot;
            const uint32_t to = shared_address(slots_ + slot * (2 * bytes_));
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                         "r"(left_ > 1 ? 2 * bytes_ : bytes_)
                         : "memory");
            copy(to, next_, barrier);
            if (left_ > 1) copy(to + bytes_, next_ + step_, barrier);
        }
        next_ += 2 * static_cast<uint64_t>(step_);
        left_ -= 2;
    }

    const std::byte* next_;
    uint32_t step_;
    int left_;
    std::byte* slots_;
    uint32_t barriers_;
    int n_slots_;
    int bytes_;
    int slot_ = 0;
    uint32_t phase_ = 0;
};

}  // namespace terrace::cuda
