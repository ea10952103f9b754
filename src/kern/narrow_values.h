// SPDX-License-Identifier: MIT
// The activations of narrow steps at the level of the compiler's flags, for a point (the loop's state) and for vectors
// of lanes:  the functions of narrow_activations.inc, name_X,  X in
//     f1 float      f4 4 floats      vf a vector of floats
//     d2 2 doubles  d4 4 doubles     vd a vector of doubles
#ifndef DPCRI_NARROW_VALUES_H
#define DPCRI_NARROW_VALUES_H

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "kern/nn_kernels.h"
#include "kern/simd.h"

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

// Everything here is inlined: no vector ever crosses a call.
#pragma GCC diagnostic ignored "-Wpsabi"

typedef float f1;
typedef float f4 __attribute__((vector_size(16), aligned(16)));
typedef int32_t f4i __attribute__((vector_size(16), aligned(16)));
typedef double d2 __attribute__((vector_size(16), aligned(16)));
typedef int64_t d2i __attribute__((vector_size(16), aligned(16)));
typedef double d4 __attribute__((vector_size(32), aligned(32)));
typedef int64_t d4i __attribute__((vector_size(32), aligned(32)));

DPCRI_INLINE f1 f1_set(float x) { return x; }
DPCRI_INLINE f4 f4_set(float x) { return x - (f4){0}; }
DPCRI_INLINE d2 d2_set(double x) { return x - (d2){0}; }
DPCRI_INLINE d4 d4_set(double x) { return x - (d4){0}; }
DPCRI_INLINE f1 f1_fma(f1 a, f1 b, f1 c) { return sf_fma(a, b, c); }
#define D4_HALF(x, from) __builtin_shufflevector(x, x, from, from + 1)
#if defined(__FMA__)
DPCRI_INLINE f4 f4_fma(f4 a, f4 b, f4 c) { return (f4)_mm_fmadd_ps((__m128)a, (__m128)b, (__m128)c); }
DPCRI_INLINE d2 d2_fma(d2 a, d2 b, d2 c) { return (d2)_mm_fmadd_pd((__m128d)a, (__m128d)b, (__m128d)c); }
DPCRI_INLINE d4 d4_fma(d4 a, d4 b, d4 c) { return (d4)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c); }
DPCRI_INLINE f4 f4_min(f4 a, f4 b) { return (f4)_mm_min_ps((__m128)a, (__m128)b); }
DPCRI_INLINE d2 d2_min(d2 a, d2 b) { return (d2)_mm_min_pd((__m128d)a, (__m128d)b); }
DPCRI_INLINE d4 d4_min(d4 a, d4 b) { return (d4)_mm256_min_pd((__m256d)a, (__m256d)b); }
DPCRI_INLINE f4 f4_max(f4 a, f4 b) { return (f4)_mm_max_ps((__m128)a, (__m128)b); }
DPCRI_INLINE d2 d2_max(d2 a, d2 b) { return (d2)_mm_max_pd((__m128d)a, (__m128d)b); }
DPCRI_INLINE d4 d4_max(d4 a, d4 b) { return (d4)_mm256_max_pd((__m256d)a, (__m256d)b); }
#else
#if defined(__aarch64__)
DPCRI_INLINE f4 f4_fma(f4 a, f4 b, f4 c) { return (f4)vf_fma((vf)a, (vf)b, (vf)c); }
DPCRI_INLINE d2 d2_fma(d2 a, d2 b, d2 c) { return (d2)vd_fma((vd)a, (vd)b, (vd)c); }
DPCRI_INLINE d4 d4_fma(d4 a, d4 b, d4 c) {
    const d2 low = d2_fma(D4_HALF(a, 0), D4_HALF(b, 0), D4_HALF(c, 0));
    const d2 high = d2_fma(D4_HALF(a, 2), D4_HALF(b, 2), D4_HALF(c, 2));
    return __builtin_shufflevector(low, high, 0, 1, 2, 3);
}
#else
DPCRI_INLINE f4 f4_fma(f4 a, f4 b, f4 c) { return a * b + c; }
DPCRI_INLINE d2 d2_fma(d2 a, d2 b, d2 c) { return a * b + c; }
DPCRI_INLINE d4 d4_fma(d4 a, d4 b, d4 c) { return a * b + c; }
#endif
DPCRI_INLINE f4 f4_min(f4 a, f4 b) { return (f4)(((f4i)a & (a < b)) | ((f4i)b & ~(a < b))); }
DPCRI_INLINE d2 d2_min(d2 a, d2 b) { return (d2)(((d2i)a & (a < b)) | ((d2i)b & ~(a < b))); }
DPCRI_INLINE d4 d4_min(d4 a, d4 b) { return (d4)(((d4i)a & (a < b)) | ((d4i)b & ~(a < b))); }
DPCRI_INLINE f4 f4_max(f4 a, f4 b) { return (f4)(((f4i)a & (a > b)) | ((f4i)b & ~(a > b))); }
DPCRI_INLINE d2 d2_max(d2 a, d2 b) { return (d2)(((d2i)a & (a > b)) | ((d2i)b & ~(a > b))); }
DPCRI_INLINE d4 d4_max(d4 a, d4 b) { return (d4)(((d4i)a & (a > b)) | ((d4i)b & ~(a > b))); }
#endif
#undef D4_HALF

// u where |u| <= c, else c with the sign of u; NaN stays. By comparisons, which NaN fails, or by min and max, which
// give their second operand where one is NaN.
#define BY_COMPARISON(X, XI, T)                                                                     \
    DPCRI_INLINE X X##_clamp(X u, T c) {                                                            \
        const XI over = (XI)(u > X##_set(c)), under = (XI)(u < X##_set(-c));                        \
        return (X)(((XI)u & ~over & ~under) | ((XI)X##_set(c) & over) | ((XI)X##_set(-c) & under)); \
    }
#if defined(__AVX512F__)
DPCRI_INLINE vf vf_clamp(vf u, float c) {
    return (vf)_mm512_max_ps(_mm512_set1_ps(-c), _mm512_min_ps(_mm512_set1_ps(c), (__m512)u));
}
#elif defined(__AVX2__)
DPCRI_INLINE vf vf_clamp(vf u, float c) {
    return (vf)_mm256_max_ps(_mm256_set1_ps(-c), _mm256_min_ps(_mm256_set1_ps(c), (__m256)u));
}
#else
BY_COMPARISON(vf, vfi, float)
#endif
BY_COMPARISON(f4, f4i, float)
#undef BY_COMPARISON
DPCRI_INLINE f1 f1_clamp(f1 u, float c) { return u > c ? c : u < -c ? -c : u; }

// y where u > 0 or u is NaN, else +0
#define POSITIVE(X, XI) \
    DPCRI_INLINE X X##_positive(X u, X y) { return (X)((XI)y & ~(XI)(u <= X##_set(0))); }
POSITIVE(f4, f4i)
POSITIVE(d2, d2i)
POSITIVE(d4, d4i)
POSITIVE(vf, vfi)
POSITIVE(vd, vdi)
#undef POSITIVE
#if defined(__SSE2__)  // by a mask: what gcc makes of the comparison took half as long again
DPCRI_INLINE f1 f1_positive(f1 u, f1 y) {
    return _mm_cvtss_f32(_mm_andnot_ps(_mm_cmple_ss(_mm_set_ss(u), _mm_setzero_ps()), _mm_set_ss(y)));
}
#else
DPCRI_INLINE f1 f1_positive(f1 u, f1 y) { return u <= 0 ? 0 : y; }
#endif

#define NARROW_TANH_LIMIT 7.8f
#define VALUES_ONLY
#define SET(x) V_(set)((T)(x))
#define A_SET(c) JOIN(X, _set)((T)(c))
#define A_FMA JOIN(X, _fma)
#define A_CLAMP JOIN(X, _clamp)
#define A_POSITIVE JOIN(X, _positive)
#define A_SIGMOID JOIN(value_sigmoid_, X)
#define A_TANH JOIN(tanh_vector_, X)
#define A(name) JOIN(name##_, X)
#define JOIN(a, b) JOINED(a, b)
#define JOINED(a, b) a##b

#define T float
#define IS_FLOAT 1

#define X f4
#define V f4
#define VI f4i
#define VN 4
#define N(name) name##_f4
#define V_(op) f4_##op
#define TANH_BY_EXP
#include "kern/nn_activations.inc"
#undef TANH_BY_EXP
#include "kern/narrow_activations.inc"
#undef X
#undef V
#undef VI
#undef VN
#undef N
#undef V_

#define X vf
#define V vf
#define VI vfi
#define VN VF
#define N(name) name##_vf
#define V_(op) vf_##op
#include "kern/nn_activations.inc"
#include "kern/narrow_activations.inc"
#undef X
#undef V
#undef VI
#undef VN
#undef N
#undef V_

DPCRI_INLINE void value_sigmoid_f1(f1 u, f1 *y, f1 *d) {
    f4 values, slopes;
    value_sigmoid_f4(f4_set(u), &values, &slopes);
    *y = values[0], *d = slopes[0];
}
#define X f1
#include "kern/narrow_activations.inc"
#undef X

#undef T
#undef IS_FLOAT

#define T double
#define IS_FLOAT 0

#define X d2
#define V d2
#define VI d2i
#define VN 2
#define N(name) name##_d2
#define V_(op) d2_##op
#include "kern/nn_activations.inc"
#include "kern/narrow_activations.inc"
#undef X
#undef V
#undef VI
#undef VN
#undef N
#undef V_

#define X d4
#define V d4
#define VI d4i
#define VN 4
#define N(name) name##_d4
#define V_(op) d4_##op
#include "kern/nn_activations.inc"
#include "kern/narrow_activations.inc"
#undef X
#undef V
#undef VI
#undef VN
#undef N
#undef V_

#define X vd
#define V vd
#define VI vdi
#define VN VD
#define N(name) name##_vd
#define V_(op) vd_##op
#include "kern/nn_activations.inc"
#include "kern/narrow_activations.inc"
#undef X
#undef V
#undef VI
#undef VN
#undef N
#undef V_

#undef T
#undef IS_FLOAT
#undef VALUES_ONLY
#undef SET
#undef A_TANH
#undef A_SET
#undef A_FMA
#undef A_CLAMP
#undef A_POSITIVE
#undef A_SIGMOID
#undef A
#undef JOIN
#undef JOINED

// |u| beyond the range of tanh's rational form, in any component
DPCRI_INLINE int f1_beyond(f1 u) { return fabsf(u) > NARROW_TANH_LIMIT; }
DPCRI_INLINE int f4_beyond(f4 u) {
    const f4i size = (f4i)u & ((f4i){0} + INT32_MAX);
#if defined(__SSE2__)
    return _mm_movemask_ps((__m128)((f4)size > f4_set(NARROW_TANH_LIMIT))) != 0;
#else
    const f4i over = (f4i)((f4)size > f4_set(NARROW_TANH_LIMIT));
    return (over[0] | over[1] | over[2] | over[3]) != 0;
#endif
}

#endif
