// SPDX-License-Identifier: MIT
// What the tests of the linear engine share: numbers by dtype, random fill, and the chain by its definition, written
// without a line of the library's.
#ifndef TESTS_LINEAR_COMMON_H
#define TESTS_LINEAR_COMMON_H

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "deeppcr/deeppcr.h"

static uint64_t random_state = 0x9e3779b97f4a7c15u;

static inline uint64_t random_bits(void) {  // splitmix64
    uint64_t x = random_state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline int64_t random_below(int64_t n) { return (int64_t)(random_bits() % (uint64_t)n); }
static inline double random_signed(void) { return (double)(random_bits() >> 11) * 0x1p-52 - 1.0; }

static inline double get(dpcr_dtype dtype, const void *base, int64_t i) {
    if (dtype == DPCR_F32) return ((const float *)base)[i];
    return dtype == DPCR_F64 ? ((const double *)base)[i] : ((const uint32_t *)base)[i];
}

static inline void put(dpcr_dtype dtype, void *base, int64_t i, double value) {
    if (dtype == DPCR_F32)
        ((float *)base)[i] = (float)value;
    else if (dtype == DPCR_F64)
        ((double *)base)[i] = value;
    else
        ((uint32_t *)base)[i] = (uint32_t)(int64_t)value;
}

static inline double epsilon_of(dpcr_dtype dtype) {
    return dtype == DPCR_F32 ? FLT_EPSILON : dtype == DPCR_F64 ? DBL_EPSILON : 0;
}

// Number of an entry of a csr pattern, -1 where there is none.
static inline int64_t entry_of(const dpcr_pattern *p, int64_t i, int64_t j) {
    for (int64_t e = p->offsets[i]; e < p->offsets[i + 1]; e++)
        if (p->columns[e] == j) return e;
    return -1;
}

// Place of A_ij among the values, -1 where A_ij is zero, -2 where it is one.
static inline int64_t place_of(const dpcr_transition *t, int64_t i, int64_t j) {
    switch (t->structure) {
        case DPCR_ZERO: return -1;
        case DPCR_IDENTITY: return i == j ? -2 : -1;
        case DPCR_SCALAR: return i == j ? 0 : -1;
        case DPCR_DIAGONAL: return i == j ? i : -1;
        case DPCR_BLOCK: return i / t->block == j / t->block ? i * t->block + j % t->block : -1;
        case DPCR_CSR: return entry_of(t->pattern, i, j);
        default: return i * t->cols + j;
    }
}

// z = z0; for l: z = op(A) z + b, with everything contiguous [L][B][...] but for shared transitions (steps of 0).
typedef struct loop_case {
    dpcr_transition t;
    dpcr_dtype dtype;
    int64_t length, batch, values;
    bool transposed, absolute;
    const void *a, *b, *z0;
    int64_t a_step, a_row;
} loop_case;

// One row of op(A) x + b, summed in long double or in the ring. `absolute` takes absolute values: the error's scale.
static inline void loop_row(const loop_case *c, const void *a, const long double *x, const uint32_t *ux, const void *b,
                            int64_t b_at, long double *y, uint32_t *uy, bool has_x) {
    const int64_t w = c->t.rows;
    for (int64_t i = 0; i < w; i++) {
        const double bi = get(c->dtype, b, b_at + i);
        long double sum = c->absolute ? fabs(bi) : bi;
        uint32_t ring = c->dtype == DPCR_U32 ? ((const uint32_t *)b)[b_at + i] : 0;
        for (int64_t j = 0; j < w && has_x; j++) {
            const int64_t place = c->transposed ? place_of(&c->t, j, i) : place_of(&c->t, i, j);
            if (place == -1) continue;
            if (c->dtype == DPCR_U32) {
                ring += (place == -2 ? 1u : ((const uint32_t *)a)[place]) * ux[j];
                continue;
            }
            const double aij = place == -2 ? 1.0 : get(c->dtype, a, place);
            sum += (long double)(c->absolute ? fabs(aij) : aij) * x[j];
        }
        y[i] = sum;
        uy[i] = ring;
    }
}

// The states, as long double (or, for uint32, exactly in `ring`); arrays of length x batch x w.
static inline void plain_loop(const loop_case *c, long double *z, uint32_t *ring) {
    const int64_t w = c->t.rows, state = c->batch * w, size = (int64_t)dpcr_dtype_size(c->dtype);
    long double *start = calloc((size_t)w + 1, sizeof *start);
    uint32_t *ring_start = calloc((size_t)w + 1, sizeof *ring_start);
    for (int64_t row = 0; row < c->batch; row++)
        for (int64_t m = 0; m < c->length; m++) {
            const int64_t l = c->transposed ? c->length - 1 - m : m, before = c->transposed ? l + 1 : l - 1;
            const int64_t a_of = c->transposed ? l + 1 : l;
            for (int64_t i = 0; i < w && c->z0 && m == 0; i++) {
                const double v = get(c->dtype, c->z0, row * w + i);
                start[i] = c->absolute ? fabs(v) : v;
                if (c->dtype == DPCR_U32) ring_start[i] = ((const uint32_t *)c->z0)[row * w + i];
            }
            const bool has_x = m > 0 || c->z0;
            const char *a = has_x && c->a ? (const char *)c->a + (a_of * c->a_step + row * c->a_row) * size : NULL;
            loop_row(c, a, m > 0 ? z + before * state + row * w : start,
                     m > 0 ? ring + before * state + row * w : ring_start, c->b, l * state + row * w,
                     z + l * state + row * w, ring + l * state + row * w, has_x);
        }
    free(start);
    free(ring_start);
}

typedef enum fill { FILL_RANDOM, FILL_PERMUTATION } fill;

// One transition's values: random with absolute row and column sums below 0.95 (ring: anything), or a signed
// permutation.
static inline void fill_transition(const dpcr_transition *t, dpcr_dtype dtype, fill how, void *base, int64_t at) {
    const int64_t values = dpcr_transition_values(t);
    const int64_t k = t->structure == DPCR_DENSE ? t->rows : t->structure == DPCR_BLOCK ? t->block : 1;
    if (dtype == DPCR_U32) {
        for (int64_t i = 0; i < values; i++) ((uint32_t *)base)[at + i] = (uint32_t)random_bits();
        return;
    }
    if (how == FILL_RANDOM || k == 1) {
        for (int64_t i = 0; i < values; i++)
            put(dtype, base, at + i,
                how == FILL_PERMUTATION ? (random_bits() & 1 ? 1 : -1) : 0.95 * random_signed() / (double)k);
        return;
    }
    for (int64_t i = 0; i < values; i++) put(dtype, base, at + i, 0);
    int64_t *order = malloc((size_t)k * sizeof *order);
    for (int64_t block = 0; block < values / (k * k); block++) {
        for (int64_t i = 0; i < k; i++) order[i] = i;
        for (int64_t i = k - 1; i > 0; i--) {
            const int64_t other = random_below(i + 1), kept = order[i];
            order[i] = order[other];
            order[other] = kept;
        }
        for (int64_t i = 0; i < k; i++)
            put(dtype, base, at + block * k * k + i * k + order[i], random_bits() & 1 ? 1 : -1);
    }
    free(order);
}

static inline void fill_vector(dpcr_dtype dtype, fill how, void *base, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (dtype == DPCR_U32)
            ((uint32_t *)base)[i] = (uint32_t)random_bits();
        else
            put(dtype, base, i, how == FILL_PERMUTATION ? (double)(random_below(201) - 100) : random_signed());
    }
}

#endif
