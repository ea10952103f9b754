// SPDX-License-Identifier: MIT
// convert MODEL.onnx OUT.safetensors: the RNN, GRU or LSTM nodes of an ONNX model, with PyTorch's names and gate order,
// for 'solve rnn|rnn-relu|gru|lstm --weights'.
// convert RECORDING OUT.npy: its MFCC features, as 'train rnn|gru|lstm' computes them.
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "recordings.h"

enum { KEY_NODE = 0x6000 };

typedef struct conversion {
    cli_common common;
    cli_features features;
    const char *node, *model, *output;
} conversion;

static const struct argp_option convert_options[] = {
    {"node", KEY_NODE, "NAME", 0,
     "This node alone: its name, or its first output's where it has none (default: all, as layers of one network)", 0},
    {0},
};

static error_t parse_convert(int key, char *arg, struct argp_state *state) {
    conversion *c = state->input;
    if (key != KEY_NODE) return ARGP_ERR_UNKNOWN;
    c->node = arg;
    return 0;
}

static const struct argp convert_argp = {convert_options, parse_convert, NULL, NULL, NULL, NULL, NULL};

static int64_t count_layers(const dpcr_tensors *tensors) {
    char name[64];
    int64_t layers = 0;
    do snprintf(name, sizeof name, "weight_hh_l%lld", (long long)++layers);
    while (dpcr_tensors_find(tensors, name));
    return layers;
}

// Told where they are not what PyTorch has.
static const struct {
    const char *key, *name;
} variants[] = {{"onnx.direction", "direction"},
                {"onnx.linear_before_reset", "linear_before_reset"},
                {"onnx.input_forget", "input_forget"},
                {"onnx.clip", "clip"}};

static int tell(const conversion *c, const dpcr_tensors *tensors) {
    const dpcr_array *ih = &dpcr_tensors_find(tensors, "weight_ih_l0")->array,
                     *hh = &dpcr_tensors_find(tensors, "weight_hh_l0")->array;
    const char *kind = dpcr_tensors_metadata(tensors, "deeppcr.recurrent"),
               *layout = dpcr_tensors_metadata(tensors, "onnx.layout");
    const bool both = dpcr_tensors_find(tensors, "weight_hh_l0_reverse") != NULL;
    const int64_t layers = count_layers(tensors);
    cli_result result = cli_result_create();
    cli_set_text(&result, "kind", kind);
    cli_set_text(&result, "dtype", dpcr_dtype_name(ih->dtype));
    cli_set_int(&result, "inputs", ih->shape[1]);
    cli_set_int(&result, "hidden", hh->shape[1]);
    cli_set_int(&result, "layers", layers);
    cli_set_bool(&result, "bidirectional", both);
    cli_set_bool(&result, "bias", dpcr_tensors_find(tensors, "bias_ih_l0") != NULL);
    cli_set_int(&result, "layout", layout[0] - '0');
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        const char *value = dpcr_tensors_metadata(tensors, variants[i].key);
        if (value) cli_set_text(&result, variants[i].name, value);
    }
    cli_set_bool(&result, "peepholes", dpcr_tensors_find(tensors, "weight_ch_l0") != NULL);
    cli_set_text(&result, "output", c->output);
    cli_say(&c->common,
            "%s, %lld layer%s%s, inputs %lld, hidden %lld, %s, in %s: 'deeppcr solve %s --weights' runs it\n", kind,
            (long long)layers, layers > 1 ? "s" : "", both ? ", both directions" : "", (long long)ih->shape[1],
            (long long)hh->shape[1], dpcr_dtype_name(ih->dtype), c->output, kind);
    const int status = cli_finish(&c->common, &result, CLI_DONE);
    cli_result_destroy(&result);
    return status;
}

// Set where what is written is a file that the model's weights lie in.
typedef struct overlap {
    cli_file written[2];
    const cli_file *found;
} overlap;

static void compare(void *state, const char *file) {
    overlap *o = state;
    for (int i = 0; i < 2; i++)
        if (o->written[i].path && cli_is_one_file(file, o->written[i].path)) o->found = &o->written[i];
}

// Model.onnx* in a shell is the model and the file beside it.
static int spare_weights(dpcr_context *context, const conversion *c) {
    overlap o = {.written = {{"the output", c->output}, {"--csv", c->common.csv}}};
    dpcr_error error = {0};
    if (dpcr_onnx_external_files(context, c->model, compare, &o, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_READING);
    if (!o.found) return CLI_DONE;
    return cli_fail(CLI_USAGE, "'%s' holds the model's weights and is to be written over (%s): wanted another name",
                    o.found->path, o.found->option);
}

static int run(dpcr_context *context, const conversion *c) {
    dpcr_error error = {0};
    dpcr_tensors tensors = {0};
    int status = CLI_DONE;
    if (strcmp(c->model, "-") != 0 && !cli_readable("the model", c->model)) return CLI_INPUT;
    struct stat info;  // a pipe is read once, and has no file beside it
    const bool beside = stat(c->model, &info) == 0 && S_ISREG(info.st_mode);
    const bool over = access(c->output, F_OK) == 0 || (c->common.csv && access(c->common.csv, F_OK) == 0);
    if (beside && over && (status = spare_weights(context, c))) return status;
    if (dpcr_onnx_read_recurrent(context, c->model, c->node, &tensors, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_READING);
    if (dpcr_safetensors_write(c->output, &tensors, &error) != DPCR_OK)
        status = cli_fail_error(&error, CLI_WRITING);
    else
        status = tell(c, &tensors);
    dpcr_tensors_free(context, &tensors);
    return status;
}

static int convert_sound(conversion *c) {
    dpcr_array x = {0}, features = {0};
    int rate = 0, status = cli_sound_read(c->model, &x, &rate);
    if (status) return status;
    status = cli_sound_check(c->model, &x);
    if (!status) status = cli_features_settle(&c->features, rate);
    if (!status) status = cli_features_of(&c->features, &x, rate, &features);
    cli_array_destroy(&x);
    if (status) return status;
    status = cli_array_write(c->output, "features", &features);
    cli_result r = cli_result_create();
    cli_set_int(&r, "frames", features.shape[0]);
    cli_set_int(&r, "features", features.shape[1]);
    cli_set_int(&r, "rate_hertz", rate);
    cli_set_int(&r, "frame", c->features.frame);
    cli_set_int(&r, "hop", c->features.hop);
    cli_set_int(&r, "coefficients", c->features.coefficients);
    cli_set_text(&r, "output", c->output);
    if (!status)
        cli_say(&c->common, "%lld frame%s of %lld feature%s in %s\n", (long long)features.shape[0],
                cli_s(features.shape[0]), (long long)features.shape[1], cli_s(features.shape[1]), c->output);
    if (!status) status = cli_finish(&c->common, &r, CLI_DONE);
    cli_result_destroy(&r);
    cli_array_destroy(&features);
    return status;
}

// Whoever wants an array of what is no recording by its name may have meant one.
static bool place_weights(const conversion *c) {
    char output[160];
    snprintf(output, sizeof output, "'%.60s' is no recording by its name (.wav, .flac, ...); of a model the output",
             c->model);
    return cli_safetensors_name(output, c->output);
}

static int refuse(conversion *c) {
    if (!c->model || !c->output)
        return cli_fail(CLI_USAGE, "wanted MODEL.onnx and OUT.safetensors, or RECORDING and OUT.npy");
    if (c->features.given && !cli_sound_name(c->model))
        return cli_fail(CLI_USAGE, "--frame, --hop, --coefficients and --seconds are for recordings");
    if (c->node && cli_sound_name(c->model)) return cli_fail(CLI_USAGE, "--node is for ONNX models");
    if (cli_sound_name(c->model)) {
        if (!cli_array_place(c->output)) return CLI_USAGE;
        if (cli_sound_name(c->output))
            return cli_fail(CLI_USAGE, "'%s': the features of a recording are written as .npy or .npz", c->output);
    }
    if (!cli_sound_name(c->model) && !place_weights(c)) return CLI_USAGE;
    const cli_file files[] = {{"the input", c->model}, {"the output", c->output}, {"--csv", c->common.csv}};
    if (!cli_stdout_share(&c->common, files + 1, 2)) return CLI_USAGE;
    if (!cli_is_stdout(c->output) && !cli_writable("the output", c->output)) return CLI_RESOURCES;
    return cli_distinct(files, 3) ? CLI_DONE : CLI_USAGE;
}

int cli_verb_convert(int argc, char **argv) {
    conversion c = {.common = CLI_COMMON_DEFAULTS};  // of recordings, all seconds
    const cli_syntax syntax = {
        .arguments = "MODEL.onnx OUT.safetensors\nRECORDING OUT.npy",
        .doc =
            "Reads the RNN, GRU and LSTM nodes of an ONNX model and writes their weights with PyTorch's names and "
            "order "
            "of gates, for 'deeppcr solve rnn|rnn-relu|gru|lstm'; or a recording, and writes its mel-frequency "
            "cepstral "
            "coefficients [frames][features].\vSolve takes x [T][B][I] and h0, c0 "
            "[layers directions][B][H]: of a model with layout 1, exchange the first two axes. 'layout' is kept in the "
            "file's metadata. '-' is standard output, and of a model standard input: a recording is known by its name.",
        .groups = {{&convert_argp, &c, "Model:"},
                   {&cli_features_argp, &c.features, "Recording:"},
                   {&cli_common_argp, &c.common, "Output and resources:"}},
        .most = 2};
    const char *positional[CLI_MAX_POSITIONAL] = {0};
    int status;
    if (!cli_parse(&syntax, argc, argv, positional, &status)) return status;
    c.model = positional[0];
    c.output = positional[1];
    if ((status = refuse(&c))) return status;
    dpcr_context *context = cli_context_create(&c.common, &status);
    if (!context) return status;
    status = cli_sound_name(c.model) ? convert_sound(&c) : run(context, &c);
    dpcr_context_destroy(context);
    return status;
}
