// SPDX-License-Identifier: MIT
// The training loop of nets: batches, optimiser, averaged weights, checkpoints. What is learnt is the caller's.
#ifndef DPCRI_LEARN_H
#define DPCRI_LEARN_H

#include "sample/networks.h"

#define DPCRI_LEARN_CONVOLUTIONS "deeppcr.learn.convolutions"

// A batch: which pictures, and the number of the step, which all of its random numbers follow from.
typedef struct dpcri_batch {
    int64_t step, rows;
    const int64_t *order;  // [rows]
} dpcri_batch;

typedef struct dpcri_subject {
    const char *kind;  // "vae" or "denoiser"
    dpcri_net *net;    // its numbers are trained
    void *user;
    // writes all of net->gradients and the loss
    dpcr_status (*gradients)(void *user, const dpcri_batch *batch, double *loss, dpcr_error *error);
    dpcr_status (*put)(void *user, const float *values, dpcri_bundle *bundle,
                       dpcr_error *error);  // of the model's file
    void (*finish)(void *user);             // once net->values are the averaged ones, before the last file; or NULL
    const char *convolutions;               // whose: stands in the checkpoint; NULL: it has none
    dpcr_tensors *resumed;                  // the checkpoint where it was read already, freed once taken; else NULL
} dpcri_subject;

// What the options' zeros mean.
static inline double dpcri_learn_drop(const dpcr_learn_options *o) { return o->drop > 0 ? o->drop : 0.1; }
static inline double dpcri_learn_weight(const dpcr_learn_options *o) { return o->weight > 0 ? o->weight : 1; }

// The options have their size, and the data set has pictures of that size, and labels; else refused in words.
dpcr_status dpcri_learn_check(const dpcr_dataset *data, const dpcr_learn_options *options, int64_t rows, int64_t cols,
                              int64_t pixels, dpcr_error *error);
// Trains, after that check; at the end net->values are the averaged ones.
dpcr_status dpcri_learn(const dpcri_subject *subject, const dpcr_dataset *data, const dpcr_learn_options *options,
                        dpcr_learn_state *last, dpcr_error *error);

#endif
