// SPDX-License-Identifier: MIT
// Losses, optimisers, and the training loop of a classifier, with checkpoints from which a killed run resumes to the same bits.
#ifndef DEEPPCR_TRAIN_H
#define DEEPPCR_TRAIN_H

#include "data.h"
#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

// Mean over the rows of -log softmax(logits)[label]; dlogits [B][C] (may be NULL) gets its gradient, correct (may be NULL)
// the number of rows whose largest logit is the label. Label out of range: DPCR_ERROR_ARGUMENT.
DPCR_API dpcr_status dpcr_loss_cross_entropy(const dpcr_array *logits, const uint8_t *labels, double *loss,
                                             const dpcr_array *dlogits, int64_t *correct, dpcr_error *error);
// Mean over all elements of (y - target)^2; dy may be NULL.
DPCR_API dpcr_status dpcr_loss_mean_square(const dpcr_array *y, const dpcr_array *target, double *loss,
                                           const dpcr_array *dy, dpcr_error *error);

typedef enum dpcr_optimiser_kind { DPCR_SGD = 1, DPCR_ADAM, DPCR_ADAMW } dpcr_optimiser_kind;

typedef struct dpcr_optimiser_options {
    size_t size;
    dpcr_optimiser_kind kind;
    double rate;              // peak learning rate
    double momentum;          // SGD
    double beta1, beta2, epsilon;  // Adam, AdamW; 0: 0.9, 0.999, 1e-8
    double weight_decay;      // AdamW: decoupled; SGD, Adam: added to the gradient, as PyTorch does
    int64_t warm_up;          // steps of linear warm-up
    int64_t total;            // steps in all: cosine decay to 0 after the warm-up; 0: constant rate
} dpcr_optimiser_options;

typedef struct dpcr_optimiser dpcr_optimiser;

DPCR_API dpcr_status dpcr_optimiser_create(dpcr_context *context, const dpcr_optimiser_options *options, dpcr_dtype dtype,
                                           int64_t count, dpcr_optimiser **optimiser, dpcr_error *error);
DPCR_API void dpcr_optimiser_destroy(dpcr_optimiser *optimiser);
// One update of `parameters` from `gradients` (count numbers each), parallel over fixed blocks. PyTorch's formulas.
DPCR_API dpcr_status dpcr_optimiser_step(dpcr_optimiser *optimiser, void *parameters, const void *gradients,
                                         dpcr_error *error);
DPCR_API double dpcr_optimiser_rate(const dpcr_optimiser *optimiser, int64_t step);

struct dpcr_train_state;

typedef struct dpcr_train_options {
    size_t size;
    int64_t epochs, batch;
    dpcr_optimiser_options optimiser;
    dpcr_solve_options solve;     // method, scheme, backward, tolerances
    uint64_t seed;                // of the shuffling
    const char *save;             // checkpoint file (safetensors), or NULL
    const char *resume;           // checkpoint to go on from, or NULL
    double checkpoint_seconds;    // at most this much work is lost; 0: 10 s. Also at every epoch's end.
    // Called after every step and every epoch; non-zero stops after a checkpoint (DPCR_ERROR_CANCELLED). May be NULL.
    int (*progress)(void *user, const struct dpcr_train_state *state);
    void *progress_user;
} dpcr_train_options;

typedef struct dpcr_train_state {
    int64_t epoch, epochs, step, steps;       // step counts from 1 within the whole run of `steps`
    int epoch_ended;                          // non-zero: the epoch's figures below are final
    double loss, accuracy;                    // running means over the epoch so far (training data)
    double images_per_second, seconds, seconds_left;
    int64_t sweeps;                           // of this step's forward solve
    dpcr_method method;
    dpcr_reason reason;
} dpcr_train_state;

// Trains a classifier on `data` (pixels / 255, then minus mean and over deviation of the training set). The model's
// parameters are updated in place; on resume they are read from the checkpoint.
DPCR_API dpcr_status dpcr_train(dpcr_context *context, dpcr_model *model, const dpcr_dataset *data,
                                const dpcr_train_options *options, dpcr_train_state *last, dpcr_error *error);

// Mean loss and accuracy over a data set, `batch` rows at a time.
DPCR_API dpcr_status dpcr_evaluate(dpcr_context *context, dpcr_model *model, const dpcr_dataset *data, int64_t batch,
                                   const dpcr_solve_options *solve, double *loss, double *accuracy, dpcr_error *error);

#ifdef __cplusplus
}
#endif
#endif
