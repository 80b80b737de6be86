// Replaces every global operator new of a test binary by one that counts, so that a test can say that
// an operation did not allocate, on whatever thread. Linked only into the binaries that ask for it, in
// a file of its own: inlined into a test, the compiler takes malloc and delete for a mismatch.
// SPDX-License-Identifier: MIT
#include <atomic>
#include <cstdlib>
#include <new>

#include "support/support.h"

namespace {
std::atomic<long> g_allocations{0};

void* counted(std::size_t bytes, std::size_t align) {
    g_allocations.fetch_add(1, std::memory_order_relaxed);
    void* p = align > alignof(std::max_align_t)
                  ? std::aligned_alloc(align, (bytes + align - 1) / align * align)
                  : std::malloc(bytes ? bytes : 1);
    return p;
}
}  // namespace

void* operator new(std::size_t n) {
    if (void* p = counted(n, 1)) return p;
    throw std::bad_alloc();
}
void* operator new[](std::size_t n) {
    return operator new(n);
}
void* operator new(std::size_t n, const std::nothrow_t&) noexcept {
    return counted(n, 1);
}
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept {
    return counted(n, 1);
}
void* operator new(std::size_t n, std::align_val_t a) {
    if (void* p = counted(n, static_cast<std::size_t>(a))) return p;
    throw std::bad_alloc();
}
void* operator new(std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
    return counted(n, static_cast<std::size_t>(a));
}
void operator delete(void* p) noexcept {
    std::free(p);
}
void operator delete[](void* p) noexcept {
    std::free(p);
}
void operator delete(void* p, std::size_t) noexcept {
    std::free(p);
}
void operator delete[](void* p, std::size_t) noexcept {
    std::free(p);
}
void operator delete(void* p, std::align_val_t) noexcept {
    std::free(p);
}
void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
    std::free(p);
}
void operator delete(void* p, const std::nothrow_t&) noexcept {
    std::free(p);
}
void operator delete(void* p, std::align_val_t, const std::nothrow_t&) noexcept {
    std::free(p);
}

namespace terrace::test {
int64_t allocations_so_far() {
    return g_allocations.load(std::memory_order_relaxed);
}
}  // namespace terrace::test
