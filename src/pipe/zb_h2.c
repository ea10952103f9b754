// SPDX-License-Identifier: MIT
// ZB-H2 has no closed rule for unequal times: the planner makes it, with room for 2p activations a rank (2p - 1
// microbatches on their way on rank 0) unless the caller limits the memory otherwise, for the shortest span. At equal
// times and m >= 2p the span is the work alone. Source: Zero Bubble (arXiv 2401.10241).
#include "pipe/planner.h"

enum { BUDGET = 20000000 };  // actions run in the local search

dpcr_status dpcri_make_zb_h2(dpcri_maker *maker) {
    dpcr_schedule_costs costs;
    int32_t *rank_of = NULL;
    bool found = false;
    dpcri_score score;
    dpcr_status status;
    DPCR_TRY(dpcri_costs_check(maker->options->costs, maker->p, &costs, maker->error));
    DPCR_TRY(dpcri_maker_start(maker, maker->p, maker->m, 3));
    rank_of = dpcri_alloc(maker->context, (size_t)maker->p * sizeof *rank_of);
    if (!rank_of) DPCR_TRY(dpcri_fail(maker->error, DPCR_ERROR_MEMORY, "zb-h2: no memory to plan it"));
    for (int64_t s = 0; s < maker->p; s++) rank_of[s] = (int32_t)s;
    const dpcri_problem problem = {
        .context = maker->context,
        .p = maker->p,
        .v = 1,
        .m = maker->m,
        .stages = maker->p,
        .rank_of = rank_of,
        .costs = &costs,
        .limit = maker->options->memory_limit > 0 ? maker->options->memory_limit : 2 * (double)maker->p,
        .objective = DPCR_OBJECTIVE_STEADY,
        .error = maker->error};
    if (problem.limit < 1)
        DPCR_TRY(dpcri_fail(maker->error, DPCR_ERROR_UNSUPPORTED,
                            "zb-h2: a memory limit of %g activations; a forward takes one", problem.limit));
    DPCR_TRY(dpcri_plan_list(&problem, maker->schedule, &found));
    if (!found)
        DPCR_TRY(
            dpcri_fail(maker->error, DPCR_ERROR_UNSUPPORTED, "zb-h2: no rows keep to %g activations", problem.limit));
    DPCR_TRY(dpcri_plan_improve(&problem, maker->schedule, BUDGET, &score));
done:
    dpcri_free(maker->context, rank_of);
    return status;
}
