// SPDX-License-Identifier: MIT
// Backward by the loop over blocks of sequences: one task goes through a window's adjoint loop and then makes its
// gradients, of numbers that are still in its cache. Where adjoint leaves in the tape what gradient wants and the
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

// ---- sums of their own ----

static void block_back(void *argument, int64_t task) {
    dpcri_backward *b = argument;
    int64_t rows;
    const int64_t row = dpcri_backward_block(b, task, &rows);
    if (rows == 0) return;
    for (int64_t hi = b->hi, lo; hi > b->lo && b->code == 0 && !b->looks.stopped; hi = lo) {
        lo = window_below(b, hi);
        const dpcri_stretch s = {.lo = lo, .hi = hi, .row = row, .rows = rows};
        dpcri_adjoint_stretch(b, &s);
        dpcri_gradient_stretch(b, &s, lo, hi);
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

// Of a window, whose place the next one takes; none where they go by the tape.
static dpcr_array adjoints_of(const dpcri_backward *b, int64_t lo, int64_t hi) {
    const dpcr_steps *steps = &b->plan->steps;
    const int64_t shape[3] = {hi - lo, steps->batch, steps->width};
    if (b->from_tape) return (dpcr_array){0};
    if (b->lambda_out) return dpcri_slice(b->lambda_out, lo, hi - lo, 0, steps->batch);
    return dpcr_array_make(b->space.lambda, steps->dtype, 3, shape);
}

static bool goes_on(parts *p) {
    const bool asks = pthread_equal(pthread_self(), p->caller);
    if (p->b->looks.stopped || (asks && dpcri_cancelled(p->b->plan->context))) p->stopped = true;
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
        const dpcri_stretch s = {.lo = lo, .hi = hi, .row = row, .rows = rows, .lambda = adjoints_of(b, lo, hi)};
        windows++;
        if (goes_on(p)) dpcri_adjoint_stretch(b, &s);
        // The part before has begun, or will: dpcri_parallel.
        if (number > 0) dpcri_backward_await(&p->done[number - 1].windows, windows);
        if (goes_on(p)) dpcri_gradient_stretch(b, &s, lo, hi);
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

// Not where threads would have no rows: they help with the gradients instead. The bits are the same. Adjoint states
// beside the tape are as many numbers again that would go from thread to thread, so fewer rows will do (128 layers of
// width 64, batch 256, on two processors 36 ns a line apart 3.6 ms, by rows 3.1; 166 ns apart 8.8, and 3.4).
bool dpcri_backward_goes_by_rows(const dpcri_backward *b) {
    const dpcr_steps *steps = &b->plan->steps;
    if (!steps->gradient) return false;
    if (steps->gradient_whole)
        return b->from_tape && steps->gradient_join &&
               dpcr_context_threads(b->plan->context) <= dpcri_backward_blocks(b->plan);
    const int64_t count = parts_of(b), wanted = b->from_tape ? steps->gradient_rows : steps->gradient_rows / 2;
    const int64_t rows = wanted > PART_ROWS ? wanted : PART_ROWS;
    return steps->gradient_rows > 0 && count <= MOST_PARTS &&
           (count == 1 ? b->from_tape : steps->batch >= count * rows);
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
