// SPDX-License-Identifier: MIT
// Selective scans for tests: what goes in and comes out, in pages whose neighbours must not be touched.
#ifndef SELECTIVE_PROBLEM_H
#define SELECTIVE_PROBLEM_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the four above
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kern/selective.h"

// In: 0 .. 8, then what comes out, then the gradients of what goes in, in the same order.
enum {
    U,
    DELTA,
    A_,
    B_,
    C_,
    SKIP,
    Z,
    BIAS,
    H0,
    INPUTS,
    Y = INPUTS,
    LAST,
    GY,
    GLAST,
    GRADIENTS,
    KEPT = GRADIENTS + INPUTS,
    USES
};
enum { MOST_BYTES = 1 << 20 };
#include "guarded.h"
#include "scan_testing.h"

static const char *const names[] = {"u", "delta", "a", "b", "c", "skip", "z", "delta_bias", "h0"};

typedef struct problem {
    dpcr_dtype dtype;
    int64_t batch, channels, groups, states, length;
    int64_t groups_c;      // 0: as many
    bool softplus, whole;  // whole: small whole numbers, and a = 0
    unsigned there;        // which of SKIP, Z, BIAS, H0, as bits
    layout layout;
    dpcr_array at[USES];
    dpcr_selective in;
    dpcr_selective_gradients out;
} problem;

static inline int64_t groups_of(const problem *p, int use) {
    return use == C_ && p->groups_c ? p->groups_c : p->groups;
}

static inline int extents(const problem *p, int use, int64_t *shape) {
    const int what = use >= GRADIENTS              ? use - GRADIENTS
                     : use == Y || use == GY       ? U
                     : use == LAST || use == GLAST ? H0
                                                   : use;
    const int64_t rows[3] = {p->batch, p->channels, what == H0 ? p->states : p->length};
    const int64_t shared[4] = {p->batch, groups_of(p, what), p->states, p->length}, own[2] = {p->channels, p->states};
    const int ndim = what == A_ ? 2 : what == B_ || what == C_ ? 4 : what == SKIP || what == BIAS ? 1 : 3;
    memcpy(shape, ndim == 3 ? rows : ndim == 4 ? shared : own, (size_t)ndim * sizeof *shape);
    return ndim;
}

static inline const dpcr_array *given(const problem *p, int use) {
    const bool optional = use >= SKIP && use <= H0;
    return optional && !(p->there & 1u << use) ? NULL : &p->at[use];
}

static inline void fill(problem *p, bool beginning) {
    for (int use = 0; use < KEPT; use++) {
        int64_t shape[4];
        const int ndim = extents(p, use, shape);
        p->at[use] = lay_out(p->layout, p->dtype, ndim, shape, use, beginning);
        const bool rate = use == A_, step = use == DELTA || use == BIAS;
        for (int64_t i = 0; i < count_of(&p->at[use]); i++) {
            double x = use >= GRADIENTS || use == Y || use == LAST ? NAN : rate ? -2 - 1.9 * noise() : noise();
            if (step && !p->softplus) x = 0.3 + 0.2 * x;
            if (p->whole) x = rate ? 0 : use < Y || use == GY || use == GLAST ? (double)(int)(3 * x) : NAN;
            put(&p->at[use], i, x);
        }
    }
    const dpcr_array *const in[INPUTS] = {given(p, U),    given(p, DELTA), given(p, A_),   given(p, B_), given(p, C_),
                                          given(p, SKIP), given(p, Z),     given(p, BIAS), given(p, H0)};
    p->in = (dpcr_selective){sizeof p->in, in[U], in[DELTA], in[A_], in[B_],     in[C_],
                             in[SKIP],     in[Z], in[BIAS],  in[H0], p->softplus};
    const dpcr_array *g = p->at + GRADIENTS;
    p->out = (dpcr_selective_gradients){sizeof p->out,
                                        &g[U],
                                        &g[DELTA],
                                        &g[A_],
                                        &g[B_],
                                        &g[C_],
                                        in[SKIP] ? &g[SKIP] : NULL,
                                        in[Z] ? &g[Z] : NULL,
                                        in[BIAS] ? &g[BIAS] : NULL,
                                        &g[H0]};
}

static inline problem middling(dpcr_dtype dtype, int64_t batch, int64_t channels) {
    return (problem){.dtype = dtype,
                     .batch = batch,
                     .channels = channels,
                     .groups = 1,
                     .states = 4,
                     .length = 35,
                     .softplus = true,
                     .there = 15u << SKIP};
}

static inline void run(dpcr_context *context, problem *p, void *kept) {
    assert_int_equal(dpcr_selective_scan(context, &p->in, &p->at[Y], &p->at[LAST], kept, NULL), DPCR_OK);
    assert_int_equal(dpcr_selective_adjoint(context, &p->in, &p->at[GY], &p->at[GLAST], kept, &p->out, NULL), DPCR_OK);
}

#endif
