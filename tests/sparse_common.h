// SPDX-License-Identifier: MIT
// Random dense, diagonal and csr matrices for the tests, and what they are by definition: expanded, entry by entry.
#ifndef TESTS_SPARSE_COMMON_H
#define TESTS_SPARSE_COMMON_H

#include "linear_common.h"

typedef struct operand {
    dpcr_transition t;
    dpcr_pattern pattern;
    int64_t *offsets;
    int32_t *columns;
    int64_t entries;
} operand;

static inline void *room_for(int64_t count) {
    void *memory = aligned_alloc(64, ((size_t)count * 8 + 191) / 64 * 64);
    assert_non_null(memory);
    memset(memory, 0, ((size_t)count * 8 + 191) / 64 * 64);
    return memory;
}

// A csr matrix with each entry there `in_thousand` times of 1000; the pattern lies in memory of its own, so that the
// operand can be moved.
static inline operand *make_operand(dpcr_structure structure, int64_t rows, int64_t cols, int64_t in_thousand) {
    operand *o = calloc(1, sizeof *o);
    assert_non_null(o);
    o->t = (dpcr_transition){.structure = structure, .rows = rows, .cols = cols};
    if (structure == DPCR_CSR) {
        o->offsets = room_for(rows + 1);
        o->columns = room_for(rows * cols);
        for (int64_t i = 0; i < rows; i++) {
            for (int64_t j = 0; j < cols; j++)
                if (random_below(1000) < in_thousand) o->columns[o->entries++] = (int32_t)j;
            o->offsets[i + 1] = o->entries;
        }
        o->pattern = (dpcr_pattern){rows, cols, o->offsets, o->columns};
        o->t = dpcr_transition_csr(&o->pattern);
    }
    o->entries = dpcr_transition_values(&o->t);
    return o;
}

static inline void drop_operand(operand *o) {
    free(o->offsets);
    free(o->columns);
    free(o);
}

// Small whole numbers, whose sums are exact in every dtype; any numbers of the ring; or reals.
static inline void fill_values(dpcr_dtype dtype, bool whole, void *values, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        if (dtype == DPCR_U32)
            ((uint32_t *)values)[i] = (uint32_t)random_bits();
        else
            put(dtype, values, i, whole ? (double)(random_below(7) - 3) : random_signed());
    }
}

// The entries of t as a dense matrix, zero where there is none. [rows * cols]
static inline void *expand(const dpcr_transition *t, dpcr_dtype dtype, const void *values) {
    void *dense = room_for(t->rows * t->cols);
    const size_t size = dpcr_dtype_size(dtype);
    const dpcr_pattern *p = t->pattern;
    for (int64_t i = 0; i < t->rows; i++) {
        const int64_t from = t->structure == DPCR_CSR ? p->offsets[i] : t->structure == DPCR_DENSE ? i * t->cols : i;
        const int64_t to = t->structure == DPCR_CSR     ? p->offsets[i + 1]
                           : t->structure == DPCR_DENSE ? from + t->cols
                                                        : i + 1;
        for (int64_t e = from; e < to; e++) {
            const int64_t j = t->structure == DPCR_CSR ? p->columns[e] : t->structure == DPCR_DENSE ? e - from : i;
            memcpy((char *)dense + (size_t)(i * t->cols + j) * size, (const char *)values + (size_t)e * size, size);
        }
    }
    return dense;
}

// C = A B of dense matrices, by definition: in the ring, or in double, which is exact for small whole numbers.
static inline void *multiply(dpcr_dtype dtype, const void *a, const void *b, int64_t m, int64_t k, int64_t n) {
    void *c = room_for(m * n);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            uint32_t ring = 0;
            for (int64_t l = 0; l < k; l++) {
                if (dtype == DPCR_U32)
                    ring += ((const uint32_t *)a)[i * k + l] * ((const uint32_t *)b)[l * n + j];
                else
                    sum += get(dtype, a, i * k + l) * get(dtype, b, l * n + j);
            }
            if (dtype == DPCR_U32)
                ((uint32_t *)c)[i * n + j] = ring;
            else
                put(dtype, c, i * n + j, sum);
        }
    return c;
}

// Elements that differ; -0 is 0.
static inline int64_t differences(dpcr_dtype dtype, const void *x, const void *y, int64_t count) {
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; i++) wrong += !(get(dtype, x, i) == get(dtype, y, i));
    return wrong;
}

static const dpcr_structure operand_kinds[] = {DPCR_DENSE, DPCR_DIAGONAL, DPCR_CSR};
static const dpcr_dtype all_dtypes[] = {DPCR_F32, DPCR_F64, DPCR_U32};

// A refusal: its status, and one line that holds `words`. Clears the error.
static inline void expect(dpcr_status got, dpcr_status wanted, dpcr_error *error, const char *words) {
    if (got != wanted || error->status != wanted || !strstr(error->text, words) || strchr(error->text, '\n'))
        fail_msg("got %s \"%s\", wanted %s with \"%s\"", dpcr_status_name(got), error->text, dpcr_status_name(wanted),
                 words);
    *error = (dpcr_error){0};
}

#endif
