// SPDX-License-Identifier: MIT
// Views of trajectories and row operations of the driver.
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "solve/solve_internal.h"

#define REAL float
#define BITS uint32_t
#define SUFFIX(name) name##_f32
#include "solve/rows_template.h"
#undef REAL
#undef BITS
#undef SUFFIX
#define REAL double
#define BITS uint64_t
#define SUFFIX(name) name##_f64
#include "solve/rows_template.h"
#undef REAL
#undef BITS
#undef SUFFIX

const dpcri_row_ops *dpcri_row_ops_of(dpcr_dtype dtype) { return dtype == DPCR_F64 ? &ops_f64 : &ops_f32; }

static void not_finite(const dpcr_steps *steps, const dpcr_array *array) {
    dpcr_array lane = *array;
    if (array->ndim == 4) {  // [lanes][steps][rows][w]: lane by lane
        lane.ndim = 3;
        memmove(lane.shape, array->shape + 1, 3 * sizeof *lane.shape);
        memmove(lane.strides, array->strides + 1, 3 * sizeof *lane.strides);
    }
    for (int64_t c = 0; c < (array->ndim == 4 ? array->shape[0] : 1); c++) {
        dpcri_row_ops_of(steps->dtype)->fill(&lane, NAN);
        lane.data = (char *)lane.data + array->strides[0] * (int64_t)dpcr_dtype_size(array->dtype);
    }
}

// Lane c of an array of lanes, NULL where there is none.
static const dpcr_array *lane_of(const dpcr_array *array, int64_t c, dpcr_array *view) {
    if (!array) return NULL;
    *view = *array;
    view->data = (char *)array->data + c * array->strides[0] * (int64_t)dpcr_dtype_size(array->dtype);
    view->shape[0] = 1;
    return view;
}

// Each lane by itself, so that what one of them cannot do is not the others': which go together is the driver's choice.
static int advance_lanes(const dpcr_steps *steps, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                         const dpcr_array *last, const dpcr_array *tape) {
    for (int64_t c = 0; c < span->lanes; c++) {
        dpcr_array views[4];
        dpcr_span one = *span;
        one.first += c * span->stride, one.lanes = 1;
        const int code = dpcri_advance(steps, &one, lane_of(in, c, &views[0]), lane_of(states, c, &views[1]),
                                       lane_of(last, c, &views[2]), lane_of(tape, c, &views[3]));
        if (code != 0) return code;
    }
    return 0;
}

int dpcri_advance(const dpcr_steps *steps, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                  const dpcr_array *last, const dpcr_array *tape) {
    const int code = steps->advance(steps->user, span, in, states, last, tape);
    if (code <= 0) return code;
    if (span->lanes > 1 && (!last || last->data != in->data)) return advance_lanes(steps, span, in, states, last, tape);
    if (states) not_finite(steps, states);
    if (last) not_finite(steps, last);
    return 0;
}

void dpcri_for_tasks(const dpcr_solve_plan *plan, double flops, int64_t tasks, void (*task)(void *, int64_t),
                     void *argument) {
    const double region = 30000;  // flops that take about as long as handing work to the pool and back
    if (plan->steps.concurrent && (flops >= region || plan->steps.flops == 0))
        dpcri_parallel(plan->context, tasks, task, argument);
    else
        for (int64_t i = 0; i < tasks; i++) task(argument, i);
}

// ---- regions that the caller may end ----

typedef struct watched {
    const dpcr_solve_plan *plan;
    void (*task)(void *, int64_t);
    void *argument;
    int64_t every;     // tasks between two questions, at most
    pthread_t caller;  // cancel functions are asked on the thread that called
    double asked;      // when; the caller's alone
    _Atomic int stopped;
} watched;

static const double between = 0.05;  // seconds from question to question, as far as the clock has a say

// By number, or where tasks take longer than was told.
static bool is_due(watched *w, int64_t i) {
    const double now = dpcri_seconds();
    if (i % w->every != 0 && now - w->asked < between) return false;
    w->asked = now;
    return true;
}

static void watched_task(void *argument, int64_t i) {
    watched *w = argument;
    if (pthread_equal(pthread_self(), w->caller) && is_due(w, i) && dpcri_cancelled(w->plan->context))
        atomic_store(&w->stopped, 1);
    if (!atomic_load_explicit(&w->stopped, memory_order_relaxed)) w->task(w->argument, i);
}

double dpcri_flops_to_watch(const dpcr_steps *steps, double flops) {
    const double seconds = 1e-3;
    return !(steps->flops > 0) || flops / steps->flops * steps->latency >= seconds ? HUGE_VAL : flops;
}

bool dpcri_for_tasks_or_stop(const dpcr_solve_plan *plan, double flops, int64_t tasks, void (*task)(void *, int64_t),
                             void *argument) {
    const double worth = 1e7, least = 10 * worth;  // flops that take some hundred times as long as a question
    const double clock = 1e6;                      // or as often by the clock, where nobody hears of it before
    if (!dpcri_cancels(plan->context) || dpcri_flops_to_watch(&plan->steps, flops) < clock) {
        dpcri_for_tasks(plan, flops, tasks, task, argument);
        return true;
    }
    const double each = flops / (double)tasks;
    watched w = {.plan = plan, .task = task, .argument = argument, .caller = pthread_self(), .asked = dpcri_seconds()};
    w.every = flops < least ? INT64_MAX : each < worth ? (int64_t)(worth / each) : 1;
    dpcri_for_tasks(plan, flops, tasks, watched_task, &w);
    return !atomic_load(&w.stopped);
}

enum { MOST_AT_FIRST = 1 << 14, MOST_BETWEEN = 1000000000, FASTER = 8 };

static int64_t within(double steps, int64_t least, int64_t most) {
    return steps < (double)least ? least : steps < (double)most ? (int64_t)steps : most;
}

// By flops some tenths of a second on one slow thread, at first far fewer: short chains of steps that are what was told
// of them are run at once. Of steps of which nothing was told, and of those that one thread calls, which may be
// anything, one.
void dpcri_pace_begin(dpcri_pace *pace, const dpcr_solve_plan *plan, double sequences, int64_t steps) {
    const dpcr_steps *s = &plan->steps;
    const double flops = sequences * s->flops, latency = sequences * fmax(s->latency, s->adjoint_latency);
    pace->ran = 0;
    pace->most = pace->steps = within(flops > 0 ? 2e8 / flops : MOST_BETWEEN, DPCRI_LOOK_STEPS, MOST_BETWEEN);
    pace->began = -1;
    if (!dpcri_cancels(plan->context)) return;
    pace->steps = within(flops > 0 && s->concurrent ? 4e7 / flops : 1, 1, MOST_AT_FIRST);
    if (latency * (double)pace->steps > between) pace->steps = within(between / latency, 1, MOST_AT_FIRST);
    if (pace->steps < steps) pace->began = dpcri_seconds();
}

int64_t dpcri_pace_stretch(const dpcri_pace *pace, int64_t left) {
    return left < pace->steps - pace->ran ? left : pace->steps - pace->ran;
}

bool dpcri_pace_over(dpcri_pace *pace, int64_t steps) {
    pace->ran += steps;
    if (pace->ran < pace->steps) return false;
    if (pace->began >= 0) {
        const double now = dpcri_seconds(), ran = (double)pace->ran, taken = now - pace->began;
        const double fit = taken > between / FASTER ? ran * (between / taken) : FASTER * ran;
        pace->steps = within(fit, 1, pace->most);
        pace->began = now;
    }
    pace->ran = 0;
    return true;
}

void dpcri_looks_begin(dpcri_looks *looks, const dpcr_solve_plan *plan) {
    looks->plan = plan;
    looks->caller = pthread_self();
    atomic_init(&looks->stopped, false);
}

bool dpcri_looks_stopped(dpcri_looks *looks) {
    if (pthread_equal(pthread_self(), looks->caller) && dpcri_cancelled(looks->plan->context)) looks->stopped = true;
    return looks->stopped;
}

dpcr_span dpcri_span(int64_t first, int64_t lanes, int64_t stride, int64_t steps, int64_t row, int64_t rows) {
    return (dpcr_span){.size = sizeof(dpcr_span),
                       .first = first,
                       .lanes = lanes,
                       .stride = stride,
                       .steps = steps,
                       .row = row,
                       .rows = rows,
                       .device = {DPCR_HOST, 0}};
}

dpcr_array dpcri_slice(const dpcr_array *array, int64_t first, int64_t count, int64_t row, int64_t rows) {
    dpcr_array view = *array;
    if (view.data)
        view.data = (char *)view.data +
                    (first * view.strides[0] + row * view.strides[1]) * (int64_t)dpcr_dtype_size(view.dtype);
    view.shape[0] = count;
    view.shape[1] = rows;
    return view;
}

dpcr_array dpcri_outputs(const dpcri_trajectory *t, int64_t first, int64_t count, int64_t row, int64_t rows) {
    return dpcri_slice(&t->z, first, count, row, rows);
}

void dpcri_hold(dpcri_run *run, int64_t b, const dpcr_array *state, int64_t from, int64_t to) {
    if (from >= to) return;
    dpcr_array same = state ? *state : dpcri_inputs(&run->t, from, 1, b, 1);
    same.strides[0] = 0;
    const dpcr_array held = dpcri_outputs(&run->t, from, to - from, b, 1);
    dpcri_row_ops_of(run->plan->steps.dtype)->copy(&same, &held);
}

dpcr_array dpcri_inputs(const dpcri_trajectory *t, int64_t first, int64_t count, int64_t row, int64_t rows) {
    if (first > 0) return dpcri_slice(&t->z, first - 1, count, row, rows);
    dpcr_array view = t->z;  // z0 as one step; a count above 1 would need it in front of z
    view.data = (char *)t->z0.data + row * t->z0.strides[0] * (int64_t)dpcr_dtype_size(view.dtype);
    view.strides[1] = t->z0.strides[0];
    view.shape[0] = count;
    view.shape[1] = rows;
    return view;
}

// Number by number: filled by a loop it would be copied once more, which takes ten times as long.
dpcr_array dpcri_as_steps(const dpcr_array *a) {
    return (dpcr_array){.data = a->data,
                        .dtype = a->dtype,
                        .device = a->device,
                        .ndim = a->ndim + 1,
                        .shape = {1, a->shape[0], a->shape[1], a->shape[2]},
                        .strides = {0, a->strides[0], a->strides[1], a->strides[2]}};
}

dpcr_array dpcri_as_lanes(const dpcr_array *a) {
    return (dpcr_array){.data = a->data,
                        .dtype = a->dtype,
                        .device = a->device,
                        .ndim = a->ndim + 1,
                        .shape = {a->shape[0], 1, a->shape[1], a->shape[2]},
                        .strides = {a->strides[0], 0, a->strides[1], a->strides[2]}};
}
