// SPDX-License-Identifier: MIT
// What the nonlinear driver uses of linear chains: one call that solves any range of steps, on strided views, in a
// workspace of the caller's, without a plan object.
#ifndef DPCRI_CHAIN_INTERNAL_H
#define DPCRI_CHAIN_INTERNAL_H

#include "base/base.h"
#include "deeppcr/chain.h"
#include "rt/watch.h"

// A range of a linear chain. Strides in elements: *_step from one step to the next, *_row from one sequence to the next
// (0 shares); the last dimension is contiguous. `a` may be NULL for zero and identity.
typedef struct dpcri_linear {
    dpcr_transition transition;
    dpcr_dtype dtype;
    int transposed;
    int64_t length, rows;
    // Absolute index of the first step (of the last one, counted from the chain's end, when transposed). Chunk and tree
    // boundaries lie at fixed multiples of absolute indices, so a row whose first steps have A = 0 and b = 0 gets the
    // same bits whether the range starts at them or after them.
    int64_t first;
    const void *a;
    int64_t a_step, a_row;
    const void *b;
    int64_t b_step, b_row;
    const void *z0;  // [rows][w] or NULL: zero, and the first transition is not read; not with transposed
    int64_t z0_row;
    void *z;  // may be b, with the same strides
    int64_t z_step, z_row;
    dpcri_watch *watch;  // stopped, the rest is left out; NULL: runs to its end
    // Of a chain that is solved in place: set where chunks do not join, whose states are then wrong, and whose b is
    // gone; pcr and blelloch, which have b until they have looked, never set it. NULL: nobody looks.
    bool *lost;
} dpcri_linear;

// Bytes of workspace for any range of at most `length` steps and `rows` rows of this form, for the scheme in `options`
// (all fields set: see dpcri_chain_defaults); in place too, and with a look at it where `lost` is not NULL. SIZE_MAX on
// overflow.
size_t dpcri_linear_workspace(const dpcri_linear *problem, const dpcr_chain_options *options);

// Fills every zero field of options from the shape alone (chunk from `length`; AUTO is an error here).
void dpcri_chain_defaults(const dpcr_transition *transition, int64_t length, int64_t batch,
                          dpcr_chain_options *options);

// Steps of a chunk of overlap, from the run-up, no fewer for a longer one: such that chunks of states of `width` do not
// share sets of the cache.
int64_t dpcri_chain_overlap_chunk(int64_t length, int64_t warm_up, int64_t width);

// Refuses, in the name of `function`, planning that goes by what is timed here where plans are for a machine that is
// described.
dpcr_status dpcri_planning_serves(dpcr_context *context, dpcr_planning planning, const char *function,
                                  dpcr_error *error);

// A watch over a linear solve, NULL where it is soon done. A composition costs at most w applications.
dpcri_watch *dpcri_linear_watch(dpcri_watch *watch, const dpcr_context *context, const dpcr_transition *transition,
                                double steps);

// Solves it. The report's counts are set; seconds are not. Allocates nothing; parallel over the context's threads.
void dpcri_linear_solve(dpcr_context *context, const dpcri_linear *problem, const dpcr_chain_options *options,
                        void *workspace, dpcr_chain_report *report);

#ifdef DPCRI_MUTANTS
// Faults that the tests have to catch: 0 none, 1 pcr drops its last level, 2 compose swaps its operands, 3 the
// nonlinear driver keeps a stale Jacobian, 4 bppsa swaps its operands, 5 bppsa drops a level. Only in builds for that
// proof.
extern int dpcri_mutant;
#endif

#endif
