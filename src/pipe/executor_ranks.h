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

#endif
