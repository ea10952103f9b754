// SPDX-License-Identifier: MIT
// What every read and update of a segment of layer-wise training sees.
#ifndef DPCRI_WORKERS_CLOCK_H
#define DPCRI_WORKERS_CLOCK_H

#include "base/base.h"

// Of minibatch t and group g, at [t * groups + g]: updates of the group that its forward pass and its gradients have
// seen, that of the weights those that the input's has. Of update u of group g: how many forward passes and passes back
// read what it replaces, or older.
typedef struct dpcri_clock {
    dpcr_context *context;
    int64_t minibatches, groups;
    int32_t *forward, *input;
    int32_t *forwards_before, *backs_before;
} dpcri_clock;

dpcr_status dpcri_clock_create(dpcri_clock *clock, dpcr_context *context, int64_t minibatches, int64_t groups,
                               int64_t forwards, int64_t backwards, int64_t ahead, dpcr_error *error);
void dpcri_clock_destroy(dpcri_clock *clock);

#endif
