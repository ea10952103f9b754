// SPDX-License-Identifier: MIT
// What the programs of bench/ share: a clock, and an end where a call fails.
#ifndef BENCH_TIMING_H
#define BENCH_TIMING_H

#include <deeppcr/deeppcr.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

// Seconds.
static inline double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline void must(dpcr_status status, const dpcr_error *error) {
    if (status == DPCR_OK) return;
    fprintf(stderr, "bench: %s\n", error->text);
    exit(1);
}

#endif
