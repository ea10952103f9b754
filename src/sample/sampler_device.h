// SPDX-License-Identifier: MIT
// A sampler on a device: what lies there, and the evaluation of rows that its loop and its sweeps share.
#ifndef DPCRI_SAMPLER_DEVICE_H
#define DPCRI_SAMPLER_DEVICE_H

#include "kern/device.h"
#include "nn/device.h"
#include "sample/networks.h"
#include "train/device_memory.h"

// Where an evaluation of rows keeps what is in between.
typedef struct dpcri_sampler_space {
    float *m[2], *plain[2];  // [rows][w]: what the network says, and without a class
    float *h[2];             // [rows][hidden]
} dpcri_sampler_space;

typedef struct dpcri_sampler_device {
    const dpcri_device_kernels *kernels;
    const dpcr_diffusion *model;
    dpcri_pieces memory;
    bool guided;
    double guidance;
    float *values;                // the net's
    float *shifts[2];             // [L][depth hidden]: s(t) of each step's readings, class apart
    float *classes;               // [classes + 1][depth hidden], or NULL
    int32_t *labels;              // [B], with classes: rows of it
    float *start, *noise;         // [B][w], with a mask; [L][B][w], or NULL
    uint8_t *mask;                // [w], or NULL
    float *known;                 // [B][w]
    dpcri_device_factors *steps;  // [L]
    dpcri_sampler_space own;      // of the loop, B rows
} dpcri_sampler_device;

// Rows of states, one after another but for what lies between them; with a window its rows, and with `path` x is the
// path, [step][B][row].
typedef struct dpcri_sampler_rows {
    float *x;
    int64_t row, rows;
    bool path;
    dpcri_device_window window;
} dpcri_sampler_rows;

// One step of each row of a window, to `to` [rows][chain's width].
dpcr_status dpcri_sampler_evaluate(dpcr_sampler *sampler, const dpcri_sampler_rows *x, const dpcri_sampler_space *space,
                                   float *to, void *stream, dpcr_error *error);
// The launch of a method of sweeps.
dpcr_status dpcri_sampler_sweeps(dpcr_sampler *sampler, dpcr_launch *what, dpcr_error *error);

#endif
