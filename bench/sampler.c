// SPDX-License-Identifier: MIT
// Denoising steps by the loop or by a method: median time of a step; a CSV line.
//
//   bench_sampler [--width 16] [--hidden 512] [--depth 4] [--batch 1] [--steps 100] [--threads 1] [--sampler ddim]
//                 [--method sequential] [--window 0] [--chunk 0] [--tolerance 1e-3] [--seconds 0.5] [--rounds 5]
//                 [--model F.safetensors] [--save F.safetensors] [--samples F.npy] [--start F.npy]
//
// Without --model a denoiser with drawn numbers, its predictions small (v). --save writes the model; --start and
// --samples write where the pictures start and end, [batch][width], for bench/peers/diffusion_*.py. Prints width,
// hidden, depth, batch, steps, threads, sampler, method, window, nanoseconds a step (median, least), sweeps, calls,
// evaluations, largest difference from the loop, rounds, nanoseconds of reading the layers' weights once by a loop that
// does nothing else, in one stream, asked for ahead or not, or in four, each thread those parts that it reads in a step
// (least of three times as many readings as rounds).
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drawn_denoiser.h"
#include "rt/rt.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

typedef struct settings {
    long width, hidden, depth, batch, steps, threads, window, rounds, chunk;
    dpcr_sampler_kind sampler;
    dpcr_method method;
    double seconds, tolerance;
    const char *model, *save, *samples, *start;
} settings;

static settings read_settings(int argc, char **argv) {
    settings s = {.width = 16, .hidden = 512, .depth = 4, .batch = 1, .steps = 100, .threads = 1, .rounds = 5};
    s.sampler = DPCR_SAMPLER_DDIM, s.method = DPCR_METHOD_SEQUENTIAL, s.seconds = 0.5, s.tolerance = 1e-3;
    const struct {
        const char *name;
        long *to;
    } numbers[] = {{"--width", &s.width},   {"--hidden", &s.hidden}, {"--depth", &s.depth},
                   {"--batch", &s.batch},   {"--steps", &s.steps},   {"--threads", &s.threads},
                   {"--window", &s.window}, {"--rounds", &s.rounds}, {"--chunk", &s.chunk}};
    const struct {
        const char *name;
        const char **to;
    } texts[] = {{"--model", &s.model}, {"--save", &s.save}, {"--samples", &s.samples}, {"--start", &s.start}};
    dpcr_error error;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--sampler") == 0) must(dpcr_sampler_find(argv[i + 1], &s.sampler, &error), &error);
        if (strcmp(argv[i], "--method") == 0) must(dpcr_method_find(argv[i + 1], &s.method, &error), &error);
        if (strcmp(argv[i], "--seconds") == 0) s.seconds = atof(argv[i + 1]);
        if (strcmp(argv[i], "--tolerance") == 0) s.tolerance = atof(argv[i + 1]);
        for (size_t k = 0; k < sizeof numbers / sizeof numbers[0]; k++)
            if (strcmp(argv[i], numbers[k].name) == 0) *numbers[k].to = atol(argv[i + 1]);
        for (size_t k = 0; k < sizeof texts / sizeof texts[0]; k++)
            if (strcmp(argv[i], texts[k].name) == 0) *texts[k].to = argv[i + 1];
    }
    return s;
}

static dpcr_diffusion *make_model(dpcr_context *context, const settings *s) {
    dpcr_error error;
    dpcr_diffusion *model;
    if (!s->model) return drawn_denoiser(context, s->width, s->hidden, s->depth);
    must(dpcr_diffusion_load(context, s->model, &model, &error), &error);
    return model;
}

static dpcr_array array(int64_t a, int64_t b, int64_t c) {
    const int64_t shape[3] = {a, b, c};
    return dpcr_array_make(calloc((size_t)(a * b * (c ? c : 1)) + 1, sizeof(float)), DPCR_F32, c ? 3 : 2, shape);
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct work {
    dpcr_solve_plan *plan;
    void *workspace;
    size_t bytes;
} work;

static dpcr_solve_report run(const work *w, const dpcr_array *z0, const dpcr_array *z) {
    dpcr_error error;
    dpcr_solve_report report = {.size = sizeof report};
    must(dpcr_solve_execute(w->plan, z0, z, NULL, w->workspace, w->bytes, &report, &error), &error);
    return report;
}

static work prepare(dpcr_context *context, dpcr_sampler *sampler, const settings *s, dpcr_method method,
                    const dpcr_array *z0) {
    dpcr_error error;
    work w = {0};
    const dpcr_solve_options options = {.size = sizeof options,
                                        .method = method,
                                        .backward = DPCR_SCHEME_SEQUENTIAL,
                                        .planning_seconds = 1,  // auto: one plan for all rounds
                                        .guess = DPCR_GUESS_STATE,
                                        .window = method == DPCR_METHOD_SEQUENTIAL ? 0 : s->window,
                                        .chunk = method == DPCR_METHOD_SEQUENTIAL ? 0 : s->chunk,
                                        .atol = s->tolerance > 0 ? s->tolerance : -1,
                                        .rtol = s->tolerance > 0 ? s->tolerance : -1,
                                        .start = z0};
    must(dpcr_solve_plan_create(context, dpcr_sampler_steps(sampler), &options, &w.plan, &error), &error);
    w.bytes = dpcr_solve_plan_workspace(w.plan);
    w.workspace = aligned_alloc(64, (w.bytes + 127) / 64 * 64);
    memset(w.workspace, 0, w.bytes);
    return w;
}

// ---- reading the weights alone ----

static volatile float sink;  // or the compiler sees that nobody wants the sums

// Ways of reading: in one stream, left to the hardware or asked for AHEAD bytes before, or in STREAMS at once.
enum { PLAIN, ASKED, SIDE_BY_SIDE, WAYS, AHEAD = 2048, STREAMS = 4 };

static inline void ask(const float *x, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char *)x + AHEAD + i);
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static void read_avx512(const float *x, int64_t count, bool ahead) {
    __m512 sum[8] = {0};
    for (int64_t i = 0; i + 128 <= count; i += 128) {
        if (ahead) ask(x + i, 512);
        for (int k = 0; k < 8; k++) sum[k] = _mm512_add_ps(sum[k], _mm512_loadu_ps(x + i + 16 * k));
    }
    for (int k = 1; k < 8; k++) sum[0] = _mm512_add_ps(sum[0], sum[k]);
    sink = _mm512_reduce_add_ps(sum[0]);
}

__attribute__((target("avx2"))) static void read_avx2(const float *x, int64_t count, bool ahead) {
    __m256 sum[8] = {0};
    for (int64_t i = 0; i + 64 <= count; i += 64) {
        if (ahead) ask(x + i, 256);
        for (int k = 0; k < 8; k++) sum[k] = _mm256_add_ps(sum[k], _mm256_loadu_ps(x + i + 8 * k));
    }
    for (int k = 1; k < 8; k++) sum[0] = _mm256_add_ps(sum[0], sum[k]);
    sink = _mm256_cvtss_f32(sum[0]);
}

__attribute__((target("avx512f"))) static void read_streams_avx512(const float *x, int64_t count) {
    const int64_t apart = count / STREAMS / 32 * 32;
    __m512 sum[2 * STREAMS] = {0};
    for (int64_t i = 0; i < apart; i += 32)
        for (int k = 0; k < 2 * STREAMS; k++)
            sum[k] = _mm512_add_ps(sum[k], _mm512_loadu_ps(x + k / 2 * apart + i + k % 2 * 16));
    for (int k = 1; k < 2 * STREAMS; k++) sum[0] = _mm512_add_ps(sum[0], sum[k]);
    sink = _mm512_reduce_add_ps(sum[0]);
}

__attribute__((target("avx2"))) static void read_streams_avx2(const float *x, int64_t count) {
    const int64_t apart = count / STREAMS / 16 * 16;
    __m256 sum[2 * STREAMS] = {0};
    for (int64_t i = 0; i < apart; i += 16)
        for (int k = 0; k < 2 * STREAMS; k++)
            sum[k] = _mm256_add_ps(sum[k], _mm256_loadu_ps(x + k / 2 * apart + i + k % 2 * 8));
    for (int k = 1; k < 2 * STREAMS; k++) sum[0] = _mm256_add_ps(sum[0], sum[k]);
    sink = _mm256_cvtss_f32(sum[0]);
}
#endif

static void read_portable(const float *x, int64_t count, bool ahead) {
    float sum[32] = {0};
    for (int64_t i = 0; i + 32 <= count; i += 32) {
        if (ahead) ask(x + i, 128);
        for (int k = 0; k < 32; k++) sum[k] += x[i + k];
    }
    for (int k = 1; k < 32; k++) sum[0] += sum[k];
    sink = sum[0];
}

static void read_all(const float *x, int64_t count, int way) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) {
        if (way == SIDE_BY_SIDE)
            read_streams_avx512(x, count);
        else
            read_avx512(x, count, way == ASKED);
        return;
    }
    if (__builtin_cpu_supports("avx2")) {
        if (way == SIDE_BY_SIDE)
            read_streams_avx2(x, count);
        else
            read_avx2(x, count, way == ASKED);
        return;
    }
#endif
    read_portable(x, count, way == ASKED);
}

typedef struct reading {
    const dpcr_diffusion *model;
    int threads;
    int way;
} reading;

static void read_part(void *argument, int64_t part) {
    const reading *r = argument;
    const dpcri_net *net = &r->model->net;
    for (int l = r->model->first; l < net->count; l++) {
        const int64_t panels = dpcri_wide_panels(net->wide, net->layers[l].out);
        const int64_t from = panels * part / r->threads, to = panels * (part + 1) / r->threads;
        const int64_t size = net->layers[l].in * net->wide->panel;
        read_all(net->layers[l].packed + from * size, (to - from) * size, r->way);
    }
}

// The quickest of the ways.
static double read_seconds(dpcr_context *context, const dpcr_diffusion *model, int threads, int rounds) {
    reading r = {model, threads, PLAIN};
    double least = 1e9;
    for (int i = 0; i <= WAYS * rounds; i++) {
        const double a = now();
        r.way = i % WAYS;
        dpcri_parallel(context, threads, read_part, &r);
        least = fmin(least, i ? now() - a : least);  // the first one fetches
    }
    return least;
}

enum { MOST = 10000 };

int main(int argc, char **argv) {
    settings s = read_settings(argc, argv);
    static double times[MOST];
    int rounds = 0;
    dpcr_error error;
    dpcr_context *context;
    dpcr_sampler *sampler;
    dpcr_denoiser denoiser = {.size = sizeof denoiser};
    const dpcr_context_options threads = {.size = sizeof threads, .threads = (int)s.threads};
    must(dpcr_context_create(&threads, &context, &error), &error);
    dpcr_diffusion *model = make_model(context, &s);
    s.width = dpcr_diffusion_get_options(model)->width;
    if (s.save) must(dpcr_diffusion_save(model, s.save, &error), &error);
    must(dpcr_diffusion_denoiser(model, NULL, s.batch, 1, &denoiser, &error), &error);
    const dpcr_sampler_options options = {.size = sizeof options,
                                          .kind = s.sampler,
                                          .noise = dpcr_diffusion_get_options(model)->noise,
                                          .steps = s.steps,
                                          .seed = 1};
    must(dpcr_sampler_create(context, &denoiser, &options, s.batch, &sampler, &error), &error);
    const int64_t L = dpcr_sampler_steps(sampler)->length, w = dpcr_sampler_steps(sampler)->width;
    const dpcr_array z0 = array(s.batch, w, 0), z = array(L, s.batch, w), loop = array(L, s.batch, w);
    must(dpcr_sampler_start(sampler, NULL, &z0, &error), &error);
    const work in_order = prepare(context, sampler, &s, DPCR_METHOD_SEQUENTIAL, &z0);
    run(&in_order, &z0, &loop);
    const work asked = prepare(context, sampler, &s, s.method, &z0);
    int64_t evaluations = 0, products = 0, calls = 0;
    dpcr_sampler_counts_reset(sampler);
    dpcr_solve_report report = run(&asked, &z0, &z);
    dpcr_sampler_counts(sampler, &evaluations, &products, &calls);
    double worst = 0;
    for (int64_t i = 0; i < L * s.batch * w; i++)
        worst = fmax(worst, fabs((double)((float *)z.data)[i] - (double)((float *)loop.data)[i]));
    for (const double start = now(); rounds < MOST && (rounds < s.rounds || now() - start < s.seconds); rounds++) {
        const double a = now();
        report = run(&asked, &z0, &z);
        times[rounds] = now() - a;
    }
    qsort(times, (size_t)rounds, sizeof *times, ascending);
    dpcr_array end = array(s.batch, w, 0);
    memcpy(end.data, (float *)z.data + (L - 1) * s.batch * w, (size_t)(s.batch * w) * sizeof(float));
    if (s.start) must(dpcr_npy_write(s.start, &z0, &error), &error);
    if (s.samples) must(dpcr_npy_write(s.samples, &end, &error), &error);
    const double each = 1e9 / (double)L;
    printf("%ld,%ld,%ld,%ld,%ld,%ld,%s,%s,%ld,%.1f,%.1f,%d,%lld,%lld,%.3g,%d,%.1f\n", s.width, s.hidden, s.depth,
           s.batch, s.steps, s.threads, dpcr_sampler_name(s.sampler),
           dpcr_method_name(dpcr_solve_plan_method(asked.plan)), s.window, times[rounds / 2] * each, times[0] * each,
           report.sweeps, (long long)calls, (long long)(evaluations + products), worst, rounds,
           1e9 * read_seconds(context, model, (int)s.threads, rounds < 10 ? 10 : rounds));
    if (s.method == DPCR_METHOD_AUTO && report.sentence) fprintf(stderr, "%s\n", report.sentence);
    return 0;
}
