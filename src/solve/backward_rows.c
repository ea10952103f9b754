// SPDX-License-Identifier: MIT
// Backward by the loop over blocks of sequences, where adjoint leaves in the tape what gradient wants: one task goes
// through a window's adjoint loop and then makes its gradients, of numbers that are still in its cache. Where the
// callback keeps a block's sums apart (gradient_join), blocks are tasks and each goes its own way. Where it does not
// (gradient_rows), a thread takes a part of the blocks, and part p adds to a window's sums after part p - 1 has: every
// step's are over all rows in order, by any number of threads.
#include <sched.h>
#include <stdatomic.h>

#include "solve/backward.h"

enum { MOST_PARTS = 64, PAUSES = 2000 };

// Of sequences row .. row + rows - 1.
static void gradient_of_rows(dpcri_backward *b, int64_t first, int64_t count, int64_t row, int64_t rows) {
    if (count <= 0) return;
    const dpcr_steps *steps = &b->plan->steps;
    const dpcr_span span = dpcri_span(first, count, 1, 1, row, rows);
    const dpcr_array in = dpcri_inputs(&b->t, first, count, row, rows);
    const dpcr_array tape = dpcri_slice(b->tape, first, count, row, rows);
    const int code = steps->gradient(steps->user, &span, &in, &tape, NULL);
    if (code != 0) b->code = code;
}

static int64_t window_below(const dpcri_backward *b, int64_t hi) {
    return hi > b->plan->backward_window ? hi - b->plan->backward_window : 0;
}

// The loop over steps lo .. hi - 1; step 0 comes from z0, which lies elsewhere.
static void adjoint_of_rows(dpcri_backward *b, int64_t lo, int64_t hi, int64_t row, int64_t rows) {
    const dpcr_array carry = dpcri_slice(&b->carry, 0, 1, row, rows);
    const int64_t from = lo ? lo : 1;
    if (from < hi) dpcri_adjoint_lanes(b, from, 1, 1, hi - from, row, rows, &carry, NULL, &carry);
    if (lo == 0) dpcri_adjoint_lanes(b, 0, 1, 1, 1, row, rows, &carry, NULL, &carry);
}

static void gradients_of_rows(dpcri_backward *b, int64_t lo, int64_t hi, int64_t row, int64_t rows) {
    const int64_t from = lo ? lo : 1;
    if (lo == 0) gradient_of_rows(b, 0, 1, row, rows);
    gradient_of_rows(b, from, hi - from, row, rows);
}

// ---- sums of their own ----

static void block_back(void *argument, int64_t task) {
    dpcri_backward *b = argument;
    const int64_t row = task * b->plan->back_block, left = b->plan->steps.batch - row;
    const int64_t rows = left < b->plan->back_block ? left : b->plan->back_block;
    for (int64_t hi = b->hi, lo; hi > b->lo && b->code == 0; hi = lo) {
        lo = window_below(b, hi);
        adjoint_of_rows(b, lo, hi, row, rows);
        gradients_of_rows(b, lo, hi, row, rows);
    }
}

// ---- one sum, part after part ----

typedef struct part {
    _Alignas(64) _Atomic int64_t windows;  // to which it has added
} part;

typedef struct parts {
    dpcri_backward *b;
    int64_t count;
    part done[MOST_PARTS];
} parts;

static int64_t parts_of(const dpcr_solve_plan *plan) {
    const int64_t threads = dpcr_context_threads(plan->context);
    return !plan->steps.concurrent ? 1 : threads < MOST_PARTS ? threads : MOST_PARTS;
}

// A thread runs its tasks in order, and one that takes another's takes the last, so the part that is waited for has
// begun or will.
static void await_part(const part *before, int64_t windows) {
    for (int i = 0; atomic_load_explicit(&before->windows, memory_order_acquire) < windows; i++) {
        if (i < PAUSES)
            dpcri_pause();
        else
            sched_yield();
    }
}

static void part_back(void *argument, int64_t number) {
    parts *p = argument;
    dpcri_backward *b = p->b;
    const int64_t batch = b->plan->steps.batch, blocks = dpcri_backward_blocks(b->plan);
    const int64_t row = number * blocks / p->count * b->plan->back_block;
    const int64_t end = (number + 1) * blocks / p->count * b->plan->back_block,
                  rows = (end < batch ? end : batch) - row;
    int64_t windows = 0;
    for (int64_t hi = b->hi, lo; hi > b->lo; hi = lo) {
        lo = window_below(b, hi);
        windows++;
        if (b->code == 0) adjoint_of_rows(b, lo, hi, row, rows);
        if (number > 0) await_part(&p->done[number - 1], windows);
        if (b->code == 0) gradients_of_rows(b, lo, hi, row, rows);
        atomic_store_explicit(&p->done[number].windows, windows, memory_order_release);
    }
}

// ---- which way ----

// Not where threads would have no block: they help with the gradients instead. The bits are the same.
bool dpcri_backward_goes_by_rows(const dpcri_backward *b) {
    const dpcr_steps *steps = &b->plan->steps;
    const int64_t threads = dpcr_context_threads(b->plan->context);
    if (!b->from_tape || !steps->gradient) return false;
    if (steps->gradient_whole) return steps->gradient_join && threads <= dpcri_backward_blocks(b->plan);
    const int64_t count = parts_of(b->plan);
    return steps->gradient_rows > 0 &&
           (count == 1 || (threads <= dpcri_backward_blocks(b->plan) && steps->batch >= count * steps->gradient_rows));
}

// Windows after which the caller is asked whether to go on: many, for parts wait for each other at the end.
static int64_t windows_together(const dpcr_solve_plan *plan) {
    const double most = 2e9;  // flops, some ten milliseconds
    if (plan->steps.gradient_whole) return plan->join_windows;
    const double window = 3 * plan->steps.flops * (double)plan->steps.batch * (double)plan->backward_window;
    return window * 1e6 < most ? 1000000 : window > most ? 1 : (int64_t)(most / window);
}

dpcr_status dpcri_backward_rows(dpcri_backward *b, dpcr_error *error) {
    const dpcr_solve_plan *plan = b->plan;
    const int64_t window = plan->backward_window, together = windows_together(plan);
    for (b->hi = plan->steps.length; b->hi > 0; b->hi = b->lo) {
        b->lo = b->hi / together > window ? b->hi - window * together : 0;
        if (plan->steps.gradient_whole) {
            const double flops =
                (double)(b->hi - b->lo) * (double)plan->steps.batch * (plan->steps.flops + plan->steps.jacobian_flops);
            b->stopped =
                b->stopped || !dpcri_for_tasks_or_stop(plan, flops, dpcri_backward_blocks(plan), block_back, b);
            plan->steps.gradient_join(plan->steps.user);
        } else {
            parts p = {.b = b, .count = parts_of(plan)};
            dpcri_parallel(plan->context, p.count, part_back, &p);
        }
        const dpcr_status status = dpcri_backward_failure(b, error);
        if (status != DPCR_OK) return status;
    }
    return DPCR_OK;
}
