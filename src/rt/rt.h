// SPDX-License-Identifier: MIT
// Run time: the context's inside, threads, instruction set level.
#ifndef DPCRI_RT_H
#define DPCRI_RT_H

#include "base/base.h"

typedef enum dpcri_isa { DPCRI_PORTABLE = 0, DPCRI_AVX2, DPCRI_AVX512, DPCRI_ISA_COUNT } dpcri_isa;

// The level in force: the CPU's best, lowered by DEEPPCR_ISA. Decided once.
dpcri_isa dpcri_isa_level(void);

// for i in 0..n-1: task(argument, i), on the context's threads, in any order and at once. Calls that meet on one
// context take turns; a call from inside a task runs serially. n tasks are the plan's, never the thread count's: same
// bits for any number of threads.
void dpcri_parallel(dpcr_context *context, int64_t n, void (*task)(void *argument, int64_t i), void *argument);

// What this machine reaches, measured once a context (some tens of milliseconds, 32 MiB for a moment): for the planners' cost models.
typedef struct dpcri_rates {
    double flops;      // a second and thread, of small products
    double latency;    // seconds of one dependent multiply-add
    double region;     // seconds of one empty parallel region
    double bandwidth;  // bytes a second that one thread copies, far from the caches
    double threads;
} dpcri_rates;
void dpcri_rates_of(dpcr_context *context, dpcri_rates *rates);

// True when the caller's cancel function asks to stop.
bool dpcri_cancelled(const dpcr_context *context);

#endif
