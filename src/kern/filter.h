// SPDX-License-Identifier: MIT
// Recursive filters on many lanes side by side: each lane is a stretch of some signal, lanes lie in vectors, and a tile
// of steps at a time goes through the sections of a cascade. Arithmetic and states are double for signals of either
// dtype, so a float signal is rounded once, on its way out.
//
// forward, a section in transposed direct form II of order p, a_0 = 1:
//   y = b_0 x + z_0;   z_i' = b_{i+1} x + z_{i+1} - a_{i+1} y   (z_p = 0)
// backward, its adjoint, from the last step down; the state is the gradient of z, shifted on:
//   w = x - sum_i a_i z_{i-1};   y = b_0 w + sum_i b_i z_{i-1};   z' = (w, z_0, z_1, ...)
// A lane's bits depend neither on its place nor on what runs beside it, but for which NaN a NaN is.
#ifndef DPCRI_FILTER_H
#define DPCRI_FILTER_H

#include "rt/rt.h"

enum { DPCRI_FILTER_LANES = 32, DPCRI_FILTER_STATES = 128 };  // of one call: lanes, and sections x order, at most

typedef struct dpcri_filter_run {
    int64_t sections, order;
    const double *b, *a;  // [sections][order + 1]
    bool backward;        // the sections go from the last to the first
    bool open;            // a_1, a_2 ... are not read, as if there were no feedback
    dpcr_dtype x_dtype, y_dtype;
    int64_t lanes, steps;
    const void *const *x;        // [lanes]: each lane's first sample in time, also backward
    void *const *y;              // [lanes] or NULL: only the states are wanted; y[i] may be x[i]
    int64_t x_stride, y_stride;  // in samples
    bool stream;                 // y is so large that it should not go through the caches
    double *const *state;        // [lanes]: [sections][order], in and out
} dpcri_filter_run;

typedef void (*dpcri_filter_kernel)(const dpcri_filter_run *run);

// The kernel of the level in force; of one level, NULL where this build or this CPU lacks it.
dpcri_filter_kernel dpcri_filter_get(void);
dpcri_filter_kernel dpcri_filter_at(dpcri_isa level);

#endif
