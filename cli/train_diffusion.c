// SPDX-License-Identifier: MIT
// train vae, train denoiser: the networks of diffusion, on pictures, with checkpoints.
#include <errno.h>
#include <math.h>
#include <string.h>

#include "cli.h"

enum {
    KEY_DATA = 0x9000,
    KEY_EPOCHS,
    KEY_BATCH,
    KEY_SAVE,
    KEY_RESUME,
    KEY_CHECKPOINT,
    KEY_LIMIT,
    KEY_WIDTH,
    KEY_DEPTH,
    KEY_LATENT,
    KEY_STEPS,
    KEY_SCHEDULE,
    KEY_PREDICTION,
    KEY_CONDITIONAL,
    KEY_AVERAGE,
    KEY_KL,
    KEY_CONV,
    KEY_CONVOLUTIONS,
};

typedef struct diffusion {
    cli_common common;
    cli_optimiser optimiser;
    dpcr_learn_options options;
    const char *data, *latent;
    int64_t limit, width, depth;
    dpcr_noise_options noise;
    dpcr_prediction prediction;
    bool denoiser, conditional, prediction_given, convolutional, convolutions_given;
    // The run.
    dpcr_context *context;
    dpcr_dataset training;
    dpcr_autoencoder *autoencoder;
    dpcr_diffusion *model;
    cli_progress progress;
} diffusion;

static const struct argp_option diffusion_options[] = {
    {"data", KEY_DATA, "NAME|DIR", 0,
     "fashion-mnist (default; Debian package dataset-fashion-mnist) or a folder of IDX files, raw or gzipped, or of "
     "CIFAR-10's binary files",
     0},
    {"epochs", KEY_EPOCHS, "N", 0, "Passes over the training images (default 20)", 0},
    {"batch", KEY_BATCH, "N", 0,
     "Images a step (default 256); an epoch has whole batches, and which images are left over changes with each "
     "shuffle",
     0},
    {"save", KEY_SAVE, "FILE", 0, "Model and checkpoint (safetensors; default with --resume: the same file)", 0},
    {"resume", KEY_RESUME, "FILE", 0, "Go on from a checkpoint; ends with the bits of a run that was never stopped", 0},
    {"checkpoint-seconds", KEY_CHECKPOINT, "S", 0, "At most this much work is lost (default 30)", 0},
    {"limit", KEY_LIMIT, "N", 0, "Only the first N training images", 0},
    {"width", KEY_WIDTH, "W", 0, "Width of the hidden layers (default 512; --conv: channels of the first, 16)", 0},
    {"conv", KEY_CONV, NULL, 0, "vae: convolutions, each to half as many rows and columns and twice as many channels",
     0},
    {"convolutions", KEY_CONVOLUTIONS, "auto|gathered|onednn", 0,
     "vae --conv: trained by onednn, gathered or auto (default: a resumed run's, else onednn where there is one)", 0},
    {"depth", KEY_DEPTH, "D", 0, "Hidden layers (default: denoiser 3, vae 2 each way)", 0},
    {"latent", KEY_LATENT, "N|FILE", 0,
     "vae: numbers of a code (default 16); denoiser: the trained vae whose codes it denoises (default: pixels)", 0},
    {"steps", KEY_STEPS, "T", 0, "denoiser: training steps of the noise (default 1000)", 0},
    {"schedule", KEY_SCHEDULE, "NAME", 0, "denoiser: linear (default) or cosine", 0},
    {"prediction", KEY_PREDICTION, "NAME", 0, "denoiser: epsilon, x0 or v (default: x0 of pixels, v of codes)", 0},
    {"conditional", KEY_CONDITIONAL, NULL, 0, "denoiser: learns the classes too, one image in ten without", 0},
    {"average", KEY_AVERAGE, "D", 0, "Decay of the averaged weights (default 0.999)", 0},
    {"kl", KEY_KL, "X", 0, "vae: weight of the codes' divergence (default 1)", 0},
    {0},
};

static const char *const convolution_names[] = {"auto", "gathered", "onednn"};  // as dpcr_convolution

static error_t taken(bool ok) { return ok ? 0 : EINVAL; }

static error_t read_schedule(diffusion *d, const char *arg) {
    dpcr_error error = {0};
    if (dpcr_noise_find(arg, &d->noise.kind, &error) == DPCR_OK) return 0;
    cli_fail(CLI_USAGE, "--schedule: %s", error.text);
    return EINVAL;
}

static error_t read_prediction(diffusion *d, const char *arg) {
    dpcr_error error = {0};
    d->prediction_given = true;
    if (dpcr_prediction_find(arg, &d->prediction, &error) == DPCR_OK) return 0;
    cli_fail(CLI_USAGE, "--prediction: %s", error.text);
    return EINVAL;
}

static error_t read_average(const char *text, double *average) {
    if (!cli_read_double("--average", text, 1e-6, 1, average)) return EINVAL;
    if (*average < 1) return 0;
    cli_fail(CLI_USAGE, "--average '%.60s': wanted below 1, where nothing would be learned", text);
    return EINVAL;
}

static error_t parse_diffusion(int key, char *arg, struct argp_state *state) {
    diffusion *d = state->input;
    dpcr_learn_options *o = &d->options;
    int word = 0;
    switch (key) {
        case KEY_DATA: d->data = arg; return 0;
        case KEY_SAVE: o->save = arg; return 0;
        case KEY_RESUME: o->resume = arg; return 0;
        case KEY_LATENT: d->latent = arg; return 0;
        case KEY_CONDITIONAL: d->conditional = true; return 0;
        case KEY_CONV: d->convolutional = true; return 0;
        case KEY_CONVOLUTIONS:
            if (!cli_read_word("--convolutions", arg, convolution_names, 3, &word)) return EINVAL;
            o->convolution = (dpcr_convolution)word;
            d->convolutions_given = true;
            return 0;
        case KEY_SCHEDULE: return read_schedule(d, arg);
        case KEY_PREDICTION: return read_prediction(d, arg);
        case KEY_EPOCHS: return taken(cli_read_int64("--epochs", arg, 1, UINT32_MAX, &o->epochs));
        case KEY_BATCH: return taken(cli_read_int64("--batch", arg, 1, 1 << 16, &o->batch));
        case KEY_LIMIT: return taken(cli_read_int64("--limit", arg, 1, INT64_MAX, &d->limit));
        case KEY_WIDTH: return taken(cli_read_int64("--width", arg, 1, 1 << 14, &d->width));
        case KEY_DEPTH: return taken(cli_read_int64("--depth", arg, 1, 16, &d->depth));
        case KEY_STEPS: return taken(cli_read_int64("--steps", arg, 1, 1 << 14, &d->noise.steps));
        case KEY_AVERAGE: return read_average(arg, &o->average);
        case KEY_KL: return taken(cli_read_double("--kl", arg, 1e-9, HUGE_VAL, &o->weight));
        case KEY_CHECKPOINT:
            return taken(cli_read_double("--checkpoint-seconds", arg, 1e-3, HUGE_VAL, &o->checkpoint_seconds));
        default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp diffusion_argp = {diffusion_options, parse_diffusion, NULL, NULL, NULL, NULL, NULL};

static int on_step(void *user, const dpcr_learn_state *state) {
    diffusion *d = user;
    const dpcr_train_state shown = {.epoch = state->epoch,
                                    .epochs = state->epochs,
                                    .step = state->step,
                                    .steps = state->steps,
                                    .loss = state->loss,
                                    .images_per_second = state->images_per_second,
                                    .seconds_left = state->seconds_left};
    cli_progress_draw(&d->progress, &shown, state->epoch_ended != 0);
    if (!state->epoch_ended) return 0;
    cli_progress_clear(&d->progress);
    cli_say(&d->common, "epoch %lld/%lld  loss %.5f  %.0f images/s\n", (long long)state->epoch,
            (long long)state->epochs, state->loss, state->images_per_second);
    if (!d->common.json) fflush(stdout);
    return 0;
}

// ---- the models ----

static int make_autoencoder(diffusion *d) {
    dpcr_error error = {0};
    dpcr_autoencoder_options o = {.size = sizeof o,
                                  .rows = d->training.rows,
                                  .cols = d->training.cols,
                                  .latent = 16,
                                  .hidden = d->width,
                                  .depth = d->depth ? d->depth : 2,
                                  .seed = d->common.seed,
                                  .channels = d->training.channels,
                                  .convolutional = d->convolutional};
    if (d->latent && !cli_read_int64("--latent", d->latent, 1, 1 << 14, &o.latent)) return CLI_USAGE;
    if (dpcr_autoencoder_create(d->context, &o, &d->autoencoder, &error) == DPCR_OK) return CLI_DONE;
    return cli_fail_error(&error, CLI_COMPUTING);
}

static int make_denoiser(diffusion *d) {
    dpcr_error error = {0};
    dpcr_autoencoder *codes = NULL;
    dpcr_diffusion_options o = {.size = sizeof o,
                                .rows = d->training.rows,
                                .cols = d->training.cols,
                                .width = dpcr_dataset_pixels(&d->training),
                                .channels = d->training.channels,
                                .hidden = d->width,
                                .depth = d->depth ? d->depth : 3,
                                .classes = d->conditional ? d->training.classes : 0,
                                .prediction = d->prediction_given ? d->prediction
                                              : d->latent         ? DPCR_PREDICT_V
                                                                  : DPCR_PREDICT_X0,
                                .noise = d->noise,
                                .seed = d->common.seed};
    if (d->latent) {
        if (!cli_readable("the vae", d->latent)) return CLI_INPUT;
        if (dpcr_autoencoder_load(d->context, d->latent, &codes, &error) != DPCR_OK)
            return cli_fail_error(&error, CLI_READING);
        o.width = dpcr_autoencoder_get_options(codes)->latent;
    }
    if (dpcr_diffusion_create(d->context, &o, codes, &d->model, &error) == DPCR_OK) return CLI_DONE;
    return cli_fail_error(&error, CLI_COMPUTING);
}

static int tell(diffusion *d, const dpcr_learn_state *last) {
    cli_result r = cli_result_create();
    cli_set_text(&r, "network", d->denoiser ? "denoiser" : "vae");
    cli_set_real(&r, "train_loss", last->loss);
    cli_set_real(&r, "seconds", last->seconds);
    cli_set_real(&r, "images_per_second", last->images_per_second);
    cli_set_int(&r, "steps", last->step);
    cli_set_int(&r, "epochs", d->options.epochs);
    cli_set_int(&r, "batch", d->options.batch);
    cli_set_int(&r, "images", d->training.count);
    cli_set_int(&r, "width", d->width);
    if (d->denoiser) {
        const dpcr_diffusion_options *o = dpcr_diffusion_get_options(d->model);
        cli_set_int(&r, "depth", o->depth);
        cli_set_int(&r, "denoised", o->width);
        cli_set_int(&r, "classes", o->classes);
        cli_set_int(&r, "parameters", dpcr_diffusion_parameters(d->model));
        cli_set_text(&r, "prediction", dpcr_prediction_name(o->prediction));
        cli_set_text(&r, "schedule", dpcr_noise_name(o->noise.kind));
    } else {
        const dpcr_autoencoder_options *o = dpcr_autoencoder_get_options(d->autoencoder);
        cli_set_int(&r, "depth", o->depth);
        cli_set_int(&r, "latent", o->latent);
        cli_set_bool(&r, "convolutional", o->convolutional != 0);
        if (last->convolutions) cli_set_text(&r, "convolutions", last->convolutions);
    }
    cli_set_int(&r, "seed", (int64_t)d->common.seed);
    cli_set_int(&r, "threads", dpcr_context_threads(d->context));
    if (d->options.save) cli_set_text(&r, "model", d->options.save);
    cli_say(&d->common, "loss %.5f; %.1f s, %.0f images/s\n", last->loss, last->seconds, last->images_per_second);
    const int status = cli_finish(&d->common, &r, CLI_DONE);
    cli_result_destroy(&r);
    return status;
}

static int learn(diffusion *d) {
    dpcr_error error = {0};
    dpcr_learn_state last = {0};
    if (d->options.batch > d->training.count) d->options.batch = d->training.count;
    const int64_t batches = d->training.count / d->options.batch;
    cli_optimiser_settle(&d->optimiser,
                         batches > INT64_MAX / d->options.epochs ? INT64_MAX : batches * d->options.epochs);
    if (!d->optimiser.rate_given && d->optimiser.options.kind != DPCR_SGD) d->optimiser.options.rate = 1e-3;
    d->options.optimiser = d->optimiser.options;
    d->options.seed = d->common.seed;
    d->options.progress = on_step;
    d->options.progress_user = d;
    cli_progress_start(&d->progress, &d->common);
    const dpcr_status status = d->denoiser
                                   ? dpcr_diffusion_train(d->model, &d->training, &d->options, &last, &error)
                                   : dpcr_autoencoder_train(d->autoencoder, &d->training, &d->options, &last, &error);
    cli_progress_clear(&d->progress);
    if (status == DPCR_ERROR_FORMAT) return cli_fail_error(&error, CLI_READING);
    if (status != DPCR_OK) return cli_fail_training(&error);
    return tell(d, &last);
}

static int run(diffusion *d) {
    int status = CLI_DONE;
    if (d->options.resume && !cli_resumable(d->options.resume)) return CLI_INPUT;
    if ((status = cli_check_save(d->options.save, d->options.checkpoint_seconds)) != CLI_DONE) return status;
    const cli_file written[] = {{"--save", d->options.save}, {"--csv", d->common.csv}};
    const cli_file resume = {"--resume", d->options.resume};
    const cli_file read[] = {{"--latent", d->denoiser ? d->latent : NULL}, {"--data", cli_data_place(d->data)}};
    if (!cli_distinct(written, 2) || !cli_spares(written + 1, 1, &resume, 1) || !cli_spares(written, 2, read, 2))
        return CLI_USAGE;
    d->context = cli_context_create(&d->common, &status);
    if (!d->context) return status;
    status = cli_data_read(d->context, d->data, "train", 0, d->limit, &d->training);
    if (!status) status = d->denoiser ? make_denoiser(d) : make_autoencoder(d);
    if (!status) status = learn(d);
    dpcr_diffusion_destroy(d->model);
    dpcr_autoencoder_destroy(d->autoencoder);
    dpcr_dataset_free(d->context, &d->training);
    dpcr_context_destroy(d->context);
    return status;
}

bool cli_names_diffusion(const char *word) { return !strcmp(word, "vae") || !strcmp(word, "denoiser"); }

int cli_train_diffusion(int argc, char **argv) {
    diffusion d = {.common = CLI_COMMON_DEFAULTS,
                   .optimiser = CLI_OPTIMISER_DEFAULTS,
                   .options = {.size = sizeof d.options, .epochs = 20, .batch = 256},
                   .data = CLI_FASHION_MNIST,
                   .denoiser = !strcmp(argv[0], "denoiser")};
    const cli_syntax syntax = {
        .arguments = "",
        .doc =
            "train vae: an auto-encoder of pictures. train denoiser: a network that takes noise away from pictures, or "
            "from the codes of a vae, for 'deeppcr generate'. Float32, AdamW at rate 0.001.\vInterrupt (Ctrl-C) or "
            "terminate: it stops after a checkpoint with exit status 130 or 143. A killed run resumes from its last "
            "checkpoint with the same options.",
        .groups = {{&diffusion_argp, &d, "Training:"},
                   {&cli_optimiser_argp, &d.optimiser, "Optimiser:"},
                   {&cli_common_argp, &d.common, "Output and resources:"}}};
    const char *positional[CLI_MAX_POSITIONAL];
    int status;
    if (!cli_parse(&syntax, argc, argv, positional, &status)) return status;
    if (d.options.resume && !d.options.save) d.options.save = d.options.resume;
    if (d.convolutional && d.denoiser)
        return cli_fail(CLI_USAGE, "--conv is a vae's: wanted 'train vae --conv', then 'train denoiser --latent FILE'");
    if (d.convolutions_given && !d.convolutional)
        return cli_fail(CLI_USAGE, "--convolutions: wanted with 'train vae --conv'");
    if (!d.denoiser && (d.conditional || d.prediction_given || d.noise.steps || d.noise.kind != DPCR_NOISE_LINEAR))
        return cli_fail(CLI_USAGE, "--conditional, --prediction, --schedule and --steps: wanted with 'train denoiser'");
    if (d.denoiser && d.options.weight > 0) return cli_fail(CLI_USAGE, "--kl: wanted with 'train vae'");
    if (!d.width) d.width = d.convolutional ? 16 : 512;
    return run(&d);
}
