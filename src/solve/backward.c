// SPDX-License-Identifier: MIT
// Backward: one transposed linear chain at the converged states, a window of steps at a time from the end,
//     lambda_l = direct_l + J_{l+1}^T lambda_{l+1},     then (df_l/dtheta)^T lambda_l for every step at once.
// Sequential: the adjoint loop of the callbacks, no Jacobian formed; blocks of sequences side by side. Overlap: the
// same loop in chunks (backward_overlap.c). Chunked, where the callback adjoint_window is there: by it
// (backward_windows.c). By another scheme, or overlap without the callback adjoint: exact Jacobians (never a
// quasi-Newton's approximation) and one linear solve. Parameter gradients of a step are summed over all rows in order:
// by one task, beside the loop where that is one thread's (backward_beside.c), or part after part (backward_rows.c).
// Source: BPPSA (arXiv 1907.10134), DeepPCR; docs/math/backward.md.
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/checksum.h"
#include "rt/trial.h"
#include "solve/backward.h"

static bool by_loop(const dpcr_solve_plan *plan) {
    return plan->options.backward == DPCR_SCHEME_SEQUENTIAL && plan->steps.adjoint;
}

bool dpcri_backward_can_overlap(const dpcr_steps *steps) { return steps->adjoint; }

static bool by_lanes(const dpcr_solve_plan *plan) {
    return plan->options.backward == DPCR_SCHEME_OVERLAP && dpcri_backward_can_overlap(&plan->steps);
}

bool dpcri_backward_by_windows(const dpcr_solve_plan *plan) {
    const dpcr_steps *steps = &plan->steps;
    return plan->options.backward == DPCR_SCHEME_CHUNKED && steps->adjoint_window && steps->adjoint;
}

// Of one sequence, whose steps' gradients can be made as soon as a few adjoint states are there: none but those lie
// anywhere, and the window is the whole chain.
static bool composes_with_gradients(const dpcr_solve_plan *plan) {
    const bool whole = plan->steps.gradient && plan->steps.gradient_whole;
    return dpcri_backward_by_windows(plan) && plan->steps.batch == 1 && !whole && dpcri_backward_fits(&plan->steps);
}

static void carve(const dpcr_solve_plan *plan, dpcri_arena *arena, dpcri_backward_space *space) {
    const dpcr_steps *steps = &plan->steps;
    const size_t real = dpcr_dtype_size(steps->dtype);
    int64_t states = 0, numbers = 0;
    if (!dpcri_mul(steps->batch, steps->width, &states) || !dpcri_mul(plan->backward_window, states, &numbers))
        arena->overflow = true;
    space->lambda = dpcri_arena_take(arena, composes_with_gradients(plan) ? 0 : numbers, real);
    space->carry = dpcri_arena_take(arena, states, real);
    space->a = space->linear = NULL;
    if (by_lanes(plan)) {
        dpcri_backward_overlap_carve(plan, arena, space);
        return;
    }
    if (by_loop(plan) || dpcri_backward_by_windows(plan) || !steps->linearise) return;
    const int64_t values = dpcr_transition_values(&steps->jacobian);
    if (!dpcri_mul(plan->backward_window, steps->batch, &states) || !dpcri_mul(states, values, &numbers))
        arena->overflow = true;
    space->a = dpcri_arena_take(arena, numbers, real);
    bool lost = false;
    const dpcri_linear shape = {.transition = steps->jacobian,
                                .dtype = steps->dtype,
                                .transposed = 1,
                                .lost = &lost,
                                .length = plan->backward_window,
                                .rows = steps->batch};
    size_t linear = dpcri_linear_workspace(&shape, &plan->transposed);
    if (linear == SIZE_MAX) arena->overflow = true, linear = 0;
    space->linear = dpcri_arena_take(arena, (int64_t)linear, 1);
}

size_t dpcri_backward_bytes(const dpcr_solve_plan *plan) {
    dpcri_arena arena = {0};
    dpcri_backward_space space;
    carve(plan, &arena, &space);
    return arena.overflow ? SIZE_MAX : arena.used;
}

// Nothing can be made up for a gradient, so a positive code ends the call too.
static void note(dpcri_backward *b, int code) {
    if (code != 0) b->code = code;
}

void dpcri_backward_await(const _Atomic int64_t *told, int64_t wanted) {
    for (int i = 0; atomic_load_explicit(told, memory_order_acquire) < wanted; i++) dpcri_wait(i);
}

int64_t dpcri_backward_blocks(const dpcr_solve_plan *plan) {
    return (plan->steps.batch + plan->back_block - 1) / plan->back_block;
}

int64_t dpcri_backward_block(const dpcri_backward *b, int64_t block, int64_t *rows) {
    const dpcr_steps *s = &b->plan->steps;
    const int64_t size = b->plan->back_block, row = dpcri_block_begin(s, 0, s->length, 0, s->batch, size, block);
    *rows = dpcri_block_begin(s, 0, s->length, 0, s->batch, size, block + 1) - row;
    return row;
}

// `lanes` lanes of `count` steps of x [steps][rows][w], from step `first` on and `stride` apart:
// [lanes][count][rows][w].
static dpcr_array in_lanes(const dpcr_array *x, int64_t first, int64_t lanes, int64_t stride, int64_t count,
                           int64_t row, int64_t rows) {
    const int64_t at = (first * x->strides[0] + row * x->strides[1]) * (int64_t)dpcr_dtype_size(x->dtype);
    return (dpcr_array){.data = x->data ? (char *)x->data + at : NULL,
                        .dtype = x->dtype,
                        .device = x->device,
                        .ndim = 4,
                        .shape = {lanes, count, rows, x->shape[2]},
                        .strides = {stride * x->strides[0], x->strides[0], x->strides[1], x->strides[2]}};
}

dpcr_array dpcri_lambda_lanes(const dpcri_backward *b, int64_t first, int64_t lanes, int64_t stride, int64_t count,
                              int64_t row, int64_t rows) {
    return in_lanes(&b->lambda, first - b->lo, lanes, stride, count, row, rows);
}

// What the callbacks take of a span.
typedef struct lanes_of_span {
    dpcr_span span;
    dpcr_array in, tape, direct;
} lanes_of_span;

static lanes_of_span lanes_at(dpcri_backward *b, int64_t first, int64_t lanes, int64_t stride, int64_t count,
                              int64_t row, int64_t rows) {
    lanes_of_span s;
    s.span = dpcri_span(first, lanes, stride, count, row, rows);
    if (first > 0) {
        s.in = in_lanes(&b->t.z, first - 1, lanes, stride, count, row, rows);
    } else {
        const dpcr_array z0 = dpcri_inputs(&b->t, 0, count, 0, rows);
        s.in = in_lanes(&z0, 0, lanes, stride, count, row, rows);
    }
    if (b->tape) s.tape = in_lanes(b->tape, first, lanes, stride, count, row, rows);
    if (b->direct) s.direct = in_lanes(b->direct, first, lanes, stride, count, row, rows);
    return s;
}

void dpcri_adjoint_lanes(dpcri_backward *b, int64_t first, int64_t lanes, int64_t stride, int64_t count, int64_t row,
                         int64_t rows, const dpcr_array *last, const dpcr_array *kept, const dpcr_array *out) {
    const lanes_of_span s = lanes_at(b, first, lanes, stride, count, row, rows);
    note(b, b->plan->steps.adjoint(b->plan->steps.user, &s.span, &s.in, b->tape ? &s.tape : NULL,
                                   b->direct ? &s.direct : NULL, last, kept, out));
}

static dpcr_array adjoints_at(const dpcri_stretch *s, int64_t first, int64_t count) {
    return s->lambda.data ? dpcri_slice(&s->lambda, first - s->lo, count, s->row, s->rows) : (dpcr_array){0};
}

static void adjoint_part(dpcri_backward *b, const dpcri_stretch *s, int64_t first, int64_t end) {
    if (first >= end) return;
    const dpcr_array carry = dpcri_slice(&b->carry, 0, 1, s->row, s->rows);
    dpcri_pace pace;
    dpcri_pace_begin(&pace, b->plan, (double)s->rows, end - first);
    const int64_t seen = atomic_load_explicit(&b->stretch, memory_order_relaxed);
    if (seen > pace.steps) pace.steps = seen;
    for (int64_t left = end - first; left > 0;) {
        const int64_t count = dpcri_pace_stretch(&pace, left);
        left -= count;
        const dpcr_array adjoints = adjoints_at(s, first + left, count), kept = dpcri_as_steps(&adjoints);
        dpcri_adjoint_lanes(b, first + left, 1, 1, count, s->row, s->rows, &carry, kept.data ? &kept : NULL, &carry);
        if (b->code != 0 || (left > 0 && dpcri_pace_over(&pace, count) && dpcri_looks_stopped(&b->looks))) return;
    }
    atomic_store_explicit(&b->stretch, pace.steps, memory_order_relaxed);
}

static void gradient_part(dpcri_backward *b, const dpcri_stretch *s, int64_t first, int64_t end) {
    if (first >= end) return;
    const dpcr_array adjoints = adjoints_at(s, first, end - first);
    dpcri_backward_gradient(b, first, end - first, s->row, s->rows, adjoints.data ? &adjoints : NULL);
}

// Step 0 comes from z0, which lies elsewhere.
void dpcri_adjoint_stretch(dpcri_backward *b, const dpcri_stretch *s) {
    adjoint_part(b, s, s->lo ? s->lo : 1, s->hi);
    if (s->lo == 0) adjoint_part(b, s, 0, 1);
}

void dpcri_gradient_stretch(dpcri_backward *b, const dpcri_stretch *s, int64_t first, int64_t end) {
    if (first == 0 && end > 0) gradient_part(b, s, 0, 1);
    gradient_part(b, s, first ? first : 1, end);
}

static dpcri_stretch window_of(const dpcri_backward *b, int64_t row, int64_t rows) {
    dpcri_stretch s = {.lo = b->lo, .hi = b->hi, .row = row, .rows = rows};
    if (!b->from_tape) s.lambda = b->lambda;
    return s;
}

void dpcri_adjoint_range(dpcri_backward *b, int64_t lo, int64_t hi, int64_t row, int64_t rows) {
    const dpcri_stretch window = window_of(b, row, rows);
    adjoint_part(b, &window, lo, hi);
}

static void adjoint_rows(void *argument, int64_t task) {
    dpcri_backward *b = argument;
    int64_t rows;
    const int64_t row = dpcri_backward_block(b, task, &rows);
    const dpcri_stretch window = window_of(b, row, rows);
    if (rows > 0) dpcri_adjoint_stretch(b, &window);
}

bool dpcri_compose_window(dpcri_backward *b, int64_t first, int64_t count, int64_t row, const dpcr_array *carry,
                          const dpcr_array *kept, const dpcr_handover *handover) {
    const lanes_of_span s = lanes_at(b, first, 1, 1, count, row, 1);
    const int code = b->plan->steps.adjoint_window(b->plan->steps.user, &s.span, &s.in, b->tape ? &s.tape : NULL,
                                                   b->direct ? &s.direct : NULL, carry, kept, carry, handover);
    note(b, code < 0 ? code : 0);
    return code <= 0;
}

// Composed, sequence by sequence.
static void compose_rows(void *argument, int64_t task) {
    dpcri_backward *b = argument;
    const int64_t line = dpcri_rows_of_line(&b->plan->steps), batch = b->plan->steps.batch;
    for (int64_t row = task * line; row < batch && row < (task + 1) * line; row++)
        dpcri_backward_windows(b, row, false);
}

static dpcr_array jacobians(const dpcri_backward *b, int64_t first, int64_t count) {
    const int64_t shape[3] = {b->hi - b->lo, b->plan->steps.batch, dpcr_transition_values(&b->plan->steps.jacobian)};
    const dpcr_array whole = dpcr_array_make(b->space.a, b->plan->steps.dtype, 3, shape);
    return dpcri_slice(&whole, first - b->lo, count, 0, b->plan->steps.batch);
}

static void linearise_range(dpcri_backward *b, int64_t first, int64_t count) {
    if (count <= 0) return;
    const dpcr_steps *steps = &b->plan->steps;
    const dpcr_span span = dpcri_span(first, count, 1, 1, 0, steps->batch);
    const dpcr_array a = jacobians(b, first, count);
    dpcr_array in = dpcri_inputs(&b->t, first, count, 0, steps->batch);
#ifdef DPCRI_MUTANTS
    if (dpcri_mutant == 3) in = dpcri_inputs(&b->t, 0, count, 0, steps->batch), in.strides[0] = 0;
#endif
    const int code = steps->linearise(steps->user, &span, &in, NULL, &a);
    if (code > 0) dpcri_row_ops_of(steps->dtype)->fill(&a, NAN);
    note(b, code < 0 ? code : 0);
}

static void linearise_piece(void *argument, int64_t task) {
    dpcri_backward *b = argument;
    const int64_t begin = b->lo + task * b->plan->piece,
                  end = begin + b->plan->piece < b->hi ? begin + b->plan->piece : b->hi;
    if (begin == 0) linearise_range(b, 0, 1);
    linearise_range(b, begin ? begin : 1, end - (begin ? begin : 1));
}

void dpcri_backward_gradient(dpcri_backward *b, int64_t first, int64_t count, int64_t row, int64_t rows,
                             const dpcr_array *adjoints) {
    if (count <= 0) return;
    const dpcr_steps *steps = &b->plan->steps;
    const dpcr_span span = dpcri_span(first, count, 1, 1, row, rows);
    const dpcr_array in = dpcri_inputs(&b->t, first, count, row, rows);
    dpcr_array tape;
    if (b->tape) tape = dpcri_slice(b->tape, first, count, row, rows);
    note(b, steps->gradient(steps->user, &span, &in, b->tape ? &tape : NULL, adjoints));
}

static void gradient_range(dpcri_backward *b, int64_t first, int64_t end) {
    const dpcri_stretch window = window_of(b, 0, b->plan->steps.batch);
    dpcri_gradient_stretch(b, &window, first, end);
}

static void gradient_piece(void *argument, int64_t task) {
    dpcri_backward *b = argument;
    const int64_t begin = b->lo + task * b->gradient_piece, left = b->hi - begin;
    gradient_range(b, begin, begin + (b->gradient_piece < left ? b->gradient_piece : left));
}

// Whether one thread goes back through all rows and another one would wait for their lines for longer than it takes
// off the gradients: rows of at most 16 bytes (1024 layers of width 2, batch 16: 26 to 82 us on two threads, 32 on
// one), or few of them in a window (1024 layers of width 8: 8.3 us where a line passes in 45 ns and 13 where it takes
// 190, on one 8.8).
static bool lines_stay(const dpcr_steps *steps, int64_t window, int64_t blocks) {
    const double few = 2e5;  // flops of a window
    if ((double)window * (double)steps->batch * steps->flops < few) return true;
    return steps->batch > 1 && blocks == 1 && steps->width * (int64_t)dpcr_dtype_size(steps->dtype) <= 16;
}

// Of several blocks of sequences each may have a thread; to take them all on one is slower even where blocks share
// pages: the gradients' thread then waits for as many lines as it adds up (512 layers of width 32, batch 16, on a Xeon:
// 0.53 ms, and 0.51).
dpcri_gradients dpcri_gradients_go(const dpcr_steps *steps, int64_t window, int64_t threads) {
    const int64_t block = dpcri_back_block(steps), blocks = (steps->batch + block - 1) / block;
    if (threads <= 1 || lines_stay(steps, window, blocks)) return DPCRI_GRADIENTS_ALONE;
    const bool whole = steps->gradient_whole || !steps->gradient;
    return whole || !steps->concurrent || blocks > 1 ? DPCRI_GRADIENTS_AFTER : DPCRI_GRADIENTS_BESIDE;
}

static dpcri_gradients gradients_go(const dpcr_solve_plan *plan, int64_t threads) {
    return by_loop(plan) ? dpcri_gradients_go(&plan->steps, plan->backward_window, threads) : DPCRI_GRADIENTS_AFTER;
}

// Steps that one task makes gradients of: enough work for a task, and tasks enough for many threads; one thread has
// none to share and only stops now and then. Of few heavy steps every thread gets its part.
static int64_t gradient_steps(const dpcr_solve_plan *plan) {
    const double each = plan->steps.flops * (double)plan->steps.batch;
    const int64_t threads = dpcri_threads_at_hand(plan->context);
    const bool shares = threads > 1 && gradients_go(plan, threads) != DPCRI_GRADIENTS_ALONE;
    const double task = shares ? 30000 : 1000000, wanted = each > 0 ? task / each : 8;
    if (shares && wanted < 1 && plan->backward_window < 8 * threads)
        return (plan->backward_window + threads - 1) / threads;
    return wanted > 4096 ? 4096 : wanted < 8 ? 8 : (int64_t)wanted;
}

static void for_tasks(dpcri_backward *b, int64_t tasks, void (*task)(void *, int64_t)) {
    const double states = (double)(b->hi - b->lo) * (double)b->plan->steps.batch;
    const double flops = states * (b->plan->steps.flops + b->plan->steps.jacobian_flops);
    b->stopped = b->stopped || !dpcri_for_tasks_or_stop(b->plan, flops, tasks, task, b) || b->looks.stopped;
}

static bool asked_to_stop(dpcri_backward *b) {
    b->stopped = b->stopped || b->looks.stopped || dpcri_cancelled(b->plan->context);
    return b->stopped;
}

// Gradients that are made of many steps at once, in order, so that a chain that is cut in front of a window has the
// sums of the whole. A window of overlapped chunks is the whole chain: stretch by stretch, some tenths of a second
// each.
static void gradient_of_window(dpcri_backward *b) {
    const double each = (double)b->plan->steps.batch * b->plan->steps.flops, fit = each > 0 ? 5e9 / each : 1e9;
    const int64_t count = b->hi - b->lo, few = fit < 64 ? 64 : fit < 1e9 ? (int64_t)fit : (int64_t)1e9;
    const int64_t stretch = by_lanes(b->plan) && few < count ? few : count;
    if (b->lo == 0) gradient_range(b, 0, 1);
    for (int64_t l = b->lo ? b->lo : 1; l < b->hi && b->code == 0; l += stretch) {
        if (l > b->lo + 1 && asked_to_stop(b)) return;
        gradient_range(b, l, b->hi - l < stretch ? b->hi : l + stretch);
    }
}

// lambda: the direct part of the window plus what comes from the right.
static void right_hand_side(const dpcri_backward *b) {
    const dpcri_row_ops *ops = dpcri_row_ops_of(b->plan->steps.dtype);
    const int64_t batch = b->plan->steps.batch;
    if (b->direct) {
        const dpcr_array direct = dpcri_slice(b->direct, b->lo, b->hi - b->lo, 0, batch);
        ops->copy(&direct, &b->lambda);
    } else {
        ops->fill(&b->lambda, 0);
    }
    const dpcr_array last = dpcri_slice(&b->lambda, b->hi - b->lo - 1, 1, 0, batch);
    ops->add(&b->carry, &last);
}

// The window's linear solve, in place.
static dpcr_status solve_window(dpcri_backward *b, dpcr_error *error) {
    const dpcr_steps *steps = &b->plan->steps;
    const int64_t tasks = (b->hi - b->lo + b->plan->piece - 1) / b->plan->piece;
    for_tasks(b, tasks, linearise_piece);
    if (b->code != 0 || b->stopped) return DPCR_OK;  // the caller tells
    right_hand_side(b);
    const int64_t values = dpcr_transition_values(&steps->jacobian);
    dpcri_watch watch;
    bool lost = false;
    const dpcri_linear linear = {
        .transition = steps->jacobian,
        .dtype = steps->dtype,
        .transposed = 1,
        .lost = &lost,
        .watch = dpcri_linear_watch(&watch, b->plan->context, &steps->jacobian,
                                    (double)(b->hi - b->lo) * (double)steps->batch),
        .length = b->hi - b->lo,
        .rows = steps->batch,
        .first = steps->length - b->hi,
        .a = b->space.a,
        .a_step = steps->batch * values,
        .a_row = values,
        .b = b->lambda.data,
        .b_step = b->lambda.strides[0],
        .b_row = b->lambda.strides[1],
        .z = b->lambda.data,
        .z_step = b->lambda.strides[0],
        .z_row = b->lambda.strides[1],
    };
    dpcr_chain_report report = {.size = sizeof report, .finished_from = linear.length};
    dpcri_linear_solve(b->plan->context, &linear, &b->plan->transposed, b->space.linear, &report);
    b->in_order = b->in_order || lost || report.finished_from < linear.length;
    if (lost) {
        dpcr_chain_options loop = b->plan->transposed;
        loop.scheme = DPCR_SCHEME_SEQUENTIAL;
        right_hand_side(b);
        dpcri_linear_solve(b->plan->context, &linear, &loop, b->space.linear, NULL);
    }
    b->stopped = dpcri_watch_stopped(linear.watch);
    if (b->stopped) return DPCR_OK;  // the caller tells
    const dpcr_array a = jacobians(b, b->lo, 1), first = dpcri_slice(&b->lambda, 0, 1, 0, steps->batch);
    return dpcr_transition_apply(&steps->jacobian, 1, &a, &first, NULL, &b->carry, error);
}

dpcr_status dpcri_backward_failure(dpcri_backward *b, dpcr_error *error) {
    if (b->code != 0)
        return dpcri_fail_code(error, DPCR_ERROR_CALLBACK, b->code, "backward: a callback aborted with code %d",
                               b->code);
    if (asked_to_stop(b)) return dpcri_fail_stopped(error, "backward");
    return DPCR_OK;
}

static dpcr_status run_windows(dpcri_backward *b, dpcr_error *error) {
    const dpcr_steps *steps = &b->plan->steps;
    const int64_t rows = b->plan->back_block, batch = steps->batch;
    const bool composes_whole = composes_with_gradients(b->plan);
    const int64_t window = composes_whole ? steps->length : b->plan->backward_window;
    int64_t windows = 0;
    if (by_loop(b->plan) && dpcri_backward_goes_by_rows(b)) return dpcri_backward_rows(b, error);
    if (gradients_go(b->plan, dpcri_threads_at_hand(b->plan->context)) == DPCRI_GRADIENTS_BESIDE)
        return dpcri_backward_beside(b, error);
    for (b->hi = steps->length; b->hi > 0; b->hi = b->lo) {
        b->lo = b->hi > window ? b->hi - window : 0;
        const int64_t shape[3] = {b->hi - b->lo, batch, steps->width};
        b->lambda = b->lambda_out ? dpcri_slice(b->lambda_out, b->lo, b->hi - b->lo, 0, batch)
                                  : dpcr_array_make(b->space.lambda, steps->dtype, 3, shape);
        if (composes_whole && !b->lambda_out) b->lambda.data = NULL;
        dpcr_status status = DPCR_OK;
        if (by_loop(b->plan))
            for_tasks(b, (batch + rows - 1) / rows, adjoint_rows);
        else if (by_lanes(b->plan))
            dpcri_backward_overlap(b);
        else if (dpcri_backward_by_windows(b->plan) && batch == 1)
            dpcri_backward_windows(b, 0, true);
        else if (dpcri_backward_by_windows(b->plan))
            for_tasks(b, (batch + dpcri_rows_of_line(steps) - 1) / dpcri_rows_of_line(steps), compose_rows);
        else
            status = solve_window(b, error);
        if (status != DPCR_OK) return status;
        if (steps->gradient && steps->gradient_whole && b->code == 0 && !b->stopped) {
            gradient_of_window(b);
            if (steps->gradient_join && (++windows % b->plan->join_windows == 0 || b->lo == 0))
                steps->gradient_join(steps->user);
        } else if (steps->gradient && !composes_whole && b->code == 0 && !b->stopped)
            for_tasks(b, (b->hi - b->lo + b->gradient_piece - 1) / b->gradient_piece, gradient_piece);
        status = dpcri_backward_failure(b, error);
        if (status != DPCR_OK) return status;
    }
    return DPCR_OK;
}

// Passes of one shape, that write and read alike.
static uint64_t kind_of(const dpcri_backward *b) {
    const dpcr_steps *s = &b->plan->steps;
    const double shape[] = {(double)s->length, (double)s->batch,
                            (double)s->width,  (double)s->dtype,
                            s->flops,          (double)b->plan->backward_window,
                            b->from_tape,      b->lambda_out != NULL,
                            b->tape != NULL,   b->direct != NULL};
    return dpcri_checksum(DPCRI_CHECKSUM + s->identity, shape, sizeof shape);
}

// Whether passes find out how many threads are worth the adjoint states that pass from the one that finds them to those
// that make gradients of them: a line in 35 ns or in 160, as the host has put the cores, and narrow steps are done
// meanwhile (4096 layers of width 8: 43 us on two threads or 108, 55 on one; 512 of 16, batch 64: 475, 1230 and 577).
static bool is_tried(const dpcr_solve_plan *plan) {
    const double light = 1e4;  // flops of a sequence's step
    return by_loop(plan) && plan->steps.gradient && plan->steps.flops <= light &&
           gradients_go(plan, dpcri_threads_at_hand(plan->context)) != DPCRI_GRADIENTS_ALONE;
}

static dpcr_status run_timed(dpcri_backward *b, dpcr_error *error) {
    dpcr_context *context = b->plan->context;
    const uint64_t kind = kind_of(b);
    const int most = (int)dpcri_threads_at_hand(context);
    const int threads = dpcri_trial_threads(context, kind, dpcr_context_threads(context));
    const int before = dpcri_threads_limit(threads < most ? threads : most);
    const double began = dpcri_seconds();
    b->gradient_piece = gradient_steps(b->plan);
    const dpcr_status status = run_windows(b, error);
    dpcri_threads_limit(before);
    if (status == DPCR_OK) dpcri_trial_took(context, kind, threads, dpcri_seconds() - began, 1);
    return status;
}

static dpcr_status go_back(dpcri_backward *b, dpcr_error *error) {
    if (is_tried(b->plan)) return run_timed(b, error);
    b->gradient_piece = gradient_steps(b->plan);
    return run_windows(b, error);
}

static dpcr_status check_arguments(const dpcr_solve_plan *plan, const dpcr_array *z0, const dpcr_array *z,
                                   const dpcr_array *tape, const dpcr_array *direct, const dpcr_array *last,
                                   const dpcr_array *lambda, const dpcr_array *dz0, dpcr_error *error) {
    const dpcr_steps *steps = &plan->steps;
    const int64_t state[3] = {steps->length, steps->batch, steps->width};
    dpcr_status status;
    DPCR_TRY(dpcri_check_trajectory("backward", plan, z0, z, tape, error));
    if (direct) DPCR_TRY(dpcri_check_array("backward", "direct", direct, steps->dtype, 3, state, error));
    if (lambda) DPCR_TRY(dpcri_check_array("backward", "lambda", lambda, steps->dtype, 3, state, error));
    if (last) DPCR_TRY(dpcri_check_array("backward", "last", last, steps->dtype, 2, state + 1, error));
    if (dz0) DPCR_TRY(dpcri_check_array("backward", "dz0", dz0, steps->dtype, 2, state + 1, error));
    DPCR_TRY(dpcri_check_written("backward", "lambda", lambda, error));
    DPCR_TRY(dpcri_check_written("backward", "dz0", dz0, error));
    if (!steps->adjoint && !steps->linearise)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "backward: needs the callback adjoint or linearise");
done:
    return status;
}

// By the loop, or so to the bit; by products of exact Jacobians, or by chunks whose borders differ, to round-off or the
// tolerance, and nothing estimates the error of the latter.
static dpcr_reason reason_of(const dpcri_backward *b) {
    if (b->plan->steps.length == 0) return DPCR_REASON_EXACT;
    if (b->plan->options.backward == DPCR_SCHEME_SEQUENTIAL) return DPCR_REASON_SEQUENTIAL;
    if (b->in_order) return DPCR_REASON_FALLBACK;
    if (!by_lanes(b->plan)) return DPCR_REASON_CONVERGED;
    return b->loose ? DPCR_REASON_RESIDUAL_ONLY : DPCR_REASON_EXACT;
}

dpcr_status dpcr_solve_backward(const dpcr_solve_plan *plan, const dpcr_array *z0, const dpcr_array *z,
                                const dpcr_array *tape, const dpcr_array *direct, const dpcr_array *last,
                                const dpcr_array *lambda, const dpcr_array *dz0, void *workspace,
                                size_t workspace_bytes, dpcr_solve_report *report, dpcr_error *error) {
    if (!plan) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "backward: no plan given");
    const dpcr_steps *steps = &plan->steps;
    const double start = report ? dpcri_seconds() : 0;
    dpcr_status status;
    DPCR_TRY(check_arguments(plan, z0, z, tape, direct, last, lambda, dz0, error));
    DPCR_TRY(dpcri_check_workspace("backward", plan, workspace, workspace_bytes, error));
    DPCR_TRY(dpcri_check_reports("backward", report, 1, error));
    if (steps->batch == 0) goto done;
    dpcri_arena arena = {.base = workspace, .size = workspace_bytes};
    dpcri_backward b = {.plan = plan, .t = {*z0, *z}, .tape = tape, .direct = direct, .lambda_out = lambda};
    b.from_tape =
        steps->gradient_from_tape && plan->options.consume_tape && tape && !lambda && (by_loop(plan) || by_lanes(plan));
    dpcri_looks_begin(&b.looks, plan);
    carve(plan, &arena, &b.space);
    const int64_t shape[3] = {1, steps->batch, steps->width};
    b.carry = dpcr_array_make(b.space.carry, steps->dtype, 3, shape);
    const dpcri_row_ops *ops = dpcri_row_ops_of(steps->dtype);
    ops->fill(&b.carry, 0);
    dpcr_array view;
    if (last) {
        view = dpcri_as_steps(last);
        ops->copy(&view, &b.carry);
    }
    DPCR_TRY(go_back(&b, error));
    if (dz0) {
        view = dpcri_as_steps(dz0);
        ops->copy(&b.carry, &view);
    }
    if (report && report->size >= offsetof(dpcr_solve_report, history_capacity)) {
        report->seconds = dpcri_seconds() - start;
        report->bytes = plan->workspace;
        report->scheme = plan->options.backward;
        report->method = plan->options.method;
        report->reason = reason_of(&b);
        if (by_lanes(plan)) report->sweeps = b.sweeps;
    }
done:
    return status;
}
