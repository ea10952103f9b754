// SPDX-License-Identifier: MIT
// Convolutions as dense layers over gathered neighbourhoods: a picture is [places][channels], a layer's input row is
// the numbers of 3 x 3 places, so forward and back are the wide products of dense.h, whose bits are a row's own.
// Pictures go in groups of a fixed number, whose gradients are summed in order.
#ifndef DPCRI_CONVOLUTION_H
#define DPCRI_CONVOLUTION_H

#include "sample/dense.h"

enum { DPCRI_CONV_PICTURES = 16, DPCRI_CONV_TAPS = 9 };

struct dpcri_gather {
    bool up;
    int64_t rows, cols;  // the larger ones, in or out
    int64_t in_places, out_places, channels;
    int32_t *at;  // [out_places][DPCRI_CONV_TAPS]: the place that goes in, -1: beyond the border, zero
};

// Appends a 3 x 3 convolution. Down: every second place of [rows][cols] in. Up: [rows][cols] out of half as many places
// in, each taken twice in either direction.
dpcr_status dpcri_conv_add(dpcri_net *net, const char *name, bool up, int64_t rows, int64_t cols, int64_t channels,
                           int64_t out, int activation, dpcr_error *error);

// Numbers of scratch for one layer's rows of a group.
int64_t dpcri_conv_scratch(const dpcri_net *net);
// As dpcri_dense_forward and _backward over n pictures; dense layers go straight there. scratch: dpcri_conv_scratch
// numbers, twice for going back; sums: the largest layer's parameters.
void dpcri_conv_forward(const dpcri_net *net, int layer, int64_t n, const float *x, float *scratch, float *y,
                        float *slope);
void dpcri_conv_backward(const dpcri_net *net, int layer, int64_t n, const float *x, float *slope, const float *dy,
                         float *dx, float *scratch, float *sums);

// A library's convolutions in the gathered ones' place, for training. Pictures go in pieces of DPCRI_CONV_PICTURES, so
// x, y, slope and dx have room for whole ones and x is finite there; bits do not depend on threads.
typedef struct dpcri_conv_run dpcri_conv_run;
typedef struct dpcri_conv_library {
    const char *name;  // and what its bits depend on
    // A layer for `rows` pictures; the net stays where it is.
    dpcr_status (*create)(const dpcri_net *net, int layer, int64_t rows, dpcri_conv_run **run, dpcr_error *error);
    dpcr_status (*forward)(dpcri_conv_run *run, const float *x, float *y, float *slope, dpcr_error *error);
    dpcr_status (*backward)(dpcri_conv_run *run, const float *x, float *slope, const float *dy, float *dx,
                            dpcr_error *error);
    void (*destroy)(dpcri_conv_run *run);
} dpcri_conv_library;
// The one that this build and machine have, or NULL.
const dpcri_conv_library *dpcri_conv_library_find(void);
const dpcri_conv_library *dpcri_onednn(void);  // onednn/, where it is built

#endif
