// SPDX-License-Identifier: MIT
// Arrays in guarded memory that lie in different ways, and their numbers in row-major order. After guarded.h.
#ifndef TESTS_LAYOUTS_H
#define TESTS_LAYOUTS_H

#include <string.h>

// As [..][L]; as [L][..], the first extent closest; or so, backwards and with gaps.
typedef enum layout { ROW_MAJOR, COLUMN_MAJOR, SCATTERED } layout;

static inline dpcr_array lay_out(layout how, dpcr_dtype dtype, int ndim, const int64_t *shape, int use,
                                 bool beginning) {
    int64_t reversed[DPCR_MAX_DIMS], numbers = 1;
    const int64_t gap = how == SCATTERED ? 2 : 1, element = (int64_t)dpcr_dtype_size(dtype);
    for (int d = 0; d < ndim; d++) numbers *= shape[d];
    const size_t bytes = (size_t)((numbers > 0 ? (numbers - 1) * gap + 1 : 0) * element);
    dpcr_array a = dpcr_array_make(guarded(use, bytes, beginning), dtype, ndim, shape);
    if (how == ROW_MAJOR || numbers == 0) return a;
    for (int d = 0; d < ndim; d++) reversed[d] = shape[ndim - 1 - d];
    const dpcr_array turned = dpcr_array_make(NULL, dtype, ndim, reversed);
    for (int d = 0; d < ndim; d++) a.strides[d] = gap * turned.strides[ndim - 1 - d];
    for (int d = 0; d < ndim && how == SCATTERED; d++) {
        a.data = (char *)a.data + (shape[d] - 1) * a.strides[d] * element;
        a.strides[d] = -a.strides[d];
    }
    return a;
}

static inline int64_t place_of(const dpcr_array *a, int64_t i) {
    int64_t at = 0;
    for (int d = a->ndim - 1; d >= 0; i /= a->shape[d], d--) at += i % a->shape[d] * a->strides[d];
    return at;
}

static inline int64_t count_of(const dpcr_array *a) {
    int64_t n = 1;
    for (int d = 0; d < a->ndim; d++) n *= a->shape[d];
    return n;
}

static inline double get(const dpcr_array *a, int64_t i) { return number_at(a->dtype, a->data, place_of(a, i)); }
static inline void put(const dpcr_array *a, int64_t i, double x) { put_number(a->dtype, a->data, place_of(a, i), x); }

#endif
