// SPDX-License-Identifier: MIT
// Images for a VGG-11, and its files.
#include "vgg.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KIND "vgg11"

// ---- images ----

vgg_scale vgg_measure(const dpcr_dataset *images) {
    const int64_t n = images->count * dpcr_dataset_pixels(images);
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += images->images[i];
        squares += (double)images->images[i] * images->images[i];
    }
    const double mean = sum / (double)n, variance = squares / (double)n - mean * mean;
    return (vgg_scale){mean, variance > 0 ? sqrt(variance) : 1};
}

void vgg_put_image(convnet *net, const dpcr_dataset *d, vgg_scale scale, int64_t index, int64_t b) {
    const int64_t planes = net->channels, side = CONVNET_SIDE, top = (side - d->rows) / 2, left = (side - d->cols) / 2;
    float *to = (float *)net->input.data + b * planes * side * side;
    const uint8_t *from = d->images + index * dpcr_dataset_pixels(d);
    for (int64_t i = 0; i < planes * side * side; i++) to[i] = (float)(-scale.mean / scale.deviation);
    for (int64_t c = 0; c < planes; c++)
        for (int64_t y = 0; y < d->rows; y++)
            for (int64_t x = 0; x < d->cols; x++)
                to[(c * side + top + y) * side + left + x] =
                    (float)((from[(c * d->rows + y) * d->cols + x] - scale.mean) / scale.deviation);
    net->labels[b] = d->labels[index];
}

// ---- writing ----

void vgg_note_text(vgg_notes *notes, const char *key, const char *value) {
    vgg_note *n = &notes->items[notes->count++];
    n->key = key;
    snprintf(n->value, sizeof n->value, "%s", value);
}

void vgg_note_int(vgg_notes *notes, const char *key, int64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    vgg_note_text(notes, key, text);
}

void vgg_note_real(vgg_notes *notes, const char *key, double value) {
    char text[32];
    snprintf(text, sizeof text, "%.17g", value);
    vgg_note_text(notes, key, text);
}

// "features.3.weight", "classifier.bias"
static void name_of(const convnet *net, int64_t layer, const char *what, char name[32]) {
    if (layer + 1 == net->count)
        snprintf(name, 32, "classifier.%s", what);
    else
        snprintf(name, 32, "features.%lld.%s", (long long)layer, what);
}

enum { MOST_TENSORS = 3 * CONVNET_MOST_LAYERS + 2 };

typedef struct writing {
    char names[MOST_TENSORS][32];
    dpcr_tensor items[MOST_TENSORS];
    char *keys[VGG_MOST_NOTES + 1], *values[VGG_MOST_NOTES + 1];
    dpcr_tensors tensors;
} writing;

static void put(writing *w, const char *name, dpcr_array array) {
    const int64_t at = w->tensors.count++;
    snprintf(w->names[at], sizeof w->names[at], "%s", name);
    w->items[at] = (dpcr_tensor){w->names[at], array};
}

static void put_layer(writing *w, const convnet *net, int64_t layer) {
    const convnet_layer *l = &net->layers[layer];
    const bool linear = l->kind == CONVNET_LINEAR;
    const int64_t shape[] = {l->outputs, l->conv.in_channels, l->conv.kernel[0], l->conv.kernel[1]};
    char name[32];
    if (!l->weights) return;
    name_of(net, layer, "weight", name);
    put(w, name, dpcr_array_make(l->weights, DPCR_F32, linear ? 2 : 4, shape));
    name_of(net, layer, "bias", name);
    put(w, name, dpcr_array_make(net->vector + l->bias, DPCR_F32, 1, &l->outputs));
    if (net->whole) return;
    name_of(net, layer, "kept", name);
    put(w, name, dpcr_array_make(l->kept, DPCR_U32, 1, &l->kept_count));
}

int vgg_save(const char *path, const convnet *net, dpcr_optimiser *optimiser, const vgg_notes *notes) {
    dpcr_error error = {0};
    writing *w = calloc(1, sizeof *w);
    if (!w) return cli_fail_memory("the checkpoint");
    w->tensors = (dpcr_tensors){.items = w->items, .metadata_keys = w->keys, .metadata_values = w->values};
    w->keys[0] = "deeppcr.kind", w->values[0] = KIND;
    for (int i = 0; i < notes->count; i++) {
        w->keys[i + 1] = (char *)(uintptr_t)notes->items[i].key;
        w->values[i + 1] = (char *)(uintptr_t)notes->items[i].value;
    }
    w->tensors.metadata_count = notes->count + 1;
    for (int64_t i = 0; i < net->count; i++) put_layer(w, net, i);
    dpcr_array first = {0}, second = {0};
    dpcr_status status = optimiser ? dpcr_optimiser_state(optimiser, &first, &second, &error) : DPCR_OK;
    if (first.data) put(w, "train.first", first);
    if (second.data) put(w, "train.second", second);
    if (status == DPCR_OK) status = dpcr_safetensors_write_summed(path, &w->tensors, &error);
    free(w);
    return status == DPCR_OK ? CLI_DONE : cli_fail_error(&error, CLI_WRITING);
}

// ---- reading ----

bool vgg_is(const dpcr_tensors *file) {
    const char *kind = dpcr_tensors_metadata(file, "deeppcr.kind");
    return kind && !strcmp(kind, KIND);
}

static int refuse(const char *path, const char *what) {
    return cli_fail(CLI_INPUT, "%s: '%s' is missing or damaged", path, what);
}

int vgg_get_int(const dpcr_tensors *file, const char *path, const char *key, int64_t low, int64_t high,
                int64_t *value) {
    const char *text = dpcr_tensors_metadata(file, key);
    char *end = NULL;
    errno = 0;
    const long long found = text ? strtoll(text, &end, 10) : 0;
    if (!text || end == text || *end || errno || found < low || found > high) return refuse(path, key);
    *value = found;
    return CLI_DONE;
}

int vgg_get_real(const dpcr_tensors *file, const char *path, const char *key, double *value) {
    const char *text = dpcr_tensors_metadata(file, key);
    char *end = NULL;
    const double found = text ? strtod(text, &end) : 0;
    if (!text || end == text || *end || !isfinite(found)) return refuse(path, key);
    *value = found;
    return CLI_DONE;
}

static int refuse_tensor(const dpcr_tensors *file, const char *path, const char *name, const char *wanted) {
    const char *other = dpcr_tensors_other(file, name);
    if (other) return cli_fail(CLI_INPUT, "%s: '%s' is of dtype %s, wanted %s", path, name, other, wanted);
    return refuse(path, name);
}

static int64_t numbers_of(const dpcr_array *a) {
    int64_t n = 1;
    for (int32_t d = 0; d < a->ndim; d++) n *= a->shape[d];
    return n;
}

static bool all_finite(const dpcr_array *a) {
    for (int64_t i = 0; i < numbers_of(a); i++)
        if (!isfinite(((const float *)a->data)[i])) return false;
    return true;
}

// A network that only has what convnet_create takes over.
typedef struct reading {
    convnet net;
    float biases[CONVNET_MOST_LAYERS * 512];
    const int32_t *kept[CONVNET_MOST_LAYERS];
    int64_t kept_count[CONVNET_MOST_LAYERS];
    bool pruned;
} reading;

// Layers of a VGG-11, in torchvision's order.
static const int weighted[] = {0, 3, 6, 8, 11, 13, 16, 18, 21};
enum { WEIGHTED = sizeof weighted / sizeof *weighted, LAYERS = 22 };

static int read_layer(reading *r, const dpcr_tensors *file, const char *path, int layer, int64_t *biases) {
    char name[32];
    convnet_layer *l = &r->net.layers[layer];
    name_of(&r->net, layer, "weight", name);
    const dpcr_tensor *weight = dpcr_tensors_find(file, name);
    if (!weight || weight->array.dtype != DPCR_F32 || !all_finite(&weight->array))
        return refuse_tensor(file, path, name, "F32");
    name_of(&r->net, layer, "bias", name);
    const dpcr_tensor *bias = dpcr_tensors_find(file, name);
    if (!bias || bias->array.dtype != DPCR_F32 || numbers_of(&bias->array) > 512 || !all_finite(&bias->array))
        return refuse_tensor(file, path, name, "F32");
    l->weights = weight->array.data;
    l->weight_count = numbers_of(&weight->array);
    l->outputs = numbers_of(&bias->array);
    l->bias = *biases;
    memcpy(r->biases + *biases, bias->array.data, (size_t)l->outputs * sizeof(float));
    *biases += l->outputs;
    name_of(&r->net, layer, "kept", name);
    const dpcr_tensor *kept = dpcr_tensors_find(file, name);
    if (!kept != !r->pruned || (kept && kept->array.dtype != DPCR_U32) || dpcr_tensors_other(file, name))
        return refuse_tensor(file, path, name, "U32");
    if (!kept) return CLI_DONE;
    const uint32_t *at = kept->array.data;
    const int64_t count = numbers_of(&kept->array);
    for (int64_t i = 0; i < count; i++)
        if (at[i] > INT32_MAX || at[i] >= l->weight_count || (i && at[i] <= at[i - 1])) return refuse(path, name);
    r->kept[layer] = (const int32_t *)kept->array.data;
    r->kept_count[layer] = count;
    return CLI_DONE;
}

int vgg_load(dpcr_context *context, const dpcr_tensors *file, const char *path, int64_t batch, int levels,
             bool forward_only, convnet *net) {
    if (!forward_only && file->other_count > 0)  // the next checkpoint often takes this one's place
        return cli_fail(CLI_INPUT, "%s: '%s' is of dtype %s, which no checkpoint has", path, file->other_names[0],
                        file->other_dtypes[0]);
    reading *r = calloc(1, sizeof *r);
    if (!r) return cli_fail_memory("the network");
    convnet_shape shape = {
        .batch = batch, .prune = -1, .levels = levels, .forward_only = forward_only, .from = &r->net};
    int64_t pruned = 0, biases = 0;
    int status = vgg_get_int(file, path, "deeppcr.vgg.channels", 1, 16, &shape.channels);
    if (!status) status = vgg_get_int(file, path, "deeppcr.vgg.divisor", 1, 512, &shape.divisor);
    if (!status) status = vgg_get_int(file, path, "deeppcr.vgg.pruned", 0, 1, &pruned);
    r->net.count = LAYERS;
    r->net.vector = r->biases;
    r->pruned = pruned != 0;
    for (int i = 0; i < WEIGHTED && !status; i++) status = read_layer(r, file, path, weighted[i], &biases);
    if (pruned) shape.prune = 0, shape.kept = r->kept, shape.kept_count = r->kept_count;
    if (!status) status = convnet_create(context, &shape, net);
    free(r);
    return status;
}

static bool read_state(const dpcr_tensors *file, const char *name, const dpcr_array *to) {
    const dpcr_tensor *t = dpcr_tensors_find(file, name);
    if (!to->data) return !t;
    if (!t || t->array.dtype != DPCR_F32 || numbers_of(&t->array) != to->shape[0] || !all_finite(&t->array))
        return false;
    memcpy(to->data, t->array.data, (size_t)to->shape[0] * sizeof(float));
    return true;
}

int vgg_load_optimiser(const dpcr_tensors *file, const char *path, int64_t updates, dpcr_optimiser *optimiser) {
    dpcr_error error = {0};
    dpcr_array first, second;
    if (dpcr_optimiser_state(optimiser, &first, &second, &error) != DPCR_OK ||
        dpcr_optimiser_resume(optimiser, updates, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_COMPUTING);
    if (!read_state(file, "train.first", &first)) return refuse(path, "train.first");
    return read_state(file, "train.second", &second) ? CLI_DONE : refuse(path, "train.second");
}

// ---- eval ----

static int score(convnet *net, const dpcr_dataset *images, vgg_scale scale, double *loss, int64_t *correct) {
    int status = CLI_DONE;
    *loss = 0, *correct = 0;
    for (int64_t i = 0; !status && i < images->count; i += net->rows) {
        double part = 0;
        net->rows = images->count - i < net->batch ? images->count - i : net->batch;
        for (int64_t b = 0; b < net->rows; b++) vgg_put_image(net, images, scale, i + b, b);
        status = convnet_forward(net, &part, correct);
        *loss += part * (double)net->rows / (double)images->count;
        if (!status && cli_signal()) status = cli_fail_stopped();
    }
    return status;
}

static int tell(const cli_common *common, const convnet *net, const char *split, double loss, int64_t correct,
                int64_t images, double seconds) {
    cli_result r = cli_result_create();
    const bool train = !strcmp(split, "train");
    const double accuracy = (double)correct / (double)images;
    int64_t weights = 0, kept = 0;
    for (int64_t i = 0; i < net->count; i++) {
        weights += net->layers[i].weight_count;
        kept += net->layers[i].kept_count;
    }
    cli_set_real(&r, train ? "train_accuracy" : "test_accuracy", accuracy);
    cli_set_real(&r, train ? "train_loss" : "test_loss", loss);
    cli_set_int(&r, "images", images);
    cli_set_real(&r, "seconds", seconds);
    cli_set_real(&r, "images_per_second", seconds > 0 ? (double)images / seconds : 0);
    cli_set_text(&r, "network", KIND);
    cli_set_int(&r, "weights", weights);
    cli_set_int(&r, "weights_kept", kept);
    cli_say(common, "%s accuracy %.2f %%, loss %.4f; %lld image%s in %.3g s; %lld of %lld weights\n",
            train ? "train" : "test", 100 * accuracy, loss, (long long)images, cli_s(images), seconds, (long long)kept,
            (long long)weights);
    const int status = cli_finish(common, &r, CLI_DONE);
    cli_result_destroy(&r);
    return status;
}

int vgg_eval(dpcr_context *context, const cli_common *common, const char *path, const char *data, const char *split,
             int64_t batch, int64_t limit) {
    dpcr_error error = {0};
    dpcr_tensors file = {0};
    dpcr_dataset images = {0};
    convnet net = {0};
    vgg_scale scale = {0};
    double loss = 0;
    int64_t correct = 0;
    if (dpcr_safetensors_read(context, path, &file, &error) != DPCR_OK) return cli_fail_error(&error, CLI_READING);
    int status = CLI_DONE;
    if (dpcr_tensors_sum_agrees(&file, path, &error) != DPCR_OK) status = cli_fail_error(&error, CLI_READING);
    if (!status) status = cli_data_read(context, data, split, CONVNET_CLASSES, limit, &images);
    if (!status) status = vgg_get_real(&file, path, "deeppcr.vgg.mean", &scale.mean);
    if (!status) status = vgg_get_real(&file, path, "deeppcr.vgg.deviation", &scale.deviation);
    if (!status && !(scale.deviation > 0)) status = refuse(path, "deeppcr.vgg.deviation");
    if (!status) {
        const int64_t most = images.count < 256 ? images.count : 256;
        status = vgg_load(context, &file, path, batch < most ? batch : most, 0, true, &net);
    }
    const int64_t channels = images.channels > 0 ? images.channels : 1;
    if (!status && (channels != net.channels || images.rows > CONVNET_SIDE || images.cols > CONVNET_SIDE))
        status =
            cli_fail(CLI_INPUT, "'%s' has images of %lld x %lld x %lld, the network takes %lld x at most 32 x 32", data,
                     (long long)channels, (long long)images.rows, (long long)images.cols, (long long)net.channels);
    const double start = cli_now();
    if (!status) status = score(&net, &images, scale, &loss, &correct);
    if (!status) status = tell(common, &net, split, loss, correct, images.count, cli_now() - start);
    convnet_destroy(&net);
    dpcr_dataset_free(context, &images);
    dpcr_tensors_free(context, &file);
    return status;
}
