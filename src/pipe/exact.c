// SPDX-License-Identifier: MIT
// Exact rows for small cases: depth-first over all that may be started next, in the order of time, so that every set of
// rows whose actions start as early as they can is met once; cut off by what is left for each rank and for the last
// microbatch. Exponential: a node budget bounds it.
#include "pipe/planner.h"

#include <math.h>
#include <string.h>

enum { MOST_ACTIONS = 128 };

typedef struct exact {
    const dpcri_problem *problem;
    dpcr_schedule *schedule;
    int64_t budget;
    double best;
    double bound;
    int64_t *done;                      // [3][stages]
    double *ended;                      // [2][stages][m]
    double *now, *begun, *left, *held;  // [p]; begun negative: not yet
    double *back;                       // [stages] I of stages s..0, then a W of stage 0
    double *ahead;                      // [stages] F of stages s.. to the last
    dpcr_action *rows, *kept;           // [p][3 v m]
    int64_t *used;                      // [p]
    bool found;
    bool in_turn;  // nothing takes no time: what starts at once may be taken in the order of ranks
} exact;

static double span_of(const exact *x, int64_t rank, double from) {
    const double begun =
        x->problem->objective == DPCR_OBJECTIVE_STEADY ? (x->begun[rank] < 0 ? from : x->begun[rank]) : 0;
    return (x->now[rank] > from ? x->now[rank] : from) - begun + x->left[rank];
}

// Least that rows can come to from here on, when nothing starts before `from` any more.
static double least(const exact *x, double from) {
    const dpcri_problem *q = x->problem;
    double most = x->bound;
    for (int64_t r = 0; r < q->p; r++) {
        if (x->left[r] == 0 && x->begun[r] < 0) continue;
        const double value = x->left[r] > 0 ? span_of(x, r, from)
                                            : x->now[r] - (q->objective == DPCR_OBJECTIVE_STEADY ? x->begun[r] : 0);
        most = value > most ? value : most;
    }
    if (q->objective != DPCR_OBJECTIVE_ISOLATED) return most;
    for (int64_t s = 0; s < q->stages; s++)  // the last microbatch has still to go on from here
        if (x->done[s] < q->m) {
            const double way = from + x->ahead[s] + x->back[q->stages - 1];
            return way > most ? way : most;
        }
    for (int64_t s = q->stages - 1; s >= 0; s--)
        if (x->done[q->stages + s] < q->m) {
            const double way = from + x->back[s];
            return way > most ? way : most;
        }
    return most;
}

static double way(const exact *x, int64_t from, int64_t to, int64_t bytes_of) {
    const dpcr_schedule_costs *c = x->problem->costs;
    if (x->problem->rank_of[from] == x->problem->rank_of[to]) return 0;
    return c->hop + (c->bandwidth > 0 ? dpcri_cost_of(c->activation_bytes, 1, bytes_of) / c->bandwidth : 0);
}

// When the stage's next task of a kind may start; infinite: not yet.
static double starts(const exact *x, int64_t s, dpcr_task task) {
    const dpcri_problem *q = x->problem;
    const int64_t S = q->stages, m = q->m, i = x->done[task * S + s], rank = q->rank_of[s];
    double when = x->now[rank], there = 0;
    if (i >= m) return INFINITY;
    if (task == DPCR_TASK_F) {
        if (q->limit > 0 && x->held[rank] + 1 > q->limit) return INFINITY;
        if (s > 0) there = x->ended[(s - 1) * m + i] + way(x, s - 1, s, s - 1);
    } else if (task == DPCR_TASK_I) {
        if (i >= x->done[s]) return INFINITY;
        there = s == S - 1 ? x->ended[s * m + i] : x->ended[(S + s + 1) * m + i] + way(x, s + 1, s, s);
    } else if (i >= x->done[S + s]) {
        return INFINITY;
    }
    return there > when ? there : when;
}

static void keep(exact *x, double value) {
    const dpcri_problem *q = x->problem;
    x->best = value;
    x->found = true;
    memcpy(x->kept, x->rows, (size_t)(3 * q->stages * q->m) * sizeof *x->kept);
}

static void go_on(exact *x, double from, int64_t from_rank, int64_t left);

static void try_task(exact *x, int64_t s, dpcr_task task, double start, int64_t left) {
    const dpcri_problem *q = x->problem;
    const int64_t rank = q->rank_of[s], i = x->done[task * q->stages + s]++;
    const dpcr_action a = {.stage = (int32_t)s, .microbatch = (int32_t)i, .task = (uint8_t)task};
    const double cost = dpcri_task_cost(q, task, s), now = x->now[rank], begun = x->begun[rank];
    x->rows[rank * 3 * q->v * q->m + x->used[rank]++] = a;
    x->now[rank] = start + cost;
    if (begun < 0) x->begun[rank] = start;
    x->left[rank] -= cost;
    x->held[rank] += dpcri_holds(&a);
    if (task != DPCR_TASK_W) x->ended[(task * q->stages + s) * q->m + i] = start + cost;
    go_on(x, start, rank, left - 1);
    if (task != DPCR_TASK_W) x->ended[(task * q->stages + s) * q->m + i] = INFINITY;
    x->held[rank] -= dpcri_holds(&a);
    x->left[rank] += cost;
    x->begun[rank] = begun;
    x->now[rank] = now;
    x->used[rank]--;
    x->done[task * q->stages + s]--;
}

static void go_on(exact *x, double from, int64_t from_rank, int64_t left) {
    const dpcri_problem *q = x->problem;
    if (x->budget-- <= 0 || x->best <= x->bound) return;
    const double value = least(x, from);
    if (value >= x->best) return;
    if (left == 0) {
        keep(x, value);
        return;
    }
    for (int task = DPCR_TASK_F; task <= DPCR_TASK_W; task++)
        for (int64_t s = q->stages - 1; s >= 0; s--) {
            const double start = starts(x, s, (dpcr_task)task);
            if (start == INFINITY || start < from || (x->in_turn && start == from && q->rank_of[s] < from_rank))
                continue;
            try_task(x, s, (dpcr_task)task, start, left);
        }
}

static dpcr_status create(exact *x, dpcr_error *error) {
    const dpcri_problem *q = x->problem;
    const size_t S = (size_t)q->stages, p = (size_t)q->p, actions = 3 * S * (size_t)q->m;
    x->done = dpcri_alloc_zero(q->context, (3 * S + p) * sizeof *x->done);
    x->ended = dpcri_alloc(q->context, (2 * S * (size_t)q->m + 2 * S + 4 * p) * sizeof *x->ended);
    x->rows = dpcri_alloc_zero(q->context, 2 * actions * sizeof *x->rows);
    if (!x->done || !x->ended || !x->rows)
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "schedule: no memory for an exact search");
    x->used = x->done + 3 * S;
    x->kept = x->rows + actions;
    double *next = x->ended + 2 * S * (size_t)q->m;
    x->back = next, next += S;
    x->ahead = next, next += S;
    x->now = next, next += p;
    x->begun = next, next += p;
    x->left = next, next += p;
    x->held = next;
    return DPCR_OK;
}

static void begin(exact *x) {
    const dpcri_problem *q = x->problem;
    for (int64_t k = 0; k < 2 * q->stages * q->m; k++) x->ended[k] = INFINITY;
    for (int64_t r = 0; r < q->p; r++) x->now[r] = x->left[r] = x->held[r] = 0, x->begun[r] = -1;
    double back = dpcri_task_cost(q, DPCR_TASK_W, 0), ahead = 0;
    x->in_turn = true;
    for (int64_t s = 0; s < q->stages; s++) {
        for (int task = DPCR_TASK_F; task <= DPCR_TASK_W; task++) {
            const double cost = dpcri_task_cost(q, (dpcr_task)task, s);
            x->left[q->rank_of[s]] += (double)q->m * cost;
            x->in_turn = x->in_turn && cost > 0;
        }
        x->back[s] = back += dpcri_task_cost(q, DPCR_TASK_I, s);
        const int64_t t = q->stages - 1 - s;
        x->ahead[t] = ahead += dpcri_task_cost(q, DPCR_TASK_F, t);
    }
}

dpcr_status dpcri_plan_exact(const dpcri_problem *problem, dpcr_schedule *schedule, int64_t budget, bool *proved) {
    dpcri_score score;
    exact x = {.problem = problem, .schedule = schedule, .budget = budget, .bound = dpcri_lower_bound(problem)};
    const int64_t actions = 3 * problem->stages * problem->m;
    dpcr_status status;
    *proved = false;
    // What is left for a rank hangs on the order where F runs again before I, but not right after F.
    if (actions > MOST_ACTIONS || problem->costs->recompute) return DPCR_OK;
    DPCR_TRY(create(&x, problem->error));
    begin(&x);
    DPCR_TRY(dpcri_plan_improve(problem, schedule, 0, &score));  // only measures
    x.best = score.first;
    go_on(&x, 0, 0, actions);
    *proved = x.budget > 0;
    if (x.found) memcpy(schedule->actions, x.kept, (size_t)actions * sizeof *x.kept);
done:
    dpcri_free(problem->context, x.done);
    dpcri_free(problem->context, x.ended);
    dpcri_free(problem->context, x.rows);
    return status;
}
