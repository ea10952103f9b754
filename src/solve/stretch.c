// SPDX-License-Identifier: MIT
// What the chain's steps cost, where it does not tell: a stretch of it is run as the methods would run it, one lane and
// many, forward and backward, and timed: on a task's thread where they would give it to a task, for callbacks may share
// what nobody shares out already. The least of a few runs; together as long as some hundred steps of the loop, a few
// thousand by `window`. What cannot be run (memory, a callback with a positive code) stays untold, and then flops and
// the machine's rates must do; a negative code ends planning.
#include <math.h>
#include <string.h>

#include "rt/rates.h"
#include "solve/planner.h"

enum {
    STRETCH_STEPS = 128,
    FEW_STEPS = 16,
    LANE_STEPS = 24,
    RUNS = 3,
    USUAL_LANES = 16,
    WINDOW_STEPS = 1024,
    WINDOW_NUMBERS = 8192,  // of a sequence's states: chains of so many go another way than shorter ones
    WINDOW_BYTES = 1 << 20,
    PAGE = 4096
};
enum { MOST_ROWS = 256 };            // of a timed call's lanes together: more fill no product better
static const double plenty = 20e-3;  // seconds after which two runs tell enough, and that a step's lanes may take
enum { LEAST_LANES = 8, FULL_LANES = 16, CHAIN_PART = 32 };  // of chains that are looked at with care

typedef struct stretch {
    const dpcri_outlook *outlook;
    const dpcr_steps *steps;
    int64_t rows, n, lanes, lane_rows, lane_steps, stride;
    bool derivatives;                                  // room for Jacobians and the way back, which is zeroed
    dpcr_array z0, z, tape, adjoint;                   // [1][rows][w], [1][n][rows][w]
    dpcr_array jacobians, g;                           // [n][rows][values], [1][rows][w]
    dpcr_array last, states, lane_adjoint, lane_tape;  // [lanes][B][w], [lanes][steps][B][w]
    void *memory;
} stretch;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static bool allocate(const dpcri_outlook *o, stretch *s) {
    const dpcr_steps *steps = s->steps;
    const size_t real = dpcr_dtype_size(steps->dtype);
    const int64_t w = steps->width, values = steps->linearise ? dpcr_transition_values(&steps->jacobian) : 0;
    const int64_t states = s->n * s->rows, lanes = s->lanes * s->lane_rows;
    const int64_t back = s->derivatives ? states : 0, lanes_back = s->derivatives ? lanes * s->lane_steps : 0;
    dpcri_arena arena = {0};
    s->outlook = o;
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1) {
            s->memory = arena.overflow ? NULL : dpcri_alloc_zero(o->context, arena.used);
            if (!s->memory) return false;
            arena = (dpcri_arena){.base = s->memory, .size = arena.used};
        }
        void *z0 = dpcri_arena_take(&arena, s->rows * w, real), *z = dpcri_arena_take(&arena, states * w, real);
        void *adjoint = dpcri_arena_take(&arena, back * w, real);
        void *tape = dpcri_arena_take(&arena, states * steps->tape_values, real);
        void *last = dpcri_arena_take(&arena, lanes * w, real);
        void *kept = dpcri_arena_take(&arena, lanes * s->lane_steps * w, real);
        void *lane_adjoint = dpcri_arena_take(&arena, lanes_back * w, real);
        void *lane_tape = dpcri_arena_take(&arena, lanes_back * steps->tape_values, real);
        void *jacobians = dpcri_arena_take(&arena, back * values, real);
        void *g = dpcri_arena_take(&arena, s->derivatives ? s->rows * w : 0, real);
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

static bool heeds(const stretch *s, int code) { return dpcri_planning_heeds(s->outlook, code); }

static bool run_loop(stretch *s) {
    const dpcr_span span = dpcri_span(0, 1, 1, s->n, 0, s->rows);
    const bool taped = s->steps->tape_values > 0;
    return heeds(s, s->steps->advance(s->steps->user, &span, &s->z0, &s->z, NULL, taped ? &s->tape : NULL));
}

static bool run_lanes(stretch *s) {
    const dpcr_span span = dpcri_span(0, s->lanes, s->stride, s->lane_steps, 0, s->lane_rows);
    return heeds(s, s->steps->advance(s->steps->user, &span, &s->last, &s->states, NULL, NULL));
}

static bool run_linearise(stretch *s) {
    const dpcr_span span = dpcri_span(1, s->n - 1, 1, 1, 0, s->rows);
    dpcr_array in = s->z, a = s->jacobians;
    in.ndim = 3;
    memmove(in.shape, s->z.shape + 1, 3 * sizeof *in.shape);
    memmove(in.strides, s->z.strides + 1, 3 * sizeof *in.strides);
    in.shape[0] = a.shape[0] = s->n - 1;
    return heeds(s, s->steps->linearise(s->steps->user, &span, &in, NULL, &a));
}

// At the states that the loop has left, from step 1 on, whose inputs lie side by side.
static bool run_adjoint(stretch *s) {
    const dpcr_span span = dpcri_span(1, 1, 1, s->n - 1, 0, s->rows);
    const size_t real = dpcr_dtype_size(s->steps->dtype);
    dpcr_array in = s->z, tape = s->tape, kept = s->adjoint;
    in.shape[1] = tape.shape[1] = kept.shape[1] = s->n - 1;
    if (tape.data) tape.data = (char *)tape.data + (size_t)tape.strides[1] * real;
    const int code = s->steps->adjoint(s->steps->user, &span, &in, s->steps->tape_values > 0 ? &tape : NULL, NULL,
                                       &s->g, &kept, &s->g);
    return heeds(s, code);
}

static const dpcr_array *taped(const stretch *s, const dpcr_array *tape) {
    return s->steps->tape_values > 0 ? tape : NULL;
}

// The states that go in are taken to be those that came out: the same numbers to run on.
static bool run_adjoint_lanes(stretch *s) {
    const dpcr_span span = dpcri_span(0, s->lanes, s->stride, s->lane_steps, 0, s->lane_rows);
    const int code = s->steps->adjoint(s->steps->user, &span, &s->states, taped(s, &s->lane_tape), NULL, &s->last,
                                       &s->lane_adjoint, &s->last);
    return heeds(s, code);
}

static bool leave_tape(stretch *s) {
    const dpcr_span span = dpcri_span(0, s->lanes, s->stride, s->lane_steps, 0, s->lane_rows);
    return heeds(s, s->steps->advance(s->steps->user, &span, &s->last, &s->states, NULL, taped(s, &s->lane_tape)));
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
static double quickest_as(const dpcri_outlook *o, bool as_task, stretch *s, run_function *run) {
    timed t = {.s = s, .run = run, .seconds = HUGE_VAL};
    const double start = dpcri_seconds();
    for (int i = 0; i < RUNS && t.seconds > 0 && (i < 2 || dpcri_seconds() - start < plenty); i++) {
        if (dpcri_planning_ends(o)) return 0;
        if (as_task && s->steps->concurrent)
            dpcri_parallel(o->context, 2, time_run, &t);
        else
            time_run(&t, 0);
    }
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

typedef struct step_task {
    stretch *s;
    double *seconds;
} step_task;

static void time_step_as_task(void *argument, int64_t task) {
    const step_task *t = argument;
    if (task == 0) keep_least(t->s, run_loop, t->seconds);
}

static void keep_least_as_task(dpcr_context *context, stretch *s, double *seconds) {
    step_task t = {s, seconds};
    if (s->steps->concurrent)
        dpcri_parallel(context, 2, time_step_as_task, &t);
    else
        time_step_as_task(&t, 0);
}

// The loop's own step, a few times: the first finds the caches cold.
bool dpcri_time_step(dpcri_outlook *o, int64_t runs) {
    const dpcr_steps *steps = o->steps;
    stretch s = {.steps = steps, .rows = least(steps->batch, dpcri_row_block(steps)), .n = 1};
    if (!allocate(o, &s)) return false;
    set_one(&s.z0);
    double seconds = o->costs.block;
    for (int64_t i = 0; i < runs && seconds >= 0 && !dpcri_planning_ends(o); i++) {
        if (s.rows < steps->batch)  // the loop gives them to tasks
            keep_least_as_task(o->context, &s, &seconds);
        else
            keep_least(&s, run_loop, &seconds);
        o->evaluations += s.rows;
    }
    if (seconds > 0) o->costs.block = seconds;
    dpcri_free(o->context, s.memory);
    return seconds > 0;
}

static double row_alone(const dpcri_outlook *o) {
    return o->costs.block / (double)least(o->steps->batch, dpcri_row_block(o->steps));
}

static double row_at_peak(const dpcri_outlook *o) {
    const double peak = dpcri_rates_peak() * (o->steps->dtype == DPCR_F64 ? 0.5 : 1);
    return o->steps->flops / peak / (double)dpcr_context_threads(o->context);
}

// Steps that have taken less than their flops at the processor's peak are made on a device, whose call takes about as
// long for many rows.
static bool is_elsewhere(const dpcri_outlook *o) { return row_at_peak(o) > row_alone(o); }

// No row of a large product takes less than its flops at the processor's peak; where the chain does not tell them, an
// eighth of the loop's step is as good a guess as any.
void dpcri_bound_costs(dpcri_outlook *o) {
    const dpcr_steps *s = o->steps;
    o->costs.lane = !(s->flops > 0) ? row_alone(o) / 8 : is_elsewhere(o) ? row_alone(o) / FULL_LANES : row_at_peak(o);
    o->costs.sweep = o->costs.lane;
    o->costs.jacobian = s->flops > 0 ? o->costs.lane * s->jacobian_flops / s->flops : 0;
    o->costs.at_best = true;
}

// Lanes of a call as sweeps make them, as many as may take `seconds` at best, beside reading what they are multiplied
// by for the first time, and no more than FULL_LANES or the chain's CHAIN_PART; 0: so few that they would tell
// nothing.
static int64_t lanes_to_time(const dpcri_outlook *o, double seconds) {
    const dpcr_steps *s = o->steps;
    const int64_t window = o->options->window ? least(o->options->window, s->length) : s->length;
    const int64_t call = s->lanes > 1 ? s->lanes / s->batch : USUAL_LANES;
    const int64_t enough = s->length / CHAIN_PART > FULL_LANES ? s->length / CHAIN_PART : FULL_LANES;
    const int64_t most = least(least(window, enough), call > 0 ? call : 1);
    const double weights = s->flops / 2 * (double)dpcr_dtype_size(s->dtype);
    const double cold = is_elsewhere(o) ? 0 : weights / o->machine.bandwidth;
    const int64_t lanes = (int64_t)fmin(fmax(0, seconds - cold) / (o->costs.lane * (double)s->batch), (double)most);
    return lanes < least(most, LEAST_LANES) ? 0 : lanes;
}

// The least of two runs: the first may find threads asleep and memory that nobody has touched, and what is found is
// kept.
bool dpcri_time_sweep(dpcri_outlook *o, double seconds) {
    const dpcr_steps *steps = o->steps;
    stretch s = {.steps = steps, .rows = 1, .n = 1, .lane_steps = 1, .lane_rows = steps->batch, .stride = 1};
    s.lanes = lanes_to_time(o, seconds);
    if (s.lanes == 0 || !allocate(o, &s)) return false;
    set_one(&s.last);
    double took = 0;
    for (int i = 0; i < 2 && took >= 0 && !dpcri_planning_ends(o); i++) {
        keep_least(&s, run_lanes, &took);
        o->evaluations += s.lanes * s.lane_rows;
    }
    dpcri_free(o->context, s.memory);
    if (took <= 0) return false;
    const double each = took / (double)(s.lanes * s.lane_rows), ratio = each / o->costs.lane;
    o->costs.at_best = false;
    o->costs.lane = o->costs.sweep = each;
    o->costs.jacobian *= ratio;
    return true;
}

bool dpcri_time_loop(dpcri_outlook *o) {
    const dpcr_steps *steps = o->steps;
    stretch s = {.steps = steps, .rows = least(steps->batch, dpcri_row_block(steps)), .n = FEW_STEPS};
    if (steps->length < s.n || !allocate(o, &s)) return false;
    set_one(&s.z0);
    o->costs.block = quickest_as(o, s.rows < steps->batch, &s, run_loop) / (double)s.n;
    o->evaluations += RUNS * s.n * s.rows;
    dpcri_free(o->context, s.memory);
    return o->costs.block > 0;
}

// Steps of so many rows that take no longer than `plenty` by their flops, at least `few`.
static int64_t short_enough(const dpcri_outlook *o, int64_t wanted, int64_t few, int64_t rows) {
    const double fit = plenty * dpcri_rates_peak() / fmax(1, o->steps->flops * (double)rows);
    return fit > (double)wanted ? wanted : fit < (double)few ? few : (int64_t)fit;
}

dpcri_costs dpcri_costs_of(const dpcri_outlook *o, int64_t row_block, bool jacobians) {
    const dpcr_steps *steps = o->steps;
    dpcri_costs costs = {0};
    stretch s = {
        .steps = steps, .rows = least(steps->batch, row_block), .lane_rows = steps->batch, .derivatives = true};
    const int64_t most = MOST_ROWS / (steps->batch > 0 ? steps->batch : 1);
    s.n = least(short_enough(o, STRETCH_STEPS, 8, s.rows), steps->length);
    s.lanes = least(steps->lanes > 1 ? steps->lanes : USUAL_LANES, steps->length / (2 * LANE_STEPS));
    if (steps->batch > 1) s.lanes = least(s.lanes, most > 2 ? most : 2);
    s.lane_steps = short_enough(o, LANE_STEPS, 4, s.lanes * s.lane_rows);
    if (s.n < 8 || s.rows < 1 || s.lanes < 1) return costs;
    s.stride = steps->length / s.lanes;
    if (!allocate(o, &s)) return costs;
    set_one(&s.z0), set_one(&s.last), set_one(&s.g);
    const bool blocks = s.rows < steps->batch;                                     // the loop gives them to tasks
    const bool back = steps->adjoint && o->options->backward == DPCR_SCHEME_AUTO;  // else there may be no way back
    const double loop = quickest_as(o, blocks, &s, run_loop), lanes = quickest_as(o, true, &s, run_lanes);
    costs.block = loop / (double)s.n;
    costs.lane = lanes / (double)(s.lanes * s.lane_steps * s.lane_rows);
    if (loop > 0 && steps->linearise && jacobians)
        costs.jacobian = quickest_as(o, true, &s, run_linearise) / (double)((s.n - 1) * s.rows);
    if (loop > 0 && back) costs.adjoint_block = quickest_as(o, blocks, &s, run_adjoint) / (double)(s.n - 1);
    if (costs.adjoint_block > 0 && leave_tape(&s))
        costs.adjoint_lane =
            quickest_as(o, true, &s, run_adjoint_lanes) / (double)(s.lanes * s.lane_steps * s.lane_rows);
    dpcri_free(o->context, s.memory);
    return costs;
}

// From the caller's start, or one half in every component; states lie as far apart as they do in the batch, but no
// further than a page, or than makes a megabyte.
double dpcri_window_step(const dpcri_outlook *o, const dpcr_solve_options *options, double *sweeps) {
    const dpcr_steps *steps = o->steps;
    const size_t real = dpcr_dtype_size(steps->dtype);
    const int64_t way = (WINDOW_NUMBERS + steps->width - 1) / steps->width;
    const int64_t n = least(way > WINDOW_STEPS ? way : WINDOW_STEPS, steps->length);
    const int64_t state = steps->width * (int64_t)real, room = 1 + WINDOW_BYTES / (n * state);
    const int64_t rows = least(least(steps->batch, 1 + PAGE / state), room), values = rows * steps->width;
    char *memory = dpcri_alloc_zero(o->context, (size_t)((n + 1) * values) * real);
    if (!memory) return 0;
    const int64_t in_shape[3] = {1, 1, steps->width}, shape[4] = {1, n, rows, steps->width};
    dpcr_array in = dpcr_array_make(memory, steps->dtype, 3, in_shape);
    const dpcr_array states = dpcr_array_make(memory + (size_t)values * real, steps->dtype, 4, shape);
    set_one(&in);
    if (options->start) in.data = options->start->data;
    const dpcr_span span = dpcri_span(0, 1, 1, n, 0, 1);
    double seconds = HUGE_VAL;
    for (int i = 0; i < RUNS && seconds > 0 && !dpcri_planning_ends(o); i++) {
        dpcr_window window = {.size = sizeof window,
                              .method = (int)options->method,
                              .atol = options->atol,
                              .rtol = options->rtol,
                              .max_sweeps = options->max_sweeps ? options->max_sweeps : 100,
                              .estimate = -1};
        const double start = dpcri_seconds();
        const bool ran = dpcri_planning_heeds(o, steps->window(steps->user, &span, &in, &states, &window));
        seconds = ran && window.good == n ? fmin(seconds, dpcri_seconds() - start) : 0;
        *sweeps = window.sweeps;
    }
    dpcri_free(o->context, memory);
    return seconds < HUGE_VAL ? seconds / (double)n : 0;
}
