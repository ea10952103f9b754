// SPDX-License-Identifier: MIT
// Going back through chains of narrow steps (narrow.h), w = 1..DPCRI_NARROW_WIDTH, and of diagonal steps of any width,
// from their slopes act'(u_l), whatever the activation: for every lane and row, from its last step down to its first,
//     g += direct_l        kept_l = g        e_l = scale slope_l g        g = W_l^T e_l   or   g + W_l^T e_l
// by the loop (one lane, least latency: what does not hang on g runs ahead of it) or many lanes side by side.
//
// Order of every sum, by w, with G_i = (scale slope_i) W_i, W_i the row of W that makes u_i; c = g or +0:
//     1  fma(G0, g0, c)      2  fma(G0, g0, c) + G1 g1      3  (fma(G0, g0, c) + G1 g1) + G2 g2
//     4  (fma(G0, g0, c) + G1 g1) + (G2 g2 + G3 g3)         diagonal: fma(G, g, c)
// Dense steps of width 8 (float) too, side by side with AVX2 and AVX-512, with the residual g + the same:
//     ((G0 g0 + G1 g1) + (G2 g2 + G3 g3)) + ((G4 g4 + G5 g5) + (G6 g6 + G7 g7))
// So a lane's bits are the loop's, whatever runs beside it, and however a chain is cut. docs/math/cells.md.
#ifndef DPCRI_ADJOINT_H
#define DPCRI_ADJOINT_H

#include "kern/narrow.h"

// slope, direct, kept, e [lanes][steps][rows], last (g at first) and first_out [lanes][rows]; lane c begins at step
// first + c stride. direct, kept, e, first_out may be absent (data NULL); kept may be direct, e slope, first_out last.
// A step stride of 0 lets all kept states of a lane and row share one place (not where kept is direct).
typedef struct dpcri_adjoint_run {
    int64_t first, lanes, stride, steps, rows;
    dpcri_grid slope, direct, kept, e, last, first_out;
} dpcri_adjoint_run;

typedef struct dpcri_adjoint_kernels {
    // Measured seconds of a step by width, [0] a vector of a wide diagonal: alone; a lane's share, of [0] one W for all
    // steps and of [1] every step's own.
    double loop_seconds[DPCRI_NARROW_WIDTH + 1], lane_seconds[2][DPCRI_NARROW_WIDTH + 1];
    double window_seconds[2][DPCRI_NARROW_WIDTH + 1];  // alone by composing (window.h)
    int64_t vector;                                    // lanes of one vector
    double eight_seconds[2];                           // of a dense step of width 8: alone; a lane's share
    // Of `chain` only the weights, their layout, residual and scale matter.
    void (*run)(const dpcri_narrow *chain, const dpcri_adjoint_run *run);
} dpcri_adjoint_kernels;

// Whether these kernels serve the chain: width and dtype.
bool dpcri_adjoint_serves(const dpcri_narrow *chain);
// The measured seconds of a step: alone, and a lane's share.
double dpcri_adjoint_loop_seconds(const dpcri_narrow *chain);
double dpcri_adjoint_lane_seconds(const dpcri_narrow *chain);
// The table of the level in force, and of one level, for tests; NULL where this build or this CPU lacks it.
const dpcri_adjoint_kernels *dpcri_adjoint_kernels_get(dpcr_dtype dtype);
const dpcri_adjoint_kernels *dpcri_adjoint_kernels_at(dpcri_isa level, dpcr_dtype dtype);

#endif
