// SPDX-License-Identifier: MIT
// The inside of a sequence model, and its passes over batches of one shape.
#ifndef DPCRI_TRAIN_SEQUENCE_H
#define DPCRI_TRAIN_SEQUENCE_H

#include "deeppcr/sequence.h"
#include "kern/nn_kernels.h"

typedef struct dpcri_sequence_string {
    struct dpcri_sequence_string *next;
    char *key, *value;
} dpcri_sequence_string;

struct dpcr_sequence {
    dpcr_context *context;
    dpcr_sequence_options options;  // every default filled in
    dpcr_recurrent *network;
    const dpcri_nn_kernels *kernels;
    int64_t chains, directions;  // N, D
    int64_t projected;           // numbers of h
    int64_t width;               // D times that: of y
    // The ends, one vector: embedding [V][I], head's W [C][width], b [C].
    char *parameters, *gradients;
    int64_t head, bias, count;       // offsets, and numbers in all
    dpcri_sequence_string *strings;  // the user's metadata
};

static inline void *dpcri_sequence_at(const dpcr_sequence *m, char *vector, int64_t offset) {
    return vector + offset * (int64_t)m->kernels->element;
}
static inline dpcr_dtype dpcri_sequence_dtype(const dpcr_sequence *m) { return m->options.network.dtype; }
static inline bool dpcri_sequence_cells(const dpcr_sequence *m) {
    return dpcr_recurrent_kind_has_cell(m->options.network.kind);
}

// dpcr_sequence_save with more tensors and strings, as a checkpoint has them; load ignores these.
dpcr_status dpcri_sequence_save_with(const dpcr_sequence *m, const char *path, const dpcr_tensors *extra,
                                     dpcr_error *error);

// dpcr_sequence_load of the tensors that were read from `path`.
dpcr_status dpcri_sequence_of_tensors(dpcr_context *context, const dpcr_tensors *file, const char *path,
                                      dpcr_sequence **model, dpcr_error *error);

// ---- data ----

struct dpcri_sequence_pass;

enum { DPCRI_SEQUENCE_BLOCK = 64 };  // rows whose losses are added up before they join the others'

// The data are whole, and what the model reads; else refused in words.
dpcr_status dpcri_sequence_check_data(const char *call, const dpcr_sequence *m, const dpcr_sequence_data *data,
                                      dpcr_error *error);
// A labelled sequence [T][I], zeros after its end, its length within 1..T.
void dpcri_sequence_read(const dpcr_sequence_data *data, int64_t index, float *x, int64_t *length, uint8_t *label);
// B sequences from `first` of the order on, or, with NULL, of the data; past the last the last again.
dpcr_status dpcri_sequence_gather(const char *call, struct dpcri_sequence_pass *pass, const dpcr_sequence_data *data,
                                  const int64_t *order, int64_t first, dpcr_error *error);

// ---- passes ----

typedef struct dpcri_sequence_shape {
    int64_t length, batch;  // T, B
    bool training, packed;
    bool states_only;  // logits are asked for piece by piece (dpcri_sequence_score)
    double dropout;
    int recompute;
    int64_t segment;  // training, readout last: states are kept every so many steps, counted from the end; 0: all steps
} dpcri_sequence_shape;

typedef struct dpcri_sequence_pass {
    dpcr_context *context;
    dpcr_sequence *model;
    dpcri_sequence_shape shape;
    dpcr_recurrent_plan *plan;
    // In segments: how many, the steps of the first, its plan where it is shorter (else NULL), their lengths.
    int64_t segments, first;
    dpcr_recurrent_plan *first_plan;
    int64_t *segment_lengths;
    char *kept_h, *kept_c;  // [segments + 1][N][B][..]: states before each, and at the end
    void *back_h[2], *back_c[2];
    int64_t rows;  // of logits: B, or T B where each step has some
    // The batch: one of symbols and x is the input.
    int64_t *symbols;     // [T][B]
    int64_t *lengths;     // [B], packed
    uint8_t *labels;      // [rows]
    uint64_t seed, call;  // of dropout
    // [N][B][..]: where the network begins and ends; carried is the caller's to move
    void *h0, *c0, *ht, *ct;
    size_t h_bytes, c_bytes;
    void *x, *y;         // [T][B][I], [T][B][width]
    void *read, *dread;  // [B][width]: what the head reads; each: none
    void *logits;        // [rows][C]; with gradient: the loss's gradient
    void *head;          // W^T [width][C]
    void *dx, *dy, *dht, *dct;
    void *tape, *workspace;
    size_t workspace_bytes;
    double *losses;  // by block of rows
    int64_t *corrects;
    dpcr_solve_report *reports;       // [N] of the last forward pass
    dpcr_solve_report *back_reports;  // [N] of the last one back, or of its last segment
    dpcr_reason back_reason;          // the worst of the last pass back; 0: none yet
    dpcr_train_phases phases;
} dpcri_sequence_pass;

// shape->segment, rounded up so that by the loop, both ways, sums run in the order in which they do without segments.
dpcr_status dpcri_sequence_round_segment(dpcr_sequence *model, dpcri_sequence_shape *shape, dpcr_error *error);

// Buffers for batches of the shape; pass is to be destroyed also after a failure.
dpcr_status dpcri_sequence_pass_create(dpcri_sequence_pass *pass, dpcr_sequence *model,
                                       const dpcri_sequence_shape *shape, dpcr_error *error);
void dpcri_sequence_pass_destroy(dpcri_sequence_pass *pass);
// Makes the plan; what `solve` leaves open is decided over the batch that lies in the buffers.
dpcr_status dpcri_sequence_pass_plan(dpcri_sequence_pass *pass, const dpcr_solve_options *solve, dpcr_error *error);
// Mean loss and correct rows of the batch's first `rows` rows (0: all); `gradient` leaves the loss's gradient.
dpcr_status dpcri_sequence_forward(dpcri_sequence_pass *pass, int64_t rows, bool gradient, double *loss,
                                   int64_t *correct, dpcr_error *error);
// Adds the gradients of all parameters.
dpcr_status dpcri_sequence_backward(dpcri_sequence_pass *pass, dpcr_error *error);
// The network alone, and the head over rows `first` .. first + rows - 1 of y: sums of loss and correct rows are added.
dpcr_status dpcri_sequence_run(dpcri_sequence_pass *pass, dpcr_error *error);

#endif
