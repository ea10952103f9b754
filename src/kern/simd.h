// SPDX-License-Identifier: MIT
// One set of vector operations for every instruction set level: kernels are written once over them and compiled once a
// level, which follows from the compiler's flags. An fma is an fma wherever the level has one (AVX2, AVX-512; the
// portable one on 64-bit ARM, by NEON) and a multiply and an add where it has none, so results differ between levels
// but not within one. Tails are masked or taken in parts: nothing outside the array is read into a result or written.
#ifndef DPCRI_SIMD_H
#define DPCRI_SIMD_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#define DPCRI_VECTOR_BYTES 64
#define DPCRI_LEVEL(name) name##_avx512
#elif defined(__AVX2__)
#include <immintrin.h>
#define DPCRI_VECTOR_BYTES 32
#define DPCRI_LEVEL(name) name##_avx2
#else
#define DPCRI_VECTOR_BYTES 16
#define DPCRI_LEVEL(name) name##_portable
#endif
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#define DPCRI_INLINE static inline __attribute__((always_inline))
// Called, in one copy: a large body that many places share.
#if defined(__clang__)
#define DPCRI_CALLED static __attribute__((noinline))
#else
#define DPCRI_CALLED static __attribute__((noinline, noclone))
#endif

#if defined(__clang__)
#define DPCRI_UNROLL_ALL _Pragma("clang loop unroll(full)")
#else
#define DPCRI_UNROLL_ALL _Pragma("GCC unroll 64")
#endif

typedef float vf __attribute__((vector_size(DPCRI_VECTOR_BYTES), aligned(DPCRI_VECTOR_BYTES)));
typedef double vd __attribute__((vector_size(DPCRI_VECTOR_BYTES), aligned(DPCRI_VECTOR_BYTES)));
typedef int32_t vfi __attribute__((vector_size(DPCRI_VECTOR_BYTES), aligned(DPCRI_VECTOR_BYTES)));
typedef int64_t vdi __attribute__((vector_size(DPCRI_VECTOR_BYTES), aligned(DPCRI_VECTOR_BYTES)));
enum { VF = DPCRI_VECTOR_BYTES / 4, VD = DPCRI_VECTOR_BYTES / 8 };  // lanes

DPCRI_INLINE vf vf_load(const float *p) {
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
DPCRI_INLINE vd vd_load(const double *p) {
    vd v;
    memcpy(&v, p, sizeof v);
    return v;
}
DPCRI_INLINE void vf_store(float *p, vf v) { memcpy(p, &v, sizeof v); }
DPCRI_INLINE void vd_store(double *p, vd v) { memcpy(p, &v, sizeof v); }
DPCRI_INLINE vf vf_set(float x) { return x - (vf){0}; }
DPCRI_INLINE vd vd_set(double x) { return x - (vd){0}; }

#if defined(__AVX512F__)
DPCRI_INLINE vf vf_fma(vf a, vf b, vf c) { return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
DPCRI_INLINE vd vd_fma(vd a, vd b, vd c) { return (vd)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c); }
DPCRI_INLINE vf vf_load_n(const float *p, int n) { return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1u), p); }
DPCRI_INLINE vd vd_load_n(const double *p, int n) { return (vd)_mm512_maskz_loadu_pd((__mmask8)((1u << n) - 1u), p); }
DPCRI_INLINE void vf_store_n(float *p, vf v, int n) {
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1u), (__m512)v);
}
DPCRI_INLINE void vd_store_n(double *p, vd v, int n) {
    _mm512_mask_storeu_pd(p, (__mmask8)((1u << n) - 1u), (__m512d)v);
}
// n numbers, half a vector at most, of two places in its two halves.
DPCRI_INLINE vf vf_load_two(const float *p, const float *q, int n) {
    if (n == VF / 2) return (vf)_mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(p)), _mm256_loadu_ps(q), 1);
    const __mmask8 some = (__mmask8)((1u << n) - 1u);
    return (vf)_mm512_insertf32x8(_mm512_castps256_ps512(_mm256_maskz_loadu_ps(some, p)),
                                  _mm256_maskz_loadu_ps(some, q), 1);
}
DPCRI_INLINE void vf_store_two(float *p, float *q, vf v, int n) {
    const __m256 low = _mm512_castps512_ps256((__m512)v), high = _mm512_extractf32x8_ps((__m512)v, 1);
    const __mmask8 some = (__mmask8)((1u << n) - 1u);
    if (n == VF / 2) {
        _mm256_storeu_ps(p, low);
        _mm256_storeu_ps(q, high);
    } else {
        _mm256_mask_storeu_ps(p, some, low);
        _mm256_mask_storeu_ps(q, some, high);
    }
}
DPCRI_INLINE vf vf_sqrt(vf x) { return (vf)_mm512_sqrt_ps((__m512)x); }
DPCRI_INLINE vd vd_sqrt(vd x) { return (vd)_mm512_sqrt_pd((__m512d)x); }
#else
#if defined(__AVX2__)
DPCRI_INLINE vf vf_fma(vf a, vf b, vf c) { return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
DPCRI_INLINE vd vd_fma(vd a, vd b, vd c) { return (vd)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c); }
DPCRI_INLINE vf vf_sqrt(vf x) { return (vf)_mm256_sqrt_ps((__m256)x); }
DPCRI_INLINE vd vd_sqrt(vd x) { return (vd)_mm256_sqrt_pd((__m256d)x); }
#elif defined(__aarch64__)
DPCRI_INLINE vf vf_fma(vf a, vf b, vf c) { return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
DPCRI_INLINE vd vd_fma(vd a, vd b, vd c) { return (vd)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b); }
DPCRI_INLINE vf vf_sqrt(vf x) { return (vf)vsqrtq_f32((float32x4_t)x); }
DPCRI_INLINE vd vd_sqrt(vd x) { return (vd)vsqrtq_f64((float64x2_t)x); }
#else
DPCRI_INLINE vf vf_fma(vf a, vf b, vf c) { return a * b + c; }
DPCRI_INLINE vd vd_fma(vd a, vd b, vd c) { return a * b + c; }
DPCRI_INLINE vf vf_sqrt(vf x) {
    for (int i = 0; i < VF; i++) x[i] = sqrtf(x[i]);
    return x;
}
DPCRI_INLINE vd vd_sqrt(vd x) {
    for (int i = 0; i < VD; i++) x[i] = sqrt(x[i]);
    return x;
}
#endif
#if defined(__AVX2__)
// n numbers' mask begins n before the zeros.
static const int32_t dpcri_mask[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
DPCRI_INLINE vf vf_load_n(const float *p, int n) {
    return (vf)_mm256_maskload_ps(p, _mm256_loadu_si256((const __m256i *)(dpcri_mask + 8 - n)));
}
DPCRI_INLINE vd vd_load_n(const double *p, int n) {
    return (vd)_mm256_maskload_pd(p, _mm256_loadu_si256((const __m256i *)(dpcri_mask + 8 - 2 * n)));
}
#else
// Number by number: a copy of n bytes is a call, and takes ten times as long.
DPCRI_INLINE vf vf_load_n(const float *p, int n) {
    return (vf){n > 0 ? p[0] : 0, n > 1 ? p[1] : 0, n > 2 ? p[2] : 0, n > 3 ? p[3] : 0};
}
DPCRI_INLINE vd vd_load_n(const double *p, int n) { return (vd){n > 0 ? p[0] : 0, n > 1 ? p[1] : 0}; }
DPCRI_INLINE void vf_store_n(float *p, vf v, int n) {
    if (n > 0) p[0] = v[0];
    if (n > 1) p[1] = v[1];
    if (n > 2) p[2] = v[2];
    if (n > 3) p[3] = v[3];
}
DPCRI_INLINE void vd_store_n(double *p, vd v, int n) {
    if (n > 0) p[0] = v[0];
    if (n > 1) p[1] = v[1];
}
DPCRI_INLINE void vf_store_parts(float *p, vf v, int n) { vf_store_n(p, v, n); }
DPCRI_INLINE void vd_store_parts(double *p, vd v, int n) { vd_store_n(p, v, n); }
#endif
#endif

// A vector's first numbers, in parts of a half, a quarter and so on: a masked store reaches over all bytes of a
// vector, and a load of those beside what it wrote that comes soon would wait; of AVX2's it is slow besides.
#if defined(__AVX2__)
DPCRI_INLINE void dpcri_store_half(char *p, __m256i x, int bytes) {
    __m128i quarter = _mm256_castsi256_si128(x);
    if (bytes & 16) {
        _mm_storeu_si128((__m128i *)p, quarter);
        quarter = _mm256_extracti128_si256(x, 1);
        p += 16;
    }
    if (bytes & 8) {
        _mm_storel_epi64((__m128i *)p, quarter);
        quarter = _mm_srli_si128(quarter, 8);
        p += 8;
    }
    if (bytes & 4) {
        const int32_t last = _mm_cvtsi128_si32(quarter);
        memcpy(p, &last, sizeof last);
    }
}
#if defined(__AVX512F__)
DPCRI_INLINE void dpcri_store_parts(void *to, __m512i x, int bytes) {
    char *p = to;
    __m256i half = _mm512_castsi512_si256(x);
    if (bytes & 64) {
        _mm512_storeu_si512(to, x);
        return;
    }
    if (bytes & 32) {
        _mm256_storeu_si256((__m256i *)p, half);
        half = _mm512_extracti64x4_epi64(x, 1);
        p += 32;
    }
    dpcri_store_half(p, half, bytes);
}
DPCRI_INLINE void vf_store_parts(float *p, vf v, int n) { dpcri_store_parts(p, (__m512i)v, 4 * n); }
DPCRI_INLINE void vd_store_parts(double *p, vd v, int n) { dpcri_store_parts(p, (__m512i)v, 8 * n); }
#else
DPCRI_INLINE void dpcri_store_parts(void *to, __m256i x, int bytes) {
    if (bytes & 32)
        _mm256_storeu_si256((__m256i *)to, x);
    else
        dpcri_store_half(to, x, bytes);
}
DPCRI_INLINE void vf_store_n(float *p, vf v, int n) { dpcri_store_parts(p, (__m256i)v, 4 * n); }
DPCRI_INLINE void vd_store_n(double *p, vd v, int n) { dpcri_store_parts(p, (__m256i)v, 8 * n); }
DPCRI_INLINE void vf_store_parts(float *p, vf v, int n) { vf_store_n(p, v, n); }
DPCRI_INLINE void vd_store_parts(double *p, vd v, int n) { vd_store_n(p, v, n); }
#endif
#endif

// The smaller, and the larger; b where one of them is NaN.
#if defined(__AVX2__) && !defined(__AVX512F__)
DPCRI_INLINE vf vf_min(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }
DPCRI_INLINE vd vd_min(vd a, vd b) { return (vd)_mm256_min_pd((__m256d)a, (__m256d)b); }
DPCRI_INLINE vf vf_max(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
DPCRI_INLINE vd vd_max(vd a, vd b) { return (vd)_mm256_max_pd((__m256d)a, (__m256d)b); }
#else  // for AVX-512 one masked move
DPCRI_INLINE vf vf_min(vf a, vf b) { return (vf)(((vfi)a & (a < b)) | ((vfi)b & ~(a < b))); }
DPCRI_INLINE vd vd_min(vd a, vd b) { return (vd)(((vdi)a & (a < b)) | ((vdi)b & ~(a < b))); }
DPCRI_INLINE vf vf_max(vf a, vf b) { return (vf)(((vfi)a & (a > b)) | ((vfi)b & ~(a > b))); }
DPCRI_INLINE vd vd_max(vd a, vd b) { return (vd)(((vdi)a & (a > b)) | ((vdi)b & ~(a > b))); }
#endif

// Whether any bit is set.
DPCRI_INLINE bool vi_any(vdi mask) {
#if defined(__AVX512F__)
    return _mm512_test_epi64_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX2__)
    return !_mm256_testz_si256((__m256i)mask, (__m256i)mask);
#else
    return (mask[0] | mask[1]) != 0;
#endif
}

// The scalar fma of the same level: the same bits as one lane of the vector's.
#if defined(__FMA__) || defined(__aarch64__)
DPCRI_INLINE float sf_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DPCRI_INLINE double sd_fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
DPCRI_INLINE float sf_fma(float a, float b, float c) { return a * b + c; }
DPCRI_INLINE double sd_fma(double a, double b, double c) { return a * b + c; }
#endif

#endif
