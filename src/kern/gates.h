// SPDX-License-Identifier: MIT
// Steps of recurrent cells with full recurrent weights, one table a dtype and instruction set level. A strand is one
// sequence, or one chunk of it, that runs beside others: hidden units lie in the lanes of vectors, so a call reads the
// weights once for all its strands, step by step. With u = W_hh h, gate after gate in PyTorch's order, and x the
// input's part (W_ih input + b_ih + b_hh; of a GRU's n without b_hn, which is `bias`), s the sigmoid:
//
//   RNN   h' = act(x + u)                                                              act: ReLU or tanh
//   GRU   r = s(x_r + u_r), z = s(x_z + u_z), m = u_n + bias, n = tanh(x_n + r m),  h' = n + z (h - n)
//   LSTM  i = s(x_i + u_i), f = s(x_f + u_f), g = tanh(x_g + u_g), o = s(x_o + u_o),  c' = f c + i g,  h' = o tanh(c')
//
// State: h, of an LSTM h then c. Tape: RNN act'(x + u); GRU r, z, m, n; LSTM i, f, g, o; each H numbers. Going back, e
// stands for the gradients of what the gates' functions got, in the tape's order (of a GRU: of x_r + u_r, x_z + u_z, m,
// and x_n + r m).
//
// Order of every sum: k ascending, one fma a term; of an RNN and going back even and odd k apart. So the bits of a
// strand depend neither on its place nor on what runs beside it. Sigmoid is (1 + tanh(u / 2)) / 2: its error is
// absolute.
#ifndef DPCRI_GATES_H
#define DPCRI_GATES_H

#include "kern/nn_kernels.h"

typedef enum dpcri_gates_kind {
    DPCRI_GATES_RNN,
    DPCRI_GATES_GRU,
    DPCRI_GATES_LSTM,
    DPCRI_GATES_KINDS
} dpcri_gates_kind;

// Gates with weights of their own, numbers of a strand's tape in units of H, and of its state.
enum { DPCRI_GATES_MOST = 4 };
extern const int dpcri_gates_count[DPCRI_GATES_KINDS], dpcri_gates_tape[DPCRI_GATES_KINDS],
    dpcri_gates_state[DPCRI_GATES_KINDS];

typedef struct dpcri_gates {
    dpcr_context *context;  // scratch that does not fit the stack comes from its allocator
    dpcri_gates_kind kind;
    int activation;        // RNN: DPCRI_ACT_RELU or DPCRI_ACT_TANH
    int64_t width;         // H
    const void *forward;   // W_hh as `pack` laid it
    const void *backward;  // the same for the way back
    const void *bias;      // GRU: b_hn [H]
} dpcri_gates;

// Every strand through all steps. input [lanes][steps][rows] with gates x H numbers, in and last [lanes][rows], states
// and tape [lanes][steps][rows]; states, last and tape may be NULL; last may be `in`. ends (or NULL) [rows]: row r's
// step first + lane stride + k >= ends[r] leaves the state as it is (its tape is 0).
typedef struct dpcri_gates_forward {
    int64_t lanes, steps, rows;
    dpcri_grid input, in, states, last, tape;
    const int64_t *ends;
    int64_t first, stride;
} dpcri_gates_forward;

// From the last step down:  g += direct;  kept = g;  e;  g = what goes through beside the gates + e W_hh;  first_out =
// g in [lanes][steps][rows]: the states that go in. direct, kept, e and first_out may be NULL; kept may be direct, e
// the tape, first_out last. Past a row's end g stays as it is, direct is not read, and e is 0. gates_only: no product
// and no first_out; for the e of states whose adjoint is known (last, steps = 1).
typedef struct dpcri_gates_adjoint {
    int64_t lanes, steps, rows;
    dpcri_grid in, tape, direct, kept, e, last, first_out;
    const int64_t *ends;
    int64_t first, stride;
    bool gates_only;
    bool direct_is_h;  // direct has H numbers a step: of an LSTM nothing comes in at c
} dpcri_gates_adjoint;

typedef struct dpcri_gates_kernels {
    size_t element;  // bytes
    int64_t units;   // hidden units of a packed tile: the lanes of a vector
    // False: scratch memory was refused, and nothing was written that counts.
    bool (*advance)(const dpcri_gates *gates, const dpcri_gates_forward *run);
    bool (*adjoint)(const dpcri_gates *gates, const dpcri_gates_adjoint *run);
} dpcri_gates_kernels;

// Numbers of a packed W_hh, a multiple of 16; false: too many.
bool dpcri_gates_packed(const dpcri_gates_kernels *kernels, dpcri_gates_kind kind, int64_t width, int64_t *forward,
                        int64_t *backward);

// Packed weights from W_hh [gates H][H], row-major, numbers as many as dpcri_gates_packed says; forward or backward may
// be NULL. A tile is a vector of hidden units: forward [tile][k < H][gate][units], backward [tile][j < gates H][units],
// zeros beyond H. nn: of the same dtype.
void dpcri_gates_pack(const dpcri_gates_kernels *kernels, const dpcri_nn_kernels *nn, dpcri_gates_kind kind,
                      int64_t width, const void *weight, void *forward, void *backward);

// The table of the level in force; NULL for other dtypes than float and double. And of one level, NULL where this build
// or this CPU lacks it.
const dpcri_gates_kernels *dpcri_gates_kernels_get(dpcr_dtype dtype);
const dpcri_gates_kernels *dpcri_gates_kernels_at(dpcri_isa level, dpcr_dtype dtype);

#endif
