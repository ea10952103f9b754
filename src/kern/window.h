// SPDX-License-Identifier: MIT
// Whole methods for narrow nonlinear chains in one call on the calling thread: Newton and multiple shooting over
// windows that stay in the first caches, one after the other, and the adjoint chain by composing. Nothing is allocated;
// at most DPCRI_WINDOW_STACK bytes of stack are used. Derivations: docs/math/windows.md.
#ifndef DPCRI_WINDOW_H
#define DPCRI_WINDOW_H

#include "kern/narrow.h"

enum { DPCRI_WINDOW_STACK = 192 << 10 };

enum { DPCRI_WINDOW_NEWTON, DPCRI_WINDOW_SHOOTING };

// What is asked for, and what was measured: dpcr_window of deeppcr/solve.h, field by field.
typedef struct dpcri_window {
    int method;
    double atol, rtol;
    int max_sweeps;  // of one window; 0: 16
    int sweeps;
    double residual, estimate;
    int64_t good;
} dpcri_window;

// Where a window lies: steps first .. first + count - 1 of one sequence.
typedef struct dpcri_window_place {
    int64_t first, count;
    const void *in;  // [w]: the state that goes into step `first`
    void *states;    // its outputs: step l at states + (l - first) step
    int64_t step;
} dpcri_window_place;

// The adjoint loop of steps first .. first + count - 1 of one sequence:
//   g = last; for l downwards: g += direct_l; adjoint_l = g; g = J_l^T g;  first_out = g
// J_l from the slopes act'(u_l). [w] numbers a step; the arrays begin at step `first`.
typedef struct dpcri_window_adjoint {
    int64_t first, count;
    const void *slope;
    int64_t slope_step;
    const void *direct;  // may be NULL, or adjoint itself
    int64_t direct_step;
    const void *last;
    void *adjoint;  // may be NULL
    int64_t adjoint_step;
    void *first_out;  // may be NULL, or `last`
} dpcri_window_adjoint;

typedef struct dpcri_window_kernels {
    // Solves the place's steps by window->method (newton or shooting); fills window's outputs. window->good steps from
    // the first are solved to tolerance, those after it are not to be looked at. Newton: |z_l - f_l(z_{l-1})| <= atol +
    // rtol |z_l| was measured for every component of these states, and so was the correction of one more linear solve.
    // Shooting: inside a chunk the states are the loop's; the boundaries' defects, carried on through the chain, were
    // measured against that bound. What neither could solve within a budget of arithmetic is done by the loop, or left
    // where that does not pay. 0: done; 1: a method, width or activation that is not served.
    int (*solve)(const dpcri_narrow *chain, const dpcri_window_place *place, dpcri_window *window);
    // The adjoint loop of a's steps, by composing.  0: done; 1: a width that is not served, or a product of Jacobians
    // that leaves the finite numbers: what was written does not count.
    int (*adjoint)(const dpcri_narrow *chain, const dpcri_window_adjoint *a);
} dpcri_window_kernels;

// The table of the level in force; NULL for other dtypes than float and double.
const dpcri_window_kernels *dpcri_window_kernels_get(dpcr_dtype dtype);
// The table of one level, for tests; NULL where this build or this CPU lacks it.
const dpcri_window_kernels *dpcri_window_kernels_at(dpcri_isa level, dpcr_dtype dtype);

#endif
