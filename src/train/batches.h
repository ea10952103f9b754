// SPDX-License-Identifier: MIT
// From a data set of bytes to batches of numbers: figures of the whole set, the order of an epoch, rows normalised.
#ifndef DPCRI_TRAIN_BATCHES_H
#define DPCRI_TRAIN_BATCHES_H

#include "base/base.h"
#include "deeppcr/data.h"
#include "deeppcr/model.h"

typedef struct dpcri_data_figures {
    double mean, deviation;  // of all pixels / 255, the whole population's; deviation is 1 where all pixels are equal
    uint64_t hash;           // of extents, pixels and labels: a resumed run must see the same data
} dpcri_data_figures;

// Parallel over a fixed number of blocks, in integers: the same figures for any number of threads.
dpcri_data_figures dpcri_data_measure(dpcr_context *context, const dpcr_dataset *data);

// The data set is whole, its pixels fit the model's inputs and its labels the model's outputs; else refused in words.
dpcr_status dpcri_data_check(const char *call, const dpcr_model *model, const dpcr_dataset *data, dpcr_error *error);

// order[0..count-1] = a permutation of 0..count-1 that follows from (seed, epoch) alone. epoch < 2^32.
void dpcri_shuffle(uint64_t seed, int64_t epoch, int64_t count, int64_t *order);
// The generator's stream that it is drawn from: number i below count - i says which place i changes with.
uint64_t dpcri_shuffle_stream(int64_t epoch);

// (byte / 255 - mean) / deviation for every byte, formed in double, rounded once.
typedef struct dpcri_normaliser {
    dpcr_dtype dtype;
    union {
        float f32[256];
        double f64[256];
    } table;
} dpcri_normaliser;
dpcri_normaliser dpcri_normaliser_make(dpcr_dtype dtype, double mean, double deviation);

// for r < rows: x[r][:] = images[order[first + r]] normalised; y[r] = its label.   order NULL: row first + r itself
void dpcri_gather(dpcr_context *context, const dpcr_dataset *data, const int64_t *order, int64_t first, int64_t rows,
                  const dpcri_normaliser *normaliser, void *x, uint8_t *y);

#endif
