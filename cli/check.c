// SPDX-License-Identifier: MIT
// check: a chain solved by a method and by the loop, forward and backward, and the differences.
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "problem.h"

// Default tolerances; the man page names them. Rounding alone makes two correct float32 solves of 1024 steps differ by
// about eps sqrt(L) = 4e-6 of a state, a solver tolerance of 1e-5 a step by about ten times as much on a chain that
// neither forgets nor amplifies. Gradients add up over the steps and the batch and lose another digit.
#define CHECK_STATES_F32 1e-4
#define CHECK_GRADIENTS_F32 1e-3
#define CHECK_STATES_F64 1e-9
#define CHECK_GRADIENTS_F64 1e-8

enum { KEY_LOAD = 0x2000, KEY_DATA, KEY_SEEDS, KEY_STATES, KEY_GRADIENTS };

typedef struct check {
    cli_common common;
    cli_solver solver;
    cli_network network;
    const char *load, *data, *map;
    int seeds;
    double tolerance, gradient_tolerance;  // negative: default
} check;

static const struct argp_option check_options[] = {
    {"load", KEY_LOAD, "FILE", 0, "Take the network from a safetensors file", 0},
    {"data", KEY_DATA, "NAME|DIR", 0,
     "Initial states: test images through the encoder (fashion-mnist or a folder of IDX files; default N(0, 1))", 0},
    {"seeds", KEY_SEEDS, "N", 0, "Repeat with N seeds, from --seed on; the worst is told (default 1)", 0},
    {"agree", KEY_STATES, "E", 0,
     "Largest difference of states, relative to max(1, |value|) (default 1e-4 in float32, 1e-9 in float64)", 0},
    {"agree-gradients", KEY_GRADIENTS, "E", 0,
     "Largest difference of gradients, relative to the largest of the same layer (default 1e-3 in float32, 1e-8 in "
     "float64)",
     0},
    {0},
};

static error_t parse_check(int key, char *arg, struct argp_state *state) {
    check *c = state->input;
    switch (key) {
        case KEY_LOAD: c->load = arg; return 0;
        case KEY_DATA: c->data = arg; return 0;
        case KEY_SEEDS: return cli_read_int("--seeds", arg, 1, 1000000, &c->seeds) ? 0 : EINVAL;
        case KEY_STATES: return cli_read_double("--agree", arg, 0, HUGE_VAL, &c->tolerance) ? 0 : EINVAL;
        case KEY_GRADIENTS:
            return cli_read_double("--agree-gradients", arg, 0, HUGE_VAL, &c->gradient_tolerance) ? 0 : EINVAL;
        default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp check_argp = {check_options, parse_check, NULL, NULL, NULL, NULL, NULL};

// The worst over the seeds; method, history and so on are those of the worst seed's solve.
typedef struct verdict {
    double max_error, max_gradient_error, end_to_end_error;
    char worst_tensor[128];
    int sweeps, most_fallbacks;
    dpcr_reason reason, backward_reason;  // the latter 0: not told
    uint64_t seed;                        // that the histories belong to
    double sequential_seconds, sequential_forward, sequential_backward;
    int64_t *seed_sweeps;
} verdict;

static bool has_kinks(const dpcr_model *model) {
    return model && dpcr_model_get_options(model)->activation == DPCR_ACT_RELU;
}

static void note(verdict *v, const cli_solution *fast, const cli_solution *loop, double error, double gradients,
                 double end_to_end, const char *tensor, uint64_t seed, int index, bool first) {
    v->seed_sweeps[index] = fast->report.sweeps;
    v->max_error = fmax(v->max_error, error);
    v->end_to_end_error = fmax(v->end_to_end_error, end_to_end);
    if (first || gradients > v->max_gradient_error) snprintf(v->worst_tensor, sizeof v->worst_tensor, "%s", tensor);
    v->max_gradient_error = fmax(v->max_gradient_error, gradients);
    v->reason = first ? fast->report.reason : dpcr_reason_worse(v->reason, fast->report.reason);
    if (fast->backward_reason)
        v->backward_reason =
            v->backward_reason ? dpcr_reason_worse(v->backward_reason, fast->backward_reason) : fast->backward_reason;
    if (first || fast->report.sweeps > v->sweeps) {
        v->sweeps = fast->report.sweeps;
        v->seed = seed;
        v->sequential_forward = loop->forward_seconds;
        v->sequential_backward = loop->backward_seconds;
        v->sequential_seconds = loop->seconds;
    }
}

// Solves three times: by the method, by the loop, and backward by the loop at the method's states. Where f has kinks, a
// state within rounding of one has two gradients, so those are compared at the same states.
static int compare(dpcr_context *context, const check *c, const cli_problem *problem, uint64_t seed, int index,
                   verdict *v, cli_solution **worst) {
    const dpcr_solve_options loop_options = {
        .size = sizeof loop_options, .method = DPCR_METHOD_SEQUENTIAL, .backward = DPCR_SCHEME_SEQUENTIAL};
    cli_solution *fast = NULL, *loop = NULL, *same = NULL;
    int status = cli_solution_create(context, problem, &c->solver.options, NULL, &fast);
    if (!status) status = cli_solution_create(context, problem, &loop_options, NULL, &loop);
    const bool kinks = has_kinks(problem->model);
    if (!status && kinks) status = cli_solution_create(context, problem, &loop_options, &fast->z, &same);
    if (!status) {
        char tensor[128];
        const double end_to_end = cli_gradients_error(problem, fast, loop, tensor, sizeof tensor);
        const double gradients = kinks ? cli_gradients_error(problem, fast, same, tensor, sizeof tensor) : end_to_end;
        const bool first = !*worst, worse = first || fast->report.sweeps > v->sweeps;
        note(v, fast, loop, cli_states_error(&fast->z, &loop->z), gradients, end_to_end, tensor, seed, index, first);
        if (worse) {
            cli_solution *before = *worst;
            *worst = fast;
            fast = before;
        }
    }
    cli_solution_destroy(fast);
    cli_solution_destroy(loop);
    cli_solution_destroy(same);
    return status;
}

static int run_seed(dpcr_context *context, check *c, int index, verdict *v, cli_solution **worst) {
    const uint64_t seed = c->common.seed + (uint64_t)index;
    dpcr_model *model = NULL;
    dpcr_error error = {0};
    int status = CLI_DONE;
    if (c->load) {
        if (dpcr_model_load(context, c->load, &model, &error) != DPCR_OK) return cli_fail_error(&error, CLI_READING);
        if (c->network.options.architecture &&
            dpcr_model_get_options(model)->architecture != c->network.options.architecture)
            status = cli_fail(CLI_USAGE, "'%s' holds a network '%s', not '%s'", c->load,
                              cli_architecture_name(dpcr_model_get_options(model)->architecture),
                              cli_architecture_name(c->network.options.architecture));
        const int64_t batch = c->network.batch;
        if (!status) c->network.options = *dpcr_model_get_options(model);
        c->network.batch = batch;
    } else if (!c->map) {
        model = cli_model_create(context, &c->network, seed, &status);
    }
    cli_problem problem;
    if (!status) status = cli_problem_create(context, model, c->map, &c->network, c->data, seed, &problem);
    if (!status) {
        c->network.options.dtype = problem.steps.dtype;
        status = compare(context, c, &problem, seed, index, v, worst);
        cli_problem_destroy(&problem);
    }
    dpcr_model_destroy(model);
    return status;
}

// ---- what is told ----

static void set_network(cli_result *r, const check *c) {
    const dpcr_model_options *o = &c->network.options;
    cli_set_text(r, "network", c->map ? c->map : cli_architecture_name(o->architecture));
    cli_set_int(r, "layers", o->layers);
    cli_set_int(r, "width", o->width);
    cli_set_int(r, "batch", c->network.batch);
    cli_set_text(r, "dtype", dpcr_dtype_name(o->dtype));
}

static void set_solve(cli_result *r, const check *c, const cli_solution *s) {
    cli_set_text(r, "method", dpcr_method_name(s->report.method ? s->report.method : s->method));
    cli_set_text(r, "scheme", dpcr_scheme_name(s->report.scheme));
    cli_set_text(r, "backward", dpcr_scheme_name(s->backward));
    cli_set_text(r, "guess", dpcr_guess_name(c->solver.options.guess));
    cli_set_text(r, "sentence", s->sentence);
}

static void set_times(cli_result *r, const verdict *v, const cli_solution *s) {
    cli_set_real(r, "seconds", s->seconds);
    cli_set_real(r, "forward_seconds", s->forward_seconds);
    cli_set_real(r, "backward_seconds", s->backward_seconds);
    cli_set_real(r, "sequential_seconds", v->sequential_seconds);
    cli_set_real(r, "sequential_forward_seconds", v->sequential_forward);
    cli_set_real(r, "sequential_backward_seconds", v->sequential_backward);
}

static int64_t history_length(const cli_solution *s) {
    const int64_t n = s->report.history_length;
    return n < 0 ? 0 : n < CLI_HISTORY ? n : CLI_HISTORY;
}

static void set_report(cli_result *r, const check *c, const verdict *v, const cli_solution *s) {
    const int64_t n = history_length(s);
    cli_set_int(r, "sweeps", v->sweeps);
    cli_set_text(r, "reason", dpcr_reason_name(v->reason));
    if (v->backward_reason) cli_set_text(r, "backward_reason", dpcr_reason_name(v->backward_reason));
    cli_set_int(r, "evaluations", s->report.evaluations);
    cli_set_real(r, "residual", s->report.residual);
    if (s->report.error_estimate >= 0)
        cli_set_real(r, "error_estimate", s->report.error_estimate);
    else
        cli_set(r, "error_estimate", json_null());
    cli_set_int(r, "workspace_bytes", (json_int_t)s->workspace);
    cli_set_int(r, "seed", (json_int_t)v->seed);
    cli_set_int(r, "seeds", c->seeds);
    cli_set(r, "sweeps_by_seed", cli_json_ints(v->seed_sweeps, c->seeds));
    cli_set(r, "residual_history", cli_json_reals(s->residuals, n));
    cli_set(r, "locked_history", cli_json_ints(s->locked, n));
}

static int write_csv(const cli_common *common, const cli_solution *s) {
    cli_buffer text;
    FILE *out = cli_buffer_open(&text);
    if (!out) return cli_fail_memory("the CSV table");
    fprintf(out, "sweep,residual,locked\n");
    for (int64_t k = 0; k < history_length(s); k++)
        fprintf(out, "%lld,%.17g,%lld\n", (long long)k, s->residuals[k], (long long)s->locked[k]);
    return cli_buffer_save(&text, "the CSV table", common->csv);
}

static int tell(const check *c, const verdict *v, const cli_solution *s) {
    const bool agrees = v->max_error <= c->tolerance && v->max_gradient_error <= c->gradient_tolerance;
    const bool gave_up = v->reason == DPCR_REASON_NOT_CONVERGED;
    cli_result r = cli_result_create();
    cli_set_bool(&r, "agrees", agrees);
    cli_set_bool(&r, "gave_up", gave_up);
    cli_set_real(&r, "max_error", v->max_error);
    cli_set_real(&r, "tolerance", c->tolerance);
    cli_set_real(&r, "solver_tolerance", s->tolerance);
    cli_set_real(&r, "max_gradient_error", v->max_gradient_error);
    cli_set_real(&r, "gradient_tolerance", c->gradient_tolerance);
    cli_set_real(&r, "end_to_end_gradient_error", v->end_to_end_error);
    cli_set_text(&r, "worst_gradient", v->worst_tensor);
    set_network(&r, c);
    set_solve(&r, c, s);
    set_times(&r, v, s);
    set_report(&r, c, v, s);
    cli_say(&c->common, "%s %lld x %lld, batch %lld, %s: %s, %s backward, %d sweep%s, %s%s\n",
            c->map ? c->map : cli_architecture_name(c->network.options.architecture),
            (long long)c->network.options.layers, (long long)c->network.options.width, (long long)c->network.batch,
            dpcr_dtype_name(c->network.options.dtype), dpcr_method_name(s->method), dpcr_scheme_name(s->backward),
            v->sweeps, cli_s(v->sweeps), dpcr_reason_name(v->reason),
            v->backward_reason == DPCR_REASON_FALLBACK ? "; back finished in order" : "");
    cli_say(&c->common, "largest difference of states %.3g (allowed %.3g), of gradients %.3g (allowed %.3g, %s)\n",
            v->max_error, c->tolerance, v->max_gradient_error, c->gradient_tolerance, v->worst_tensor);
    cli_say(&c->common, "%.3g s, the loop %.3g s\n%s%s\n", s->seconds, v->sequential_seconds,
            agrees ? "agrees with the loop" : "DOES NOT AGREE with the loop", cli_gave_up_text(gave_up, agrees));
    int status = c->common.csv ? write_csv(&c->common, s) : CLI_DONE;
    if (!status && c->common.json) status = cli_print_json(&r);
    cli_result_destroy(&r);
    if (!status && gave_up) return cli_fail_unconverged(v->sweeps);
    return status ? status : agrees ? CLI_DONE : CLI_DISAGREE;
}

// ---- the verb ----

// The device's own choice of the method, unless one is named; --device auto has no rates to go by yet.
static bool settle_device(check *c) {
    if (c->map)
        return cli_fail(CLI_USAGE, "--device %.20s: %s runs on processors", c->common.device_given, c->map), false;
    c->solver.options.device = c->common.device;
    return true;
}

static bool settle(check *c, const char *name) {
    dpcr_model_options *o = &c->network.options;
    if (name && cli_map_known(name)) {
        c->map = name;
        if (o->dtype == DPCR_F32) return cli_fail(CLI_USAGE, "%s is computed in float64 only", name), false;
        if (!cli_network_only(&c->network, name, cli_map_options)) return false;
        if (c->load || c->data) return cli_fail(CLI_USAGE, "%s takes neither --load nor --data", name), false;
        o->width = cli_map_width(name);
        o->dtype = DPCR_F64;
    } else if ((name || !c->load) && !cli_read_architecture(name, cli_map_names, &o->architecture)) {
        return false;
    }
    if (c->load && c->network.first_given)
        return cli_fail(CLI_USAGE, "--%s beside --load: the file holds the network", c->network.first_given), false;
    if (c->data && !c->load) return cli_fail(CLI_USAGE, "--data wants --load, a network with an encoder"), false;
    if (c->common.device.type != DPCR_CUDA)
        cli_solver_settle_check(&c->solver);
    else if (!settle_device(c))
        return false;
    return cli_solver_fits(&c->solver, CLI_RUNS(c->solver.options.method), NULL, NULL);
}

static int run(check *c) {
    int status = CLI_DONE;
    if (c->load && !cli_readable("the network", c->load)) return CLI_INPUT;
    const cli_file csv = {"--csv", c->common.csv}, read[] = {{"--load", c->load}, {"--data", cli_data_place(c->data)}};
    if (!cli_spares(&csv, 1, read, 2)) return CLI_USAGE;
    dpcr_context *context = cli_context_create(&c->common, &status);
    if (!context) return status;
    cli_solution *worst = NULL;
    verdict v = {.seed_sweeps = calloc((size_t)c->seeds, sizeof(int64_t))};
    if (!v.seed_sweeps) {
        dpcr_context_destroy(context);
        return cli_fail_memory("the seeds");
    }
    for (int i = 0; i < c->seeds && !status; i++) status = run_seed(context, c, i, &v, &worst);
    if (!status && worst) {
        const bool single = c->network.options.dtype != DPCR_F64;
        if (c->tolerance < 0) c->tolerance = single ? CHECK_STATES_F32 : CHECK_STATES_F64;
        if (c->gradient_tolerance < 0) c->gradient_tolerance = single ? CHECK_GRADIENTS_F32 : CHECK_GRADIENTS_F64;
        status = tell(c, &v, worst);
    }
    cli_solution_destroy(worst);
    free(v.seed_sweeps);
    dpcr_context_destroy(context);
    return status;
}

int cli_verb_check(int argc, char **argv) {
    check c = {.common = CLI_COMMON_DEFAULTS,
               .solver = CLI_SOLVER_DEFAULTS,
               .network = {.options = {.layers = 128, .width = 16}, .gain = 1, .batch = 8},
               .seeds = 1,
               .tolerance = -1,
               .gradient_tolerance = -1};
    const cli_syntax syntax = {
        .arguments = "[mlp|resnet|lorenz|logistic]",
        .doc =
            "Solves a chain by a method (default newton with pcr) and by the loop, goes back through it by a scheme "
            "and "
            "by the adjoint loop with random gradients at every step, and compares states, the gradient of the initial "
            "state and all parameter gradients. Defaults: 128 layers, width 16, batch 8, float32; lorenz and logistic "
            "are chaotic maps in float64. With --device cuda the method (default auto) and the way back run "
            "there.\vExit status 1: they do not agree. With ReLU, whose derivative jumps, "
            "gradients are compared at the same states; end_to_end_gradient_error tells the other difference. "
            "--max-sweeps is a budget of evaluations of the whole chain: a sweep over a window (--window) is a part of "
            "one.",
        .groups = {{&check_argp, &c, "Check:"},
                   {&cli_network_argp, &c.network, "Network:"},
                   {&cli_solver_argp, &c.solver, "Solver:"},
                   {&cli_common_argp, &c.common, "Output and resources:"}},
        .most = 1};
    c.common.serves_devices = true;
    const char *positional[CLI_MAX_POSITIONAL];
    int status;
    if (!cli_parse(&syntax, argc, argv, positional, &status)) return status;
    cli_device_leave_auto(&c.common, "layers");
    return settle(&c, positional[0]) ? run(&c) : CLI_USAGE;
}
