// SPDX-License-Identifier: MIT
// What the parts of dpcr_steps_check share.
#ifndef DPCRI_SOLVE_CHECK_H
#define DPCRI_SOLVE_CHECK_H

#include "solve/solve_internal.h"

// Number i of row [l][b] of a float32 or float64 array [n][B][w].
static inline double dpcri_number(const dpcr_array *array, int64_t l, int64_t b, int64_t i) {
    const int64_t at = l * array->strides[0] + b * array->strides[1] + i;
    return array->dtype == DPCR_F64 ? ((const double *)array->data)[at] : (double)((const float *)array->data)[at];
}

static inline void dpcri_set_number(const dpcr_array *array, int64_t l, int64_t b, int64_t i, double value) {
    const int64_t at = l * array->strides[0] + b * array->strides[1] + i;
    if (array->dtype == DPCR_F64)
        ((double *)array->data)[at] = value;
    else
        ((float *)array->data)[at] = (float)value;
}

// Does f have the kinks that it says, as far as its Jacobians along the states t tell?
dpcr_status dpcri_check_kinks(dpcr_context *context, const dpcr_steps *steps, const dpcri_trajectory *t,
                              dpcr_error *error);

#endif
