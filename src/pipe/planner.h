// SPDX-License-Identifier: MIT
// Planning rows for given times, hops and memory: a list scheduler with policies, a local search on its rows, and an
// exact search for small cases. Microbatches are alike, so on a rank the tasks of a stage and kind come in the order of
// microbatches (docs/math/schedules.md shows that nothing is lost), and a row is a sequence of kinds.
#ifndef DPCRI_PIPE_PLANNER_H
#define DPCRI_PIPE_PLANNER_H

#include "pipe/pipe.h"

typedef struct dpcri_problem {
    dpcr_context *context;
    int64_t p, v, m, stages;
    const int32_t *rank_of;            // [stages]
    const dpcr_schedule_costs *costs;  // checked
    double limit;                      // activations a rank holds; 0: none
    dpcr_objective objective;          // STEADY here means the longest span of a rank
    bool late;                         // rows with delays: the bound below does not hold
    dpcr_error *error;
} dpcri_problem;

typedef struct dpcri_score {
    double first, second;  // the objective; the sum over ranks of what it is the maximum of
} dpcri_score;

static inline bool dpcri_better(dpcri_score a, dpcri_score b) {
    return a.first < b.first || (a.first == b.first && a.second < b.second);
}

// No rows have less than this.
double dpcri_lower_bound(const dpcri_problem *problem);
// The best rows that the policies find, into a schedule that has room for them (3 actions a cell). *found false: every
// policy ran into the memory limit.
dpcr_status dpcri_plan_list(const dpcri_problem *problem, dpcr_schedule *schedule, bool *found);
// Moves single actions within their rows while that helps or does not hurt, for about `budget` actions run. Keeps the
// memory limit; *score is the result's.
dpcr_status dpcri_plan_improve(const dpcri_problem *problem, dpcr_schedule *schedule, int64_t budget,
                               dpcri_score *score);
// Rows proved best for the objective and limit, where they are better than `schedule` and `budget` nodes prove it; else
// the schedule stays. *proved: it is best.
dpcr_status dpcri_plan_exact(const dpcri_problem *problem, dpcr_schedule *schedule, int64_t budget, bool *proved);

double dpcri_task_cost(const dpcri_problem *problem, dpcr_task task, int64_t stage);
// What memory an action takes (F: 1) or frees (I, W: -0.5, B: -1).
double dpcri_holds(const dpcr_action *action);

#endif
