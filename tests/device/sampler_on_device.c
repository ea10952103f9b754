// SPDX-License-Identifier: MIT
// Diffusion samplers' loops on a device against the host's: every sampler, prediction and option, the whole path.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "on_device.h"
#include "sample/networks.h"

enum { ROWS = 4, COLS = 5, WIDTH = ROWS * COLS };

typedef struct job {
    dpcr_sampler_options options;
    dpcr_prediction prediction;
    int64_t hidden, depth, classes, batch;
    double guidance;
    bool labelled, masked, given_times;
} job;

// A network with all its numbers drawn: of a new one the last layer is 0.
static dpcr_diffusion *make_network(const job *j) {
    const dpcr_diffusion_options o = {.size = sizeof o,
                                      .rows = ROWS,
                                      .cols = COLS,
                                      .width = WIDTH,
                                      .hidden = j->hidden,
                                      .depth = j->depth,
                                      .classes = j->classes,
                                      .prediction = j->prediction,
                                      .noise = {.size = sizeof o.noise, .steps = 60},
                                      .seed = 4};
    dpcr_diffusion *model = NULL;
    dpcr_error error = {0};
    ok(dpcr_diffusion_create(context, &o, NULL, &model, &error), &error);
    for (int64_t i = 0; i < model->net.parameters; i++)
        model->net.values[i] =
            (float)(0.3 * dpcri_random_normal(5, DPCRI_STREAM_DATA, (uint64_t)i) / sqrt((double)j->hidden));
    dpcri_diffusion_refresh(model);
    return model;
}

static dpcr_sampler *make_sampler(const job *j, dpcr_diffusion *model, dpcr_device device) {
    static const double times[] = {58.5, 44, 31.25, 30, 12, 3.75, 0};
    dpcr_sampler_options o = j->options;
    dpcr_denoiser denoiser;
    dpcr_sampler *sampler = NULL;
    dpcr_error error = {0};
    int32_t labels[64];
    float mask[WIDTH], known[64 * WIDTH];
    const int64_t shape[2] = {j->batch, WIDTH};
    const dpcr_array m = dpcr_array_make(mask, DPCR_F32, 1, shape + 1), k = dpcr_array_make(known, DPCR_F32, 2, shape);
    for (int64_t i = 0; i < 64; i++) labels[i] = (int32_t)(i % (j->classes + 1)) - 1;
    for (int64_t i = 0; i < WIDTH; i++) mask[i] = i % 3 == 0;
    for (int64_t i = 0; i < j->batch * WIDTH; i++) known[i] = (float)sin((double)i);
    o.size = sizeof o;
    o.noise = dpcr_diffusion_get_options(model)->noise;
    o.device = device;
    if (j->masked) o.mask = &m, o.known = &k;
    if (j->given_times) o.times = times, o.steps = 7;
    ok(dpcr_diffusion_denoiser(model, j->labelled ? labels : NULL, j->batch, j->guidance, &denoiser, &error), &error);
    ok(dpcr_sampler_create(context, &denoiser, &o, j->batch, &sampler, &error), &error);
    return sampler;
}

// The path on the host, and there from the same start; `got` gets that.
static void run(dpcr_sampler *sampler, dpcr_array *z0, dpcr_array *z, float *got) {
    const dpcr_steps *steps = dpcr_sampler_steps(sampler);
    dpcr_solve_options options = {
        .size = sizeof options, .method = DPCR_METHOD_SEQUENTIAL, .backward = DPCR_SCHEME_SEQUENTIAL};
    dpcr_solve_plan *plan = NULL;
    dpcr_error error = {0};
    dpcr_solve_report report = {.size = sizeof report};
    int64_t rows = 0, rows_there = 0;
    ok(dpcr_sampler_start(sampler, NULL, z0, &error), &error);
    ok(dpcr_solve_plan_create(context, steps, &options, &plan, &error), &error);
    void *workspace = aligned_alloc(64, (dpcr_solve_plan_workspace(plan) + 64) / 64 * 64);
    dpcr_sampler_counts_reset(sampler);
    ok(dpcr_solve_execute(plan, z0, z, NULL, workspace, dpcr_solve_plan_workspace(plan), &report, &error), &error);
    dpcr_sampler_counts(sampler, &rows, NULL, NULL);
    free(workspace);
    dpcr_solve_plan_destroy(plan);
    options = (dpcr_solve_options){.size = sizeof options, .device = there};  // its own choice: the loop
    ok(dpcr_solve_plan_create(context, steps, &options, &plan, &error), &error);
    assert_int_equal(dpcr_solve_plan_method(plan), DPCR_METHOD_SEQUENTIAL);
    const size_t begins = (size_t)(steps->batch * steps->width) * sizeof(float), bytes = begins * (size_t)steps->length;
    dpcr_array first = *z0, path = *z;
    first.device = path.device = there;
    first.data = to_device(z0->data, begins);
    path.data = to_device(NULL, bytes);
    workspace = to_device(NULL, dpcr_solve_plan_workspace(plan));
    dpcr_sampler_counts_reset(sampler);
    ok(dpcr_solve_enqueue(plan, &first, &path, workspace, dpcr_solve_plan_workspace(plan), NULL, &error), &error);
    ok(dpcr_solve_collect(plan, workspace, dpcr_solve_plan_workspace(plan), NULL, &report, &error), &error);
    assert_int_equal(report.reason, DPCR_REASON_SEQUENTIAL);
    dpcr_sampler_counts(sampler, &rows_there, NULL, NULL);
    assert_int_equal(rows, rows_there);
    from_device(got, path.data, bytes);
    dpcr_device_release(there, first.data);
    dpcr_device_release(there, path.data);
    dpcr_device_release(there, workspace);
    dpcr_solve_plan_destroy(plan);
}

static void sample_both(const job *j) {
    if (left_out()) return;
    dpcr_diffusion *model = make_network(j);
    dpcr_sampler *sampler = make_sampler(j, model, there);
    const dpcr_steps *steps = dpcr_sampler_steps(sampler);
    const int64_t shape[3] = {steps->length, steps->batch, steps->width}, count = shape[0] * shape[1] * shape[2];
    float *start = calloc((size_t)(shape[1] * shape[2]), sizeof *start), *path = calloc((size_t)count, sizeof *path),
          *got = calloc((size_t)count, sizeof *got);
    dpcr_array z0 = dpcr_array_make(start, DPCR_F32, 2, shape + 1), z = dpcr_array_make(path, DPCR_F32, 3, shape);
    run(sampler, &z0, &z, got);
    double largest = 0;
    for (int64_t i = 0; i < count; i++) {
        largest = fmax(largest, fabs((double)path[i]));
        // Round-off: each step's of float, and activations' that may be formulas of a device's own.
        if (!(fabs((double)path[i] - (double)got[i]) <= 2e-5 * fmax(1, largest)))
            fail_msg("%s, prediction %d, number %d of %d x %d x %d: %.9g, wanted %.9g",
                     dpcr_sampler_name(j->options.kind), (int)j->prediction, (int)i, (int)shape[0], (int)shape[1],
                     (int)shape[2], (double)got[i], (double)path[i]);
    }
    assert_true(largest > 0.1);
    free(start), free(path), free(got);
    dpcr_sampler_destroy(sampler);
    dpcr_diffusion_destroy(model);
}

void samples_as_on_the_host(void **state) {
    (void)state;
    int n = 0;
    for (int kind = 0; kind < DPCR_SAMPLER_COUNT; kind++)
        for (int prediction = 0; prediction < DPCR_PREDICTION_COUNT; prediction++, n++)
            sample_both(&(job){.options = {.kind = (dpcr_sampler_kind)kind,
                                           .steps = 5 + n % 4,
                                           .skip = n % 3 == 2,
                                           .spacing = n % 2 ? DPCR_SPACING_KARRAS : DPCR_SPACING_LEADING,
                                           .eta = kind == DPCR_SAMPLER_DDIM && n % 2 ? 0.7 : 0,
                                           .clip = n % 2 ? 1 : 0,
                                           .keep_last = n % 5 == 1,
                                           .seed = (uint64_t)n},
                               .prediction = (dpcr_prediction)prediction,
                               .hidden = n % 2 ? 33 : 16,
                               .depth = 1 + n % 3,
                               .classes = n % 4 < 2 ? 3 : 0,
                               .batch = n % 3 ? 1 + n : 19,
                               .guidance = n % 4 == 1 ? 2.5 : 1,
                               .labelled = n % 4 < 2,
                               .masked = n % 3 == 1,
                               .given_times = n % 5 == 3 && n % 3 != 2});
}

// ---- what is refused ----

static int own_network(void *user, int64_t rows, const void *x, const double *times, const int64_t *sequences,
                       void *m) {
    (void)user, (void)times, (void)sequences;
    memcpy(m, x, (size_t)rows * WIDTH * sizeof(float));
    return 0;
}

void samplers_that_are_refused(void **state) {
    (void)state;
    const job j = {.options = {.steps = 5}, .hidden = 8, .depth = 1, .batch = 2, .guidance = 1};
    dpcr_diffusion *model = make_network(&j);
    dpcr_sampler *sampler = make_sampler(&j, model, there), *none = NULL;
    dpcr_solve_plan *plan = NULL;
    dpcr_error error = {0};
    dpcr_solve_options options = {.size = sizeof options, .method = DPCR_METHOD_OVERLAP, .device = there};
    assert_int_equal(dpcr_solve_plan_create(context, dpcr_sampler_steps(sampler), &options, &plan, &error),
                     DPCR_ERROR_UNSUPPORTED);
    assert_non_null(strstr(error.text, "overlap on a device; the loop (sequential) works there"));
    const dpcr_denoiser own = {.size = sizeof own, .width = WIDTH, .dtype = DPCR_F32, .predict = own_network};
    dpcr_sampler_options o = {.size = sizeof o, .steps = 5, .device = there};
    assert_int_equal(dpcr_sampler_create(context, &own, &o, 2, &none, &error), DPCR_ERROR_UNSUPPORTED);
    assert_non_null(strstr(error.text, "a denoiser of one's own on a device"));
    assert_null(none);
    dpcr_sampler_destroy(sampler);
    sampler = make_sampler(&j, model, here);  // none of its own: a plan there has nobody to ask
    options.method = DPCR_METHOD_SEQUENTIAL;
    assert_int_equal(dpcr_solve_plan_create(context, dpcr_sampler_steps(sampler), &options, &plan, &error),
                     DPCR_ERROR_UNSUPPORTED);
    dpcr_sampler_destroy(sampler);
    dpcr_diffusion_destroy(model);
}
