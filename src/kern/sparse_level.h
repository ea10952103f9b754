// SPDX-License-Identifier: MIT
// The kernels of sparse.h at one instruction set level: included once by each sparse_LEVEL.c, whose flags choose the
// level. The template's parameters: T element, V vector, VN lanes, N(name) the function's name, V_(op) the vector
// operation of simd.h, S_FMA the scalar's, PART vectors that transpose.h gathers at a time (0: no such), TABLE the
// table's name.
#include "kern/simd.h"
#include "kern/sparse.h"
#include "kern/transpose.h"

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

enum {
    PARTS = 4,     // partial sums of a csr row
    COLUMNS = 8,   // of a dense strip in registers
    STRETCH = 16,  // rows that take a strip one after the other
};
#define FLOATS (DPCRI_VECTOR_BYTES == 16 ? 4 : DPCRI_VECTOR_BYTES / 8)
#define DOUBLES (DPCRI_VECTOR_BYTES == 16 ? 2 : DPCRI_VECTOR_BYTES / 16)

#include "kern/number_f32.inc"
#define S_FMA sf_fma
#define PART FLOATS
#define TABLE DPCRI_LEVEL(dpcri_sparse_f32)
#include "kern/sparse.inc"
#include "kern/number_none.inc"
#undef S_FMA
#undef PART
#undef TABLE

#include "kern/number_f64.inc"
#define S_FMA sd_fma
#define PART DOUBLES
#define TABLE DPCRI_LEVEL(dpcri_sparse_f64)
#include "kern/sparse.inc"
#include "kern/number_none.inc"
#undef S_FMA
#undef PART
#undef TABLE

// The exact ring takes the same paths, at one level.
#if DPCRI_VECTOR_BYTES == 16
typedef uint32_t vu __attribute__((vector_size(16), aligned(16)));
DPCRI_INLINE vu vu_load(const uint32_t *p) {
    vu v;
    memcpy(&v, p, sizeof v);
    return v;
}
DPCRI_INLINE void vu_store(uint32_t *p, vu v) { memcpy(p, &v, sizeof v); }
DPCRI_INLINE vu vu_set(uint32_t x) { return x - (vu){0}; }
DPCRI_INLINE vu vu_fma(vu a, vu b, vu c) { return a * b + c; }
DPCRI_INLINE uint32_t su_fma(uint32_t a, uint32_t b, uint32_t c) { return a * b + c; }

#define T uint32_t
#define V vu
#define VN 4
#define N(name) name##_u32
#define V_(op) vu_##op
#define S_FMA su_fma
#define PART 0
#define TABLE DPCRI_LEVEL(dpcri_sparse_u32)
#include "kern/sparse.inc"
#undef T
#undef V
#undef VN
#undef N
#undef V_
#undef S_FMA
#undef PART
#undef TABLE
#endif
