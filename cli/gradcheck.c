// SPDX-License-Identifier: MIT
// gradcheck: gradients of the loop and of a backward scheme against central finite differences, in double.
//
// The loss is linear in the states,  F = sum_l <direct_l, z_l> + <last, z_{L-1}>,  so its gradient is what the backward
// pass computes, and (F(p + h) - F(p - h)) / 2h differs from it by h^2 F'''/6 and by eps |F| / h: h = eps^(1/3) max(1,
// |p|).
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "problem.h"

#define GRADCHECK_TOLERANCE 1e-6  // of the largest gradient of the same tensor; the man page names it
#define STEPS_TOLERANCE 1e-5      // of dpcr_steps_check, whose own differences are of this order

enum { KEY_SAMPLES = 0x7000, KEY_TOLERANCE, KEY_STREAM_SAMPLES = 0x180 };

typedef struct gradcheck {
    cli_common common;
    cli_solver solver;
    cli_network network;
    int64_t samples;
    double tolerance;
} gradcheck;

static const struct argp_option gradcheck_options[] = {
    {"samples", KEY_SAMPLES, "N", 0, "Numbers to vary in every tensor at most (default 4)", 0},
    {"agree", KEY_TOLERANCE, "E", 0,
     "Largest difference, relative to the largest gradient of the same tensor (default 1e-6)", 0},
    {0},
};

static error_t parse_gradcheck(int key, char *arg, struct argp_state *state) {
    gradcheck *g = state->input;
    switch (key) {
        case KEY_SAMPLES: return cli_read_int64("--samples", arg, 1, INT64_MAX, &g->samples) ? 0 : EINVAL;
        case KEY_TOLERANCE: return cli_read_double("--agree", arg, 0, HUGE_VAL, &g->tolerance) ? 0 : EINVAL;
        default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp gradcheck_argp = {gradcheck_options, parse_gradcheck, NULL, NULL, NULL, NULL, NULL};

// A loop that gives the loss, in memory made once.
typedef struct loss {
    const cli_problem *problem;
    dpcr_solve_plan *plan;
    dpcr_array z;
    void *workspace;
    size_t bytes;
    dpcr_error error;
    bool failed;
} loss;

static double dot(const double *x, const double *y, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

static double loss_now(loss *f) {
    dpcr_solve_report report = {.size = sizeof report};
    const dpcr_steps *s = &f->problem->steps;
    const int64_t row = s->batch * s->width, all = s->length * row;
    if (dpcr_solve_execute(f->plan, &f->problem->z0, &f->z, NULL, f->workspace, f->bytes, &report, &f->error) !=
        DPCR_OK)
        f->failed = true;
    const double *z = f->z.data, *end = all ? z + all - row : f->problem->z0.data;
    return dot(f->problem->direct.data, z, all) + dot(f->problem->last.data, end, row);
}

static int loss_create(dpcr_context *context, const cli_problem *problem, loss *f) {
    const dpcr_solve_options options = {
        .size = sizeof options, .method = DPCR_METHOD_SEQUENTIAL, .backward = DPCR_SCHEME_SEQUENTIAL};
    const dpcr_steps *s = &problem->steps;
    *f = (loss){.problem = problem};
    if (dpcr_solve_plan_create(context, s, &options, &f->plan, &f->error) != DPCR_OK)
        return cli_fail_error(&f->error, CLI_COMPUTING);
    if (!cli_array_create(DPCR_F64, 3, (const int64_t[]){s->length, s->batch, s->width}, &f->z)) return CLI_RESOURCES;
    f->bytes = dpcr_solve_plan_workspace(f->plan);
    f->workspace = cli_allocate(f->bytes);
    return f->workspace ? CLI_DONE : cli_fail_memory("a workspace");
}

static void loss_destroy(loss *f) {
    dpcr_solve_plan_destroy(f->plan);
    cli_array_destroy(&f->z);
    cli_release(f->workspace);
}

typedef struct difference {
    double value;
    bool kink;  // no smooth function has such differences
} difference;

static double loss_at(loss *f, double *p, double value) {
    const double kept = *p;
    *p = value;
    const double told = loss_now(f);
    *p = kept;
    return told;
}

// A smooth function's one-sided slopes differ by h F'': a hundred times that is no curvature. Its central differences
// over h and h / 2 differ by h^2 F''' / 8: what is `far` from that has kinks on both sides.
static difference differentiate(loss *f, double *p, double far) {
    const double h = cbrt(DBL_EPSILON) * fmax(1, fabs(*p)), middle = loss_now(f);
    const double above = loss_at(f, p, *p + h), below = loss_at(f, p, *p - h), value = (above - below) / (2 * h);
    const double right = (above - middle) / h, left = (middle - below) / h;
    const double noise = 64 * DBL_EPSILON * (1 + fabs(middle)) / h;
    bool kink = fabs(right - left) > noise + 1e-3 * fmax(fabs(right), fabs(left)) + 1e-2 * h;
    if (!kink && isfinite(far)) {
        const double nearer = (loss_at(f, p, *p + h / 2) - loss_at(f, p, *p - h / 2)) / h;
        kink = fabs(value - nearer) > 2 * noise + far;
    }
    return (difference){value, kink};
}

typedef struct tally {
    double worst_loop, worst_scheme;
    char worst[128];
    int64_t compared, skipped;
    bool kinks;  // the network has kinks: samples beside one are skipped
} tally;

// One tensor: `values` are moved, element offset by offset; the gradients lie at the same offsets.
static void compare_tensor(loss *f, const gradcheck *g, tally *t, const char *name, uint64_t stream,
                           const dpcr_array *values, const double *loop, const double *scheme) {
    const int64_t cols = values->ndim > 1 ? values->shape[1] : 1, n = values->shape[0] * cols;
    double largest = 0, worst_loop = 0, worst_scheme = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = i / cols * values->strides[0] + (values->ndim > 1 ? i % cols * values->strides[1] : 0);
        largest = fmax(largest, fabs(loop[at]));
    }
    for (int64_t k = 0; k < g->samples && k < n; k++) {
        const int64_t i =
            g->samples >= n ? k : (int64_t)cli_random_below(g->common.seed, stream, (uint64_t)k, (uint64_t)n);
        const int64_t at = i / cols * values->strides[0] + (values->ndim > 1 ? i % cols * values->strides[1] : 0);
        const double scale = fmax(largest, 1e-3);  // where all gradients vanish, the difference's own rounding stays
        const double far = t->kinks ? 0.1 * g->tolerance * scale : INFINITY;
        const difference d = differentiate(f, (double *)values->data + at, far);
        if (d.kink && t->kinks) {
            t->skipped++;
            continue;
        }
        t->compared++;
        worst_loop = fmax(worst_loop, fabs(loop[at] - d.value) / scale);
        worst_scheme = fmax(worst_scheme, fabs(scheme[at] - d.value) / scale);
        if (!isfinite(loop[at]) || !isfinite(scheme[at]) || !isfinite(d.value)) worst_loop = worst_scheme = HUGE_VAL;
    }
    if (fmax(worst_loop, worst_scheme) > fmax(t->worst_loop, t->worst_scheme) || !t->worst[0])
        snprintf(t->worst, sizeof t->worst, "%s", name);
    t->worst_loop = fmax(t->worst_loop, worst_loop);
    t->worst_scheme = fmax(t->worst_scheme, worst_scheme);
}

static int compare_all(loss *f, const gradcheck *g, const cli_problem *problem, const cli_solution *loop,
                       const cli_solution *scheme, tally *t) {
    const double *vector = dpcr_model_vector(problem->model, NULL), *a = loop->gradients, *b = scheme->gradients;
    const int64_t count = dpcr_model_parameter_count(problem->model);
    compare_tensor(f, g, t, "z0", KEY_STREAM_SAMPLES, &problem->z0, loop->dz0.data, scheme->dz0.data);
    for (int64_t k = 0; k < count && !f->failed && !cli_signal(); k++) {
        char name[128];
        dpcr_array parameter;
        if (dpcr_model_parameter(problem->model, k, name, sizeof name, &parameter, NULL, &f->error))
            return cli_fail_error(&f->error, CLI_COMPUTING);
        const ptrdiff_t at = (const double *)parameter.data - vector;
        compare_tensor(f, g, t, name, (uint64_t)KEY_STREAM_SAMPLES << 32 | (uint64_t)k, &parameter, a + at, b + at);
    }
    if (cli_signal()) return cli_fail_stopped();
    return f->failed ? cli_fail_error(&f->error, CLI_COMPUTING) : CLI_DONE;
}

static int tell(const gradcheck *g, const tally *t, const cli_solution *scheme, bool callbacks,
                const char *callback_text) {
    const dpcr_model_options *o = &g->network.options;
    const double worst = fmax(t->worst_loop, t->worst_scheme);
    const bool gave_up = scheme->report.reason == DPCR_REASON_NOT_CONVERGED;
    const bool agrees = worst <= g->tolerance && callbacks && t->compared > 0;
    cli_result r = cli_result_create();
    cli_set_bool(&r, "agrees", agrees);
    cli_set_bool(&r, "gave_up", gave_up);
    cli_set_real(&r, "max_gradient_error", worst);
    cli_set_real(&r, "loop_error", t->worst_loop);
    cli_set_real(&r, "scheme_error", t->worst_scheme);
    cli_set_real(&r, "tolerance", g->tolerance);
    cli_set_text(&r, "worst_gradient", t->worst);
    cli_set_bool(&r, "callbacks_agree", callbacks);
    if (!callbacks) cli_set_text(&r, "callback_error", callback_text);
    cli_set_int(&r, "compared", t->compared);
    cli_set_int(&r, "skipped", t->skipped);
    cli_set_text(&r, "network", cli_architecture_name(o->architecture));
    cli_set_int(&r, "layers", o->layers);
    cli_set_int(&r, "width", o->width);
    cli_set_int(&r, "batch", g->network.batch);
    cli_set_text(&r, "method", dpcr_method_name(scheme->method));
    cli_set_text(&r, "backward", dpcr_scheme_name(scheme->backward));
    cli_set_text(&r, "dtype", dpcr_dtype_name(DPCR_F64));
    cli_say(&g->common, "%s %lld x %lld, %s, %s backward: %lld difference%s, %lld beside a kink\n",
            cli_architecture_name(o->architecture), (long long)o->layers, (long long)o->width,
            dpcr_method_name(scheme->method), dpcr_scheme_name(scheme->backward), (long long)t->compared,
            cli_s(t->compared), (long long)t->skipped);
    cli_say(&g->common, "largest error %.3g (loop), %.3g (scheme), allowed %.3g, in %s\n", t->worst_loop,
            t->worst_scheme, g->tolerance, t->worst);
    cli_say(&g->common, "callbacks %s%s\n%s%s\n", callbacks ? "agree" : "disagree: ", callbacks ? "" : callback_text,
            agrees ? "gradients agree" : "gradients DO NOT AGREE", cli_gave_up_text(gave_up, agrees));
    const int verdict = gave_up ? cli_fail_unconverged(scheme->report.sweeps) : agrees ? CLI_DONE : CLI_DISAGREE;
    const int status = cli_finish(&g->common, &r, verdict);
    cli_result_destroy(&r);
    return status;
}

static int run_problem(dpcr_context *context, const gradcheck *g, const cli_problem *problem) {
    const dpcr_solve_options loop_options = {
        .size = sizeof loop_options, .method = DPCR_METHOD_SEQUENTIAL, .backward = DPCR_SCHEME_SEQUENTIAL};
    cli_solution *loop = NULL, *scheme = NULL;
    loss f = {0};
    tally t = {.kinks = dpcr_model_get_options(problem->model)->activation == DPCR_ACT_RELU};
    int status = cli_solution_create(context, problem, &loop_options, NULL, &loop);
    if (!status) status = cli_solution_create(context, problem, &g->solver.options, NULL, &scheme);
    if (!status) status = loss_create(context, problem, &f);
    if (!status) status = compare_all(&f, g, problem, loop, scheme, &t);
    loss_destroy(&f);
    if (!status) {
        dpcr_error error = {0};
        const dpcr_status callbacks = dpcr_steps_check(context, &problem->steps, &problem->z0, STEPS_TOLERANCE, &error);
        status = callbacks == DPCR_OK || callbacks == DPCR_ERROR_CALLBACK
                     ? tell(g, &t, scheme, callbacks == DPCR_OK, error.text)
                     : cli_fail_error(&error, CLI_COMPUTING);
    }
    cli_solution_destroy(loop);
    cli_solution_destroy(scheme);
    return status;
}

static int run(gradcheck *g) {
    int status = CLI_DONE;
    dpcr_context *context = cli_context_create(&g->common, &status);
    if (!context) return status;
    dpcr_model *model = cli_model_create(context, &g->network, g->common.seed, &status);
    cli_problem problem;
    if (!status) status = cli_problem_create(context, model, NULL, &g->network, NULL, g->common.seed, &problem);
    if (!status) {
        status = run_problem(context, g, &problem);
        cli_problem_destroy(&problem);
    }
    dpcr_model_destroy(model);
    dpcr_context_destroy(context);
    return status;
}

int cli_verb_gradcheck(int argc, char **argv) {
    gradcheck g = {.common = CLI_COMMON_DEFAULTS,
                   .solver = CLI_SOLVER_DEFAULTS,
                   .network = {.options = {.layers = 12, .width = 5}, .gain = 1, .batch = 3},
                   .samples = 4,
                   .tolerance = GRADCHECK_TOLERANCE};
    const cli_syntax syntax = {
        .arguments = "mlp|resnet",
        .doc =
            "Compares the gradients of the loop and of a method with a backward scheme (default newton and pcr) with "
            "central "
            "finite differences, in float64, on a sample of every parameter tensor and of the initial states. "
            "Defaults: 12 "
            "layers, width 5, batch 3.\vWith ReLU, samples beside a kink are skipped and counted.",
        .groups = {{&gradcheck_argp, &g, "Check:"},
                   {&cli_network_argp, &g.network, "Network:"},
                   {&cli_solver_argp, &g.solver, "Solver:"},
                   {&cli_common_argp, &g.common, "Output and resources:"}},
        .most = 1};
    const char *positional[CLI_MAX_POSITIONAL];
    int status;
    if (!cli_parse(&syntax, argc, argv, positional, &status)) return status;
    if (!cli_read_architecture(positional[0], "", &g.network.options.architecture)) return CLI_USAGE;
    if (g.network.options.dtype == DPCR_F32) return cli_fail(CLI_USAGE, "finite differences need float64");
    g.network.options.dtype = DPCR_F64;
    cli_solver_settle_check(&g.solver);
    if (!cli_solver_fits(&g.solver, CLI_RUNS(g.solver.options.method), NULL, NULL)) return CLI_USAGE;
    return run(&g);
}
