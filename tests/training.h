// SPDX-License-Identifier: MIT
// What the tests of training share: a small data set that can be learnt, models, files, an allocator that fails.
#ifndef TRAINING_H
#define TRAINING_H

// cmocka.h wants the first four before it.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "deeppcr/sequence.h"
#include "deeppcr/train.h"

enum { SIDE = 6, PIXELS = SIDE * SIDE, LABELS = 4, MOST_IMAGES = 512 };

// Images of a class share a pattern; a third of every pixel is noise.
typedef struct small_data {
    uint8_t images[MOST_IMAGES * PIXELS], labels[MOST_IMAGES];
    dpcr_dataset set;
} small_data;

static inline dpcr_dataset *make_data(small_data *data, int64_t count, uint64_t seed) {
    for (int64_t i = 0; i < count; i++) {
        data->labels[i] = (uint8_t)dpcri_random_below(seed, DPCRI_STREAM_DATA, (uint64_t)i, LABELS);
        for (int64_t p = 0; p < PIXELS; p++) {
            const uint64_t pattern =
                dpcri_random_below(99, DPCRI_STREAM_DATA | 1, (uint64_t)(data->labels[i] * PIXELS + p), 170);
            const uint64_t noise = dpcri_random_below(seed, DPCRI_STREAM_DATA | 2, (uint64_t)(i * PIXELS + p), 86);
            data->images[i * PIXELS + p] = (uint8_t)(pattern + noise);
        }
    }
    data->set = (dpcr_dataset){
        .count = count, .rows = SIDE, .cols = SIDE, .classes = LABELS, .images = data->images, .labels = data->labels};
    return &data->set;
}

static inline dpcr_context *make_context(int threads) {
    const dpcr_context_options options = {.size = sizeof options, .threads = threads};
    dpcr_context *context = NULL;
    assert_int_equal(dpcr_context_create(&options, &context, NULL), DPCR_OK);
    return context;
}

static inline dpcr_model_options resnet_options(int64_t layers, int64_t width, dpcr_dtype dtype) {
    return (dpcr_model_options){.size = sizeof(dpcr_model_options),
                                .architecture = DPCR_RESNET,
                                .dtype = dtype,
                                .inputs = PIXELS,
                                .outputs = LABELS,
                                .layers = layers,
                                .width = width,
                                .seed = 7};
}

static inline dpcr_model *make_model(dpcr_context *context, const dpcr_model_options *options) {
    dpcr_model *model = NULL;
    dpcr_error error = {0};
    if (dpcr_model_create(context, options, &model, &error) != DPCR_OK) fail_msg("%s", error.text);
    return model;
}

static inline dpcr_sequence *make_sequence(dpcr_context *context, dpcr_sequence_options options) {
    dpcr_sequence *model = NULL;
    dpcr_error error = {0};
    if (dpcr_sequence_create(context, &options, &model, &error) != DPCR_OK) fail_msg("%s", error.text);
    return model;
}

static inline dpcr_train_options train_options(int64_t epochs, int64_t batch) {
    return (dpcr_train_options){.size = sizeof(dpcr_train_options),
                                .epochs = epochs,
                                .batch = batch,
                                .seed = 5,
                                .checkpoint_seconds = 1e9,
                                .solve = {.size = sizeof(dpcr_solve_options),
                                          .method = DPCR_METHOD_SEQUENTIAL,
                                          .backward = DPCR_SCHEME_SEQUENTIAL},
                                .optimiser = {.size = sizeof(dpcr_optimiser_options),
                                              .kind = DPCR_ADAMW,
                                              .rate = 0.01,
                                              .weight_decay = 0.01,
                                              .warm_up = 2,
                                              .total = -1}};
}

static inline size_t vector_bytes(dpcr_model *model) {
    int64_t count = 0;
    dpcr_model_vector(model, &count);
    return (size_t)count * dpcr_dtype_size(dpcr_model_get_options(model)->dtype);
}

// A copy of the parameters; the caller's.
static inline void *parameters_of(dpcr_model *model) {
    void *copy = malloc(vector_bytes(model));
    memcpy(copy, dpcr_model_vector(model, NULL), vector_bytes(model));
    return copy;
}

static inline void train_well(dpcr_context *context, dpcr_model *model, const dpcr_dataset *data,
                              const dpcr_train_options *options) {
    dpcr_error error = {0};
    if (dpcr_train(context, model, data, options, NULL, &error) != DPCR_OK) fail_msg("%s", error.text);
}

// ---- files ----

typedef struct folder {
    char path[64], file[128];
} folder;

static inline folder make_folder(void) {
    folder made;
    snprintf(made.path, sizeof made.path, "%s/deeppcr-train-XXXXXX", P_tmpdir);
    assert_non_null(mkdtemp(made.path));
    snprintf(made.file, sizeof made.file, "%s/run.safetensors", made.path);
    return made;
}

static inline void remove_folder(const folder *made) {
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", made->path);
    assert_int_equal(system(command), 0);
}

typedef struct content {
    size_t size;
    unsigned char *bytes;
} content;

static inline content read_file(const char *path) {
    content c = {.bytes = malloc(1 << 22)};
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    c.size = fread(c.bytes, 1, 1 << 22, f);
    assert_true(c.size < 1 << 22);
    fclose(f);
    return c;
}

static inline void write_file(const char *path, const void *bytes, size_t size) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

static inline void assert_same_file(const char *path, const content *wanted) {
    content got = read_file(path);
    assert_int_equal(got.size, wanted->size);
    assert_memory_equal(got.bytes, wanted->bytes, got.size);
    free(got.bytes);
}

#endif
