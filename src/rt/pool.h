// SPDX-License-Identifier: MIT
// The thread pool: workers that take part in one region at a time. The caller works too and never waits for a worker
// that has not come (where no task waits for another), so a region is never slower than the loop by more than a task
// where processors are taken by others, or a time slice where one is taken from a worker inside (pools that wait for
// every worker to answer lose a scheduler's time slice a region there).
#ifndef DPCRI_POOL_H
#define DPCRI_POOL_H

#include "base/base.h"

typedef struct dpcri_pool dpcri_pool;

// `workers` threads besides the caller's; fewer, or none, where the system refuses. NULL when memory is refused.
dpcri_pool *dpcri_pool_create(dpcr_context *context, int workers);
void dpcri_pool_destroy(dpcr_context *context, dpcri_pool *pool);

// for i in 0..n-1: task(argument, i), by the caller and the first `helpers` of the workers: each begins
// with its own range of tasks, in order, the caller with the first. One caller at a time.
void dpcri_pool_run(dpcri_pool *pool, int helpers, int64_t n, void (*task)(void *argument, int64_t i), void *argument);

#endif
