// SPDX-License-Identifier: MIT
// best: the named synchronous schedules of the same ranks, stages and memory limit, and rows of our own for each
// placement that they use, judged by the simulator under the caller's costs and objective. The best is taken: it is
// never worse than a named one. Small cases are searched through, and are then optimal for their placement.
//   candidates  every named schedule that takes the numbers and keeps the limit, with B split into I and W
//   planned     the list scheduler's rows, per placement (stage s on rank s mod p; with v = 2 the V too)
//   improved    local search from each placement's best
//   exact       branch and bound where there are few actions
// With the delays of PipeDream, 2BW or LayerPipe the rows start from theirs, B split, and the local search keeps to the
// delays: no action runs before the update that its version needs.
#include "pipe/planner.h"

#include <math.h>
#include <string.h>

// Of the local search: moves before and after the exact one, and actions run in all; of the exact one: nodes.
enum { FIRST_MOVES = 2000, MORE_MOVES = 50000, MOST_RUN = 20000000, NODES = 1000000, PLACEMENTS = 2 };

typedef struct contest {
    dpcri_maker *maker;
    dpcr_schedule_costs costs;
    dpcr_schedule best[PLACEMENTS];  // of each placement; stages 0: none yet
    double value[PLACEMENTS], makespan[PLACEMENTS];
    int32_t *rank_of[PLACEMENTS];
    dpcr_error why;  // of the last schedule that its rule or the figures asked for exclude; status 0: none
} contest;

static bool is_candidate(dpcr_schedule_kind kind) {
    return dpcr_schedule_semantics(kind) == DPCR_SYNCHRONOUS && kind != DPCR_SCHEDULE_BEST &&
           kind != DPCR_SCHEDULE_DUALPIPE;  // which keeps two stages' weights a rank for one stage's work
}

static int placement_of(dpcr_schedule_kind kind) {
    return kind == DPCR_SCHEDULE_ZB_V || kind == DPCR_SCHEDULE_DUALPIPEV ? 1 : 0;
}

// A copy with every B as I, then W, and pairs undone: never later, for I's result leaves earlier.
static dpcr_status split(contest *c, const dpcr_schedule *from, dpcr_schedule *to) {
    dpcri_maker *maker = c->maker;
    const dpcr_status status = dpcri_schedule_alloc(maker->context, from->ranks, from->stages, from->microbatches,
                                                    4 * from->stages * from->microbatches, to, maker->error);
    if (status != DPCR_OK) return status;
    int64_t used = 0;
    to->semantics = from->semantics;
    to->accumulate = from->accumulate;
    memcpy(to->delay, from->delay, (size_t)from->stages * sizeof *to->delay);
    for (int64_t r = 0; r < from->ranks; r++) {
        for (int64_t n = from->first[r]; n < from->first[r + 1]; n++) {
            dpcr_action a = from->actions[n];
            a.paired = 0;
            if (a.task == DPCR_TASK_B) {
                a.task = DPCR_TASK_I;
                to->actions[used++] = a;
                a.task = DPCR_TASK_W;
            }
            to->actions[used++] = a;
        }
        to->first[r + 1] = used;
    }
    return DPCR_OK;
}

// Takes the schedule over where it is the best of its placement so far, else frees it.
static dpcr_status judge(contest *c, dpcr_schedule *schedule, int placement) {
    dpcri_maker *maker = c->maker;
    dpcr_simulation x = {0};
    dpcr_error error;
    dpcr_status status = dpcr_schedule_validate(maker->context, schedule, maker->options->memory_limit, &error);
    if (status == DPCR_OK) status = dpcr_schedule_simulate(maker->context, schedule, &c->costs, &x, &error);
    const double value = maker->options->objective == DPCR_OBJECTIVE_STEADY ? x.steady_state : x.makespan;
    const bool wins = status == DPCR_OK && (!c->best[placement].stages || value < c->value[placement] ||
                                            (value == c->value[placement] && x.makespan < c->makespan[placement]));
    if (wins) {
        dpcr_schedule_free(maker->context, &c->best[placement]);
        c->best[placement] = *schedule;
        c->value[placement] = value;
        c->makespan[placement] = x.makespan;
    } else {
        dpcr_schedule_free(maker->context, schedule);
    }
    dpcr_simulation_free(maker->context, &x);
    if (status == DPCR_ERROR_MEMORY) return dpcri_fail(maker->error, status, "%s", error.text);
    if (status == DPCR_ERROR_UNSUPPORTED) c->why = error;
    return DPCR_OK;  // over the memory limit: no candidate
}

static dpcr_status judge_named(contest *c, dpcr_schedule_kind kind) {
    dpcri_maker *maker = c->maker;
    dpcr_schedule_options o = *maker->options;
    dpcr_schedule made, copy = {0};
    dpcr_error error;
    o.kind = kind;
    o.chunks = maker->v;
    o.costs = &c->costs;
    dpcr_status status = dpcr_schedule_make(maker->context, &o, &made, &error);
    if (status == DPCR_ERROR_UNSUPPORTED) {
        c->why = error;
        return DPCR_OK;
    }
    if (status != DPCR_OK) return dpcri_fail(maker->error, status, "%s", error.text);
    status = split(c, &made, &copy);
    dpcr_schedule_free(maker->context, &made);
    return status == DPCR_OK ? judge(c, &copy, placement_of(kind)) : status;
}

static dpcri_problem problem_of(const contest *c, int placement) {
    const dpcri_maker *maker = c->maker;
    return (dpcri_problem){.context = maker->context,
                           .p = maker->p,
                           .v = maker->v,
                           .m = maker->m,
                           .stages = maker->p * maker->v,
                           .rank_of = c->rank_of[placement],
                           .costs = &c->costs,
                           .limit = maker->options->memory_limit,
                           .objective = maker->options->objective,
                           .error = maker->error};
}

static dpcr_status judge_planned(contest *c, int placement) {
    dpcri_maker *maker = c->maker;
    const dpcri_problem problem = problem_of(c, placement);
    dpcr_schedule planned = {0};
    bool found = false;
    dpcr_status status = dpcri_schedule_alloc(maker->context, problem.p, problem.stages, problem.m,
                                              3 * problem.stages * problem.m, &planned, maker->error);
    if (status == DPCR_OK) status = dpcri_plan_list(&problem, &planned, &found);
    if (status == DPCR_OK && found) return judge(c, &planned, placement);
    dpcr_schedule_free(maker->context, &planned);
    return status;
}

static dpcr_status improve(contest *c, int placement) {
    const dpcri_problem problem = problem_of(c, placement);
    const int64_t actions = 3 * problem.stages * problem.m, most = MOST_RUN / actions;
    dpcr_schedule copy = {0};
    dpcri_score score;
    bool proved;
    dpcr_status status;
    DPCR_TRY(split(c, &c->best[placement], &copy));
    DPCR_TRY(dpcri_plan_improve(&problem, &copy, actions * (most < FIRST_MOVES ? most : FIRST_MOVES), &score));
    DPCR_TRY(dpcri_plan_exact(&problem, &copy, NODES, &proved));
    if (!proved)
        DPCR_TRY(dpcri_plan_improve(&problem, &copy, actions * (most < MORE_MOVES ? most : MORE_MOVES), &score));
    return judge(c, &copy, placement);
done:
    dpcr_schedule_free(c->maker->context, &copy);
    return status;
}

static dpcr_status start(contest *c) {
    dpcri_maker *maker = c->maker;
    const int64_t stages = maker->options->stages ? maker->options->stages : maker->p * maker->v;
    const dpcr_status status = dpcri_costs_check(maker->options->costs, stages, &c->costs, maker->error);
    if (status != DPCR_OK) return status;
    for (int k = 0; k < PLACEMENTS; k++) {
        c->rank_of[k] = dpcri_alloc(maker->context, (size_t)stages * sizeof(int32_t));
        if (!c->rank_of[k]) return dpcri_fail(maker->error, DPCR_ERROR_MEMORY, "best: no memory");
    }
    for (int64_t s = 0; s < stages; s++) {
        c->rank_of[0][s] = (int32_t)(s % maker->p);
        c->rank_of[1][s] = (int32_t)(s < maker->p ? s : 2 * maker->p - 1 - s);
    }
    return DPCR_OK;
}

// Of the synchronous ones most are excluded as a rule; a late one is the only one.
static dpcr_status fail_without(const contest *c) {
    const dpcr_schedule_options *o = c->maker->options;
    if (c->why.status != DPCR_OK && (o->semantics != DPCR_SYNCHRONOUS || o->memory_limit <= 0))
        return dpcri_fail(c->maker->error, DPCR_ERROR_UNSUPPORTED, "%s", c->why.text);
    if (o->memory_limit <= 0) return dpcri_fail(c->maker->error, DPCR_ERROR_UNSUPPORTED, "best: no rows found");
    return dpcri_fail(c->maker->error, DPCR_ERROR_UNSUPPORTED, "best: no rows keep to %g activations a rank",
                      o->memory_limit);
}

static dpcr_status take_best(contest *c, int placement) {
    if (!c->best[placement].stages) return fail_without(c);
    *c->maker->schedule = c->best[placement];
    c->best[placement] = (dpcr_schedule){0};
    return DPCR_OK;
}

// Delayed gradients: the placement and the delays stay those of the named schedule.
static dpcr_status compete_late(contest *c) {
    static const dpcr_schedule_kind kinds[] = {[DPCR_STASHED] = DPCR_SCHEDULE_PIPEDREAM,
                                               [DPCR_DOUBLE_BUFFERED] = DPCR_SCHEDULE_PIPEDREAM_2BW,
                                               [DPCR_DELAYED] = DPCR_SCHEDULE_LAYERPIPE};
    dpcri_maker *maker = c->maker;
    dpcr_schedule copy = {0};
    dpcri_score score;
    dpcr_status status;
    DPCR_TRY(judge_named(c, kinds[maker->options->semantics]));
    if (!c->best[0].stages) DPCR_TRY(take_best(c, 0));  // says why
    DPCR_TRY(split(c, &c->best[0], &copy));
    const int64_t actions = copy.first[copy.ranks], most = MOST_RUN / actions;
    dpcri_problem problem = problem_of(c, 0);
    problem.late = true;
    DPCR_TRY(dpcri_plan_improve(&problem, &copy, actions * (most < MORE_MOVES ? most : MORE_MOVES), &score));
    DPCR_TRY(judge(c, &copy, 0));
    copy = (dpcr_schedule){0};
    DPCR_TRY(take_best(c, 0));
done:
    dpcr_schedule_free(maker->context, &copy);
    return status;
}

static dpcr_status compete(contest *c) {
    const int placements = c->maker->v == 2 ? 2 : 1;
    dpcr_status status;
    for (int kind = 0; kind < DPCR_SCHEDULE_COUNT; kind++)
        if (is_candidate((dpcr_schedule_kind)kind)) DPCR_TRY(judge_named(c, (dpcr_schedule_kind)kind));
    for (int k = 0; k < placements; k++) {
        DPCR_TRY(judge_planned(c, k));
        if (c->best[k].stages) DPCR_TRY(improve(c, k));
    }
    DPCR_TRY(take_best(c, !c->best[0].stages || (c->best[1].stages && c->value[1] < c->value[0])));
done:
    return status;
}

dpcr_status dpcri_make_best(dpcri_maker *maker) {
    contest c = {.maker = maker};
    dpcr_status status;
    DPCR_TRY(start(&c));
    DPCR_TRY(maker->options->semantics == DPCR_SYNCHRONOUS ? compete(&c) : compete_late(&c));
done:
    for (int k = 0; k < PLACEMENTS; k++) {
        dpcr_schedule_free(maker->context, &c.best[k]);
        dpcri_free(maker->context, c.rank_of[k]);
    }
    return status;
}
