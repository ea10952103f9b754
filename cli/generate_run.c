// SPDX-License-Identifier: MIT
// Sampling by any method, batch by batch, and by the loop beside it.
#include <math.h>
#include <string.h>

#include "generate.h"

bool cli_read_sampling_method(const char *option, const char *text, generation *g) {
    g->solve.method = DPCR_METHOD_DIAGONAL;
    if (!strcmp(text, "quasi-newton") || dpcr_method_find(text, &g->solve.method, NULL) == DPCR_OK) return true;
    cli_fail(CLI_USAGE,
             "%s is '%.60s', wanted auto, sequential, newton, quasi-newton, picard, parataa, parareal, jacobi, "
             "damped, block, overlap or shooting",
             option, text);
    return false;
}

const char *cli_sampling_method_name(dpcr_method method) {
    return method == DPCR_METHOD_DIAGONAL ? "quasi-newton" : dpcr_method_name(method);
}

bool cli_sampling_estimates(dpcr_method m) {
    return m == DPCR_METHOD_NEWTON || m == DPCR_METHOD_OVERLAP || m == DPCR_METHOD_SHOOTING;
}

// An estimate of their own is allowed atol + rtol |z|, both of them g->tolerance. Overlap has none where its chunks are
// no longer than their run-up, so they join bit for bit.
void cli_confirm_pictures(generation *g, double tolerance) {
    g->tolerance = tolerance / (cli_sampling_estimates(g->solve.method) ? 2 : 10);
    g->confirm = tolerance;
    g->solve.join_tolerance = g->solve.method == DPCR_METHOD_OVERLAP ? -1 : 0;
}

int64_t cli_generate_state(const generation *g) {
    const int64_t width = dpcr_diffusion_get_options(g->model)->width;
    return g->sampler.kind == DPCR_SAMPLER_DPM_SOLVER ? 2 * width : width;
}

int64_t cli_generate_length(const generation *g) {
    const int64_t steps = g->sampler.steps ? g->sampler.steps : dpcr_diffusion_get_options(g->model)->noise.steps;
    return steps - g->sampler.skip;
}

bool cli_sampling_needs_jacobians(const generation *g) {
    const dpcr_method m = g->solve.method;
    return m == DPCR_METHOD_NEWTON || m == DPCR_METHOD_DIAGONAL || m == DPCR_METHOD_BLOCK || m == DPCR_METHOD_DAMPED ||
           m == DPCR_METHOD_SHOOTING;
}

int64_t cli_generate_batch(const generation *g) {
    const int64_t state = cli_generate_state(g);
    const int64_t numbers = cli_generate_length(g) * state * (6 + (cli_sampling_needs_jacobians(g) ? state : 0));
    const int64_t fit = (INT64_C(128) << 20) / numbers, most = fit < 1 ? 1 : fit < 256 ? fit : 256;
    return g->batch ? (g->batch < g->count ? g->batch : g->count) : most < g->count ? most : g->count;
}

// One batch: its sampler, its states and the loop's.
typedef struct batch_run {
    generation *g;
    dpcr_sampler *sampler;
    int64_t first, rows;
    dpcr_array z0, z, loop;
    double *scale;  // [length], with `scaled`
} batch_run;

static void worst_reason(generation *g, dpcr_reason reason) {
    g->reason = g->reason == 0 ? reason : dpcr_reason_worse(g->reason, reason);
}

// What making the plan has taken: seconds, evaluations of the network (products with its Jacobian among them), calls.
static void keep_planning(batch_run *b, double seconds) {
    int64_t rows = 0, products = 0, calls = 0;
    dpcr_sampler_counts(b->sampler, &rows, &products, &calls);
    b->g->planning_seconds += seconds;
    b->g->planning_evaluations += rows + products;
    b->g->planning_calls += calls;
}

static int execute(batch_run *b, const dpcr_solve_options *options, const dpcr_array *z, dpcr_solve_report *report) {
    generation *g = b->g;
    dpcr_error error = {0};
    dpcr_solve_plan *plan = NULL;
    void *workspace = NULL;
    int status = CLI_DONE;
    const double began = cli_now();
    if (dpcr_solve_plan_create(g->context, dpcr_sampler_steps(b->sampler), options, &plan, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_COMPUTING);
    if (z == &b->z) keep_planning(b, cli_now() - began);
    const size_t bytes = dpcr_solve_plan_workspace(plan);
    if (bytes && !(workspace = cli_allocate(bytes))) status = cli_fail_memory("the workspace");
    *report = (dpcr_solve_report){.size = sizeof *report};
    dpcr_sampler_counts_reset(b->sampler);  // what the planner tried is no part of the run
    if (!status && dpcr_solve_execute(plan, &b->z0, z, NULL, workspace, bytes, report, &error) != DPCR_OK)
        status = cli_fail_error(&error, CLI_COMPUTING);
    if (!status) dpcr_solve_plan_learn(plan, report, NULL);  // for the next batch
    if (!status && report->sentence) snprintf(g->sentence, sizeof g->sentence, "%s", report->sentence);
    cli_release(workspace);
    dpcr_solve_plan_destroy(plan);
    return status;
}

// What lies on the device for a batch.
typedef struct there {
    dpcr_device device;
    dpcr_solve_plan *plan;
    void *z0, *z, *workspace;
} there;

static dpcr_status sample_there(batch_run *b, there *d, bool guessed, dpcr_solve_report *report, dpcr_error *error) {
    const dpcr_device here = {.type = DPCR_HOST};
    const size_t first = (size_t)cli_array_count(&b->z0) * sizeof(float),
                 all = (size_t)cli_array_count(&b->z) * sizeof(float), bytes = dpcr_solve_plan_workspace(d->plan);
    dpcr_array z0 = b->z0, z = b->z;
    dpcr_status status = dpcr_device_allocate(d->device, first, &d->z0, error);
    if (status == DPCR_OK) status = dpcr_device_allocate(d->device, all, &d->z, error);
    if (status == DPCR_OK) status = dpcr_device_allocate(d->device, bytes, &d->workspace, error);
    if (status == DPCR_OK) status = dpcr_device_copy(d->device, d->z0, here, b->z0.data, first, NULL, error);
    if (status == DPCR_OK && guessed) status = dpcr_device_copy(d->device, d->z, here, b->z.data, all, NULL, error);
    if (status != DPCR_OK) return status;
    z0.device = z.device = d->device;
    z0.data = d->z0, z.data = d->z;
    dpcr_sampler_counts_reset(b->sampler);
    status = dpcr_solve_enqueue(d->plan, &z0, &z, d->workspace, bytes, NULL, error);
    if (status == DPCR_OK) status = dpcr_solve_collect(d->plan, d->workspace, bytes, NULL, report, error);
    if (status == DPCR_OK) status = dpcr_device_copy(here, b->z.data, d->device, d->z, all, NULL, error);
    return status == DPCR_OK ? dpcr_stream_wait(d->device, NULL, error) : status;
}

// The batch's states, made on the device.
static int execute_there(batch_run *b, const dpcr_solve_options *asked, dpcr_solve_report *report) {
    generation *g = b->g;
    dpcr_error error = {0};
    there d = {.device = g->device};
    dpcr_solve_options options = {.size = sizeof options, .method = asked->method, .device = g->device};
    if (asked->method == DPCR_METHOD_PICARD || asked->method == DPCR_METHOD_PARATAA) {
        options = *asked;
        options.device = g->device;
        options.start = NULL;
        options.backward = DPCR_SCHEME_AUTO;
    }
    const double began = cli_now();
    *report = (dpcr_solve_report){.size = sizeof *report};
    dpcr_status status = dpcr_solve_plan_create(g->context, dpcr_sampler_steps(b->sampler), &options, &d.plan, &error);
    keep_planning(b, cli_now() - began);
    const double start = cli_now();
    if (status == DPCR_OK) status = sample_there(b, &d, options.guess == DPCR_GUESS_GIVEN, report, &error);
    report->seconds = cli_now() - start;
    if (status == DPCR_OK && report->sentence) snprintf(g->sentence, sizeof g->sentence, "%s", report->sentence);
    dpcr_device_release(d.device, d.workspace);
    dpcr_device_release(d.device, d.z);
    dpcr_device_release(d.device, d.z0);
    dpcr_solve_plan_destroy(d.plan);
    return status == DPCR_OK ? CLI_DONE : cli_fail_error(&error, CLI_COMPUTING);
}

static int solve(batch_run *b) {
    generation *g = b->g;
    dpcr_solve_report report;
    dpcr_solve_options options = g->solve;
    int64_t rows = 0, products = 0, calls = 0;
    options.atol = options.rtol = g->tolerance > 0 ? g->tolerance : -1;
    options.start = &b->z0;
    options.step_scale = b->scale;
    options.backward = DPCR_SCHEME_SEQUENTIAL;  // there is no way back
    options.confirm = g->tolerance > 0 ? g->confirm : 0;
    const int status =
        g->device.type == DPCR_CUDA ? execute_there(b, &options, &report) : execute(b, &options, &b->z, &report);
    if (status) return status;
    dpcr_sampler_counts(b->sampler, &rows, &products, &calls);
    g->seconds += report.seconds;
    g->evaluations += rows + products;
    g->calls += calls;
    g->method = report.method;
    if (report.sweeps > g->sweeps) g->sweeps = report.sweeps;
    g->error_estimate =
        report.error_estimate < 0 || g->error_estimate < 0 ? -1 : fmax(g->error_estimate, report.error_estimate);
    worst_reason(g, report.reason);
    if (report.reason != DPCR_REASON_NOT_CONVERGED) return CLI_DONE;
    char text[128];
    cli_unconverged_text(report.sweeps, text, sizeof text);
    return cli_fail(CLI_UNCONVERGED, "%s: %s", cli_sampling_method_name(report.method), text);
}

static int compare(batch_run *b) {
    generation *g = b->g;
    dpcr_solve_report report;
    const dpcr_solve_options in_order = {
        .size = sizeof in_order, .method = DPCR_METHOD_SEQUENTIAL, .backward = DPCR_SCHEME_SEQUENTIAL};
    int64_t rows = 0;
    char kept[sizeof g->sentence];
    memcpy(kept, g->sentence, sizeof kept);
    const int status = execute(b, &in_order, &b->loop, &report);
    memcpy(g->sentence, kept, sizeof kept);
    if (status) return status;
    dpcr_sampler_counts(b->sampler, &rows, NULL, NULL);
    g->sequential_seconds += report.seconds;
    g->sequential_evaluations += rows;
    const float *x = b->z.data, *y = b->loop.data;
    for (int64_t i = 0; i < cli_array_count(&b->z); i++) {
        const double d = fabs((double)x[i] - (double)y[i]);
        if (!isnan(g->max_error) && !(d <= g->max_error)) g->max_error = d;
    }
    return CLI_DONE;
}

// The last states, and the first sample's path.
static void keep(const batch_run *b) {
    const generation *g = b->g;
    const int64_t length = b->z.shape[0], chain = b->z.shape[2], w = dpcr_diffusion_get_options(g->model)->width;
    const float *z = b->z.data;
    for (int64_t i = 0; i < b->rows; i++)
        memcpy(g->samples + (b->first + i) * w, z + ((length - 1) * b->rows + i) * chain, (size_t)w * sizeof *z);
    for (int64_t l = 0; g->path && b->first == 0 && l < length; l++)
        memcpy(g->path + l * w, z + l * b->rows * chain, (size_t)w * sizeof *z);
    for (int64_t l = 0; g->paths && l < length; l++)
        memcpy(g->paths + (l * g->count + b->first) * chain, z + l * b->rows * chain,
               (size_t)(b->rows * chain) * sizeof *z);
}

// The batch's part of the guess, or what is given for all.
static void place_guess(const batch_run *b) {
    const generation *g = b->g;
    const int64_t length = b->z.shape[0], chain = b->z.shape[2];
    float *z = b->z.data;
    for (int64_t l = 0; g->guess && l < length; l++)
        for (int64_t i = 0; i < b->rows; i++)
            memcpy(z + (l * b->rows + i) * chain,
                   g->guess + (l * g->guesses + (g->guesses > 1 ? b->first + i : 0)) * chain,
                   (size_t)chain * sizeof *z);
}

static int make_sampler(batch_run *b) {
    generation *g = b->g;
    dpcr_error error = {0};
    dpcr_denoiser denoiser = {.size = sizeof denoiser};
    dpcr_sampler_options options = g->sampler;
    int32_t labels[256];
    int32_t *all = g->label >= 0 ? labels : NULL;
    for (int64_t i = 0; i < 256; i++) labels[i] = g->label;
    if (b->rows > 256) return cli_fail(CLI_USAGE, "%lld samples at a time, wanted at most 256", (long long)b->rows);
    if (dpcr_diffusion_denoiser(g->model, all, b->rows, g->guidance, &denoiser, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_COMPUTING);
    options.first_sample += b->first;
    options.device = g->device;
    const int64_t w = denoiser.width, shape[2] = {b->rows, w};
    const dpcr_array mask = dpcr_array_make((void *)(uintptr_t)g->mask, DPCR_F32, 1, shape + 1);
    dpcr_array known = dpcr_array_make((void *)(uintptr_t)g->known, DPCR_F32, 2, shape);
    if (g->mask) {
        if (g->knowns > 1) known.data = (float *)known.data + b->first * w;
        if (g->knowns == 1) known.strides[0] = 0;
        options.mask = &mask, options.known = &known;
    }
    if (dpcr_sampler_create(g->context, &denoiser, &options, b->rows, &b->sampler, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_COMPUTING);
    return CLI_DONE;
}

static int run_batch(generation *g, int64_t first, int64_t rows) {
    batch_run b = {.g = g, .first = first, .rows = rows};
    const double began = cli_now();
    int status = make_sampler(&b);
    g->noise_seconds += cli_now() - began;
    if (!status) {
        const int64_t shape[3] = {dpcr_sampler_steps(b.sampler)->length, rows, dpcr_sampler_steps(b.sampler)->width};
        const bool made = cli_array_create(DPCR_F32, 2, shape + 1, &b.z0) &&
                          cli_array_create(DPCR_F32, 3, shape, &b.z) &&
                          (!g->compare || cli_array_create(DPCR_F32, 3, shape, &b.loop));
        status = made ? CLI_DONE : CLI_RESOURCES;
    }
    if (!status && g->scaled) {
        b.scale = cli_allocate((size_t)dpcr_sampler_steps(b.sampler)->length * sizeof *b.scale);
        if (!b.scale) status = cli_fail_memory("the steps' scales");
        if (!status) dpcr_sampler_scale(b.sampler, b.scale, NULL);
    }
    dpcr_error error = {0};
    if (!status && dpcr_sampler_start(b.sampler, NULL, &b.z0, &error) != DPCR_OK)
        status = cli_fail_error(&error, CLI_COMPUTING);
    if (!status) place_guess(&b);
    if (!status) status = solve(&b);
    if (!status) keep(&b);
    if (!status && g->compare) status = compare(&b);
    cli_release(b.scale);
    cli_array_destroy(&b.z0);
    cli_array_destroy(&b.z);
    cli_array_destroy(&b.loop);
    dpcr_sampler_destroy(b.sampler);
    return status;
}

int cli_generate_run(generation *g) {
    const int64_t batch = cli_generate_batch(g);
    int status = CLI_DONE;
    g->reason = (dpcr_reason)0;
    for (int64_t first = 0; first < g->count && !status; first += batch) {
        if (cli_signal()) return cli_fail_stopped();
        status = run_batch(g, first, g->count - first < batch ? g->count - first : batch);
    }
    if (!g->compare)
        g->sequential_evaluations =
            (g->sampler.kind == DPCR_SAMPLER_HEUN ? 2 * cli_generate_length(g) - 1 : cli_generate_length(g)) * g->count;
    return status;
}
