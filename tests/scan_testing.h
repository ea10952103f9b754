// SPDX-License-Identifier: MIT
// What the tests of scans share: arrays in guarded memory that lie in different ways, and their numbers in row-major
// order; contexts that ask whether to stop, and such without memory. After guarded.h and cmocka's.
#ifndef TESTS_SCAN_TESTING_H
#define TESTS_SCAN_TESTING_H

#include <string.h>

#include "budget.h"

static inline dpcr_context *context_of(int threads, int (*cancel)(void *)) {
    dpcr_context *context = NULL;
    const dpcr_context_options options = {.size = sizeof options, .threads = threads, .cancel = cancel};
    assert_int_equal(dpcr_context_create(&options, &context, NULL), DPCR_OK);
    return context;
}

static inline int asked(void *user) {
    (void)user;
    return 1;
}

// A call without memory, then with ever more: refused, with nothing left behind, until it succeeds.
static inline void refuses_without_memory(dpcr_status (*call)(dpcr_context *context, void *user), void *user) {
    budget b = {.left = 0};
    dpcr_status status = DPCR_ERROR_MEMORY;
    int64_t n = 0;
    for (; status == DPCR_ERROR_MEMORY; n++) {
        dpcr_context *context = NULL;
        const dpcr_context_options options = budget_options(&b);
        assert_true(n < 30);
        b.left = 100;
        assert_int_equal(dpcr_context_create(&options, &context, NULL), DPCR_OK);
        b.left = n;
        status = call(context, user);
        dpcr_context_destroy(context);
        assert_int_equal(b.live, 0);
    }
    assert_int_equal(status, DPCR_OK);
    assert_true(n > 1);
}

// In [-1, 1).
static inline double noise(void) {
    static uint32_t seed = 1;
    seed = seed * 1664525u + 1013904223u;
    return (double)(seed >> 8) / (1 << 23) - 1;
}

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
