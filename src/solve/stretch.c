// SPDX-License-Identifier: MIT
// What the chain's steps cost, where it does not tell: a stretch of it is run as the methods would run it, one lane and
// many, forward and backward, and timed: on a task's thread where they would give it to a task, for callbacks may share
// what nobody shares out already. The least of a few runs; together as long as some hundred steps of the loop, a few
// thousand by `window`. What cannot be run (memory, a callback that aborts) stays untold, and then flops and the
// machine's rates must do.
#include <math.h>
#include <string.h>

#include "solve/planner.h"

enum { STRETCH_STEPS = 128, LANE_STEPS = 24, RUNS = 3, USUAL_LANES = 16, WINDOW_STEPS = 1024, PAGE = 4096 };
enum { TOLD_STEPS = 32, TOLD_LANE_STEPS = 4, TURNS = 5 };  // of chains whose sweeps are timed too

typedef struct stretch {
    const dpcr_steps *steps;
    int64_t rows, n, lanes, lane_rows, lane_steps, stride;
    dpcr_array z0, z, tape, adjoint;                   // [1][rows][w], [1][n][rows][w]
    dpcr_array jacobians, g;                           // [n][rows][values], [1][rows][w]
    dpcr_array last, states, lane_adjoint, lane_tape;  // [lanes][B][w], [lanes][steps][B][w]
    void *memory;
} stretch;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static bool allocate(dpcr_context *context, stretch *s) {
    const dpcr_steps *steps = s->steps;
    const size_t real = dpcr_dtype_size(steps->dtype);
    const int64_t w = steps->width, values = steps->linearise ? dpcr_transition_values(&steps->jacobian) : 0;
    const int64_t states = s->n * s->rows, lanes = s->lanes * s->lane_rows;
    dpcri_arena arena = {0};
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1) {
            s->memory = arena.overflow ? NULL : dpcri_alloc_zero(context, arena.used);
            if (!s->memory) return false;
            arena = (dpcri_arena){.base = s->memory, .size = arena.used};
        }
        void *z0 = dpcri_arena_take(&arena, s->rows * w, real), *z = dpcri_arena_take(&arena, states * w, real);
        void *adjoint = dpcri_arena_take(&arena, states * w, real);
        void *tape = dpcri_arena_take(&arena, states * steps->tape_values, real);
        void *last = dpcri_arena_take(&arena, lanes * w, real);
        void *kept = dpcri_arena_take(&arena, lanes * s->lane_steps * w, real);
        void *lane_adjoint = dpcri_arena_take(&arena, lanes * s->lane_steps * w, real);
        void *lane_tape = dpcri_arena_take(&arena, lanes * s->lane_steps * steps->tape_values, real);
        void *jacobians = dpcri_arena_take(&arena, states * values, real);
        void *g = dpcri_arena_take(&arena, s->rows * w, real);
        s->z0 = dpcr_array_make(z0, steps->dtype, 3, (const int64_t[]){1, s->rows, w});
        s->z = dpcr_array_make(z, steps->dtype, 4, (const int64_t[]){1, s->n, s->rows, w});
        s->adjoint = dpcr_array_make(adjoint, steps->dtype, 4, s->z.shape);
        s->tape = dpcr_array_make(tape, steps->dtype, 4, (const int64_t[]){1, s->n, s->rows, steps->tape_values});
        s->last = dpcr_array_make(last, steps->dtype, 3, (const int64_t[]){s->lanes, s->lane_rows, w});
        s->states = dpcr_array_make(kept, steps->dtype, 4, (const int64_t[]){s->lanes, s->lane_steps, s->lane_rows, w});
        const int64_t taped[4] = {s->lanes, s->lane_steps, s->lane_rows, steps->tape_values};
        s->lane_adjoint = dpcr_array_make(lane_adjoint, steps->dtype, 4, s->states.shape);
        s->lane_tape = dpcr_array_make(lane_tape, steps->dtype, 4, taped);
        s->jacobians = dpcr_array_make(jacobians, steps->dtype, 3, (const int64_t[]){s->n, s->rows, values});
        s->g = dpcr_array_make(g, steps->dtype, 3, (const int64_t[]){1, s->rows, w});
    }
    return true;
}

static bool run_loop(stretch *s) {
    const dpcr_span span = dpcri_span(0, 1, 1, s->n, 0, s->rows);
    const bool taped = s->steps->tape_values > 0;
    return s->steps->advance(s->steps->user, &span, &s->z0, &s->z, NULL, taped ? &s->tape : NULL) == 0;
}

static bool run_lanes(stretch *s) {
    const dpcr_span span = dpcri_span(0, s->lanes, s->stride, s->lane_steps, 0, s->lane_rows);
    return s->steps->advance(s->steps->user, &span, &s->last, &s->states, NULL, NULL) == 0;
}

static bool run_linearise(stretch *s) {
    const dpcr_span span = dpcri_span(1, s->n - 1, 1, 1, 0, s->rows);
    dpcr_array in = s->z, a = s->jacobians;
    in.ndim = 3;
    memmove(in.shape, s->z.shape + 1, 3 * sizeof *in.shape);
    memmove(in.strides, s->z.strides + 1, 3 * sizeof *in.strides);
    in.shape[0] = a.shape[0] = s->n - 1;
    return s->steps->linearise(s->steps->user, &span, &in, NULL, &a) == 0;
}

// At the states that the loop has left, from step 1 on, whose inputs lie side by side.
static bool run_adjoint(stretch *s) {
    const dpcr_span span = dpcri_span(1, 1, 1, s->n - 1, 0, s->rows);
    const size_t real = dpcr_dtype_size(s->steps->dtype);
    dpcr_array in = s->z, tape = s->tape, kept = s->adjoint;
    in.shape[1] = tape.shape[1] = kept.shape[1] = s->n - 1;
    if (tape.data) tape.data = (char *)tape.data + (size_t)tape.strides[1] * real;
    return s->steps->adjoint(s->steps->user, &span, &in, s->steps->tape_values > 0 ? &tape : NULL, NULL, &s->g, &kept,
                             &s->g) == 0;
}

static const dpcr_array *taped(const stretch *s, const dpcr_array *tape) {
    return s->steps->tape_values > 0 ? tape : NULL;
}

// The states that go in are taken to be those that came out: the same numbers to run on.
static bool run_adjoint_lanes(stretch *s) {
    const dpcr_span span = dpcri_span(0, s->lanes, s->stride, s->lane_steps, 0, s->lane_rows);
    return s->steps->adjoint(s->steps->user, &span, &s->states, taped(s, &s->lane_tape), NULL, &s->last,
                             &s->lane_adjoint, &s->last) == 0;
}

static bool leave_tape(stretch *s) {
    const dpcr_span span = dpcri_span(0, s->lanes, s->stride, s->lane_steps, 0, s->lane_rows);
    return s->steps->advance(s->steps->user, &span, &s->last, &s->states, NULL, taped(s, &s->lane_tape)) == 0;
}

typedef bool run_function(stretch *s);

typedef struct timed {
    stretch *s;
    run_function *run;
    double seconds;  // of the quickest run; 0: it cannot be run
} timed;

static void time_run(void *argument, int64_t task) {
    timed *t = argument;
    if (task > 0) return;
    const double start = dpcri_seconds(), least_before = t->seconds;
    t->seconds = t->run(t->s) ? fmin(least_before, dpcri_seconds() - start) : 0;
}

// Seconds of the quickest run; 0: it cannot be run.
static double quickest_as(dpcr_context *context, bool as_task, stretch *s, run_function *run) {
    timed t = {.s = s, .run = run, .seconds = HUGE_VAL};
    for (int i = 0; i < RUNS && t.seconds > 0; i++)
        if (as_task && s->steps->concurrent)
            dpcri_parallel(context, 2, time_run, &t);
        else
            time_run(&t, 0);
    return t.seconds;
}

static void set_one(const dpcr_array *array) {
    for (int64_t i = 0; i < array->shape[0] * array->strides[0]; i++)
        if (array->dtype == DPCR_F64)
            ((double *)array->data)[i] = i % 2 ? -0.5 : 0.5;
        else
            ((float *)array->data)[i] = i % 2 ? -0.5f : 0.5f;
}

// ---- chains that tell `coarse` or `slopes` ----

// One run of what is timed, kept where it is the least yet; below 0: it cannot be run.
static void keep_least(stretch *s, run_function *run, double *seconds) {
    const double start = dpcri_seconds();
    if (*seconds < 0) return;
    const double took = run(s) ? dpcri_seconds() - start : -1;
    if (took < 0 || *seconds == 0 || took < *seconds) *seconds = took;
}

// Calls as sweeps make them, a window's lanes one step each, and the chunks of parareal; in turn with the loop, since
// what is chosen is their ratio, and a thread that was interrupted, or two that sit badly, must slow all of them down
// or none. Pieces as short as they can be, for the same reason.
static void time_sweeps(dpcr_context *context, stretch *loop, const dpcr_solve_options *options, dpcri_costs *costs) {
    const dpcr_steps *steps = loop->steps;
    const int64_t window = options->window ? least(options->window, steps->length) : steps->length;
    const int64_t chunk = dpcri_parareal_chunk(steps, options), chunks = (steps->length + chunk - 1) / chunk;
    const int64_t few = steps->lanes > 1 ? steps->lanes / steps->batch : USUAL_LANES;
    stretch s[2];
    bool runs[2];
    double seconds[2] = {0}, in_order = 0;
    for (int i = 0; i < 2; i++) {
        s[i] = (stretch){.steps = steps, .rows = 1, .n = 2, .lane_steps = i ? 2 : 1, .lane_rows = steps->batch};
        s[i].stride = i ? chunk : 1;
        s[i].lanes = i ? chunks - 1 : least(window, few > 0 ? few : 1);  // a longer window is several such calls
        runs[i] = s[i].lanes >= 1 && (i == 0 || chunk >= 2) && allocate(context, &s[i]);
        if (runs[i]) set_one(&s[i].last);
    }
    for (int round = 0; round < TURNS; round++) {
        if (loop->rows == steps->batch) keep_least(loop, run_loop, &in_order);  // else tasks run it
        for (int i = 0; i < 2; i++)
            if (runs[i]) keep_least(&s[i], run_lanes, &seconds[i]);
    }
    if (in_order > 0) costs->block = in_order / (double)loop->n;
    if (seconds[0] > 0) costs->sweep = seconds[0] / (double)(s[0].lanes * s[0].lane_rows);
    if (seconds[1] > 0) costs->chunks = seconds[1] / (double)s[1].lane_steps * (double)chunks / (double)s[1].lanes;
    for (int i = 0; i < 2; i++) dpcri_free(context, s[i].memory);
}

// Newton makes two sweeps at least, each of all Jacobians; what is behind by their work alone is not timed, for that
// would take as long as many loops.
static double jacobian_by_work(const stretch *s, const dpcri_costs *costs) {
    const double each = s->steps->flops > 0 ? costs->sweep * s->steps->jacobian_flops / s->steps->flops : 0;
    return 2 * each * (double)s->rows > costs->block ? each : 0;
}

dpcri_costs dpcri_costs_of(dpcr_context *context, const dpcr_steps *steps, const dpcr_solve_options *options,
                           int64_t row_block) {
    dpcri_costs costs = {0};
    const bool told = steps->coarse || steps->slopes;
    stretch s = {.steps = steps, .rows = least(steps->batch, row_block), .lane_rows = steps->batch};
    s.n = least(told ? TOLD_STEPS : STRETCH_STEPS, steps->length);
    s.lanes = least(steps->lanes > 1 ? steps->lanes : USUAL_LANES, steps->length / (2 * LANE_STEPS));
    s.lane_steps = told ? TOLD_LANE_STEPS : LANE_STEPS;
    if (s.n < 8 || s.rows < 1 || s.lanes < 1) return costs;
    s.stride = steps->length / s.lanes;
    if (!allocate(context, &s)) return costs;
    set_one(&s.z0), set_one(&s.last), set_one(&s.g);
    const bool blocks = s.rows < steps->batch;  // the loop gives them to tasks
    const double loop = quickest_as(context, blocks, &s, run_loop), lanes = quickest_as(context, true, &s, run_lanes);
    costs.block = loop / (double)s.n;
    costs.lane = lanes / (double)(s.lanes * s.lane_steps * s.lane_rows);
    if (loop > 0 && told) time_sweeps(context, &s, options, &costs);
    if (told && steps->linearise) costs.jacobian = jacobian_by_work(&s, &costs);
    if (loop > 0 && steps->linearise && costs.jacobian == 0)
        costs.jacobian = quickest_as(context, true, &s, run_linearise) / (double)((s.n - 1) * s.rows);
    if (loop > 0 && steps->adjoint)
        costs.adjoint_block = quickest_as(context, blocks, &s, run_adjoint) / (double)(s.n - 1);
    if (costs.adjoint_block > 0 && leave_tape(&s))
        costs.adjoint_lane =
            quickest_as(context, true, &s, run_adjoint_lanes) / (double)(s.lanes * s.lane_steps * s.lane_rows);
    dpcri_free(context, s.memory);
    return costs;
}

// From the caller's start, or one half in every component; states lie as far apart as they do in the batch, but no
// further than a page.
double dpcri_window_step(dpcr_context *context, const dpcr_steps *steps, const dpcr_solve_options *options,
                         double *sweeps) {
    const size_t real = dpcr_dtype_size(steps->dtype);
    const int64_t rows = least(steps->batch, 1 + PAGE / (steps->width * (int64_t)real)), values = rows * steps->width;
    const int64_t n = least(WINDOW_STEPS, steps->length);
    char *memory = dpcri_alloc_zero(context, (size_t)((n + 1) * values) * real);
    if (!memory) return 0;
    const int64_t in_shape[3] = {1, 1, steps->width}, shape[4] = {1, n, rows, steps->width};
    dpcr_array in = dpcr_array_make(memory, steps->dtype, 3, in_shape);
    const dpcr_array states = dpcr_array_make(memory + (size_t)values * real, steps->dtype, 4, shape);
    set_one(&in);
    if (options->start) in.data = options->start->data;
    const dpcr_span span = dpcri_span(0, 1, 1, n, 0, 1);
    double seconds = HUGE_VAL;
    for (int i = 0; i < RUNS && seconds > 0; i++) {
        dpcr_window window = {.size = sizeof window,
                              .method = (int)options->method,
                              .atol = options->atol,
                              .rtol = options->rtol,
                              .max_sweeps = options->max_sweeps ? options->max_sweeps : 100,
                              .estimate = -1};
        const double start = dpcri_seconds();
        const bool solved = steps->window(steps->user, &span, &in, &states, &window) == 0 && window.good == n;
        seconds = solved ? fmin(seconds, dpcri_seconds() - start) : 0;
        *sweeps = window.sweeps;
    }
    dpcri_free(context, memory);
    return seconds / (double)n;
}
