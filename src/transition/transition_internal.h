// SPDX-License-Identifier: MIT
// Checks of arrays of steps, shared by transitions and chains.
#ifndef DPCRI_TRANSITION_INTERNAL_H
#define DPCRI_TRANSITION_INTERNAL_H

#include "base/base.h"
#include "deeppcr/transition.h"

// What an array argument has to be. steps < 0: no dimension of steps ([B][values] instead of [L][B][values]).
typedef struct dpcri_wanted {
    const char *function, *name;
    dpcr_dtype dtype;
    int64_t steps, rows, values;
    bool shareable;  // extents of 1 stand for any number of steps or sequences
    bool written;    // no two elements may share a place
} dpcri_wanted;

// The array as strided rows: step and row strides in elements, 0 where shared.
typedef struct dpcri_view {
    void *data;
    int64_t step, row;
} dpcri_view;

dpcr_status dpcri_view_of(const dpcr_array *array, const dpcri_wanted *wanted, dpcri_view *view, dpcr_error *error);

#endif
