// SPDX-License-Identifier: MIT
// Checks of arrays of steps, shared by transitions and chains.
#ifndef DPCRI_TRANSITION_INTERNAL_H
#define DPCRI_TRANSITION_INTERNAL_H

#include "base/base.h"
#include "deeppcr/device.h"
#include "deeppcr/transition.h"
#include "kern/kern.h"
#include "kern/sparse.h"

// What an array argument has to be. steps < 0: no dimension of steps ([B][values] instead of [L][B][values]).
typedef struct dpcri_wanted {
    const char *function, *name;
    dpcr_dtype dtype;
    int64_t steps, rows, values;
    bool shareable;      // extents of 1 stand for any number of steps or sequences
    bool written;        // no two elements may share a place
    dpcr_device device;  // all zeros: the host
} dpcri_wanted;

// The array as strided rows: step and row strides in elements, 0 where shared.
typedef struct dpcri_view {
    void *data;
    int64_t step, row;
} dpcri_view;

// Is it an array of steps [n][B][values] of a known dtype?
dpcr_status dpcri_check_steps(const char *function, const dpcr_array *array, dpcr_error *error);

// csr.c: what dpcr_transition_check and dpcr_transition_apply do for csr.
dpcr_status dpcri_csr_check(const dpcr_transition *transition, dpcr_error *error);
void dpcri_csr_apply(const dpcr_transition *transition, int transposed, dpcr_dtype dtype, const dpcri_span *span);
// y_m = op(A_m) y_{m-1} + r_m from x on; x NULL: y_0 = r_0, and A_0 is not read.
void dpcri_csr_serial(const dpcr_transition *transition, int transposed, dpcr_dtype dtype, const dpcri_span *span);

// The transition (dense, diagonal or csr) with these values, for the kernels of sparse.h.
dpcri_matrix dpcri_matrix_of(const dpcr_transition *transition, const void *values, bool bundled);

// Of a planned product: flops of each row of C, [rows], and how large `places` has to be (0: none is read).
double dpcri_product_row_flops(const dpcr_product *product, int64_t row);
int64_t dpcri_product_places(const dpcr_product *product);
// Bytes that a product holds.
size_t dpcri_product_bytes(const dpcr_product *product);

dpcr_status dpcri_view_of(const dpcr_array *array, const dpcri_wanted *wanted, dpcri_view *view, dpcr_error *error);

#endif
