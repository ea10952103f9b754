// SPDX-License-Identifier: MIT
// Recurrent cells as chains for dpcr_solve_...: l counts time steps, and what a step adds from its input is given, the
// input's product with W_ih and the biases included:
//
//   dense      u = W z + x_l      torch.nn.RNN: W is weight_hh, x_l = W_ih input_l + bias_ih + bias_hh
//   diagonal   u = a z + x_l      elementwise; the Jacobian is diagonal
//
//   z' = act(u),   or with a scale s   z' = z + s act(u)
#ifndef DEEPPCR_CELL_H
#define DEEPPCR_CELL_H

#include "activation.h"
#include "solve.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dpcr_cell_kind { DPCR_CELL_DENSE = 1, DPCR_CELL_DIAGONAL } dpcr_cell_kind;

typedef struct dpcr_cell_options {
    size_t size;  // sizeof(dpcr_cell_options) of the caller
    dpcr_cell_kind kind;
    dpcr_dtype dtype;              // 0: DPCR_F32
    int64_t length, batch, width;  // L >= 0, B >= 0, w in 1..4096
    dpcr_activation activation;    // DEFAULT: tanh
    double scale;                  // s; 0: z' = act(u)
    // The caller's arrays, which must outlive the cell; they are read at every call, so their numbers may change
    // between solves. All on the host, or weight and input on one device (without gradients), for plans of that device:
    // diagonal and dense, by the loop, overlap and newton; a dense row that does not fit on chip is
    // DPCR_ERROR_UNSUPPORTED there. The last dimension is contiguous, and so are W's rows one after the other.
    dpcr_array weight;  // dense [w][w], row i for component i of z', or [L][w][w]; diagonal [w] or [L][w]
    dpcr_array input;   // x [L][B][w]
    // Where the gradients are added, data NULL: not wanted. Of one W for all steps, see dpcr_cell_weight_gradient.
    dpcr_array input_gradient;   // [L][B][w]
    dpcr_array weight_gradient;  // [L][w][w] or [L][w], where every step has its own
} dpcr_cell_options;

typedef struct dpcr_cell dpcr_cell;

// Options out of range or arrays of another form: DPCR_ERROR_ARGUMENT naming the field. The context must outlive it.
DPCR_API dpcr_status dpcr_cell_create(dpcr_context *context, const dpcr_cell_options *options, dpcr_cell **cell,
                                      dpcr_error *error);
DPCR_API void dpcr_cell_destroy(dpcr_cell *cell);
// The options with every default filled in.
DPCR_API const dpcr_cell_options *dpcr_cell_get_options(const dpcr_cell *cell);

// The chain, for dpcr_solve_plan_create; its callbacks may run at once. The tape holds act'(u), w numbers a step and
// sequence. Dense cells up to w = 4 and all diagonal ones of identity, ReLU, tanh and sigmoid run on kernels of their
// own, many lanes of a sequence side by side. `steps` says its size.
DPCR_API dpcr_status dpcr_cell_steps(const dpcr_cell *cell, dpcr_steps *steps, dpcr_error *error);

// Adds sum_l sum_b g_l z_{l-1}^T (diagonal: its diagonal) into gradient [w][w] or [w], g the input's gradient: what one
// W for all steps needs after a backward pass into a cleared `input_gradient`. z0 [B][w], z [L][B][w]. Steps in order.
DPCR_API dpcr_status dpcr_cell_weight_gradient(const dpcr_cell *cell, const dpcr_array *z0, const dpcr_array *z,
                                               const dpcr_array *gradient, dpcr_error *error);

#ifdef __cplusplus
}
#endif
#endif
