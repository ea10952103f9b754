// SPDX-License-Identifier: MIT
// plan: what the planner would choose for a chain, and why.
#include <errno.h>
#include <string.h>

#include "problem.h"

enum { KEY_LENGTH = 0x4000, KEY_STRUCTURE };

typedef struct plan {
    cli_common common;
    cli_solver solver;
    cli_network network;
    dpcr_structure structure;
} plan;

static const struct argp_option plan_options[] = {
    {"length", KEY_LENGTH, "N", 0, "The same as --layers", 0},
    {"structure", KEY_STRUCTURE, "NAME", 0,
     "Of a linear chain: zero, identity, scalar, diagonal, block, dense (default)", 0},
    {0},
};

static error_t parse_plan(int key, char *arg, struct argp_state *state) {
    plan *p = state->input;
    switch (key) {
        case KEY_LENGTH: return cli_read_int64("--length", arg, 0, INT64_MAX, &p->network.options.layers) ? 0 : EINVAL;
        case KEY_STRUCTURE: return cli_read_structure("--structure", arg, &p->structure) ? 0 : EINVAL;
        default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp plan_argp = {plan_options, parse_plan, NULL, NULL, NULL, NULL, NULL};

static void set_shape(cli_result *r, const plan *p, const char *kind) {
    const dpcr_model_options *o = &p->network.options;
    cli_set_text(r, "chain", kind);
    cli_set_int(r, "length", o->layers);
    cli_set_int(r, "batch", p->network.batch);
    cli_set_int(r, "width", o->width);
    cli_set_text(r, "dtype", dpcr_dtype_name(o->dtype));
}

static int plan_linear(dpcr_context *context, const plan *p, cli_result *r) {
    const dpcr_model_options *o = &p->network.options;
    const int64_t block = p->structure == DPCR_BLOCK ? (p->solver.options.block ? p->solver.options.block : 2) : 0;
    const dpcr_chain_shape shape = {.size = sizeof shape,
                                    .length = o->layers,
                                    .batch = p->network.batch,
                                    .transition = dpcr_transition_square(p->structure, o->width, block),
                                    .dtype = o->dtype};
    const dpcr_chain_options options = {.size = sizeof options,
                                        .scheme = p->solver.options.scheme,
                                        .chunk = p->solver.options.chunk,
                                        .warm_up = p->solver.options.warm_up,
                                        .max_sweeps = p->solver.options.max_sweeps};
    dpcr_chain_plan *made = NULL;
    dpcr_error error = {0};
    if (dpcr_chain_plan_create(context, &shape, &options, &made, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_COMPUTING);
    set_shape(r, p, "linear");
    cli_set_text(r, "structure", dpcr_structure_name(p->structure));
    cli_set_text(r, "scheme", dpcr_scheme_name(dpcr_chain_plan_scheme(made)));
    cli_set_int(r, "workspace_bytes", (json_int_t)dpcr_chain_plan_workspace(made));
    cli_set_text(r, "sentence", dpcr_chain_plan_sentence(made));
    cli_say(&p->common, "%s\nworkspace %zu bytes\n", dpcr_chain_plan_sentence(made), dpcr_chain_plan_workspace(made));
    dpcr_chain_plan_destroy(made);
    return CLI_DONE;
}

static void set_plan(cli_result *r, const plan *p, const char *kind, const dpcr_steps *steps,
                     const dpcr_solve_plan *made) {
    set_shape(r, p, kind);
    cli_set_text(r, "structure", dpcr_structure_name(steps->jacobian.structure));
    cli_set_text(r, "method", dpcr_method_name(dpcr_solve_plan_method(made)));
    cli_set_text(r, "backward", dpcr_scheme_name(dpcr_solve_plan_backward(made)));
    cli_set_int(r, "workspace_bytes", (json_int_t)dpcr_solve_plan_workspace(made));
    cli_set_real(r, "step_flops", steps->flops);
    cli_set_real(r, "jacobian_flops", steps->jacobian_flops);
    cli_set_text(r, "sentence", dpcr_solve_plan_sentence(made));
    cli_say(&p->common, "%s\nmethod %s, backward %s, workspace %zu bytes\n", dpcr_solve_plan_sentence(made),
            dpcr_method_name(dpcr_solve_plan_method(made)), dpcr_scheme_name(dpcr_solve_plan_backward(made)),
            dpcr_solve_plan_workspace(made));
}

static int plan_steps(dpcr_context *context, const plan *p, const char *kind, cli_result *r) {
    int status = CLI_DONE;
    const bool map = cli_map_known(kind);
    dpcr_model *model = map ? NULL : cli_model_create(context, &p->network, p->common.seed, &status);
    if (status) return status;
    dpcr_steps steps = {.size = sizeof steps};
    dpcr_solve_plan *made = NULL;
    dpcr_error error = {0};
    if (map) steps = cli_map_steps(kind, p->network.options.layers, p->network.batch);
    if ((!map && dpcr_model_steps(model, p->network.batch, &steps, &error) != DPCR_OK) ||
        dpcr_solve_plan_create(context, &steps, &p->solver.options, &made, &error) != DPCR_OK)
        status = cli_fail_error(&error, CLI_COMPUTING);
    else
        set_plan(r, p, kind, &steps, made);
    dpcr_solve_plan_destroy(made);
    dpcr_model_destroy(model);
    return status;
}

static int run(plan *p, const char *kind) {
    int status = CLI_DONE;
    const bool linear = kind && !strcmp(kind, "linear"), map = kind && cli_map_known(kind);
    if (!linear && !map && !cli_read_architecture(kind, ", linear, lorenz, logistic", &p->network.options.architecture))
        return CLI_USAGE;
    if (map) p->network.options.width = cli_map_width(kind);
    if (map) p->network.options.dtype = DPCR_F64;
    if (!p->network.options.dtype) p->network.options.dtype = DPCR_F32;
    dpcr_context *context = cli_context_create(&p->common, &status);
    if (!context) return status;
    cli_result r = cli_result_create();
    status = linear ? plan_linear(context, p, &r) : plan_steps(context, p, kind, &r);
    if (!status) status = cli_finish(&p->common, &r, CLI_DONE);
    cli_result_destroy(&r);
    dpcr_context_destroy(context);
    return status;
}

int cli_verb_plan(int argc, char **argv) {
    plan p = {.common = CLI_COMMON_DEFAULTS,
              .solver = CLI_SOLVER_DEFAULTS,
              .network = {.options = {.layers = 1024, .width = 32}, .gain = 1, .batch = 128},
              .structure = DPCR_DENSE};
    const cli_syntax syntax = {.arguments = "mlp|resnet|linear|lorenz|logistic",
                               .doc =
                                   "Tells which method and scheme would run for a chain on this machine, and why, "
                                   "without running it. Defaults: "
                                   "1024 layers (or steps), width 32, batch 128, float32.",
                               .groups = {{&plan_argp, &p, "Chain:"},
                                          {&cli_network_argp, &p.network, "Network:"},
                                          {&cli_solver_argp, &p.solver, "Solver:"},
                                          {&cli_common_argp, &p.common, "Output and resources:"}},
                               .most = 1};
    const char *positional[CLI_MAX_POSITIONAL];
    int status;
    if (!cli_parse(&syntax, argc, argv, positional, &status)) return status;
    return run(&p, positional[0]);
}
