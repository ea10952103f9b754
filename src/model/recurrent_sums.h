// SPDX-License-Identifier: MIT
// What a chain's way back makes of its gates' gradients e: the gradients of its weights and of its inputs. For the way
// back itself, and for trials of it (recurrent_rehearse.c).
#ifndef DPCRI_RECURRENT_SUMS_H
#define DPCRI_RECURRENT_SUMS_H

#include "model/recurrent_internal.h"
#include "nn/layer.h"

// Columns of e and the rows of a weight matrix that they go with. own: not -1: columns of e that they are multiplied
// with, instead of what the matrix met otherwise.
typedef struct dpcri_stripe {
    int64_t column, row, count, own;
} dpcri_stripe;

// Rows of e and of what they are multiplied with; data of v NULL: nothing. after: the states that come out.
typedef struct dpcri_rows_pair {
    int64_t rows;
    dpcri_rows e, v, after;
} dpcri_rows_pair;

// One matrix of weights: dW[stripe] += e^T v, db[stripe] += sum e, pair after pair.
typedef struct dpcri_weight_sums {
    dpcri_stripe stripes[2];
    int count, pairs;
    dpcri_rows_pair pair[2];
    int64_t width;
    char *weight, *bias, *peephole;
    const dpcri_recurrent *apart;  // the layer, where units do not mix
} dpcri_weight_sums;

// What a chain's backward pass makes of e, for steps whose e has just been written.
typedef struct dpcri_recurrent_sums {
    const dpcr_recurrent_plan *plan;
    const dpcri_nn_kernels *nn;
    int64_t chain;
    bool turned;  // e, z and x lie against the chain's order
    dpcri_rows e, z, x, z0;
    dpcri_rows before;  // where there are resets: room for the states that went in
    bool windowed;      // e holds the present steps alone
    dpcri_weight_sums hidden, input, projected;
    char *peepholes;      // gradients [3][H], or NULL
    dpcri_rows back;      // the gradient of x; data NULL: not wanted
    bool add;             // onto what is there
    int64_t first, rows;  // of the present steps, as they lie
    const int64_t *ends;  // of a packed batch: [B], or NULL
    // By blocks of sequences, or, block_sums NULL, all sequences of a packed batch as one block:
    int64_t window;  // steps of one call at most
    bool in_place;   // the adjoint loop has left e where the blocks have it
    char *block_e, *block_x, *block_before, *block_sums;  // block_e NULL: not by blocks
    char *sums;  // of all blocks: the chain's gradients
} dpcri_recurrent_sums;

// Of a chain whose arrays are those of the pass and the space, onto the network's gradients. to: the gradient of what
// went into the layer [T][B][inputs], or NULL.
dpcri_recurrent_sums dpcri_recurrent_sums_of(const dpcr_recurrent_plan *plan, const dpcr_recurrent_pass *pass,
                                             const dpcri_recurrent_space *space, int64_t chain, void *to, bool add);

// From now on the layer of the sums' chain, and its callback `gradient`, adds to them: block by block from 0 on, where
// they are summed so. Until it is let go.
void dpcri_recurrent_sum_by(dpcri_recurrent *layer, const dpcri_recurrent_space *space, dpcri_recurrent_sums *sums);
void dpcri_recurrent_let_go(dpcri_recurrent *layer);

#endif
