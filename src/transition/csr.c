// SPDX-License-Identifier: MIT
// Sparse matrices by rows: patterns that are given, and a matrix applied to vectors.
#include <inttypes.h>
#include <string.h>

#include "transition/transition_internal.h"

enum { STRETCH = 256 };  // rows whose sums wait for r

dpcr_transition dpcr_transition_csr(const dpcr_pattern *pattern) {
    return (dpcr_transition){.structure = DPCR_CSR,
                             .rows = pattern ? pattern->rows : 0,
                             .cols = pattern ? pattern->cols : 0,
                             .pattern = pattern};
}

static dpcr_status check_outline(const dpcr_pattern *p, dpcr_error *error) {
    if (!p) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "pattern: got NULL, wanted a pattern");
    if (p->rows <= 0 || p->cols <= 0 || p->rows > INT32_MAX || p->cols > INT32_MAX)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "pattern: %" PRId64 "x%" PRId64 ", wanted sizes of 1..%" PRId32,
                          p->rows, p->cols, INT32_MAX);
    if (!p->offsets) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "pattern: offsets is NULL");
    const int64_t entries = p->offsets[p->rows];
    if (p->offsets[0] != 0 || entries < 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "pattern: offsets from %" PRId64 " to %" PRId64 ", wanted from 0 to the number of entries",
                          p->offsets[0], entries);
    if (entries > 0 && !p->columns) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "pattern: columns is NULL");
    return DPCR_OK;
}

dpcr_status dpcr_pattern_check(const dpcr_pattern *p, dpcr_error *error) {
    const dpcr_status status = check_outline(p, error);
    if (status != DPCR_OK) return status;
    const int64_t entries = p->offsets[p->rows];
    for (int64_t i = 0; i < p->rows; i++) {
        if (p->offsets[i + 1] < p->offsets[i] || p->offsets[i + 1] > entries)
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                              "pattern: row %" PRId64 " ends at %" PRId64 ", wanted %" PRId64 "..%" PRId64, i,
                              p->offsets[i + 1], p->offsets[i], entries);
        int64_t before = -1;
        for (int64_t e = p->offsets[i]; e < p->offsets[i + 1]; e++) {
            if (p->columns[e] <= before || p->columns[e] >= p->cols)
                return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                                  "pattern: row %" PRId64 " has column %" PRId32 " after %" PRId64
                                  ", wanted ascending ones below %" PRId64,
                                  i, p->columns[e], before, p->cols);
            before = p->columns[e];
        }
    }
    return DPCR_OK;
}

dpcr_status dpcri_csr_check(const dpcr_transition *t, dpcr_error *error) {
    if (t->block != 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "transition: block is %" PRId64 " in a csr transition, wanted 0",
                          t->block);
    const dpcr_pattern *p = t->pattern;
    const dpcr_status status = check_outline(p, error);
    if (status != DPCR_OK) return status;
    if (p->rows != t->rows || p->cols != t->cols)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "transition: csr %" PRId64 "x%" PRId64 " with a pattern of %" PRId64 "x%" PRId64, t->rows,
                          t->cols, p->rows, p->cols);
    return DPCR_OK;
}

dpcri_matrix dpcri_matrix_of(const dpcr_transition *t, const void *values, bool bundled) {
    const dpcr_pattern *p = t->pattern;
    return (dpcri_matrix){.structure = t->structure,
                          .rows = t->rows,
                          .cols = t->cols,
                          .offsets = p ? p->offsets : NULL,
                          .columns = p ? p->columns : NULL,
                          .values = (void *)values,
                          .bundled = bundled};
}

static void add(dpcr_dtype dtype, const void *r, const void *sums, void *y, int64_t n) {
    switch (dtype) {
        case DPCR_F32:
            for (int64_t i = 0; i < n; i++) ((float *)y)[i] = ((const float *)r)[i] + ((const float *)sums)[i];
            return;
        case DPCR_F64:
            for (int64_t i = 0; i < n; i++) ((double *)y)[i] = ((const double *)r)[i] + ((const double *)sums)[i];
            return;
        case DPCR_U32:
            for (int64_t i = 0; i < n; i++) ((uint32_t *)y)[i] = ((const uint32_t *)r)[i] + ((const uint32_t *)sums)[i];
    }
}

// y = r + A x, a stretch of rows at a time: y may be r.
static void apply(const dpcri_sparse_kernels *kernels, dpcr_dtype dtype, dpcri_matrix m, const void *x, const char *r,
                  char *y) {
    const int64_t size = (int64_t)dpcr_dtype_size(dtype), rows = m.rows;
    if (!r) {
        kernels->single.apply(&m, x, y, 0, rows);
        return;
    }
    const int64_t *offsets = m.offsets;
    for (int64_t lo = 0; lo < rows; lo += STRETCH) {
        double sums[STRETCH];
        const int64_t n = rows - lo < STRETCH ? rows - lo : STRETCH;
        m.offsets = offsets + lo;
        kernels->single.apply(&m, x, sums, 0, n);
        add(dtype, r + lo * size, sums, y + lo * size, n);
    }
}

static void apply_transposed(const dpcri_sparse_kernels *kernels, dpcr_dtype dtype, const dpcri_matrix *m,
                             const void *x, const char *r, char *y) {
    const size_t bytes = (size_t)m->cols * dpcr_dtype_size(dtype);
    if (!r)
        memset(y, 0, bytes);
    else if (r != y)
        memmove(y, r, bytes);
    kernels->apply_t(m, x, y);
}

static const char *later(const void *base, int64_t bytes) { return base ? (const char *)base + bytes : NULL; }

// Sequence by sequence, a step at a time through what it left.
void dpcri_csr_serial(const dpcr_transition *t, int transposed, dpcr_dtype dtype, const dpcri_span *s) {
    const int64_t size = (int64_t)dpcr_dtype_size(dtype), none = s->x ? 0 : 1;
    for (int64_t b = 0; b < s->rows; b++) {
        const char *const r = later(s->r, b * s->r_row * size), *x = later(s->x, b * s->x_row * size);
        char *y = (char *)s->y + b * s->y_row * size;
        if (none && s->n > 0 && y != r) memmove(y, r, (size_t)(t->rows * size));
        for (int64_t m = none; m < s->n; m++) {
            const dpcri_span step = {.n = 1,
                                     .rows = 1,
                                     .a = later(s->a, (m * s->a_step + b * s->a_row) * size),
                                     .x = m > 0 ? y + (m - 1) * s->y_step * size : x,
                                     .r = later(r, m * s->r_step * size),
                                     .y = y + m * s->y_step * size};
            dpcri_csr_apply(t, transposed, dtype, &step);
        }
    }
}

void dpcri_csr_apply(const dpcr_transition *t, int transposed, dpcr_dtype dtype, const dpcri_span *s) {
    const dpcri_sparse_kernels *kernels = dpcri_sparse_kernels_get(dtype);
    const int64_t size = (int64_t)dpcr_dtype_size(dtype);
    for (int64_t i = 0; i < s->n; i++)
        for (int64_t b = 0; b < s->rows; b++) {
            const char *a = s->a ? (const char *)s->a + (i * s->a_step + b * s->a_row) * size : NULL;
            const char *x = (const char *)s->x + (i * s->x_step + b * s->x_row) * size;
            const char *r = s->r ? (const char *)s->r + (i * s->r_step + b * s->r_row) * size : NULL;
            char *y = (char *)s->y + (i * s->y_step + b * s->y_row) * size;
            const dpcri_matrix m = dpcri_matrix_of(t, a, false);
            if (transposed)
                apply_transposed(kernels, dtype, &m, x, r, y);
            else
                apply(kernels, dtype, m, x, r, y);
        }
}
