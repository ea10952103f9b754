// SPDX-License-Identifier: MIT
// The driver's arrays as the kernels' grids over lanes, steps and rows.
#ifndef DPCRI_RECURRENT_VIEWS_H
#define DPCRI_RECURRENT_VIEWS_H

#include "nn/recurrent.h"

static inline int64_t stride_of(const dpcr_array *array, int from_last) {
    return array && array->data && array->ndim > from_last ? array->strides[array->ndim - 1 - from_last] : 0;
}

// [lanes][rows][w], or [lanes][steps][rows][w]
static inline dpcri_grid grid_of(const dpcr_array *array) {
    if (!array || !array->data) return (dpcri_grid){0};
    const bool steps = array->ndim == 4;
    return (dpcri_grid){.data = array->data,
                        .lane = stride_of(array, steps ? 3 : 2),
                        .step = steps ? stride_of(array, 2) : 0,
                        .row = stride_of(array, 1)};
}

static inline dpcri_grid from_step(dpcri_grid grid, int64_t step, size_t element) {
    if (grid.data) grid.data = (char *)grid.data + step * grid.step * (int64_t)element;
    return grid;
}

static inline dpcri_grid at(dpcri_grid grid, int64_t lane, int64_t row, size_t element) {
    if (grid.data) grid.data = (char *)grid.data + (lane * grid.lane + row * grid.row) * (int64_t)element;
    return grid;
}

#endif
