// SPDX-License-Identifier: MIT
// Kernels of narrow nonlinear chains: loops against a plain loop in double, lanes and batches against the loop's bits;
// linearised steps, the way back, and whole methods in windows.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kern/adjoint.h"
#include "kern/narrow.h"
#include "kern/window.h"
#include "kernels.h"

enum { STEPS = 32, LANES = 160, ROWS = 16, WINDOW = 1024 };

// ---- forward ----

typedef struct narrow_call {
    const dpcri_narrow_kernels *kernels;
    dpcri_narrow chain;
    dpcri_narrow_run run;
} narrow_call;

static void run_narrow(void *argument) {
    const narrow_call *c = argument;
    c->kernels->advance(&c->chain, &c->run);
}

// Operations and numbers of steps.
static cost cost_of(int64_t steps, int64_t w, bool own) {
    const double n = (double)steps, values = (double)(w * w), width = (double)w;
    return (cost){n, n * (2 * values + FUNCTION * width), n * ((own ? values : 0) + 2 * width)};
}

// z = tanh(W_l z + b_l) of STEPS steps from `in` as they should be; the largest error of `got` in units of what
// rounding explains: tanh is right to 10 ulp (narrow_activations.inc), the chain shrinks what was there by 0.8.
static double loop_error(const dpcri_narrow *chain, const void *in, const void *got) {
    const dpcr_dtype dtype = chain->dtype;
    const int64_t w = chain->width;
    double z[DPCRI_NARROW_WIDTH], next[DPCRI_NARROW_WIDTH], error = 0;
    for (int64_t i = 0; i < w; i++) z[i] = get(dtype, in, i);
    for (int64_t l = 0; l < STEPS; l++) {
        for (int64_t i = 0; i < w; i++) {
            next[i] = get(dtype, chain->bias, l * w + i);
            for (int64_t j = 0; j < w; j++)
                next[i] += get(dtype, chain->weight, l * chain->weight_step + i * w + j) * z[j];
        }
        for (int64_t i = 0; i < w; i++) {
            z[i] = tanh(next[i]);
            keep_larger(&error, fabs(get(dtype, got, l * w + i) - z[i]) / (5 * (12 + (double)w) * epsilon(dtype)));
        }
    }
    return error;
}

// Whether every lane and row of a run has the bits that it has alone.
static bool as_alone(const narrow_call *c, void *alone) {
    const size_t size = dpcr_dtype_size(c->chain.dtype);
    const dpcri_narrow_run *r = &c->run;
    bool same = true;
    for (int64_t lane = 0; lane < r->lanes; lane++)
        for (int64_t row = 0; row < r->rows; row++) {
            dpcri_narrow_run one = *r;
            one.lanes = one.rows = 1, one.first = r->first + lane * r->stride, one.states = alone;
            one.states_step = c->chain.width;
            one.in = (const char *)r->in + (size_t)(lane * r->in_lane + row * r->in_row) * size;
            c->kernels->advance(&c->chain, &one);
            for (int64_t k = 0; k < r->steps; k++)
                same &= memcmp((char *)r->states +
                                   (size_t)(lane * r->states_lane + k * r->states_step + row * r->states_row) * size,
                               (char *)alone + (size_t)(k * c->chain.width) * size, (size_t)c->chain.width * size) == 0;
        }
    return same;
}

// One sequence by the loop; LANES chunks of one side by side; ROWS sequences with the same weights.
static void narrow_kernel(dpcri_isa level, dpcr_dtype dtype, int64_t w, bool own) {
    const dpcri_narrow_kernels *kernels = dpcri_narrow_kernels_at(level, dtype);
    const int64_t steps = LANES * STEPS, values = w * w;
    const char *const names[2][3] = {{"narrow_shared_loop", "narrow_shared_lanes", "narrow_shared_rows"},
                                     {"narrow_own_loop", "narrow_own_lanes", "narrow_own_rows"}};
    void *weight = numbers(dtype, own ? steps * values : values, 0.8 / (double)w), *bias = numbers(dtype, steps * w, 1);
    void *in = numbers(dtype, LANES * w, 1), *states = numbers(dtype, steps * w, 1),
         *alone = numbers(dtype, STEPS * w, 1);
    const dpcri_narrow chain = {.dtype = dtype,
                                .width = w,
                                .activation = DPCRI_ACT_TANH,
                                .scale = 1,
                                .weight = weight,
                                .weight_step = own ? values : 0,
                                .bias = bias,
                                .bias_step = w};
    const dpcri_narrow_run run = {.lanes = 1,
                                  .stride = STEPS,
                                  .steps = STEPS,
                                  .rows = 1,
                                  .in = in,
                                  .in_lane = w,
                                  .in_row = w,
                                  .states = states,
                                  .states_lane = STEPS * w,
                                  .states_step = w,
                                  .states_row = w};
    narrow_call c = {kernels, chain, run};
    if (wanted(names[own][0])) {
        run_narrow(&c);
        const double error = loop_error(&chain, in, states);
        tell(names[own][0], level, dtype, w, 0, 1, cost_of(STEPS, w, own), best_seconds(run_narrow, &c), error);
    }
    if (wanted(names[own][1])) {
        c.run.lanes = LANES;
        run_narrow(&c);
        const double error = as_alone(&c, alone) ? 0 : HUGE_VAL;
        tell(names[own][1], level, dtype, w, 0, LANES, cost_of(steps, w, own), best_seconds(run_narrow, &c), error);
    }
    if (wanted(names[own][2])) {
        c.run.lanes = 1, c.run.rows = ROWS, c.run.states_step = ROWS * w;
        run_narrow(&c);
        const double error = as_alone(&c, alone) ? 0 : HUGE_VAL;
        cost takes = cost_of(ROWS * STEPS, w, own);
        if (own) takes.numbers -= (double)((ROWS - 1) * STEPS * values);
        tell(names[own][2], level, dtype, w, 0, ROWS, takes, best_seconds(run_narrow, &c), error);
    }
    free(weight), free(bias), free(in), free(states), free(alone);
}

// ---- linearised, and back ----

static dpcri_narrow drawn(work *w, int64_t steps) {
    const int64_t n = w->width, values = n * n;
    return (dpcri_narrow){.dtype = w->dtype,
                          .width = n,
                          .activation = DPCRI_ACT_TANH,
                          .scale = 1,
                          .weight = draw(w, steps * values, 0.8 / (double)n),
                          .weight_step = values,
                          .bias = draw(w, steps * n, 1),
                          .bias_step = n};
}

typedef struct point_call {
    const dpcri_narrow_kernels *kernels;
    dpcri_narrow chain;
    dpcri_narrow_point point;
} point_call;

static void run_point(void *argument) {
    const point_call *c = argument;
    c->kernels->linearise(&c->chain, &c->point);
}

static void linearise(work *w) {
    const int64_t n = w->width, lanes = w->rows;
    point_call c = {dpcri_narrow_kernels_at(w->level, w->dtype), drawn(w, lanes), {0}};
    c.point = (dpcri_narrow_point){.lanes = lanes,
                                   .stride = 1,
                                   .rows = 1,
                                   .in = draw(w, lanes * n, 1),
                                   .in_lane = n,
                                   .f = comes_out(w, lanes * n, 1),
                                   .f_lane = n,
                                   .a = comes_out(w, lanes * n * n, 1),
                                   .a_lane = n * n};
    cost takes = cost_of(lanes, n, true);
    takes.flops += (double)(lanes * n * (n + 2)), takes.numbers += (double)(lanes * n * n);
    runs(w, run_point, &c, takes);
}

typedef struct adjoint_call {
    const dpcri_adjoint_kernels *kernels;
    dpcri_narrow chain;
    dpcri_adjoint_run run;
} adjoint_call;

static void run_adjoint(void *argument) {
    const adjoint_call *c = argument;
    c->kernels->run(&c->chain, &c->run);
}

static void adjoint(work *w) {
    const int64_t n = w->width, lanes = w->rows, steps = lanes * STEPS;
    adjoint_call c = {dpcri_adjoint_kernels_at(w->level, w->dtype), drawn(w, steps), {0}};
    c.run = (dpcri_adjoint_run){.lanes = lanes,
                                .stride = STEPS,
                                .steps = STEPS,
                                .rows = 1,
                                .slope = {draw(w, steps * n, 1), STEPS * n, n, n},
                                .direct = {draw(w, steps * n, 1), STEPS * n, n, n},
                                .kept = {comes_out(w, steps * n, 1), STEPS * n, n, n},
                                .e = {comes_out(w, steps * n, 1), STEPS * n, n, n},
                                .last = {draw(w, lanes * n, 1), n, 0, n},
                                .first_out = {comes_out(w, lanes * n, 1), n, 0, n}};
    const double all = (double)steps, values = (double)(n * n), width = (double)n;
    runs(w, run_adjoint, &c, (cost){all, all * (2 * values + 2 * width), all * (values + 4 * width)});
}

// ---- whole methods in windows ----

typedef struct solve_call {
    const dpcri_window_kernels *kernels;
    dpcri_narrow chain;
    dpcri_window_place place;
    dpcri_window asked;
} solve_call;

static void run_solve(void *argument) {
    const solve_call *c = argument;
    dpcri_window window = c->asked;
    const int status = c->kernels->solve(&c->chain, &c->place, &window);
    if (status != 0 || window.good < c->place.count) put(c->chain.dtype, c->place.states, 0, NAN);
}

static void solve(work *w, int method) {
    const int64_t n = w->width;
    solve_call c = {.kernels = dpcri_window_kernels_at(w->level, w->dtype), .chain = drawn(w, WINDOW)};
    c.place = (dpcri_window_place){0, WINDOW, draw(w, n, 1), comes_out(w, WINDOW * n, 1), n};
    c.asked = (dpcri_window){.method = method, .atol = 8 * epsilon(w->dtype), .rtol = 8 * epsilon(w->dtype)};
    runs(w, run_solve, &c, cost_of(WINDOW, n, true));
}
static void newton(work *w) { solve(w, DPCRI_WINDOW_NEWTON); }
static void shooting(work *w) { solve(w, DPCRI_WINDOW_SHOOTING); }

typedef struct compose_call {
    const dpcri_window_kernels *kernels;
    dpcri_narrow chain;
    dpcri_window_adjoint adjoint;
} compose_call;

static void run_compose(void *argument) {
    const compose_call *c = argument;
    if (c->kernels->adjoint(&c->chain, &c->adjoint) != 0) put(c->chain.dtype, c->adjoint.first_out, 0, NAN);
}

static void compose(work *w) {
    const int64_t n = w->width;
    compose_call c = {dpcri_window_kernels_at(w->level, w->dtype), drawn(w, WINDOW), {0}};
    c.adjoint = (dpcri_window_adjoint){.count = WINDOW,
                                       .slope = draw(w, WINDOW * n, 1),
                                       .slope_step = n,
                                       .direct = draw(w, WINDOW * n, 1),
                                       .direct_step = n,
                                       .last = draw(w, n, 1),
                                       .adjoint = comes_out(w, WINDOW * n, 1),
                                       .adjoint_step = n,
                                       .first_out = comes_out(w, n, 1)};
    const double all = WINDOW, values = (double)(n * n), width = (double)n;
    runs(w, run_compose, &c, (cost){all, all * (2 * values + 2 * width), all * (values + 3 * width)});
}

void show_narrow(dpcri_isa level, dpcr_dtype dtype) {
    if (!dpcri_narrow_kernels_at(level, dtype)) return;
    for (int64_t w = 1; w <= DPCRI_NARROW_WIDTH; w++) {
        for (int own = 0; own <= 1; own++) narrow_kernel(level, dtype, w, own);
        const double steps = 5 * (12 + (double)w);
        const kernel_line lines[] = {
            {"narrow_linearise", w, LANES, 12 + (double)w, linearise},
            {"narrow_adjoint_loop", w, 1, steps, adjoint},
            {"narrow_adjoint_lanes", w, LANES, steps, adjoint},
            {"window_newton", w, 1, 4 * steps, newton},
            {"window_shooting", w, 1, 4 * steps, shooting},
            {"window_adjoint", w, 1, steps, compose},
        };
        for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) show(&lines[i], level, dtype);
    }
}
