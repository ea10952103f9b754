// SPDX-License-Identifier: MIT
// How fast a nonlinear chain runs by its own loop, and by overlapped chunks side by side with the loop's very bits:
//   bench_cells [--length L] [--radius R] [--input-sd S] [--threads N] [--rounds N]
// z = tanh(W z + x), W at spectral radius R, x normal of deviation S, batch 1, float, at every narrow width, W shared
// and a step's own, and elementwise. CSV: kind, width, nanoseconds a step of the loop and of overlap (medians of rounds
// taken in turn), their ratio, the spread (largest minus smallest over the median) of both, and how the solve ended.
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "deeppcr/deeppcr.h"
#include "timing.h"

enum { MOST_ROUNDS = 99 };

typedef struct settings {
    int64_t length;
    double radius, deviation;
    int threads, rounds;
} settings;

static uint64_t state = 0x9E3779B97F4A7C15u;
static double uniform(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return ((double)(state >> 33) + 0.5) / 2147483648.0;
}
static double normal(void) {
    const double a = uniform(), b = uniform();
    return sqrt(-2 * log(a)) * cos(6.283185307179586 * b);
}

// log of the spectral radius, by ||A^(2^k)||^(1/2^k)
static double log_radius(const double *a, int64_t w) {
    double m[16], next[16], sum = 0, share = 1;
    memcpy(m, a, (size_t)(w * w) * sizeof *m);
    for (int k = 0; k < 24; k++, share /= 2) {
        double norm = 0;
        for (int64_t i = 0; i < w * w; i++) norm += m[i] * m[i];
        norm = sqrt(norm);
        sum += share * log(norm);
        for (int64_t i = 0; i < w; i++)
            for (int64_t j = 0; j < w; j++) {
                double s = 0;
                for (int64_t q = 0; q < w; q++) s += m[i * w + q] / norm * (m[q * w + j] / norm);
                next[i * w + j] = s;
            }
        memcpy(m, next, (size_t)(w * w) * sizeof *m);
    }
    return sum;
}

static void weights(float *to, int64_t w, bool diagonal, double radius) {
    double m[16];
    for (int64_t i = 0; diagonal && i < w; i++) to[i] = (float)(radius * (uniform() < 0.5 ? -1 : 1));
    if (diagonal) return;
    for (int64_t i = 0; i < w * w; i++) m[i] = normal();
    const double scale = radius / exp(log_radius(m, w));
    for (int64_t i = 0; i < w * w; i++) to[i] = (float)(m[i] * scale);
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void fail(const dpcr_error *error) {
    fprintf(stderr, "bench_cells: %s\n", error->text);
    exit(1);
}

static void point(dpcr_context *context, const settings *s, dpcr_cell_kind kind, int64_t w, bool own) {
    const bool diagonal = kind == DPCR_CELL_DIAGONAL;
    const int64_t values = diagonal ? w : w * w, numbers = s->length * w, shape[3] = {s->length, w, w};
    const int64_t states[3] = {s->length, 1, w}, each = own ? s->length : 1;
    float *weight = calloc((size_t)(each * values), sizeof *weight), *x = calloc((size_t)numbers, sizeof *x);
    float *z[2] = {calloc((size_t)numbers, sizeof **z), calloc((size_t)numbers, sizeof **z)};
    float *start = calloc((size_t)w, sizeof *start);
    if (!weight || !x || !z[0] || !z[1] || !start) exit(1);
    for (int64_t l = 0; l < each; l++) weights(weight + l * values, w, diagonal, s->radius);
    for (int64_t i = 0; i < numbers; i++) x[i] = (float)(s->deviation * normal());
    const int ndim = (diagonal ? 1 : 2) + (own ? 1 : 0);
    const dpcr_cell_options o = {.size = sizeof o,
                                 .kind = kind,
                                 .length = s->length,
                                 .batch = 1,
                                 .width = w,
                                 .weight = dpcr_array_make(weight, DPCR_F32, ndim, own ? shape : shape + 1),
                                 .input = dpcr_array_make(x, DPCR_F32, 3, states)};
    dpcr_cell *cell = NULL;
    dpcr_steps steps = {.size = sizeof steps};
    dpcr_error error;
    if (dpcr_cell_create(context, &o, &cell, &error) || dpcr_cell_steps(cell, &steps, &error)) fail(&error);
    dpcr_solve_plan *plan[2] = {NULL, NULL};
    void *workspace[2];
    size_t bytes[2];
    for (int m = 0; m < 2; m++) {
        const dpcr_solve_options options = {.size = sizeof options,
                                            .method = m ? DPCR_METHOD_OVERLAP : DPCR_METHOD_SEQUENTIAL,
                                            .atol = -1,
                                            .rtol = -1,
                                            .warm_up = 48};
        if (dpcr_solve_plan_create(context, &steps, &options, &plan[m], &error)) fail(&error);
        bytes[m] = (dpcr_solve_plan_workspace(plan[m]) + 63) / 64 * 64;
        workspace[m] = aligned_alloc(64, bytes[m] + 64);
    }
    double time[2][MOST_ROUNDS];
    dpcr_solve_report report = {.size = sizeof report};
    for (int round = -2; round < s->rounds; round++)
        for (int m = 0; m < 2; m++) {
            const dpcr_array in = dpcr_array_make(start, DPCR_F32, 2, states + 1);
            const dpcr_array out = dpcr_array_make(z[m], DPCR_F32, 3, states);
            const int calls = m ? 4 : 1;
            const double begin = now();
            for (int call = 0; call < calls; call++)
                if (dpcr_solve_execute(plan[m], &in, &out, NULL, workspace[m], bytes[m], &report, &error)) fail(&error);
            if (round >= 0) time[m][round] = (now() - begin) / calls / (double)s->length * 1e9;
        }
    for (int m = 0; m < 2; m++) qsort(time[m], (size_t)s->rounds, sizeof **time, by_size);
    const double loop = time[0][s->rounds / 2], overlap = time[1][s->rounds / 2];
    const char *const name = diagonal ? "diagonal" : own ? "own" : "shared";
    printf("%s,%d,%.3f,%.4f,%.2f,%.3f,%.3f,%s,%s\n", name, (int)w, loop, overlap, loop / overlap,
           (time[0][s->rounds - 1] - time[0][0]) / loop, (time[1][s->rounds - 1] - time[1][0]) / overlap,
           dpcr_reason_name(report.reason),
           memcmp(z[0], z[1], (size_t)numbers * sizeof(float)) == 0 ? "same bits" : "other bits");
    fflush(stdout);
    for (int m = 0; m < 2; m++) free(workspace[m]), dpcr_solve_plan_destroy(plan[m]), free(z[m]);
    dpcr_cell_destroy(cell);
    free(weight), free(x), free(start);
}

int main(int argc, char **argv) {
    settings s = {.length = 1 << 16, .radius = 0.9, .deviation = 1, .threads = 1, .rounds = 9};
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--length"))
            s.length = atoll(argv[i + 1]);
        else if (!strcmp(argv[i], "--radius"))
            s.radius = atof(argv[i + 1]);
        else if (!strcmp(argv[i], "--input-sd"))
            s.deviation = atof(argv[i + 1]);
        else if (!strcmp(argv[i], "--threads"))
            s.threads = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--rounds"))
            s.rounds = atoi(argv[i + 1]);
        else
            return fprintf(stderr, "bench_cells: unknown option %s\n", argv[i]), 2;
    }
    if (s.length < 1 || s.rounds < 1 || s.rounds > MOST_ROUNDS)
        return fprintf(stderr, "bench_cells: out of range\n"), 2;
    const dpcr_context_options options = {.size = sizeof options, .threads = s.threads};
    dpcr_context *context = NULL;
    dpcr_error error;
    if (dpcr_context_create(&options, &context, &error)) fail(&error);
    printf("kind,width,loop_ns,overlap_ns,ratio,loop_spread,overlap_spread,reason,bits\n");
    for (int64_t w = 1; w <= 4; w++) point(context, &s, DPCR_CELL_DENSE, w, false);
    for (int64_t w = 1; w <= 4; w++) point(context, &s, DPCR_CELL_DENSE, w, true);
    for (int64_t w = 1; w <= 256; w *= 2) point(context, &s, DPCR_CELL_DIAGONAL, w, false);
    dpcr_context_destroy(context);
    return 0;
}
