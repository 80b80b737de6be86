// Every byte has a role. A Budget holds the limit of one memory space and what each role has taken;
// a Reservation is the charge of one allocation and gives it back when it dies. Engine thread only.
//
// The same roles appear in the memory plan (before) and in the memory report (after); a test holds
// the two together.
// SPDX-License-Identifier: MIT
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/device.h"

namespace terrace {

enum class Role : uint8_t {
    weights,       // every tensor but routed experts and the n-gram table
    experts,       // routed experts
    ngram,         // n-gram table, its cache and its gathered rows
    kv,            // K and V planes
    kv_mirror,     // copies of hot K/V blocks in the device's memory, and their tables
    raw_index,     // raw index keys
    pooled_index,  // pooled index keys
    state,         // recurrent state: GDN, convolutions, n-gram injection
    activations,   // buffers of one step
    kv_arena,      // staged pages of K and V, and what a staged step keeps
    staging,       // pinned host memory on its way to or from a device
    workspace,     // a backend's scratch
    logits,
};
constexpr int kRoles = 13;
std::string_view to_string(Role role);

class Budget;

class Reservation {
  public:
    Reservation() = default;
    Reservation(Reservation&& o) noexcept { swap(o); }
    Reservation& operator=(Reservation&& o) noexcept {
        Reservation moved(std::move(o));
        swap(moved);
        return *this;
    }
    ~Reservation();
    size_t bytes() const { return bytes_; }

  private:
    friend class Budget;
    Reservation(Budget* budget, Role role, size_t bytes)
        : budget_(budget), role_(role), bytes_(bytes) {}
    void swap(Reservation& o) noexcept {
        std::swap(budget_, o.budget_);
        std::swap(role_, o.role_);
        std::swap(bytes_, o.bytes_);
    }
    Budget* budget_ = nullptr;
    Role role_ = Role::weights;
    size_t bytes_ = 0;
};

class Budget {
  public:
    // limit_bytes 0 = no limit. `name` appears in errors: "host memory".
    Budget(std::string name, size_t limit_bytes) : name_(std::move(name)), limit_(limit_bytes) {}
    Budget(const Budget&) = delete;
    Budget& operator=(const Budget&) = delete;

    // out_of_memory names what, need, have and the largest roles.
    Result<Reservation> reserve(Role role, size_t bytes, std::string_view what);
    size_t used() const;
    size_t used(Role role) const { return used_[static_cast<size_t>(role)]; }
    size_t limit() const { return limit_; }

  private:
    friend class Reservation;
    std::string largest_roles() const;  // " (taken: weights 12, K/V planes 7)", or empty

    std::string name_;
    size_t limit_;
    std::array<size_t, kRoles> used_{};
};

// A buffer and its charge.
struct ChargedBuffer {
    Reservation charge;
    Buffer buffer;
};
Result<ChargedBuffer> allocate_charged(Device& device, Budget& budget, Role role, size_t bytes,
                                       MemSpace space, Fill fill, std::string_view what);

}  // namespace terrace
