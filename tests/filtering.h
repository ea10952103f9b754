// SPDX-License-Identifier: MIT
// What the tests of filters share: a context of three threads, and noise.
#ifndef TESTS_FILTERING_H
#define TESTS_FILTERING_H

#include "deeppcr/deeppcr.h"

static dpcr_context *context;

static int set_up(void **state) {
    (void)state;
    const dpcr_context_options options = {.size = sizeof options, .threads = 3};
    return dpcr_context_create(&options, &context, NULL);
}

static int tear_down(void **state) {
    (void)state;
    dpcr_context_destroy(context);
    return 0;
}

static uint32_t seed = 1;
static double noise(void) {
    seed = seed * 1664525u + 1013904223u;
    return (double)(seed >> 8) / (1 << 23) - 1;
}

#endif
