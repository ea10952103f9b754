// SPDX-License-Identifier: MIT
// What the tests of chains over ranks share: a context of one thread, and numbers.
#ifndef RANKS_TESTING_H
#define RANKS_TESTING_H

// cmocka.h wants the first four before it.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "deeppcr/deeppcr.h"

static dpcr_context *context;

static inline int set_up(void **state) {
    (void)state;
    const dpcr_context_options options = {.size = sizeof options, .threads = 1};
    return dpcr_context_create(&options, &context, NULL) == DPCR_OK ? 0 : 1;
}
static inline int tear_down(void **state) {
    (void)state;
    dpcr_context_destroy(context);
    return 0;
}

// `count` numbers within +-scale (0: zeros), other ones each time.
static inline double *numbers(int64_t count, double scale) {
    static uint64_t seed = 1;
    double *made = calloc((size_t)count + 8, sizeof *made);
    for (int64_t i = 0; i < count && scale > 0; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        made[i] = scale * ((double)(seed >> 11) * 0x1p-52 - 1);
    }
    return made;
}

#endif
