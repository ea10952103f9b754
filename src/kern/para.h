// SPDX-License-Identifier: MIT
// Steps of recurrent cells whose units do not mix, so that a Jacobian over time is diagonal or blocks of 2 x 2; one
// table a dtype and instruction set level. Units lie in the lanes of vectors, one unit is one chain. With s the
// sigmoid, x the input's part (W_ih input + b_ih), products by element:
//
//   PARA_GRU     z = s(x_z + a_z h), r = s(x_r + a_r h), q = tanh(x_q + a_q (r h)),              h' = h + z (q - h)
//   PARA_LSTM    f = s(x_f + a_f h + C_f c), z = tanh(x_z + a_z h),  c' = z + f (c - z),
//                o = s(x_o + a_o h + C_o c'),                                                    h' = o tanh(c')
//   PARA_LINEAR  z = s(x_z), q = x_q,                                                            h' = h + z (q - h)
//
// State: h; of PARA_LSTM pairs (c, h), unit by unit, so that a unit's block of the Jacobian meets numbers that lie side
// by side. Tape, H numbers each: PARA_GRU z, r, q and room for a fourth; PARA_LSTM f, z, o; PARA_LINEAR z, q. Going
// back, e in the tape's place stands for the gradients of what the gates' functions got (of x_z + a_z h, ...);
// PARA_GRU's fourth is that of a_q h's sum, r e_q.
//
// advance and adjoint are those of gates.h, with `forward` the diagonals a, gate after gate [3][H], and `bias` the
// peepholes C_f, C_o [2][H], both unpacked; `backward` is not read. Every number is one chain of operations on its own
// unit, in the order of the formulas in para.inc, so its bits do not depend on what runs beside it.
// Source: ParaRNN (arXiv 2510.21450), minGRU (arXiv 2410.01201); derivatives in docs/math/recurrent.md.
#ifndef DPCRI_PARA_H
#define DPCRI_PARA_H

#include "kern/gates.h"

// One step of every strand, linearised: f the state that comes out, a the Jacobian's numbers, h' by h, of PARA_LSTM
// [H][2][2]: c' by c, c' by h, h' by c, h' by h. input, in, f, a over [lanes][rows]; f or a may have data NULL. The
// step of lane c is first + c stride; past a row's end f is the state and a is
// 1, and a is 0 where the state that goes in is reset.
typedef struct dpcri_para_linearised {
    int64_t lanes, rows;
    dpcri_grid input, in, f, a;
    const int64_t *ends;
    int64_t first, stride;
    dpcri_marks resets;
} dpcri_para_linearised;

// Over rows of e with the states before and after their steps, in order: diagonals += e h, peepholes += e_f c and
// e_o c', for units from .. to - 1.
typedef struct dpcri_para_sums {
    int64_t rows;
    const void *e, *before, *after;
    int64_t e_row, before_row, after_row;
    void *diagonals, *peepholes;  // [3][H], [2][H]
    int64_t from, to;
} dpcri_para_sums;

typedef struct dpcri_para_kernels {
    dpcri_gates_kernels gates;  // advance, adjoint
    void (*linearise)(const dpcri_gates *gates, const dpcri_para_linearised *run);
    void (*sums)(const dpcri_gates *gates, const dpcri_para_sums *run);
    // to[i] = from[2 i], i < count
    void (*every_second)(int64_t count, const void *from, void *to);
} dpcri_para_kernels;

// As dpcri_gates_kernels_get and _at.
const dpcri_para_kernels *dpcri_para_kernels_get(dpcr_dtype dtype);
const dpcri_para_kernels *dpcri_para_kernels_at(dpcri_isa level, dpcr_dtype dtype);

#endif
