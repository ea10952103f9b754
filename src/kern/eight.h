// SPDX-License-Identifier: MIT
// Eight floats in one vector, at every level: the state of a step of width 8.
#ifndef DPCRI_EIGHT_H
#define DPCRI_EIGHT_H

#include "kern/simd.h"

typedef float f8 __attribute__((vector_size(32), aligned(32)));

#if defined(__FMA__)
DPCRI_INLINE f8 f8_fma(f8 a, f8 b, f8 c) { return (f8)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
#else
DPCRI_INLINE f8 f8_fma(f8 a, f8 b, f8 c) { return a * b + c; }
#endif
DPCRI_INLINE f8 f8_load(const float *p) {
    f8 x;
    memcpy(&x, p, sizeof x);
    return x;
}
DPCRI_INLINE void f8_store(float *p, f8 x) { memcpy(p, &x, sizeof x); }

#endif
