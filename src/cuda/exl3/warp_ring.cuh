// A warp's private stream of equally long, equally spaced pieces of global memory through a ring in
// shared memory: bulk copies issued by one lane, one mbarrier per slot, no barrier of the block.
// Pieces are at least some hundred bytes, so that few requests keep memory busy: with eight warps
// and 4 slots of 1.5 KiB a block has 48 KiB on the way.
// Addresses and lengths are multiples of 16. Memory read this way must be immutable weights when
// the stream starts before pdl_wait().
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>

namespace terrace::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

class WarpRing {
  public:
    // n pieces of `bytes` from `from` on, `step` bytes apart. slots: [n_slots][bytes] of this warp;
    // barriers: [n_slots] of this warp. Every lane calls it.
    __device__ __forceinline__ WarpRing(const std::byte* from, uint32_t step, int n,
                                        std::byte* slots, uint64_t* barriers, int n_slots,
                                        int bytes)
        : next_(from),
          step_(step),
          left_(n),
          slots_(slots),
          barriers_(shared_address(barriers)),
          n_slots_(n_slots),
          bytes_(bytes) {
        if (leader()) {
            for (int i = 0; i < n_slots_; ++i)
                asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barriers_ + 8 * i)
                             : "memory");
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            for (int i = 0; i < n_slots_; ++i)
                issue(i);
        }
        __syncwarp();
    }

    // Waits for the next piece and returns it; valid until release().
    __device__ __forceinline__ const uint32_t* acquire() {
        asm volatile(
            "{\n.reg .pred p;\n"
            "wait_%=:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
            "@!p bra wait_%=;\n}\n" ::"r"(barriers_ + 8 * slot_),
            "r"(phase_)
            : "memory");
        return reinterpret_cast<const uint32_t*>(slots_ + slot_ * bytes_);
    }
    // Every lane has read what it needs: the slot is refilled.
    __device__ __forceinline__ void release() {
        __syncwarp();
        if (leader()) issue(slot_);
        if (++slot_ == n_slots_) slot_ = 0, phase_ ^= 1;
    }

  private:
    __device__ __forceinline__ static bool leader() { return (threadIdx.x & 31) == 0; }
    __device__ __forceinline__ void issue(
        int slot) {  // the leader's copies of next_ and left_ count
        if (left_ <= 0) return;
        --left_;
        const uint32_t barrier = barriers_ + 8 * slot;
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                     "r"(bytes_)
                     : "memory");
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
            "[%3];" ::"r"(shared_address(slots_ + slot * bytes_)),
            "l"(next_), "r"(bytes_), "r"(barrier)
            : "memory");
        next_ += step_;
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
