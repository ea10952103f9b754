// SPDX-License-Identifier: MIT
#include "train/batches.h"

#include <math.h>
#include <string.h>

#include "base/random.h"
#include "rt/rt.h"

enum { FIGURE_BLOCKS = 64, GATHER_ROWS = 16 };

// ---- figures ----

typedef struct block_figures {
    uint64_t sum, square, hash;
} block_figures;

typedef struct figures_task {
    const dpcr_dataset *data;
    block_figures blocks[FIGURE_BLOCKS];
} figures_task;

static uint64_t hash_word(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);  // 2^64 / golden ratio: odd, bits spread
    return hash ^ hash >> 32;
}

static uint64_t hash_bytes(uint64_t hash, const uint8_t *bytes, int64_t count) {
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        uint64_t word;
        memcpy(&word, bytes + i, sizeof word);
        hash = hash_word(hash, word);
    }
    for (; i < count; i++) hash = hash_word(hash, bytes[i]);
    return hash;
}

static void measure_block(void *argument, int64_t block) {
    figures_task *t = argument;
    const int64_t pixels = dpcr_dataset_pixels(t->data), count = t->data->count;
    const int64_t from = count / FIGURE_BLOCKS * block + count % FIGURE_BLOCKS * block / FIGURE_BLOCKS;
    const int64_t next = block + 1;
    const int64_t to = count / FIGURE_BLOCKS * next + count % FIGURE_BLOCKS * next / FIGURE_BLOCKS;
    const uint8_t *p = t->data->images + from * pixels;
    block_figures f = {.hash = hash_bytes((uint64_t)block, p, (to - from) * pixels)};
    for (int64_t row = from; row < to; row++, p += pixels) {
        uint64_t sum = 0, square = 0;
        for (int64_t i = 0; i < pixels; i++) {
            sum += p[i];
            square += (uint64_t)p[i] * p[i];
        }
        f.sum += sum;
        f.square += square;
    }
    f.hash = hash_bytes(f.hash, t->data->labels + from, to - from);
    t->blocks[block] = f;
}

dpcri_data_figures dpcri_data_measure(dpcr_context *context, const dpcr_dataset *data) {
    figures_task task = {.data = data};
    dpcri_data_figures figures = {0};
    uint64_t sum = 0, square = 0;
    const int64_t extents[] = {data->count, data->rows, data->cols, data->channels};
    const int known = data->channels > 1 ? 4 : 3;  // a plane alone has always had three
    dpcri_parallel(context, FIGURE_BLOCKS, measure_block, &task);
    for (int i = 0; i < known; i++) figures.hash = hash_word(figures.hash, (uint64_t)extents[i]);
    for (int i = 0; i < FIGURE_BLOCKS; i++) {
        sum += task.blocks[i].sum;
        square += task.blocks[i].square;
        figures.hash = hash_word(figures.hash, task.blocks[i].hash);
    }
    const double count = (double)data->count * (double)dpcr_dataset_pixels(data);
    const double mean = (double)sum / count, variance = (double)square / count - mean * mean;
    figures.mean = mean / 255;
    figures.deviation = variance > 0 ? sqrt(variance) / 255 : 1;
    return figures;
}

dpcr_status dpcri_data_check(const char *call, const dpcr_model *model, const dpcr_dataset *data, dpcr_error *error) {
    const dpcr_model_options *o = dpcr_model_get_options(model);
    const int64_t wanted = o->inputs > 0 ? o->inputs : o->width;
    int64_t pixels = 0;
    if (o->outputs < 1)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "%s: the model has no head, wanted outputs >= 1: one for each class", call);
    if (data->count < 1 || data->rows < 1 || data->cols < 1 || !data->images || !data->labels)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "%s: the data set has %lld images of %lld x %lld, wanted at least one of each, with labels",
                          call, (long long)data->count, (long long)data->rows, (long long)data->cols);
    const int64_t planes = data->channels > 0 ? data->channels : 1;
    if (!dpcri_mul(data->rows, data->cols, &pixels) || !dpcri_mul(pixels, planes, &pixels) || pixels != wanted)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "%s: images have %lld x %lld x %lld numbers, wanted %lld, the model's %s", call,
                          (long long)planes, (long long)data->rows, (long long)data->cols, (long long)wanted,
                          o->inputs > 0 ? "inputs" : "width (it has no encoder)");
    for (int64_t i = 0; i < data->count; i++)
        if (data->labels[i] >= o->outputs)
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                              "%s: label %lld of the data set is %d, wanted less than %lld, the model's outputs", call,
                              (long long)i, (int)data->labels[i], (long long)o->outputs);
    return DPCR_OK;
}

// ---- batches ----

uint64_t dpcri_shuffle_stream(int64_t epoch) { return DPCRI_STREAM_SHUFFLE | (uint64_t)epoch; }

void dpcri_shuffle(uint64_t seed, int64_t epoch, int64_t count, int64_t *order) {
    const uint64_t stream = dpcri_shuffle_stream(epoch);
    for (int64_t i = 0; i < count; i++) order[i] = i;
    for (int64_t i = 0; i + 1 < count; i++) {
        const int64_t j = i + (int64_t)dpcri_random_below(seed, stream, (uint64_t)i, (uint64_t)(count - i));
        const int64_t kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

dpcri_normaliser dpcri_normaliser_make(dpcr_dtype dtype, double mean, double deviation) {
    dpcri_normaliser made = {.dtype = dtype};
    for (int byte = 0; byte < 256; byte++) {
        const double value = (byte / 255.0 - mean) / deviation;
        if (dtype == DPCR_F64)
            made.table.f64[byte] = value;
        else
            made.table.f32[byte] = (float)value;
    }
    return made;
}

typedef struct gather_task {
    const dpcr_dataset *data;
    const int64_t *order;
    int64_t first, rows;
    const dpcri_normaliser *normaliser;
    void *x;
    uint8_t *y;
} gather_task;

static void gather_row(const gather_task *t, int64_t row) {
    const int64_t pixels = dpcr_dataset_pixels(t->data);
    const int64_t image = t->order ? t->order[t->first + row] : t->first + row;
    const uint8_t *from = t->data->images + image * pixels;
    if (t->normaliser->dtype == DPCR_F64) {
        double *to = (double *)t->x + row * pixels;
        for (int64_t i = 0; i < pixels; i++) to[i] = t->normaliser->table.f64[from[i]];
    } else {
        float *to = (float *)t->x + row * pixels;
        for (int64_t i = 0; i < pixels; i++) to[i] = t->normaliser->table.f32[from[i]];
    }
    t->y[row] = t->data->labels[image];
}

static void gather_block(void *argument, int64_t block) {
    const gather_task *t = argument;
    const int64_t from = block * GATHER_ROWS, to = from + GATHER_ROWS < t->rows ? from + GATHER_ROWS : t->rows;
    for (int64_t row = from; row < to; row++) gather_row(t, row);
}

void dpcri_gather(dpcr_context *context, const dpcr_dataset *data, const int64_t *order, int64_t first, int64_t rows,
                  const dpcri_normaliser *normaliser, void *x, uint8_t *y) {
    gather_task task = {data, order, first, rows, normaliser, x, y};
    dpcri_parallel(context, (rows + GATHER_ROWS - 1) / GATHER_ROWS, gather_block, &task);
}
