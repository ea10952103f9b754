// SPDX-License-Identifier: MIT
// Chains whose memory of the past is known, and plans of them.
#ifndef TESTS_PLANNING_H
#define TESTS_PLANNING_H

#include "solve/planner.h"
#include "solving.h"

// ---- chains of known memory ----

// h <- 0.9 h + a number of the step's own.
static inline void step_forgets(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    (void)b;
    for (int64_t i = 0; i < c->width; i++) {
        out[i] = c->parameters[0] * in[i] + chain_noise(l, i, 9);
        for (int64_t k = 0; j && k < c->width; k++) j[i * c->width + k] = i == k ? c->parameters[0] : 0;
    }
}

// A rotation by one radian: keeps every distance.
static inline void step_turns(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    (void)c, (void)l, (void)b;
    const double x = in[0], y = in[1], m[4] = {cos(1), -sin(1), sin(1), cos(1)};
    out[0] = m[0] * x + m[1] * y, out[1] = m[2] * x + m[3] * y;
    if (j) memcpy(j, m, sizeof m);
}

// Grows for ten steps before it shrinks: relative to its size hardly at all in the first thirty-two.
static inline void step_swells(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    (void)c, (void)b;
    out[0] = 0.9 * in[0] + 5 * in[1] + chain_noise(l, 0, 9), out[1] = 0.9 * in[1] + chain_noise(l, 1, 9);
    if (j) j[0] = 0.9, j[1] = 5, j[2] = 0, j[3] = 0.9;
}

// A delay line: all of the past, for `width` steps, and nothing then.
static inline void step_delays(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    (void)b;
    out[0] = chain_noise(l, 0, 9);
    for (int64_t i = 1; i < c->width; i++) out[i] = in[i - 1];
    for (int64_t i = 0; j && i < c->width * c->width; i++) j[i] = i / c->width == i % c->width + 1;
}

// A ring of numbers that moves on by one: keeps every distance, at any width.
static inline void step_circles(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    (void)l, (void)b;
    for (int64_t i = 0; i < c->width; i++) out[i] = in[(i + 1) % c->width];
    for (int64_t i = 0; j && i < c->width * c->width; i++) j[i] = (i / c->width + 1) % c->width == i % c->width;
}

// All states become 1: the past is gone after one step.
static inline void step_dead(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    (void)l, (void)b, (void)in;
    for (int64_t i = 0; i < c->width; i++) out[i] = 1;
    for (int64_t i = 0; j && i < c->width * c->width; i++) j[i] = 0;
}

static inline void step_breaks(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    (void)b, (void)in, (void)j;
    for (int64_t i = 0; i < c->width; i++) out[i] = l > 10 ? (double)NAN : 1;
}

static inline chain chain_of(chain_step step, int64_t length, int64_t width, dpcr_dtype dtype) {
    static const double nine_tenths[2] = {0.9, 0};
    return (chain){
        .step = step, .length = length, .batch = 3, .width = width, .dtype = dtype, .parameters = nine_tenths};
}

// ---- plans ----

static inline dpcr_solve_plan *plan_of(dpcr_context *context, const dpcr_steps *steps, dpcr_planning planning) {
    dpcr_solve_plan *plan = NULL;
    dpcr_error error = {0};
    const dpcr_solve_options options = {.size = sizeof options, .planning = planning, .planning_seconds = 0.05};
    if (dpcr_solve_plan_create(context, steps, &options, &plan, &error) != DPCR_OK) fail_msg("%s", error.text);
    return plan;
}

// Another machine than this one, told of more than its threads: estimates for it are the model's alone, and a step
// that tells its latency is not timed.
static inline dpcr_context *context_of_many_threads(void) {
    dpcr_context *context = solving_context(2);
    const dpcr_machine many = {.size = sizeof many, .threads = 64, .latency = 1e-9};
    assert_int_equal(dpcr_context_set_machine(context, &many, NULL), DPCR_OK);
    return context;
}

#endif
