// SPDX-License-Identifier: MIT
// Diffusion samplers' loops on a device against the host's: every sampler, prediction and option, the whole path.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "on_device.h"
#include "sample/networks.h"
#include "watched.h"

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
    dpcr_denoiser denoiser = {.size = sizeof denoiser};
    dpcr_sampler *sampler = NULL;
    dpcr_error error = {0};
    int32_t labels[64];
    float mask[WIDTH], known[64 * WIDTH];
    const int64_t shape[2] = {j->batch, WIDTH};
    const dpcr_array m = dpcr_array_make(mask, DPCR_F32, 1, shape + 1), k = dpcr_array_make(known, DPCR_F32, 2, shape);
    for (int64_t i = 0; i < 64; i++) labels[i] = (int32_t)(i % (j->classes + 1)) - 1;
    for (int64_t i = 0; i < WIDTH; i++) mask[i] = i % 3 == 0;
    for (int64_t i = 0; j->masked && i < j->batch * WIDTH; i++) known[i] = (float)sin((double)i);
    o.size = sizeof o;
    o.noise = dpcr_diffusion_get_options(model)->noise;
    o.device = device;
    if (j->masked) o.mask = &m, o.known = &k;
    if (j->given_times) o.times = times, o.steps = 7;
    ok(dpcr_diffusion_denoiser(model, j->labelled ? labels : NULL, j->batch, j->guidance, &denoiser, &error), &error);
    ok(dpcr_sampler_create(context, &denoiser, &o, j->batch, &sampler, &error), &error);
    return sampler;
}

static void *workspace_here(const dpcr_solve_plan *plan) {
    return aligned_alloc(64, (dpcr_solve_plan_workspace(plan) + 64) / 64 * 64);
}

static void run_here(dpcr_sampler *sampler, const dpcr_solve_options *options, const dpcr_array *z0,
                     const dpcr_array *z, dpcr_solve_report *report) {
    dpcr_solve_plan *plan = NULL;
    dpcr_error error = {0};
    ok(dpcr_solve_plan_create(context, dpcr_sampler_steps(sampler), options, &plan, &error), &error);
    void *workspace = workspace_here(plan);
    dpcr_sampler_counts_reset(sampler);
    ok(dpcr_solve_execute(plan, z0, z, NULL, workspace, dpcr_solve_plan_workspace(plan), report, &error), &error);
    free(workspace);
    dpcr_solve_plan_destroy(plan);
}

// From the same start there; `got` holds a guess and gets the path. States lie apart.
static void run_there(dpcr_sampler *sampler, const dpcr_solve_options *options, const dpcr_array *z0, float *got,
                      dpcr_solve_report *report) {
    const dpcr_steps *steps = dpcr_sampler_steps(sampler);
    const int64_t w = steps->width, row = w + 3, step = steps->batch * row + 5, numbers = steps->length * step;
    dpcr_solve_plan *plan = NULL;
    dpcr_error error = {0};
    const int64_t shape[3] = {steps->length, steps->batch, w};
    dpcr_array first = *z0, path = dpcr_array_make(NULL, DPCR_F32, 3, shape);
    float *apart = calloc((size_t)numbers, sizeof *apart);
    ok(dpcr_solve_plan_create(context, steps, options, &plan, &error), &error);
    assert_int_equal(error.status, DPCR_OK);  // written on failure only
    for (int64_t n = 0; n < shape[0] * shape[1]; n++)
        memcpy(apart + n / shape[1] * step + n % shape[1] * row, got + n * w, (size_t)w * sizeof *got);
    first.device = path.device = there;
    path.strides[0] = step, path.strides[1] = row;
    first.data = to_device(z0->data, (size_t)(steps->batch * w) * sizeof(float));
    path.data = to_device(apart, (size_t)numbers * sizeof(float));
    void *workspace = to_device(NULL, dpcr_solve_plan_workspace(plan));
    dpcr_sampler_counts_reset(sampler);
    ok(dpcr_solve_enqueue(plan, &first, &path, workspace, dpcr_solve_plan_workspace(plan), NULL, &error), &error);
    ok(dpcr_solve_collect(plan, workspace, dpcr_solve_plan_workspace(plan), NULL, report, &error), &error);
    assert_int_equal(dpcr_solve_plan_method(plan), report->method);
    if (options->method == DPCR_METHOD_AUTO)
        assert_true(strstr(report->sentence, "step by step on ") && strstr(report->sentence, "takes no sweeps there"));
    from_device(apart, path.data, (size_t)numbers * sizeof(float));
    for (int64_t n = 0; n < shape[0] * shape[1]; n++)
        memcpy(got + n * w, apart + n / shape[1] * step + n % shape[1] * row, (size_t)w * sizeof *got);
    free(apart);
    dpcr_device_release(there, first.data);
    dpcr_device_release(there, path.data);
    dpcr_device_release(there, workspace);
    dpcr_solve_plan_destroy(plan);
}

// The path on the host, and there from the same start by its own choice, the loop; `got` gets that.
static void run(dpcr_sampler *sampler, dpcr_array *z0, dpcr_array *z, float *got) {
    const dpcr_solve_options in_order = {
        .size = sizeof in_order, .method = DPCR_METHOD_SEQUENTIAL, .backward = DPCR_SCHEME_SEQUENTIAL};
    const dpcr_solve_options left = {.size = sizeof left, .device = there};
    dpcr_error error = {0};
    int64_t locked[] = {-1}, rows = 0, rows_there = 0;
    dpcr_solve_report report = {.size = sizeof report, .batch_capacity = 1, .sequence_locked = locked};
    ok(dpcr_sampler_start(sampler, NULL, z0, &error), &error);
    run_here(sampler, &in_order, z0, z, &report);
    dpcr_sampler_counts(sampler, &rows, NULL, NULL);
    run_there(sampler, &left, z0, got, &report);
    assert_int_equal(report.reason, DPCR_REASON_SEQUENTIAL);
    assert_int_equal(locked[0], dpcr_sampler_steps(sampler)->length);
    dpcr_sampler_counts(sampler, &rows_there, NULL, NULL);
    assert_int_equal(rows, rows_there);
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

// ---- sweeps ----

// Paths by sweeps here and there; `exact`: sweeps, evaluations and reasons are the same, whatever rounds otherwise.
static void sweep_both(const job *j, dpcr_solve_options options, bool exact) {
    if (left_out()) return;
    enum { BATCH = 64 };
    dpcr_diffusion *model = make_network(j);
    dpcr_sampler *sampler = make_sampler(j, model, there);
    const dpcr_steps *steps = dpcr_sampler_steps(sampler);
    const int64_t shape[3] = {steps->length, steps->batch, steps->width}, count = shape[0] * shape[1] * shape[2];
    int reasons[2][BATCH], sweeps[2][BATCH];
    int64_t locked[2][BATCH], rows[2];
    float *start = calloc((size_t)(shape[1] * shape[2]), sizeof *start), *path = calloc((size_t)count, sizeof *path),
          *got = calloc((size_t)count, sizeof *got);
    double *scale = calloc((size_t)shape[0], sizeof *scale);
    dpcr_array z0 = dpcr_array_make(start, DPCR_F32, 2, shape + 1), z = dpcr_array_make(path, DPCR_F32, 3, shape);
    dpcr_error error = {0};
    dpcr_solve_report report[2];
    for (int64_t i = 0; i < count; i++) path[i] = got[i] = (float)cos((double)i);  // a guess
    for (int64_t l = 0; l < shape[0]; l++) scale[l] = 1 + 0.1 * (double)(l % 3);
    options.size = sizeof options;
    if (options.step_scale) options.step_scale = scale;
    for (int i = 0; i < 2; i++)
        report[i] = (dpcr_solve_report){.size = sizeof report[i],
                                        .batch_capacity = BATCH,
                                        .sequence_reason = reasons[i],
                                        .sequence_sweeps = sweeps[i],
                                        .sequence_locked = locked[i]};
    ok(dpcr_sampler_start(sampler, NULL, &z0, &error), &error);
    options.scheme = options.backward = DPCR_SCHEME_SEQUENTIAL;
    run_here(sampler, &options, &z0, &z, &report[0]);
    dpcr_sampler_counts(sampler, &rows[0], NULL, NULL);
    options.scheme = options.backward = DPCR_SCHEME_AUTO;
    options.device = there;
    run_there(sampler, &options, &z0, got, &report[1]);
    dpcr_sampler_counts(sampler, &rows[1], NULL, NULL);
    for (int64_t b = 0; exact && b < shape[1] && b < BATCH; b++) {
        assert_int_equal(reasons[0][b], reasons[1][b]);
        assert_int_equal(sweeps[0][b], sweeps[1][b]);
        assert_int_equal(locked[0][b], locked[1][b]);
    }
    assert_int_equal(report[0].reason, report[1].reason);
    assert_true(report[1].error_estimate < 0 && report[1].evaluations > 0);
    if (exact && shape[1] == 1) assert_int_equal(report[0].evaluations, report[1].evaluations);
    if (exact && shape[1] == 1) assert_int_equal(rows[0], rows[1]);
    for (int64_t i = 0; i < count; i++)
        if (!(fabs((double)path[i] - (double)got[i]) <=
              fmax(exact ? 0 : 10 * options.atol, 5e-5) * fmax(1, fabs((double)path[i]))))
            fail_msg("%s, window %d, number %d of %d x %d x %d: %.9g, wanted %.9g", dpcr_sampler_name(j->options.kind),
                     (int)options.window, (int)i, (int)shape[0], (int)shape[1], (int)shape[2], (double)got[i],
                     (double)path[i]);
    free(start), free(path), free(got), free(scale);
    dpcr_sampler_destroy(sampler);
    dpcr_diffusion_destroy(model);
}

void sweeps_as_on_the_host(void **state) {
    (void)state;
    static const double any[1];
    int n = 0;
    for (int kind = 0; kind < DPCR_SAMPLER_COUNT; kind++)
        for (int guess = 0; guess < DPCR_GUESS_COUNT; guess++, n++) {
            const job j = {.options = {.kind = (dpcr_sampler_kind)kind,
                                       .steps = 9 + n % 5,
                                       .spacing = DPCR_SPACING_KARRAS,
                                       .eta = kind == DPCR_SAMPLER_DDIM && n % 3 ? 0.5 : 0,
                                       .clip = n % 2,
                                       .keep_last = n % 5 == 1,
                                       .seed = (uint64_t)n},
                           .prediction = (dpcr_prediction)(n % DPCR_PREDICTION_COUNT),
                           .hidden = n % 2 ? 33 : 16,
                           .depth = 1 + n % 2,
                           .classes = n % 4 < 2 ? 3 : 0,
                           .batch = n % 3 ? 1 : 5,
                           .guidance = n % 4 == 1 ? 2.5 : 1,
                           .labelled = n % 4 < 2,
                           .masked = n % 5 == 3};
            const bool mixes = n % 7 > 3;
            const dpcr_solve_options o = {.method = mixes ? DPCR_METHOD_PARATAA : DPCR_METHOD_PICARD,
                                          .mixed = n % 5,
                                          .order = n % 4,
                                          .guess = (dpcr_guess)guess,
                                          .window = n % 3 == 1   ? 4
                                                    : n % 3 == 2 ? 100
                                                                 : 0};
            dpcr_solve_options exact = o, near = o, spent = o;
            exact.atol = -1;
            sweep_both(&j, exact, false);
            near.atol = near.rtol = 1e-3;
            near.step_scale = n % 2 ? any : NULL;
            near.lock = n % 4 == 3 && !mixes ? DPCR_LOCK_MEAN_SQUARE : DPCR_LOCK_RESIDUAL;
            sweep_both(&j, near, false);
            spent.atol = spent.rtol = 1e-7;
            spent.max_sweeps = 1 + n % 2;
            spent.no_fallback = n % 5 == 2;
            sweep_both(&j, spent, true);
        }
}

// More rows than are evaluated at once, and then in order.
void sweeps_in_blocks(void **state) {
    (void)state;
    const job wide = {.options = {.steps = 8}, .hidden = 5, .depth = 1, .batch = 2100, .guidance = 1};
    const dpcr_solve_options o = {
        .method = DPCR_METHOD_PICARD, .guess = DPCR_GUESS_STATE, .atol = 1e-6, .rtol = 1e-6, .max_sweeps = 1};
    sweep_both(&wide, o, true);
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
    assert_non_null(strstr(error.text, "overlap on a device; the loop (sequential), picard and parataa work there"));
    const double scale = 1;
    dpcr_solve_options refused[] = {{.method = DPCR_METHOD_PARAREAL},
                                    {.method = DPCR_METHOD_PICARD, .confirm = 0.1},
                                    {.method = DPCR_METHOD_PICARD, .scheme = DPCR_SCHEME_CHUNKED},
                                    {.method = DPCR_METHOD_PICARD, .memory_limit = 64},
                                    {.method = DPCR_METHOD_PARATAA, .lock = DPCR_LOCK_MEAN_SQUARE},
                                    {.method = DPCR_METHOD_SEQUENTIAL, .window = 3},
                                    {.method = DPCR_METHOD_SEQUENTIAL, .step_scale = &scale}};
    const double scales[] = {1, 1, 1, -1, 1};
    options.method = DPCR_METHOD_PICARD, options.step_scale = scales;
    assert_int_equal(dpcr_solve_plan_create(context, dpcr_sampler_steps(sampler), &options, &plan, &error),
                     DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "step_scale of step 3 is -1"));
    options.step_scale = NULL;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        refused[i].size = sizeof refused[i], refused[i].device = there;
        assert_int_equal(dpcr_solve_plan_create(context, dpcr_sampler_steps(sampler), &refused[i], &plan, &error),
                         i == 3 ? DPCR_ERROR_MEMORY : DPCR_ERROR_UNSUPPORTED);
    }
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

// Where the second half of a report is refused, the first lands before its place is given back; of the stand-in.
void reports_of_sweeps_that_fail(void **state) {
    (void)state;
    const job j = {.options = {.steps = 6}, .hidden = 8, .depth = 1, .batch = 3, .guidance = 1};
    dpcr_context *const usual = context;
    dpcr_error error = {0};
    watched w;
    watched_create(&w);
    context = w.context;
    dpcr_diffusion *model = make_network(&j);
    dpcr_sampler *sampler = make_sampler(&j, model, there);
    const dpcr_steps *steps = dpcr_sampler_steps(sampler);
    const int64_t shape[3] = {steps->length, steps->batch, steps->width}, row = shape[1] * shape[2];
    const dpcr_solve_options options = {
        .size = sizeof options, .method = DPCR_METHOD_PICARD, .guess = DPCR_GUESS_STATE, .device = there};
    float *start = calloc((size_t)row, sizeof *start);
    dpcr_array z0 = dpcr_array_make(start, DPCR_F32, 2, shape + 1), z = dpcr_array_make(NULL, DPCR_F32, 3, shape);
    dpcr_solve_plan *plan = NULL;
    ok(dpcr_sampler_start(sampler, NULL, &z0, &error), &error);
    ok(dpcr_solve_plan_create(context, steps, &options, &plan, &error), &error);
    const size_t bytes = dpcr_solve_plan_workspace(plan);
    void *workspace = to_device(NULL, bytes);
    z0.device = z.device = there;
    z0.data = to_device(start, (size_t)row * sizeof *start);
    z.data = to_device(NULL, (size_t)(shape[0] * row) * sizeof *start);
    ok(dpcr_solve_enqueue(plan, &z0, &z, workspace, bytes, NULL, &error), &error);
    setenv("DEEPPCR_FAKE_COPY", "2", 1);
    const dpcr_status status = dpcr_solve_collect(plan, workspace, bytes, NULL, NULL, &error);
    unsetenv("DEEPPCR_FAKE_COPY");
    assert_true(status == DPCR_OK || status == DPCR_ERROR_DEVICE);
    ok(dpcr_stream_wait(there, NULL, &error), &error);
    dpcr_device_release(there, workspace);
    dpcr_device_release(there, z.data);
    dpcr_device_release(there, z0.data);
    free(start);
    dpcr_solve_plan_destroy(plan);
    dpcr_sampler_destroy(sampler);
    dpcr_diffusion_destroy(model);
    watched_destroy(&w);
    context = usual;
}
