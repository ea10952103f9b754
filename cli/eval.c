// SPDX-License-Identifier: MIT
// eval: loss and accuracy of a trained network on what was held out for tests.
#include <errno.h>
#include <string.h>

#include "sequences.h"
#include "vgg.h"

enum { KEY_LOAD = 0x6000, KEY_DATA, KEY_SPLIT, KEY_BATCH, KEY_LIMIT };

typedef struct eval {
    cli_common common;
    cli_solver solver;
    const char *load, *data, *split;
    int64_t batch, limit;
    bool batch_given;
} eval;

static const struct argp_option eval_options[] = {
    {"load", KEY_LOAD, "FILE", 0, "The network (safetensors); the same as MODEL", 0},
    {"data", KEY_DATA, "NAME|DIR|FILE", 0,
     "Images: fashion-mnist (default) or a folder of IDX or CIFAR-10 files; of a model of text: text (default) or a "
     "file; of recordings: speakers (default) or their folder; of bit streams: bitstream",
     0},
    {"split", KEY_SPLIT, "test|train", 0, "Which images, sequences or part of the text (default test)", 0},
    {"batch", KEY_BATCH, "B", 0, "Images or sequences at once (default 128)", 0},
    {"limit", KEY_LIMIT, "N", 0, "Only the first N images, sequences or characters", 0},
    {0},
};

static error_t read_split(const char *arg, const char **split) {
    static const char *const words[] = {"test", "train"};
    int index = 0;
    if (!cli_read_word("--split", arg, words, 2, &index)) return EINVAL;
    *split = index ? "train" : "t10k";
    return 0;
}

static error_t parse_eval(int key, char *arg, struct argp_state *state) {
    eval *e = state->input;
    switch (key) {
        case KEY_LOAD: e->load = arg; return 0;
        case KEY_DATA: e->data = arg; return 0;
        case KEY_SPLIT: return read_split(arg, &e->split);
        case KEY_BATCH:
            e->batch_given = true;
            return cli_read_int64("--batch", arg, 1, INT64_MAX, &e->batch) ? 0 : EINVAL;
        case KEY_LIMIT: return cli_read_int64("--limit", arg, 1, INT64_MAX, &e->limit) ? 0 : EINVAL;
        default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp eval_argp = {eval_options, parse_eval, NULL, NULL, NULL, NULL, NULL};

// The network's chain on the processor, or over parameters' places on a device.
typedef struct chain {
    dpcr_steps steps;
    dpcr_array parameters;
    dpcr_device_model *there;
} chain;

static dpcr_status make_chain(dpcr_model *model, int64_t batch, dpcr_device device, chain *c, dpcr_error *error) {
    int64_t count = 0;
    const dpcr_dtype dtype = dpcr_model_get_options(model)->dtype;
    c->steps.size = sizeof c->steps;
    if (device.type != DPCR_CUDA) return dpcr_model_steps(model, batch, &c->steps, error);
    dpcr_model_vector(model, &count);
    c->parameters = dpcr_array_make(NULL, dtype, 1, &count);
    c->parameters.device = device;
    dpcr_status status =
        dpcr_device_allocate(device, (size_t)count * dpcr_dtype_size(dtype), &c->parameters.data, error);
    if (status == DPCR_OK) status = dpcr_device_model_create(model, batch, &c->parameters, NULL, &c->there, error);
    return status == DPCR_OK ? dpcr_device_model_steps(c->there, &c->steps, error) : status;
}

// What the planner says to this network at this batch, forward alone; devices take no other way back than their own.
static int set_plan(dpcr_context *context, const eval *e, dpcr_model *model, int64_t batch, cli_result *r) {
    chain c = {0};
    dpcr_solve_plan *plan = NULL;
    dpcr_error error = {0};
    dpcr_solve_options options = e->solver.options;
    if (options.device.type != DPCR_CUDA) options.backward = DPCR_SCHEME_SEQUENTIAL;
    if (dpcr_model_get_options(model)->layers == 0) return CLI_DONE;
    dpcr_status status = make_chain(model, batch, options.device, &c, &error);
    if (status == DPCR_OK) status = dpcr_solve_plan_create(context, &c.steps, &options, &plan, &error);
    if (status == DPCR_OK) {
        const char *const method = dpcr_method_name(dpcr_solve_plan_method(plan));
        char named[64];
        snprintf(named, sizeof named, "%s: as asked", method);
        const bool planned = options.device.type == DPCR_CUDA || options.method == DPCR_METHOD_AUTO;
        cli_set_text(r, "method", method);
        cli_set_text(r, "sentence", planned ? dpcr_solve_plan_sentence(plan) : named);
    }
    dpcr_solve_plan_destroy(plan);
    dpcr_device_model_destroy(c.there);
    dpcr_device_release(options.device, c.parameters.data);
    return status == DPCR_OK ? CLI_DONE : cli_fail_error(&error, CLI_COMPUTING);
}

static int evaluate(dpcr_context *context, const eval *e, dpcr_model *model, const dpcr_dataset *data) {
    const dpcr_model_options *o = dpcr_model_get_options(model);
    double loss = 0, accuracy = 0;
    dpcr_reason reason = DPCR_REASON_SEQUENTIAL;
    dpcr_error error = {0};
    cli_result r = cli_result_create();
    const int64_t batch = e->batch < data->count ? e->batch : data->count;
    // The plan first, wherever it is to run: what cannot be planned is refused there as a matter of usage, so that an
    // unsupported evaluation is one that did not converge, and a wrong argument is data that do not fit.
    int status = set_plan(context, e, model, batch, &r);
    const double start = cli_now();
    if (!status &&
        dpcr_evaluate(context, model, data, e->batch, &e->solver.options, &loss, &accuracy, &reason, &error) != DPCR_OK)
        status = error.status == DPCR_ERROR_UNSUPPORTED ? cli_fail(CLI_UNCONVERGED, "%s", error.text)
                 : error.status == DPCR_ERROR_ARGUMENT  ? cli_fail(CLI_INPUT, "%s", error.text)
                                                        : cli_fail_error(&error, CLI_COMPUTING);
    const double seconds = cli_now() - start;
    const bool train = !strcmp(e->split, "train");
    if (!status) {
        cli_set_real(&r, train ? "train_accuracy" : "test_accuracy", accuracy);
        cli_set_real(&r, train ? "train_loss" : "test_loss", loss);
        cli_set_text(&r, "reason", dpcr_reason_name(reason));
        cli_set_int(&r, "images", data->count);
        cli_set_real(&r, "seconds", seconds);
        cli_set_real(&r, "images_per_second", seconds > 0 ? (double)data->count / seconds : 0);
        cli_set_text(&r, "network", cli_architecture_name(o->architecture));
        cli_set_int(&r, "layers", o->layers);
        cli_set_int(&r, "width", o->width);
        cli_set_text(&r, "dtype", dpcr_dtype_name(o->dtype));
        cli_say(&e->common, "%s accuracy %.2f %%, loss %.4f; %lld image%s in %.3g s%s\n", train ? "train" : "test",
                100 * accuracy, loss, (long long)data->count, cli_s(data->count), seconds, cli_in_order(reason));
        status = cli_finish(&e->common, &r, CLI_DONE);
    }
    cli_result_destroy(&r);
    return status;
}

typedef enum kind { NETWORK = 0, SEQUENCE, VGG, CODES, NOISE } kind;

static bool kind_is(const dpcr_tensors *file, const char *wanted) {
    const char *found = dpcr_tensors_metadata(file, "deeppcr.kind");
    return found && !strcmp(found, wanted);
}

// Models of sequences, VGG-11s and the networks of diffusion say so in their metadata.
static kind kind_of(dpcr_context *context, const char *path) {
    dpcr_tensors file = {0};
    const bool read = dpcr_safetensors_read(context, path, &file, NULL) == DPCR_OK;
    const kind found = !read                                             ? NETWORK
                       : vgg_is(&file)                                   ? VGG
                       : kind_is(&file, "vae")                           ? CODES
                       : kind_is(&file, "denoiser")                      ? NOISE
                       : dpcr_tensors_metadata(&file, "deeppcr.readout") ? SEQUENCE
                                                                         : NETWORK;
    dpcr_tensors_free(context, &file);
    return found;
}

static int run_sequence(dpcr_context *context, const eval *e) {
    const cli_eval_sequence sequence = {.common = &e->common,
                                        .solver = &e->solver,
                                        .load = e->load,
                                        .data = e->data,
                                        .split = !strcmp(e->split, "train") ? "train" : "test",
                                        .limit = e->limit,
                                        .batch = e->batch,
                                        .batch_given = e->batch_given};
    return cli_eval_sequence_run(context, &sequence);
}

// Its layers run in order, on processors.
static bool settle_vgg(const eval *e) {
    static const char *const none[] = {NULL};
    if (e->solver.options.device.type == DPCR_CUDA)
        return cli_fail(CLI_USAGE, "--device %.20s: '%s' is a VGG-11, which is evaluated on processors",
                        e->common.device_given, e->load),
               false;
    return cli_solver_only(&e->solver, "a VGG-11", none);
}

static int run(const eval *e) {
    int status = CLI_DONE;
    if (!cli_readable("the network", e->load)) return CLI_INPUT;
    const cli_file csv = {"--csv", e->common.csv},
                   read[] = {{"the network", e->load},
                             {"--data", cli_data_place(e->data ? e->data : CLI_FASHION_MNIST)}};
    if (!cli_spares(&csv, 1, read, 2)) return CLI_USAGE;
    dpcr_context *context = cli_context_create(&e->common, &status);
    if (!context) return status;
    const kind found = kind_of(context, e->load);
    if (found == CODES || found == NOISE)
        status =
            cli_fail(CLI_INPUT, "'%s' is a %s, which tells no classes: wanted a classifier or a model of sequences",
                     e->load, found == CODES ? "vae" : "denoiser");
    else if (found == VGG && !settle_vgg(e))
        status = CLI_USAGE;
    if (status) {
        dpcr_context_destroy(context);
        return status;
    }
    if (found != NETWORK) {
        status = found == SEQUENCE ? run_sequence(context, e)
                                   : vgg_eval(context, &e->common, e->load, e->data ? e->data : CLI_FASHION_MNIST,
                                              e->split, e->batch, e->limit);
        dpcr_context_destroy(context);
        return status;
    }
    dpcr_model *model = NULL;
    dpcr_dataset data = {0};
    dpcr_error error = {0};
    if (dpcr_model_load(context, e->load, &model, &error) != DPCR_OK)
        status = cli_fail_error(&error, CLI_READING);
    else if (dpcr_model_get_options(model)->outputs == 0)
        status = cli_fail(CLI_INPUT, "'%s' has no head that names classes", e->load);
    if (!status)
        status = cli_data_read(context, e->data ? e->data : CLI_FASHION_MNIST, e->split,
                               dpcr_model_get_options(model)->outputs, e->limit, &data);
    if (!status) {
        status = evaluate(context, e, model, &data);
        dpcr_dataset_free(context, &data);
    }
    dpcr_model_destroy(model);
    dpcr_context_destroy(context);
    return status;
}

int cli_verb_eval(int argc, char **argv) {
    eval e = {.common = CLI_COMMON_DEFAULTS, .solver = CLI_SOLVER_DEFAULTS, .split = "t10k", .batch = 128};
    const cli_syntax syntax = {.arguments = "[MODEL]",
                               .doc =
                                   "Tells loss and accuracy of a network that 'deeppcr train --save' has left, on what "
                                   "was held out for tests.",
                               .groups = {{&eval_argp, &e, "Evaluation:"},
                                          {&cli_solver_argp, &e.solver, "Solver:"},
                                          {&cli_common_argp, &e.common, "Output and resources:"}},
                               .most = 1};
    const char *positional[CLI_MAX_POSITIONAL];
    int status;
    e.common.serves_devices = true;
    if (!cli_parse(&syntax, argc, argv, positional, &status)) return status;
    cli_device_leave_auto(&e.common, "evaluations");
    e.solver.options.device = e.common.device;
    if (!cli_solver_fits(&e.solver, CLI_RUNS(e.solver.options.method), NULL, "eval goes forward alone"))
        return CLI_USAGE;
    if (positional[0] && e.load)
        return cli_fail(CLI_USAGE, "the network is named twice: '%.60s' and --load", positional[0]);
    if (positional[0]) e.load = positional[0];
    if (!e.load) return cli_fail(CLI_USAGE, "which network? wanted a safetensors file");
    return run(&e);
}
