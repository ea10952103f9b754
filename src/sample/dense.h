// SPDX-License-Identifier: MIT
// Dense layers over many rows on all threads, in float:   u = x W^T + b,  y = act(u)  or  x + act(u).
// Weights are PyTorch's, [out][in], and packed for the wide products before use (kern/wide.h): a row's bits depend
// neither on its place nor on how many rows go with it, nor on threads.
#ifndef DPCRI_DENSE_H
#define DPCRI_DENSE_H

#include "deeppcr/data.h"
#include "kern/nn_kernels.h"
#include "kern/wide.h"

enum { DPCRI_NET_LAYERS = 40 };

typedef struct dpcri_dense {
    char name[24];
    int64_t in, out;
    int activation;
    bool residual, bias;
    int64_t weight;               // offset of W in the net's vector; b follows
    float *packed;                // of W^T
    struct dpcri_gather *gather;  // a convolution's (convolution.h), or NULL; owned
} dpcri_dense;

// Layers, their numbers in one vector, and work memory for `rows` rows.
typedef struct dpcri_net {
    dpcr_context *context;
    const dpcri_wide_kernels *wide;
    const dpcri_nn_kernels *nn;
    int count;
    dpcri_dense layers[DPCRI_NET_LAYERS];
    int64_t parameters;
    float *values;     // [parameters]
    float *gradients;  // [parameters], once dpcri_net_train was called
    // for going back: W, x packed; du transposed
    float *packed_weight, *packed_x, *transposed;
    int64_t rows;
} dpcri_net;

dpcri_net dpcri_net_make(dpcr_context *context);
// Appends a layer; its index.
int dpcri_net_add(dpcri_net *net, const char *name, int64_t in, int64_t out, int activation, bool residual);
// Memory for the layers added, numbers uniform in +-sqrt(gain / in) (sigmoid linear units like 3; a layer whose name
// ends in "out" starts at 0). `seed` NULL: left zero, to be read.
dpcr_status dpcri_net_create(dpcri_net *net, const uint64_t *seed, dpcr_error *error);
// Gradients and what going back needs.
dpcr_status dpcri_net_train(dpcri_net *net, int64_t rows, dpcr_error *error);
void dpcri_net_destroy(dpcri_net *net);
// After every change of the numbers.
void dpcri_net_pack(dpcri_net *net);

static inline const float *dpcri_dense_bias(const dpcri_net *net, int layer) {
    const dpcri_dense *d = &net->layers[layer];
    return net->values + d->weight + d->in * d->out;
}

// init [rows][out] with stride init_row in b's place, or NULL: b. slope: act'(u), or NULL. All x, y, slope contiguous
// rows.
void dpcri_dense_forward(const dpcri_net *net, int layer, int64_t rows, const float *x, const float *init,
                         int64_t init_row, float *y, float *slope);
// Layers first .. first + count - 1 of a net, one after another, for few rows: stack.c. One run at a time.
enum { DPCRI_FEW_ROWS = 5 };
typedef struct dpcri_stack dpcri_stack;
dpcr_status dpcri_stack_create(const dpcri_net *net, int first, int count, dpcri_stack **stack, dpcr_error *error);
void dpcri_stack_destroy(dpcri_stack *stack);
// x [rows][in] to y [rows][out], rows <= DPCRI_FEW_ROWS; each layer but the last from init + its number times `out` in
// b's place, rows init_row apart (0: all rows have the same), the last from its bias. Bits as dpcri_dense_forward's.
void dpcri_stack_run(dpcri_stack *stack, int64_t rows, const float *x, const float *init, int64_t init_row, float *y);
// y [rows][out] = x W^T alone.
void dpcri_dense_map(const dpcri_net *net, int layer, int64_t rows, const float *x, float *y);
// slope becomes du = slope dy; gradients of W and b are written; dx [rows][in] = du W (+ dy with residual) or NULL. dx
// may be dy with residual.
void dpcri_dense_backward(const dpcri_net *net, int layer, int64_t rows, const float *x, float *slope, const float *dy,
                          float *dx);
// sums[j] = sum_i g[i][j], rows in order, rows `stride` apart
void dpcri_dense_sums(const dpcri_net *net, int64_t rows, int64_t width, const float *g, int64_t stride, float *sums);

// ---- files ----

// The net's tensors by name ("NAME.weight" [out][in], "NAME.bias" [out]) as views of `values`, appended to `tensors`,
// whose items have room. Names are allocated.
dpcr_status dpcri_net_tensors(const dpcri_net *net, const float *values, dpcr_tensors *tensors, dpcr_error *error);
// Copies them out of a file; what lacks, has another shape or is not finite: DPCR_ERROR_FORMAT.
dpcr_status dpcri_net_read(dpcri_net *net, const dpcr_tensors *tensors, const char *path, dpcr_error *error);

#endif
