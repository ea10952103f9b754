// SPDX-License-Identifier: MIT
// The cross-entropy of part of a batch, and what a data set's batches come to.
#ifndef DPCRI_TRAIN_LOSS_H
#define DPCRI_TRAIN_LOSS_H

#include "base/base.h"
#include "deeppcr/train.h"

// Adds the rows' losses to *total and those that are right to *correct; dlogits (may be NULL or logits itself) is the
// gradient of the mean over `batch` rows. Rows taken in order, a part at a time, give the bits of all at once.
dpcr_status dpcri_loss_cross_entropy_part(const dpcr_array *logits, const uint8_t *labels, int64_t batch, double *total,
                                          const dpcr_array *dlogits, int64_t *correct, dpcr_error *error);

// Sums over the rows so far, and the worst of their solves' reasons (0: none yet).
typedef struct dpcri_score {
    double loss;
    int64_t correct;
    dpcr_reason reason;
} dpcri_score;
// `rows` more of this mean loss.
void dpcri_score_add(dpcri_score *score, double loss, int64_t rows, int64_t correct, dpcr_reason reason);

#endif
