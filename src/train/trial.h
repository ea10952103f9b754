// SPDX-License-Identifier: MIT
// How many threads a training run gains from, found out by its own clock. More threads are not always faster: what one
// writes and another reads travels from core to core, and narrow layers have little to share. Bits do not depend on it.
#ifndef DPCRI_TRAIN_TRIAL_H
#define DPCRI_TRAIN_TRIAL_H

#include "base/base.h"

// All threads, then half as many, and so on while that is faster by 3 % at least; the best number then runs for some
// hundred steps until the next trial. {.all = threads of the context, .now = the same} to begin with.
typedef struct dpcri_trial {
    int all, now;                 // threads: the context's, and of the next step
    int best;                     // the best number of this trial so far
    int64_t taken;                // steps with `now`; < 0: steps left until the next trial
    double least, sum;            // seconds a row with `now`, the first step left out
    double best_least, best_sum;  // with `best`
} dpcri_trial;

// A step over `rows` rows took that long with trial->now threads; so many steps are left.
void dpcri_trial_note(dpcri_trial *trial, double seconds, int64_t rows, int64_t steps_left);

#endif
