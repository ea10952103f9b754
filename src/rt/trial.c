// SPDX-License-Identifier: MIT
#include "rt/trial.h"

enum {
    SAMPLES = 4,  // after a first one, in which the data move to the threads that are left
    REST = 512,   // steps between two trials: they cost less than one in a hundred
    FEWEST = 64   // no trial where fewer steps are left to gain from it
};
static const double WORTH = 0.97, HOPELESS = 1.25;

static void try_next(dpcri_trial *t, int threads) {
    t->now = threads;
    t->taken = 0;
    t->least = t->sum = 0;
}

static void end(dpcri_trial *t) {
    t->now = t->best;
    t->taken = -REST;
}

// Least and mean have both to be less: the least alone may be a short sequence's, the mean a disturbance.
static bool faster(const dpcri_trial *t) { return t->least < WORTH * t->best_least && t->sum < WORTH * t->best_sum; }

void dpcri_trial_note(dpcri_trial *t, double seconds, int64_t rows, int64_t steps_left) {
    if (t->all == 1 || rows < 1 || !(seconds > 0)) return;
    if (t->taken < 0) {
        if (++t->taken == 0) try_next(t, t->all);
        return;
    }
    const bool first = t->now == t->all;
    if (first && t->taken == 0 && steps_left < FEWEST) return;
    if (t->taken++ == 0) return;
    const double each = seconds / (double)rows;
    if (t->taken == 2 || each < t->least) t->least = each;
    t->sum += each;
    if (!first && each > HOPELESS * t->best_least) {
        end(t);
        return;
    }
    if (t->taken <= SAMPLES) return;
    const bool better = first || faster(t);
    if (better) {
        t->best = t->now;
        t->best_least = t->least;
        t->best_sum = t->sum;
    }
    if (better && t->now > 1)
        try_next(t, t->now / 2);
    else
        end(t);
}
