// SPDX-License-Identifier: MIT
// How many threads a piece of work gains from that comes again and again, found out by its own clock. More threads are
// not always faster: what one writes and another reads travels from core to core, and narrow layers have little to
// share. Bits do not depend on it.
#ifndef DPCRI_TRIAL_H
#define DPCRI_TRIAL_H

#include "base/base.h"

// All threads, then half as many, and so on while that is faster by 3 % at least, and all once more where fewer were,
// for first steps may be slow of themselves; the best number then runs for some hundred steps until the next trial. A
// step: the piece once; of a training run over some rows. {.all = threads of the context, .now = the same} to begin
// with.
enum { DPCRI_TRIAL_STEPS = 4 };  // that count, of one number of threads
typedef struct dpcri_trial {
    int all, now;                    // threads: the context's, and of the next step
    int best;                        // the best number of this trial so far
    int64_t taken;                   // steps with `now`; < 0: steps left until the next trial
    bool again;                      // all once more
    double each[DPCRI_TRIAL_STEPS];  // seconds a row with `now`, of the steps that count
    double best_least, best_middle;  // with `best`: of the quickest step, and of the two in the middle together
} dpcri_trial;

// A step over `rows` rows took that long with trial->now threads; so many steps are left.
void dpcri_trial_note(dpcri_trial *trial, double seconds, int64_t rows, int64_t steps_left);

// Trials that a context keeps, by kinds of work, which are any numbers: threads for the next piece of that kind, of
// which `most` are worth trying; and how long it took with as many over `rows` of whatever it has, which tells nothing
// where they were not there (dpcri_threads_limit). Of more kinds than have places, who comes begins anew in another's.
// Any thread may call.
enum { DPCRI_TRIALS = 128 };
int dpcri_trial_threads(dpcr_context *context, uint64_t kind, int most);
void dpcri_trial_took(dpcr_context *context, uint64_t kind, int threads, double seconds, int64_t rows);
// Pieces that have told something, of all kinds: for tests.
int64_t dpcri_trials_told(dpcr_context *context);

#endif
