// SPDX-License-Identifier: MIT
// Products with wide matrices that are used again and again: packed once in panels of some vectors, so that every
// kernel streams. Any number of rows, from one (the weights' bandwidth is the limit) to many (the arithmetic is).
//
//   packed[p][k][q] = b[k][p panel + q],   k < depth, q < panel; zeros past the last column
//
// Order of every sum: k ascending, one fma a term, starting from the initial value: a row's bits depend neither on its
// place nor on how many rows go with it, nor on which panels a call computes. Weighed: OpenBLAS in tiles fixed by the
// plan (docs/design.md).
#ifndef DPCRI_WIDE_H
#define DPCRI_WIDE_H

#include "rt/rt.h"

// c[i][j] = init[i][j] + sum_k a[i][k] b[k][j],   i < rows, j < columns: the first ones of the panels at `packed`
// init: NULL is 0; init_row 0 starts every row from one bias row; may be c. c overlaps neither a nor packed.
// Terms from .. to - 1 of the sums alone (to 0: depth), in order: where from > 0, c holds what came before, and init is
// not looked at.
// streams: one to three rows read as many panels side by side as the registers hold sums of, instead of one or two
// whose lines are asked for ahead. Which is quicker hangs on the memory; no bit does.
typedef struct dpcri_wide_product {
    int64_t rows, depth, columns;
    const void *a;
    int64_t a_row;
    const void *packed;
    const void *init;
    int64_t init_row;
    void *c;
    int64_t c_row;
    int64_t from, to;
    bool streams;
} dpcri_wide_product;

typedef struct dpcri_wide_kernels {
    size_t element;             // bytes
    int64_t panel;              // columns
    int64_t one_row_panels[2];  // what one row takes at once, without and with streams
    bool streams;               // what a product's `streams` should be where the caller has measured nothing
    void (*product)(const dpcri_wide_product *p);
    // Panels first .. last-1 of b [depth][columns], or, transposed, of b [columns][depth].
    void (*pack)(bool transposed, int64_t depth, int64_t columns, const void *b, int64_t b_row, int64_t first,
                 int64_t last, void *packed);
} dpcri_wide_kernels;

static inline int64_t dpcri_wide_panels(const dpcri_wide_kernels *k, int64_t columns) {
    return (columns + k->panel - 1) / k->panel;
}

// Panels that a call should have: with fewer of them few rows leave the processor waiting.
static inline int64_t dpcri_wide_together(const dpcri_wide_kernels *k, bool streams, int64_t rows) {
    const int64_t most = k->one_row_panels[streams];
    return rows > 0 && rows < most ? most / rows : 1;
}

// The table of the level in force; NULL for other dtypes than float and double.
const dpcri_wide_kernels *dpcri_wide_kernels_get(dpcr_dtype dtype);
// The table of one level, for tests; NULL where this build or this CPU lacks it.
const dpcri_wide_kernels *dpcri_wide_kernels_at(dpcri_isa level, dpcr_dtype dtype);

#endif
