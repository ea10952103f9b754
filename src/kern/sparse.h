// SPDX-License-Identifier: MIT
// Kernels of dense, diagonal and csr matrices of any rows and columns: matrix times vector and matrix times matrix,
// over a range of rows. For one sequence (`single`), or for a bundle of `lanes` sequences side by side, element
// innermost: a vector is [w][lanes], values are [entries][lanes], or [entries] where all lanes share them.
//
// Bits: a row's sum goes over its entries by a number of partial sums that follows from the structure and the level
// alone, so lane g of a bundle has the bits that `single` has, and no range of rows changes any.
#ifndef DPCRI_SPARSE_H
#define DPCRI_SPARSE_H

#include "deeppcr/transition.h"
#include "rt/rt.h"

typedef struct dpcri_matrix {
    dpcr_structure structure;  // dense, diagonal or csr
    int64_t rows, cols;
    const int64_t *offsets;  // csr: [rows + 1]
    const int32_t *columns;  // csr: [offsets[rows]], ascending in each row
    void *values;
    bool bundled;  // the values have lanes of their own
} dpcri_matrix;

typedef struct dpcri_sparse_operations {
    // y_i = sum over j of A_ij x_j for i in [lo, hi)
    void (*apply)(const dpcri_matrix *a, const void *x, void *y, int64_t lo, int64_t hi);
    // C_i = sum over k of A_ik B_k for rows i in [lo, hi), entries outside C's pattern being none.
    // `places`: scratch, [B's columns], read where C is csr and neither A nor B is diagonal.
    void (*compose)(const dpcri_matrix *a, const dpcri_matrix *b, const dpcri_matrix *c, int32_t *places, int64_t lo,
                    int64_t hi);
} dpcri_sparse_operations;

typedef struct dpcri_sparse_kernels {
    int64_t lanes;  // of a bundle
    dpcri_sparse_operations single, bundle;
    // y_j += sum over i of A_ij x_i, rows in order; of one sequence, csr alone
    void (*apply_t)(const dpcri_matrix *a, const void *x, void *y);
    // rows x count elements, `stride` apart, to [count][lanes] and back; lanes from `rows` on are zero, or left out
    void (*pack)(int64_t count, int64_t rows, const void *from, int64_t stride, void *to);
    void (*unpack)(int64_t count, int64_t rows, const void *from, void *to, int64_t stride);
} dpcri_sparse_kernels;

// The kernels of the level in force. uint32 has the portable ones at every level. NULL for an unknown dtype.
const dpcri_sparse_kernels *dpcri_sparse_kernels_get(dpcr_dtype dtype);
// Of one level; NULL where this build or this CPU lacks it.
const dpcri_sparse_kernels *dpcri_sparse_kernels_at(dpcri_isa level, dpcr_dtype dtype);

#endif
