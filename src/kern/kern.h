// SPDX-License-Identifier: MIT
// Linear-chain kernels: span operations over n steps x rows sequences at strides, one indirect call a level or a chunk.
// ref/ is their definition (and serves uint32); one template, linear.inc, is compiled once an instruction set level.
//
// Strides are in elements and may be 0 (shared) or negative; the last dimension is contiguous. Bits depend on the
// width, the structure and the level alone: not on n, rows, strides or a row's position.
#ifndef DPCRI_KERN_H
#define DPCRI_KERN_H

#include "base/base.h"
#include "deeppcr/transition.h"
#include "rt/rt.h"

// What a kernel works on; each operation below says which fields it reads.
typedef struct dpcri_span {
    int64_t n, rows;
    int64_t w;      // width; of what comes out where dense is rectangular (apply)
    int64_t cols;   // apply, dense: columns of A; elsewhere unread
    int64_t block;  // k of block
    const void *a;
    int64_t a_step, a_row;
    const void *x;
    int64_t x_step, x_row;
    const void *r;
    int64_t r_step, r_row;
    void *y;
    int64_t y_step, y_row;
    bool far;  // serial: memory has the matrices, which may be asked for ahead
    int64_t
        ahead;  // serial, far: steps on, in the next stretch, that are to be asked for; 0: as many as the kernel likes
} dpcri_span;

typedef void dpcri_kernel(const dpcri_span *span);

typedef enum dpcri_operation {
    // y_i = r_i + op(A_i) x_i; r NULL: zero; y may be r. For rectangular dense, w and cols are A's rows and columns.
    DPCRI_APPLY,
    DPCRI_APPLY_T,
    // y_i = r_i + op(A_i) y_{i-1} in order, y_{-1} = x[row] (x_row only). x NULL: y_0 = r_0, and A_0 is not read,
    // though `a` points somewhere.
    // y may be r. y_step is not 0 where n > 1.
    DPCRI_SERIAL,
    DPCRI_SERIAL_T,
    // Y_i = A_i X_i, products of values; y overlaps neither.
    DPCRI_COMPOSE,
    // Y[row] = A_{n-1} ... A_0 (y_row only), or A_0 ... A_{n-1} for _T, so that op(Y) = op(A_{n-1}) ... op(A_0). n
    // >= 1.
    // r: scratch of one value array, shared by the rows (dense and block only; written although const).
    DPCRI_PRODUCT,
    DPCRI_PRODUCT_T,
    // Y_i = r_i x_i^T, restricted to the structure (scalar: the sum of its diagonal).
    DPCRI_OUTER,
    DPCRI_OPERATION_COUNT
} dpcri_operation;

enum { DPCRI_LINEAR_STRUCTURES = DPCR_CSR };  // those before it; csr has kernels of its own (sparse.h)

// table[operation][structure]
typedef struct dpcri_kernels {
    dpcri_kernel *table[DPCRI_OPERATION_COUNT][DPCRI_LINEAR_STRUCTURES];
} dpcri_kernels;

// The kernels of a dtype at a level; NULL for an unknown dtype. Levels that this build lacks give the portable ones.
const dpcri_kernels *dpcri_kernels_at(dpcri_isa level, dpcr_dtype dtype);

// The definition, for every dtype.
const dpcri_kernels *dpcri_kernels_ref(dpcr_dtype dtype);

// The same map in its cheapest structure: dense 1x1, scalar of width 1 and blocks of 1 are diagonal, one block is
// dense.
dpcr_structure dpcri_kernel_form(const dpcr_transition *transition);

// Vectors of chains of width 2 that go on together (twos.inc): as many as there are registers for.
enum { DPCRI_TWOS = 6, DPCRI_TWOS_AVX512 = 8 };

// Narrow dense chains of a width, one after another, that the serial kernels of a level take in one pass over the steps
// at least.
int64_t dpcri_chains_at_once(dpcri_isa level, dpcr_dtype dtype, int64_t width);

#define DPCRI_DECLARE_LEVEL(level) extern const dpcri_kernels dpcri_kernels_f32_##level, dpcri_kernels_f64_##level
DPCRI_DECLARE_LEVEL(portable);
DPCRI_DECLARE_LEVEL(avx2);
DPCRI_DECLARE_LEVEL(avx512);
#undef DPCRI_DECLARE_LEVEL

#endif
