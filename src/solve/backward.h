// SPDX-License-Identifier: MIT
// One backward pass: what its ways share. Lives on the stack of dpcr_solve_backward.
#ifndef DPCRI_BACKWARD_H
#define DPCRI_BACKWARD_H

#include <stdatomic.h>

#include "solve/solve_internal.h"

typedef struct dpcri_backward_space {
    void *lambda, *carry, *a, *linear;
    // overlap: [K][B][w], the adjoint that each chunk began with, and what came out of it; [K][B][2][w] for reruns
    void *starts, *ends, *spare;
    unsigned char *rerun;     // overlap: [K][B], 1 where the chunk must run again
    double *scale;            // overlap: [B], the size of a sequence's adjoints
    unsigned char *given_up;  // overlap: [B], 1 where the sequence goes in order
} dpcri_backward_space;

typedef struct dpcri_backward {
    const dpcr_solve_plan *plan;
    dpcri_trajectory t;
    const dpcr_array *tape, *direct, *lambda_out;
    dpcri_backward_space space;
    int64_t lo, hi;     // the window at work
    dpcr_array lambda;  // [hi - lo][B][w]
    dpcr_array carry;   // [1][B][w]: J_hi^T lambda_hi on the way in, J_lo^T lambda_lo on the way out
    int64_t gradient_piece;
    bool from_tape;           // no adjoint states are kept: gradient finds what it wants in the tape
    bool stopped;             // by the caller's cancel function,
    dpcri_looks looks;        // asked within a call
    _Atomic int64_t stretch;  // steps of the loop between two such looks, as the clock has it; 0: not seen yet
    int sweeps;               // overlap: of the window that took most; one more than allowed: finished in order
    bool in_order;            // of a window some sequence was finished in order
    atomic_bool loose;        // overlap: adjoints met what is stored within the tolerance, not bit for bit
    _Atomic int code;
} dpcri_backward;

// The callback adjoint: `lanes` lanes of `count` steps from step first on (0 alone), `stride` apart. last, out
// [lanes][rows][w]; kept [lanes][count][rows][w] or NULL.
void dpcri_adjoint_lanes(dpcri_backward *b, int64_t first, int64_t lanes, int64_t stride, int64_t count, int64_t row,
                         int64_t rows, const dpcr_array *last, const dpcr_array *kept, const dpcr_array *out);
// The places of lambda for such lanes.
dpcr_array dpcri_lambda_lanes(const dpcri_backward *b, int64_t first, int64_t lanes, int64_t stride, int64_t count,
                              int64_t row, int64_t rows);
// The loop over steps lo .. hi - 1 of the window (0 alone), from the carry and back to it.
void dpcri_adjoint_range(dpcri_backward *b, int64_t lo, int64_t hi, int64_t row, int64_t rows);

// Some rows of steps lo .. hi - 1, and all rows' adjoint states [hi - lo][B][w]; no data: those go by the tape.
typedef struct dpcri_stretch {
    int64_t lo, hi, row, rows;
    dpcr_array lambda;
} dpcri_stretch;

// The loop over it, from the carry and back to it.
void dpcri_adjoint_stretch(dpcri_backward *b, const dpcri_stretch *stretch);
// Gradients of the parameters of its steps first .. end - 1.
void dpcri_gradient_stretch(dpcri_backward *b, const dpcri_stretch *stretch, int64_t first, int64_t end);

// One window of one sequence by the callback adjoint_window, from the carry and back to it. False: not served.
bool dpcri_compose_window(dpcri_backward *b, int64_t first, int64_t count, int64_t row, const dpcr_array *carry,
                          const dpcr_array *kept, const dpcr_handover *handover);
// Steps lo .. hi - 1 of one sequence by such windows; alone: the only one, whose windows threads share, with the
// parameters' gradients where steps have their own. Steps of a window.
void dpcri_backward_windows(dpcri_backward *b, int64_t row, bool alone);
int64_t dpcri_backward_piece(const dpcr_steps *steps);
// Whether adjoint states that nobody else wants have room beside the windows: one of them at least.
bool dpcri_backward_fits(const dpcr_steps *steps);

// Gradients of the parameters of steps first .. first + count - 1 (0 alone), of these rows of the batch, of adjoints
// [count][rows][w]; NULL: from the tape.
void dpcri_backward_gradient(dpcri_backward *b, int64_t first, int64_t count, int64_t row, int64_t rows,
                             const dpcr_array *adjoints);

// By the loop on one thread, the parameters' gradients beside it by the others (dpcri_gradients_go).
dpcr_status dpcri_backward_beside(dpcri_backward *b, dpcr_error *error);

// By the loop: a thread takes its sequences through many windows, each window's gradients right after its adjoint loop.
bool dpcri_backward_goes_by_rows(const dpcri_backward *b);
dpcr_status dpcri_backward_rows(dpcri_backward *b, dpcr_error *error);

// Until another thread has told so much.
void dpcri_backward_await(const _Atomic int64_t *told, int64_t wanted);

// Blocks of sequences that threads share.
int64_t dpcri_backward_blocks(const dpcr_solve_plan *plan);
// The first sequence of a block, and how many it has, which may be none.
int64_t dpcri_backward_block(const dpcri_backward *b, int64_t block, int64_t *rows);
// What a callback or the caller's cancel function has said, the latter asked.
dpcr_status dpcri_backward_failure(dpcri_backward *b, dpcr_error *error);

// The window by overlapped chunks.
void dpcri_backward_overlap(dpcri_backward *b);
void dpcri_backward_overlap_carve(const dpcr_solve_plan *plan, dpcri_arena *arena, dpcri_backward_space *space);

#endif
