// SPDX-License-Identifier: MIT
// Whole samplings on a device by a denoiser with drawn numbers, of bench_sampler's shape (states of 16 numbers, as of
// an auto-encoder's codes, 4 layers of 512): DDIM of 100 steps and DDPM of 1000, by the loop, by picard and by parataa,
// a few pictures at once or many. Medians of samplings timed one by one, from putting one into the stream to the end of
// the wait for it as the host's clock sees them, for a sampling by sweeps waits on the host; the loop's by the device's
// events too (sequential-events); and how many times faster than the loop of the same row, by the host's clock, they
// were. Noise and start lie on the device before. CSV on standard output.
//
//   bench_gpu_sampler [--device cuda:N] [--width N] [--hidden N] [--depth N] [--steps N] [--most N] [--window N]
//                     [--tolerance 1e-3] [--repetitions N] [--seconds S]
//
// --steps: of both samplers, in place of their own. --most: pictures at once. --tolerance: of a step, of the sweeps.
#include <inttypes.h>
#include <stdbool.h>

#include "../drawn_denoiser.h"
#include "events.h"

enum { WARM = 2 };

typedef struct shape {
    int64_t width, hidden, depth, steps, most, window;
    double tolerance;
} shape;

typedef struct job {
    const shape *shape;
    dpcr_sampler_kind kind;
    int64_t batch;
    const dpcr_steps *steps;
    dpcr_array z0, z;  // there
    dpcr_solve_plan *plan;
    void *workspace;
    size_t bytes;
} job;

static void sample(const gpu *t, const void *argument, int set) {
    const job *j = argument;
    dpcr_error error = {0};
    (void)set;
    must(dpcr_solve_enqueue(j->plan, &j->z0, &j->z, j->workspace, j->bytes, t->stream, &error), &error);
}

// As median(), by the host's clock.
static double median_by_host(const gpu *t, const job *j, int *runs) {
    double times[MOST], all = 0;
    dpcr_error error = {0};
    int count = 0;
    for (int i = 0; count < t->repetitions && (count < 3 || all < t->seconds); i++) {
        const double start = now();
        sample(t, j, 0);
        must(dpcr_stream_wait(t->device, t->stream, &error), &error);
        if (i >= WARM) all += times[count++] = now() - start;
    }
    qsort(times, (size_t)count, sizeof *times, by_size);
    *runs = count;
    return times[count / 2];
}

static void print_row(const gpu *t, const job *j, const char *method, const dpcr_solve_report *report, int runs,
                      double seconds, double loop) {
    gpu_row(t);
    printf("denoiser-%" PRId64 "x%" PRId64 ",%s,%" PRId64 ",%" PRId64 ",%" PRId64 ",%s,%s,%d,%d,%.4g,%.4g\n",
           j->shape->hidden, j->shape->depth, dpcr_sampler_name(j->kind), j->steps->length, j->shape->width, j->batch,
           method, dpcr_reason_name(report->reason), report->sweeps, runs, 1e6 * seconds, loop / seconds);
    fflush(stdout);
}

// `loop` gets the loop's seconds.
static void time_method(const gpu *t, job *j, dpcr_method method, double *loop) {
    const bool in_order = method == DPCR_METHOD_SEQUENTIAL;
    const double tolerance = in_order ? 0 : j->shape->tolerance;
    const dpcr_solve_options options = {.size = sizeof options,
                                        .method = method,
                                        .guess = in_order ? 0 : DPCR_GUESS_STATE,
                                        .window = in_order ? 0 : j->shape->window,
                                        .atol = tolerance,
                                        .rtol = tolerance,
                                        .device = t->device};
    dpcr_solve_report report = {.size = sizeof report};
    dpcr_error error = {0};
    must(dpcr_solve_plan_create(t->context, j->steps, &options, &j->plan, &error), &error);
    j->bytes = dpcr_solve_plan_workspace(j->plan);
    must(dpcr_device_allocate(t->device, j->bytes, &j->workspace, &error), &error);
    int runs = 0;
    const double seconds = median_by_host(t, j, &runs);
    must(dpcr_solve_collect(j->plan, j->workspace, j->bytes, t->stream, &report, &error), &error);
    if (in_order) *loop = seconds;
    print_row(t, j, dpcr_method_name(method), &report, runs, seconds, *loop);
    if (in_order) {
        const double by_events = median(t, sample, j, 1, &runs);
        print_row(t, j, "sequential-events", &report, runs, by_events, *loop);
    }
    dpcr_device_release(t->device, j->workspace);
    dpcr_solve_plan_destroy(j->plan);
}

static void time_sampler(const gpu *t, const shape *s, dpcr_diffusion *model, dpcr_sampler_kind kind, int64_t steps,
                         int64_t batch) {
    static const dpcr_method methods[] = {DPCR_METHOD_SEQUENTIAL, DPCR_METHOD_PICARD, DPCR_METHOD_PARATAA};
    dpcr_denoiser denoiser = {.size = sizeof denoiser};
    dpcr_sampler *sampler = NULL;
    dpcr_error error = {0};
    const dpcr_sampler_options o = {.size = sizeof o,
                                    .kind = kind,
                                    .noise = dpcr_diffusion_get_options(model)->noise,
                                    .steps = steps,
                                    .seed = 1,
                                    .device = t->device};
    must(dpcr_diffusion_denoiser(model, NULL, batch, 1, &denoiser, &error), &error);
    must(dpcr_sampler_create(t->context, &denoiser, &o, batch, &sampler, &error), &error);
    job j = {.shape = s, .kind = kind, .batch = batch, .steps = dpcr_sampler_steps(sampler)};
    const int64_t states[3] = {j.steps->length, batch, j.steps->width};
    float *start = calloc((size_t)(batch * j.steps->width) + 1, sizeof *start);
    if (!start) exit(1);
    const dpcr_array here = dpcr_array_make(start, DPCR_F32, 2, states + 1);
    must(dpcr_sampler_start(sampler, NULL, &here, &error), &error);
    j.z0 = gpu_numbers(t, 2, states + 1, 1, start);
    j.z = gpu_numbers(t, 3, states, 1, NULL);
    double loop = 0;
    for (size_t m = 0; m < sizeof methods / sizeof *methods; m++) time_method(t, &j, methods[m], &loop);
    dpcr_device_release(t->device, j.z0.data);
    dpcr_device_release(t->device, j.z.data);
    free(start);
    dpcr_sampler_destroy(sampler);
}

int main(int argc, char **argv) {
    static const int64_t batches[] = {1, 2, 4, 8, 64};
    const shape s = {.width = atoll(value_of(argc, argv, "--width", "16")),
                     .hidden = atoll(value_of(argc, argv, "--hidden", "512")),
                     .depth = atoll(value_of(argc, argv, "--depth", "4")),
                     .steps = atoll(value_of(argc, argv, "--steps", "0")),
                     .most = atoll(value_of(argc, argv, "--most", "64")),
                     .window = atoll(value_of(argc, argv, "--window", "0")),
                     .tolerance = atof(value_of(argc, argv, "--tolerance", "1e-3"))};
    gpu t = {0};
    if (s.width < 1 || s.hidden < 1 || s.depth < 1 || s.steps < 0 || s.most < 1 || s.window < 0 || !(s.tolerance > 0)) {
        fprintf(stderr,
                "bench_gpu_sampler: wanted --width, --hidden, --depth, --most 1 or more, --steps, --window 0 or "
                "more, --tolerance above 0\n");
        return 2;
    }
    gpu_open(&t, "bench_gpu_sampler", argc, argv);
    dpcr_diffusion *model = drawn_denoiser(t.context, s.width, s.hidden, s.depth);
    printf(GPU_COLUMNS "work,sampler,steps,width,batch,method,reason,sweeps,repetitions,median_us,times_the_loop\n");
    for (int ddpm = 0; ddpm < 2; ddpm++)
        for (size_t b = 0; b < sizeof batches / sizeof *batches && batches[b] <= s.most; b++)
            time_sampler(&t, &s, model, ddpm ? DPCR_SAMPLER_DDPM : DPCR_SAMPLER_DDIM,
                         s.steps ? s.steps
                         : ddpm  ? 1000
                                 : 100,
                         batches[b]);
    dpcr_diffusion_destroy(model);
    gpu_close(&t);
    return 0;
}
