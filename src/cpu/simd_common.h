// What the two vector headers share: the inline attribute and the rules for files compiled with
// instruction sets that the machine may lack.
//
// Such a file (isa_*.cpp) includes only <immintrin.h>, <cstdint>, <cstring>, <cstddef> and our own
// headers whose functions are forced inline or sit in the file's own namespace. An inline function
// shared with ordinary code (std::max, f16_to_f32) could be the copy that the linker keeps, and
// would then crash an older machine that never asked for a wide kernel.
//
// TERRACE_ISA is the namespace of the file being compiled: avx2, avx512 or avx512vbmi.
// SPDX-License-Identifier: MIT
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#define TERRACE_INLINE static inline __attribute__((always_inline))
