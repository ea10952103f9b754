// SPDX-License-Identifier: MIT
// A solve in one call, with everything that tests look at.
#ifndef TESTS_SOLVING_H
#define TESTS_SOLVING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
// cmocka needs the four above
#include <cmocka.h>

#include "chains.h"

typedef struct solved {
    dpcr_status status;
    dpcr_error error;
    dpcr_solve_report report, back;  // of the way back, where there was one
    double history[2048];
    int64_t fronts[2048];
    int reasons[64], sweeps[64];
    int64_t locked[64];
    char sentence[400];  // the plan's, which is gone
    double sequence_history[2048 * 8];
    int64_t sequence_fronts[2048 * 8];
    void *z;       // [L][B][w]
    void *lambda;  // [L][B][w]
    void *dz0;     // [B][w]
} solved;

static size_t solving_bytes(const chain *c) {
    return (size_t)(c->length * c->batch * c->width) * dpcr_dtype_size(c->dtype) + 64;
}

static void *solving_workspace(size_t bytes) { return aligned_alloc(64, (bytes + 127) / 64 * 64); }

static inline dpcr_context *solving_context(int threads) {
    const dpcr_context_options options = {.size = sizeof options, .threads = threads};
    dpcr_context *context = NULL;
    assert_int_equal(dpcr_context_create(&options, &context, NULL), DPCR_OK);
    return context;
}

// Solves; the guess, when the options say GIVEN, is `guess` (whole trajectory) or zeros. direct != 0: backward as well,
// with direct gradients on every step.
static inline solved solve_steps(dpcr_context *context, const dpcr_steps *steps, const chain *c, const void *z0,
                                 const dpcr_solve_options *options, const void *guess, int direct) {
    solved s = {.report = {.size = sizeof s.report}, .back = {.size = sizeof s.back}};
    const size_t bytes = solving_bytes(c);
    s.z = calloc(1, bytes), s.lambda = calloc(1, bytes), s.dz0 = calloc(1, bytes);
    if (guess) memcpy(s.z, guess, bytes - 64);
    s.report.residual_history = s.history, s.report.locked_history = s.fronts, s.report.history_capacity = 2048;
    s.report.sequence_reason = s.reasons, s.report.sequence_sweeps = s.sweeps, s.report.sequence_locked = s.locked;
    s.report.batch_capacity = c->batch <= 8 ? 8 : 64;
    if (c->batch <= 8)
        s.report.sequence_residual_history = s.sequence_history, s.report.sequence_locked_history = s.sequence_fronts;
    dpcr_solve_plan *plan = NULL;
    s.status = dpcr_solve_plan_create(context, steps, options, &plan, &s.error);
    if (s.status != DPCR_OK) return s;
    const int64_t shape[3] = {c->length, c->batch, c->width};
    const dpcr_array first = dpcr_array_make((void *)z0, c->dtype, 2, shape + 1),
                     z = dpcr_array_make(s.z, c->dtype, 3, shape);
    const size_t space = dpcr_solve_plan_workspace(plan);
    unsigned char *workspace = solving_workspace(space + 64);
    memset(workspace, 0xa5, space + 64);
    snprintf(s.sentence, sizeof s.sentence, "%s", dpcr_solve_plan_sentence(plan));
    s.status = dpcr_solve_execute(plan, &first, &z, NULL, workspace, space, &s.report, &s.error);
    if (s.status == DPCR_OK && direct) {
        const dpcr_array lambda = dpcr_array_make(s.lambda, c->dtype, 3, shape),
                         dz0 = dpcr_array_make(s.dz0, c->dtype, 2, shape + 1);
        void *g = calloc(1, bytes);
        const dpcr_array given = dpcr_array_make(g, c->dtype, 3, shape);
        for (int64_t i = 0; i < c->length * c->batch * c->width; i++) chain_put(&given, i, chain_noise(i, 7, 9));
        memset(workspace, 0x5a, space);
        memset(workspace + space, 0xa5, 64);
        s.status = dpcr_solve_backward(plan, &first, &z, NULL, &given, NULL, &lambda, &dz0, workspace, space, &s.back,
                                       &s.error);
        free(g);
    }
    if (s.status == DPCR_OK) assert_string_equal(s.report.sentence, s.sentence);
    s.report.sentence = NULL;
    for (int i = 0; i < 64; i++) assert_int_equal(workspace[space + (size_t)i], 0xa5);  // nothing behind it was written
    free(workspace);
    dpcr_solve_plan_destroy(plan);
    return s;
}

static inline solved solve(dpcr_context *context, chain *c, const void *z0, const dpcr_solve_options *options) {
    const dpcr_steps steps = chain_steps(c);
    return solve_steps(context, &steps, c, z0, options, NULL, 0);
}

static inline void solved_free(solved *s) {
    free(s->z), free(s->lambda), free(s->dz0);
    s->z = s->lambda = s->dz0 = NULL;
}

// The loop, straight from the step.
static inline void *loop_of(chain *c, const void *z0) {
    const int64_t shape[3] = {c->length, c->batch, c->width};
    void *z = calloc(1, solving_bytes(c));
    const dpcr_array in = dpcr_array_make((void *)z0, c->dtype, 2, shape + 1),
                     out = dpcr_array_make(z, c->dtype, 3, shape);
    dpcr_array lanes = in, states = out;
    lanes.ndim = 3, lanes.shape[2] = lanes.shape[1], lanes.strides[2] = 1, lanes.strides[1] = lanes.strides[0];
    states.ndim = 4, states.strides[3] = 1, states.strides[2] = out.strides[1], states.strides[1] = out.strides[0],
    states.strides[0] = 0;
    const dpcr_span span = {.size = sizeof span, .lanes = 1, .stride = 1, .steps = c->length, .rows = c->batch};
    chain_advance(c, &span, &lanes, &states, NULL, NULL);
    return z;
}

static inline double largest_error(const chain *c, const void *a, const void *b) {
    const int64_t shape[1] = {c->length * c->batch * c->width};
    const dpcr_array x = dpcr_array_make((void *)a, c->dtype, 1, shape),
                     y = dpcr_array_make((void *)b, c->dtype, 1, shape);
    double most = 0;
    for (int64_t i = 0; i < shape[0]; i++) {
        const double d = fabs(chain_get(&x, i) - chain_get(&y, i)) / fmax(1, fabs(chain_get(&y, i)));
        if (!(d <= most)) most = d;
    }
    return most;
}

__attribute__((unused)) static const dpcr_method sweep_methods[] = {DPCR_METHOD_NEWTON, DPCR_METHOD_DIAGONAL,
                                                                    DPCR_METHOD_BLOCK,  DPCR_METHOD_PICARD,
                                                                    DPCR_METHOD_JACOBI, DPCR_METHOD_DAMPED};
enum { SWEEP_METHODS = sizeof sweep_methods / sizeof *sweep_methods };
__attribute__((unused)) static const dpcr_scheme schemes[] = {DPCR_SCHEME_SEQUENTIAL, DPCR_SCHEME_PCR,
                                                              DPCR_SCHEME_BLELLOCH, DPCR_SCHEME_CHUNKED};

__attribute__((unused)) static const double gains[2] = {1.2, 0};

static inline chain tanh_chain(int64_t length, int64_t batch, int64_t width, dpcr_dtype dtype) {
    return (chain){
        .step = step_tanh, .length = length, .batch = batch, .width = width, .dtype = dtype, .parameters = gains};
}

static inline void *starts(const chain *c) {
    const int64_t shape[1] = {c->batch * c->width};
    void *z0 = calloc(1, (size_t)shape[0] * 8 + 64);
    const dpcr_array a = dpcr_array_make(z0, c->dtype, 1, shape);
    for (int64_t i = 0; i < shape[0]; i++) chain_put(&a, i, chain_noise(i, 3, 5));
    return z0;
}

static inline void near(double got, double wanted, double tolerance) {
    if (!(fabs(got - wanted) <= tolerance)) fail_msg("got %.15g, wanted %.15g", got, wanted);
}

#endif
