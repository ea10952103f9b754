// SPDX-License-Identifier: MIT
// train vgg11: a VGG-11 is trained whole, its smallest weights are taken out, and what is left is trained on with its
// backward pass as a scan over sparse Jacobians (BPPSA), beside the loop over the same Jacobians and dense
// back-propagation: flops, times, differences. Every number follows from the seed and the step, so a run that was
// stopped goes on to the same bits.
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "vgg.h"

enum {
    KEY_DATA = 0xb000,
    KEY_STEPS,
    KEY_BATCH,
    KEY_PRUNE,
    KEY_LIMIT,
    KEY_DIVISOR,
    KEY_WAY,
    KEY_COMPARE,
    KEY_TEST,
    KEY_LEVELS,
    KEY_DENSE_STEPS,
    KEY_DENSE_BATCH,
    KEY_STAGES,
    KEY_SAVE,
    KEY_RESUME,
    KEY_CHECKPOINT
};
enum { STREAM_ORDER = 181, MOST_COMPARED = 4096 };
// The parts of a run, and when the test images are judged.
enum { WHOLE = 0, PRUNED, PARTS };
static const char *const part_names[PARTS] = {"dense", "pruned"};
enum { AFTER_DENSE = 0, AFTER_PRUNING, AT_END, TESTS };

// What a checkpoint knows of a part.
typedef struct part_state {
    int64_t correct;
    double first_loss, loss;
} part_state;

typedef struct test_state {
    double loss, accuracy;
} test_state;

typedef struct training {
    cli_common common;
    cli_optimiser optimiser;
    const char *data, *save, *resume;
    int64_t part_steps[PARTS], part_batch[PARTS], stages, limit, divisor, compare, test;
    double prune, checkpoint_seconds;
    int way, levels;
    bool batch_given[PARTS];
    // The run.
    dpcr_context *context;
    dpcr_dataset images, test_images;
    vgg_scale scale;
    uint64_t hash;  // of the training images
    convnet net;
    dpcr_optimiser *optimiser_of;
    int64_t *order;
    int64_t order_of;  // epoch that `order` is of, -1: none yet
    int64_t step;      // updates done, of both parts
    part_state parts[PARTS];
    test_state tests[TESTS];
    double seconds, saved, forward, backward, parameters, update;
    double compared[CONVNET_WAYS][MOST_COMPARED], largest[CONVNET_WAYS];
    int64_t compared_count;
    json_t *log;
} training;

static const struct argp_option vgg_options[] = {
    {"data", KEY_DATA, "NAME|DIR", 0,
     "fashion-mnist (default) or a folder of CIFAR-10's binary files or of IDX files, images of at most 32 x 32", 0},
    {"dense-steps", KEY_DENSE_STEPS, "N", 0,
     "Updates of the whole network, by dense products, before the pruning (default 400; 0: pruned as drawn)", 0},
    {"dense-batch", KEY_DENSE_BATCH, "B", 0, "Images of a dense update (default 32)", 0},
    {"prune-stages", KEY_STAGES, "N", 0,
     "Takes the weights out bit by bit, N times in their middle half (default 8; 1: all at their end)", 0},
    {"steps", KEY_STEPS, "N", 0, "Updates of the pruned network (default 200; 0: none)", 0},
    {"batch", KEY_BATCH, "B", 0, "Images of an update of the pruned network (default 4)", 0},
    {"prune", KEY_PRUNE, "F", 0,
     "Fraction of each layer's weights, but the first and the last one's, that is taken out, the smallest (default "
     "0.97)",
     0},
    {"level-limit", KEY_LEVELS, "N", 0,
     "Levels of BPPSA's tree, L_m (default 2; none: as many as there are; 0: the loop)", 0},
    {"way", KEY_WAY, "scan|loop|dense", 0, "What makes the gradients that are trained with (default scan)", 0},
    {"compare", KEY_COMPARE, "N", 0, "Every Nth update the other ways too: times, differences (default 20; 0: never)",
     0},
    {"divisor", KEY_DIVISOR, "N", 0, "Divides the channels (default 1)", 0},
    {"limit", KEY_LIMIT, "N", 0, "Only the first N images of each split", 0},
    {"test", KEY_TEST, "N", 0, "Test images at the end, in whole batches, one at least (default 256)", 0},
    {"save", KEY_SAVE, "FILE", 0, "Model and checkpoint (safetensors; default with --resume: the same file)", 0},
    {"resume", KEY_RESUME, "FILE", 0, "Go on from a checkpoint; ends with the bits of a run that was never stopped", 0},
    {"checkpoint-seconds", KEY_CHECKPOINT, "S", 0, "At most this much work is lost (default 30)", 0},
    {0},
};

static error_t read_levels(const char *arg, int *levels) {
    if (!strcmp(arg, "none")) {
        *levels = -1;
        return 0;
    }
    return cli_read_int("--level-limit", arg, 0, 62, levels) ? 0 : EINVAL;
}

static error_t read_batch(const char *option, const char *arg, training *t, int part) {
    t->batch_given[part] = true;
    return cli_read_int64(option, arg, 1, 4096, &t->part_batch[part]) ? 0 : EINVAL;
}

static error_t parse_vgg(int key, char *arg, struct argp_state *state) {
    training *t = state->input;
    switch (key) {
        case KEY_DATA: t->data = arg; return 0;
        case KEY_LEVELS: return read_levels(arg, &t->levels);
        case KEY_SAVE: t->save = arg; return 0;
        case KEY_RESUME: t->resume = arg; return 0;
        case KEY_CHECKPOINT:
            return cli_read_double("--checkpoint-seconds", arg, 1e-3, HUGE_VAL, &t->checkpoint_seconds) ? 0 : EINVAL;
        case KEY_DENSE_STEPS:
            return cli_read_int64("--dense-steps", arg, 0, 1 << 24, &t->part_steps[WHOLE]) ? 0 : EINVAL;
        case KEY_DENSE_BATCH: return read_batch("--dense-batch", arg, t, WHOLE);
        case KEY_STAGES: return cli_read_int64("--prune-stages", arg, 1, 1 << 20, &t->stages) ? 0 : EINVAL;
        case KEY_STEPS: return cli_read_int64("--steps", arg, 0, 1 << 24, &t->part_steps[PRUNED]) ? 0 : EINVAL;
        case KEY_BATCH: return read_batch("--batch", arg, t, PRUNED);
        case KEY_PRUNE: return cli_read_double("--prune", arg, 0, 0.999, &t->prune) ? 0 : EINVAL;
        case KEY_DIVISOR: return cli_read_int64("--divisor", arg, 1, 512, &t->divisor) ? 0 : EINVAL;
        case KEY_LIMIT: return cli_read_int64("--limit", arg, 1, INT64_MAX, &t->limit) ? 0 : EINVAL;
        case KEY_COMPARE: return cli_read_int64("--compare", arg, 0, INT64_MAX, &t->compare) ? 0 : EINVAL;
        case KEY_TEST: return cli_read_int64("--test", arg, 1, INT64_MAX, &t->test) ? 0 : EINVAL;
        case KEY_WAY: return cli_read_word("--way", arg, convnet_ways, CONVNET_WAYS, &t->way) ? 0 : EINVAL;
        default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp vgg_argp = {vgg_options, parse_vgg, NULL, NULL, NULL, NULL, NULL};

bool cli_names_vgg(const char *word) { return !strcmp(word, "vgg11"); }

// ---- batches ----

static void shuffle(training *t, int64_t epoch) {
    if (epoch == t->order_of) return;
    for (int64_t i = 0; i < t->images.count; i++) t->order[i] = i;
    for (int64_t i = t->images.count - 1; i > 0; i--) {
        const int64_t j =
            (int64_t)cli_random_below(t->common.seed, STREAM_ORDER + (uint64_t)epoch, (uint64_t)i, (uint64_t)i + 1);
        const int64_t kept = t->order[i];
        t->order[i] = t->order[j];
        t->order[j] = kept;
    }
    t->order_of = epoch;
}

static int part_of(const training *t) { return t->step < t->part_steps[WHOLE] ? WHOLE : PRUNED; }
static int64_t step_within(const training *t, int part) {
    return t->step - (part == PRUNED ? t->part_steps[WHOLE] : 0);
}
static int64_t steps_in_all(const training *t) { return t->part_steps[WHOLE] + t->part_steps[PRUNED]; }

// Each part goes through the images anew, in orders of its own.
static void put_batch(training *t, int part) {
    const int64_t step = step_within(t, part), batches = t->images.count / t->net.batch, at = step % batches;
    shuffle(t, step / batches + (part == WHOLE ? INT64_C(1) << 32 : 0));
    for (int64_t b = 0; b < t->net.batch; b++)
        vgg_put_image(&t->net, &t->images, t->scale, t->order[at * t->net.batch + b], b);
}

// ---- checkpoints ----

// What must be alike in a run that goes on once the pruned network was trained.
static void note_retraining(const training *t, vgg_notes *n) {
    vgg_note_int(n, "deeppcr.train.steps", t->part_steps[PRUNED]);
    vgg_note_int(n, "deeppcr.train.batch", t->part_batch[PRUNED]);
    vgg_note_int(n, "deeppcr.train.levels", t->levels);
    vgg_note_text(n, "deeppcr.train.way", convnet_ways[t->way]);
}

#define DENORMALS "deeppcr.train.denormals"

// What must be alike in any.
static void note_options(const training *t, vgg_notes *n) {
    const dpcr_optimiser_options *o = &t->optimiser.options;
    vgg_note_int(n, "deeppcr.vgg.channels", t->images.channels > 0 ? t->images.channels : 1);
    vgg_note_int(n, "deeppcr.vgg.divisor", t->divisor);
    vgg_note_real(n, "deeppcr.vgg.mean", t->scale.mean);
    vgg_note_real(n, "deeppcr.vgg.deviation", t->scale.deviation);
    vgg_note_real(n, "deeppcr.vgg.prune", t->prune);
    vgg_note_int(n, "deeppcr.train.dense_steps", t->part_steps[WHOLE]);
    vgg_note_int(n, "deeppcr.train.dense_batch", t->part_batch[WHOLE]);
    vgg_note_int(n, "deeppcr.train.prune_stages", t->stages);
    vgg_note_int(n, "deeppcr.train.seed", (int64_t)t->common.seed);
    vgg_note_int(n, "deeppcr.train.data", (int64_t)t->hash);
    vgg_note_int(n, "deeppcr.train.test_images", t->test);
    vgg_note_text(n, "deeppcr.train.optimiser", cli_optimiser_name(o->kind));
    vgg_note_int(n, "deeppcr.train.total", o->total);
    vgg_note_int(n, "deeppcr.train.warm_up", t->optimiser.warm_up_given ? o->warm_up : -1);
    vgg_note_real(n, "deeppcr.train.rate", o->rate);
    vgg_note_real(n, "deeppcr.train.decay", o->weight_decay);
    vgg_note_real(n, "deeppcr.train.momentum", o->momentum);
    vgg_note_real(n, "deeppcr.train.beta1", o->beta1);
    vgg_note_real(n, "deeppcr.train.beta2", o->beta2);
    vgg_note_real(n, "deeppcr.train.epsilon", o->epsilon);
    vgg_note_text(n, DENORMALS, cli_flushes_denormals() ? "flush" : "keep");
}

static const char *const part_keys[PARTS][3] = {
    {"deeppcr.train.dense_correct", "deeppcr.train.dense_first_loss", "deeppcr.train.dense_loss"},
    {"deeppcr.train.correct", "deeppcr.train.first_loss", "deeppcr.train.loss"}};
static const char *const test_keys[AT_END][2] = {
    {"deeppcr.train.dense_test_loss", "deeppcr.train.dense_test_accuracy"},
    {"deeppcr.train.pruned_test_loss", "deeppcr.train.pruned_test_accuracy"}};

static void note_position(const training *t, vgg_notes *n) {
    vgg_note_int(n, "deeppcr.vgg.pruned", !t->net.whole);
    vgg_note_int(n, "deeppcr.train.step", t->step);
    for (int p = 0; p < PARTS; p++) {
        vgg_note_int(n, part_keys[p][0], t->parts[p].correct);
        vgg_note_real(n, part_keys[p][1], t->parts[p].first_loss);
        vgg_note_real(n, part_keys[p][2], t->parts[p].loss);
    }
    for (int k = 0; k < AT_END; k++) {
        vgg_note_real(n, test_keys[k][0], t->tests[k].loss);
        vgg_note_real(n, test_keys[k][1], t->tests[k].accuracy);
    }
}

static int refuse_not_finite(const training *t) {
    for (int64_t i = 0; i < t->net.parameters; i++)
        if (!isfinite(t->net.vector[i]))
            return cli_fail(CLI_USAGE,
                            "after step %lld the weights are not finite; no checkpoint is written, a lower --rate may "
                            "help",
                            (long long)t->step);
    return CLI_DONE;
}

static int save(training *t) {
    vgg_notes notes = {0};
    const int refused = refuse_not_finite(t);
    t->saved = cli_now();
    if (refused || !t->save) return refused;
    note_options(t, &notes);
    note_retraining(t, &notes);
    note_position(t, &notes);
    const int status = vgg_save(t->save, &t->net, t->optimiser_of, &notes);
    t->saved = cli_now();
    return status;
}

static int agrees(const training *t, const dpcr_tensors *file) {
    vgg_notes mine = {0};
    note_options(t, &mine);
    if (t->step > t->part_steps[WHOLE]) note_retraining(t, &mine);
    for (int i = 0; i < mine.count; i++) {
        const char *key = mine.items[i].key, *got = dpcr_tensors_metadata(file, key);
        if (!got && !strcmp(key, DENORMALS)) continue;  // older checkpoints do not tell
        if (!got) return cli_fail(CLI_INPUT, "%s: '%s' is missing", t->resume, key);
        if (strcmp(got, mine.items[i].value) != 0)
            return cli_fail(CLI_USAGE, "resume from %s: '%s' is %.40s there and %.40s here", t->resume, key, got,
                            mine.items[i].value);
    }
    return CLI_DONE;
}

static int read_position(training *t, const dpcr_tensors *file) {
    int status = vgg_get_int(file, t->resume, "deeppcr.train.step", 0, INT64_C(1) << 40, &t->step);
    for (int p = 0; p < PARTS && !status; p++) {
        status = vgg_get_int(file, t->resume, part_keys[p][0], 0, INT64_MAX, &t->parts[p].correct);
        if (!status) status = vgg_get_real(file, t->resume, part_keys[p][1], &t->parts[p].first_loss);
        if (!status) status = vgg_get_real(file, t->resume, part_keys[p][2], &t->parts[p].loss);
    }
    for (int k = 0; k < AT_END && !status; k++) {
        status = vgg_get_real(file, t->resume, test_keys[k][0], &t->tests[k].loss);
        if (!status) status = vgg_get_real(file, t->resume, test_keys[k][1], &t->tests[k].accuracy);
    }
    return status;
}

// ---- training ----

static int create_optimiser(training *t, int part, int64_t count, dpcr_optimiser **optimiser) {
    dpcr_error error = {0};
    cli_optimiser own = t->optimiser;
    cli_optimiser_settle(&own, t->part_steps[part]);
    if (own.options.total == -1) own.options.total = t->part_steps[part];
    if (dpcr_optimiser_create(t->context, &own.options, DPCR_F32, count, optimiser, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_COMPUTING);
    return CLI_DONE;
}

static int make_optimiser(training *t, int part) {
    dpcr_optimiser_destroy(t->optimiser_of);
    t->optimiser_of = NULL;
    return create_optimiser(t, part, t->net.parameters, &t->optimiser_of);
}

// What would be refused of the pruned network's optimiser, before the whole one is trained.
static int check_optimiser(training *t) {
    dpcr_optimiser *pruned = NULL;
    const int status = create_optimiser(t, PRUNED, 1, &pruned);
    dpcr_optimiser_destroy(pruned);
    return status;
}

static int resume(training *t) {
    dpcr_error error = {0};
    dpcr_tensors file = {0};
    if (dpcr_safetensors_read(t->context, t->resume, &file, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_READING);
    int64_t pruned = 0;
    int status = CLI_DONE;
    if (!vgg_is(&file))
        status = cli_fail(CLI_INPUT, "%s: no checkpoint of a VGG-11", t->resume);
    else if (dpcr_tensors_sum_agrees(&file, t->resume, &error) != DPCR_OK)
        status = cli_fail_error(&error, CLI_READING);
    if (!status) status = read_position(t, &file);
    if (!status) status = agrees(t, &file);
    if (!status) status = vgg_get_int(&file, t->resume, "deeppcr.vgg.pruned", 0, 1, &pruned);
    const int part = pruned ? PRUNED : WHOLE;
    if (!status &&
        (t->step > steps_in_all(t) || (pruned ? t->step < t->part_steps[WHOLE] : t->step > t->part_steps[WHOLE])))
        status = cli_fail(CLI_INPUT, "%s: step %lld is not of a %s network", t->resume, (long long)t->step,
                          part_names[part]);
    if (!status) status = vgg_load(t->context, &file, t->resume, t->part_batch[part], t->levels, false, &t->net);
    if (!status) status = make_optimiser(t, part);
    if (!status) status = vgg_load_optimiser(&file, t->resume, step_within(t, part), t->optimiser_of);
    dpcr_tensors_free(t->context, &file);
    return status;
}

static int timed_backward(training *t, int way, double *seconds) {
    const double start = cli_now();
    const int status = convnet_backward(&t->net, way);
    *seconds = cli_now() - start;
    return status;
}

static int compare(training *t) {
    int status = CLI_DONE;
    for (int w = 0; !status && w < CONVNET_WAYS; w++) status = timed_backward(t, w, &t->compared[w][t->compared_count]);
    for (int w = 0; !status && w < CONVNET_DENSE; w++)
        t->largest[w] = fmax(t->largest[w], convnet_difference(&t->net, w, CONVNET_DENSE));
    t->compared_count++;
    return status;
}

static int stop(const training *t) {
    return cli_fail(128 + cli_signal(), "stopped as asked after step %lld of %lld%s%s", (long long)t->step,
                    (long long)steps_in_all(t), t->save ? "; to go on, resume from " : "", t->save ? t->save : "");
}

static int stop_as_asked(training *t) {
    const int status = save(t);
    return status ? status : stop(t);
}

// Did the signal end it, or an error of its own?
static bool stopped(int status) { return cli_signal() && status == 128 + cli_signal(); }

static void tell_step(training *t, int part, double loss, int64_t correct) {
    const int64_t done = step_within(t, part);
    if (t->common.json)
        cli_append(&t->log, json_pack("{ss sI sf sI}", "part", part_names[part], "step", (json_int_t)done, "loss", loss,
                                      "correct", (json_int_t)correct));
    if (done % 20 == 0)
        cli_say(&t->common, "%s: step %lld/%lld  loss %.4f  accuracy so far %.2f %%\n", part_names[part],
                (long long)done, (long long)t->part_steps[part], loss,
                100.0 * (double)t->parts[part].correct / (double)(done * t->part_batch[part]));
    if (!t->common.json) fflush(stdout);
}

// Stage k of N, from 1, begins at a step of the middle half of the whole network's:  prune (1 - (1 - k/N)^3)  of the
// weights are out from then on. Source: Zhu, Gupta, arXiv 1710.01878.
static int64_t stage_step(const training *t, int64_t k) {
    return t->part_steps[WHOLE] / 4 + (k - 1) * (t->part_steps[WHOLE] / 2) / t->stages;
}

static int begin_stage(training *t) {
    int64_t stage = 0;
    for (int64_t k = 1; k <= t->stages && t->stages > 1; k++)
        if (stage_step(t, k) == t->step) stage = k;
    if (!stage) return CLI_DONE;
    const double left = 1 - (double)stage / (double)t->stages;
    return convnet_thin(&t->net, t->prune * (1 - left * left * left));
}

// Forward and back through the next step's batch.
static int passes(training *t, int part, int way, double *loss, int64_t *correct) {
    const int64_t step = step_within(t, part);
    double seconds = 0, mark = cli_now();
    int status = part == WHOLE ? begin_stage(t) : CLI_DONE;
    put_batch(t, part);
    if (!status) status = convnet_forward(&t->net, loss, correct);
    t->forward += cli_now() - mark;
    if (status) return status;
    if (!isfinite(*loss))
        return cli_fail(CLI_USAGE, "step %lld: the loss is %g; a lower --rate may help", (long long)t->step + 1, *loss);
    const bool all = part == PRUNED && t->compare && step % t->compare == 0 && t->compared_count < MOST_COMPARED;
    if (all) {
        status = compare(t);
        if (!status) seconds = t->compared[way][t->compared_count - 1];
    } else {
        status = timed_backward(t, way, &seconds);
    }
    t->backward += seconds;
    if (status) return status;
    mark = cli_now();
    status = convnet_parameters(&t->net, way);
    t->parameters += cli_now() - mark;
    return status;
}

static int one_step(training *t, int part) {
    dpcr_error error = {0};
    part_state *of = &t->parts[part];
    const int way = part == WHOLE ? CONVNET_DENSE : t->way;
    const int64_t step = step_within(t, part);
    double loss = 0;
    int64_t correct = 0;
    cli_hold(true);
    int status = passes(t, part, way, &loss, &correct);
    cli_hold(false);
    // Within a pass the network is as the last step left it.
    if (status) return stopped(status) ? stop_as_asked(t) : cli_fail(status, "%s", cli_failed_text());
    const double mark = cli_now();
    if (dpcr_optimiser_step(t->optimiser_of, t->net.vector, t->net.gradient, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_COMPUTING);
    if (part == WHOLE && t->stages > 1 && step >= stage_step(t, 1)) convnet_keep_zeros(&t->net);
    status = convnet_refill(&t->net);
    t->update += cli_now() - mark;
    if (status) return status;
    if (step == 0) of->first_loss = loss;
    of->loss = loss;
    of->correct += correct;
    t->step++;
    tell_step(t, part, loss, correct);
    if (cli_signal() && t->step < steps_in_all(t)) return stop_as_asked(t);
    return cli_now() - t->saved >= t->checkpoint_seconds ? save(t) : CLI_DONE;
}

// Of the test images whole batches; there is one.
static int64_t test_batches(const training *t, int64_t batch) {
    const int64_t count = t->test < t->test_images.count ? t->test : t->test_images.count;
    return count < batch ? 1 : count / batch;
}

static int test(training *t, int when) {
    const int64_t batches = test_batches(t, t->net.batch);
    int64_t correct = 0;
    int status = CLI_DONE;
    test_state *to = &t->tests[when];
    *to = (test_state){0};
    for (int64_t i = 0; !status && i < batches; i++) {
        double loss = 0;
        for (int64_t b = 0; b < t->net.batch; b++)
            vgg_put_image(&t->net, &t->test_images, t->scale, i * t->net.batch + b, b);
        status = convnet_forward(&t->net, &loss, &correct);
        // The checkpoint from before the pruning stands, so that this test is made again.
        if (!status && cli_signal()) status = when == AFTER_PRUNING ? stop(t) : stop_as_asked(t);
        to->loss += loss / (double)batches;
    }
    to->accuracy = (double)correct / (double)(batches * t->net.batch);
    return status;
}

// Takes the smallest weights out of the trained network.
static int prune(training *t) {
    convnet whole = t->net;
    const convnet_shape shape = {.channels = whole.channels,
                                 .batch = t->part_batch[PRUNED],
                                 .divisor = t->divisor,
                                 .prune = t->prune,
                                 .levels = t->levels,
                                 .from = &whole};
    int status = test(t, AFTER_DENSE);
    if (!status) status = save(t);
    if (status) return status;
    cli_hold(true);
    status = convnet_create(t->context, &shape, &t->net);
    cli_hold(false);
    convnet_destroy(&whole);
    if (status) return stopped(status) ? stop(t) : cli_fail(status, "%s", cli_failed_text());
    status = make_optimiser(t, PRUNED);
    if (!status) status = test(t, AFTER_PRUNING);
    if (!status) status = save(t);
    if (!status)
        cli_say(&t->common, "test accuracy %.2f %%, with the smallest %.4g %% of the weights taken out %.2f %%\n",
                100 * t->tests[AFTER_DENSE].accuracy, 100 * t->prune, 100 * t->tests[AFTER_PRUNING].accuracy);
    return status;
}

// ---- what is told ----

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static json_t *way_object(training *t, int w) {
    cli_result o = cli_result_create();
    const dpcr_bppsa_cost *c = dpcr_bppsa_plan_cost(t->net.plan[w == CONVNET_DENSE ? CONVNET_LOOP : w]);
    const bool dense = w == CONVNET_DENSE;
    qsort(t->compared[w], (size_t)t->compared_count, sizeof(double), by_size);
    cli_set_text(&o, "name", convnet_ways[w]);
    cli_set_real(&o, "seconds", t->compared_count ? t->compared[w][t->compared_count / 2] : NAN);
    cli_set_real(&o, "flops", dense ? t->net.dense_flops : c->flops);
    cli_set_real(&o, "critical_flops", dense ? t->net.dense_flops : c->critical_flops);
    cli_set_real(&o, "max_error", t->largest[w]);
    if (!dense) {
        cli_set_int(&o, "levels", c->levels);
        cli_set_int(&o, "depth", c->depth);
        cli_set_int(&o, "compositions", c->compositions);
        cli_set_int(&o, "pattern_bytes", (int64_t)c->pattern_bytes);
        cli_set_int(&o, "workspace_bytes", (int64_t)c->workspace_bytes);
        cli_set_real(&o, "planning_seconds", t->net.plan_seconds[w]);
    }
    json_t *object = o.failed ? NULL : json_incref(o.object);
    cli_result_destroy(&o);
    return object;
}

static double accuracy_of(const training *t, int part) {
    const int64_t images = t->part_steps[part] * t->part_batch[part];
    return images ? (double)t->parts[part].correct / (double)images : NAN;
}

static int tell(training *t) {
    cli_result r = cli_result_create();
    const double worst = fmax(t->largest[CONVNET_SCAN], t->largest[CONVNET_LOOP]);
    const dpcr_bppsa_cost *scan = dpcr_bppsa_plan_cost(t->net.plan[CONVNET_SCAN]);
    const int64_t tested = test_batches(t, t->net.batch) * t->net.batch;
    int64_t weights = 0, kept = 0;
    for (int64_t i = 0; i < t->net.count; i++) {
        weights += t->net.layers[i].weight_count;
        kept += t->net.layers[i].kept_count;
    }
    cli_set_text(&r, "network", "vgg11");
    cli_set_text(&r, "data", t->data);
    cli_set_text(&r, "way", convnet_ways[t->way]);
    cli_set_int(&r, "steps", t->part_steps[PRUNED]);
    cli_set_int(&r, "batch", t->part_batch[PRUNED]);
    cli_set_int(&r, "dense_steps", t->part_steps[WHOLE]);
    cli_set_int(&r, "dense_batch", t->part_batch[WHOLE]);
    cli_set_real(&r, "prune", t->prune);
    cli_set_int(&r, "prune_stages", t->stages);
    cli_set_int(&r, "channels", t->net.channels);
    cli_set_int(&r, "divisor", t->divisor);
    cli_set_int(&r, "weights", weights);
    cli_set_int(&r, "weights_kept", kept);
    if (t->part_steps[WHOLE]) {
        cli_set_real(&r, "dense_first_loss", t->parts[WHOLE].first_loss);
        cli_set_real(&r, "dense_train_loss", t->parts[WHOLE].loss);
        cli_set_real(&r, "dense_train_accuracy", accuracy_of(t, WHOLE));
        cli_set_real(&r, "dense_test_loss", t->tests[AFTER_DENSE].loss);
        cli_set_real(&r, "dense_test_accuracy", t->tests[AFTER_DENSE].accuracy);
        cli_set_real(&r, "pruned_test_loss", t->tests[AFTER_PRUNING].loss);
        cli_set_real(&r, "pruned_test_accuracy", t->tests[AFTER_PRUNING].accuracy);
    }
    const bool trained = t->part_steps[PRUNED] > 0;
    cli_set_real(&r, "first_loss", trained ? t->parts[PRUNED].first_loss : NAN);
    cli_set_real(&r, "train_loss", trained ? t->parts[PRUNED].loss : NAN);
    cli_set_real(&r, "train_accuracy", accuracy_of(t, PRUNED));
    cli_set_real(&r, "test_loss", t->tests[AT_END].loss);
    cli_set_real(&r, "test_accuracy", t->tests[AT_END].accuracy);
    cli_set_int(&r, "test_images", tested);
    cli_set_real(&r, "rate", t->optimiser.options.rate);
    cli_set_int(&r, "seed", (json_int_t)t->common.seed);
    cli_set_int(&r, "threads", dpcr_context_threads(t->context));
    cli_set_real(&r, "seconds", t->seconds);
    cli_set(&r, "phases",
            json_pack("{sf sf sf sf}", "forward", t->forward, "backward", t->backward, "parameters", t->parameters,
                      "update", t->update));
    cli_set_int(&r, "compared", t->compared_count);
    cli_set_real(&r, "max_error", worst);
    json_t *ways = json_array();
    for (int w = 0; w < CONVNET_WAYS; w++) cli_append(&ways, way_object(t, w));
    cli_set(&r, "ways", ways);
    if (t->save) cli_set_text(&r, "model", t->save);
    if (t->common.json) cli_set(&r, "log", json_incref(t->log));
    cli_say(&t->common,
            "test loss %.4f, test accuracy %.2f %% of %lld; %.1f s: forward %.2f, activations' gradients %.2f, "
            "parameters' %.2f, update %.2f\n",
            t->tests[AT_END].loss, 100 * t->tests[AT_END].accuracy, (long long)tested, t->seconds, t->forward,
            t->backward, t->parameters, t->update);
    for (int w = 0; w < CONVNET_WAYS && t->compared_count; w++) {
        const dpcr_bppsa_cost *c = w == CONVNET_DENSE ? NULL : dpcr_bppsa_plan_cost(t->net.plan[w]);
        cli_say(&t->common,
                "  %-6s %10.4g s a batch, flops an image %10.4g, on the critical path %10.4g, largest difference from "
                "dense %.2g\n",
                convnet_ways[w], t->compared[w][t->compared_count / 2], c ? c->flops : t->net.dense_flops,
                c ? c->critical_flops : t->net.dense_flops, t->largest[w]);
    }
    cli_say(&t->common, "  L_m = %d: %lld product%s, %.4g MB of patterns, workspace %.4g MB, planned once in %.3g s\n",
            scan->levels, (long long)scan->compositions, cli_s(scan->compositions), 1e-6 * (double)scan->pattern_bytes,
            1e-6 * (double)scan->workspace_bytes, t->net.plan_seconds[CONVNET_SCAN]);
    const int status =
        worst <= 1e-3 ? CLI_DONE : cli_fail(CLI_DISAGREE, "gradients differ by %.3g, allowed are 1e-3", worst);
    const int told = cli_finish(&t->common, &r, status);
    cli_result_destroy(&r);
    return told;
}

// ---- the run ----

static int read_images(training *t) {
    int status = cli_data_read(t->context, t->data, "train", CONVNET_CLASSES, t->limit, &t->images);
    if (!status) status = cli_data_read(t->context, t->data, "t10k", CONVNET_CLASSES, t->limit, &t->test_images);
    if (status) return status;
    const dpcr_dataset *a = &t->images, *b = &t->test_images;
    if (a->rows > CONVNET_SIDE || a->cols > CONVNET_SIDE || a->rows != b->rows || a->cols != b->cols)
        return cli_fail(CLI_INPUT, "'%s' has images of %lld x %lld, wanted at most 32 x 32", t->data,
                        (long long)a->rows, (long long)a->cols);
    for (int p = 0; p < PARTS; p++)
        if ((p == PRUNED || t->part_steps[p]) && (a->count < t->part_batch[p] || b->count < t->part_batch[p]))
            return cli_fail(t->limit || t->batch_given[p] ? CLI_USAGE : CLI_INPUT,
                            "'%s' has %lld and %lld images, less than a batch of %lld", t->data, (long long)a->count,
                            (long long)b->count, (long long)t->part_batch[p]);
    t->order = malloc((size_t)a->count * sizeof *t->order);
    if (!t->order) return cli_fail_memory("the order of the images");
    t->scale = vgg_measure(a);
    t->hash = cli_data_hash(a);
    return CLI_DONE;
}

static int begin(training *t) {
    const int part = t->part_steps[WHOLE] ? WHOLE : PRUNED;
    const convnet_shape shape = {.channels = t->images.channels > 0 ? t->images.channels : 1,
                                 .batch = t->part_batch[part],
                                 .divisor = t->divisor,
                                 .prune = part == WHOLE ? -1 : t->prune,
                                 .levels = t->levels,
                                 .seed = t->common.seed};
    const int status = convnet_create(t->context, &shape, &t->net);
    return status ? status : make_optimiser(t, part);
}

static int train(training *t) {
    // rate and the like as they will be, for the checkpoint's strings
    cli_optimiser settled = t->optimiser;
    cli_optimiser_settle(&settled, t->part_steps[PRUNED]);
    t->optimiser.options.rate = settled.options.rate;
    t->optimiser.options.weight_decay = settled.options.weight_decay;
    t->optimiser.options.momentum = settled.options.momentum;
    int status = check_optimiser(t);
    if (!status) status = t->resume ? resume(t) : begin(t);
    // Which images the test after the pruning takes hangs on --batch, which may be another one than then.
    if (!status && !t->net.whole && t->step > 0 && t->step == t->part_steps[WHOLE]) status = test(t, AFTER_PRUNING);
    if (!status && !(t->resume && t->save && !strcmp(t->save, t->resume))) status = save(t);
    t->saved = cli_now();
    const double start = cli_now();
    while (!status && (t->step < steps_in_all(t) || t->net.whole))
        status = t->net.whole && t->step == t->part_steps[WHOLE] ? prune(t) : one_step(t, part_of(t));
    t->seconds = cli_now() - start;
    if (!status) status = test(t, AT_END);
    if (!status) status = save(t);
    return status ? status : tell(t);
}

static int run(training *t) {
    int status = CLI_DONE;
    if (t->resume && !cli_resumable(t->resume)) return CLI_INPUT;
    if ((status = cli_check_save(t->save, t->checkpoint_seconds)) != CLI_DONE) return status;
    if (t->checkpoint_seconds == 0) t->checkpoint_seconds = 30;
    const cli_file written[] = {{"--save", t->save}, {"--csv", t->common.csv}};
    const cli_file read[] = {{"--resume", t->resume}, {"--csv", t->common.csv}},
                   data = {"--data", cli_data_place(t->data)};
    if (!cli_distinct(written, 2) || !cli_distinct(read, 2) || !cli_spares(written, 2, &data, 1)) return CLI_USAGE;
    t->context = cli_context_create(&t->common, &status);
    if (!t->context) return status;
    if (t->common.json) t->log = json_array();
    status = read_images(t);
    if (!status) status = train(t);
    convnet_destroy(&t->net);
    dpcr_optimiser_destroy(t->optimiser_of);
    dpcr_dataset_free(t->context, &t->images);
    dpcr_dataset_free(t->context, &t->test_images);
    free(t->order);
    json_decref(t->log);
    dpcr_context_destroy(t->context);
    return status;
}

int cli_train_vgg(int argc, char **argv) {
    training *t = calloc(1, sizeof *t);
    if (!t) return cli_fail_memory("the run's state");
    t->common = (cli_common)CLI_COMMON_DEFAULTS;
    t->optimiser = (cli_optimiser)CLI_OPTIMISER_DEFAULTS;
    t->data = CLI_FASHION_MNIST;
    t->part_steps[WHOLE] = 400, t->part_batch[WHOLE] = 32, t->part_steps[PRUNED] = 200, t->part_batch[PRUNED] = 4;
    t->divisor = 1, t->compare = 20, t->test = 256, t->prune = 0.97, t->levels = 2;
    t->stages = 8, t->order_of = -1;
    const cli_syntax syntax = {
        .arguments = "",
        .doc =
            "Trains a VGG-11, takes out the smallest 97 % of each layer's weights, and trains those that are left, "
            "with "
            "the activations' gradients as BPPSA's scan over sparse Jacobians whose products were planned once; every "
            "now and then also by the loop over the same Jacobians and by dense products: times, flops, "
            "differences.\vInterrupt (Ctrl-C) or terminate: it stops after a checkpoint with exit status 130 or 143. A "
            "killed run resumes from its last checkpoint with the same options.",
        .groups = {{&vgg_argp, t, "Training:"},
                   {&cli_optimiser_argp, &t->optimiser, "Optimiser:"},
                   {&cli_common_argp, &t->common, "Output and resources:"}},
        .most = 0};
    const char *positional[CLI_MAX_POSITIONAL];
    int status;
    if (cli_parse(&syntax, argc, argv, positional, &status)) {
        if (t->resume && !t->save) t->save = t->resume;
        status = run(t);
    }
    free(t);
    return status;
}
