// SPDX-License-Identifier: MIT
// The linear kernels of one instruction set level: linear.inc for float and for double. Included once by one source a
// level.
#ifndef DPCRI_LINEAR_LEVEL_H
#define DPCRI_LINEAR_LEVEL_H

#include <string.h>

#include "kern/beside.h"
#include "kern/interleave.h"
#include "kern/kern.h"
#include "kern/simd.h"
#include "kern/squares.h"
#include "kern/transpose.h"
#include "rt/core.h"

// PAIR_h of n lanes: sums within groups of 2h lanes of a and b; group g of the result holds a's sums in its lower h
// lanes and b's in its upper h. log2 n such steps turn n vectors into the vector of their horizontal sums.
#define PAIR_16_8(a, b)                                                                      \
    (__builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) + \
     __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31))
#define PAIR_16_4(a, b)                                                                        \
    (__builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27) + \
     __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31))
#define PAIR_16_2(a, b)                                                                        \
    (__builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) + \
     __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31))
#define PAIR_16_1(a, b)                                                                         \
    (__builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30) + \
     __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31))
#define PAIR_8_4(a, b)                                         \
    (__builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11) + \
     __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15))
#define PAIR_8_2(a, b)                                         \
    (__builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13) + \
     __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15))
#define PAIR_8_1(a, b)                                          \
    (__builtin_shufflevector(a, b, 0, 8, 2, 10, 4, 12, 6, 14) + \
     __builtin_shufflevector(a, b, 1, 9, 3, 11, 5, 13, 7, 15))
#define PAIR_4_2(a, b) (__builtin_shufflevector(a, b, 0, 1, 4, 5) + __builtin_shufflevector(a, b, 2, 3, 6, 7))
#define PAIR_4_1(a, b) (__builtin_shufflevector(a, b, 0, 4, 2, 6) + __builtin_shufflevector(a, b, 1, 5, 3, 7))
#define PAIR_2_1(a, b) (__builtin_shufflevector(a, b, 0, 2) + __builtin_shufflevector(a, b, 1, 3))

// Components 0..3 of half a vector of eight that holds them twice.
#define HALF_OF_8(x, from) \
    __builtin_shufflevector(x, x, from, from + 1, from + 2, from + 3, from, from + 1, from + 2, from + 3)
#define COMPONENT_OF_HALF(x, i) __builtin_shufflevector(x, x, i, i, i, i, i + 4, i + 4, i + 4, i + 4)

typedef float eight_f32 __attribute__((vector_size(32)));
typedef double eight_f64 __attribute__((vector_size(64)));
#if DPCRI_VECTOR_BYTES == 64
typedef float half_f32 __attribute__((vector_size(32)));
typedef double half_f64 __attribute__((vector_size(32)));
#endif

// Fully unrolled where the bound is a constant: arrays indexed inside stay in registers.
#if defined(__clang__)
#define DPCRI_UNROLL
#else
#define DPCRI_UNROLL _Pragma("GCC unroll 16")
#endif

// Elementwise kernels see rows, and steps, that lie one after another as one long row. Bits do not change.
static inline bool lies_on(const void *base, int64_t stride, int64_t w) { return !base || stride == w; }

static inline dpcri_span merge_rows(dpcri_span s, dpcr_structure kind) {
    if (s.rows > 1 && kind != DPCR_SCALAR && lies_on(kind == DPCR_DIAGONAL ? s.a : NULL, s.a_row, s.w) &&
        lies_on(s.x, s.x_row, s.w) && lies_on(s.r, s.r_row, s.w) && s.y_row == s.w) {
        s.w *= s.rows;
        s.rows = 1;
    }
    return s;
}

static inline dpcri_span merge_steps(dpcri_span s, dpcr_structure kind) {
    if (s.rows == 1 && s.n > 1 && kind != DPCR_SCALAR && lies_on(kind == DPCR_DIAGONAL ? s.a : NULL, s.a_step, s.w) &&
        lies_on(s.x, s.x_step, s.w) && lies_on(s.r, s.r_step, s.w) && s.y_step == s.w) {
        s.w *= s.n;
        s.n = 1;
    }
    return s;
}

#define T float
#define V vf
#define S(name) sf_##name
#define VV(name) vf_##name
#define K(name) name##_f32
#define LANES (DPCRI_VECTOR_BYTES / 4)
#define SQUARES (DPCRI_VECTOR_BYTES == 64)
#define EIGHTS (DPCRI_VECTOR_BYTES >= 32)
#define EIGHT_FMA(a, b, c) ((eight_f32)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define EIGHT_OF(low, high) \
    ((eight_f32)_mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(high), 1))
#define HALF_FMA(a, b, c) ((half_f32)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define HALF_PAIR(h, a, b) PAIR_8_##h(a, b)
#if DPCRI_VECTOR_BYTES == 64
#define PAIR(h, a, b) PAIR_16_##h(a, b)
#elif DPCRI_VECTOR_BYTES == 32
#define PAIR(h, a, b) PAIR_8_##h(a, b)
#else
#define PAIR(h, a, b) PAIR_4_##h(a, b)
#endif
#include "kern/linear.inc"

#define T double
#define V vd
#define S(name) sd_##name
#define VV(name) vd_##name
#define K(name) name##_f64
#define LANES (DPCRI_VECTOR_BYTES / 8)
#define SQUARES 0
#define EIGHTS (DPCRI_VECTOR_BYTES == 64)
#define EIGHT_FMA(a, b, c) VV(fma)(a, b, c)
#define EIGHT_OF(low, high) \
    ((eight_f64)_mm512_insertf64x4(_mm512_castpd256_pd512(_mm256_loadu_pd(low)), _mm256_loadu_pd(high), 1))
#define HALF_FMA(a, b, c) ((half_f64)_mm256_fmadd_pd((__m256d)(a), (__m256d)(b), (__m256d)(c)))
#define HALF_PAIR(h, a, b) PAIR_4_##h(a, b)
#if DPCRI_VECTOR_BYTES == 64
#define PAIR(h, a, b) PAIR_8_##h(a, b)
#elif DPCRI_VECTOR_BYTES == 32
#define PAIR(h, a, b) PAIR_4_##h(a, b)
#else
#define PAIR(h, a, b) PAIR_2_##h(a, b)
#endif
#include "kern/linear.inc"

const dpcri_kernels DPCRI_LEVEL(dpcri_kernels_f32) = {.table = {
#define DPCRI_KERNEL(operation, structure, function) [DPCRI_##operation][DPCR_##structure] = function##_f32,
#include "kern/kern.def"
#undef DPCRI_KERNEL
                                                      }};
const dpcri_kernels DPCRI_LEVEL(dpcri_kernels_f64) = {.table = {
#define DPCRI_KERNEL(operation, structure, function) [DPCRI_##operation][DPCR_##structure] = function##_f64,
#include "kern/kern.def"
#undef DPCRI_KERNEL
                                                      }};

#endif
