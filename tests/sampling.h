// SPDX-License-Identifier: MIT
// What the tests of samplers share: denoisers that are formulas.
#ifndef SAMPLING_H
#define SAMPLING_H

// cmocka.h wants the first four before it.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "deeppcr/deeppcr.h"

// m = tanh(gain W x + time / 1000), W a fixed matrix, or another function of that sum; gain huge: explodes where
// `explodes`.
typedef struct formula {
    int64_t width;
    dpcr_dtype dtype;
    double gain;
    bool affine, explodes, relu;
    dpcr_kinks kinks;  // that its denoiser says it has
} formula;

static inline double formula_weight(int64_t a, int64_t b) { return sin(1.3 * (double)(a + 1) + 2.1 * (double)(b + 1)); }

static inline double number_at(const void *x, dpcr_dtype dtype, int64_t i) {
    return dtype == DPCR_F32 ? (double)((const float *)x)[i] : ((const double *)x)[i];
}

static inline void set_number(void *x, dpcr_dtype dtype, int64_t i, double value) {
    if (dtype == DPCR_F32)
        ((float *)x)[i] = (float)value;
    else
        ((double *)x)[i] = value;
}

static inline int formula_linearise(void *user, int64_t rows, const void *x, const double *times,
                                    const int64_t *sequences, void *m, void *j) {
    const formula *f = user;
    const int64_t w = f->width;
    (void)sequences;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t a = 0; a < w; a++) {
            double u = times[i] / 1000;
            for (int64_t b = 0; b < w; b++) u += f->gain * formula_weight(a, b) * number_at(x, f->dtype, i * w + b);
            const double y = f->affine ? u : f->explodes ? exp(u * u) : f->relu ? fmax(u, 0) : tanh(u);
            const double slope = f->affine ? 1 : f->explodes ? 2 * u * y : f->relu ? u > 0 : 1 - y * y;
            set_number(m, f->dtype, i * w + a, y);
            for (int64_t b = 0; j && b < w; b++)
                set_number(j, f->dtype, (i * w + a) * w + b, slope * f->gain * formula_weight(a, b));
        }
    return 0;
}

static inline int formula_predict(void *user, int64_t rows, const void *x, const double *times,
                                  const int64_t *sequences, void *m) {
    return formula_linearise(user, rows, x, times, sequences, m, NULL);
}

static inline dpcr_denoiser formula_denoiser(formula *f, dpcr_prediction prediction) {
    return (dpcr_denoiser){.size = sizeof(dpcr_denoiser),
                           .user = f,
                           .width = f->width,
                           .dtype = f->dtype,
                           .prediction = prediction,
                           .flops = 2 * (double)f->width * (double)f->width,
                           .predict = formula_predict,
                           .linearise = formula_linearise,
                           .jacobian_flops = (double)f->width * (double)f->width,
                           .kinks = f->kinks};
}

static inline dpcr_context *sampling_context(int threads) {
    const dpcr_context_options options = {.size = sizeof options, .threads = threads};
    dpcr_context *context = NULL;
    assert_int_equal(dpcr_context_create(&options, &context, NULL), DPCR_OK);
    return context;
}

// A solved chain: its states [L][B][w] and what was said of it.
typedef struct solved {
    int64_t length, batch, width;
    dpcr_dtype dtype;
    void *z0, *z;
    dpcr_solve_report report;
} solved;

static inline void path_free(solved *p) {
    free(p->z0);
    free(p->z);
    *p = (solved){0};
}

static inline const void *path_end(const solved *p) {
    return (const char *)p->z + (size_t)((p->length - 1) * p->batch * p->width) * dpcr_dtype_size(p->dtype);
}

static inline size_t path_bytes(const solved *p) {
    return (size_t)(p->length * p->batch * p->width) * dpcr_dtype_size(p->dtype);
}

static inline double path_distance(const solved *a, const solved *b) {
    double most = 0;
    for (int64_t i = 0; i < a->length * a->batch * a->width; i++) {
        const double d = fabs(number_at(a->z, a->dtype, i) - number_at(b->z, b->dtype, i));
        if (!(d <= most)) most = d;
    }
    return most;
}

// Solves a sampler's chain, or these steps in its place, from its own noise, or from x. report: places for arrays, or
// NULL.
static inline solved solve_steps(dpcr_context *context, const dpcr_sampler *sampler, const dpcr_steps *steps,
                                 const dpcr_solve_options *options, const dpcr_array *x,
                                 const dpcr_solve_report *report) {
    dpcr_solve_plan *plan = NULL;
    dpcr_error error = {0};
    solved p = {.length = steps->length, .batch = steps->batch, .width = steps->width, .dtype = steps->dtype};
    const size_t real = dpcr_dtype_size(steps->dtype);
    p.z0 = calloc((size_t)(p.batch * p.width) + 1, real);
    p.z = calloc((size_t)(p.length * p.batch * p.width) + 1, real);
    const int64_t shape[3] = {p.length, p.batch, p.width};
    const dpcr_array z0 = dpcr_array_make(p.z0, steps->dtype, 2, shape + 1);
    const dpcr_array z = dpcr_array_make(p.z, steps->dtype, 3, shape);
    if (dpcr_sampler_start(sampler, x, &z0, &error) != DPCR_OK) fail_msg("%s", error.text);
    if (dpcr_solve_plan_create(context, steps, options, &plan, &error) != DPCR_OK) fail_msg("%s", error.text);
    const size_t bytes = dpcr_solve_plan_workspace(plan);
    void *workspace = bytes ? aligned_alloc(64, (bytes + 63) / 64 * 64) : NULL;
    if (report) p.report = *report;
    p.report.size = sizeof p.report;
    if (dpcr_solve_execute(plan, &z0, &z, NULL, workspace, bytes, &p.report, &error) != DPCR_OK)
        fail_msg("%s", error.text);
    p.report.sentence = NULL;
    free(workspace);
    dpcr_solve_plan_destroy(plan);
    return p;
}

static inline solved solve_sampler(dpcr_context *context, const dpcr_sampler *sampler,
                                   const dpcr_solve_options *options, const dpcr_array *x) {
    return solve_steps(context, sampler, dpcr_sampler_steps(sampler), options, x, NULL);
}

static inline dpcr_solve_options by_method(dpcr_method method) {
    return (dpcr_solve_options){.size = sizeof(dpcr_solve_options), .method = method};
}

#endif
