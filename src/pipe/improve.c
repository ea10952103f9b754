// SPDX-License-Identifier: MIT
// Local search on rows: move one action to another place of its row, past none of its own kind, and keep what is not
// worse. Moves are drawn by counter, so the same problem gives the same rows.
#include "pipe/planner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct search {
    const dpcri_problem *problem;
    dpcr_schedule *schedule;
    dpcri_run run;
    double *start, *end;  // [actions]
    uint64_t state;
} search;

// splitmix64
static int64_t draw(search *x, int64_t below) {
    uint64_t z = x->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (int64_t)((z ^ z >> 31) % (uint64_t)below);
}

// False: the rows wait for each other.
static bool measure(search *x, dpcri_score *score) {
    const dpcr_schedule *s = x->schedule;
    for (int64_t r = 0; r < s->ranks; r++) x->run.rank_free[r] = 0;
    if (!dpcri_run_once(&x->run, x->start, x->end)) return false;
    *score = (dpcri_score){0, 0};
    for (int64_t r = 0; r < s->ranks; r++) {
        if (s->first[r] == s->first[r + 1]) continue;
        double value = x->end[s->first[r + 1] - 1];
        if (x->problem->objective == DPCR_OBJECTIVE_STEADY) value -= x->start[s->first[r]];
        score->first = value > score->first ? value : score->first;
        score->second += value;
    }
    return true;
}

static bool same_kind(const dpcr_action *a, const dpcr_action *b) { return a->task == b->task && a->stage == b->stage; }

// May a stand directly after b instead of before it? Not past its own kind, nor past what needs it or what it needs.
static bool may_pass(const dpcr_action *a, const dpcr_action *b) {
    if (same_kind(a, b)) return false;
    return a->stage != b->stage || a->microbatch != b->microbatch;
}

static bool keeps_limit(const search *x, int64_t rank) {
    const dpcr_schedule *s = x->schedule;
    const double limit = x->problem->limit > 0 ? x->problem->limit : INFINITY;
    double held = 0;
    for (int64_t n = s->first[rank]; n < s->first[rank + 1]; n++) {
        held += dpcri_holds(&s->actions[n]);
        if (held > limit) return false;
    }
    return true;
}

// Moves the action at `from` to `to`; what lies between moves up by one.
static void shift(dpcr_action *row, int64_t from, int64_t to) {
    const dpcr_action a = row[from];
    if (from < to)
        memmove(row + from, row + from + 1, (size_t)(to - from) * sizeof *row);
    else
        memmove(row + to + 1, row + to, (size_t)(from - to) * sizeof *row);
    row[to] = a;
}

// A move that the row's own order allows; false: none was drawn.
static bool propose(search *x, int64_t *rank, int64_t *from, int64_t *to) {
    dpcr_schedule *s = x->schedule;
    *rank = draw(x, s->ranks);
    const int64_t count = s->first[*rank + 1] - s->first[*rank];
    if (count < 2) return false;
    dpcr_action *row = s->actions + s->first[*rank];
    const int64_t step = draw(x, 2) ? 1 : -1, reach = 1 + draw(x, 2 * s->ranks + 2);
    *from = draw(x, count);
    for (*to = *from; llabs(*to - *from) < reach; *to += step) {
        const int64_t next = *to + step;
        if (next < 0 || next >= count) break;
        if (step > 0 ? !may_pass(&row[*from], &row[next]) : !may_pass(&row[next], &row[*from])) break;
    }
    return *to != *from;
}

dpcr_status dpcri_plan_improve(const dpcri_problem *problem, dpcr_schedule *schedule, int64_t budget,
                               dpcri_score *score) {
    search x = {.problem = problem, .schedule = schedule, .state = 1};
    const int64_t actions = schedule->first[schedule->ranks];
    const double bound = problem->late ? 0 : dpcri_lower_bound(problem);
    dpcr_status status;
    *score = (dpcri_score){INFINITY, INFINITY};
    DPCR_TRY(dpcri_run_create(problem->context, schedule, problem->costs, &x.run, problem->error));
    x.start = dpcri_alloc(problem->context, (size_t)actions * sizeof *x.start);
    x.end = dpcri_alloc(problem->context, (size_t)actions * sizeof *x.end);
    if (!x.start || !x.end) DPCR_TRY(dpcri_fail(problem->error, DPCR_ERROR_MEMORY, "schedule: no memory to plan it"));
    if (!measure(&x, score)) DPCR_TRY(dpcri_run_stuck(&x.run, problem->error));
    for (int64_t n = 0; n < budget / actions && score->first > bound * (1 + 1e-12); n++) {
        int64_t rank, from, to;
        dpcri_score trial;
        if (!propose(&x, &rank, &from, &to)) continue;
        dpcr_action *row = schedule->actions + schedule->first[rank];
        shift(row, from, to);
        if (keeps_limit(&x, rank) && measure(&x, &trial) && !dpcri_better(*score, trial))
            *score = trial;
        else
            shift(row, to, from);
    }
done:
    dpcri_run_destroy(problem->context, &x.run);
    dpcri_free(problem->context, x.start);
    dpcri_free(problem->context, x.end);
    return status;
}
