// SPDX-License-Identifier: MIT
// A list scheduler after the memory-limited heuristic of Zero Bubble (arXiv 2401.10241): in the order of time, each
// free rank takes an I or F that has arrived; where none has, a W if the gap takes it; a W too where the memory is
// full. The policies differ in how many microbatches may be on their way, in what goes first, and in how much a W may
// overrun a gap; the best row set wins. Work: policies x actions x ranks.
#include "pipe/planner.h"

#include <math.h>
#include <string.h>

typedef struct policy {
    double slope;  // a rank at distance d from the last may have slope d + 1 microbatches between F and I; 0: any
    double slack;  // part of a W that may stick out of a gap
    bool f_first;  // F before I where both are there, until the slope is reached
    bool even;     // a rank that idled less than the worst one may idle rather than run W
} policy;

typedef struct choice {
    dpcr_task task;
    int64_t stage;
    double start;  // infinite: nothing can be done yet
} choice;

typedef struct lister {
    const dpcri_problem *problem;
    const policy *policy;
    dpcr_schedule *schedule;
    int64_t *done;       // [3][stages] F, I, W of each stage so far
    double *ended;       // [2][stages][m] ends of F and of I
    double *now;         // [p] when the rank is free
    double *idle;        // [p] idled since its first action
    double *held;        // [p] activations
    int64_t *in_flight;  // [p] F without I
    int64_t *used;       // [p] actions in the row
    choice *next;        // [p]
    double *f_from, *i_from;
} lister;

double dpcri_task_cost(const dpcri_problem *problem, dpcr_task task, int64_t stage) {
    const dpcr_schedule_costs *c = problem->costs;
    switch (task) {
        case DPCR_TASK_F: return dpcri_cost_of(c->stage_forward, c->forward, stage);
        case DPCR_TASK_I: return dpcri_cost_of(c->stage_input, c->input, stage);
        default: return dpcri_cost_of(c->stage_weight, c->weight, stage);
    }
}

double dpcri_holds(const dpcr_action *action) {
    switch ((dpcr_task)action->task) {
        case DPCR_TASK_F: return 1;
        case DPCR_TASK_B: return -1;
        case DPCR_TASK_I: return action->part ? -0.25 : -0.5;
        case DPCR_TASK_W: return -0.5;
        default: return 0;
    }
}

static double hop(const dpcri_problem *problem, int64_t from, int64_t to, int64_t bytes_of) {
    const dpcr_schedule_costs *c = problem->costs;
    if (problem->rank_of[from] == problem->rank_of[to]) return 0;
    return c->hop + (c->bandwidth > 0 ? dpcri_cost_of(c->activation_bytes, 1, bytes_of) / c->bandwidth : 0);
}

double dpcri_lower_bound(const dpcri_problem *problem) {
    double bound = 0, head = 0;
    for (int64_t r = 0; r < problem->p; r++) {
        double work = 0, first = INFINITY;
        head = 0;
        for (int64_t s = 0; s < problem->stages; s++) {
            if (problem->rank_of[s] == r) {
                if (head < first) first = head;
                for (int task = DPCR_TASK_F; task <= DPCR_TASK_W; task++)
                    work += (double)problem->m * dpcri_task_cost(problem, (dpcr_task)task, s);
            }
            head += dpcri_task_cost(problem, DPCR_TASK_F, s);
            if (s + 1 < problem->stages) head += hop(problem, s, s + 1, s);
        }
        if (problem->objective == DPCR_OBJECTIVE_ISOLATED) work += first;
        if (work > bound) bound = work;
    }
    return bound;
}

// ---- one policy ----

// When what F or I of the stage's next microbatch needs is there; infinite where that is not known yet.
static double arrival(const lister *l, dpcr_task task, int64_t s) {
    const dpcri_problem *q = l->problem;
    const int64_t i = l->done[task * q->stages + s];
    if (i >= q->m) return INFINITY;
    if (task == DPCR_TASK_F) return s == 0 ? 0 : l->f_from[(s - 1) * q->m + i] + hop(q, s - 1, s, s - 1);
    if (i >= l->done[s]) return INFINITY;
    if (s == q->stages - 1) return l->f_from[s * q->m + i];
    return l->i_from[(s + 1) * q->m + i] + hop(q, s + 1, s, s);
}

// A rank's later stages come first: they free memory sooner. Earlier ones leave them room for one more.
static bool has_room(const lister *l, int64_t rank, bool later_stage) {
    const dpcri_problem *q = l->problem;
    const double limit = q->limit > 0 ? q->limit - (q->v > 1 && !later_stage ? 1 : 0) : INFINITY;
    return l->held[rank] + 1 <= limit;
}

static bool in_slope(const lister *l, int64_t rank) {
    const dpcri_problem *q = l->problem;
    if (l->policy->slope == 0) return true;
    const double most = q->v == 1 ? l->policy->slope * (double)(q->p - 1 - rank) + 1
                                  : l->policy->slope * (double)(q->p * q->v - 1 - rank) / 2 + 1;
    return (double)l->in_flight[rank] + 1 <= floor(most);
}

typedef struct offers {
    double f, i;                        // arrivals
    int64_t f_stage, i_stage, w_stage;  // -1: none
    bool blocked;                       // an F is there and has no room
} offers;

static offers look(const lister *l, int64_t rank) {
    const dpcri_problem *q = l->problem;
    offers o = {.f = INFINITY, .i = INFINITY, .f_stage = -1, .i_stage = -1, .w_stage = -1};
    const double now = l->now[rank];
    int64_t most = 0;
    bool later = true;
    for (int64_t s = q->stages - 1; s >= 0; s--) {
        if (q->rank_of[s] != rank) continue;
        const double f = arrival(l, DPCR_TASK_F, s), i = arrival(l, DPCR_TASK_I, s);
        const int64_t waiting = l->done[q->stages + s] - l->done[2 * q->stages + s];
        if (i < o.i && !(o.i <= now)) o.i = i, o.i_stage = s;
        if (f < INFINITY && in_slope(l, rank)) {
            if (!has_room(l, rank, later))
                o.blocked = o.blocked || f <= now;
            else if (f < o.f && !(o.f <= now))
                o.f = f, o.f_stage = s;
        }
        if (waiting > most) most = waiting, o.w_stage = s;
        later = false;
    }
    return o;
}

static double worst_idle(const lister *l) {
    double worst = 0;
    for (int64_t r = 0; r < l->problem->p; r++) worst = l->idle[r] > worst ? l->idle[r] : worst;
    return worst;
}

static choice choose(const lister *l, int64_t rank) {
    const offers o = look(l, rank);
    const double now = l->now[rank], next = o.f < o.i ? o.f : o.i;
    const bool f_here = o.f <= now, i_here = o.i <= now;
    if (f_here && (l->policy->f_first || !i_here)) return (choice){DPCR_TASK_F, o.f_stage, now};
    if (i_here) return (choice){DPCR_TASK_I, o.i_stage, now};
    if (o.w_stage >= 0) {
        const double w = dpcri_task_cost(l->problem, DPCR_TASK_W, o.w_stage), gap = next - now;
        const bool fits = gap >= (1 - l->policy->slack) * w;
        const bool may_idle = l->policy->even && l->idle[rank] + gap <= worst_idle(l);
        if (o.blocked || (fits && !may_idle) || next == INFINITY) return (choice){DPCR_TASK_W, o.w_stage, now};
    }
    return o.f <= o.i ? (choice){DPCR_TASK_F, o.f_stage, o.f} : (choice){DPCR_TASK_I, o.i_stage, o.i};
}

static void take(lister *l, int64_t rank) {
    const dpcri_problem *q = l->problem;
    const choice c = l->next[rank];
    const int64_t i = l->done[c.task * q->stages + c.stage]++;
    const dpcr_action a = {.stage = (int32_t)c.stage, .microbatch = (int32_t)i, .task = (uint8_t)c.task};
    const double end = c.start + dpcri_task_cost(q, c.task, c.stage);
    if (l->used[rank] > 0) l->idle[rank] += c.start - l->now[rank];
    l->schedule->actions[l->schedule->first[rank] + l->used[rank]++] = a;
    l->now[rank] = end;
    l->held[rank] += dpcri_holds(&a);
    if (c.task == DPCR_TASK_F) l->in_flight[rank]++, l->f_from[c.stage * q->m + i] = end;
    if (c.task == DPCR_TASK_I) l->in_flight[rank]--, l->i_from[c.stage * q->m + i] = end;
    l->next[rank] = choose(l, rank);
    const int64_t peer = c.task == DPCR_TASK_F ? c.stage + 1 : c.task == DPCR_TASK_I ? c.stage - 1 : -1;
    if (peer >= 0 && peer < q->stages) l->next[q->rank_of[peer]] = choose(l, q->rank_of[peer]);
}

// False: a rank had nothing that it may do (the memory limit).
static bool list(lister *l) {
    const dpcri_problem *q = l->problem;
    memset(l->done, 0, (size_t)(3 * q->stages) * sizeof *l->done);
    for (int64_t k = 0; k < 2 * q->stages * q->m; k++) l->ended[k] = INFINITY;
    for (int64_t r = 0; r < q->p; r++) {
        l->now[r] = l->idle[r] = l->held[r] = 0;
        l->in_flight[r] = l->used[r] = 0;
    }
    for (int64_t r = 0; r < q->p; r++) l->next[r] = choose(l, r);
    for (int64_t left = 3 * q->stages * q->m; left > 0; left--) {
        int64_t first = 0;
        for (int64_t r = 1; r < q->p; r++)
            if (l->next[r].start < l->next[first].start) first = r;
        if (l->next[first].start == INFINITY) return false;
        take(l, first);
    }
    return true;
}

static dpcri_score score_of(const lister *l) {
    const dpcri_problem *q = l->problem;
    dpcri_score score = {0, 0};
    for (int64_t r = 0; r < q->p; r++) {
        double value = l->now[r];
        if (q->objective == DPCR_OBJECTIVE_STEADY) {  // idle counts from the first action on
            value = l->idle[r];
            for (int64_t s = 0; s < q->stages; s++)
                for (int task = DPCR_TASK_F; q->rank_of[s] == r && task <= DPCR_TASK_W; task++)
                    value += (double)q->m * dpcri_task_cost(q, (dpcr_task)task, s);
        }
        score.first = value > score.first ? value : score.first;
        score.second += value;
    }
    return score;
}

// ---- all policies ----

enum {
    SLOPES = 4,
    SLACKS = 5,
    POLICIES = SLOPES * SLACKS * 2 * 2,
    MOST_STEPS = 1 << 28
};  // looks at a rank or stage, all policies together

static policy policy_of(int k) {
    static const double slopes[SLOPES] = {2, 1, 0, 1.5}, slacks[SLACKS] = {0, 1, 0.5, 0.25, 0.75};
    return (policy){.slope = slopes[k % SLOPES],
                    .slack = slacks[k / SLOPES % SLACKS],
                    .f_first = k / (SLOPES * SLACKS) % 2 == 0,
                    .even = k / (SLOPES * SLACKS * 2) == 1};
}

static dpcr_status create(lister *l, dpcr_schedule *trial) {
    const dpcri_problem *q = l->problem;
    dpcr_context *context = q->context;
    const size_t p = (size_t)q->p, cells = (size_t)(q->stages * q->m);
    const dpcr_status status =
        dpcri_schedule_alloc(context, q->p, q->stages, q->m, 3 * q->stages * q->m, trial, q->error);
    if (status != DPCR_OK) return status;
    l->schedule = trial;
    l->done = dpcri_alloc(context, (size_t)(3 * q->stages) * sizeof *l->done);
    l->ended = dpcri_alloc(context, 2 * cells * sizeof *l->ended);
    l->now = dpcri_alloc(context, 3 * p * sizeof *l->now);
    l->in_flight = dpcri_alloc(context, 2 * p * sizeof *l->in_flight);
    l->next = dpcri_alloc(context, p * sizeof *l->next);
    if (!l->done || !l->ended || !l->now || !l->in_flight || !l->next)
        return dpcri_fail(q->error, DPCR_ERROR_MEMORY, "schedule: no memory to plan it");
    l->f_from = l->ended;
    l->i_from = l->ended + cells;
    l->idle = l->now + p;
    l->held = l->now + 2 * p;
    l->used = l->in_flight + p;
    return DPCR_OK;
}

static void destroy(lister *l, dpcr_schedule *trial) {
    dpcr_context *context = l->problem->context;
    dpcr_schedule_free(context, trial);
    dpcri_free(context, l->done);
    dpcri_free(context, l->ended);
    dpcri_free(context, l->now);
    dpcri_free(context, l->in_flight);
    dpcri_free(context, l->next);
}

dpcr_status dpcri_plan_list(const dpcri_problem *problem, dpcr_schedule *schedule, bool *found) {
    lister l = {.problem = problem};
    dpcr_schedule trial = {0};
    dpcri_score best = {INFINITY, INFINITY};
    const int64_t actions = 3 * problem->stages * problem->m, a_step = problem->p + 2 * problem->stages,
                  affordable = 1 + MOST_STEPS / (actions * a_step);
    const int count = affordable < POLICIES ? (int)affordable : POLICIES;
    const double bound = dpcri_lower_bound(problem);
    dpcr_status status;
    DPCR_TRY(create(&l, &trial));
    for (int64_t r = 0; r <= problem->p; r++) trial.first[r] = schedule->first[r] = r * 3 * problem->v * problem->m;
    *found = false;
    for (int k = 0; k < count && best.first > bound; k++) {
        const policy chosen = policy_of(k);
        l.policy = &chosen;
        if (!list(&l)) continue;
        const dpcri_score score = score_of(&l);
        if (!dpcri_better(score, best)) continue;
        best = score;
        *found = true;
        memcpy(schedule->actions, trial.actions, (size_t)actions * sizeof *trial.actions);
    }
done:
    destroy(&l, &trial);
    return status;
}
