// SPDX-License-Identifier: MIT
// Numbers of states of either dtype, for what is small beside the steps themselves.
#ifndef DPCRI_STATE_H
#define DPCRI_STATE_H

#include "solve/solve_internal.h"

static inline double dpcri_state_get(dpcr_dtype dtype, const void *x, int64_t i) {
    return dtype == DPCR_F32 ? (double)((const float *)x)[i] : ((const double *)x)[i];
}

static inline void dpcri_state_set(dpcr_dtype dtype, void *x, int64_t i, double value) {
    if (dtype == DPCR_F32)
        ((float *)x)[i] = (float)value;
    else
        ((double *)x)[i] = value;
}

// The state of sequence b in row l of an array [L][B][w].
static inline void *dpcri_state_at(const dpcr_array *array, int64_t l, int64_t b) {
    return (char *)array->data +
           (l * array->strides[0] + b * array->strides[1]) * (int64_t)dpcr_dtype_size(array->dtype);
}

#endif
