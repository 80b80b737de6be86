// A warp's private stream of equally long, equally spaced pieces of global memory through a ring in
// shared memory: bulk copies issued by one lane, or copies by all lanes on GPUs that have none; one
// mbarrier per slot, no barrier of the block. A slot takes two pieces, which halves the cost of waiting and refilling. Pieces are at least some
// hundred bytes, so that few requests keep memory busy: eight warps with two slots of two 1.5 KiB
// pieces have 48 KiB on the way.
// Addresses and lengths are multiples of 16. Memory read this way must be immutable weights when
// the stream starts before pdl_wait().
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>

#include "cuda/ptx/async.cuh"

namespace terrace::cuda {

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
                mbarrier_init(barriers_ + 8 * i, kCopyEngine ? 1 : 32);
            mbarrier_init_fence();
            async_proxy_fence();
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
        mbarrier_wait(barriers_ + 8 * slot_, phase_);
        return reinterpret_cast<const uint32_t*>(slots_ + slot_ * (kSlotPieces * bytes_));
    }
    // Every lane has read what it needs: the slot is refilled.
    __device__ __forceinline__ void release() {
        __syncwarp();
        issue(slot_);
        if (++slot_ == n_slots_) slot_ = 0, phase_ ^= 1;
    }

  private:
    __device__ __forceinline__ void issue(int slot) {
        static_assert(kSlotPieces == 2);
        if (left_ <= 0) return;
        const uint32_t barrier = barriers_ + 8 * slot;
        const uint32_t to = shared_address(slots_ + slot * (2 * bytes_));
#if __CUDA_ARCH__ >= 900
        if (elect_lane()) {
            mbarrier_expect(barrier, left_ > 1 ? 2 * bytes_ : bytes_);
            bulk_load(to, next_, bytes_, barrier);
            if (left_ > 1) bulk_load(to + bytes_, next_ + step_, bytes_, barrier);
        }
#else
        for (int i = 16 * (static_cast<int>(threadIdx.x) & 31); i < bytes_; i += 512) {
            cp_async16(to + i, next_ + i);
            if (left_ > 1) cp_async16(to + bytes_ + i, next_ + step_ + i);
        }
        cp_async_arrive(barrier);
#endif
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
