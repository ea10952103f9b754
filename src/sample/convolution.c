// SPDX-License-Identifier: MIT
// Convolutions by gathering. Work of a layer: 18 places channels out flops a picture; memory: the neighbourhoods of
// DPCRI_CONV_PICTURES pictures, nine times their input. Source: Chellapilla, Puri, Simard (2006), unrolled
// convolutions.
#include "sample/convolution.h"

#include <string.h>

static int64_t half(int64_t n) { return (n + 1) / 2; }

dpcr_status dpcri_conv_add(dpcri_net *net, const char *name, bool up, int64_t rows, int64_t cols, int64_t channels,
                           int64_t out, int activation, dpcr_error *error) {
    const int64_t in_rows = up ? half(rows) : rows, in_cols = up ? half(cols) : cols;
    const int64_t out_rows = up ? rows : half(rows), out_cols = up ? cols : half(cols);
    struct dpcri_gather *g = dpcri_alloc_zero(net->context, sizeof *g);
    int32_t *at = g ? dpcri_alloc(net->context, (size_t)(out_rows * out_cols) * DPCRI_CONV_TAPS * sizeof *at) : NULL;
    if (!at) {
        dpcri_free(net->context, g);
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "network: no memory for a convolution");
    }
    *g = (struct dpcri_gather){up, rows, cols, in_rows * in_cols, out_rows * out_cols, channels, at};
    for (int64_t y = 0; y < out_rows; y++)
        for (int64_t x = 0; x < out_cols; x++)
            for (int64_t k = 0; k < DPCRI_CONV_TAPS; k++) {
                const int64_t i = (up ? y : 2 * y) + k / 3 - 1, j = (up ? x : 2 * x) + k % 3 - 1;
                const bool inside = i >= 0 && j >= 0 && i < rows && j < cols;
                *at++ = inside ? (int32_t)((up ? i / 2 : i) * in_cols + (up ? j / 2 : j)) : -1;
            }
    net->layers[dpcri_net_add(net, name, DPCRI_CONV_TAPS * channels, out, activation, false)].gather = g;
    return DPCR_OK;
}

int64_t dpcri_conv_scratch(const dpcri_net *net) {
    int64_t most = 0;
    for (int i = 0; i < net->count; i++) {
        const dpcri_dense *d = &net->layers[i];
        const int64_t numbers = d->gather ? DPCRI_CONV_PICTURES * d->gather->out_places * d->in : 0;
        most = numbers > most ? numbers : most;
    }
    return most;
}

typedef struct gather_job {
    const dpcri_dense *layer;
    const float *from;
    float *to;
} gather_job;

static void gather_picture(void *argument, int64_t n) {
    const gather_job *j = argument;
    const struct dpcri_gather *g = j->layer->gather;
    const int64_t count = g->out_places * DPCRI_CONV_TAPS, c = g->channels;
    const float *from = j->from + n * g->in_places * c;
    float *to = j->to + n * count * c;
    for (int64_t i = 0; i < count; i++, to += c)
        if (g->at[i] < 0)
            memset(to, 0, (size_t)c * sizeof *to);
        else
            memcpy(to, from + g->at[i] * c, (size_t)c * sizeof *to);
}

static void scatter_picture(void *argument, int64_t n) {
    const gather_job *j = argument;
    const struct dpcri_gather *g = j->layer->gather;
    const int64_t count = g->out_places * DPCRI_CONV_TAPS, c = g->channels;
    const float *from = j->from + n * count * c;
    float *to = j->to + n * g->in_places * c;
    memset(to, 0, (size_t)(g->in_places * c) * sizeof *to);
    for (int64_t i = 0; i < count; i++, from += c)
        for (int64_t k = 0; g->at[i] >= 0 && k < c; k++) to[g->at[i] * c + k] += from[k];
}

void dpcri_conv_forward(const dpcri_net *net, int layer, int64_t n, const float *x, float *scratch, float *y,
                        float *slope) {
    const dpcri_dense *d = &net->layers[layer];
    const struct dpcri_gather *g = d->gather;
    if (!g) {
        dpcri_dense_forward(net, layer, n, x, NULL, 0, y, slope);
        return;
    }
    for (int64_t first = 0; first < n; first += DPCRI_CONV_PICTURES) {
        const int64_t left = n - first, count = left < DPCRI_CONV_PICTURES ? left : DPCRI_CONV_PICTURES;
        const int64_t at = first * g->out_places * d->out;
        gather_job job = {d, x + first * g->in_places * g->channels, scratch};
        dpcri_parallel(net->context, count, gather_picture, &job);
        dpcri_dense_forward(net, layer, count * g->out_places, scratch, NULL, 0, y + at, slope ? slope + at : NULL);
    }
}

void dpcri_conv_backward(const dpcri_net *net, int layer, int64_t n, const float *x, float *slope, const float *dy,
                         float *dx, float *scratch, float *sums) {
    const dpcri_dense *d = &net->layers[layer];
    const struct dpcri_gather *g = d->gather;
    if (!g) {
        dpcri_dense_backward(net, layer, n, x, slope, dy, dx);
        return;
    }
    float *gradient = net->gradients + d->weight, *back = dx ? scratch + dpcri_conv_scratch(net) : NULL;
    const int64_t parameters = d->in * d->out + d->out;
    memset(sums, 0, (size_t)parameters * sizeof *sums);
    for (int64_t first = 0; first < n; first += DPCRI_CONV_PICTURES) {
        const int64_t left = n - first, count = left < DPCRI_CONV_PICTURES ? left : DPCRI_CONV_PICTURES;
        const int64_t at = first * g->out_places * d->out, from = first * g->in_places * g->channels;
        gather_job there = {d, x + from, scratch}, here = {d, back, dx ? dx + from : NULL};
        dpcri_parallel(net->context, count, gather_picture, &there);
        dpcri_dense_backward(net, layer, count * g->out_places, scratch, slope + at, dy + at, back);
        if (dx) dpcri_parallel(net->context, count, scatter_picture, &here);
        for (int64_t i = 0; i < parameters; i++) sums[i] += gradient[i];
    }
    memcpy(gradient, sums, (size_t)parameters * sizeof *sums);
}

const dpcri_conv_library *dpcri_conv_library_find(void) {
#ifdef DEEPPCR_ONEDNN
    return dpcri_onednn();
#else
    return NULL;
#endif
}
