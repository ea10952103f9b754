// SPDX-License-Identifier: MIT
// Squares of LANES x LANES elements between LANES rows in memory, `stride` elements apart, and LANES vectors: scatter
// writes element i of every vector to row i, one vector after the other; gather is the way back, for half of the
// vectors (v_PART of them), with row 0 in a place of its own. Rows are loaded by half vectors, two rows a vector, which
// saves half of the shuffles that cross 128 bits (the scarce ones: two a cycle, the unpacking ones four).
//
// AVX-512 only: gather whole, all vectors from whole rows, a load for two and no more shuffles, for who has 16
// registers to spare; scatter writes whole rows, and where told to stream, past the caches, to addresses of whole
// vectors.
#ifndef DPCRI_TRANSPOSE_H
#define DPCRI_TRANSPOSE_H

#include "kern/simd.h"

enum { VF_PART = DPCRI_VECTOR_BYTES == 16 ? VF : VF / 2, VD_PART = DPCRI_VECTOR_BYTES == 16 ? VD : VD / 2 };

// Two rows in one vector: half a vector from each place.
#if DPCRI_VECTOR_BYTES == 64
DPCRI_INLINE vd vd_pair(const void *low, const void *high) {
    return (vd)_mm512_insertf64x4(_mm512_castpd256_pd512(_mm256_loadu_pd(low)), _mm256_loadu_pd(high), 1);
}
DPCRI_INLINE void vd_unpair(void *low, void *high, vd v) {
    _mm256_storeu_pd(low, _mm512_castpd512_pd256((__m512d)v));
    _mm256_storeu_pd(high, _mm512_extractf64x4_pd((__m512d)v, 1));
}
#elif DPCRI_VECTOR_BYTES == 32
DPCRI_INLINE vd vd_pair(const void *low, const void *high) {
    return (vd)_mm256_insertf128_pd(_mm256_castpd128_pd256(_mm_loadu_pd(low)), _mm_loadu_pd(high), 1);
}
DPCRI_INLINE void vd_unpair(void *low, void *high, vd v) {
    _mm_storeu_pd(low, _mm256_castpd256_pd128((__m256d)v));
    _mm_storeu_pd(high, _mm256_extractf128_pd((__m256d)v, 1));
}
#endif

// Even and odd elements of pairs: a0 b0 a2 b2 ..., a1 b1 a3 b3 ...
DPCRI_INLINE vd vd_even(vd a, vd b) {
#if DPCRI_VECTOR_BYTES == 64
    return __builtin_shufflevector(a, b, 0, 8, 2, 10, 4, 12, 6, 14);
#elif DPCRI_VECTOR_BYTES == 32
    return __builtin_shufflevector(a, b, 0, 4, 2, 6);
#else
    return __builtin_shufflevector(a, b, 0, 2);
#endif
}

DPCRI_INLINE vd vd_odd(vd a, vd b) {
#if DPCRI_VECTOR_BYTES == 64
    return __builtin_shufflevector(a, b, 1, 9, 3, 11, 5, 13, 7, 15);
#elif DPCRI_VECTOR_BYTES == 32
    return __builtin_shufflevector(a, b, 1, 5, 3, 7);
#else
    return __builtin_shufflevector(a, b, 1, 3);
#endif
}

// Of each 128 bits the lower, the upper halves interleaved: a0 b0 a1 b1, a2 b2 a3 b3.
DPCRI_INLINE vf vf_low(vf a, vf b) {
#if DPCRI_VECTOR_BYTES == 64
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
#elif DPCRI_VECTOR_BYTES == 32
    return __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13);
#else
    return __builtin_shufflevector(a, b, 0, 4, 1, 5);
#endif
}

DPCRI_INLINE vf vf_high(vf a, vf b) {
#if DPCRI_VECTOR_BYTES == 64
    return __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
#elif DPCRI_VECTOR_BYTES == 32
    return __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
#else
    return __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
}

// The squares inside 128 bits: 4 vectors of float, 2 of double.
DPCRI_INLINE void vf_square(vd *r) {
    const vd a = (vd)vf_low((vf)r[0], (vf)r[1]), b = (vd)vf_high((vf)r[0], (vf)r[1]);
    const vd c = (vd)vf_low((vf)r[2], (vf)r[3]), d = (vd)vf_high((vf)r[2], (vf)r[3]);
    r[0] = vd_even(a, c);
    r[1] = vd_odd(a, c);
    r[2] = vd_even(b, d);
    r[3] = vd_odd(b, d);
}

DPCRI_INLINE void vd_square(vd *r) {
    const vd a = r[0], b = r[1];
    r[0] = vd_even(a, b);
    r[1] = vd_odd(a, b);
}

// Of 4 vectors the 4 x 4 squares of each four numbers.
DPCRI_INLINE void vf_fours_square(vd *r) { vf_square(r); }

#if DPCRI_VECTOR_BYTES > 16
DPCRI_INLINE void vd_fours_square(vd *r) {
    const vd a = vd_even(r[0], r[1]), b = vd_odd(r[0], r[1]), c = vd_even(r[2], r[3]), d = vd_odd(r[2], r[3]);
#if DPCRI_VECTOR_BYTES == 64
#define FIRST_TWO(x, y) __builtin_shufflevector(x, y, 0, 1, 8, 9, 4, 5, 12, 13)
#define LAST_TWO(x, y) __builtin_shufflevector(x, y, 2, 3, 10, 11, 6, 7, 14, 15)
#else
#define FIRST_TWO(x, y) __builtin_shufflevector(x, y, 0, 1, 4, 5)
#define LAST_TWO(x, y) __builtin_shufflevector(x, y, 2, 3, 6, 7)
#endif
    r[0] = FIRST_TWO(a, c);
    r[1] = FIRST_TWO(b, d);
    r[2] = LAST_TWO(a, c);
    r[3] = LAST_TWO(b, d);
#undef FIRST_TWO
#undef LAST_TWO
}
#endif

#if DPCRI_VECTOR_BYTES == 64
// Quarters 0 and 2, 1 and 3, of both.
DPCRI_INLINE vd vd_quarters_02(vd a, vd b) { return __builtin_shufflevector(a, b, 0, 1, 4, 5, 8, 9, 12, 13); }
DPCRI_INLINE vd vd_quarters_13(vd a, vd b) { return __builtin_shufflevector(a, b, 2, 3, 6, 7, 10, 11, 14, 15); }

// Their lower and upper halves, quarters interleaved.
DPCRI_INLINE vd vd_quarters_low(vd a, vd b) { return __builtin_shufflevector(a, b, 0, 1, 8, 9, 2, 3, 10, 11); }
DPCRI_INLINE vd vd_quarters_high(vd a, vd b) { return __builtin_shufflevector(a, b, 4, 5, 12, 13, 6, 7, 14, 15); }

// turn: squares inside 128 bits, then the square of 4 x 4 such blocks.
#define DPCRI_TRANSPOSES(v, type, Q)                                                                                  \
    DPCRI_INLINE void v##_turn(const v *in, v *out) {                                                                 \
        vd t[4 * Q];                                                                                                  \
        DPCRI_UNROLL_ALL                                                                                              \
        for (int g = 0; g < 4; g++) {                                                                                 \
            DPCRI_UNROLL_ALL                                                                                          \
            for (int r = g * Q; r < g * Q + Q; r++) t[r] = (vd)in[r];                                                 \
            v##_square(t + g * Q);                                                                                    \
        }                                                                                                             \
        DPCRI_UNROLL_ALL                                                                                              \
        for (int j = 0; j < Q; j++) {                                                                                 \
            const vd a = vd_quarters_02(t[j], t[Q + j]), b = vd_quarters_02(t[2 * Q + j], t[3 * Q + j]);              \
            const vd c = vd_quarters_13(t[j], t[Q + j]), d = vd_quarters_13(t[2 * Q + j], t[3 * Q + j]);              \
            out[j] = (v)vd_quarters_02(a, b);                                                                         \
            out[Q + j] = (v)vd_quarters_02(c, d);                                                                     \
            out[2 * Q + j] = (v)vd_quarters_13(a, b);                                                                 \
            out[3 * Q + j] = (v)vd_quarters_13(c, d);                                                                 \
        }                                                                                                             \
    }                                                                                                                 \
    DPCRI_INLINE void v##_gather(const type *first, const type *from, const int stride, int64_t at, const bool whole, \
                                 v *out) {                                                                            \
        if (whole) {                                                                                                  \
            v rows[4 * Q];                                                                                            \
            rows[0] = v##_load(first + at);                                                                           \
            DPCRI_UNROLL_ALL                                                                                          \
            for (int r = 1; r < 4 * Q; r++) rows[r] = v##_load(from + r * stride + at);                               \
            v##_turn(rows, out);                                                                                      \
            return;                                                                                                   \
        }                                                                                                             \
        vd t[2 * Q];                                                                                                  \
        DPCRI_UNROLL_ALL                                                                                              \
        for (int g = 0; g < 2; g++) {                                                                                 \
            DPCRI_UNROLL_ALL                                                                                          \
            for (int r = 0; r < Q; r++)                                                                               \
                t[g * Q + r] = vd_pair((g + r == 0 ? first : from + (2 * Q * g + r) * stride) + at,                   \
                                       from + (2 * Q * g + Q + r) * stride + at);                                     \
            v##_square(t + g * Q);                                                                                    \
        }                                                                                                             \
        DPCRI_UNROLL_ALL                                                                                              \
        for (int j = 0; j < Q; j++) {                                                                                 \
            out[j] = (v)vd_quarters_02(t[j], t[Q + j]);                                                               \
            out[Q + j] = (v)vd_quarters_13(t[j], t[Q + j]);                                                           \
        }                                                                                                             \
    }                                                                                                                 \
    DPCRI_INLINE void v##_scatter(type *to, const int stride, int64_t at, const v *in, bool stream) {                 \
        v rows[4 * Q];                                                                                                \
        v##_turn(in, rows);                                                                                           \
        if (stream) {                                                                                                 \
            DPCRI_UNROLL_ALL                                                                                          \
            for (int r = 0; r < 4 * Q; r++)                                                                           \
                _mm512_stream_si512((__m512i *)(void *)(to + r * stride + at), (__m512i)rows[r]);                     \
        } else {                                                                                                      \
            DPCRI_UNROLL_ALL                                                                                          \
            for (int r = 0; r < 4 * Q; r++) v##_store(to + r * stride + at, rows[r]);                                 \
        }                                                                                                             \
    }
#elif DPCRI_VECTOR_BYTES == 32
#define DPCRI_TRANSPOSES(v, type, Q)                                                                                  \
    DPCRI_INLINE void v##_gather(const type *first, const type *from, const int stride, int64_t at, const bool whole, \
                                 v *out) {                                                                            \
        (void)whole;                                                                                                  \
        vd t[Q];                                                                                                      \
        DPCRI_UNROLL_ALL                                                                                              \
        for (int r = 0; r < Q; r++)                                                                                   \
            t[r] = vd_pair((r == 0 ? first : from + r * stride) + at, from + (Q + r) * stride + at);                  \
        v##_square(t);                                                                                                \
        DPCRI_UNROLL_ALL                                                                                              \
        for (int j = 0; j < Q; j++) out[j] = (v)t[j];                                                                 \
    }                                                                                                                 \
    DPCRI_INLINE void v##_scatter(type *to, const int stride, int64_t at, const v *in, bool stream) {                 \
        (void)stream;                                                                                                 \
        DPCRI_UNROLL_ALL                                                                                              \
        for (int h = 0; h < 2 * Q; h += Q) {                                                                          \
            vd t[Q];                                                                                                  \
            DPCRI_UNROLL_ALL                                                                                          \
            for (int j = 0; j < Q; j++) t[j] = (vd)in[h + j];                                                         \
            v##_square(t);                                                                                            \
            DPCRI_UNROLL_ALL                                                                                          \
            for (int r = 0; r < Q; r++) vd_unpair(to + r * stride + at + h, to + (Q + r) * stride + at + h, t[r]);    \
        }                                                                                                             \
    }
#else
#define DPCRI_TRANSPOSES(v, type, Q)                                                                                  \
    DPCRI_INLINE void v##_gather(const type *first, const type *from, const int stride, int64_t at, const bool whole, \
                                 v *out) {                                                                            \
        (void)whole;                                                                                                  \
        vd t[Q];                                                                                                      \
        DPCRI_UNROLL_ALL                                                                                              \
        for (int r = 0; r < Q; r++) t[r] = (vd)v##_load((r == 0 ? first : from + r * stride) + at);                   \
        v##_square(t);                                                                                                \
        DPCRI_UNROLL_ALL                                                                                              \
        for (int j = 0; j < Q; j++) out[j] = (v)t[j];                                                                 \
    }                                                                                                                 \
    DPCRI_INLINE void v##_scatter(type *to, const int stride, int64_t at, const v *in, bool stream) {                 \
        (void)stream;                                                                                                 \
        vd t[Q];                                                                                                      \
        DPCRI_UNROLL_ALL                                                                                              \
        for (int j = 0; j < Q; j++) t[j] = (vd)in[j];                                                                 \
        v##_square(t);                                                                                                \
        DPCRI_UNROLL_ALL                                                                                              \
        for (int r = 0; r < Q; r++) v##_store(to + r * stride + at, (v)t[r]);                                         \
    }
#endif
DPCRI_TRANSPOSES(vf, float, 4)
DPCRI_TRANSPOSES(vd, double, 2)
#undef DPCRI_TRANSPOSES

#endif
