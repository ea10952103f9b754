// SPDX-License-Identifier: MIT
// train: a network on images, with a progress bar, a log, checkpoints, and the test accuracy at the end.
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "convnet.h"
#include "problem.h"
#include "ranks.h"
#include "train_agree.h"
#include "train_log.h"
#include "train_workers.h"
#include "world.h"

enum { KEY_DATA = 0x5000, KEY_EPOCHS, KEY_LIMIT, KEY_CLIP };

typedef struct train {
    cli_common common;
    cli_solver solver;
    cli_network network;
    cli_optimiser optimiser;
    cli_pipeline pipeline;
    cli_workers workers;
    dpcr_train_options options;
    cli_report report;
    const char *data;
    int64_t limit;
    // The run.
    dpcr_context *context;
    dpcr_model *model;
    dpcr_dataset training, test;
} train;

static const struct argp_option train_options[] = {
    {"data", KEY_DATA, "NAME|DIR", 0,
     "fashion-mnist (default; Debian package dataset-fashion-mnist) or a folder of IDX files, raw or gzipped, or "
     "of CIFAR-10's binary files",
     0},
    {"clip", KEY_CLIP, "NORM", 0,
     "Norm of the gradient at most (default 0: any; pipelines with late gradients: each stage within its part of it; "
     "not --layer-wise)",
     0},
    {"epochs", KEY_EPOCHS, "N", 0, "Passes over the training images (default 4)", 0},
    {"limit", KEY_LIMIT, "N", 0, "Only the first N training images and the first N test images", 0},
    {0},
};

static error_t parse_train(int key, char *arg, struct argp_state *state) {
    train *t = state->input;
    switch (key) {
        case KEY_DATA: t->data = arg; return 0;
        case KEY_CLIP: return cli_read_double("--clip", arg, 0, DBL_MAX, &t->options.clip) ? 0 : EINVAL;
        case KEY_EPOCHS: return cli_read_int64("--epochs", arg, 1, INT64_MAX, &t->options.epochs) ? 0 : EINVAL;
        case KEY_LIMIT: return cli_read_int64("--limit", arg, 1, INT64_MAX, &t->limit) ? 0 : EINVAL;
        default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp train_argp = {train_options, parse_train, NULL, NULL, NULL, NULL, NULL};

// ---- during the run ----

static dpcr_status test_now(void *user, double *loss, double *accuracy, dpcr_error *error) {
    train *t = user;
    return dpcr_evaluate(t->context, t->model, &t->test, t->options.batch, &t->options.solve, loss, accuracy, NULL,
                         error);
}

static int on_step(void *user, const dpcr_train_state *state) {
    return cli_report_step(&((train *)user)->report, state);
}

// ---- before and after it ----

static void settle_defaults(train *t) {
    t->options.batch = t->network.batch;
    t->options.solve = t->solver.options;
    t->options.seed = t->common.seed;
    t->options.progress = on_step;
    t->options.progress_user = t;
    t->options.recompute = !t->pipeline.given && t->pipeline.options.recompute;
    t->report.common = &t->common;
    cli_report_settle(&t->report);
    t->report.unit = "images";
    t->report.test = test_now;
    t->report.test_user = t;
}

static void settle_optimiser(train *t) {
    const int64_t batches = (t->training.count - 1) / t->options.batch + 1;
    const bool many = batches > INT64_MAX / t->options.epochs;
    cli_optimiser_settle(&t->optimiser, many ? INT64_MAX : batches * t->options.epochs);
    t->options.optimiser = t->optimiser.options;
}

static int make_model(train *t, dpcr_architecture architecture) {
    int status = CLI_DONE;
    dpcr_error error = {0};
    dpcr_model_options *o = &t->network.options;
    o->architecture = architecture;
    if (t->options.resume && !t->network.first_given) {  // the file tells the network
        if (dpcr_model_load(t->context, t->options.resume, &t->model, &error) != DPCR_OK)
            return cli_fail_error(&error, CLI_READING);
        if (dpcr_model_get_options(t->model)->architecture == architecture) return CLI_DONE;
        return cli_fail(CLI_USAGE, "'%s' holds a network '%s', not '%s'", t->options.resume,
                        cli_architecture_name(dpcr_model_get_options(t->model)->architecture),
                        cli_architecture_name(architecture));
    }
    o->inputs = dpcr_dataset_pixels(&t->training);
    o->outputs = t->training.classes;
    t->model = cli_model_create(t->context, &t->network, t->common.seed, &status);
    return status;
}

static int read_data(train *t) {
    int status = cli_data_read(t->context, t->data, "train", 0, t->limit, &t->training);
    // Classes that only the training labels have are classes; test labels beyond them are an error.
    if (!status) status = cli_data_read(t->context, t->data, "t10k", t->training.classes, t->limit, &t->test);
    if (status) return status;
    if (t->training.rows == t->test.rows && t->training.cols == t->test.cols) return CLI_DONE;
    return cli_fail(CLI_INPUT, "'%s' has training images of %lld x %lld and test images of %lld x %lld", t->data,
                    (long long)t->training.rows, (long long)t->training.cols, (long long)t->test.rows,
                    (long long)t->test.cols);
}

static void set_options(cli_result *r, const train *t) {
    const dpcr_model_options *m = dpcr_model_get_options(t->model);
    int64_t parameters = 0;
    dpcr_model_vector(t->model, &parameters);
    cli_set_text(r, "network", cli_architecture_name(m->architecture));
    cli_set_int(r, "layers", m->layers);
    cli_set_int(r, "width", m->width);
    cli_set_text(r, "activation", dpcr_activation_name(m->activation));
    cli_set_text(r, "branch", cli_branch_name(m->branch));
    if (m->tie) cli_set_int(r, "tie", m->tie);
    cli_set_text(r, "dtype", dpcr_dtype_name(m->dtype));
    cli_set_int(r, "parameters", parameters);
    cli_set_int(r, "epochs", t->options.epochs);
    cli_set_int(r, "batch", t->options.batch);
    cli_set_int(r, "images", t->training.count);
    cli_set_int(r, "test_images", t->test.count);
    cli_report_set_optimiser(&t->options.optimiser, r);
    if (t->options.clip > 0) cli_set_real(r, "clip", t->options.clip);
    cli_set_int(r, "seed", (json_int_t)t->common.seed);
    cli_set_int(r, "threads", dpcr_context_threads(t->context));
}

static void set_result(cli_result *r, const train *t, const dpcr_train_state *last) {
    cli_report_set(&t->report, last, &t->solver, r);
    set_options(r, t);
    if (t->pipeline.given) cli_pipeline_set(&t->pipeline, r);
    if (t->workers.kind) cli_workers_set(&t->workers, r);
    if (t->options.save) cli_set_text(r, "model", t->options.save);
}

static int tell(train *t, const dpcr_train_state *last) {
    cli_result r = cli_result_create();
    set_result(&r, t, last);
    cli_say(&t->common, "test accuracy %.2f %%, test loss %.4f; %.1f s, %.0f images/s, method %s, backward %s\n",
            100 * t->report.test_accuracy, t->report.test_loss, last->seconds, last->images_per_second,
            dpcr_method_name(last->method), dpcr_scheme_name(last->backward));
    cli_report_say_sentence(&t->report);
    if (t->pipeline.given) cli_pipeline_say(&t->pipeline, &t->common);
    if (t->workers.kind) cli_workers_say(&t->workers, &t->common);
    return cli_report_end(&t->report, last, &r);
}

static int fail_training(train *t, const dpcr_train_state *last, const dpcr_error *error) {
    if (t->report.status) return t->report.status;  // told already
    // So is why a test of workers failed; of one that was stopped the library tells where it can be gone on from.
    const int tested = t->workers.status;
    if (tested && tested != 128 + cli_signal()) return tested;
    // Processes that do alike, each by itself, fail alike: rank 0's line is enough (cli_ranks_tell_alone). A wait in
    // vain and a wish to stop are one's own.
    const bool own = error->status == DPCR_ERROR_SYSTEM || error->status == DPCR_ERROR_CANCELLED;
    if (cli_world_rank() > 0 && !own) cli_silence(true);
    if (error->status == DPCR_ERROR_UNSUPPORTED && last->reason == DPCR_REASON_NOT_CONVERGED)
        return cli_fail(CLI_UNCONVERGED, "%s", error->text);
    // What the library calls a wrong argument, beside a checkpoint, is options that the checkpoint does not agree with.
    return cli_fail_training(error);
}

// What a kind of workers tests by itself does not count as training either.
static int test_network(void *user, dpcr_model *model, cli_accuracy *accuracy) {
    train *t = user;
    (void)model;  // it is t->model
    cli_progress_clear(&t->report.progress);
    const int status = cli_report_test(&t->report, -1);
    *accuracy = (cli_accuracy){t->report.test_loss, t->report.test_accuracy};
    return status;
}

static dpcr_status train_it(train *t, dpcr_train_state *last, dpcr_error *error) {
    cli_pipeline *p = &t->pipeline;
    t->workers.test = test_network;
    t->workers.test_user = t;
    if (t->workers.kind)
        return cli_workers_train(&t->workers, t->context, t->model, &t->training, &t->options, last, error);
    if (!p->given) return dpcr_train(t->context, t->model, &t->training, &t->options, last, error);
    return dpcr_train_pipeline(t->context, t->model, &t->training, &t->options, &p->schedule, &p->options, last,
                               &p->figures, error);
}

static int prepare(train *t) {
    cli_pipeline *p = &t->pipeline;
    const cli_train_subject subject = {&t->options, t->model, &t->training, p, &t->workers};
    const int status = p->options.transport ? cli_train_agree(&subject) : CLI_DONE;
    if (status || !p->given) return status;
    return cli_pipeline_prepare(p, t->context, t->model, &t->options, t->training.count);
}

static int run_training(train *t) {
    dpcr_error error = {0};
    dpcr_train_state last = {0};
    int status = prepare(t);
    if (status) return status;
    cli_silence(false);
    cli_progress_start(&t->report.progress, &t->common);
    const dpcr_status trained = train_it(t, &last, &error);
    cli_progress_clear(&t->report.progress);
    if (trained != DPCR_OK || t->report.status) return fail_training(t, &last, &error);
    if (cli_world_rank() > 0) return CLI_DONE;  // rank 0 has the network
    dpcr_train_state final;
    status = cli_report_final(&t->report, &last, &final);
    if (!status) status = tell(t, &final);
    return status ? status : cli_pipeline_trace(&t->pipeline, t->report.begun);
}

static int run(train *t, dpcr_architecture architecture) {
    int status = cli_report_check(&t->report);
    if (status) return status;
    const char *trace = t->pipeline.trace;
    if (trace && !cli_is_stdout(trace) && !cli_writable("the trace", trace)) return CLI_RESOURCES;
    const cli_file written[] = {
        {"--save", t->options.save}, {"--log", t->report.log_path}, {"--csv", t->common.csv}, {"--trace", trace}};
    const cli_file read[] = {{"--resume", t->options.resume}, {"--trace", trace}},
                   data = {"--data", cli_data_place(t->data)};
    if (!cli_distinct(written, 4) || !cli_distinct(read, 2) || !cli_spares(written, 4, &data, 1)) return CLI_USAGE;
    t->context = cli_context_create(&t->common, &status);
    if (!t->context) return status;
    status = read_data(t);
    if (!status) status = make_model(t, architecture);
    if (!status) {
        settle_optimiser(t);
        status = cli_report_open(&t->report, t->context);
    }
    if (!status) status = run_training(t);
    cli_report_close(&t->report);
    cli_pipeline_free(&t->pipeline, t->context);
    cli_workers_free(&t->workers);
    dpcr_model_destroy(t->model);
    dpcr_dataset_free(t->context, &t->training);
    dpcr_dataset_free(t->context, &t->test);
    dpcr_context_destroy(t->context);
    return status;
}

// One process of several: only the first one prints, tests and writes.
static void step_back(train *t) {
    t->common.json = false;
    t->common.quiet = true;
    t->common.csv = t->report.log_path = NULL;
}

static int run_among(train *t, dpcr_architecture architecture) {
    cli_pipeline *p = &t->pipeline;
    const int64_t size = cli_world_size();
    if (cli_workers_are_threads_only(&t->workers))
        return cli_fail(CLI_USAGE, "started as %lld processes; --%s has threads alone", (long long)size,
                        cli_workers_name(t->workers.kind));
    if (!p->given && !t->workers.kind)
        return cli_fail(CLI_USAGE, "started as %lld processes; wanted --pipeline, --data-parallel or --swap",
                        (long long)size);
    if (p->ranks_given && p->schedule.ranks != size)
        return cli_fail(CLI_USAGE, "--ranks %lld, but started as %lld processes", (long long)p->schedule.ranks,
                        (long long)size);
    p->schedule.ranks = size;
    cli_world_patience(p->options.deadline > 0 ? p->options.deadline : 60, false);
    int status = cli_world_open(&p->transport);
    if (status) return status;
    p->options.transport = t->workers.options.transport = &p->transport;
    t->workers.options.workers = size;
    if (p->transport.rank > 0) step_back(t);
    status = run(t, architecture);
    if (status) cli_ranks_tell_alone();
    fflush(stdout);
    cli_world_close(status);
    return status;
}

// The device's own choice of the method, unless one is named. Others that train together are threads or processes.
static int settle_device(train *t) {
    const char *given = t->common.device_given;
    cli_device_leave_auto(&t->common, "training");
    if (t->common.device.type != DPCR_CUDA) return CLI_DONE;
    if (t->pipeline.given) return cli_fail(CLI_USAGE, "--device %.20s: --pipeline runs on processors", given);
    if (t->workers.kind)
        return cli_fail(CLI_USAGE, "--device %.20s: --%s runs on processors", given, cli_workers_name(t->workers.kind));
    t->solver.options.device = t->options.solve.device = t->common.device;
    return CLI_DONE;
}

// Those that train together go through the layers in order, each its own.
static int settle_solver(const train *t) {
    static const char *const taken[] = {"method", "backward", "memory-limit", NULL};
    const dpcr_solve_options *o = &t->solver.options;
    char who[32];
    if (!t->pipeline.given && !t->workers.kind)  // what a checkpoint has not is refused with it
        return t->options.resume || cli_solver_fits(&t->solver, CLI_RUNS(o->method), NULL, NULL) ? CLI_DONE : CLI_USAGE;
    snprintf(who, sizeof who, "--%s", t->pipeline.given ? "pipeline" : cli_workers_name(t->workers.kind));
    if (o->method != DPCR_METHOD_AUTO && o->method != DPCR_METHOD_SEQUENTIAL)
        return cli_fail(CLI_USAGE, "%s trains by --method sequential, not %s", who, dpcr_method_name(o->method));
    if (o->backward != DPCR_SCHEME_AUTO && o->backward != DPCR_SCHEME_SEQUENTIAL)
        return cli_fail(CLI_USAGE, "%s trains by --backward sequential, not %s", who, dpcr_scheme_name(o->backward));
    return cli_solver_only(&t->solver, who, taken) ? CLI_DONE : CLI_USAGE;
}

static int settle_output(train *t) {
    const cli_file written[] = {
        {"--log", t->report.log_path}, {"--trace", t->pipeline.trace}, {"--csv", t->common.csv}};
    return cli_stdout_share(&t->common, written, 3) ? CLI_DONE : CLI_USAGE;
}

static bool names_classifier(const char *word) { return !strcmp(word, "mlp") || !strcmp(word, "resnet"); }
static bool names_another(const char *word) { return names_classifier(word) || cli_names_diffusion(word); }

static bool names_known(const char *word) { return names_another(word) || cli_names_recurrent(word); }

// Several processes would each train the whole network, and write the same files.
static int train_alone(int (*kind)(int argc, char **argv), int argc, char **argv) {
    if (cli_world_size() > 1)
        return cli_fail(CLI_USAGE, "%s trains in one process, but started as %lld", argv[1],
                        (long long)cli_world_size());
    return kind(argc - 1, argv + 1);
}

int cli_verb_train(int argc, char **argv) {
    cli_silence(cli_world_rank() > 0);  // until the ranks do different things, one line is enough
    if (cli_name_first(argc, argv, cli_names_diffusion, names_classifier))
        return train_alone(cli_train_diffusion, argc, argv);
    if (cli_name_first(argc, argv, cli_names_vgg, names_known)) return train_alone(cli_train_vgg, argc, argv);
    if (cli_name_first(argc, argv, cli_names_recurrent, names_another))
        return train_alone(cli_train_sequence, argc, argv);
    train t = {.common = CLI_COMMON_DEFAULTS,
               .solver = CLI_SOLVER_DEFAULTS,
               .network = {.options = {.layers = 1024, .width = 32}, .gain = 1, .batch = 128},
               .options = {.size = sizeof t.options, .epochs = 4},
               .optimiser = CLI_OPTIMISER_DEFAULTS,
               .pipeline = CLI_PIPELINE_DEFAULTS,
               .workers = CLI_WORKERS_DEFAULTS,
               .report = CLI_REPORT_DEFAULTS,
               .data = CLI_FASHION_MNIST};
    t.common.serves_devices = true;
    t.report.train = &t.options;
    const cli_syntax syntax = {
        .arguments = "mlp|resnet|rnn|rnn-relu|gru|lstm|paragru|paralstm|mingru|vae|denoiser|vgg11",
        .doc =
            "mlp, resnet: trains a classifier of images: an encoder, a chain of layers, a head; "
            "cross-entropy. Defaults: 1024 layers, "
            "width 32, batch 128, float32, method and backward auto. The others' options: 'deeppcr train gru --help', "
            "'train vae --help', 'train denoiser --help', 'train vgg11 --help'.\vInterrupt (Ctrl-C) or "
            "terminate: it stops after a "
            "checkpoint with exit status 130 or 143. A killed run resumes from its last "
            "checkpoint with the same options.",
        .groups = {{&train_argp, &t, "Training:"},
                   {&cli_report_argp, &t.report, "Checkpoints, log and tests:"},
                   {&cli_optimiser_argp, &t.optimiser, "Optimiser:"},
                   {&cli_network_argp, &t.network, "Network:"},
                   {&cli_solver_argp, &t.solver, "Solver:"},
                   {&cli_pipeline_argp, &t.pipeline, "Pipeline:"},
                   {&cli_workers_argp, &t.workers, "Workers:"},
                   {&cli_common_argp, &t.common, "Output and resources:"}},
        .most = 1};
    const char *positional[CLI_MAX_POSITIONAL];
    int status;
    dpcr_architecture architecture;
    if (!cli_parse(&syntax, argc, argv, positional, &status)) return status;
    static const char others[] = ", rnn, rnn-relu, gru, lstm, paragru, paralstm, mingru, vae, denoiser, vgg11";
    if (!cli_read_architecture(positional[0], others, &architecture)) return CLI_USAGE;
    status = cli_workers_settle(&t.workers, &t.pipeline);
    if (!status) status = cli_pipeline_settle(&t.pipeline);
    if (!status && t.workers.kind == CLI_LAYERWISE && t.options.clip > 0)
        status = cli_fail(CLI_USAGE, "--clip is not for --layer-wise, which never has the whole gradient");
    if (!status) status = settle_output(&t);
    if (status) return status;
    settle_defaults(&t);
    status = settle_device(&t);
    if (!status) status = settle_solver(&t);
    if (status) return status;
    return cli_world_size() > 1 ? run_among(&t, architecture) : run(&t, architecture);
}
