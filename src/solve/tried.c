// SPDX-License-Identifier: MIT
// How many sweeps and evaluations a chain takes by picard, parataa or parareal: tried on its first sequences from the
// caller's start, since a trained network takes six sweeps where a drawn one takes two, and a chain that is stiff, or
// whose slopes are told wrong, thirty. A trial ends where the method has made as many evaluations as the loop's (timed)
// seconds afford, so it costs at most about one loop of those sequences, and what has not ended by then is behind the
// loop and told so by its front; what ends within is the same on every machine.
#include <math.h>
#include <string.h>

#include "solve/planner.h"

enum { TRIED_ROWS = 4, MOST_SWEEPS = 1000 };

typedef struct trial {
    dpcr_solve_plan *plan;
    dpcr_array z0, z;
    void *memory, *workspace;
    size_t bytes;
} trial;

static bool allocate(const dpcri_outlook *o, const dpcr_steps *steps, trial *t) {
    const size_t real = dpcr_dtype_size(steps->dtype), limit = o->options->memory_limit;
    const int64_t shape[3] = {steps->length, steps->batch, steps->width};
    dpcri_arena arena = {0};
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1) {
            if (arena.overflow || (limit && arena.used > limit)) return false;
            t->memory = dpcri_alloc_zero(o->context, arena.used);
            if (!t->memory) return false;
            arena = (dpcri_arena){.base = t->memory, .size = arena.used};
        }
        void *z = dpcri_arena_take(&arena, steps->length * steps->batch * steps->width, real);
        t->workspace = dpcri_arena_take(&arena, (int64_t)t->bytes, 1);
        t->z = dpcr_array_make(z, steps->dtype, 3, shape);
    }
    return true;
}

static dpcr_solve_options options_of(const dpcri_outlook *o, dpcr_method method, double most) {
    dpcr_solve_options options = *o->options;
    options.method = method;
    options.scheme = DPCR_SCHEME_AUTO;
    options.backward = DPCR_SCHEME_SEQUENTIAL;
    options.planning = DPCR_PLANNING_ESTIMATE;
    options.start = NULL;
    options.confirm = 0;  // cycles that confirm are priced apart
    options.consume_tape = 0;
    options.max_sweeps = (int)fmin(fmax(ceil(most), 1), MOST_SWEEPS);
    options.no_fallback = 1;
    if (options.guess == DPCR_GUESS_GIVEN) options.guess = DPCR_GUESS_STATE;
    options.atol = o->given[0], options.rtol = o->given[1];
    return options;
}

// Parareal's chunks of n steps, and its coarse steps, wait for each other, and so many sweeps as chunks end it.
static double parareal_seconds(const dpcri_outlook *o, double sweeps) {
    const int64_t n = dpcri_parareal_chunk(o->steps, o->options);
    const double most = fmin(sweeps, ceil((double)o->steps->length / (double)n));
    dpcr_steps steps = *o->steps;
    dpcri_outlook first = *o;
    first.steps = &steps;
    if (steps.batch > TRIED_ROWS) steps.batch = TRIED_ROWS;
    return dpcri_cost_parareal(&first, n, most, most);  // every sweep evaluates all of the chain
}

double dpcri_try_seconds(const dpcri_outlook *o, dpcr_method method, double most) {
    const double rows = fmin((double)o->steps->batch, TRIED_ROWS), sweeps = fmin(fmax(ceil(most), 1), MOST_SWEEPS);
    if (method == DPCR_METHOD_PARAREAL) return parareal_seconds(o, sweeps);
    return sweeps * dpcri_cost_evaluation(o) * rows / (double)o->steps->batch;
}

bool dpcri_try(dpcri_outlook *o, dpcr_method method, double most, double *sweeps, double *work) {
    trial t = {0};
    dpcr_steps steps = *o->steps;
    int64_t locked[TRIED_ROWS];
    if (steps.batch > TRIED_ROWS) steps.batch = TRIED_ROWS;
    const dpcr_solve_options options = options_of(o, method, most);
    dpcr_error error = {0};
    dpcr_solve_report report = {.size = sizeof report, .batch_capacity = steps.batch, .sequence_locked = locked};
    bool ran = dpcr_solve_plan_create(o->context, &steps, &options, &t.plan, NULL) == DPCR_OK;
    t.z0 = *o->options->start;
    t.z0.shape[0] = steps.batch;
    if (ran) {
        t.bytes = dpcr_solve_plan_workspace(t.plan);
        ran = allocate(o, &steps, &t);
        const dpcr_status status =
            ran ? dpcr_solve_execute(t.plan, &t.z0, &t.z, NULL, t.workspace, t.bytes, &report, &error) : DPCR_OK;
        ran = ran && dpcri_planning_heeds_solve(o, status, &error) && report.reason != DPCR_REASON_NONFINITE;
        o->evaluations += report.evaluations;
    }
    if (ran) {
        int64_t front = steps.length;
        for (int64_t b = 0; report.reason == DPCR_REASON_NOT_CONVERGED && b < steps.batch; b++)
            if (locked[b] < front) front = locked[b];
        const double whole = (double)steps.length / (double)(front > 0 ? front : 1);
        *sweeps = fmax(1, whole * report.sweeps);
        *work = whole * (double)report.evaluations / ((double)steps.length * (double)steps.batch);
    }
    dpcr_solve_plan_destroy(t.plan);
    dpcri_free(o->context, t.memory);
    return ran;
}
