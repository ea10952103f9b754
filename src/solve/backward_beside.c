// SPDX-License-Identifier: MIT
// Backward by the loop where the sequences are one thread's work: it goes from the end on and leaves adjoint states a
// unit of steps at a time; the other threads make the parameters' gradients of the units that are done, and it joins
// them where the ring of units is full and at the end. A step's gradients are one task's, of all rows in order: the
// same bits as one window after the other (backward.c).
#include <pthread.h>
#include <stdatomic.h>

#include "solve/backward.h"

enum { MOST_UNITS = 4 };

typedef struct beside {
    dpcri_backward *b;
    int64_t unit, units;    // steps of a unit; units of the chain, from its end
    int64_t piece, pieces;  // steps of a task of gradients, the last of a unit may have fewer; tasks of a unit
    int64_t slots;          // units whose adjoint states have room; 0: each has its own
    pthread_t caller;       // whom cancel functions are asked on
    _Alignas(64) _Atomic int64_t done;                  // units that have their adjoint states
    _Alignas(64) _Atomic int64_t next;                  // the first task that nobody has claimed
    _Alignas(64) _Atomic int64_t finished[MOST_UNITS];  // tasks, over all units of a slot
    _Alignas(64) _Atomic bool over;                     // what is left is not done
} beside;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t end_of(const beside *t, int64_t unit) { return t->b->plan->steps.length - unit * t->unit; }

static int64_t begin_of(const beside *t, int64_t unit) {
    const int64_t end = end_of(t, unit);
    return end > t->unit ? end - t->unit : 0;
}

static dpcri_stretch stretch_of(const beside *t, int64_t unit) {
    const dpcri_backward *b = t->b;
    const dpcr_steps *steps = &b->plan->steps;
    dpcri_stretch s = {.lo = begin_of(t, unit), .hi = end_of(t, unit), .rows = steps->batch};
    if (b->from_tape) return s;
    const int64_t count = s.hi - s.lo, shape[3] = {t->slots * t->unit, steps->batch, steps->width};
    const dpcr_array ring = dpcr_array_make(b->space.lambda, steps->dtype, 3, shape);
    s.lambda = b->lambda_out ? dpcri_slice(b->lambda_out, s.lo, count, 0, steps->batch)
                             : dpcri_slice(&ring, unit % t->slots * t->unit, count, 0, steps->batch);
    return s;
}

// ---- gradients ----

// From a unit's end on: its adjoint states came in this order.
static void run_piece(beside *t, int64_t number) {
    const int64_t unit = number / t->pieces;
    const dpcri_stretch s = stretch_of(t, unit);
    const int64_t end = s.hi - number % t->pieces * t->piece;
    dpcri_gradient_stretch(t->b, &s, end - t->piece > s.lo ? end - t->piece : s.lo, end);
    if (t->b->code != 0) t->over = true;
    if (t->slots > 0) atomic_fetch_add_explicit(&t->finished[unit % t->slots], 1, memory_order_release);
}

static bool goes_on(beside *t) {
    const bool asks = pthread_equal(pthread_self(), t->caller);
    if (asks && (t->b->looks.stopped || dpcri_cancelled(t->b->plan->context))) t->over = t->b->stopped = true;
    if (t->b->code != 0) t->over = true;
    return !t->over;
}

// The caller's thread asks once a unit whether it is to stop, as the loop does.
static void help(beside *t) {
    int64_t number, asked = -1;
    while (!t->over && (number = atomic_fetch_add_explicit(&t->next, 1, memory_order_relaxed)) < t->units * t->pieces) {
        for (int64_t i = 0; atomic_load_explicit(&t->done, memory_order_acquire) <= number / t->pieces && !t->over; i++)
            dpcri_wait(i);
        if (number / t->pieces != asked && !goes_on(t)) return;
        asked = number / t->pieces;
        if (!t->over) run_piece(t, number);
    }
}

// A task of a unit that is done, if there is one.
static bool help_once(beside *t) {
    const int64_t ready = t->done * t->pieces;
    int64_t number = t->next;
    do {
        if (number >= ready) return false;
    } while (!atomic_compare_exchange_weak(&t->next, &number, number + 1));
    run_piece(t, number);
    return true;
}

// ---- the loop ----

static void wait_for_room(beside *t, int64_t unit) {
    if (t->slots == 0 || unit < t->slots) return;
    const int64_t wanted = unit / t->slots * t->pieces;
    for (int64_t i = 0; atomic_load_explicit(&t->finished[unit % t->slots], memory_order_acquire) < wanted && !t->over;)
        if (!help_once(t)) dpcri_wait(i++);
}

static void run_loop(beside *t) {
    for (int64_t unit = 0; unit < t->units; unit++) {
        wait_for_room(t, unit);
        if (t->over) return;
        const dpcri_stretch s = stretch_of(t, unit);
        dpcri_adjoint_stretch(t->b, &s);
        if (!goes_on(t)) return;
        atomic_store_explicit(&t->done, unit + 1, memory_order_release);
    }
}

// The loop is the caller's, whose range of tasks begins with it: there is a task of gradients for every other thread,
// which waits for the loop there, so nobody comes to it from behind.
static void take_part(void *argument, int64_t number) {
    beside *t = argument;
    if (number == 0) run_loop(t);
    help(t);
}

dpcr_status dpcri_backward_beside(dpcri_backward *b, dpcr_error *error) {
    const int64_t window = b->plan->backward_window, length = b->plan->steps.length;
    const int64_t slots = least(window, MOST_UNITS);
    beside t = {.b = b, .unit = window / slots, .caller = pthread_self()};
    t.slots = b->from_tape || b->lambda_out ? 0 : slots;
    t.units = (length + t.unit - 1) / t.unit;
    t.piece = least(b->gradient_piece, t.unit);
    t.pieces = (t.unit + t.piece - 1) / t.piece;
    dpcri_parallel(b->plan->context, least(dpcri_threads_at_hand(b->plan->context), 1 + t.units * t.pieces), take_part,
                   &t);
    return dpcri_backward_failure(b, error);
}
