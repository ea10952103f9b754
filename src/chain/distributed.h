// SPDX-License-Identifier: MIT
// A rank's range of a chain, reduced to what it makes of a state.
#ifndef DPCRI_CHAIN_DISTRIBUTED_H
#define DPCRI_CHAIN_DISTRIBUTED_H

#include "chain/flow.h"

// Of the range, in the order of the recurrence j = 0..n-1:  g_j = op(A_j) g_{j-1} + b_j,          z_j = g_j
//                                      or, transposed:      z_j = g_{j-1} + b_j,  g_j = A_j^T z_j
// so that a range never needs a neighbour's transition. g is what goes from a step to the next.
typedef struct dpcri_range {
    dpcri_flow flow;
    dpcri_chunks chunks;
    int64_t groups, sum_rows;  // sum_rows: distinct transitions of a summary, 1 or the batch
    // One allocation:
    void *sums;     // M_c [K][sum_rows][values]
    void *ends;     // v_c [K][B][w]
    void *starts;   // the g that comes into chunk c, and what goes out of the last [K + 1][B][w]
    void *carried;  // before that: v of chunks 0..c together, in the same place
    void *stretch;  // states that are not kept [groups][DPCRI_SIDE][DPCRI_STRETCH][w]
    void *scratch;  // products on their way [groups + 1][values]
    void *error;    // what the next start is wrong by, then a difference [2][w]
    int64_t compositions, applications;
    int64_t in_order;  // step from which the states' chunks ran in order; n: none did
} dpcri_range;

// Takes the pieces (or counts them).
void dpcri_range_carve(dpcri_range *range, dpcri_arena *arena);
// The chunks' summaries, and those of all to sum [sum_rows][values] and end [B][w].
void dpcri_range_reduce(dpcri_range *range, void *sum, void *end);
// The states, from g [B][w] that comes in; the chunks must have their summaries, which are used up.
void dpcri_range_apply(dpcri_range *range, const void *g);
// The states of sequence `row` once more, in order, from g [w].
void dpcri_range_again(dpcri_range *range, int64_t row, const void *g);
// What goes out [B][w] of a range whose states stand, n >= 1.
void dpcri_range_out(const dpcri_flow *flow, void *out);

#endif
