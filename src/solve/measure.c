// SPDX-License-Identifier: MIT
// Measuring: every candidate solves the whole chain at hand, in interleaved rounds, in memory that lives until the plan
// is made. For training the best of both directions run again in pairs, each backward pass after its forward one, which
// leaves the tape where its threads are. The driver checks every result, so a candidate that cannot solve this chain
// falls back, and is slow. The parameters' gradients are the caller's: they are made where the chain has a stand-in for
// trials (rehearse); else what they would add is reckoned, and told by the clock that a race goes by.
#include <math.h>
#include <string.h>

#include "rt/race.h"
#include "solve/planner.h"

typedef struct trials {
    const dpcri_outlook *outlook;
    double reckoned;  // seconds, so far
    dpcr_context *context;
    bool backward, taped;  // taped: forward leaves a tape
    int64_t count;
    dpcr_solve_plan *plans[DPCRI_CANDIDATES];
    bool served[DPCRI_CANDIDATES];
    dpcr_array z0, z, tape, last;
    void *memory, *workspace;
    size_t workspace_bytes;
    void *stand_ins[DPCRI_CANDIDATES];  // of steps that rehearse
    int64_t standing;
} trials;

static dpcr_solve_options options_of(const dpcri_outlook *o, const dpcr_candidate *c, bool backward) {
    dpcr_solve_options options = *o->options;
    options.planning = DPCR_PLANNING_ESTIMATE;
    options.start = NULL;
    options.consume_tape = 0;  // the same tape serves every round
    options.method = backward ? DPCR_METHOD_SEQUENTIAL : c->method;
    options.atol = o->given[0], options.rtol = o->given[1];
    if (!backward) options.join_tolerance = dpcri_join_tolerance(o, c);
    options.scheme = backward ? DPCR_SCHEME_AUTO : c->scheme;
    options.backward = backward ? c->scheme : DPCR_SCHEME_SEQUENTIAL;
    if (c->chunk && backward) options.backward_chunk = c->chunk;
    if (c->chunk && !backward) options.chunk = c->chunk;
    if (c->warm_up && backward) options.backward_warm_up = c->warm_up;
    if (c->warm_up && !backward) options.warm_up = c->warm_up;
    return options;
}

static double clock_of_trials(void *argument) {
    const trials *t = argument;
    return dpcri_seconds() + t->reckoned;
}

static bool run_back(trials *t, const dpcr_solve_plan *plan) {
    dpcr_error error = {0};
    const double start = dpcri_seconds();
    const dpcr_status status = dpcr_solve_backward(plan, &t->z0, &t->z, t->tape.data ? &t->tape : NULL, NULL, &t->last,
                                                   NULL, NULL, t->workspace, t->workspace_bytes, NULL, &error);
    const double seconds = dpcri_seconds() - start;
    const bool ran = dpcri_planning_heeds_solve(t->outlook, status, &error);
    if (plan->steps.gradient) return ran;
    const bool loop = dpcr_solve_plan_backward(plan) == DPCR_SCHEME_SEQUENTIAL;
    t->reckoned += dpcri_cost_with_gradients(t->outlook, loop, seconds) - seconds;
    return ran;
}

static bool run_trial(void *argument, int64_t i) {
    trials *t = argument;
    const dpcr_array *tape = t->tape.data ? &t->tape : NULL;
    dpcr_solve_report report = {.size = sizeof report};
    dpcr_error error = {0};
    if (!t->plans[i] || dpcri_planning_ends(t->outlook)) return false;
    if (t->backward) return run_back(t, t->plans[i]);
    const dpcr_status status = dpcr_solve_execute(t->plans[i], &t->z0, &t->z, t->taped ? tape : NULL, t->workspace,
                                                  t->workspace_bytes, &report, &error);
    if (!dpcri_planning_heeds_solve(t->outlook, status, &error)) return false;
    return report.reason > 0 || report.reason == DPCR_REASON_NONFINITE;
}

static void fill(const dpcr_array *array, int64_t count, double value) {
    for (int64_t i = 0; i < count; i++)
        if (array->dtype == DPCR_F64)
            ((double *)array->data)[i] = value;
        else
            ((float *)array->data)[i] = (float)value;
}

// z0 as the caller's start, or ones and minus ones; the gradient that comes in is ones.
static void set_starts(trials *t, const dpcri_outlook *o) {
    const int64_t shape[3] = {1, o->steps->batch, o->steps->width}, values = shape[1] * shape[2];
    fill(&t->last, values, 1);
    fill(&t->z0, values, 1);
    for (int64_t i = 1; i < values; i += 2)
        if (t->z0.dtype == DPCR_F64)
            ((double *)t->z0.data)[i] = -1;
        else
            ((float *)t->z0.data)[i] = -1;
    if (!o->options->start) return;
    dpcr_array from = dpcri_as_steps(o->options->start), to = dpcri_as_steps(&t->z0);
    dpcri_row_ops_of(o->steps->dtype)->copy(&from, &to);
}

static bool allocate(trials *t, const dpcri_outlook *o) {
    const dpcr_steps *s = o->steps;
    const int64_t state[3] = {s->length, s->batch, s->width}, taped[3] = {s->length, s->batch, s->tape_values};
    const size_t real = dpcr_dtype_size(s->dtype), limit = o->options->memory_limit;
    dpcri_arena arena = {0};
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1) {
            if (arena.overflow || (limit && arena.used > limit)) return false;
            t->memory = dpcri_alloc(o->context, arena.used);
            if (!t->memory) return false;
            arena = (dpcri_arena){.base = t->memory, .size = arena.used};
        }
        void *z = dpcri_arena_take(&arena, s->length * s->batch * s->width, real);
        void *tape = dpcri_arena_take(&arena, s->length * s->batch * s->tape_values, real);
        void *z0 = dpcri_arena_take(&arena, s->batch * s->width, real);
        void *last = dpcri_arena_take(&arena, s->batch * s->width, real);
        t->workspace = dpcri_arena_take(&arena, (int64_t)t->workspace_bytes, 1);
        t->z = dpcr_array_make(z, s->dtype, 3, state);
        t->tape = dpcr_array_make(s->tape_values ? tape : NULL, s->dtype, 3, taped);
        t->z0 = dpcr_array_make(z0, s->dtype, 2, state + 1);
        t->last = dpcr_array_make(last, s->dtype, 2, state + 1);
    }
    set_starts(t, o);
    return true;
}

// Whether a trial of a way back makes gradients. Those that are made of a whole window use the tape up, which forward
// has to leave anew.
static bool rehearses(const trials *t) {
    const dpcr_steps *s = t->outlook->steps;
    return s->gradient && s->rehearse && s->rehearsed && t->outlook->options->memory_limit == 0 &&
           (!s->gradient_whole || !t->backward);
}

static dpcr_solve_plan *make_plan(trials *t, const dpcri_outlook *o, const dpcr_solve_options *options, bool back) {
    dpcr_steps steps = *o->steps;
    dpcr_solve_plan *plan = NULL;
    if (!back || !rehearses(t)) steps.gradient = NULL;
    if (dpcr_solve_plan_create(o->context, &steps, options, &plan, NULL) != DPCR_OK) return NULL;
    const size_t bytes = dpcr_solve_plan_workspace(plan);
    if (bytes > t->workspace_bytes) t->workspace_bytes = bytes;
    return plan;
}

static void make_plans(trials *t, const dpcri_outlook *o, const dpcr_candidate *candidates) {
    for (int64_t i = 0; i < t->count; i++) {
        const dpcr_solve_options options = options_of(o, &candidates[i], t->backward);
        t->plans[i] = make_plan(t, o, &options, t->backward);
    }
}

static void *stand_in_for(trials *t, const dpcr_solve_plan *plan) {
    const dpcr_steps *s = t->outlook->steps;
    const dpcr_rehearsal r = {.size = sizeof r, .plan = plan, .z0 = t->z0, .z = t->z, .tape = t->tape};
    void *stand_in = s->rehearse(s->user, &r);
    if (stand_in) t->stand_ins[t->standing++] = stand_in;
    return stand_in;
}

// Gives the ways back their stand-ins; where there is no room for one, none makes gradients.
static void rehearse(trials *t, dpcr_solve_plan *const back[], int64_t count) {
    if (!rehearses(t)) return;
    const bool each = t->outlook->steps->gradient_whole;
    void *stand_in = each ? NULL : stand_in_for(t, NULL);
    bool all = true;
    for (int64_t i = 0; i < count && all; i++) {
        if (!back[i]) continue;
        if (each) stand_in = stand_in_for(t, back[i]);
        all = stand_in != NULL;
        if (all) back[i]->steps.user = stand_in;
    }
    for (int64_t i = 0; i < count && !all; i++)
        if (back[i]) back[i]->steps.gradient = NULL;
}

static void rehearsed(const trials *t) {
    for (int64_t i = 0; i < t->standing; i++) t->outlook->steps->rehearsed(t->stand_ins[i]);
}

// By what was measured; what was not comes last, as it was predicted. The winner of the race is the first all the same.
static void sort_measured(dpcr_candidate *candidates, int64_t count, int64_t winner) {
    const dpcr_candidate won = candidates[winner];
    for (int64_t i = winner; i > 0; i--) candidates[i] = candidates[i - 1];
    candidates[0] = won;
    candidates++, count--;
    for (int64_t i = 1; i < count; i++)
        for (int64_t k = i; k > 0; k--) {
            const dpcr_candidate a = candidates[k - 1], b = candidates[k];
            const double x = a.measured > 0 ? a.measured : 1e9 + a.seconds;
            const double y = b.measured > 0 ? b.measured : 1e9 + b.seconds;
            if (x <= y) break;
            candidates[k - 1] = b, candidates[k] = a;
        }
}

bool dpcri_measure(const dpcri_outlook *o, bool backward, dpcr_candidate *candidates, int64_t count, double seconds) {
    trials t = {
        .outlook = o, .context = o->context, .backward = backward, .taped = o->options->consume_tape, .count = count};
    double median[DPCRI_CANDIDATES];
    int64_t winner = -1;
    make_plans(&t, o, candidates);
    // Backward is at the solution, with the tape that the loop leaves.
    const dpcr_candidate loop = {.method = DPCR_METHOD_SEQUENTIAL};
    const dpcr_solve_options by_loop = options_of(o, &loop, false);
    dpcr_solve_plan *solution = NULL;
    if (allocate(&t, o)) {
        bool ready = !backward;
        if (backward && dpcr_solve_plan_create(o->context, o->steps, &by_loop, &solution, NULL) == DPCR_OK) {
            const size_t bytes = dpcr_solve_plan_workspace(solution);
            void *space = dpcri_alloc(o->context, bytes);
            const dpcr_array *tape = t.tape.data ? &t.tape : NULL;
            dpcr_error error = {0};
            const dpcr_status status = space || !bytes
                                           ? dpcr_solve_execute(solution, &t.z0, &t.z, tape, space, bytes, NULL, &error)
                                           : DPCR_ERROR_MEMORY;
            ready = dpcri_planning_heeds_solve(o, status, &error);
            dpcri_free(o->context, space);
        }
        if (ready && backward) rehearse(&t, t.plans, count);
        if (ready) winner = dpcri_race(count, run_trial, &t, seconds, clock_of_trials, median);
    }
    for (int64_t i = 0; winner >= 0 && i < count; i++) candidates[i].measured = median[i] < HUGE_VAL ? median[i] : 0;
    if (winner >= 0) sort_measured(candidates, count, winner);
    rehearsed(&t);
    dpcr_solve_plan_destroy(solution);
    for (int64_t i = 0; i < count; i++) dpcr_solve_plan_destroy(t.plans[i]);
    dpcri_free(o->context, t.memory);
    return winner >= 0;
}

// ---- pairs ----

enum { THERE = 3, BACK = 4, PAIRS = 6 };

// Loops, what is best alone, the same in the other way's chunks, and in chunks as the driver makes them both ways.
static const struct { int there, back; } pair_of[PAIRS] = {{0, 0}, {0, 1}, {1, 0}, {1, 1}, {1, 2}, {2, 3}};

typedef struct pairs {
    trials *t;                    // its plans: the ways forward
    dpcr_solve_plan *back[BACK];  // the ways back
} pairs;

static double clock_of_pairs(void *argument) { return clock_of_trials(((const pairs *)argument)->t); }

static bool run_pair(void *argument, int64_t i) {
    const pairs *p = argument;
    trials *t = p->t;
    dpcr_solve_plan *back = p->back[pair_of[i].back];
    return back && run_trial(t, pair_of[i].there) && run_back(t, back);
}

bool dpcri_measure_pair(const dpcri_outlook *o, const dpcr_candidate forward[2], const dpcr_candidate backward[2],
                        double seconds, dpcri_pair *best) {
    const dpcr_candidate *f = &forward[1], *b = &backward[1];
    const bool chunks = f->method == DPCR_METHOD_OVERLAP && b->scheme == DPCR_SCHEME_OVERLAP;
    dpcr_candidate there[THERE] = {forward[0], *f, *f}, back[BACK] = {backward[0], *b, *b, *b};
    there[2].chunk = back[3].chunk = 0;
    back[2].chunk = f->chunk;
    const bool free = chunks && o->options->backward_chunk == 0;  // else the caller's stays
    const bool wanted[BACK] = {true, true, free && f->chunk != b->chunk, free && (f->chunk != 0 || b->chunk != 0)};
    trials t = {.outlook = o, .context = o->context, .taped = true, .count = THERE};
    pairs p = {.t = &t};
    double median[PAIRS];
    int64_t winner = -1;
    for (int i = 0; i < THERE; i++) {
        const dpcr_solve_options options = options_of(o, &there[i], false);
        if (i < 2 || wanted[3]) t.plans[i] = make_plan(&t, o, &options, false);
    }
    for (int i = 0; i < BACK; i++) {
        dpcr_solve_options options = options_of(o, &back[i], true);
        options.consume_tape = o->options->consume_tape;
        if (wanted[i]) p.back[i] = make_plan(&t, o, &options, true);
    }
    if (allocate(&t, o)) {
        rehearse(&t, p.back, BACK);
        winner = dpcri_race(PAIRS, run_pair, &p, seconds, clock_of_pairs, median);
    }
    rehearsed(&t);
    for (int i = 0; i < THERE; i++) dpcr_solve_plan_destroy(t.plans[i]);
    for (int i = 0; i < BACK; i++) dpcr_solve_plan_destroy(p.back[i]);
    dpcri_free(o->context, t.memory);
    if (winner < 0) return false;
    *best = (dpcri_pair){.forward = there[pair_of[winner].there],
                         .backward = back[pair_of[winner].back],
                         .seconds = median[winner],
                         .loops = median[0]};
    return true;
}
