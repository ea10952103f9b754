// SPDX-License-Identifier: MIT
// Linear attention for tests: what goes in and comes out, in pages whose neighbours must not be touched.
#ifndef ATTENTION_PROBLEM_H
#define ATTENTION_PROBLEM_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the four above
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "deeppcr/attention.h"

// In: 0 .. 5, then what comes out, then the gradients of what goes in, in the same order.
enum { Q, K_, V_, G_, BETA, S0, INPUTS, O = INPUTS, LAST, GO, GLAST, GRADIENTS, KEPT = GRADIENTS + INPUTS, USES };
enum { MOST_BYTES = 1 << 22 };
#include "guarded.h"
#include "scan_testing.h"

// Below n, from a generator of its own: options that hang together would leave cases out.
static inline int64_t pick(int64_t n) {
    static uint64_t picked = 7;
    picked = picked * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((picked >> 33) % (uint64_t)n);
}

typedef struct problem {
    dpcr_dtype dtype;
    int64_t batch, length, groups, heads, keys, values;
    bool mixed;          // every array lies in a way of its own
    bool by_row, whole;  // whole: keys of one component, decays of 0 and 1, small whole numbers
    unsigned there;      // which of G_, BETA, S0, as bits
    layout layout;
    dpcr_array at[USES];
    dpcr_attention in;
    dpcr_attention_gradients out;
} problem;

static inline int extents(const problem *p, int use, int64_t *shape) {
    const int what = use >= GRADIENTS              ? use - GRADIENTS
                     : use == O || use == GO       ? V_
                     : use == LAST || use == GLAST ? S0
                                                   : use;
    const bool of_head = what == V_ || what == G_ || what == BETA;
    const int64_t steps[4] = {p->batch, p->length, of_head ? p->heads : p->groups, what == V_ ? p->values : p->keys};
    const int64_t state[4] = {p->batch, p->heads, p->keys, p->values};
    memcpy(shape, what == S0 ? state : steps, sizeof steps);
    return what == BETA || (what == G_ && !p->by_row) ? 3 : 4;
}

static inline const dpcr_array *given(const problem *p, int use) {
    return use >= G_ && use <= S0 && !(p->there & 1u << use) ? NULL : &p->at[use];
}

static inline double whole_number(int use) {
    switch (use) {
        case G_: return noise() < -0.5 ? -INFINITY : 0;
        case BETA: return noise() < 0;
        default: return (double)(int)(4 * noise());
    }
}

// Keys of length 1: a step's matrix then makes no state longer.
static inline void bound_keys(problem *p) {
    for (int64_t r = 0; r < count_of(&p->at[K_]); r += p->keys) {
        double sum = 0;
        const int64_t one = (int64_t)((1 + noise()) / 2 * (double)p->keys);
        for (int64_t c = 0; c < p->keys; c++) sum += get(&p->at[K_], r + c) * get(&p->at[K_], r + c);
        for (int64_t c = 0; c < p->keys; c++)
            put(&p->at[K_], r + c, p->whole ? (double)(c == one) : get(&p->at[K_], r + c) / sqrt(sum));
    }
}

static inline void fill(problem *p, bool beginning) {
    for (int use = 0; use < KEPT; use++) {
        int64_t shape[4];
        const int ndim = extents(p, use, shape);
        p->at[use] = lay_out(p->mixed ? (layout)pick(3) : p->layout, p->dtype, ndim, shape, use, beginning);
        for (int64_t i = 0; i < count_of(&p->at[use]); i++) {
            double x = use == G_ ? -0.3 - 0.3 * noise() : use == BETA ? 0.9 + noise() : noise();
            if (use == G_ && pick(50) == 0) x = -50;
            if (p->whole) x = whole_number(use);
            put(&p->at[use], i, use >= GRADIENTS || use == O || use == LAST ? NAN : x);
        }
    }
    bound_keys(p);
    p->in = (dpcr_attention){sizeof p->in, given(p, Q),    given(p, K_), given(p, V_),
                             given(p, G_), given(p, BETA), given(p, S0), p->whole ? 2 : 0.7};
    const dpcr_array *g = p->at + GRADIENTS;
    p->out = (dpcr_attention_gradients){
        sizeof p->out, &g[Q], &g[K_], &g[V_], p->in.g ? &g[G_] : NULL, p->in.beta ? &g[BETA] : NULL, &g[S0]};
}

static inline void run(dpcr_context *context, problem *p, void *kept) {
    dpcr_error error = {0};
    if (dpcr_attention_scan(context, &p->in, &p->at[O], &p->at[LAST], kept, &error) != DPCR_OK ||
        dpcr_attention_adjoint(context, &p->in, &p->at[GO], &p->at[GLAST], kept, &p->out, &error) != DPCR_OK)
        fail_msg("%s", error.text);
}

static inline problem middling(dpcr_dtype dtype, bool by_row) {
    return (problem){.dtype = dtype,
                     .batch = 2,
                     .length = 150,
                     .groups = 1,
                     .heads = 2,
                     .keys = 10,
                     .values = 75,
                     .by_row = by_row,
                     .there = 7u << G_};
}

static inline size_t bytes_of(const dpcr_array *a) { return (size_t)count_of(a) * dpcr_dtype_size(a->dtype); }

static inline bool comes_out(int use) { return use == O || use == LAST || use >= GRADIENTS; }

#endif
