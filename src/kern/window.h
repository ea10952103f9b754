// SPDX-License-Identifier: MIT
// Whole methods for narrow nonlinear chains in one call on the calling thread: Newton and multiple shooting over
// windows that stay in the first caches, one after the other or shared by the calls of a team, and the adjoint chain by
// composing. Nothing is allocated; at most DPCRI_WINDOW_STACK bytes of stack are used. Derivations:
// docs/math/windows.md.
#ifndef DPCRI_WINDOW_H
#define DPCRI_WINDOW_H

#include <stdatomic.h>

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
    struct dpcri_window_team *team;
    bool closing;
} dpcri_window;

// Shooting over windows by several threads. Windows are claimed in order; a window hears from the one before it where
// it begins, sweep by sweep, and so runs a sweep behind it. Every number is told by one sweep of one window, whoever
// runs it: the same bits for any number of threads. docs/math/windows.md, "Teams".
enum {
    DPCRI_TEAM_THREADS = 4,  // about what fits into the sweeps of a window, each a sweep behind the other
    DPCRI_TEAM_SLOTS = 8,    // windows whose ends are kept: more than threads, so that whoever hears one has heard it
    DPCRI_TEAM_SWEEPS = 8,   // of a window, at most; what needs more is done by one thread
    DPCRI_TEAM_LAST = DPCRI_TEAM_SWEEPS + 1,
    DPCRI_TEAM_TURNS = DPCRI_TEAM_LAST + 1
};

// What a window tells the next: the state that goes out of it, as each sweep has it, then as it is; and how far the
// sequence is solved with it.
typedef struct dpcri_window_slot {
    _Alignas(64) _Atomic int64_t told;  // its number times DPCRI_TEAM_TURNS, plus sweeps told or DPCRI_TEAM_LAST
    bool over;                          // it gave up, or nothing after it is to be done
    int sweeps;                         // its own, of which the last one has the final state
    double end[DPCRI_TEAM_SWEEPS + 1][DPCRI_NARROW_WIDTH];
    dpcri_window so_far;
    double spent;  // in steps of the loop
} dpcri_window_slot;

// What a window hears of the one before it: where that ends by now, or for good; or that nothing after it counts.
typedef enum dpcri_window_news { DPCRI_HEARD, DPCRI_LAST, DPCRI_OVER } dpcri_window_news;

typedef struct dpcri_window_team {
    _Alignas(64) _Atomic int64_t next;  // the first window that nobody has claimed
    dpcri_window outcome;               // of the windows up to the first that is over
    double spent;
    int64_t chunk;  // steps of a chunk with which to go on
    dpcri_window_slot slots[DPCRI_TEAM_SLOTS];
} dpcri_window_team;

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
    // May be NULL. hear: returns when `last` is there, asked for as late as can be; tell: first_out is there, called as
    // soon as it is.
    void (*hear)(void *user), (*tell)(void *user);
    void *user;
} dpcri_window_adjoint;

typedef struct dpcri_window_kernels {
    // Solves the place's steps by window->method (newton or shooting); fills window's outputs. window->good steps from
    // the first are solved to tolerance, those after it are not to be looked at. Newton: |z_l - f_l(z_{l-1})| <= atol +
    // rtol |z_l| was measured for every component of these states, and so was the correction of one more linear solve.
    // Shooting: inside a chunk the states are the loop's; the boundaries' defects, carried on through the chain, were
    // measured against that bound; of a short chain that forgets, the defects themselves, against an eighth of it. What
    // neither could solve within a budget of arithmetic is done by the loop, or left where that does not pay. With a
    // team: takes part until nothing is left to claim, or closes (dpcr_window.team). 0: done; 1: a method, width or
    // activation that is not served.
    int (*solve)(const dpcri_narrow *chain, const dpcri_window_place *place, dpcri_window *window);
    // The adjoint loop of a's steps, by composing.  0: done; 1: a width that is not served, or a product of Jacobians
    // that leaves the finite numbers: what was written does not count, first_out was not, and nothing was told.
    int (*adjoint)(const dpcri_narrow *chain, const dpcri_window_adjoint *a);
    int64_t adjoint_steps[DPCRI_NARROW_WIDTH + 1];  // by width: of one window; a call of no more tells early
} dpcri_window_kernels;

// The table of the level in force; NULL for other dtypes than float and double.
const dpcri_window_kernels *dpcri_window_kernels_get(dpcr_dtype dtype);
// The table of one level, for tests; NULL where this build or this CPU lacks it.
const dpcri_window_kernels *dpcri_window_kernels_at(dpcri_isa level, dpcr_dtype dtype);

#endif
