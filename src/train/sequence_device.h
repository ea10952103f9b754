// SPDX-License-Identifier: MIT
// Sequence models where everything lies on a device: data, parameters, gradients, states, and for training the
// optimisers' state. What a pass or an update says is put into one stream; the host waits where it reads the loss, and
// after a method of sweeps its reports.
#ifndef DPCRI_TRAIN_SEQUENCE_DEVICE_H
#define DPCRI_TRAIN_SEQUENCE_DEVICE_H

#include "kern/device.h"
#include "train/device_memory.h"
#include "train/sequence.h"

enum { DPCRI_SEQUENCE_VECTORS = 2 };  // the network's, the ends'

typedef struct dpcri_sequence_device {
    dpcr_sequence *model;
    const dpcri_device_kernels *kernels;
    dpcri_sequence_shape shape;
    int64_t count, stream;  // sequences, or symbols of the text; symbols of each of its streams
    int64_t rows;           // of logits: B, or T B where each step has some
    dpcr_recurrent_plan *plan;
    // In segments, training, as in a pass of the host: how many, 1: all steps at once; the steps of each, and of the
    // first, with its plan where it is shorter (else NULL).
    int64_t segments, segment, first_steps;
    dpcr_recurrent_plan *first_plan;
    // On the device. Backward: training alone.
    dpcr_array parameters[DPCRI_SEQUENCE_VECTORS], gradients[DPCRI_SEQUENCE_VECTORS];  // backward: zeros at first
    float *data;                                                                       // labelled: [count][T][I]
    uint8_t *labels;   // [count], or, of a text, of the batch [rows]
    int64_t *lengths;  // [count], packed
    uint8_t *text;     // [count]
    int64_t *order;    // [count]; order and marks: labelled, backward
    uint32_t *marks;
    void *x, *y;             // [T][B][I], [T][B][width]; in segments y [segment][B][width]
    uint8_t *indices;        // a text's: [rows]
    uint8_t *batch_labels;   // [rows]
    int64_t *batch_lengths;  // [segments][B], packed
    void *h[2], *c[2];       // [N][B][..]: before the batch and after it, by turns; h[0], c[0]: a text that is carried
    uint64_t seed, call;     // of dropout
    int turn;                // which of them is the one before
    void *v;                 // [B][width]: what the head reads, and its gradient; each: none
    void *logits;            // [rows][C]; backward: their gradient
    void *dx, *dy, *dht;     // backward, what the readout and an embedding want
    // In segments: [segments - 1][N][B][..], the states between them; and their gradients, by turns.
    void *kept_h, *kept_c, *back_h[2], *back_c[2];
    double *parts, *told;      // [rows][2], [2]: the loss
    void *workspace;           //
    size_t workspace_bytes;    //
    dpcr_solve_report report;  // of the last forward pass: the first chain's, with the worst reason
    dpcri_pieces memory;       // all of the above
    // Training: the optimisers, their state there (NULL: the kind has none), what clipping adds up (NULL: no clipping).
    dpcr_optimiser *optimisers[DPCRI_SEQUENCE_VECTORS];
    dpcr_array first[DPCRI_SEQUENCE_VECTORS], second[DPCRI_SEQUENCE_VECTORS];
    double clip, *sums;
} dpcri_sequence_device;

// The plan, with the options' device, and buffers, with the data sent there; of a text `stream` symbols a stream. There
// are no parameters yet. `device` is to be destroyed also after a failure. call: a literal, whom errors name.
dpcr_status dpcri_sequence_device_create(dpcri_sequence_device *device, const char *call, dpcr_sequence *model,
                                         const dpcr_sequence_data *data, const dpcri_sequence_shape *shape,
                                         int64_t stream, const dpcr_solve_options *solve, dpcr_error *error);
void dpcri_sequence_device_destroy(dpcri_sequence_device *device);
// The model's parameters.
dpcr_status dpcri_sequence_device_send(dpcri_sequence_device *device, dpcr_error *error);

// The order of an epoch's sequences.
dpcr_status dpcri_sequence_device_shuffle(dpcri_sequence_device *device, uint64_t seed, int64_t epoch,
                                          dpcr_error *error);
// A text's states are zeros.
dpcr_status dpcri_sequence_device_begin(dpcri_sequence_device *device, dpcr_error *error);
// Sequences first .. of the order, or of the data, or the text from its streams' symbol `first` on: the loss of `rows`
// rows (0: all), and with `gradient` its gradients added to what is there.
dpcr_status dpcri_sequence_device_run(dpcri_sequence_device *device, int64_t first, int64_t rows, bool gradient,
                                      dpcr_error *error);
// Waits, and reads what was told of the batch that ran last.
dpcr_status dpcri_sequence_device_read(dpcri_sequence_device *device, double *loss, int64_t *correct,
                                       dpcr_error *error);

// ---- training (sequence_device_train.c) ----

// Room for the optimisers' state.
dpcr_status dpcri_sequence_device_keep(dpcri_sequence_device *device, dpcr_optimiser *network, dpcr_optimiser *ends,
                                       double clip, dpcr_error *error);
// Parameters, the optimisers' state and a text's carried states, h and c (NULL: none), there or home.
dpcr_status dpcri_sequence_device_move(dpcri_sequence_device *device, dpcri_direction direction, void *h, void *c,
                                       dpcr_error *error);
// Clipping and both updates; the gradients are zeros afterwards, and a text's last states are carried.
dpcr_status dpcri_sequence_device_update(dpcri_sequence_device *device, dpcr_error *error);

#endif
