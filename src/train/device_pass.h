// SPDX-License-Identifier: MIT
// Passes of a classifier where everything lies on a device: images, labels, parameters, gradients, states. What a pass
// says is put into one stream; the host waits where it reads the loss, and after a solve by sweeps its report.
#ifndef DPCRI_TRAIN_DEVICE_PASS_H
#define DPCRI_TRAIN_DEVICE_PASS_H

#include "nn/device.h"
#include "rt/dev/device.h"
#include "train/batches.h"
#include "train/device_memory.h"
#include "train/pass.h"

typedef struct dpcri_device_pass {
    dpcr_context *context;
    const dpcr_model *model;
    const dpcr_model_options *options;  // the model's
    const dpcri_device_table *table;
    const dpcri_device_kernels *kernels;
    const char *call;  // that errors name
    dpcr_device device;
    void *stream;
    int64_t count, image_count;  // parameters; rows of the data
    int64_t rows[DPCRI_SIZES];   // 0: no such batch
    // The chain goes in segments of so many layers (all: one segment), of which the last may have less.
    int64_t segment, segments;
    dpcr_device_model *chains[DPCRI_SIZES];  // of a segment; NULL where rows are 0 or the model has no layers
    dpcr_solve_plan *plans[DPCRI_SIZES];
    dpcr_device_model *last_chains[DPCRI_SIZES];  // of the last one, where it has less
    dpcr_solve_plan *last_plans[DPCRI_SIZES];
    // On the device; the buffers hold the larger size B.
    void *parameters, *gradients;  // [count]; gradients: backward only, zeros at first
    uint8_t *images, *labels;      // the data
    void *normaliser;              // [256]
    int64_t *order;                // [image_count]; order and marks: backward only
    uint32_t *marks;               // [image_count]
    void *x;                       // [B][inputs]
    uint8_t *y;                    // [B]
    void *z0, *z;                  // [B][w], x itself without an encoder; [segment][B][w]
    void *kept;    // [segments - 1][B][w]: states before the segments but the first; not backward: [B][w]
    void *logits;  // [B][outputs]; backward: their gradient
    void *direct, *lambda, *dz0;  // as z, zeros but for the last step's; as z; [B][w]; backward only
    double *parts, *told;         // [B][2], [2]: the loss
    void *workspace;
    size_t workspace_bytes;
    dpcr_solve_report report;  // of the last forward solve
    dpcri_pieces memory;       // all of the above
} dpcri_device_pass;

// Plans, buffers, and data and parameters sent there. pass is to be destroyed also after a failure; backward false
// leaves out what only backward needs. recompute: the loop keeps the states before each segment alone, and the way back
// runs each again. call: a literal, whom errors name.
dpcr_status dpcri_device_pass_create(dpcri_device_pass *pass, const char *call, dpcr_context *context,
                                     const dpcr_model *model, const dpcr_dataset *data,
                                     const dpcri_normaliser *normaliser, const int64_t rows[DPCRI_SIZES],
                                     const dpcr_solve_options solve[DPCRI_SIZES], bool backward, bool recompute,
                                     dpcr_error *error);
void dpcri_device_pass_destroy(dpcri_device_pass *pass);

// a b c elements more of the device's memory, which go with the pass; `from` of the host, or NULL: anything.
dpcr_status dpcri_device_pass_take(dpcri_device_pass *pass, const char *what, int64_t a, int64_t b, int64_t c,
                                   size_t element, const void *from, void **place, dpcr_error *error);
// A vector of as many numbers as there are parameters, as an array.
dpcr_array dpcri_device_pass_vector(const dpcri_device_pass *pass, void *data);

// The order of an epoch's rows.
dpcr_status dpcri_device_pass_shuffle(dpcri_device_pass *pass, uint64_t seed, int64_t epoch, dpcr_error *error);
// Rows first .. of the order, or of the data: loss, and with `gradient` its gradients added to what is there.
dpcr_status dpcri_device_pass_run(dpcri_device_pass *pass, int size, int64_t first, bool shuffled, bool gradient,
                                  dpcr_error *error);
// Waits, and reads what was told of the pass that ran last.
dpcr_status dpcri_device_pass_read(dpcri_device_pass *pass, double *loss, int64_t *correct, dpcr_error *error);

#endif
