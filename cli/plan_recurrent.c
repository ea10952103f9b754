// SPDX-License-Identifier: MIT
// plan rnn|gru|lstm|...: the ways through each layer and direction of a recurrent network. Whether it forgets lies in
// its weights, so those of a trained one are read, or else drawn as PyTorch draws them.
#include <string.h>

#include "plan.h"

enum { STREAM_X = 0x421, HIDDEN = 32, LENGTH = 1024 };

// ---- what it does not take ----

static int beside(const char *option, const char *file) {
    return cli_fail(CLI_USAGE, "--%s beside --%s: the file holds it", option, file);
}

static int refuse_beside_files(const cli_plan *p) {
    static const char *const of_weights[] = {"layers", "hidden", "dtype"};
    for (size_t i = 0; p->weights && i < sizeof of_weights / sizeof *of_weights; i++)
        if (cli_network_gives(&p->network, of_weights[i])) return beside(of_weights[i], "weights");
    if (p->weights && p->inputs) return beside("inputs", "weights");
    if (p->weights && p->bidirectional) return beside("bidirectional", "weights");
    if (p->input && p->inputs) return beside("inputs", "input");
    if (p->input && p->length >= 0) return beside("length", "input");
    if (p->input && cli_network_gives(&p->network, "batch")) return beside("batch", "input");
    if (p->prefix && !p->weights) return cli_fail(CLI_USAGE, "--prefix is of the names in --weights FILE");
    return CLI_DONE;
}

int cli_plan_recurrent_refuse(const cli_plan *p) {
    static const char *const taken[] = {"layers", "hidden", "batch", "dtype", NULL};
    const char *const kind = dpcr_recurrent_kind_name(p->kind);
    if (!cli_network_only(&p->network, kind, taken)) return CLI_USAGE;
    if (cli_network_gives(&p->network, "layers") && p->network.options.layers < 1)
        return cli_fail(CLI_USAGE, "--layers '0': %s has at least 1, and --length steps", kind);
    const cli_file written[] = {{"--csv", p->common.csv},
                                {"--wisdom", p->solver.options.planning == DPCR_PLANNING_MEASURE ? p->wisdom : NULL}};
    const cli_file read[] = {{"--weights", p->weights}, {"--input", p->input}};
    const int status = refuse_beside_files(p);
    return status || cli_spares(written, 2, read, 2) ? status : CLI_USAGE;
}

// ---- the network and what it reads ----

typedef struct subject {
    dpcr_recurrent *network;
    dpcr_tensors file;
    dpcr_array drawn;
    const dpcr_array *x;  // [T][B][I]
} subject;

static int64_t given_or(const cli_plan *p, const char *name, int64_t value, int64_t otherwise) {
    return cli_network_gives(&p->network, name) ? value : otherwise;
}

static int make_network(dpcr_context *context, const cli_plan *p, subject *s) {
    const dpcr_model_options *o = &p->network.options;
    dpcr_error error = {0};
    if (p->weights) {
        if (!cli_readable("the weights", p->weights)) return CLI_INPUT;
        return dpcr_recurrent_load(context, p->weights, p->prefix, p->kind, &s->network, &error) == DPCR_OK
                   ? CLI_DONE
                   : cli_fail_weights(&error);
    }
    dpcr_recurrent_options options = {.size = sizeof options,
                                      .kind = p->kind,
                                      .dtype = o->dtype,
                                      .hidden = given_or(p, "hidden", o->hidden, HIDDEN),
                                      .inputs = p->inputs,
                                      .layers = given_or(p, "layers", o->layers, 1),
                                      .bidirectional = p->bidirectional,
                                      .seed = p->common.seed};
    if (!options.inputs && s->x && s->x->ndim == 3) options.inputs = s->x->shape[2];
    if (!options.inputs) options.inputs = options.hidden;
    return dpcr_recurrent_create(context, &options, &s->network, &error) == DPCR_OK
               ? CLI_DONE
               : cli_fail_error(&error, CLI_COMPUTING);
}

static int make_input(const cli_plan *p, subject *s) {
    const dpcr_recurrent_options *o = dpcr_recurrent_get_options(s->network);
    const int64_t shape[] = {p->length >= 0 ? p->length : LENGTH, given_or(p, "batch", p->network.batch, 1), o->inputs};
    if (s->x) {
        if (s->x->ndim != 3 || s->x->shape[2] != o->inputs || s->x->shape[1] < 1)
            return cli_fail(CLI_INPUT, "--input: wanted [T][B][%lld], of one sequence or more", (long long)o->inputs);
        if (s->x->dtype != o->dtype)
            return cli_fail(CLI_INPUT, "--input is %s and the network %s: wanted the same",
                            dpcr_dtype_name(s->x->dtype), dpcr_dtype_name(o->dtype));
        return CLI_DONE;
    }
    if (!cli_array_create(o->dtype, 3, shape, &s->drawn)) return CLI_RESOURCES;
    cli_array_normal(&s->drawn, p->common.seed, STREAM_X);
    s->x = &s->drawn;
    return CLI_DONE;
}

// ---- what is told ----

// Adds, of one direction, the seconds of the way that was taken and of the loop: as they were timed, or else predicted.
static void add_seconds(const dpcr_solve_plan *made, bool backward, double *taken, double *loop) {
    dpcr_candidate c = {.size = sizeof c};
    bool found = false;
    for (int64_t i = 0; dpcr_solve_plan_candidate(made, i, &c); i++) {
        const double seconds = c.measured > 0 ? c.measured : c.seconds;
        const bool is_taken =
            backward ? c.scheme == dpcr_solve_plan_backward(made) : c.method == dpcr_solve_plan_method(made);
        const bool is_loop = backward ? c.scheme == DPCR_SCHEME_SEQUENTIAL : c.method == DPCR_METHOD_SEQUENTIAL;
        if ((c.backward != 0) != backward) continue;
        if (is_taken && !found) *taken += seconds;  // the best of its kind comes first
        found = found || is_taken;
        if (is_loop) *loop += seconds;
    }
}

static void tell_seconds(const cli_plan *p, const char *direction, const char *key, double taken, double loop,
                         cli_result *r) {
    char name[64];
    snprintf(name, sizeof name, "%sseconds", key);
    cli_set_real(r, name, taken);
    snprintf(name, sizeof name, "%sloop_seconds", key);
    cli_set_real(r, name, loop);
    if (taken > 0 && loop > 0)
        cli_say(&p->common, "%s %.4g us in all, the loop %.4g us: %.3g times\n", direction, 1e6 * taken, 1e6 * loop,
                loop / taken);
}

static void tell_chains(const cli_plan *p, const dpcr_recurrent_options *o, const dpcr_recurrent_plan *made,
                        cli_result *r) {
    const int64_t directions = o->bidirectional ? 2 : 1, chains = o->layers * directions;
    double taken[2] = {0}, loop[2] = {0};
    json_t *list = json_array();
    for (int64_t c = 0; c < chains; c++) {
        const dpcr_solve_plan *chain = dpcr_recurrent_plan_chain(made, c);
        cli_result one = cli_result_create();
        if (chains > 1)
            cli_say(&p->common, "layer %lld%s: ", (long long)(c / directions), c % directions ? ", reverse" : "");
        cli_set_int(&one, "layer", c / directions);
        cli_set_text(&one, "direction", c % directions || o->reverse ? "reverse" : "forward");
        cli_plan_tell_choice(p, chain, &one);
        for (int back = 0; back < 2; back++) add_seconds(chain, back, &taken[back], &loop[back]);
        cli_append(&list, cli_result_take(&one));
    }
    cli_set(r, "chains", list);
    tell_seconds(p, "forward", "", taken[0], loop[0], r);
    if (!p->inference) tell_seconds(p, "backward", "backward_", taken[1], loop[1], r);
}

static void tell(const cli_plan *p, const subject *s, const dpcr_recurrent_plan *made, double seconds, cli_result *r) {
    const dpcr_recurrent_options *o = dpcr_recurrent_get_options(s->network);
    const size_t workspace = dpcr_recurrent_plan_workspace(made), tape = dpcr_recurrent_plan_tape(made);
    cli_plan_set_shape(r, dpcr_recurrent_kind_name(o->kind), s->x->shape[0], s->x->shape[1], o->hidden, o->dtype);
    cli_set_int(r, "inputs", o->inputs);
    cli_set_int(r, "layers", o->layers);
    cli_set_bool(r, "bidirectional", o->bidirectional != 0);
    cli_set_bool(r, "training", !p->inference);
    cli_set_text(r, "planning", dpcr_planning_name(p->solver.options.planning));
    cli_set_real(r, "planning_seconds", seconds);
    cli_set_int(r, "workspace_bytes", (json_int_t)workspace);
    cli_set_int(r, "tape_bytes", (json_int_t)tape);
    cli_say(&p->common, "%lld step%s, batch %lld, %lld input%s, %lld layer%s of %lld, %s\n", (long long)s->x->shape[0],
            cli_s(s->x->shape[0]), (long long)s->x->shape[1], (long long)o->inputs, cli_s(o->inputs),
            (long long)o->layers, cli_s(o->layers), (long long)o->hidden,
            p->weights ? "weights from the file" : "weights as PyTorch draws them");
    tell_chains(p, o, made, r);
    cli_say(&p->common, "memory: tape %.4g bytes, workspace %.4g; planned in %.3g s\n", (double)tape, (double)workspace,
            seconds);
}

static int make_plan(const cli_plan *p, const subject *s, cli_result *r) {
    const dpcr_recurrent_pass sample = {.size = sizeof sample, .x = *s->x};
    const dpcr_recurrent_plan_options options = {.size = sizeof options,
                                                 .length = s->x->shape[0],
                                                 .batch = s->x->shape[1],
                                                 .training = !p->inference,
                                                 .solve = p->solver.options,
                                                 .sample = &sample};
    dpcr_recurrent_plan *made = NULL;
    dpcr_error error = {0};
    const double before = cli_now();
    if (dpcr_recurrent_plan_create(s->network, &options, &made, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_COMPUTING);
    tell(p, s, made, cli_now() - before, r);
    dpcr_recurrent_plan_destroy(made);
    return CLI_DONE;
}

int cli_plan_recurrent(dpcr_context *context, const cli_plan *p, cli_result *r) {
    subject s = {0};
    int status = p->input ? cli_array_read(context, "input", p->input, &s.file, &s.x) : CLI_DONE;
    if (!status) status = make_network(context, p, &s);
    if (!status) status = make_input(p, &s);
    if (!status) status = make_plan(p, &s, r);
    dpcr_recurrent_destroy(s.network);
    dpcr_tensors_free(context, &s.file);
    if (s.drawn.data) cli_array_destroy(&s.drawn);
    return status;
}
