// SPDX-License-Identifier: MIT
// Contexts of one thread each for the ranks of a pipeline, whose memory is the caller's context's, asked for one rank
// at a time.
#ifndef DPCRI_PIPE_EXECUTOR_CONTEXT_H
#define DPCRI_PIPE_EXECUTOR_CONTEXT_H

#include <pthread.h>

#include "base/base.h"

typedef struct dpcri_lender {
    dpcr_context *parent;  // NULL: not open
    pthread_mutex_t turn;
} dpcri_lender;

dpcr_status dpcri_lender_open(dpcri_lender *lender, dpcr_context *parent, dpcr_error *error);
void dpcri_lender_close(dpcri_lender *lender);  // after its contexts are gone
dpcr_status dpcri_lender_context(dpcri_lender *lender, dpcr_context **context, dpcr_error *error);

#endif
