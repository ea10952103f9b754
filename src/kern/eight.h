// SPDX-License-Identifier: MIT
// Eight floats in one vector, at every level: the state of a step of width 8.
#ifndef DPCRI_EIGHT_H
#define DPCRI_EIGHT_H

#include "kern/simd.h"

typedef float f8 __attribute__((vector_size(32), aligned(32)));

#define F8_HALF(x, from) __builtin_shufflevector(x, x, from, from + 1, from + 2, from + 3)
#if defined(__FMA__)
DPCRI_INLINE f8 f8_fma(f8 a, f8 b, f8 c) { return (f8)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
#elif defined(__aarch64__)
DPCRI_INLINE f8 f8_fma(f8 a, f8 b, f8 c) {
    const vf low = vf_fma(F8_HALF(a, 0), F8_HALF(b, 0), F8_HALF(c, 0));
    const vf high = vf_fma(F8_HALF(a, 4), F8_HALF(b, 4), F8_HALF(c, 4));
    return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
}
#else
DPCRI_INLINE f8 f8_fma(f8 a, f8 b, f8 c) { return a * b + c; }
#endif
#undef F8_HALF
DPCRI_INLINE f8 f8_load(const float *p) {
    f8 x;
    memcpy(&x, p, sizeof x);
    return x;
}
DPCRI_INLINE void f8_store(float *p, f8 x) { memcpy(p, &x, sizeof x); }

#endif
