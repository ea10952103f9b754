// SPDX-License-Identifier: MIT
// Forward and backward passes of a classifier over batches of one or two sizes, in buffers that are allocated once.
#ifndef DPCRI_TRAIN_PASS_H
#define DPCRI_TRAIN_PASS_H

#include "base/base.h"
#include "deeppcr/train.h"

enum { DPCRI_SIZES = 2 };  // a whole batch, and the epoch's last one

typedef struct dpcri_pass {
    dpcr_context *context;
    dpcr_model *model;
    const dpcr_model_options *options;    // the model's
    int64_t rows[DPCRI_SIZES];            // 0: no such batch
    dpcr_solve_plan *plans[DPCRI_SIZES];  // NULL where rows are 0 or the model has no layers
    bool taped[DPCRI_SIZES];
    int64_t tape_values;
    // The buffers hold the larger size B; smaller batches use their beginnings.
    void *x;         // [B][inputs]
    uint8_t *y;      // [B]
    void *z0;        // [B][w]; x itself without an encoder
    void *z;         // [L][B][w]
    void *tape;      // [L][B][tape_values] or NULL
    void *logits;    // [B][outputs]; backward: their gradient
    void *dz, *dz0;  // [B][w], backward only
    void *workspace;
    size_t workspace_bytes;
    dpcr_solve_report report;  // of the last forward solve
    dpcr_reason back_reason;   // of the last backward solve
    dpcr_train_phases phases;  // summed over all passes
} dpcri_pass;

// How many rows an epoch's batches have: of `batch` rows each (0: none is whole), and the last one's (0: as the
// others).
void dpcri_pass_rows(int64_t count, int64_t batch, int64_t rows[DPCRI_SIZES]);

// Makes plans and buffers for batches of rows[0] and rows[1] (either may be 0). solve[i] are the options of size i.
// pass is to be destroyed also after a failure; backward false leaves out what only backward needs; recompute: no tape
// is kept, and backward makes it again.
dpcr_status dpcri_pass_create(dpcri_pass *pass, dpcr_context *context, dpcr_model *model,
                              const int64_t rows[DPCRI_SIZES], const dpcr_solve_options solve[DPCRI_SIZES],
                              bool backward, bool recompute, dpcr_error *error);
// The same in two goes: the plans, and what they want. Between them: whether all of them are the loop.
dpcr_status dpcri_pass_plan(dpcri_pass *pass, dpcr_context *context, dpcr_model *model, const int64_t rows[DPCRI_SIZES],
                            const dpcr_solve_options solve[DPCRI_SIZES], bool recompute, dpcr_error *error);
bool dpcri_pass_is_loop(const dpcri_pass *pass);
dpcr_status dpcri_pass_allocate(dpcri_pass *pass, bool backward, dpcr_error *error);
void dpcri_pass_destroy(dpcri_pass *pass);

// Loss and correct rows of the batch in x, y. With `gradient` the logits' place then holds dloss/dlogits.
dpcr_status dpcri_pass_forward(dpcri_pass *pass, int size, bool gradient, double *loss, int64_t *correct,
                               dpcr_error *error);
// Adds the parameters' gradients of the batch that forward left.
dpcr_status dpcri_pass_backward(dpcri_pass *pass, int size, dpcr_error *error);

// Adds the time since *mark to *phase and moves the mark.
void dpcri_phase_end(double *phase, double *mark);

#endif
