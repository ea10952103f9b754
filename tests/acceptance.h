// SPDX-License-Identifier: MIT
// What the programs of published cases share: a context of two threads, and noise of each program's own.
#ifndef TESTS_ACCEPTANCE_H
#define TESTS_ACCEPTANCE_H

#include <math.h>
#include <stdbool.h>

#include "solving.h"

static dpcr_context *context;

static int set_up(void **state) {
    (void)state;
    context = solving_context(2);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    dpcr_context_destroy(context);
    return 0;
}

// In (-1, 1). NOISE, which the including source defines, keeps programs apart.
static inline double noise(int64_t i, int64_t stream) { return chain_noise(i, stream, NOISE); }

#endif
