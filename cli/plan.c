// SPDX-License-Identifier: MIT
// plan: the ways to run a chain, ranked, with what each would take; what would be chosen, and why. For this machine, or
// for one that is described by its rates.
#include <errno.h>
#include <math.h>
#include <string.h>

#include "plan.h"

#define OTHERS ", linear, rnn, rnn-relu, gru, lstm, paragru, paralstm, mingru, lorenz, logistic"

enum {
    KEY_LENGTH = 0x4000,
    KEY_STRUCTURE,
    KEY_A,
    KEY_TRANSPOSED,
    KEY_INPUTS,
    KEY_BIDIRECTIONAL,
    KEY_INFERENCE,
    KEY_WEIGHTS,
    KEY_PREFIX,
    KEY_INPUT,
    KEY_PLANNING,
    KEY_MEASURE,
    KEY_BUDGET,
    KEY_WISDOM,
    KEY_CALIBRATE,
    KEY_CORES,
    KEY_BANDWIDTH,
    KEY_FLOPS,
    KEY_REGION,
    KEY_WAKE,
    KEY_L2,
    KEY_L3,
    KEY_LATENCY,
    KEY_RANKS,
    KEY_LINK_LATENCY,
    KEY_LINK_BANDWIDTH,
    KEY_SIDE
};

static const struct argp_option plan_options[] = {
    {"length", KEY_LENGTH, "N", 0, "Steps; but for recurrent networks the same as --layers, and not beside it", 0},
    {"planning", KEY_PLANNING, "estimate|measure|wisdom", 0,
     "From the cost model (default), by timing the candidates, or only from what --wisdom knows", 0},
    {"measure", KEY_MEASURE, NULL, 0, "The same as --planning measure", 0},
    {"budget", KEY_BUDGET, "SECONDS", 0, "Of measuring (default 1), for --measure", 0},
    {"wisdom", KEY_WISDOM, "FILE", 0,
     "Load what earlier measurements found (of this machine and version: any other is refused), and with --measure "
     "save what this one finds",
     0},
    {0},
};

static const struct argp_option linear_options[] = {
    {"structure", KEY_STRUCTURE, "NAME", 0, "zero, identity, scalar, diagonal, block, dense (default)", 0},
    {"transposed", KEY_TRANSPOSED, NULL, 0, "z_l = A_{l+1}^T z_{l+1} + b_l, from the last step", 0},
    {"A", KEY_A, "FILE", 0,
     "Transitions like those to come, as solve linear reads them: length, batch, width and structure are theirs, and "
     "--measure runs over them, by overlap too, if they forget",
     0},
    {"ranks", KEY_RANKS, "P", 0,
     "What --scheme distributed and overlap would take on 1, 2, 4, ... P ranks, a core each", 0},
    {"link-latency", KEY_LINK_LATENCY, "US", 0, "With --ranks: microseconds that a message takes (default 2)", 0},
    {"link-bandwidth", KEY_LINK_BANDWIDTH, "GB/S", 0, "With --ranks: 10^9 bytes of a message a second (default 10)", 0},
    {"side-by-side", KEY_SIDE, "N", 0, "With --ranks: only N of them run at once (default: all)", 0},
    {0},
};

static const struct argp_option recurrent_options[] = {
    {"inputs", KEY_INPUTS, "I", 0, "Numbers of x a step (default: --hidden)", 0},
    {"bidirectional", KEY_BIDIRECTIONAL, NULL, 0, "Two directions", 0},
    {"inference", KEY_INFERENCE, NULL, 0, "Plan the pass forward alone: nobody goes back", 0},
    {"weights", KEY_WEIGHTS, "FILE", 0,
     "safetensors of a trained network's state_dict(), as solve reads it: whether it forgets lies in its weights "
     "(default: weights as PyTorch draws them)",
     0},
    {"prefix", KEY_PREFIX, "TEXT", 0, "What stands before the names in the file of --weights, such as 'rnn.'", 0},
    {"input", KEY_INPUT, "FILE", 0, "x [T][B][I] like those to come (default: normal numbers)", 0},
    {0},
};

static const struct argp_option machine_options[] = {
    {"calibrate", KEY_CALIBRATE, NULL, 0, "Measure this machine's rates again instead of taking those of the cache", 0},
    {"cores", KEY_CORES, "N", 0, "Plan for a machine with N cores", 0},
    {"bandwidth", KEY_BANDWIDTH, "GB/S", 0,
     "For a machine of so many 10^9 bytes a second from memory, all cores together", 0},
    {"core-flops", KEY_FLOPS, "GFLOP/S", 0, "For a machine of so many 10^9 flops a second and core, in small products",
     0},
    {"fma-latency", KEY_LATENCY, "NS", 0, "For a machine where a dependent multiply-add takes so many nanoseconds", 0},
    {"region", KEY_REGION, "US", 0, "For a machine where handing work to all cores and back takes so many microseconds",
     0},
    {"wake", KEY_WAKE, "US", 0, "For a machine whose threads are at work so many microseconds after they slept", 0},
    {"l2", KEY_L2, "BYTES", 0, "For a machine whose cores have second-level caches of so many bytes (suffixes K, M, G)",
     0},
    {"l3", KEY_L3, "BYTES", 0, "For a machine with a third-level cache of so many bytes, shared by all cores", 0},
    {0},
};

static error_t read_rate(const char *option, const char *arg, double unit, double *rate) {
    if (!cli_read_double(option, arg, 1e-6, 1e12, rate)) return EINVAL;
    *rate *= unit;
    return 0;
}

static error_t read_cache(const char *option, const char *arg, double *bytes) {
    size_t number;
    if (!cli_read_bytes(option, arg, &number)) return EINVAL;
    *bytes = (double)number;
    return 0;
}

static error_t read_cores(const char *arg, double *cores) {
    int64_t number;
    if (!cli_read_int64("--cores", arg, 1, 10000000, &number)) return EINVAL;
    *cores = (double)number;
    return 0;
}

static error_t read_planning(const char *arg, dpcr_planning *planning) {
    const char *words[DPCR_PLANNING_COUNT];
    int index = 0;
    for (int i = 0; i < DPCR_PLANNING_COUNT; i++) words[i] = dpcr_planning_name((dpcr_planning)i);
    if (!cli_read_word("--planning", arg, words, DPCR_PLANNING_COUNT, &index)) return EINVAL;
    *planning = (dpcr_planning)index;
    return 0;
}

static error_t parse_plan(int key, char *arg, struct argp_state *state) {
    cli_plan *p = state->input;
    dpcr_solve_options *o = &p->solver.options;
    switch (key) {
        case KEY_LENGTH: return cli_read_int64("--length", arg, 0, INT64_MAX, &p->length) ? 0 : EINVAL;
        case KEY_PLANNING: return read_planning(arg, &o->planning);
        case KEY_MEASURE: o->planning = DPCR_PLANNING_MEASURE; return 0;
        case KEY_BUDGET: return cli_read_double("--budget", arg, 1e-3, 3600, &o->planning_seconds) ? 0 : EINVAL;
        case KEY_WISDOM: p->wisdom = arg; return 0;
        default: return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_linear(int key, char *arg, struct argp_state *state) {
    cli_plan *p = state->input;
    switch (key) {
        case KEY_STRUCTURE:
            p->structure_given = true;
            return cli_read_structure("--structure", arg, &p->structure) ? 0 : EINVAL;
        case KEY_TRANSPOSED: p->transposed = true; return 0;
        case KEY_A: p->transitions = arg; return 0;
        case KEY_RANKS: return cli_read_int64("--ranks", arg, 1, 1 << 20, &p->ranks.ranks) ? 0 : EINVAL;
        case KEY_SIDE: return cli_read_int64("--side-by-side", arg, 1, 1 << 20, &p->ranks.cores) ? 0 : EINVAL;
        case KEY_LINK_LATENCY: return read_rate("--link-latency", arg, 1e-6, &p->ranks.latency);
        case KEY_LINK_BANDWIDTH: return read_rate("--link-bandwidth", arg, 1e9, &p->ranks.bandwidth);
        default: return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_recurrent(int key, char *arg, struct argp_state *state) {
    cli_plan *p = state->input;
    switch (key) {
        case KEY_INPUTS: return cli_read_int64("--inputs", arg, 1, INT64_MAX, &p->inputs) ? 0 : EINVAL;
        case KEY_BIDIRECTIONAL: p->bidirectional = true; return 0;
        case KEY_INFERENCE: p->inference = true; return 0;
        case KEY_WEIGHTS: p->weights = arg; return 0;
        case KEY_PREFIX: return cli_read_prefix("--prefix", arg, &p->prefix) ? 0 : EINVAL;
        case KEY_INPUT: p->input = arg; return 0;
        default: return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_machine(int key, char *arg, struct argp_state *state) {
    cli_plan *p = state->input;
    dpcr_machine *m = &p->machine;
    switch (key) {
        case KEY_CALIBRATE: p->calibrate = true; return 0;
        case KEY_CORES: return read_cores(arg, &m->threads);
        case KEY_BANDWIDTH: return read_rate("--bandwidth", arg, 1e9, &m->bandwidth);
        case KEY_FLOPS: return read_rate("--core-flops", arg, 1e9, &m->flops);
        case KEY_LATENCY: return read_rate("--fma-latency", arg, 1e-9, &m->latency);
        case KEY_REGION: return read_rate("--region", arg, 1e-6, &m->region);
        case KEY_WAKE: return read_rate("--wake", arg, 1e-6, &m->wake);
        case KEY_L2: return read_cache("--l2", arg, &m->cache_bytes[1]);
        case KEY_L3: return read_cache("--l3", arg, &m->cache_bytes[2]);
        default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp plan_argp = {plan_options, parse_plan, NULL, NULL, NULL, NULL, NULL};
static const struct argp linear_argp = {linear_options, parse_linear, NULL, NULL, NULL, NULL, NULL};
static const struct argp recurrent_argp = {recurrent_options, parse_recurrent, NULL, NULL, NULL, NULL, NULL};
static const struct argp machine_argp = {machine_options, parse_machine, NULL, NULL, NULL, NULL, NULL};

bool cli_plan_is_elsewhere(const cli_plan *p) {
    const dpcr_machine *m = &p->machine;
    return m->threads > 0 || m->bandwidth > 0 || m->flops > 0 || m->latency > 0 || m->region > 0 || m->wake > 0 ||
           m->cache_bytes[1] > 0 || m->cache_bytes[2] > 0;
}

// ---- what is told of every plan ----

void cli_plan_set_shape(cli_result *r, const char *chain, int64_t length, int64_t batch, int64_t width,
                        dpcr_dtype dtype) {
    cli_set_text(r, "chain", chain);
    cli_set_int(r, "length", length);
    cli_set_int(r, "batch", batch);
    cli_set_int(r, "width", width);
    cli_set_text(r, "dtype", dpcr_dtype_name(dtype));
}

static void set_machine(cli_result *r, dpcr_context *context, const cli_plan *p) {
    dpcr_machine m = {.size = sizeof m};
    if (dpcr_context_machine(context, &m, NULL) != DPCR_OK) return;
    json_t *caches = json_array();
    for (int i = 0; caches && i < 3; i++)
        cli_append(&caches, json_pack("{sfsf}", "bytes", m.cache_bytes[i], "bytes_per_second", m.cache_bandwidth[i]));
    cli_set(
        r, "machine",
        json_pack("{sb sf sf sf sf sf sf sf so}", "described", cli_plan_is_elsewhere(p), "cores", m.threads,
                  "core_flops", m.flops, "fma_seconds", m.latency, "region_seconds", m.region, "wake_seconds", m.wake,
                  "bytes_per_second", m.bandwidth, "thread_bytes_per_second", m.thread_bandwidth, "caches", caches));
}

// ---- nonlinear chains ----

static const char *name_of(const dpcr_candidate *c) {
    return c->backward ? dpcr_scheme_name(c->scheme) : dpcr_method_name(c->method);
}

static void say_candidate(const cli_plan *p, const dpcr_candidate *c) {
    char predicted[32] = "", measured[32] = "", details[96] = "";
    if (c->seconds > 0) snprintf(predicted, sizeof predicted, "%.4g us", c->seconds * 1e6);
    if (c->measured > 0) snprintf(measured, sizeof measured, "%.4g us", c->measured * 1e6);
    if (!c->backward && c->scheme)
        snprintf(details, sizeof details, "%s", dpcr_scheme_name(c->scheme));
    else if (!c->backward && (c->method == DPCR_METHOD_NEWTON || c->method == DPCR_METHOD_SHOOTING))
        snprintf(details, sizeof details, "windows");
    const size_t used = strlen(details);
    if (c->warm_up)
        snprintf(details + used, sizeof details - used, "run-up %lld%s%.0lld", (long long)c->warm_up,
                 c->chunk ? ", chunk " : "", (long long)c->chunk);
    cli_say(&p->common, "  %-9s %-11s %15s %15s %7.3g sweep%-1s %12zu bytes  %s\n",
            c->backward ? "backward" : "forward", name_of(c), predicted, measured, c->sweeps, c->sweeps == 1 ? "" : "s",
            c->workspace, details);
}

static void tell_candidates(cli_result *r, const cli_plan *p, const dpcr_solve_plan *made) {
    json_t *list = json_array();
    dpcr_candidate c = {.size = sizeof c};
    cli_say(&p->common, "  %-9s %-11s %15s %15s\n", "", "", "predicted", "measured");
    for (int64_t i = 0; dpcr_solve_plan_candidate(made, i, &c); i++) {
        say_candidate(p, &c);
        json_t *item = json_pack(
            "{ss ss ss sI sI sf so so sI}", "direction", c.backward ? "backward" : "forward", "method", name_of(&c),
            "scheme", c.scheme ? dpcr_scheme_name(c.scheme) : "auto", "chunk", (json_int_t)c.chunk, "run_up",
            (json_int_t)c.warm_up, "sweeps", c.sweeps, "seconds", cli_json_real(c.seconds), "measured_seconds",
            c.measured > 0 ? cli_json_real(c.measured) : json_null(), "workspace_bytes", (json_int_t)c.workspace);
        cli_append(&list, item);
    }
    cli_set(r, "candidates", list);
}

// The options that make this very plan again, measured or not.
static void tell_pinned(cli_result *r, const cli_plan *p, const dpcr_solve_plan *made) {
    const dpcr_solve_options *o = dpcr_solve_plan_options(made);
    const struct {
        const char *option;
        bool told;
        int64_t value;
    } numbers[] = {
        {"max-sweeps", true, o->max_sweeps},
        {"chunk", o->chunk > 0, o->chunk},
        {"backward-chunk", o->backward_chunk > 0, o->backward_chunk},
        {"window", o->window > 0, o->window},
        {"run-up", o->warm_up > 0, o->warm_up},
        {"backward-run-up", o->backward_warm_up > 0 && o->backward_warm_up != o->warm_up, o->backward_warm_up},
        {"block", o->block > 0, o->block}};
    const bool back = !p->inference;
    char text[512];  // more than all of them take
    size_t used = (size_t)snprintf(text, sizeof text, "--method %s", dpcr_method_name(o->method));
    const char *const schemes[] = {"backward", dpcr_scheme_name(o->backward), "scheme", dpcr_scheme_name(o->scheme)};
    for (int i = 0; i < 4; i += 2)
        if ((i == 0 || o->scheme) && cli_option_counts(o, schemes[i], back))
            used += (size_t)snprintf(text + used, sizeof text - used, " --%s %s", schemes[i], schemes[i + 1]);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].told && cli_option_counts(o, numbers[i].option, back))
            used += (size_t)snprintf(text + used, sizeof text - used, " --%s %lld", numbers[i].option,
                                     (long long)numbers[i].value);
    if (p->solver.options.atol != 0 && cli_option_counts(o, "tolerance", back))
        used +=
            (size_t)snprintf(text + used, sizeof text - used, " --tolerance %.17g", fmax(p->solver.options.atol, 0));
    if (o->damping > 0 && cli_option_counts(o, "damping", back))
        used += (size_t)snprintf(text + used, sizeof text - used, " --damping %.17g", o->damping);
    if (o->guess && cli_option_counts(o, "guess", back))
        used += (size_t)snprintf(text + used, sizeof text - used, " --guess %s", dpcr_guess_name(o->guess));
    if (o->join_tolerance != 0 && cli_option_counts(o, "join-tolerance", back))
        snprintf(text + used, sizeof text - used, " --join-tolerance %.17g", fmax(o->join_tolerance, 0));
    cli_set_text(r, "pinned", text);
    cli_say(&p->common, "the same again: %s\n", text);
}

static void tell_memory(cli_result *r, const cli_plan *p, const dpcr_steps *s, const dpcr_solve_plan *made) {
    const double real = (double)dpcr_dtype_size(s->dtype), states = (double)s->length * (double)s->batch;
    const double z = states * (double)s->width * real, tape = states * (double)s->tape_values * real;
    const double workspace = (double)dpcr_solve_plan_workspace(made);
    cli_set_int(r, "workspace_bytes", (json_int_t)dpcr_solve_plan_workspace(made));
    cli_set_real(r, "states_bytes", z);
    cli_set_real(r, "tape_bytes", tape);
    cli_set_real(r, "memory_bytes", z + tape + workspace);
    cli_say(&p->common, "memory: states %.4g bytes, tape %.4g, workspace %.4g\n", z, tape, workspace);
}

void cli_plan_tell_choice(const cli_plan *p, const dpcr_solve_plan *made, cli_result *r) {
    double rate = 0;
    int64_t needed = 0;
    const char *memory = dpcr_solve_plan_memory(made, &rate, &needed);
    cli_set_text(r, "method", dpcr_method_name(dpcr_solve_plan_method(made)));
    cli_set_text(r, "backward", dpcr_scheme_name(dpcr_solve_plan_backward(made)));
    cli_set_text(r, "memory", memory);
    cli_set_real(r, "contraction_rate", rate);
    cli_set_int(r, "forgets_in_steps", needed);
    cli_set_text(r, "sentence", dpcr_solve_plan_sentence(made));
    cli_say(&p->common, "%s\n", dpcr_solve_plan_sentence(made));
    if (needed)
        cli_say(&p->common, "the chain forgets in about %lld step%s (rate %.3g a step)\n", (long long)needed,
                cli_s(needed), rate);
    else if (strcmp(memory, "unknown") != 0)
        cli_say(&p->common, "the chain %s (rate %.3g a step)\n", memory, rate);
    tell_candidates(r, p, made);
    tell_pinned(r, p, made);
}

static void tell_plan(cli_result *r, const cli_plan *p, const char *kind, const dpcr_steps *steps,
                      const dpcr_solve_plan *made, double seconds) {
    const dpcr_model_options *o = &p->network.options;
    cli_plan_set_shape(r, kind, o->layers, p->network.batch, o->width, o->dtype);
    cli_set_text(r, "structure", dpcr_structure_name(steps->jacobian.structure));
    cli_set_real(r, "step_flops", steps->flops);
    cli_set_real(r, "jacobian_flops", steps->jacobian_flops);
    cli_set_text(r, "planning", dpcr_planning_name(p->solver.options.planning));
    cli_set_real(r, "planning_seconds", seconds);
    cli_plan_tell_choice(p, made, r);
    cli_say(&p->common, "method %s, backward %s, workspace %zu bytes; planned in %.3g s\n",
            dpcr_method_name(dpcr_solve_plan_method(made)), dpcr_scheme_name(dpcr_solve_plan_backward(made)),
            dpcr_solve_plan_workspace(made), seconds);
    tell_memory(r, p, steps, made);
}

// The network planned there; with --device auto, where `here` is, told if it pays, and left where it is refused.
static int plan_there(dpcr_context *context, const cli_plan *p, const char *kind, dpcr_model *model,
                      const dpcr_array *start, const dpcr_solve_plan *here, bool *told, cli_result *r) {
    cli_plan_there t;
    dpcr_solve_options options = p->solver.options;
    if (here && options.planning == DPCR_PLANNING_ESTIMATE) options.planning = DPCR_PLANNING_MEASURE;
    const double before = cli_now();
    dpcr_error error = {0};
    const dpcr_status made = cli_plan_there_make(context, p->common.device, model, start, options, &t, &error);
    if (here && made != DPCR_OK) cli_device_decide("cpu: %.300s", error.text);
    *told = made == DPCR_OK && (!here || cli_plan_there_pays(&t, here));
    if (*told) tell_plan(r, p, kind, &t.steps, t.plan, cli_now() - before);
    cli_plan_there_end(&t);
    return here || made == DPCR_OK ? CLI_DONE : cli_fail_error(&error, CLI_COMPUTING);
}

static int plan_chain(dpcr_context *context, const cli_plan *p, const char *kind, const dpcr_steps *steps,
                      dpcr_model *model, cli_result *r) {
    const int64_t row[] = {steps->batch, steps->width};
    dpcr_array start;
    dpcr_solve_plan *made = NULL;
    dpcr_error error = {0};
    int status = CLI_DONE;
    if (!cli_array_create(steps->dtype, 2, row, &start)) return CLI_RESOURCES;
    if (cli_map_known(kind))
        cli_map_start(kind, &start, p->common.seed);
    else
        cli_array_normal(&start, p->common.seed, CLI_STREAM_STATES);
    dpcr_solve_options options = p->solver.options;
    options.start = &start;
    const bool device = p->common.device.type == DPCR_CUDA, weighed = device && p->common.device_auto;
    bool told = false;
    if (device && !weighed) {
        status = plan_there(context, p, kind, model, &start, NULL, &told, r);
    } else {
        const double before = cli_now();
        if (dpcr_solve_plan_create(context, steps, &options, &made, &error) != DPCR_OK)
            status = cli_fail_error(&error, CLI_COMPUTING);
        const double seconds = cli_now() - before;
        if (!status && weighed) status = plan_there(context, p, kind, model, &start, made, &told, r);
        if (!status && !told) tell_plan(r, p, kind, steps, made, seconds);
    }
    dpcr_solve_plan_destroy(made);
    cli_array_destroy(&start);
    return status;
}

static int plan_steps(dpcr_context *context, const cli_plan *p, const char *kind, cli_result *r) {
    int status = CLI_DONE;
    const bool map = cli_map_known(kind);
    dpcr_model *model = map ? NULL : cli_model_create(context, &p->network, p->common.seed, &status);
    if (status) return status;
    dpcr_steps steps = {.size = sizeof steps};
    dpcr_error error = {0};
    if (map) steps = cli_map_steps(kind, p->network.options.layers, p->network.batch);
    if (!map && dpcr_model_steps(model, p->network.batch, &steps, &error) != DPCR_OK)
        status = cli_fail_error(&error, CLI_COMPUTING);
    if (!status) status = plan_chain(context, p, kind, &steps, model, r);
    dpcr_model_destroy(model);
    return status;
}

// ---- the verb ----

static int prepare(dpcr_context *context, const cli_plan *p, cli_result *r) {
    dpcr_error error = {0};
    const double before = cli_now();
    const bool cached = cli_machine_load(context, p->calibrate);
    cli_set_bool(r, "calibration_cached", cached);
    cli_set_real(r, "calibration_seconds", cli_now() - before);
    const int status = cli_wisdom_load(context, p->wisdom);
    if (status) return status;
    if (cli_plan_is_elsewhere(p) && dpcr_context_set_machine(context, &p->machine, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_COMPUTING);
    return CLI_DONE;
}

static int save_wisdom(dpcr_context *context, const cli_plan *p) {
    if (!p->wisdom || p->solver.options.planning != DPCR_PLANNING_MEASURE) return CLI_DONE;
    return cli_wisdom_save(context, p->wisdom);
}

static int refuse(const cli_plan *p) {
    const dpcr_planning planning = p->solver.options.planning;
    if (cli_plan_is_elsewhere(p) && planning != DPCR_PLANNING_ESTIMATE)
        return cli_fail(CLI_USAGE,
                        "--planning %s times this machine, or goes by what was timed on it; with --cores and the like "
                        "there is --planning estimate",
                        dpcr_planning_name(planning));
    if (planning == DPCR_PLANNING_WISDOM && !p->wisdom)
        return cli_fail(CLI_USAGE, "--planning wisdom needs --wisdom FILE");
    if (cli_is_stdout(p->wisdom)) return cli_fail(CLI_USAGE, "--wisdom %s: wanted a file", p->wisdom);
    if (planning == DPCR_PLANNING_WISDOM && !cli_readable("the wisdom", p->wisdom)) return CLI_INPUT;
    if (p->wisdom && planning == DPCR_PLANNING_MEASURE && !cli_writable("the wisdom", p->wisdom)) return CLI_RESOURCES;
    const cli_file csv = {"--csv", p->common.csv}, wisdom = {"--wisdom", p->wisdom};
    return cli_spares(&csv, 1, &wisdom, 1) ? CLI_DONE : CLI_USAGE;
}

static cli_solver asked_for(const cli_plan *p) { return p->kind ? cli_solver_of_layers(&p->solver) : p->solver; }

// Where all is named nothing is decided.
static int refuse_planning(const cli_plan *p, bool linear, bool map) {
    const cli_solver asked = asked_for(p);
    const dpcr_solve_options *o = &asked.options;
    const bool measures = o->planning == DPCR_PLANNING_MEASURE;
    const char *const option = measures                  ? "measure (--planning measure)"
                               : o->planning             ? "planning"
                               : o->planning_seconds > 0 ? "budget"
                               : p->wisdom               ? "wisdom"
                                                         : NULL;
    char named[96] = "";
    if (!option) return CLI_DONE;
    if (linear && o->scheme)
        snprintf(named, sizeof named, "scheme %s", dpcr_scheme_name(o->scheme));
    else if (!linear && o->method && p->inference)
        snprintf(named, sizeof named, "method %s", dpcr_method_name(o->method));
    else if (!linear && o->method && o->backward)
        snprintf(named, sizeof named, "method %s and backward %s", dpcr_method_name(o->method),
                 dpcr_scheme_name(o->backward));
    if (*named) return cli_fail(CLI_USAGE, "--%s beside %s: nothing is left to decide; wanted auto", option, named);
    // A device that --device auto asks is measured where nothing else is said.
    const bool asks = p->common.device_auto && !linear && !map && !p->kind && !cli_plan_is_elsewhere(p);
    if (o->planning_seconds > 0 && !measures && !(asks && !o->planning))
        return cli_fail(CLI_USAGE, "--budget beside planning %s, which measures nothing; wanted --planning measure",
                        dpcr_planning_name(o->planning));
    return CLI_DONE;
}

// What belongs to another kind of chain.
static int refuse_others(const cli_plan *p, const char *kind, bool linear, bool map) {
    if (!linear && p->ranks.ranks) return cli_fail(CLI_USAGE, "--ranks is of linear chains");
    if (!p->ranks.ranks && (p->ranks.latency > 0 || p->ranks.bandwidth > 0 || p->ranks.cores))
        return cli_fail(CLI_USAGE, "--link-latency, --link-bandwidth and --side-by-side are for --ranks");
    if (!linear && (p->structure_given || p->transposed || p->transitions))
        return cli_fail(CLI_USAGE, "--%s: that is of a linear chain",
                        p->structure_given ? "structure"
                        : p->transposed    ? "transposed"
                                           : "A");
    const char *const recurrent = p->inputs          ? "inputs"
                                  : p->bidirectional ? "bidirectional"
                                  : p->inference     ? "inference"
                                  : p->weights       ? "weights"
                                  : p->prefix        ? "prefix"
                                  : p->input         ? "input"
                                                     : NULL;
    if (!p->kind && p->length >= 0 && cli_network_gives(&p->network, "layers"))
        return cli_fail(CLI_USAGE, "--length beside --layers, which is the same: wanted one of them");
    if (!p->kind && recurrent) return cli_fail(CLI_USAGE, "--%s: that is of a recurrent network", recurrent);
    if (linear) return cli_plan_linear_refuse(p);
    cli_solver asked = asked_for(p);
    if (!p->common.device_auto) asked.options.device = p->common.device;
    if (!cli_solver_fits(&asked, CLI_RUNS(asked.options.method), NULL,
                         p->inference ? "--inference is the pass forward alone" : NULL))
        return CLI_USAGE;
    if (p->kind) return cli_plan_recurrent_refuse(p);
    if (map && p->network.options.dtype == DPCR_F32) return cli_fail(CLI_USAGE, "%s is computed in float64 only", kind);
    return map && !cli_network_only(&p->network, kind, cli_map_options) ? CLI_USAGE : CLI_DONE;
}

// Chains that no device is asked about.
static int leave_device(cli_plan *p, bool linear, bool map) {
    const char *const what = linear                     ? "linear chains"
                             : map                      ? "maps"
                             : p->kind                  ? "recurrent networks"
                             : cli_plan_is_elsewhere(p) ? "networks of another machine"
                                                        : NULL;
    if (!what) return CLI_DONE;
    cli_device_leave_auto(&p->common, what);
    if (p->common.device.type != DPCR_CUDA) return CLI_DONE;
    return cli_fail(CLI_USAGE, "--device %.20s: plan mlp and plan resnet of this machine ask a device",
                    p->common.device_given);
}

static void settle(cli_plan *p, const char *kind, bool map) {
    dpcr_model_options *o = &p->network.options;
    if (p->solver.options.planning_seconds == 0) p->solver.options.planning_seconds = 1;  // to see all ways
    p->ranks.warm_up = p->solver.options.warm_up;
    if (p->length >= 0 && !p->kind) o->layers = p->length;
    if (map) o->width = cli_map_width(kind);
    if (map) o->dtype = DPCR_F64;
    if (!o->dtype) o->dtype = DPCR_F32;
}

static int run(cli_plan *p, const char *kind) {
    const bool linear = kind && !strcmp(kind, "linear"), map = kind && cli_map_known(kind);
    if (kind && !linear) dpcr_recurrent_kind_find(kind, &p->kind, NULL);
    int status = refuse(p);
    if (!status) status = refuse_others(p, kind, linear, map);
    if (!status) status = refuse_planning(p, linear, map);
    if (status) return status;
    if (!linear && !map && !p->kind && !cli_read_architecture(kind, OTHERS, &p->network.options.architecture))
        return CLI_USAGE;
    if ((status = leave_device(p, linear, map))) return status;
    settle(p, kind, map);
    dpcr_context *context = cli_context_create(&p->common, &status);
    if (!context) return status;
    cli_result r = cli_result_create();
    status = prepare(context, p, &r);
    if (!status)
        status = linear    ? cli_plan_linear(context, p, &r)
                 : p->kind ? cli_plan_recurrent(context, p, &r)
                           : plan_steps(context, p, kind, &r);
    if (!status) set_machine(&r, context, p);
    if (!status) status = save_wisdom(context, p);
    if (!status) status = cli_finish(&p->common, &r, CLI_DONE);
    cli_result_destroy(&r);
    dpcr_context_destroy(context);
    return status;
}

int cli_verb_plan(int argc, char **argv) {
    cli_plan p = {.common = CLI_COMMON_DEFAULTS,
                  .solver = CLI_SOLVER_DEFAULTS,
                  .network = {.options = {.layers = 1024, .width = 32}, .gain = 1, .batch = 128},
                  .length = -1,
                  .structure = DPCR_DENSE,
                  .ranks = {.size = sizeof(dpcr_ranks_model)},
                  .machine = {.size = sizeof(dpcr_machine)}};
    const cli_syntax syntax = {
        .arguments = "mlp|resnet|linear|rnn|rnn-relu|gru|lstm|paragru|paralstm|mingru|lorenz|logistic",
        .doc =
            "Ranks the ways to run a chain by what each would take, on this machine or on one that is described, and "
            "tells which would be chosen and why. Defaults: 1024 layers (or steps), width 32, batch 128, float32; a "
            "recurrent network has 1 layer of --hidden 32 and batch 1. With --device a network's chain on a "
            "device, with auto there if that pays, transfers included.",
        .groups = {{&plan_argp, &p, "Chain and planning:"},
                   {&linear_argp, &p, "Linear chain:"},
                   {&recurrent_argp, &p, "Recurrent network:"},
                   {&machine_argp, &p, "Another machine:"},
                   {&cli_network_argp, &p.network, "Network:"},
                   {&cli_solver_argp, &p.solver, "Solver:"},
                   {&cli_common_argp, &p.common, "Output and resources:"}},
        .most = 1};
    p.common.serves_devices = true;
    const char *positional[CLI_MAX_POSITIONAL];
    int status;
    if (!cli_parse(&syntax, argc, argv, positional, &status)) return status;
    return run(&p, positional[0]);
}
