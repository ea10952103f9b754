// SPDX-License-Identifier: MIT
// schedule profile mlp|resnet: times and bytes of our own network layer by layer, as the JSON that --profile reads.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "problem.h"
#include "schedule.h"

enum { KEY_GROUP = 0x5000, KEY_WORKERS, KEY_OUT, KEY_INPUTS, KEY_OUTPUTS };

typedef struct profiling {
    cli_common common;
    cli_network network;
    int64_t group, workers;
    const char *out;
} profiling;

static const struct argp_option profile_options[] = {
    {"group", KEY_GROUP, "N", 0, "Steps a layer of the profile (default: as many as make at most 64)", 0},
    {"workers", KEY_WORKERS, "N", 0, "Threads that do the same at once, as a pipeline's ranks do (default 1)", 0},
    {"inputs", KEY_INPUTS, "N", 0, "Pixels of an image (default 784; 0: no encoder)", 0},
    {"outputs", KEY_OUTPUTS, "N", 0, "Classes (default 10; 0: no head)", 0},
    {"out", KEY_OUT, "FILE", 0, "Write the profile there ('-': standard output, as with --json)", 0},
    {0},
};

static error_t parse_profile(int key, char *arg, struct argp_state *state) {
    profiling *p = state->input;
    dpcr_model_options *o = &p->network.options;
    switch (key) {
        case KEY_GROUP: return cli_read_int64("--group", arg, 1, INT64_MAX, &p->group) ? 0 : EINVAL;
        case KEY_INPUTS: return cli_read_int64("--inputs", arg, 0, INT32_MAX, &o->inputs) ? 0 : EINVAL;
        case KEY_OUTPUTS: return cli_read_int64("--outputs", arg, 0, 256, &o->outputs) ? 0 : EINVAL;
        case KEY_WORKERS: return cli_read_int64("--workers", arg, 1, 1024, &p->workers) ? 0 : EINVAL;
        case KEY_OUT: p->out = arg; return 0;
        default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp profile_argp = {profile_options, parse_profile, NULL, NULL, NULL, NULL, NULL};

static json_t *layers_of(const dpcr_profile *profile) {
    json_t *layers = json_array();
    for (int64_t l = 0; layers && l < profile->layers; l++)
        cli_append(&layers, json_pack("{ss sf sf sf sf sf}", "name", profile->names[l], "forward", profile->forward[l],
                                      "input", profile->input[l], "weight", profile->weight[l], "activation_bytes",
                                      profile->activation_bytes[l], "parameter_bytes", profile->parameter_bytes[l]));
    return layers;
}

static int write_profile(const profiling *p, const cli_result *r) {
    char *text = r->failed ? NULL : cli_json_line(r->object, JSON_INDENT(2));
    if (!text) return cli_fail_memory("the profile");
    const int status = cli_write_file(p->out, text, strlen(text));
    free(text);
    return status;
}

// A line a layer.
static int write_csv(const cli_common *common, const dpcr_profile *x) {
    cli_buffer text;
    FILE *out = cli_buffer_open(&text);
    if (!out) return cli_fail_memory("the CSV table");
    fputs("layer,forward,input,weight,activation_bytes,parameter_bytes\n", out);
    for (int64_t l = 0; l < x->layers; l++)
        fprintf(out, "%s,%.17g,%.17g,%.17g,%.17g,%.17g\n", x->names[l], x->forward[l], x->input[l], x->weight[l],
                x->activation_bytes[l], x->parameter_bytes[l]);
    return cli_buffer_save(&text, "the CSV table", common->csv);
}

static void say_profile(const cli_common *common, const dpcr_profile *x) {
    cli_say(common, "%-20s %12s %12s %12s %14s %14s\n", "layer", "forward us", "input us", "weight us", "activation B",
            "parameters B");
    for (int64_t l = 0; l < x->layers; l++)
        cli_say(common, "%-20s %12.3f %12.3f %12.3f %14.0f %14.0f\n", x->names[l], 1e6 * x->forward[l],
                1e6 * x->input[l], 1e6 * x->weight[l], x->activation_bytes[l], x->parameter_bytes[l]);
}

static int measure(const profiling *p, dpcr_context *context, const dpcr_model *model) {
    dpcr_error error = {0};
    dpcr_profile profile;
    if (dpcr_profile_measure(context, model, p->network.batch, p->group, p->workers, &profile, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_COMPUTING);
    const dpcr_model_options *o = dpcr_model_get_options(model);
    cli_result r = cli_result_create();
    cli_set_text(&r, "network", cli_architecture_name(o->architecture));
    cli_set_int(&r, "steps", o->layers);
    cli_set_int(&r, "width", o->width);
    cli_set_int(&r, "rows", p->network.batch);
    cli_set_int(&r, "workers", p->workers);
    cli_set_text(&r, "unit", "seconds");
    cli_set(&r, "layers", layers_of(&profile));
    const bool to_stdout = cli_is_stdout(p->out);
    int status = CLI_DONE;
    if (p->out) status = write_profile(p, &r);
    if (!status && p->common.csv) status = write_csv(&p->common, &profile);
    if (!status && !to_stdout && p->common.json) status = cli_print_json(&r);
    if (!status && !to_stdout) say_profile(&p->common, &profile);
    cli_result_destroy(&r);
    dpcr_profile_free(context, &profile);
    return status;
}

int cli_schedule_measure(int argc, char **argv) {
    profiling p = {
        .common = CLI_COMMON_DEFAULTS,
        .workers = 1,
        .network = {.options = {.layers = 64, .width = 32, .inputs = 784, .outputs = 10}, .gain = 1, .batch = 32}};
    const cli_syntax syntax = {
        .arguments = "mlp|resnet",
        .doc =
            "Times of forward, input gradient and weight gradient of a network's layers on a microbatch of --batch "
            "rows (default 32; 64 layers, width 32), in seconds, with their bytes: the JSON that --profile "
            "reads.\vOne thread, as a rank of a pipeline runs them; the encoder, groups of steps, and the head with "
            "the loss.",
        .groups = {{&profile_argp, &p, "Profile:"},
                   {&cli_network_argp, &p.network, "Network:"},
                   {&cli_common_argp, &p.common, "Output and resources:"}},
        .most = 1};
    const char *positional[CLI_MAX_POSITIONAL];
    int status;
    if (!cli_parse(&syntax, argc, argv, positional, &status)) return status;
    if (!cli_read_architecture(positional[0], "", &p.network.options.architecture)) return CLI_USAGE;
    const cli_file written[] = {{"--out", p.out}, {"--csv", p.common.csv}};
    if (!cli_distinct(written, 2)) return CLI_USAGE;
    if (cli_is_stdout(p.out) && cli_is_stdout(p.common.csv))
        return cli_fail(CLI_USAGE, "--out and --csv both want standard output");
    if (p.out && !cli_is_stdout(p.out) && !cli_writable("the profile", p.out)) return CLI_RESOURCES;
    dpcr_context *context = cli_context_create(&p.common, &status);
    if (!context) return status;
    dpcr_model *model = cli_model_create(context, &p.network, p.common.seed, &status);
    if (model) status = measure(&p, context, model);
    dpcr_model_destroy(model);
    dpcr_context_destroy(context);
    return status;
}
