// SPDX-License-Identifier: MIT
// Newton, shooting and the adjoint chain in windows against the loop, narrow steps, float, batch 1, one thread: medians
// of interleaved rounds, in ns a step.   bench_windows [LENGTH ...]; default 1024 65536
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "kern/window.h"
#include "timing.h"

enum { ROUNDS = 11, SEED = 3 };

typedef struct work {
    dpcri_narrow p;
    int64_t length;
    float *weight, *bias, *z, *slope, *adjoint, z0[4];
    dpcri_window window;
} work;

// W of spectral radius `radius`: by the norm of W^(2^k).
static void scale_radius(float *weight, int64_t w, double radius) {
    double m[16], t[16], log_norm = 0;
    for (int64_t i = 0; i < w * w; i++) m[i] = (double)weight[i];
    for (int k = 0; k < 24; k++) {
        double norm = 0;
        for (int64_t i = 0; i < w * w; i++) norm = fmax(norm, fabs(m[i]));
        for (int64_t i = 0; i < w * w; i++) m[i] /= norm;
        log_norm += log(norm) / pow(2, k);
        for (int64_t i = 0; i < w; i++)
            for (int64_t j = 0; j < w; j++) {
                t[i * w + j] = 0;
                for (int64_t q = 0; q < w; q++) t[i * w + j] += m[i * w + q] * m[q * w + j];
            }
        memcpy(m, t, sizeof m);
    }
    for (int64_t i = 0; i < w * w; i++) weight[i] = (float)((double)weight[i] * radius / exp(log_norm));
}

static void make(work *x, int64_t length, int64_t w, bool residual, double radius, double input, uint64_t seed) {
    const int64_t weights = residual ? length * w * w : w * w;
    x->length = length;
    x->weight = malloc((size_t)weights * 4), x->bias = malloc((size_t)(length * w) * 4);
    x->z = malloc((size_t)(length * w) * 4), x->slope = malloc((size_t)(length * w) * 4);
    x->adjoint = malloc((size_t)(length * w) * 4);
    const double most = 1 / sqrt((double)w);
    for (int64_t i = 0; i < weights; i++)
        x->weight[i] = (float)(residual ? most * (2 * dpcri_random_uniform(seed, 1, (uint64_t)i) - 1)
                                        : dpcri_random_normal(seed, 1, (uint64_t)i));
    for (int64_t i = 0; i < length * w; i++)
        x->bias[i] = (float)(residual ? most * (2 * dpcri_random_uniform(seed, 2, (uint64_t)i) - 1)
                                      : input * dpcri_random_normal(seed, 2, (uint64_t)i));
    for (int i = 0; i < 4; i++) x->z0[i] = residual ? (float)dpcri_random_normal(seed, 3, (uint64_t)i) : 0;
    if (!residual) scale_radius(x->weight, w, radius);
    x->p = (dpcri_narrow){.dtype = DPCR_F32,
                          .width = w,
                          .activation = DPCRI_ACT_TANH,
                          .residual = residual,
                          .scale = 1 / sqrt((double)length),
                          .weight = x->weight,
                          .weight_step = residual ? w * w : 0,
                          .bias = x->bias,
                          .bias_step = w,
                          .bias_row = w};
}

static void run_loop(work *x) {
    const int64_t w = x->p.width;
    dpcri_narrow_kernels_get(DPCR_F32)->advance(&x->p, &(dpcri_narrow_run){.lanes = 1,
                                                                           .steps = x->length,
                                                                           .rows = 1,
                                                                           .in = x->z0,
                                                                           .in_lane = w,
                                                                           .in_row = w,
                                                                           .states = x->z,
                                                                           .states_lane = x->length * w,
                                                                           .states_step = w,
                                                                           .states_row = w});
}

static void run_window(work *x) {
    const dpcri_window_place place = {.count = x->length, .in = x->z0, .states = x->z, .step = x->p.width};
    dpcri_window_kernels_get(DPCR_F32)->solve(&x->p, &place, &x->window);
}

// g = z0 from the right; g' = J^T g, J = I + s diag(slope) W.
static void run_adjoint_loop(work *x) {
    const int64_t w = x->p.width;
    const float s = (float)x->p.scale;
    float g[4], d[4];
    memcpy(g, x->z0, sizeof g);
    for (int64_t l = x->length; l-- > 0;) {
        const float *a = x->weight + l * w * w;
        for (int64_t i = 0; i < w; i++) x->adjoint[l * w + i] = g[i], d[i] = s * x->slope[l * w + i] * g[i];
        for (int64_t j = 0; j < w; j++)
            for (int64_t i = 0; i < w; i++) g[j] += a[i * w + j] * d[i];
    }
}

static void run_adjoint(work *x) {
    float end[4];
    const int64_t w = x->p.width;
    const dpcri_window_adjoint a = {.count = x->length,
                                    .slope = x->slope,
                                    .slope_step = w,
                                    .last = x->z0,
                                    .adjoint = x->adjoint,
                                    .adjoint_step = w,
                                    .first_out = end};
    dpcri_window_kernels_get(DPCR_F32)->adjoint(&x->p, &a);
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Medians of `ours` and `theirs`, run in turn.
static void compare(const char *name, work *x, void (*theirs)(work *), void (*ours)(work *)) {
    double a[ROUNDS], b[ROUNDS];
    const int repeat = x->length < 32768 ? (int)(65536 / x->length) : 2;
    for (int r = 0; r < ROUNDS; r++) {
        const double t0 = now();
        for (int i = 0; i < repeat; i++) theirs(x);
        const double t1 = now();
        for (int i = 0; i < repeat; i++) ours(x);
        const double steps = 1e-9 * (double)repeat * (double)x->length;
        a[r] = (t1 - t0) / steps, b[r] = (now() - t1) / steps;
    }
    qsort(a, ROUNDS, sizeof *a, by_value), qsort(b, ROUNDS, sizeof *b, by_value);
    printf("%-34s w %d  L %6d  loop %6.2f  windows %6.3f (%.3f .. %.3f)  %5.2fx  sweeps %d  good %d\n", name,
           (int)x->p.width, (int)x->length, a[ROUNDS / 2], b[ROUNDS / 2], b[0], b[ROUNDS - 1],
           a[ROUNDS / 2] / b[ROUNDS / 2], x->window.sweeps, (int)x->window.good);
    free(x->weight), free(x->bias), free(x->z), free(x->slope), free(x->adjoint);
}

static void cell(const char *name, int64_t length, int64_t w, double radius, double input, int method) {
    for (uint64_t seed = SEED; seed < SEED + 3; seed++) {
        work x = {.window = {.method = method, .atol = 1e-5, .rtol = 1e-5}};
        make(&x, length, w, false, radius, input, seed);
        compare(name, &x, run_loop, run_window);
    }
}

int main(int argc, char **argv) {
    for (int a = 1; a < (argc > 1 ? argc : 3); a++) {
        const int64_t length = argc > 1 ? atoll(argv[a]) : a == 1 ? 1024 : 65536;
        for (int64_t w = 1; w <= 4; w++) {
            cell("cell, radius 0.9, newton", length, w, 0.9, 1, DPCRI_WINDOW_NEWTON);
            cell("cell, weak contraction, shooting", length, w, 1, 0.01, DPCRI_WINDOW_SHOOTING);
            cell("cell, bistable, shooting", length, w, 1.2, 0.1, DPCRI_WINDOW_SHOOTING);
            work x = {.window = {.method = DPCRI_WINDOW_SHOOTING, .atol = 5e-7, .rtol = 5e-7}};  // 1e-6 max(1, |z|)
            make(&x, length, w, true, 0, 0, SEED);
            compare("residual, shooting", &x, run_loop, run_window);
            work y = {.window = {.method = DPCRI_WINDOW_SHOOTING}};
            make(&y, length, w, true, 0, 0, SEED);
            for (int64_t i = 0; i < length * w; i++) y.slope[i] = (float)dpcri_random_uniform(SEED, 5, (uint64_t)i);
            compare("residual, adjoint", &y, run_adjoint_loop, run_adjoint);
        }
    }
    return 0;
}
