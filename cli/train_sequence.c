// SPDX-License-Identifier: MIT
// train rnn|rnn-relu|gru|lstm: recurrent networks on sequences: bit streams, recordings and texts.
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "recordings.h"
#include "sequences.h"
#include "train_log.h"

enum {
    KEY_DATA = 0x8000,
    KEY_EPOCHS,
    KEY_LIMIT,
    KEY_BATCH,
    KEY_LENGTH,
    KEY_CLIP,
    KEY_DROPOUT,
    KEY_RECOMPUTE,
    KEY_SEGMENT,
    KEY_PROJECTION,
    KEY_HIDDEN,
    KEY_LAYERS,
    KEY_EMBEDDING,
    KEY_READOUT,
    KEY_BIDIRECTIONAL,
    KEY_DTYPE
};

typedef enum source { BITS, TEXT, RECORDINGS } source;

typedef struct training {
    cli_common common;
    cli_solver solver;
    cli_optimiser optimiser;
    dpcr_sequence_options model_options;
    dpcr_sequence_train_options options;
    cli_report report;
    const char *data;
    source source;
    cli_features features;
    int64_t limit, embedding;
    bool readout_given, sized;  // sized: --batch, --length or --limit is given
    // The run.
    dpcr_context *context;
    dpcr_sequence *model;
    cli_bits bits[2];  // to train on, to test
    cli_text text;
    cli_recordings recordings;
    cli_reader readers[2];
    cli_baseline baseline;
    dpcr_sequence_data train, test;
    int64_t others;  // bytes of the test's text without a symbol
} training;

static const struct argp_option training_options[] = {
    {"data", KEY_DATA, "NAME|FILE", 0,
     "bitstream (made here: ten classes of bit streams), speakers (Debian's five languages of "
     "asterisk-core-sounds-*-wav) or a folder with a folder of recordings for each class, text (Debian's changelogs on "
     "this machine) or a file of text, raw or gzipped, whose last tenth is for testing",
     0},
    {"epochs", KEY_EPOCHS, "N", 0, "Passes over the training sequences or text (default 4)", 0},
    {"batch", KEY_BATCH, "B", 0, "Sequences, or streams of a text, at once (default 16; text 32)", 0},
    {"length", KEY_LENGTH, "T", 0, "Bits of a stream (default 1000); text: steps between two updates (default 128)", 0},
    {"clip", KEY_CLIP, "X", 0, "Norm of the gradients at most (default 1; 0: any)", 0},
    {"dropout", KEY_DROPOUT, "P", 0, "Between layers (default 0)", 0},
    {"recompute", KEY_RECOMPUTE, NULL, 0, "Keep states only and compute the gates again: less memory, more time", 0},
    {"segment", KEY_SEGMENT, "N", 0,
     "bitstream, recordings: keep states every N steps only and run the steps between again: memory for N steps", 0},
    {"limit", KEY_LIMIT, "N", 0,
     "Sequences an epoch (bitstream: default 32000), or characters of the text, to train on; to test, a tenth of them "
     "(bit streams: and one; recordings: all)",
     0},
    {0},
};

static const struct argp_option network_options[] = {
    {"hidden", KEY_HIDDEN, "H", 0, "Hidden numbers of a layer and direction (default 20; text 128)", 0},
    {"layers", KEY_LAYERS, "N", 0, "Layers (default 1)", 0},
    {"projection", KEY_PROJECTION, "P", 0, "lstm: numbers of h, fewer than hidden, projected from them (proj_size)", 0},
    {"embedding", KEY_EMBEDDING, "N", 0, "text: numbers that stand for a character (default 32)", 0},
    {"readout", KEY_READOUT, "last|mean", 0, "bitstream, recordings: what is classified (default last)", 0},
    {"bidirectional", KEY_BIDIRECTIONAL, NULL, 0, "bitstream, recordings: two directions", 0},
    {"dtype", KEY_DTYPE, "TYPE", 0, "float32 (default) or float64", 0},
    {0},
};

static error_t taken(bool ok) { return ok ? 0 : EINVAL; }

static error_t parse_training(int key, char *arg, struct argp_state *state) {
    training *t = state->input;
    dpcr_train_options *o = &t->options.train;
    switch (key) {
        case KEY_DATA: t->data = arg; return 0;
        case KEY_RECOMPUTE: t->options.train.recompute = 1; return 0;
        case KEY_SEGMENT: return taken(cli_read_int64("--segment", arg, 1, INT64_MAX, &t->options.segment));
        case KEY_EPOCHS: return taken(cli_read_int64("--epochs", arg, 1, UINT32_MAX, &o->epochs));
        case KEY_BATCH: return taken(cli_read_int64("--batch", arg, 1, 1 << 20, &o->batch));
        case KEY_LENGTH: return taken(cli_read_int64("--length", arg, 1, 1 << 28, &t->options.length));
        case KEY_CLIP: return taken(cli_read_double("--clip", arg, 0, DBL_MAX, &t->options.train.clip));
        case KEY_DROPOUT: return taken(cli_read_double("--dropout", arg, 0, 0.999, &t->options.dropout));
        case KEY_LIMIT: return taken(cli_read_int64("--limit", arg, 1, INT64_MAX / 2, &t->limit));
        default: return ARGP_ERR_UNKNOWN;
    }
}

static error_t read_readout(training *t, const char *arg) {
    static const char *const words[] = {"last", "mean"};
    int index = 0;
    if (!cli_read_word("--readout", arg, words, 2, &index)) return EINVAL;
    t->model_options.readout = index ? DPCR_READOUT_MEAN : DPCR_READOUT_LAST;
    t->readout_given = true;
    return 0;
}

static error_t parse_network(int key, char *arg, struct argp_state *state) {
    training *t = state->input;
    dpcr_recurrent_options *n = &t->model_options.network;
    switch (key) {
        case KEY_HIDDEN: return taken(cli_read_int64("--hidden", arg, 1, 16384, &n->hidden));
        case KEY_PROJECTION: return taken(cli_read_int64("--projection", arg, 1, 16383, &n->projection));
        case KEY_LAYERS: return taken(cli_read_int64("--layers", arg, 1, 1024, &n->layers));
        case KEY_EMBEDDING: return taken(cli_read_int64("--embedding", arg, 1, 16384, &t->embedding));
        case KEY_READOUT: return read_readout(t, arg);
        case KEY_BIDIRECTIONAL: n->bidirectional = 1; return 0;
        case KEY_DTYPE: return taken(cli_read_dtype("--dtype", arg, &n->dtype));
        default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp training_argp = {training_options, parse_training, NULL, NULL, NULL, NULL, NULL};
static const struct argp network_argp = {network_options, parse_network, NULL, NULL, NULL, NULL, NULL};

static bool is_text(const training *t) { return t->source == TEXT; }

// ---- during the run ----

static dpcr_status test_now(void *user, double *loss, double *accuracy, dpcr_error *error) {
    training *t = user;
    dpcr_sequence_likelihood_report report = {.size = sizeof report};
    if (!is_text(t))
        return dpcr_sequence_evaluate(t->context, t->model, &t->test, t->options.train.batch, &t->options.train.solve,
                                      loss, accuracy, NULL, error);
    const dpcr_status status = dpcr_sequence_likelihood(t->context, t->model, t->test.text, t->test.count,
                                                        &t->options.train.solve, &report, error);
    *loss = report.loss;
    *accuracy = report.accuracy;
    return status;
}

static int on_step(void *user, const dpcr_train_state *state) {
    return cli_report_step(&((training *)user)->report, state);
}

// ---- before it ----

static void make_bits(training *t) {
    enum { SAMPLES = 32000 };  // the paper's
    const int64_t count = t->limit ? t->limit : SAMPLES, held = count / 10 + 1;
    t->bits[0] = (cli_bits){.seed = t->common.seed, .length = t->options.length};
    t->bits[1] = (cli_bits){.seed = t->common.seed, .first = count, .length = t->options.length};
    t->train = (dpcr_sequence_data){.size = sizeof t->train,
                                    .count = count,
                                    .longest = t->options.length,
                                    .same_length = 1,
                                    .features = 1,
                                    .hash = t->common.seed,
                                    .read = cli_bits_read,
                                    .user = &t->bits[0]};
    t->test = t->train;
    t->test.count = held;
    t->test.user = &t->bits[1];
}

static int make_recordings(training *t) {
    int status = cli_recordings_read(t->data, &t->features, &t->recordings);
    if (status) return status;
    const cli_recordings *r = &t->recordings;
    cli_recordings_scale(&t->recordings);
    for (int p = 0; p < 2; p++) t->readers[p] = (cli_reader){r, p};
    t->train = cli_recordings_data(&t->readers[0]);
    t->test = cli_recordings_data(&t->readers[1]);
    if (t->limit && t->limit < t->train.count) t->train.count = t->recordings.part[0].count = t->limit;
    cli_say(
        &t->common,
        "%d classes; %lld recordings to train on, %lld of other names to test; %lld silent ones and %lld that stand "
        "under several classes left out; %lld numbers a step, at most %lld steps\n",
        r->classes, (long long)t->train.count, (long long)t->test.count, (long long)r->silent, (long long)r->repeated,
        (long long)r->width, (long long)r->longest);
    status = cli_baseline_of(t->context, r, &t->baseline);
    if (!status)
        cli_say(&t->common, "logistic regression on mean features: train accuracy %.2f %%, test accuracy %.2f %%\n",
                100 * t->baseline.train_accuracy, 100 * t->baseline.test_accuracy);
    return status;
}

static int make_text(training *t, cli_alphabet *alphabet) {
    int status = cli_text_read(t->context, t->data, &t->text);
    if (status) return status;
    cli_text *x = &t->text;
    if (t->limit && t->limit < x->train_count) x->train_count = t->limit;
    if (t->limit && t->limit / 10 + 2 < x->test_count) x->test_count = t->limit / 10 + 2;
    *alphabet = cli_alphabet_of(x->train, x->train_count);
    cli_alphabet_encode(alphabet, x->train, x->train_count);
    t->others = cli_alphabet_encode(alphabet, x->test, x->test_count);
    t->train = (dpcr_sequence_data){.size = sizeof t->train,
                                    .count = x->train_count,
                                    .hash = cli_hash(CLI_HASH, alphabet->symbol, sizeof alphabet->symbol),
                                    .text = x->train};
    t->test = (dpcr_sequence_data){.size = sizeof t->test, .count = x->test_count, .text = x->test};
    return CLI_DONE;
}

static int make_model(training *t, const cli_alphabet *alphabet) {
    dpcr_error error = {0};
    dpcr_sequence_options *o = &t->model_options;
    char symbols[513];
    o->symbols = is_text(t) ? alphabet->count : 0;
    o->outputs = is_text(t) ? alphabet->count : t->source == BITS ? CLI_BIT_CLASSES : t->recordings.classes;
    o->network.inputs = is_text(t) ? t->embedding : t->train.features;
    if (dpcr_sequence_create(t->context, o, &t->model, &error) != DPCR_OK) return cli_fail_error(&error, CLI_COMPUTING);
    if (t->source == RECORDINGS) return cli_recordings_note(&t->recordings, t->model);
    if (t->source == BITS) return cli_bits_note(&t->bits[1], t->model);
    cli_alphabet_text(alphabet, symbols);
    if (dpcr_sequence_set_metadata(t->model, "text.symbols", symbols, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_COMPUTING);
    return CLI_DONE;
}

static int64_t batches_of(const training *t) {
    const int64_t batch = t->options.train.batch;
    return is_text(t) ? (t->train.count - 1) / batch / t->options.length : t->train.count / batch;
}

static void settle_optimiser(training *t) {
    const dpcr_train_options *o = &t->options.train;
    const int64_t batches = batches_of(t);
    const bool many = batches > INT64_MAX / o->epochs;
    cli_optimiser_settle(&t->optimiser, many ? INT64_MAX : batches * o->epochs);
    t->options.train.optimiser = t->optimiser.options;
}

static void settle_defaults(training *t) {
    dpcr_train_options *o = &t->options.train;
    const bool text = is_text(t);
    t->report.unit = text ? "characters" : t->source == BITS ? "sequences" : "recordings";
    if (!o->batch) o->batch = text ? 32 : 16;
    if (!t->options.length) t->options.length = text ? 128 : 1000;
    if (!t->embedding) t->embedding = 32;
    if (!t->model_options.network.hidden) t->model_options.network.hidden = text ? 128 : 20;
    if (text) t->model_options.readout = DPCR_READOUT_EACH;
    t->model_options.network.seed = o->seed = t->common.seed;
    o->solve = t->solver.options;
    o->progress = on_step;
    o->progress_user = t;
    t->report.common = &t->common;
    cli_report_settle(&t->report);
    t->report.test = test_now;
    t->report.test_user = t;
}

// ---- after it ----

static void set_recordings(cli_result *r, const training *t) {
    const cli_recordings *a = &t->recordings;
    cli_set_int(r, "rate_hertz", a->rate);
    cli_set_int(r, "channels", a->channels);
    cli_set_int(r, "frame", a->options.frame);
    cli_set_int(r, "hop", a->options.hop);
    cli_set_int(r, "coefficients", a->options.coefficients);
    cli_set_int(r, "silent", a->silent);
    cli_set_int(r, "repeated", a->repeated);
    cli_set_real(r, "baseline_train_accuracy", t->baseline.train_accuracy);
    cli_set_real(r, "baseline_test_accuracy", t->baseline.test_accuracy);
    cli_set_real(r, "baseline_loss", t->baseline.loss);
}

static void set_options(cli_result *r, const training *t) {
    const dpcr_sequence_options *m = dpcr_sequence_get_options(t->model);
    const dpcr_train_options *o = &t->options.train;
    cli_set_text(r, "network", dpcr_recurrent_kind_name(m->network.kind));
    cli_set_text(r, "data", t->data);
    cli_set_int(r, "layers", m->network.layers);
    cli_set_int(r, "hidden", m->network.hidden);
    if (m->network.projection) cli_set_int(r, "projection", m->network.projection);
    cli_set_int(r, "inputs", m->network.inputs);
    cli_set_int(r, "outputs", m->outputs);
    cli_set_text(r, "readout", dpcr_readout_name(m->readout));
    cli_set_text(r, "dtype", dpcr_dtype_name(m->network.dtype));
    cli_set_int(r, "parameters", dpcr_sequence_parameter_count(t->model));
    cli_set_int(r, "epochs", o->epochs);
    cli_set_int(r, "batch", o->batch);
    cli_set_int(r, "length", t->source == RECORDINGS ? t->recordings.longest : t->options.length);
    cli_set_int(r, t->report.unit, t->train.count);
    char key[32];
    snprintf(key, sizeof key, "test_%s", t->report.unit);
    cli_set_int(r, key, t->test.count);
    if (t->source == RECORDINGS) set_recordings(r, t);
    if (is_text(t)) cli_set_int(r, "test_characters_without_symbol", t->others);
    cli_report_set_optimiser(&o->optimiser, r);
    cli_set_real(r, "clip", t->options.train.clip);
    cli_set_int(r, "seed", (json_int_t)t->common.seed);
    cli_set_int(r, "threads", dpcr_context_threads(t->context));
}

static void set_result(cli_result *r, const training *t, const dpcr_train_state *last) {
    cli_report_set(&t->report, last, &t->solver, r);
    set_options(r, t);
    if (t->options.train.save) cli_set_text(r, "model", t->options.train.save);
}

static int tell(training *t, const dpcr_train_state *last) {
    cli_result r = cli_result_create();
    set_result(&r, t, last);
    cli_say(&t->common, "test loss %.4f%s, test accuracy %.2f %%; %.1f s, %.0f %s/s, method %s, backward %s\n",
            t->report.test_loss, is_text(t) ? " nats a character" : "", 100 * t->report.test_accuracy, last->seconds,
            last->images_per_second, t->report.unit, dpcr_method_name(last->method), dpcr_scheme_name(last->backward));
    cli_report_say_sentence(&t->report);
    return cli_report_end(&t->report, last, &r);
}

static int run_training(training *t) {
    dpcr_error error = {0};
    dpcr_train_state last = {0};
    if (t->solver.options.method == DPCR_METHOD_AUTO || !t->solver.options.backward)
        cli_machine_load(t->context, false);
    cli_progress_start(&t->report.progress, &t->common);
    const dpcr_status trained = dpcr_sequence_train(t->context, t->model, &t->train, &t->options, &last, &error);
    cli_progress_clear(&t->report.progress);
    if (t->report.status) return t->report.status;  // told already
    if (trained != DPCR_OK && last.reason == DPCR_REASON_NOT_CONVERGED)
        return cli_fail_in_words(CLI_UNCONVERGED, error.text);
    // Of data that lie there the data are to blame, where no option has a part in it.
    if (trained == DPCR_ERROR_ARGUMENT && batches_of(t) == 0 && t->source != BITS && !t->sized)
        return cli_fail(CLI_INPUT, "%s", error.text);
    if (trained != DPCR_OK) return cli_fail_training(&error);
    dpcr_train_state final;
    const int status = cli_report_final(&t->report, &last, &final);
    return status ? status : tell(t, &final);
}

static int run(training *t) {
    cli_alphabet alphabet = {0};
    int status = cli_report_check(&t->report);
    if (status) return status;
    const cli_file written[] = {
        {"--save", t->options.train.save}, {"--log", t->report.log_path}, {"--csv", t->common.csv}};
    const cli_file data = {"--data", cli_data_place(t->data)};
    if (!cli_spares(written, 3, &data, 1)) return CLI_USAGE;
    t->context = cli_context_create(&t->common, &status);
    if (!t->context) return status;
    if (is_text(t))
        status = make_text(t, &alphabet);
    else if (t->source == RECORDINGS)
        status = make_recordings(t);
    else
        make_bits(t);
    if (!status) status = make_model(t, &alphabet);
    if (!status) {
        settle_optimiser(t);
        status = cli_report_open(&t->report, t->context);
    }
    if (!status) status = run_training(t);
    cli_report_close(&t->report);
    dpcr_sequence_destroy(t->model);
    cli_text_free(&t->text);
    cli_recordings_free(&t->recordings);
    dpcr_context_destroy(t->context);
    return status;
}

bool cli_names_recurrent(const char *word) {
    dpcr_recurrent_kind kind;
    return dpcr_recurrent_kind_find(word, &kind, NULL) == DPCR_OK;
}

int cli_train_sequence(int argc, char **argv) {
    training t = {.common = CLI_COMMON_DEFAULTS,
                  .solver = CLI_SOLVER_DEFAULTS,
                  .optimiser = CLI_OPTIMISER_DEFAULTS,
                  .model_options = {.size = sizeof t.model_options, .readout = DPCR_READOUT_LAST},
                  .options = {.size = sizeof t.options, .train = {.epochs = 4, .clip = 1}},
                  .report = CLI_REPORT_DEFAULTS,
                  .features = CLI_FEATURES_DEFAULTS};
    t.report.train = &t.options.train;
    const cli_syntax syntax = {
        .arguments = "",
        .doc =
            "Trains a recurrent network: a classifier of bit streams or recordings, or a model of text that "
            "predicts the next character. Cross-entropy, in nats.\vInterrupt (Ctrl-C) or "
            "terminate: it stops after a checkpoint with exit status 130 or 143. A killed run "
            "resumes from its last checkpoint with the same options.",
        .groups = {{&training_argp, &t, "Training:"},
                   {&cli_report_argp, &t.report, "Checkpoints, log and tests:"},
                   {&cli_optimiser_argp, &t.optimiser, "Optimiser:"},
                   {&network_argp, &t, "Network:"},
                   {&cli_features_argp, &t.features, "Recordings:"},
                   {&cli_solver_argp, &t.solver, "Solver:"},
                   {&cli_common_argp, &t.common, "Output and resources:"}},
        .most = 0};
    const char *positional[CLI_MAX_POSITIONAL];
    int status;
    dpcr_error error = {0};
    if (dpcr_recurrent_kind_find(argv[0], &t.model_options.network.kind, &error) != DPCR_OK)
        return cli_fail(CLI_USAGE, "%s", error.text);
    t.common.serves_devices = true;
    if (!cli_parse(&syntax, argc, argv, positional, &status)) return status;
    cli_device_leave_auto(&t.common, "training");
    t.solver.options.device = t.common.device;
    const cli_solver asked = cli_solver_of_layers(&t.solver);
    if (!t.options.train.resume && !cli_solver_fits(&asked, CLI_RUNS(asked.options.method), NULL, NULL))
        return CLI_USAGE;
    if (!t.data)
        return cli_fail(
            CLI_USAGE,
            "which sequences? --data wants bitstream, speakers, a folder of recordings, text or a file of text");
    t.source = !strcmp(t.data, CLI_BITSTREAM) ? BITS : cli_recordings_named(t.data) ? RECORDINGS : TEXT;
    if (t.features.given && t.source != RECORDINGS)
        return cli_fail(CLI_USAGE, "--frame, --hop, --coefficients and --seconds are for recordings");
    if (t.embedding && !is_text(&t))
        return cli_fail(CLI_USAGE, "--embedding is for a text: bits and recordings are numbers already");
    if (t.options.length && t.source == RECORDINGS)
        return cli_fail(CLI_USAGE, "--length is for bit streams and texts; --seconds says what is kept of recordings");
    if (is_text(&t) && (t.readout_given || t.model_options.network.bidirectional))
        return cli_fail(
            CLI_USAGE,
            "--readout and --bidirectional are for bit streams and recordings: a text is predicted step by step");
    const bool last = t.model_options.readout == DPCR_READOUT_LAST && !t.model_options.network.bidirectional;
    if (t.options.segment && (is_text(&t) || !last || t.options.dropout > 0 || t.options.train.recompute))
        return cli_fail(CLI_USAGE,
                        "--segment is for bit streams and recordings, the readout last, one direction, without "
                        "--dropout and --recompute");
    if (t.options.dropout > 0 && t.model_options.network.layers < 2)
        return cli_fail(CLI_USAGE, "--dropout drops between layers: wanted --layers 2 or more with it");
    t.sized = t.options.train.batch || t.options.length || t.limit;
    settle_defaults(&t);
    return run(&t);
}
