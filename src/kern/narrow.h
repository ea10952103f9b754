// SPDX-License-Identifier: MIT
// Chains of narrow nonlinear steps, w = 1..DPCRI_NARROW_WIDTH:
//     u = W_l z + b_l        z' = act(u)   or   z' = z + scale act(u)
// run by the loop (one lane, least latency) or many lanes side by side (chunks of one sequence, sequences, or both),
// lanes innermost: component i of a vector's worth of lanes in one register. docs/math/cells.md.
//
// Order of every sum, by w, with W's columns counted from the row's own, j = i, i + 1, ... (modulo w):
//     1  fma(W0, z0, b)      2  fma(W0, z0, b) + W1 z1      3  (fma(W0, z0, b) + W2 z2) + W1 z1
//     4  (fma(W0, z0, b) + W3 z3) + (W1 z1 + W2 z2)
// so a lane's bits are the loop's, whatever runs beside it.
#ifndef DPCRI_NARROW_H
#define DPCRI_NARROW_H

#include "kern/nn_kernels.h"

enum { DPCRI_NARROW_WIDTH = 4 };

// Steps in absolute numbers: step l's weights begin at weight + l weight_step. All strides in elements, may be 0.
typedef struct dpcri_narrow {
    dpcr_dtype dtype;
    int64_t width;
    int activation;      // DPCRI_ACT_IDENTITY, RELU, TANH or SIGMOID
    bool residual;       // z' = z + scale act(u)
    bool diagonal;       // W is diag(a), a [w]; widths beyond DPCRI_NARROW_WIDTH too
    bool weight_in_out;  // W_l lies as [in][out] (the models'), else [out][in] (PyTorch's)
    double scale;
    const void *weight, *bias;
    int64_t weight_step;          // 0: one W for all steps; w w + w with bias = weight + w w: the models' records
    int64_t bias_step, bias_row;  // bias_row: from one sequence to the next
} dpcri_narrow;

// For lane c < lanes and sequence r < rows: `steps` steps from step first + c stride. Pointers are in the chain's
// dtype; a place is base + c lane + k step + r row + component.
typedef struct dpcri_narrow_run {
    int64_t first, lanes, stride, steps, rows;
    const void *in;
    int64_t in_lane, in_row;
    void *states;  // [lanes][steps][rows][w] or NULL
    int64_t states_lane, states_step, states_row;
    void *slopes;  // act'(u), the same shape, or NULL
    int64_t slopes_lane, slopes_step, slopes_row;
    void *last;  // [lanes][rows][w] or NULL; may be `in`
    int64_t last_lane, last_row;
} dpcri_narrow_run;

// One step a lane:  f = step(in), a = its Jacobian [w][w] (diagonal: [w]), row-major df_i/dz_j. f or a may be NULL.
typedef struct dpcri_narrow_point {
    int64_t first, lanes, stride, rows;
    const void *in;
    int64_t in_lane, in_row;
    void *f;
    int64_t f_lane, f_row;
    void *a;
    int64_t a_lane, a_row;
} dpcri_narrow_point;

// Which kernel runs many lanes: tanh with one W in registers, or all other forms.
typedef enum dpcri_narrow_form { DPCRI_NARROW_REGISTERS, DPCRI_NARROW_TILES, DPCRI_NARROW_FORMS } dpcri_narrow_form;

static inline dpcri_narrow_form dpcri_narrow_form_of(const dpcri_narrow *n) {
    const bool registers = n->activation == DPCRI_ACT_TANH && !n->residual && n->weight_step == 0;
    return registers ? DPCRI_NARROW_REGISTERS : DPCRI_NARROW_TILES;
}

typedef struct dpcri_narrow_kernels {
    // By form and width: lanes that one call of advance runs side by side at its best.
    int64_t lanes[DPCRI_NARROW_FORMS][DPCRI_NARROW_WIDTH + 1];
    int64_t vector;  // lanes of one vector
    bool halves;     // two states of a wide diagonal that fit in halves go in one vector
    // Measured seconds of a step by width, [0] a vector of a wide diagonal: of tanh alone, and a lane's share with one
    // W and with a W of each step; of ReLU alone.
    double loop_seconds[DPCRI_NARROW_WIDTH + 1], lane_seconds[DPCRI_NARROW_FORMS][DPCRI_NARROW_WIDTH + 1];
    double relu_seconds[DPCRI_NARROW_WIDTH + 1];
    void (*advance)(const dpcri_narrow *chain, const dpcri_narrow_run *run);
    void (*linearise)(const dpcri_narrow *chain, const dpcri_narrow_point *point);
} dpcri_narrow_kernels;

// Whether these kernels serve the chain: width, activation, dtype. linearise serves widths up to DPCRI_NARROW_WIDTH.
bool dpcri_narrow_serves(const dpcri_narrow *chain);
// Lanes that one call runs side by side at its best, and the measured seconds of a step: alone, and a lane's share.
int64_t dpcri_narrow_lanes(const dpcri_narrow *chain);
double dpcri_narrow_loop_seconds(const dpcri_narrow *chain);
double dpcri_narrow_lane_seconds(const dpcri_narrow *chain);
// The table of the level in force, and of one level, for tests; NULL where this build or this CPU lacks it.
const dpcri_narrow_kernels *dpcri_narrow_kernels_get(dpcr_dtype dtype);
const dpcri_narrow_kernels *dpcri_narrow_kernels_at(dpcri_isa level, dpcr_dtype dtype);

#endif
