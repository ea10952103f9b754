// SPDX-License-Identifier: MIT
// The inside of a layer's Jacobian, and the rows of those that slide a window over images.
#ifndef DPCRI_NN_JACOBIAN_H
#define DPCRI_NN_JACOBIAN_H

#include "base/base.h"
#include "deeppcr/jacobian.h"

typedef enum dpcri_layer { DPCRI_LINEAR = 0, DPCRI_CONV2D, DPCRI_RELU, DPCRI_MAX_POOL2D } dpcri_layer;

// A window that slides over images: conv2d, or max-pool2d with a group a channel and no weights.
typedef struct dpcri_window2d {
    int64_t in_channels, out_channels, groups;
    int64_t in[2], out[2], kernel[2], stride[2], padding[2], dilation[2];
} dpcri_window2d;

struct dpcr_jacobian {
    dpcr_context *context;
    dpcri_layer layer;
    dpcr_transition transition;
    dpcr_pattern pattern;
    int64_t *offsets;
    int32_t *columns;
    int32_t *sources;  // linear, conv2d: the weight of each entry
    int64_t weights;   // how many there are
    dpcri_window2d window;
};

// Columns and weights of row `row` in ascending columns, without those whose weight `kept` says is pruned (NULL: none
// is). Returns how many; stores nothing where columns is NULL.
int64_t dpcri_window_row(const dpcri_window2d *window, const unsigned char *kept, int64_t row, int32_t *columns,
                         int32_t *sources);

// Sizes of what comes out; DPCR_ERROR_ARGUMENT where there is nothing, DPCR_ERROR_OVERFLOW where it is too large.
dpcr_status dpcri_window_prepare(const char *function, dpcri_window2d *window, dpcr_error *error);

#endif
