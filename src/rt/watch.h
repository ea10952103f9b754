// SPDX-License-Identifier: MIT
// The caller's cancel function, asked from inside a long call: some tens of times a second and on the thread that
// called, wherever that thread comes by. All threads see the answer and leave out what is left, so what the call writes
// is then worth nothing, and the call says DPCR_ERROR_CANCELLED.
#ifndef DPCRI_WATCH_H
#define DPCRI_WATCH_H

#include <pthread.h>
#include <stdatomic.h>

#include "rt/rt.h"

typedef struct dpcri_watch {
    const dpcr_context *context;
    pthread_t caller;
    double asked;  // when; the caller's alone
    _Atomic bool stopped;
} dpcri_watch;

// Begins a watch over `flops` of work; NULL where they are soon done or nobody could ask to stop.
dpcri_watch *dpcri_watch_begin(dpcri_watch *watch, const dpcr_context *context, double flops);

// Whether to leave out the rest. NULL: never.
bool dpcri_watch_stopped(dpcri_watch *watch);

// The same of a call inside, which may have heard it: whether it says DPCR_ERROR_CANCELLED.
bool dpcri_watch_heard(dpcri_watch *watch, dpcr_status status);

// Steps between two looks, of `flops` each.
int64_t dpcri_watch_steps(double flops);

#endif
