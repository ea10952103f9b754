// SPDX-License-Identifier: MIT
// solve biquads: a cascade of biquads over signals of npy and sound files, in SciPy's layouts.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

enum { KEY_SOS = 0x6000, KEY_INPUT, KEY_OUTPUT, KEY_ZI, KEY_FINAL };

typedef struct biquads {
    cli_common common;
    const char *sos, *input, *output, *zi, *final;
} biquads;

static const struct argp_option biquad_options[] = {
    {"sos", KEY_SOS, "FILE.npy", 0, "Sections [n][6]: b0 b1 b2 a0 a1 a2, as SciPy designs them (output='sos')", 0},
    {"input", KEY_INPUT, "FILE", 0,
     "Signals [samples] or [channels][samples]: npy, 'FILE.npz:NAME', '-', or a sound such as .wav", 0},
    {"output", KEY_OUTPUT, "FILE", 0,
     "What comes out, in the input's shape and type: .npy, .npz, '-', or, of a sound, .wav, .flac, .aiff, .au", 0},
    {"zi", KEY_ZI, "FILE.npy", 0, "States that go in, [n][2], or [n][channels][2] of several (default 0)", 0},
    {"final", KEY_FINAL, "FILE", 0, "States that come out, in the same shape, float64: the next piece's --zi", 0},
    {0},
};

static error_t parse_biquads(int key, char *arg, struct argp_state *state) {
    biquads *b = state->input;
    switch (key) {
        case KEY_SOS: b->sos = arg; return 0;
        case KEY_INPUT: b->input = arg; return 0;
        case KEY_OUTPUT: b->output = arg; return 0;
        case KEY_ZI: b->zi = arg; return 0;
        case KEY_FINAL: b->final = arg; return 0;
        default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp biquad_argp = {biquad_options, parse_biquads, NULL, NULL, NULL, NULL, NULL};

// ---- what it works on ----

typedef struct work {
    dpcr_context *context;
    dpcr_filter *filter;
    dpcr_tensors files[3];
    const dpcr_array *input;  // as the file has it
    dpcr_array sound, y;      // made here: the sound [samples][channels], and what comes out
    dpcr_array zi, zf;        // [channels][n][2]
    int rate;
    int64_t channels, length;
    double seconds;
} work;

static int wrong(const char *what, const dpcr_array *array, const char *wanted) {
    char text[128] = "no dimensions";
    size_t at = 0;
    for (int i = 0; i < array->ndim && at < sizeof text; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "[%lld]", (long long)array->shape[i]);
    return cli_fail(CLI_INPUT, "%s has shape %s of %s: wanted %s", what, text, dpcr_dtype_name(array->dtype), wanted);
}

static bool floating(const dpcr_array *array) { return array->dtype == DPCR_F32 || array->dtype == DPCR_F64; }

static int read_sections(const biquads *b, work *w) {
    const dpcr_array *sos = NULL;
    dpcr_error error = {0};
    int status = cli_array_read(w->context, "sos", b->sos, &w->files[0], &sos);
    if (status) return status;
    if (sos->ndim != 2 || sos->shape[0] < 1 || sos->shape[1] != 6 || !floating(sos))
        return wrong("--sos", sos, "[n][6] of float32 or float64");
    const int64_t count = sos->shape[0] * 6;
    double *values = malloc((size_t)count * sizeof *values);
    if (!values) return cli_fail_memory("the sections");
    for (int64_t i = 0; i < count; i++) values[i] = cli_array_get(sos, i);
    if (dpcr_filter_create_sos(w->context, sos->shape[0], values, &w->filter, &error) != DPCR_OK)
        status = error.status == DPCR_ERROR_ARGUMENT ? cli_fail(CLI_INPUT, "'%s': %s", b->sos, error.text)
                                                     : cli_fail_error(&error, CLI_READING);
    free(values);
    return status;
}

static int read_signals(const biquads *b, work *w) {
    if (cli_sound_name(b->input)) {
        const int status = cli_sound_read(b->input, &w->sound, &w->rate);
        if (status) return status;
        w->input = &w->sound;
        w->length = w->sound.shape[0], w->channels = w->sound.shape[1];
    } else {
        const int status = cli_array_read(w->context, "input", b->input, &w->files[1], &w->input);
        if (status) return status;
        if (w->input->ndim < 1 || w->input->ndim > 2 || !floating(w->input))
            return wrong("--input", w->input, "[samples] or [channels][samples] of float32 or float64");
        w->length = w->input->shape[w->input->ndim - 1];
        w->channels = w->input->ndim == 2 ? w->input->shape[0] : 1;
    }
    return cli_array_create(w->input->dtype, w->input->ndim, w->input->shape, &w->y) ? CLI_DONE : CLI_RESOURCES;
}

// SciPy's states are [n][2], or [n][channels][2] of signals in two dimensions; ours [channels][n][2].
static bool one_signal(const work *w) { return w->input->ndim == 1 || (w->rate && w->channels == 1); }

static int64_t state_place(const work *w, int64_t channel, int64_t section) {
    return (channel * dpcr_filter_sections(w->filter) + section) * 2;
}

static int read_states(const biquads *b, work *w) {
    const int64_t n = dpcr_filter_sections(w->filter), shape[] = {w->channels, n, 2};
    const dpcr_array *zi = NULL;
    if (!cli_array_create(DPCR_F64, 3, shape, &w->zi) || !cli_array_create(DPCR_F64, 3, shape, &w->zf))
        return CLI_RESOURCES;
    if (!b->zi) return CLI_DONE;
    const int status = cli_array_read(w->context, "zi", b->zi, &w->files[2], &zi);
    if (status) return status;
    char wanted[96];
    if (one_signal(w))
        snprintf(wanted, sizeof wanted, "[%lld][2] of float32 or float64", (long long)n);
    else
        snprintf(wanted, sizeof wanted, "[%lld][%lld][2] of float32 or float64", (long long)n, (long long)w->channels);
    const bool pair = one_signal(w) && zi->ndim == 2 && zi->shape[0] == n && zi->shape[1] == 2;
    const bool each = zi->ndim == 3 && zi->shape[0] == n && zi->shape[1] == w->channels && zi->shape[2] == 2;
    if (!(pair || each) || !floating(zi)) return wrong("--zi", zi, wanted);
    for (int64_t s = 0; s < n; s++)
        for (int64_t c = 0; c < w->channels; c++)
            for (int64_t i = 0; i < 2; i++)
                cli_array_set(&w->zi, state_place(w, c, s) + i, cli_array_get(zi, (s * w->channels + c) * 2 + i));
    return CLI_DONE;
}

static int write_states(const biquads *b, const work *w) {
    const int64_t n = dpcr_filter_sections(w->filter);
    const int64_t pair[] = {n, 2}, each[] = {n, w->channels, 2};
    dpcr_array out = {0};
    if (!b->final) return CLI_DONE;
    if (!cli_array_create(DPCR_F64, one_signal(w) ? 2 : 3, one_signal(w) ? pair : each, &out)) return CLI_RESOURCES;
    for (int64_t s = 0; s < n; s++)
        for (int64_t c = 0; c < w->channels; c++)
            for (int64_t i = 0; i < 2; i++)
                cli_array_set(&out, (s * w->channels + c) * 2 + i, cli_array_get(&w->zf, state_place(w, c, s) + i));
    const int status = cli_array_write(b->final, "zi", &out);
    cli_array_destroy(&out);
    return status;
}

// [channels][samples], wherever the file has them.
static dpcr_array signals_of(const work *w, const dpcr_array *array) {
    dpcr_array view = dpcr_array_make(array->data, array->dtype, 2, (const int64_t[]){w->channels, w->length});
    if (w->rate) view.strides[0] = 1, view.strides[1] = w->channels;
    return view;
}

static int filter_signals(work *w) {
    const dpcr_array x = signals_of(w, w->input), y = signals_of(w, &w->y);
    dpcr_error error = {0};
    const double start = cli_now();
    cli_signals_at_once(true);
    const dpcr_status status = dpcr_filter_execute(w->filter, &x, &w->zi, &y, &w->zf, &error);
    cli_signals_at_once(false);
    if (status != DPCR_OK) return cli_fail_error(&error, CLI_COMPUTING);
    w->seconds = cli_now() - start;
    return CLI_DONE;
}

static int write_signals(const biquads *b, const work *w) {
    if (!b->output) return CLI_DONE;
    if (cli_sound_name(b->output)) return cli_sound_write(b->output, &w->y, w->rate);
    dpcr_array y = w->y;  // a sound as npy: [channels][samples], or [samples] of one
    if (w->rate) {
        const int64_t shape[] = {w->channels, w->length};
        const bool one = w->channels == 1;
        if (!cli_array_create(DPCR_F32, one ? 1 : 2, one ? shape + 1 : shape, &y)) return CLI_RESOURCES;
        for (int64_t c = 0; c < w->channels; c++)
            for (int64_t l = 0; l < w->length; l++)
                ((float *)y.data)[c * w->length + l] = ((const float *)w->y.data)[l * w->channels + c];
    }
    const int status = cli_array_write(b->output, "y", &y);
    if (w->rate) cli_array_destroy(&y);
    return status;
}

static int tell(const biquads *b, const work *w) {
    const double samples = (double)w->length * (double)w->channels;
    cli_result r = cli_result_create();
    cli_set_int(&r, "sections", dpcr_filter_sections(w->filter));
    cli_set_int(&r, "memory", dpcr_filter_memory(w->filter));
    cli_set_int(&r, "channels", w->channels);
    cli_set_int(&r, "samples", w->length);
    cli_set_text(&r, "dtype", dpcr_dtype_name(w->input->dtype));
    if (w->rate) cli_set_int(&r, "rate", w->rate);
    cli_set_real(&r, "seconds", w->seconds);
    cli_set_real(&r, "ns_per_sample", samples > 0 ? 1e9 * w->seconds / samples : 0);
    if (b->output) cli_set_text(&r, "output", b->output);
    cli_say(&b->common, "%lld channel%s of %lld sample%s, order %lld: %.3g s, %.2f ns a sample\n",
            (long long)w->channels, cli_s(w->channels), (long long)w->length, cli_s(w->length),
            (long long)(2 * dpcr_filter_sections(w->filter)), w->seconds, samples > 0 ? 1e9 * w->seconds / samples : 0);
    const int status = cli_finish(&b->common, &r, CLI_DONE);
    cli_result_destroy(&r);
    return status;
}

static void release(work *w) {
    dpcr_array *const made[] = {&w->sound, &w->y, &w->zi, &w->zf};
    for (size_t i = 0; i < sizeof made / sizeof made[0]; i++)
        if (made[i]->data) cli_array_destroy(made[i]);
    for (size_t i = 0; i < sizeof w->files / sizeof w->files[0]; i++) dpcr_tensors_free(w->context, &w->files[i]);
    dpcr_filter_destroy(w->filter);
}

static int run(dpcr_context *context, const biquads *b) {
    work w = {.context = context};
    int status = read_sections(b, &w);
    if (!status) status = read_signals(b, &w);
    if (!status && b->output && cli_sound_name(b->output))
        status = w.rate ? cli_sound_fits(b->output, &w.sound, w.rate)
                        : cli_fail(CLI_USAGE, "--output is a sound and --input is not: its sampling rate is not known");
    if (!status) status = read_states(b, &w);
    if (!status) status = filter_signals(&w);
    if (!status) status = write_signals(b, &w);
    if (!status && cli_signal()) status = cli_fail_stopped();
    if (!status) status = write_states(b, &w);
    if (!status && cli_signal()) status = cli_fail_stopped();
    if (!status) status = tell(b, &w);
    release(&w);
    return status;
}

static int refuse(biquads *b) {
    const char *const outputs[] = {b->output, b->final}, *const inputs[] = {b->sos, b->input, b->zi};
    const cli_file written[] = {{"--output", b->output}, {"--final", b->final}, {"--csv", b->common.csv}};
    const cli_file read[] = {{"--sos", b->sos}, {"--input", b->input}, {"--zi", b->zi}};
    int from_stdin = 0;
    if (!b->sos) return cli_fail(CLI_USAGE, "no --sos: wanted the filter's sections [n][6]");
    if (!b->input) return cli_fail(CLI_USAGE, "no --input: wanted signals [samples] or [channels][samples]");
    if (!b->output && !b->final) return cli_fail(CLI_USAGE, "no --output and no --final: nothing would be kept");
    for (size_t i = 0; i < 3; i++) from_stdin += inputs[i] && !strcmp(inputs[i], "-");
    if (from_stdin > 1) return cli_fail(CLI_USAGE, "standard input ('-') holds one array only");
    if (!cli_array_place(b->output) || !cli_array_place(b->final)) return CLI_USAGE;
    if (b->final && cli_sound_name(b->final))
        return cli_fail(CLI_USAGE, "--final '%s': states are written as .npy or .npz", b->final);
    for (size_t i = 0; i < 2; i++)
        if (outputs[i] && !cli_is_stdout(outputs[i]) && !cli_writable("the output", outputs[i])) return CLI_RESOURCES;
    return cli_outputs_settle(&b->common, written, 3, read, 3) ? CLI_DONE : CLI_USAGE;
}

int cli_solve_biquads(int argc, char **argv) {
    biquads b = {.common = CLI_COMMON_DEFAULTS};
    const cli_syntax syntax = {
        .arguments = "",
        .doc =
            "Runs a cascade of biquads over signals, as scipy.signal.sosfilt does: stretches of them side by "
            "side.\vComputed in double; what comes out has the input's type. A sound is float32, each channel a "
            "signal of its own.",
        .groups = {{&biquad_argp, &b, "Filter:"}, {&cli_common_argp, &b.common, "Output and resources:"}},
        .most = 0};
    const char *positional[CLI_MAX_POSITIONAL];
    int status;
    if (!cli_parse(&syntax, argc, argv, positional, &status)) return status;
    if ((status = refuse(&b))) return status;
    dpcr_context *context = cli_context_create(&b.common, &status);
    if (!context) return status;
    status = run(context, &b);
    dpcr_context_destroy(context);
    return status;
}
