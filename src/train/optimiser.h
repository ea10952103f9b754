// SPDX-License-Identifier: MIT
// The inside of an optimiser, for the training loop (which clears gradients in the same pass) and for checkpoints.
#ifndef DPCRI_TRAIN_OPTIMISER_H
#define DPCRI_TRAIN_OPTIMISER_H

#include "deeppcr/train.h"
#include "kern/train_kernels.h"

struct dpcr_optimiser {
    dpcr_context *context;
    dpcr_optimiser_options options;  // every default filled in
    dpcr_dtype dtype;
    int64_t count;
    int64_t step;  // updates done
    // Made by dpcri_optimiser_keep: an optimiser of vectors on a device has none here.
    void *first;   // [count] SGD: momentum (NULL where momentum is 0); Adam, AdamW: running mean of the gradient
    void *second;  // [count] Adam, AdamW: running mean of its square; SGD: NULL
    const dpcri_train_kernels *kernels;
};

// Copies the options with every default filled in, or refuses them in words.
dpcr_status dpcri_optimiser_options_fill(const dpcr_optimiser_options *options, dpcr_optimiser_options *filled,
                                         dpcr_error *error);

// Makes the state, zeros, where there is none yet; and an optimiser that has it at once.
dpcr_status dpcri_optimiser_keep(dpcr_optimiser *optimiser, dpcr_error *error);
dpcr_status dpcri_optimiser_create(dpcr_context *context, const dpcr_optimiser_options *options, dpcr_dtype dtype,
                                   int64_t count, dpcr_optimiser **optimiser, dpcr_error *error);

// Learning rate of update number `step`, from 1; options with defaults filled in.
double dpcri_schedule_rate(const dpcr_optimiser_options *options, int64_t step);

// The scalars of update number `step`, from 1, by kind.
dpcri_sgd_update dpcri_optimiser_sgd(const dpcr_optimiser_options *options, double rate);
dpcri_adam_update dpcri_optimiser_adam(const dpcr_optimiser_options *options, double rate, int64_t step);

// One update of an optimiser with its state; `clear` leaves the gradients zero.
void dpcri_optimiser_update(dpcr_optimiser *optimiser, void *parameters, void *gradients, bool clear);

#endif
