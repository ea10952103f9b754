// SPDX-License-Identifier: MIT
// Overlap between ranks: each runs its range from a guess of what comes in, and the boundaries are checked.
#ifndef DPCRI_SOLVE_RELAY_H
#define DPCRI_SOLVE_RELAY_H

#include "rt/comm/collective.h"
#include "solve/solve_internal.h"

// What a rank's own steps came to beside its boundaries.
typedef struct dpcri_relay_own {
    int64_t reason;             // dpcr_reason; 0: the loop's states, of which nothing is to be told
    double residual, estimate;  // of the error, given their start; negative: none
} dpcri_relay_own;

typedef struct dpcri_relay {
    dpcri_comm *comm;
    int reversed;  // the recurrence runs from the last rank to the first
    dpcr_dtype dtype;
    int64_t rows, width;  // of what goes over a boundary
    double atol, rtol;    // both 0: bit for bit
    bool scaled;          // tolerances in units of the sequence's largest number at a boundary (ways back are linear)
    int max_sweeps;
    int no_fallback;    // then boundaries that still disagree are an error (UNSUPPORTED), not finished in order
    void *start, *end;  // [rows][width]: what came in (at first a guess; exact on the first rank), and what goes out
    const void *guess;  // [rows][width] what a run-up began with, for the estimate; NULL: zeros
    dpcr_status ready;  // what this rank's run-up came to, its text in `error` of the run
    // Runs the rank's range from `start` into `end`; again, from other starts, where the boundaries did not agree.
    dpcr_status (*run)(void *user, dpcr_error *error);
    void *user;
    dpcri_relay_own own;  // of the last `run`, by whom it is told (dpcri_relay_tell)
    // Out, the same on all ranks:
    int sweeps;
    int64_t finished;   // ranks from which it was finished in order; 0: none was
    double defect;      // largest |came - start| / max(1, |start|) that the last check saw (scaled: over the scale)
    dpcr_reason worst;  // of the ranks' own steps, as their last runs left them
    double residual;    // the largest of theirs
    double estimate;    // of the error; negative: none, as where what goes out of a rank is not finite
} dpcri_relay;

// All ranks call it. Sweep 1 is `run` on all of them at once. A rank's failure is every rank's.
dpcr_status dpcri_relay_run(dpcri_relay *relay, dpcr_context *context, dpcr_error *error);

// For `run`: what a method told of the rank's own steps.
void dpcri_relay_tell(dpcri_relay *relay, const dpcr_solve_report *own);

// What it came to, as a report of method overlap over the ranks.
void dpcri_relay_report(const dpcri_relay *relay, int64_t evaluations, dpcr_solve_report *report);

// Its place in the recurrence's order: 0 is the first rank's.
static inline int64_t dpcri_relay_position(const dpcri_comm *comm, int reversed) {
    return reversed ? comm->ranks - 1 - comm->rank : comm->rank;
}

#endif
