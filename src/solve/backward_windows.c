// SPDX-License-Identifier: MIT
// The backward pass by the callback adjoint_window: windows of fixed length from the right end, for every sequence,
//     lambda_l = direct_l + J_{l+1}^T lambda_{l+1}  of a window by one call,  then its parameters' gradients.
// A sequence alone may be shared by threads: they claim its windows in turn; a call waits for the state that comes out
// of the window to the right as late as it can, and hands its own on as soon as it has it (dpcr_handover). A window's
// gradients are made by the thread that has its adjoint states in the first cache. What is refused, a product that
// leaves the finite numbers, is done by the loop, for its window alone. The cut is that of the length, so the bits hang
// on neither the threads nor the batch. docs/math/windows.md.
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "rt/rt.h"
#include "solve/backward.h"

enum {
    ADJOINTS = 16 << 10,  // bytes of the adjoint states of a window that nobody else wants
    MOST_THREADS = 8,     // that find work, if a window takes some times as long as handing on
    LEAST_WINDOWS = 6,    // that are worth a second thread
    WINDOWS_A_LOOK = 256  // between two questions whether to stop
};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t steps_that_fit(const dpcr_steps *steps) {
    return ADJOINTS / (steps->width * (int64_t)dpcr_dtype_size(steps->dtype));
}

bool dpcri_backward_fits(const dpcr_steps *steps) { return steps_that_fit(steps) > 0; }

int64_t dpcri_backward_piece(const dpcr_steps *steps) {
    const int64_t fit = steps_that_fit(steps);
    const int64_t piece = steps->adjoint_window_steps > 0 ? steps->adjoint_window_steps : fit;
    return piece < fit ? piece : fit > 0 ? fit : 1;
}

// The pieces of steps lo .. hi - 1 of one sequence, the first at the right end: a window each, or, by one thread, some.
typedef struct team {
    dpcri_backward *b;
    int64_t row, piece, windows;
    bool alone, gradients, shared;  // the only sequence; the parameters' are made here; several threads
    pthread_t caller;
    _Alignas(64) _Atomic int64_t next;  // the first window that nobody has claimed
    _Alignas(64) _Atomic int64_t done;  // windows out of which the state has come: it lies in b->carry
    _Atomic bool over;                  // what is left is not done
} team;

typedef struct turn {
    team *t;
    int64_t window;
    bool heard, told;
} turn;

static void hear(void *user) {
    turn *own = user;
    if (own->heard) return;
    own->heard = true;
    dpcri_backward_await(&own->t->done, own->window);
}

static void tell(void *user) {
    turn *own = user;
    if (own->told) return;
    own->told = true;
    atomic_store_explicit(&own->t->done, own->window + 1, memory_order_release);
}

// The places of a window's adjoint states [count][1][w]: the pass's, or the thread's own.
static dpcr_array places(const team *t, int64_t first, int64_t count, void *memory) {
    const dpcri_backward *b = t->b;
    const int64_t shape[3] = {count, 1, b->plan->steps.width};
    if (b->lambda.data) return dpcri_slice(&b->lambda, first - b->lo, count, t->row, 1);
    return dpcr_array_make(memory, b->plan->steps.dtype, 3, shape);
}

static void run_steps(turn *own, int64_t first, int64_t count, void *memory);

// What one call refused, window by window.
static void run_apart(turn *own, int64_t first, int64_t count, void *memory) {
    const int64_t window = dpcri_backward_piece(&own->t->b->plan->steps);
    for (int64_t left = count, n; left > 0; left -= n) {
        n = least(window, left);
        run_steps(own, first + left - n, n, memory);
    }
}

static void run_steps(turn *own, int64_t first, int64_t count, void *memory) {
    const team *t = own->t;
    const dpcr_handover handover = {.size = sizeof handover, .user = own, .hear = hear, .tell = tell};
    const dpcr_array states = places(t, first, count, memory), kept = dpcri_as_steps(&states);
    const dpcr_array carry = dpcri_slice(&t->b->carry, 0, 1, t->row, 1);
    const bool composes = first > 0;  // step 0 comes from z0, which lies elsewhere
    if (!composes || !dpcri_compose_window(t->b, first, count, t->row, &carry, &kept, t->shared ? &handover : NULL)) {
        if (count > dpcri_backward_piece(&t->b->plan->steps)) {
            run_apart(own, first, count, memory);
            return;
        }
        hear(own);
        dpcri_adjoint_lanes(t->b, first, 1, 1, count, t->row, 1, &carry, &kept, &carry);
    }
    if (t->b->code != 0) return;  // run_window gives up
    tell(own);
    if (t->gradients) dpcri_backward_gradient(t->b, first, count, 0, 1, &states);
}

// Whoever waits for a window that is not done goes on in his turn all the same: what the pass writes is then worth
// nothing, and nobody else is at b->carry meanwhile.
static void give_up(turn *own) {
    own->t->over = true;
    hear(own);
    tell(own);
}

static void run_window(team *t, int64_t k, void *memory) {
    const int64_t right = t->b->hi - k * t->piece, begin = right > t->piece ? right - t->piece : 0;
    const int64_t left = begin > t->b->lo ? begin : t->b->lo, from = left ? left : 1;
    turn own = {.t = t, .window = k};
    if (from < right) run_steps(&own, from, right - from, memory);
    if (left == 0) run_steps(&own, 0, 1, memory);
    if (t->b->code != 0) give_up(&own);
}

// Several sequences are tasks, between which others ask.
static bool asked_to_stop(const team *t, int64_t k) {
    return t->alone && k % WINDOWS_A_LOOK == WINDOWS_A_LOOK - 1 && pthread_equal(pthread_self(), t->caller) &&
           dpcri_cancelled(t->b->plan->context);
}

static void take_part(void *argument, int64_t i) {
    team *t = argument;
    _Alignas(64) char memory[ADJOINTS];
    int64_t k;
    (void)i;
    while (!t->over && (k = atomic_fetch_add_explicit(&t->next, 1, memory_order_relaxed)) < t->windows) {
        if (asked_to_stop(t, k)) t->over = t->b->stopped = true;
        if (t->over)
            give_up(&(turn){.t = t, .window = k});
        else
            run_window(t, k, memory);
    }
}

// Threads that share the windows of one sequence.
static int64_t team_of(const dpcr_steps *steps, int64_t threads) {
    const int64_t window = dpcri_backward_piece(steps), windows = (steps->length + window - 1) / window;
    const bool worth = windows >= LEAST_WINDOWS || steps->flops == 0;  // unknown: always handed to the threads
    if (!steps->concurrent || steps->adjoint_window_steps <= 0 || steps->batch > 1 || !worth) return 1;
    return least(least(threads, MOST_THREADS), windows);
}

double dpcri_backward_team_gain(const dpcr_steps *steps, int64_t threads) {
    const double share = 0.8;  // of a thread that joins another, measured for two
    return 1 + share * (double)(team_of(steps, threads) - 1);
}

void dpcri_backward_windows(dpcri_backward *b, int64_t row, bool alone) {
    const dpcr_steps *steps = &b->plan->steps;
    const int64_t count = b->hi - b->lo, window = dpcri_backward_piece(steps);
    const int64_t threads = alone ? team_of(steps, dpcr_context_threads(b->plan->context)) : 1;
    const int64_t together = threads > 1 ? 1 : steps_that_fit(steps) / window;  // windows a call
    team t = {.b = b,
              .row = row,
              .piece = window * (together > 1 ? together : 1),
              .alone = alone,
              .shared = threads > 1,
              .gradients = alone && steps->gradient && !steps->gradient_whole,
              .caller = pthread_self()};
    t.windows = (count + t.piece - 1) / t.piece;
    if (t.shared)
        dpcri_for_tasks(b->plan, (double)count * steps->flops, threads, take_part, &t);
    else
        take_part(&t, 0);
}
