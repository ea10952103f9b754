// SPDX-License-Identifier: MIT
// A stage's layers: what F, I and W of a pipeline compute. A model's units in order are its encoder (where it has one),
// its steps and its head; a stage is a range of units, held as a model of its own, and computes with the model's own
// callbacks, so its bits are the whole model's.
#ifndef DPCRI_PIPE_EXECUTOR_STAGE_H
#define DPCRI_PIPE_EXECUTOR_STAGE_H

#include "base/base.h"
#include "deeppcr/train.h"

typedef struct dpcri_stage {
    dpcr_context *context;
    dpcr_model *model;      // of the stage's units alone
    char *own;              // the model's own vector of parameters
    dpcr_steps steps;       // of the stage's steps
    int64_t layers, width;  // steps of the stage; w
    int64_t inputs;         // pixels of a row where the stage has the encoder, else 0
    int64_t outputs;        // classes where it has the head, else 0
    int64_t count;          // parameters
    int64_t tape_values;    // a step and row
    size_t element;
    bool needs_input;  // somebody wants the gradient of its input
} dpcri_stage;

int64_t dpcri_units_of(const dpcr_model *model);

// Units first .. end - 1 of `model`, whose parameters are copied. `context` is the one that its calls run on.
dpcr_status dpcri_stage_create(dpcri_stage *stage, dpcr_context *context, const dpcr_model *model, int64_t first,
                               int64_t end, dpcr_error *error);
void dpcri_stage_destroy(dpcri_stage *stage);

// The vectors of the whole model hold a stage's numbers in at most three pieces: steps, encoder, head.
typedef struct dpcri_piece {
    int64_t here, there, count;  // where it begins in the stage's vector and in the model's
} dpcri_piece;
int dpcri_units_pieces(const dpcr_model *model, int64_t first, int64_t end, dpcri_piece pieces[3]);
// Copies a stage's vector (parameters, gradients, an optimiser's state) into the whole model's like it, or back.
void dpcri_units_put(const dpcr_model *model, int64_t first, int64_t end, const void *stage, void *whole);
void dpcri_units_get(const dpcr_model *model, int64_t first, int64_t end, void *stage, const void *whole);
int64_t dpcri_units_count(const dpcr_model *model, int64_t first, int64_t end);

// Computes with these parameters from now on (NULL: the stage's own).
void dpcri_stage_use(dpcri_stage *stage, void *parameters);

enum { DPCRI_PARTS = 2 };  // I in one piece, or in two halves of the rows

// What a stage keeps of a microbatch. From `x` to the end of `logits` it lies in one piece.
typedef struct dpcri_kept {
    int64_t rows;
    char *x;       // [rows][inputs]
    char *z;       // [layers + 1][rows][w]: the input (or the encoder's result), then what each step gave
    char *tape;    // [layers][rows][tape_values]; turned by I where nothing else takes the adjoints
    char *logits;  // [rows][outputs]; from the loss on its gradient
    size_t forward_bytes;
    int parts;
    int64_t part_rows[DPCRI_PARTS];
    char *g[DPCRI_PARTS];   // [layers][part rows][w] adjoint states
    char *dx[DPCRI_PARTS];  // [part rows][w] gradient of the input, before the encoder
    char *dz;               // [rows][w] gradient of the result
    bool turned;
} dpcri_kept;

// Lays `rows` rows out from `memory` on (NULL: counts); false on overflow. *bytes is what it takes.
bool dpcri_stage_lay_out(const dpcri_stage *stage, int64_t rows, int parts, bool turned, char *memory, dpcri_kept *kept,
                         size_t *bytes);
static inline char *dpcri_stage_result(const dpcri_stage *stage, const dpcri_kept *kept) {
    return kept->z + stage->layers * kept->rows * stage->width * (int64_t)stage->element;
}

// Each returns DPCR_ERROR_MEMORY where a very wide layer's work buffers were refused.
dpcr_status dpcri_stage_forward(dpcri_stage *stage, dpcri_kept *kept, dpcr_error *error);
// Of the head's stage, after forward: the loss's rows are added to *total, as dpcri_loss_cross_entropy_part does.
dpcr_status dpcri_stage_loss(const dpcri_stage *stage, dpcri_kept *kept, const uint8_t *labels, int64_t batch,
                             double *total, int64_t *correct, dpcr_error *error);
// From dz (the head's stage: from the loss) to dx, for the rows of a part.
dpcr_status dpcri_stage_input(dpcri_stage *stage, dpcri_kept *kept, int part, dpcr_error *error);
// For W where I runs elsewhere: from dz to the adjoint states alone. Of one step that is dz itself.
dpcr_status dpcri_stage_adjoints(dpcri_stage *stage, dpcri_kept *kept, int part, dpcr_error *error);
// Adds the gradients of the stage's parameters, the rows in order.
dpcr_status dpcri_stage_weight(dpcri_stage *stage, dpcri_kept *kept, dpcr_error *error);

// ---- gradients and updates ----

// The sum of squared gradients of each of the stage's units, so that a norm does not depend on where stages are cut. Of
// tied steps (tie > 0) only the first of a set counts; the stage's first step is step `first` of the network.
void dpcri_stage_squares(const dpcri_stage *stage, int64_t tie, int64_t first, double *sums);
void dpcri_stage_scale(const dpcri_stage *stage, double factor);
// An optimiser of units first .. end - 1 that goes on from `state`, one of the whole model (NULL: anew).
dpcr_status dpcri_stage_optimiser(const dpcri_stage *stage, const dpcr_model *model, int64_t first, int64_t end,
                                  const dpcr_optimiser_options *options, const dpcr_optimiser *state,
                                  dpcr_optimiser **optimiser, dpcr_error *error);

#endif
