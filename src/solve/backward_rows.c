// SPDX-License-Identifier: MIT
// Backward by the loop over blocks of sequences, where adjoint leaves in the tape what gradient wants: one task goes
// through a window's adjoint loop and then makes its gradients, of numbers that are still in its cache. Where the
// callback keeps a block's sums apart (gradient_join), blocks are tasks and each goes its own way. Where it does not
// (gradient_rows), a thread takes a part of the rows, and part p adds to a window's sums after part p - 1 has: every
// step's are over all rows in order, by any number of threads.
#include <pthread.h>
#include <stdatomic.h>

#include "solve/backward.h"

enum { MOST_PARTS = 64, PART_ROWS = 8 };  // parts are whole tiles of the usual products

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
    if (lo == 0) dpcri_backward_gradient(b, 0, 1, row, rows, NULL);
    dpcri_backward_gradient(b, from, hi - from, row, rows, NULL);
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
    pthread_t caller;      // whom cancel functions are asked on
    _Atomic bool stopped;  // by one
    part done[MOST_PARTS];
} parts;

// As many as have a thread, which a caller may limit; one where they have little to do.
static int64_t parts_of(const dpcri_backward *b) {
    const dpcr_steps *steps = &b->plan->steps;
    const double little = 30000;  // flops of a window: about as long as handing work to the pool and back
    const double window = (double)b->plan->backward_window * (double)steps->batch * steps->flops;
    const bool alone = !steps->concurrent || (steps->flops > 0 && window < little);
    return alone ? 1 : dpcri_threads_at_hand(b->plan->context);
}

static bool goes_on(parts *p) {
    if (pthread_equal(pthread_self(), p->caller) && dpcri_cancelled(p->b->plan->context)) p->stopped = true;
    return p->b->code == 0 && !p->stopped;
}

static void part_back(void *argument, int64_t number) {
    parts *p = argument;
    dpcri_backward *b = p->b;
    const int64_t batch = b->plan->steps.batch, tiles = (batch + PART_ROWS - 1) / PART_ROWS;
    const int64_t row = number * tiles / p->count * PART_ROWS, end = (number + 1) * tiles / p->count * PART_ROWS;
    const int64_t rows = (end < batch ? end : batch) - row;
    int64_t windows = 0;
    for (int64_t hi = b->hi, lo; hi > b->lo; hi = lo) {
        lo = window_below(b, hi);
        windows++;
        if (goes_on(p)) adjoint_of_rows(b, lo, hi, row, rows);
        // The part before has begun, or will: dpcri_parallel.
        if (number > 0) dpcri_backward_await(&p->done[number - 1].windows, windows);
        if (goes_on(p)) gradients_of_rows(b, lo, hi, row, rows);
        atomic_store_explicit(&p->done[number].windows, windows, memory_order_release);
    }
}

static dpcr_status parts_back(dpcri_backward *b, dpcr_error *error) {
    parts p = {.b = b, .count = parts_of(b), .caller = pthread_self()};
    b->lo = 0, b->hi = b->plan->steps.length;
    dpcri_parallel(b->plan->context, p.count, part_back, &p);
    b->stopped = b->stopped || p.stopped;
    return dpcri_backward_failure(b, error);
}

// ---- which way ----

// Not where threads would have no rows: they help with the gradients instead. The bits are the same.
bool dpcri_backward_goes_by_rows(const dpcri_backward *b) {
    const dpcr_steps *steps = &b->plan->steps;
    if (!b->from_tape || !steps->gradient) return false;
    if (steps->gradient_whole)
        return steps->gradient_join && dpcr_context_threads(b->plan->context) <= dpcri_backward_blocks(b->plan);
    const int64_t count = parts_of(b), rows = steps->gradient_rows > PART_ROWS ? steps->gradient_rows : PART_ROWS;
    return steps->gradient_rows > 0 && count <= MOST_PARTS && (count == 1 || steps->batch >= count * rows);
}

dpcr_status dpcri_backward_rows(dpcri_backward *b, dpcr_error *error) {
    const dpcr_solve_plan *plan = b->plan;
    if (!plan->steps.gradient_whole) return parts_back(b, error);
    const int64_t stretch = plan->backward_window * plan->join_windows;
    for (b->hi = plan->steps.length; b->hi > 0; b->hi = b->lo) {
        b->lo = b->hi > stretch ? b->hi - stretch : 0;
        const double flops =
            (double)(b->hi - b->lo) * (double)plan->steps.batch * (plan->steps.flops + plan->steps.jacobian_flops);
        b->stopped = b->stopped || !dpcri_for_tasks_or_stop(plan, flops, dpcri_backward_blocks(plan), block_back, b);
        plan->steps.gradient_join(plan->steps.user);
        const dpcr_status status = dpcri_backward_failure(b, error);
        if (status != DPCR_OK) return status;
    }
    return DPCR_OK;
}
