// SPDX-License-Identifier: MIT
#include "rt/trial.h"

enum {
    REST = 512,  // steps between two trials, of which one takes 15 with two threads, 25 with eight
    FEWEST = 64  // no trial where fewer steps are left to gain from it
};
static const double WORTH = 0.97, HOPELESS = 1.25;

static void try_next(dpcri_trial *t, int threads) {
    t->now = threads;
    t->taken = 0;
}

static void end(dpcri_trial *t) {
    t->again = t->best < t->all && !t->again;
    if (t->again) {
        try_next(t, t->all);
    } else {
        t->now = t->best;
        t->taken = -REST;
    }
}

static void sort(double *x, int count) {
    for (int i = 1; i < count; i++)
        for (int k = i; k > 0 && x[k] < x[k - 1]; k--) {
            const double swapped = x[k];
            x[k] = x[k - 1], x[k - 1] = swapped;
        }
}

// Least and middle have both to be less: the least alone may be a short sequence's.
static bool faster(double least, double middle, double than_least, double than_middle) {
    return least < WORTH * than_least && middle < WORTH * than_middle;
}

void dpcri_trial_note(dpcri_trial *t, double seconds, int64_t rows, int64_t steps_left) {
    if (t->all == 1 || rows < 1 || !(seconds > 0)) return;
    if (t->taken < 0) {
        if (++t->taken == 0) try_next(t, t->all);
        return;
    }
    const bool first = t->now == t->all && !t->again, fewer = t->now < t->all;
    if (first && t->taken == 0 && steps_left < FEWEST) return;
    const int64_t taken = t->taken++;
    if (taken == 0) return;
    double *each = t->each + taken - 1;
    each[0] = seconds / (double)rows;
    const double hopeless = HOPELESS * t->best_least;
    if (!first && taken > 1 && each[0] > hopeless && each[-1] > hopeless) {  // one alone may be a disturbance
        end(t);
        return;
    }
    if (taken < DPCRI_TRIAL_STEPS) return;
    sort(t->each, DPCRI_TRIAL_STEPS);
    const double least = t->each[0], middle = t->each[DPCRI_TRIAL_STEPS / 2 - 1] + t->each[DPCRI_TRIAL_STEPS / 2];
    const bool better = first || (fewer ? faster(least, middle, t->best_least, t->best_middle)
                                        : !faster(t->best_least, t->best_middle, least, middle));
    if (better) {
        t->best = t->now;
        t->best_least = least;
        t->best_middle = middle;
    }
    if (better && t->now > 1 && !t->again)
        try_next(t, t->now / 2);
    else
        end(t);
}
