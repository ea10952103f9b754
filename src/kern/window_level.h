// SPDX-License-Identifier: MIT
// The window kernels of one instruction set level: included once by window_LEVEL.c, whose flags choose the level.
// The templates' parameters: T element, V vector, VI integers of the same size, VN lanes, W the width, N(name) the
// function's name, V_(op) and S_(op) the vector and the scalar operation of simd.h, TABLE the table's name.
#include <stdbool.h>
#include <stddef.h>

#include "kern/narrow_values.h"
#include "kern/simd.h"
#include "kern/window.h"
#include "rt/rt.h"

#undef UNROLL
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 64")
#endif

#if defined(__AVX512F__)
#define LEVEL DPCRI_AVX512
#elif defined(__AVX2__)
#define LEVEL DPCRI_AVX2
#else
#define LEVEL DPCRI_PORTABLE
#endif

// Halves of two vectors, interleaved inside blocks of 16 bytes; and every second block of both.
#if defined(__AVX512F__)
DPCRI_INLINE vf low32(vf a, vf b) { return (vf)_mm512_unpacklo_ps((__m512)a, (__m512)b); }
DPCRI_INLINE vf high32(vf a, vf b) { return (vf)_mm512_unpackhi_ps((__m512)a, (__m512)b); }
DPCRI_INLINE vf low64(vf a, vf b) { return (vf)_mm512_unpacklo_pd((__m512d)a, (__m512d)b); }
DPCRI_INLINE vf high64(vf a, vf b) { return (vf)_mm512_unpackhi_pd((__m512d)a, (__m512d)b); }
DPCRI_INLINE vf even128(vf a, vf b) { return (vf)_mm512_shuffle_f32x4((__m512)a, (__m512)b, 0x88); }
DPCRI_INLINE vf odd128(vf a, vf b) { return (vf)_mm512_shuffle_f32x4((__m512)a, (__m512)b, 0xdd); }
#elif defined(__AVX2__)
DPCRI_INLINE vf low32(vf a, vf b) { return (vf)_mm256_unpacklo_ps((__m256)a, (__m256)b); }
DPCRI_INLINE vf high32(vf a, vf b) { return (vf)_mm256_unpackhi_ps((__m256)a, (__m256)b); }
DPCRI_INLINE vf low64(vf a, vf b) { return (vf)_mm256_unpacklo_pd((__m256d)a, (__m256d)b); }
DPCRI_INLINE vf high64(vf a, vf b) { return (vf)_mm256_unpackhi_pd((__m256d)a, (__m256d)b); }
DPCRI_INLINE vf even128(vf a, vf b) { return (vf)_mm256_permute2f128_ps((__m256)a, (__m256)b, 0x20); }
DPCRI_INLINE vf odd128(vf a, vf b) { return (vf)_mm256_permute2f128_ps((__m256)a, (__m256)b, 0x31); }
#else
DPCRI_INLINE vf low32(vf a, vf b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
DPCRI_INLINE vf high32(vf a, vf b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
DPCRI_INLINE vf low64(vf a, vf b) { return __builtin_shufflevector(a, b, 0, 1, 4, 5); }
DPCRI_INLINE vf high64(vf a, vf b) { return __builtin_shufflevector(a, b, 2, 3, 6, 7); }
#endif

// How shooting has M_c: kept; I + sum of G_l, G_l = scale act'(u_l) W_l; the product of all J_l = carry + G_l. M is
// taken anew at the second sweep when the first correction is beyond FRESH, later when a sweep leaves SLOW of the last.
enum { KEPT, FIRST_ORDER, PRODUCT };
#define FRESH 0.4
#define SLOW 0.1

// Vectors side by side and steps of a chunk, at most, by width: chains of operations enough to hide each other's
// latency, windows within the first caches.
#define NEWTON_VECTORS (W == 1 ? 6 : W == 2 ? 3 : 1)
#define NEWTON_STEPS 32
#define ADJOINT_VECTORS (W == 2 ? 2 : 1)  // from W = 2 on
#define ADJOINT_STEPS 32
#define GUESS_STEPS 8     // of the chunk before, that a first guess runs
#define FEW_NUMBERS 8192  // of a span's states: fewer are tried without a Jacobian (WINDOW_NUMBERS of solve/stretch.c)

// Passes of their own for every form of chain, or one for all, which chooses as it goes.
#define FORMS_APART (IS_FLOAT && DPCRI_VECTOR_BYTES == 64)

#define T float
#define V vf
#define VI vfi
#define VN VF
#define IS_FLOAT 1
#define TYPE f32
#define TABLE DPCRI_LEVEL(dpcri_window_f32)
#define V_(op) vf_##op
#define S_(op) sf_##op
#include "kern/window_dtype.inc"
#undef T
#undef V
#undef VI
#undef VN
#undef IS_FLOAT
#undef TYPE
#undef TABLE
#undef V_
#undef S_

#define T double
#define V vd
#define VI vdi
#define VN VD
#define IS_FLOAT 0
#define TYPE f64
#define TABLE DPCRI_LEVEL(dpcri_window_f64)
#define V_(op) vd_##op
#define S_(op) sd_##op
#include "kern/window_dtype.inc"
