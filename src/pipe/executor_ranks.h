// SPDX-License-Identifier: MIT
// The ranks of a training run: threads of this process, or processes that a transport joins.
#ifndef DPCRI_PIPE_EXECUTOR_RANKS_H
#define DPCRI_PIPE_EXECUTOR_RANKS_H

#include "deeppcr/pipeline.h"
#include "rt/comm/comm.h"

// transport NULL: dpcri_threads_run. Else runs the body of this process's rank alone; `call` is named where the
// transport is one of another number of ranks.
dpcr_status dpcri_ranks_run(const char *call, dpcr_context *messages, int64_t ranks, double deadline,
                            const dpcr_transport *transport, dpcri_rank_body *body, void *argument, dpcr_error *error);

// What this rank's caller says, who is not rank 0's, where he asks to stop (> 0), else 0: threads have one caller, whom
// rank 0 asks.
int dpcri_ranks_asked(const dpcr_transport *transport, const dpcr_context *context);
// What rank 0 has decided (dpcri_decision), where another rank was asked to stop too. *stopped_by (0 before) is by
// what, where nothing else stops it.
int64_t dpcri_ranks_heed(int64_t decided, int asked, int *stopped_by);
// The status, with that in the error where it is DPCR_ERROR_CANCELLED.
dpcr_status dpcri_ranks_stopped(dpcr_status status, int stopped_by, dpcr_error *error);

#endif
