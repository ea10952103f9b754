// SPDX-License-Identifier: MIT
// One layer and direction of a recurrent network as a chain for dpcr_solve_...: l counts its steps from its own first
// one. The input's product with W_ih is formed block by block as the chain advances, so that it stays in cache.
#ifndef DPCRI_RECURRENT_H
#define DPCRI_RECURRENT_H

#include "deeppcr/solve.h"
#include "kern/gates.h"
#include "kern/para.h"
#include "kern/wide.h"

// Widest state for which Jacobians are offered: w^2 numbers a step and sequence.
enum { DPCRI_RECURRENT_JACOBIAN = 128 };
// Most blocks of sequences that gradients are summed by.
enum { DPCRI_RECURRENT_BLOCKS = 16 };

typedef struct dpcri_recurrent {
    dpcr_context *context;
    dpcr_dtype dtype;
    const dpcri_nn_kernels *nn;
    const dpcri_gates_kernels *kernels;
    const dpcri_para_kernels *apart;  // of kinds whose units do not mix (`kernels` is theirs); else NULL
    dpcri_gates gates;                // packed weights
    int64_t length, batch, inputs;
    const void *weight_ih,
        *weight_hh;         // [gates H][inputs], [gates H][h's numbers], row-major; apart: [gates H] or NULL
    const void *weight_hr;  // [P][H] of a projection
    const void *weight_ch;  // [3 H] of peepholes
    const void *peephole;   // apart: [2 H] or NULL
    // Packed by dpcri_recurrent_pack: W_ih^T in panels [inputs][panel], of wide inputs as kern/wide.h has them, and
    // b_ih + b_hh (of a GRU's n b_ih alone).
    const void *panels, *bias;
    dpcri_grid x;          // [steps][rows]: what goes in at step l of row b; lane unused
    bool ahead;            // the driver will find `given` filled
    dpcri_grid given;      // [steps][rows] of x W_ih^T + bias where that is there before; data NULL: it is formed here
    const int64_t *ends;   // [rows] or NULL: steps of each row
    dpcri_marks resets;    // [steps][rows]: where a state before a step counts as zero
    dpcri_grid gradients;  // [steps][rows] of the tape's numbers, where `gradient` leaves e; data NULL: in the tape
    // Not 0: `gradients` is room for so many steps at most, those for which `products` is called next, in the order of
    // memory; backwards in it where its step is negative.
    int64_t window;
    // [steps][rows]: where h of a plain LSTM without `ends` goes besides, when steps are advanced whose states are
    // stored; data NULL: nowhere. For methods that store them in their place only.
    dpcri_grid hidden;
    // [steps][rows] of h's numbers, data NULL: none: what comes in at h of every step going back, read by the adjoint
    // loop instead of its own `direct`.
    dpcri_grid outer;
    // Called by `gradient` when e of steps first .. first + count - 1 of sequences row .. row + rows - 1 is there;
    // NULL: not. join: what gradient_join calls; NULL: nothing.
    void (*products)(void *user, int64_t first, int64_t count, int64_t row, int64_t rows);
    void (*join)(void *user);
    void *products_user;
    // Gradients are summed by blocks of sequences (gradient_join), 1: they are not. Their number, where each begins (the
    // driver's tasks likewise; the last ends with the batch), and steps of a window counted from the chain's end.
    int64_t blocks, block_begin[DPCRI_RECURRENT_BLOCKS + 1], block_window;
    // Where the adjoint loop leaves e of the windows at work instead of in the tape: for each block [window][its
    // rows][tape], in the order of memory, `turned` against the chain's. data NULL: in the tape.
    void *block_e;
    bool turned;
} dpcri_recurrent;

// Numbers from one row of block_e to the next.
int64_t dpcri_recurrent_block_width(const dpcri_recurrent *layer);
// e of step `step`, of the block that begins with `row`, in block_e: the row's numbers; and rows of that block.
dpcri_grid dpcri_recurrent_block_e(const dpcri_recurrent *layer, int64_t step, int64_t row);
int64_t dpcri_recurrent_block_of(const dpcri_recurrent *layer, int64_t row);

// Numbers of the pieces that dpcri_recurrent_pack fills: packed W_hh both ways, panels, bias, b_hn, packed W_hr both
// ways, peepholes.
typedef struct dpcri_recurrent_sizes {
    int64_t forward, backward, panels, bias, hidden_bias, project, unproject, peephole;
} dpcri_recurrent_sizes;
// False: too many to number.
bool dpcri_recurrent_sizes_of(const dpcri_recurrent *layer, dpcri_recurrent_sizes *sizes);

// Lays weights and biases (NULL: none) out for the kernels, forward; and W_hh for going back. The pieces of `layer`
// must have been set to their memory.
void dpcri_recurrent_pack(dpcri_recurrent *layer, const void *bias_ih, const void *bias_hh);
void dpcri_recurrent_pack_back(dpcri_recurrent *layer);

// [lanes][steps][rows] of what the input gives steps begin .. begin + steps - 1 of the span: formed in `u`, room for
// dpcri_recurrent_products_bytes of as many or more, or given.
dpcri_grid dpcri_recurrent_products(const dpcri_recurrent *layer, const dpcr_span *span, int64_t begin, int64_t steps,
                                    char *u);
size_t dpcri_recurrent_products_bytes(const dpcri_recurrent *layer, int64_t lanes, int64_t steps, int64_t rows);
// Forms them in u [lanes][steps][rows]; of several lanes u is that room too.
void dpcri_recurrent_project(const dpcri_recurrent *layer, const dpcr_span *span, int64_t begin, int64_t steps,
                             char *u);

// Of kinds whose units do not mix: kernels over the context's threads, units apart; and what their steps have of their
// own, Jacobian and costs.
bool dpcri_para_advance(const dpcri_recurrent *layer, const dpcri_gates_forward *run);
bool dpcri_para_adjoint(const dpcri_recurrent *layer, const dpcri_gates_adjoint *run);
void dpcri_para_steps(const dpcri_recurrent *layer, dpcr_steps *steps);

// The other kinds' kernels; of a few sequences and many weights the units of a step over the context's threads, where
// that is faster (units.c). False: no memory.
bool dpcri_units_advance(const dpcri_recurrent *layer, const dpcri_gates_forward *run);
bool dpcri_units_adjoint(const dpcri_recurrent *layer, const dpcri_gates_adjoint *run);

// The layer must outlive what is solved with the callbacks.
void dpcri_recurrent_steps(const dpcri_recurrent *layer, dpcr_steps *steps);

#endif
