// SPDX-License-Identifier: MIT
// Convolutions as dense layers over gathered neighbourhoods: a picture is [places][channels], a layer's input row is
// the numbers of 3 x 3 places, so forward and back are the wide products of dense.h, whose bits are a row's own.
// Pictures go in groups of a fixed number, whose gradients are summed in order.
#ifndef DPCRI_CONVOLUTION_H
#define DPCRI_CONVOLUTION_H

#include "sample/dense.h"

enum { DPCRI_CONV_PICTURES = 16, DPCRI_CONV_TAPS = 9 };

struct dpcri_gather {
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

#endif
