// SPDX-License-Identifier: MIT
// train vgg11: a VGG-11 whose smallest weights are pruned, trained with its backward pass as a scan over sparse
// Jacobians (BPPSA), beside the loop over the same Jacobians and dense back-propagation: flops, times, differences.
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "convnet.h"

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
    KEY_LEVELS
};
enum { STREAM_ORDER = 181, MOST_COMPARED = 4096 };

typedef struct training {
    cli_common common;
    cli_optimiser optimiser;
    const char *data;
    int64_t steps, batch, limit, divisor, compare, test;
    double prune;
    int way, levels;
    // The run.
    dpcr_context *context;
    dpcr_dataset images, test_images;
    double mean, deviation;
    convnet net;
    dpcr_optimiser *steps_of;
    int64_t *order;
    double seconds, forward, backward, parameters, update;
    double compared[CONVNET_WAYS][MOST_COMPARED], largest[CONVNET_WAYS];
    int64_t compared_count;
    double loss, first_loss, accuracy, test_loss, test_accuracy;
    int64_t correct;
    json_t *log;
} training;

static const struct argp_option vgg_options[] = {
    {"data", KEY_DATA, "NAME|DIR", 0,
     "fashion-mnist (default) or a folder of CIFAR-10's binary files or of IDX files, images of at most 32 x 32", 0},
    {"steps", KEY_STEPS, "N", 0, "Updates (default 200)", 0},
    {"batch", KEY_BATCH, "B", 0, "Images of an update (default 4)", 0},
    {"prune", KEY_PRUNE, "F", 0, "Fraction of each layer's weights that is taken out, the smallest (default 0.97)", 0},
    {"level-limit", KEY_LEVELS, "N", 0, "Levels of BPPSA's tree, L_m (default 2; none: as many as there are)", 0},
    {"way", KEY_WAY, "scan|loop|dense", 0, "What makes the gradients that are trained with (default scan)", 0},
    {"compare", KEY_COMPARE, "N", 0, "Every Nth update the other ways too: times, differences (default 20; 0: never)",
     0},
    {"divisor", KEY_DIVISOR, "N", 0, "Divides the channels (default 1)", 0},
    {"limit", KEY_LIMIT, "N", 0, "Only the first N images of each split", 0},
    {"test", KEY_TEST, "N", 0, "Test images at the end, in whole batches, one at least (default 256)", 0},
    {0},
};

static error_t read_levels(const char *arg, int *levels) {
    if (!strcmp(arg, "none")) {
        *levels = -1;
        return 0;
    }
    return cli_read_int("--level-limit", arg, 0, 62, levels) ? 0 : EINVAL;
}

static error_t parse_vgg(int key, char *arg, struct argp_state *state) {
    training *t = state->input;
    switch (key) {
        case KEY_DATA: t->data = arg; return 0;
        case KEY_LEVELS: return read_levels(arg, &t->levels);
        case KEY_STEPS: return cli_read_int64("--steps", arg, 1, 1 << 24, &t->steps) ? 0 : EINVAL;
        case KEY_BATCH: return cli_read_int64("--batch", arg, 1, 4096, &t->batch) ? 0 : EINVAL;
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

// ---- images ----

static void measure(training *t) {
    const int64_t n = t->images.count * dpcr_dataset_pixels(&t->images);
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += t->images.images[i];
        squares += (double)t->images.images[i] * t->images.images[i];
    }
    t->mean = sum / (double)n;
    t->deviation = squares / (double)n > t->mean * t->mean ? sqrt(squares / (double)n - t->mean * t->mean) : 1;
}

// Image `index` into row b of the batch, in the middle of 32 x 32, black around it.
static void put_image(training *t, const dpcr_dataset *d, int64_t index, int64_t b) {
    const int64_t planes = t->net.channels, side = CONVNET_SIDE, top = (side - d->rows) / 2,
                  left = (side - d->cols) / 2;
    float *to = (float *)t->net.input.data + b * planes * side * side;
    const uint8_t *from = d->images + index * dpcr_dataset_pixels(d);
    for (int64_t i = 0; i < planes * side * side; i++) to[i] = (float)(-t->mean / t->deviation);
    for (int64_t c = 0; c < planes; c++)
        for (int64_t y = 0; y < d->rows; y++)
            for (int64_t x = 0; x < d->cols; x++)
                to[(c * side + top + y) * side + left + x] =
                    (float)((from[(c * d->rows + y) * d->cols + x] - t->mean) / t->deviation);
    t->net.labels[b] = d->labels[index];
}

static void shuffle(training *t, int64_t epoch) {
    for (int64_t i = 0; i < t->images.count; i++) t->order[i] = i;
    for (int64_t i = t->images.count - 1; i > 0; i--) {
        const int64_t j =
            (int64_t)cli_random_below(t->common.seed, STREAM_ORDER + (uint64_t)epoch, (uint64_t)i, (uint64_t)i + 1);
        const int64_t kept = t->order[i];
        t->order[i] = t->order[j];
        t->order[j] = kept;
    }
}

static void put_batch(training *t, int64_t step) {
    const int64_t batches = t->images.count / t->batch, at = step % batches;
    if (at == 0) shuffle(t, step / batches);
    for (int64_t b = 0; b < t->batch; b++) put_image(t, &t->images, t->order[at * t->batch + b], b);
}

// ---- training ----

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

static int one_step(training *t, int64_t step) {
    dpcr_error error = {0};
    double loss = 0, seconds = 0, mark = cli_now();
    int64_t correct = 0;
    put_batch(t, step);
    int status = convnet_forward(&t->net, &loss, &correct);
    t->forward += cli_now() - mark;
    if (status) return status;
    if (!isfinite(loss))
        return cli_fail(CLI_USAGE, "step %lld: the loss is %g; a lower --rate may help", (long long)step + 1, loss);
    const bool all = t->compare && step % t->compare == 0 && t->compared_count < MOST_COMPARED;
    if (all) {
        status = compare(t);
        seconds = t->compared[t->way][t->compared_count - 1];
    } else {
        status = timed_backward(t, t->way, &seconds);
    }
    t->backward += seconds;
    if (status) return status;
    mark = cli_now();
    convnet_parameters(&t->net, t->way);
    t->parameters += cli_now() - mark;
    mark = cli_now();
    if (dpcr_optimiser_step(t->steps_of, t->net.vector, t->net.gradient, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_COMPUTING);
    status = convnet_refill(&t->net);
    t->update += cli_now() - mark;
    if (step == 0) t->first_loss = loss;
    t->loss = loss;
    t->correct += correct;
    if (t->log)
        json_array_append_new(t->log, json_pack("{sI sf sI}", "step", (json_int_t)step + 1, "loss", loss, "correct",
                                                (json_int_t)correct));
    if (!status && (step + 1) % 20 == 0)
        cli_say(&t->common, "step %lld/%lld  loss %.4f  accuracy so far %.2f %%\n", (long long)step + 1,
                (long long)t->steps, loss, 100.0 * (double)t->correct / (double)((step + 1) * t->batch));
    if (!status && !t->common.json) fflush(stdout);
    return status;
}

static int test(training *t) {
    const int64_t count = t->test < t->test_images.count ? t->test : t->test_images.count,
                  batches = count < t->batch ? 1 : count / t->batch;  // of whole batches; there is one
    int64_t correct = 0;
    int status = CLI_DONE;
    t->test = batches * t->batch;
    for (int64_t i = 0; !status && i < batches; i++) {
        double loss = 0;
        for (int64_t b = 0; b < t->batch; b++) put_image(t, &t->test_images, i * t->batch + b, b);
        status = convnet_forward(&t->net, &loss, &correct);
        if (!status && cli_signal()) status = 128 + cli_signal();
        t->test_loss += loss / (double)batches;
    }
    t->test_accuracy = t->test ? (double)correct / (double)t->test : 0;
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

static int tell(training *t) {
    cli_result r = cli_result_create();
    const double worst = fmax(t->largest[CONVNET_SCAN], t->largest[CONVNET_LOOP]);
    const dpcr_bppsa_cost *scan = dpcr_bppsa_plan_cost(t->net.plan[CONVNET_SCAN]);
    int64_t weights = 0, kept = 0;
    for (int64_t i = 0; i < t->net.count; i++) {
        weights += t->net.layers[i].weight_count;
        kept += t->net.layers[i].kept_count;
    }
    cli_set_text(&r, "network", "vgg11");
    cli_set_text(&r, "data", t->data);
    cli_set_text(&r, "way", convnet_ways[t->way]);
    cli_set_int(&r, "steps", t->steps);
    cli_set_int(&r, "batch", t->batch);
    cli_set_int(&r, "channels", t->net.channels);
    cli_set_int(&r, "divisor", t->divisor);
    cli_set_int(&r, "weights", weights);
    cli_set_int(&r, "weights_kept", kept);
    cli_set_real(&r, "first_loss", t->first_loss);
    cli_set_real(&r, "train_loss", t->loss);
    cli_set_real(&r, "train_accuracy", t->accuracy);
    cli_set_real(&r, "test_loss", t->test_loss);
    cli_set_real(&r, "test_accuracy", t->test_accuracy);
    cli_set_int(&r, "test_images", t->test);
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
    for (int w = 0; w < CONVNET_WAYS; w++) json_array_append_new(ways, way_object(t, w));
    cli_set(&r, "ways", ways);
    if (t->log) cli_set(&r, "log", json_incref(t->log));
    cli_say(&t->common,
            "test loss %.4f, test accuracy %.2f %% of %lld; %.1f s: forward %.2f, activations' gradients %.2f, "
            "parameters' %.2f, update %.2f\n",
            t->test_loss, 100 * t->test_accuracy, (long long)t->test, t->seconds, t->forward, t->backward,
            t->parameters, t->update);
    for (int w = 0; w < CONVNET_WAYS && t->compared_count; w++) {
        const dpcr_bppsa_cost *c = w == CONVNET_DENSE ? NULL : dpcr_bppsa_plan_cost(t->net.plan[w]);
        cli_say(&t->common,
                "  %-6s %10.4g s a batch, flops an image %10.4g, on the critical path %10.4g, largest difference from "
                "dense %.2g\n",
                convnet_ways[w], t->compared[w][t->compared_count / 2], c ? c->flops : t->net.dense_flops,
                c ? c->critical_flops : t->net.dense_flops, t->largest[w]);
    }
    cli_say(&t->common, "  L_m = %d: %lld products, %.4g MB of patterns, workspace %.4g MB, planned once in %.3g s\n",
            scan->levels, (long long)scan->compositions, 1e-6 * (double)scan->pattern_bytes,
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
    if (a->count < t->batch || b->count < t->batch)
        return cli_fail(CLI_INPUT, "'%s' has %lld and %lld images, less than a batch of %lld", t->data,
                        (long long)a->count, (long long)b->count, (long long)t->batch);
    t->order = malloc((size_t)a->count * sizeof *t->order);
    if (!t->order) return cli_fail_memory("the order of the images");
    measure(t);
    return CLI_DONE;
}

static int train(training *t) {
    dpcr_error error = {0};
    const int64_t channels = t->images.channels > 0 ? t->images.channels : 1;
    int status =
        convnet_create(t->context, channels, t->batch, t->divisor, t->prune, t->levels, t->common.seed, &t->net);
    if (status) return status;
    cli_optimiser_settle(&t->optimiser, t->steps);
    if (t->optimiser.options.total == -1) t->optimiser.options.total = t->steps;
    if (dpcr_optimiser_create(t->context, &t->optimiser.options, DPCR_F32, t->net.parameters, &t->steps_of, &error) !=
        DPCR_OK)
        return cli_fail_error(&error, CLI_COMPUTING);
    const double start = cli_now();
    for (int64_t s = 0; !status && s < t->steps; s++) {
        status = one_step(t, s);
        if (!status && cli_signal()) status = 128 + cli_signal();
    }
    t->seconds = cli_now() - start;
    t->accuracy = (double)t->correct / (double)(t->steps * t->batch);
    if (!status) status = test(t);
    return status ? status : tell(t);
}

static int run(training *t) {
    int status = CLI_DONE;
    t->context = cli_context_create(&t->common, &status);
    if (!t->context) return status;
    if (t->common.json) t->log = json_array();
    status = read_images(t);
    if (!status) status = train(t);
    convnet_destroy(&t->net);
    dpcr_optimiser_destroy(t->steps_of);
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
    t->steps = 200, t->batch = 4, t->divisor = 1, t->compare = 20, t->test = 256, t->prune = 0.97, t->levels = 2;
    const cli_syntax syntax = {
        .arguments = "",
        .doc =
            "Trains a VGG-11 of which 97 % of the weights, the smallest, are taken out, with the activations' "
            "gradients "
            "as BPPSA's scan over sparse Jacobians whose products were planned once; every now and then also by the "
            "loop over the same Jacobians and by dense products: times, flops, differences.",
        .groups = {{&vgg_argp, t, "Training:"},
                   {&cli_optimiser_argp, &t->optimiser, "Optimiser:"},
                   {&cli_common_argp, &t->common, "Output and resources:"}},
        .most = 0};
    const char *positional[CLI_MAX_POSITIONAL];
    int status;
    if (cli_parse(&syntax, argc, argv, positional, &status)) status = run(t);
    free(t);
    return status;
}
