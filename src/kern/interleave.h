// SPDX-License-Identifier: MIT
// W vectors, component i of VN sequences in vector i, and W VN numbers that lie sequence by sequence: zip makes the
// latter of two vectors, unzip is the way back; four are two rounds of two.
#ifndef DPCRI_INTERLEAVE_H
#define DPCRI_INTERLEAVE_H

#include "kern/simd.h"

#define DPCRI_LOW_16 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define DPCRI_HIGH_16 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#define DPCRI_EVEN_16 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define DPCRI_ODD_16 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#define DPCRI_LOW_8 0, 8, 1, 9, 2, 10, 3, 11
#define DPCRI_HIGH_8 4, 12, 5, 13, 6, 14, 7, 15
#define DPCRI_EVEN_8 0, 2, 4, 6, 8, 10, 12, 14
#define DPCRI_ODD_8 1, 3, 5, 7, 9, 11, 13, 15
#define DPCRI_LOW_4 0, 4, 1, 5
#define DPCRI_HIGH_4 2, 6, 3, 7
#define DPCRI_EVEN_4 0, 2, 4, 6
#define DPCRI_ODD_4 1, 3, 5, 7
#define DPCRI_LOW_2 0, 2
#define DPCRI_HIGH_2 1, 3
#define DPCRI_EVEN_2 0, 2
#define DPCRI_ODD_2 1, 3

#define DPCRI_TWICE_LOW_16 0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7, 6, 7
#define DPCRI_TWICE_HIGH_16 8, 9, 8, 9, 10, 11, 10, 11, 12, 13, 12, 13, 14, 15, 14, 15
#define DPCRI_TWICE_LOW_8 0, 1, 0, 1, 2, 3, 2, 3
#define DPCRI_TWICE_HIGH_8 4, 5, 4, 5, 6, 7, 6, 7
#define DPCRI_TWICE_LOW_4 0, 1, 0, 1
#define DPCRI_TWICE_HIGH_4 2, 3, 2, 3
#define DPCRI_TWICE_LOW_2 0, 1
#define DPCRI_TWICE_HIGH_2 0, 1

// low: a0 b0 a1 b1 ...  high: the upper halves  even: a0 a2 ... b0 b2 ...  odd: a1 a3 ... b1 b3 ...
// twice, pairs: a0 a1 a0 a1 a2 a3 a2 a3 ...
#define DPCRI_INTERLEAVES(v, n)                                                                                     \
    DPCRI_INLINE void v##_zip(v a, v b, v *low, v *high) {                                                          \
        *low = __builtin_shufflevector(a, b, DPCRI_LOW_##n), *high = __builtin_shufflevector(a, b, DPCRI_HIGH_##n); \
    }                                                                                                               \
    DPCRI_INLINE void v##_unzip(v a, v b, v *even, v *odd) {                                                        \
        *even = __builtin_shufflevector(a, b, DPCRI_EVEN_##n), *odd = __builtin_shufflevector(a, b, DPCRI_ODD_##n); \
    }                                                                                                               \
    DPCRI_INLINE void v##_twice(v a, v *low, v *high) {                                                             \
        *low = __builtin_shufflevector(a, a, DPCRI_TWICE_LOW_##n);                                                  \
        *high = __builtin_shufflevector(a, a, DPCRI_TWICE_HIGH_##n);                                                \
    }
#if DPCRI_VECTOR_BYTES == 64
DPCRI_INTERLEAVES(vf, 16)
DPCRI_INTERLEAVES(vd, 8)
#elif DPCRI_VECTOR_BYTES == 32
DPCRI_INTERLEAVES(vf, 8)
DPCRI_INTERLEAVES(vd, 4)
#else
DPCRI_INTERLEAVES(vf, 4)
DPCRI_INTERLEAVES(vd, 2)
#endif
#undef DPCRI_INTERLEAVES

#endif
