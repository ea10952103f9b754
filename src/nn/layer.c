// SPDX-License-Identifier: MIT
// The layers of layer.h, each a row of functions over the kernels. With g the gradient of what comes out:
//   linear      jvp  x W        vjp  g W^T                    dW += x^T g, db += sum g
//   norm        jvp  gamma C x  vjp  C (gamma g)              dgamma += sum g normal, dbeta += sum g
//   activation  jvp  act' x     vjp  act' g
// with C v = r (v - mean(v) - n mean(n v)), symmetric.
#include "nn/layer.h"

static const void *offset(const void *base, int64_t elements, size_t element) {
    return (const char *)base + elements * (int64_t)element;
}

void dpcri_column_sums(const dpcri_nn_kernels *kernels, int64_t rows, int64_t width, dpcri_rows g, void *sum) {
    kernels->slope_pass(
        &(dpcri_slope_pass){.rows = rows, .width = width, .scale = 1, .g = g.data, .g_row = g.row, .sum = sum});
}

// y = x W + init; init [out] or NULL.
static void multiply(const dpcri_nn_layer *l, const void *weights, const void *init, int64_t rows, dpcri_rows x,
                     dpcri_rows y) {
    l->kernels->product(&(dpcri_product){.m = rows,
                                         .n = l->out,
                                         .depth = l->in,
                                         .a = x.data,
                                         .a_row = x.row,
                                         .a_col = 1,
                                         .b = weights,
                                         .b_row = l->out,
                                         .init = init,
                                         .c = y.data,
                                         .c_row = y.row});
}

static void linear_forward(const dpcri_nn_layer *l, const void *parameters, int64_t rows, dpcri_rows x, dpcri_rows y,
                           dpcri_rows tape) {
    const dpcri_nn_kernels *k = l->kernels;
    if (tape.data && l->keeps_input)
        k->multiply_add(rows, l->in, NULL, 0, 1, x.data, x.row, NULL, 0, tape.data, tape.row);
    multiply(l, parameters, offset(parameters, l->in * l->out, k->element), rows, x, y);
}

static void linear_jvp(const dpcri_nn_layer *l, const void *parameters, int64_t rows, dpcri_rows tape, dpcri_rows x,
                       dpcri_rows y) {
    (void)tape;
    multiply(l, parameters, NULL, rows, x, y);
}

static void linear_vjp(const dpcri_nn_layer *l, const void *parameters, int64_t rows, dpcri_rows tape, dpcri_rows g,
                       dpcri_rows y) {
    (void)tape;
    l->kernels->product_transposed(&(dpcri_product){.m = rows,
                                                    .n = l->in,
                                                    .depth = l->out,
                                                    .a = g.data,
                                                    .a_row = g.row,
                                                    .a_col = 1,
                                                    .b = parameters,
                                                    .b_row = l->out,
                                                    .c = y.data,
                                                    .c_row = y.row});
}

static void linear_gradient(const dpcri_nn_layer *l, void *gradients, int64_t rows, dpcri_rows x, dpcri_rows tape,
                            dpcri_rows g) {
    const dpcri_nn_kernels *k = l->kernels;
    const dpcri_rows input = l->keeps_input ? tape : x;
    k->product(&(dpcri_product){.m = l->in,
                                .n = l->out,
                                .depth = rows,
                                .a = input.data,
                                .a_row = 1,
                                .a_col = input.row,
                                .b = g.data,
                                .b_row = g.row,
                                .init = gradients,
                                .init_row = l->out,
                                .c = gradients,
                                .c_row = l->out});
    dpcri_column_sums(k, rows, l->out, g, (void *)offset(gradients, l->in * l->out, k->element));
}

static const dpcri_layer_kind linear_kind = {.name = "linear",
                                             .jacobian = DPCR_DENSE,
                                             .forward = linear_forward,
                                             .jvp = linear_jvp,
                                             .vjp = linear_vjp,
                                             .gradient = linear_gradient};

dpcri_nn_layer dpcri_linear_layer(const dpcri_nn_kernels *kernels, int64_t in, int64_t out, bool keeps_input) {
    return (dpcri_nn_layer){.kind = &linear_kind,
                            .kernels = kernels,
                            .in = in,
                            .out = out,
                            .keeps_input = keeps_input,
                            .parameter_count = in * out + out,
                            .tape_values = keeps_input ? in : 0};
}

// The tape is what the kernel writes, so forward needs one. Program.c always gives it (from its scratch if need be).
static void norm_forward(const dpcri_nn_layer *l, const void *parameters, int64_t rows, dpcri_rows x, dpcri_rows y,
                         dpcri_rows tape) {
    const dpcri_nn_kernels *k = l->kernels;
    const dpcri_rows reciprocal = dpcri_rows_at(tape, 0, l->in, k->element);
    k->norm(rows, l->in, x.data, x.row, parameters, offset(parameters, l->in, k->element), tape.data, tape.row,
            reciprocal.data, tape.row, y.data, y.row);
}

static void norm_jvp(const dpcri_nn_layer *l, const void *parameters, int64_t rows, dpcri_rows tape, dpcri_rows x,
                     dpcri_rows y) {
    const dpcri_rows reciprocal = dpcri_rows_at(tape, 0, l->in, l->kernels->element);
    l->kernels->norm_apply(0, rows, l->in, parameters, tape.data, tape.row, reciprocal.data, tape.row, x.data, x.row,
                           y.data, y.row);
}

static void norm_vjp(const dpcri_nn_layer *l, const void *parameters, int64_t rows, dpcri_rows tape, dpcri_rows g,
                     dpcri_rows y) {
    const dpcri_rows reciprocal = dpcri_rows_at(tape, 0, l->in, l->kernels->element);
    l->kernels->norm_apply(1, rows, l->in, parameters, tape.data, tape.row, reciprocal.data, tape.row, g.data, g.row,
                           y.data, y.row);
}

static void norm_gradient(const dpcri_nn_layer *l, void *gradients, int64_t rows, dpcri_rows x, dpcri_rows tape,
                          dpcri_rows g) {
    (void)x;
    const dpcri_nn_kernels *k = l->kernels;
    k->slope_pass(&(dpcri_slope_pass){.rows = rows,
                                      .width = l->in,
                                      .scale = 1,
                                      .g = g.data,
                                      .g_row = g.row,
                                      .slope = tape.data,
                                      .slope_row = tape.row,
                                      .sum = gradients});
    dpcri_column_sums(k, rows, l->in, g, (void *)offset(gradients, l->in, k->element));
}

static const dpcri_layer_kind norm_kind = {.name = "norm",
                                           .jacobian = DPCR_DENSE,
                                           .in_place = true,
                                           .forward = norm_forward,
                                           .jvp = norm_jvp,
                                           .vjp = norm_vjp,
                                           .gradient = norm_gradient};

dpcri_nn_layer dpcri_norm_layer(const dpcri_nn_kernels *kernels, int64_t width) {
    return (dpcri_nn_layer){.kind = &norm_kind,
                            .kernels = kernels,
                            .in = width,
                            .out = width,
                            .parameter_count = 2 * width,
                            .tape_values = width + 1};
}

static void activation_forward(const dpcri_nn_layer *l, const void *parameters, int64_t rows, dpcri_rows x,
                               dpcri_rows y, dpcri_rows tape) {
    (void)parameters;
    const size_t element = l->kernels->element;
    for (int64_t i = 0; i < rows; i++)
        l->kernels->activate(l->activation, l->in, dpcri_rows_at(x, i, 0, element).data,
                             dpcri_rows_at(y, i, 0, element).data, dpcri_rows_at(tape, i, 0, element).data);
}

static void activation_apply(const dpcri_nn_layer *l, const void *parameters, int64_t rows, dpcri_rows tape,
                             dpcri_rows x, dpcri_rows y) {
    (void)parameters;
    l->kernels->multiply_add(rows, l->in, NULL, 0, 1, x.data, x.row, tape.data, tape.row, y.data, y.row);
}

static const dpcri_layer_kind activation_kind = {.name = "activation",
                                                 .jacobian = DPCR_DIAGONAL,
                                                 .in_place = true,
                                                 .forward = activation_forward,
                                                 .jvp = activation_apply,
                                                 .vjp = activation_apply};

dpcri_nn_layer dpcri_activation_layer(const dpcri_nn_kernels *kernels, int64_t width, int activation) {
    return (dpcri_nn_layer){.kind = &activation_kind,
                            .kernels = kernels,
                            .in = width,
                            .out = width,
                            .activation = activation,
                            .tape_values = width};
}
