// SPDX-License-Identifier: MIT
// Layers: f, jvp, vjp, parameter gradients, over rows. A layer is a row of the table in layer.c; a step of a chain is a
// short program of layers (program.h). Everything is in the kernels' dtype; strides in elements.
//
//   kind        y                                  Jacobian    parameters            tape a row
//   linear      x W + b                            dense       W [in][out], b [out]  x, unless it is the step's input
//   norm        (x - mean) / deviation gamma + beta  dense     gamma [w], beta [w]   normal [w], 1 / deviation
//   activation  act(x)                             diagonal    none                  act'(x) [w]
#ifndef DPCRI_NN_LAYER_H
#define DPCRI_NN_LAYER_H

#include "deeppcr/transition.h"
#include "kern/nn_kernels.h"

// Rows of numbers: row i begins at data + i row elements. A row stride of 0 shares one row.
typedef struct dpcri_rows {
    void *data;
    int64_t row;
} dpcri_rows;

static inline dpcri_rows dpcri_rows_at(dpcri_rows x, int64_t row, int64_t column, size_t element) {
    if (x.data) x.data = (char *)x.data + (row * x.row + column) * (int64_t)element;
    return x;
}

typedef struct dpcri_nn_layer dpcri_nn_layer;

// `parameters`, `gradients`: of this layer. `tape`: this layer's part; forward may get tape.data NULL: nothing is kept.
// x and y overlap only where `in_place` is set.
typedef struct dpcri_layer_kind {
    const char *name;
    dpcr_structure jacobian;
    bool in_place;
    void (*forward)(const dpcri_nn_layer *layer, const void *parameters, int64_t rows, dpcri_rows x, dpcri_rows y,
                    dpcri_rows tape);
    void (*jvp)(const dpcri_nn_layer *layer, const void *parameters, int64_t rows, dpcri_rows tape, dpcri_rows x,
                dpcri_rows y);
    void (*vjp)(const dpcri_nn_layer *layer, const void *parameters, int64_t rows, dpcri_rows tape, dpcri_rows g,
                dpcri_rows y);
    // Adds the parameters' gradients, rows in order. `x` is the step's input where the layer keeps none. NULL: none.
    void (*gradient)(const dpcri_nn_layer *layer, void *gradients, int64_t rows, dpcri_rows x, dpcri_rows tape,
                     dpcri_rows g);
} dpcri_layer_kind;

struct dpcri_nn_layer {
    const dpcri_layer_kind *kind;
    const dpcri_nn_kernels *kernels;
    int64_t in, out;
    int activation;
    bool keeps_input;    // linear: x goes to the tape
    int64_t parameters;  // offset in the step's parameters, and how many
    int64_t parameter_count;
    int64_t tape, tape_values;  // offset in the step's tape, and how many
};

dpcri_nn_layer dpcri_linear_layer(const dpcri_nn_kernels *kernels, int64_t in, int64_t out, bool keeps_input);
dpcri_nn_layer dpcri_norm_layer(const dpcri_nn_kernels *kernels, int64_t width);
dpcri_nn_layer dpcri_activation_layer(const dpcri_nn_kernels *kernels, int64_t width, int activation);

// sum[j] += sum_i g[i][j], rows in order
void dpcri_column_sums(const dpcri_nn_kernels *kernels, int64_t rows, int64_t width, dpcri_rows g, void *sum);

#endif
