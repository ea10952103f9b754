// SPDX-License-Identifier: MIT
// Newton and its relatives: sweeps   z_l <- f_l(z_{l-1}^old) + A_l (z_{l-1} - z_{l-1}^old)   over a window of the
// chain.
//
//   repeat, for a window [lo, hi) that starts at the first step that is not locked:
//     F_l = f_l(z_{l-1}), A_l                     all l at once, by pieces that stay in cache
//     r_l = F_l - z_l;  A_lo = 0;  A_l = 0 where it is not finite;  r_l = 0 and A_l = 0 where F_l is not
//     delta_l = A_l delta_{l-1} + r_l             a linear chain, by any scheme
//     z_l <- z_l + delta_l,  z_lo <- F_lo         (the last locked state where the sum is not finite)
//     lo <- lo + max(1, leading steps with |r_l| <= atol + rtol |z_l|)
//
// After k sweeps the first k states are exact whatever A is, so L sweeps always suffice. With A = J the correction
// delta is an error estimate: a step is locked only when that is within the tolerance too, or cannot get any smaller
// (residual-only). What a Newton step leaves is of the order of its square, so a chain that amplifies starts from a
// prefix that is right to rounding. Work a sweep: L evaluations and the linear chain. Depth: that of the scheme.
// Of f with kinks, beyond which A says nothing, a residual has to be rounding, and what is right is left as it is.
// Memory: window x B x (values of A + 2 w). Sources: DeepPCR (arXiv 2309.16318), DEER (2309.12252), ParaDiGMS
// (2305.16317); docs/math/newton.md.
#include <math.h>
#include <string.h>

#include "solve/state.h"

typedef struct sweep {
    dpcri_run *run;
    const dpcr_solve_plan *plan;
    const dpcri_row_ops *ops;
    dpcri_sweep_space space;
    int64_t values;                     // of A
    bool needs_jacobian, own_jacobian;  // A is made from J; J has A's own layout
    bool confirmed;                     // A is J itself: its corrections are error estimates
    bool kinked;                        // and of f with kinks: a residual has to be rounding
    bool verifying;                     // no sweep: what is there is judged
    void *slot;                         // fused: where A of the piece at work lies, [piece][row_block][values]
    int64_t slot_first;                 // fused: the first step of that piece
    // the group at work: sequences [row, row + rows) whose window is [lo, hi)
    int64_t row, rows, lo, hi;
    _Atomic int *code;   // the last negative code of a callback
    dpcri_watch *watch;  // over the evaluation and the linear solve at work; NULL: soon done
} sweep;

static bool needs_jacobian(const dpcr_solve_plan *plan) {
    return plan->options.method != DPCR_METHOD_PICARD && plan->options.method != DPCR_METHOD_JACOBI;
}

static bool has_own_jacobian(const dpcr_solve_plan *plan) {
    return needs_jacobian(plan) && plan->transition.structure == plan->steps.jacobian.structure &&
           plan->transition.block == plan->steps.jacobian.block;
}

// A is J itself: an identity is kept as scalars, so that single steps can be cut out.
static bool is_confirmed(const dpcr_solve_plan *plan) {
    return plan->options.method == DPCR_METHOD_NEWTON &&
           (has_own_jacobian(plan) || plan->steps.jacobian.structure == DPCR_IDENTITY);
}

// The loop over delta needs A of one step at a time: where A of the window would not stay in the second cache, blocks
// of sequences go through the window piece by piece, and evaluation, residual and linear solve of a piece follow each
// other.
static bool is_fused(const dpcr_solve_plan *plan) {
    const double bytes = (double)plan->window * (double)plan->steps.batch *
                         (double)dpcr_transition_values(&plan->transition) * (double)dpcr_dtype_size(plan->steps.dtype);
    return !plan->keep_pieces && plan->linear.scheme == DPCR_SCHEME_SEQUENTIAL && bytes > (double)(1 << 20);
}

static int64_t row_tasks(const dpcr_solve_plan *plan, int64_t rows) {
    const int64_t blocks = (rows + plan->back_block - 1) / plan->back_block;
    return blocks < DPCRI_EVALUATION_TASKS ? blocks : DPCRI_EVALUATION_TASKS;
}

static int64_t pieces_of(const dpcr_solve_plan *plan) { return plan->window / plan->piece + 2; }

void dpcri_sweep_carve(const dpcr_solve_plan *plan, dpcri_arena *arena, dpcri_sweep_space *space) {
    const dpcr_steps *steps = &plan->steps;
    const size_t real = dpcr_dtype_size(steps->dtype);
    const int64_t values = dpcr_transition_values(&plan->transition);
    int64_t states = 0, numbers = 0, scratch = 0;
    if (!dpcri_mul(plan->window, steps->batch, &states)) arena->overflow = true;
    const int64_t pieces = pieces_of(plan);
    const int64_t tasks = is_fused(plan)                    ? row_tasks(plan, steps->batch)
                          : pieces < DPCRI_EVALUATION_TASKS ? pieces
                                                            : DPCRI_EVALUATION_TASKS;
    space->f = dpcri_arena_take(arena, dpcri_mul(states, steps->width, &numbers) ? numbers : -1, real);
    space->r = dpcri_arena_take(arena, numbers, real);
    const int64_t kept = is_fused(plan) ? row_tasks(plan, steps->batch) * plan->piece * plan->back_block : states;
    space->a = dpcri_arena_take(arena, dpcri_mul(kept, values, &numbers) ? numbers : -1, real);
    // picard's scalars are not taken from a Jacobian; every other structure that is not J's own is
    const bool extracted = !has_own_jacobian(plan) && needs_jacobian(plan);
    if (extracted && !dpcri_mul(tasks * plan->piece * steps->batch, dpcr_transition_values(&steps->jacobian), &scratch))
        arena->overflow = true;
    space->dense = dpcri_arena_take(arena, scratch, real);
    space->good = dpcri_arena_take(arena, pieces * steps->batch, sizeof(int64_t));
    space->delta_good = dpcri_arena_take(arena, pieces * steps->batch, sizeof(int64_t));
    space->worst = dpcri_arena_take(arena, pieces * steps->batch, sizeof(double));
    space->estimate = dpcri_arena_take(arena, pieces * steps->batch, sizeof(double));
    space->front_bad = dpcri_arena_take(arena, pieces * steps->batch, 1);
    space->until = dpcri_arena_take(arena, steps->batch, sizeof(int64_t));
    space->carry = dpcri_arena_take(arena, steps->batch * steps->width, real);
    space->partial = dpcri_arena_take(arena, steps->batch, 1);
    space->reset = dpcri_arena_take(arena, steps->batch, sizeof(void *));
    space->masked = dpcri_arena_take(arena, steps->batch, sizeof(int64_t));
    space->filled = dpcri_arena_take(arena, steps->batch, sizeof(int64_t));
    space->active = dpcri_arena_take(arena, steps->batch, 1);
    space->units = NULL;
    if (steps->kinks == DPCR_KINKS_AFFINE && is_confirmed(plan))
        space->units = dpcri_arena_take(arena, states, sizeof *space->units);
    space->crept = dpcri_arena_take(arena, steps->batch, sizeof *space->crept);
    size_t linear = 0;
    if (values) {
        const dpcri_linear shape = {
            .transition = plan->transition, .dtype = steps->dtype, .length = plan->window, .rows = steps->batch};
        linear = dpcri_linear_workspace(&shape, &plan->linear);
        if (linear == SIZE_MAX) arena->overflow = true, linear = 0;
    }
    space->linear = dpcri_arena_take(arena, (int64_t)linear, 1);
}

// Window buffers hold step l at slot l - lo; rows as in the batch.
static dpcr_array buffer_view(const sweep *s, void *data, int64_t width, int64_t first, int64_t count) {
    const int64_t shape[3] = {s->plan->window, s->plan->steps.batch, width};
    const dpcr_array whole = dpcr_array_make(data, s->plan->steps.dtype, 3, shape);
    return dpcri_slice(&whole, first - s->lo, count, s->row, s->rows);
}

static dpcr_array transitions_view(const sweep *s, int64_t first, int64_t count) {
    if (!s->slot) return buffer_view(s, s->space.a, s->values, first, count);
    const int64_t shape[3] = {s->plan->piece, s->plan->back_block, s->values};
    const dpcr_array whole = dpcr_array_make(s->slot, s->plan->steps.dtype, 3, shape);
    return dpcri_slice(&whole, first - s->slot_first, count, 0, s->rows);
}

// F and A of steps [first, first + count); first = 0 only with count = 1.
static int evaluate_steps(sweep *s, int64_t first, int64_t count, void *dense) {
    const dpcr_steps *steps = &s->plan->steps;
    const dpcr_array in = dpcri_inputs(&s->run->t, first, count, s->row, s->rows);
    const dpcr_array f = buffer_view(s, s->space.f, steps->width, first, count);
    const dpcr_array a = transitions_view(s, first, count);
    dpcr_span span = dpcri_span(first, count, 1, 1, s->row, s->rows);
    span.active = s->space.active + s->row;
    int code = 0;
    if (!s->needs_jacobian) {
        code = dpcri_advance(steps, &span, &in, NULL, &f, NULL);
        if (s->values) s->ops->fill(&a, 1);  // picard: A = I, kept as scalars so that single steps can be cut
    } else if (s->own_jacobian) {
        code = steps->linearise(steps->user, &span, &in, &f, &a);
    } else {
        const int64_t shape[3] = {count, s->rows, dpcr_transition_values(&steps->jacobian)};
        const dpcr_array j = dpcr_array_make(dense, steps->dtype, 3, shape);
        code = steps->linearise(steps->user, &span, &in, &f, &j);
        s->ops->extract(&steps->jacobian, &j, &s->plan->transition, &a);
    }
    if (code > 0) {  // recoverable: the span counts as not finite
        s->ops->fill(&f, NAN);
        code = 0;
    }
    return code;
}

// Steps [first, last) of the window's i-th piece. Pieces lie at multiples of their size, so the first and the last may
// be cut.
typedef struct piece_steps {
    int64_t first, last;
} piece_steps;

static piece_steps piece_at(const sweep *s, int64_t i) {
    const int64_t begin = (s->lo / s->plan->piece + i) * s->plan->piece, end = begin + s->plan->piece;
    return (piece_steps){begin > s->lo ? begin : s->lo, end < s->hi ? end : s->hi};
}

// Of a number's terms, which a step that is itself so many steps rounds as often: at random.
static double rounding_part(const dpcr_solve_plan *plan) {
    const double unit = plan->steps.dtype == DPCR_F64 ? 0x1p-53 : 0x1p-24;
    return 16 * unit * sqrt((double)(plan->steps_within > 1 ? plan->steps_within : 1));
}

static dpcr_array terms_view(const sweep *s, int64_t first, int64_t count) {
    const int64_t shape[3] = {s->plan->steps.length, s->plan->steps.batch, s->plan->steps.width};
    const dpcr_array whole = dpcr_array_make(s->plan->terms, s->plan->steps.dtype, 3, shape);
    return s->plan->terms ? dpcri_slice(&whole, first, count, s->row, s->rows) : whole;
}

static void evaluate_piece(sweep *s, int64_t i, void *dense) {
    const int64_t first = piece_at(s, i).first, last = piece_at(s, i).last;
    int code = 0;
    int64_t l = first;
    if (l == 0) code = evaluate_steps(s, l++, 1, dense);
    if (code >= 0 && l < last) code = evaluate_steps(s, l, last - l, dense);
    if (code < 0) {
        *s->code = code;
        return;
    }
    const dpcr_solve_options *options = &s->plan->options;
    const dpcr_array f = buffer_view(s, s->space.f, s->plan->steps.width, first, last - first);
    const dpcr_array r = buffer_view(s, s->space.r, s->plan->steps.width, first, last - first);
    const dpcr_array a = transitions_view(s, first, last - first);
    const dpcr_array z = dpcri_outputs(&s->run->t, first, last - first, s->row, s->rows);
    const int64_t at = i * s->plan->steps.batch + s->row;
    const double damping = options->method == DPCR_METHOD_DAMPED ? options->damping : 1;
    const dpcri_rounding rounding = {.transition = s->plan->transition,
                                     .part = rounding_part(s->plan),
                                     .before = dpcri_inputs(&s->run->t, first, 1, s->row, s->rows),
                                     .more = terms_view(s, first, last - first),
                                     .units = s->verifying ? NULL : s->space.units,
                                     .window = s->plan->window,
                                     .batch = s->plan->steps.batch,
                                     .row = s->row};
    s->ops->residual(&f, &z, &r, &a, s->values, first, s->space.masked + s->row, options->atol, options->rtol,
                     options->step_scale, damping, s->kinked ? &rounding : NULL, s->space.good + at,
                     s->space.worst + at, s->space.front_bad + at);
}

static int64_t piece_count(const sweep *s) { return (s->hi - 1) / s->plan->piece - s->lo / s->plan->piece + 1; }

static void evaluate_task(void *argument, int64_t task) {
    sweep *s = argument;
    const dpcr_steps *steps = &s->plan->steps;
    const size_t dense = (size_t)(s->plan->piece * steps->batch * dpcr_transition_values(&steps->jacobian)) *
                         dpcr_dtype_size(steps->dtype);
    for (int64_t i = task; i < piece_count(s) && !dpcri_watch_stopped(s->watch); i += DPCRI_EVALUATION_TASKS)
        evaluate_piece(s, i, (char *)s->space.dense + (size_t)task * dense);
}

// Of the corrections of steps [first, first + count): that of a step's state by what takes it.
static dpcr_array growth_view(const sweep *s, int64_t first, int64_t count) {
    const int64_t shape[3] = {s->plan->steps.length + 1, s->plan->steps.batch, 1};
    const dpcr_array whole = dpcr_array_make((void *)s->plan->growth, DPCR_F64, 3, shape);
    return dpcri_slice(&whole, first + 1, count, s->row, s->rows);
}

static void update_piece(void *argument, int64_t task) {
    sweep *s = argument;
    const int64_t first = piece_at(s, task).first, last = piece_at(s, task).last;
    const dpcr_array f = buffer_view(s, s->space.f, s->plan->steps.width, first, last - first);
    const dpcr_array r = buffer_view(s, s->space.r, s->plan->steps.width, first, last - first);
    const dpcr_array z = dpcri_outputs(&s->run->t, first, last - first, s->row, s->rows);
    const int64_t at = task * s->plan->steps.batch + s->row;
    const bool mean = s->plan->options.lock == DPCR_LOCK_MEAN_SQUARE;
    const dpcr_array growth = growth_view(s, first, last - first);
    const dpcri_hold_of hold = s->kinked              ? DPCRI_HOLD_CONFIRMED  // beyond a kink an update is no good
                               : s->confirmed || mean ? DPCRI_HOLD_NONE
                                                      : DPCRI_HOLD_ALL;
    s->ops->update(&z, &f, &r, first, s->space.masked + s->row, s->space.reset + s->row, s->space.until + s->row, hold,
                   mean, s->plan->options.atol, s->plan->options.rtol, s->plan->options.step_scale,
                   s->plan->growth ? &growth : NULL, s->space.delta_good + at, s->space.estimate + at);
}

// Leading steps of the window for which a per-piece count says good, for sequence b.
static int64_t leading(const sweep *s, const int64_t *good, int64_t b) {
    int64_t total = 0;
    for (int64_t i = 0; i < piece_count(s); i++) {
        const int64_t count = piece_at(s, i).last - piece_at(s, i).first;
        const int64_t here = good[i * s->plan->steps.batch + b];
        total += here;
        if (here < count) break;
    }
    return total;
}

static double largest(const sweep *s, const double *values, int64_t b) {
    double most = 0;
    for (int64_t i = 0; i < piece_count(s); i++) most = fmax(most, values[i * s->plan->steps.batch + b]);
    return most;
}

// delta_l = A_l delta_{l-1} + r_l over [first, last) of the group, in place of r; carry [rows][w] is delta_{first-1} or
// NULL.
static void solve_steps(const sweep *s, int64_t first, int64_t last, const void *carry, int64_t carry_row) {
    const dpcr_array a = transitions_view(s, first, last - first);
    const dpcr_array r = buffer_view(s, s->space.r, s->plan->steps.width, first, last - first);
    const dpcri_linear linear = {
        .transition = s->plan->transition,
        .dtype = s->plan->steps.dtype,
        .length = last - first,
        .rows = s->rows,
        .first = first,
        .a = a.data,
        .a_step = a.strides[0],
        .a_row = a.strides[1],
        .b = r.data,
        .b_step = r.strides[0],
        .b_row = r.strides[1],
        .z = r.data,
        .z_step = r.strides[0],
        .z_row = r.strides[1],
        .z0 = carry,
        .z0_row = carry_row,
        .watch = s->watch,
    };
    dpcri_linear_solve(s->plan->context, &linear, &s->plan->linear, s->space.linear, NULL);
}

// The window, piece by piece, for one block of sequences; A of a piece is used while it is in cache.
static void sweep_rows(sweep *s, int64_t block, int64_t task, const void *carry, int64_t carry_row) {
    const int64_t row_block = s->plan->back_block, offset = block * row_block, batch = s->plan->steps.batch;
    const size_t real = dpcr_dtype_size(s->plan->steps.dtype);
    const size_t slot = (size_t)(s->plan->piece * row_block * s->values) * real;
    const size_t dense = (size_t)(s->plan->piece * batch * dpcr_transition_values(&s->plan->steps.jacobian)) * real;
    sweep mine = *s;
    mine.row = s->row + offset;
    mine.rows = s->rows - offset < row_block ? s->rows - offset : row_block;
    mine.slot = (char *)s->space.a + (size_t)task * slot;
    if (carry) carry = (const char *)carry + (size_t)(offset * carry_row) * real;
    for (int64_t i = 0; i < piece_count(s); i++) {
        const int64_t first = piece_at(s, i).first, last = piece_at(s, i).last;
        mine.slot_first = first;
        evaluate_piece(&mine, i, (char *)s->space.dense + (size_t)task * dense);
        if (*s->code < 0 || dpcri_watch_stopped(s->watch)) return;
        solve_steps(&mine, first, last, carry, carry_row);
        const dpcr_array r = buffer_view(&mine, s->space.r, s->plan->steps.width, last - 1, 1);
        carry = r.data, carry_row = r.strides[1];
    }
}

typedef struct fused_job {
    sweep *s;
    const void *carry;
    int64_t carry_row;
} fused_job;

static void fused_task(void *argument, int64_t task) {
    const fused_job *job = argument;
    const int64_t blocks = (job->s->rows + job->s->plan->back_block - 1) / job->s->plan->back_block;
    const int64_t tasks = row_tasks(job->s->plan, job->s->rows);
    for (int64_t block = task; block < blocks; block += tasks)
        sweep_rows(job->s, block, task, job->carry, job->carry_row);
}

// F, A and r of the window, then delta in r's place; carry as for solve_steps. Adds the seconds of both parts.
static dpcr_status evaluate_and_solve(sweep *s, const void *carry) {
    dpcr_solve_report *report = s->run->report;
    const dpcr_steps *steps = &s->plan->steps;
    const double states = (double)(s->hi - s->lo) * (double)s->rows,
                 flops = states * (steps->flops + steps->jacobian_flops);
    const double linear = states * (double)steps->width * dpcr_transition_apply_flops(&s->plan->transition);
    dpcri_watch watch;
    s->watch = dpcri_watch_begin(&watch, s->plan->context, dpcri_flops_to_watch(steps, flops) + linear);
    dpcri_lap(s->run);
    if (is_fused(s->plan)) {
        fused_job job = {s, carry, steps->width};
        dpcri_for_tasks(s->plan, flops, row_tasks(s->plan, s->rows), fused_task, &job);
    } else {
        dpcri_for_tasks(s->plan, flops,
                        piece_count(s) < DPCRI_EVALUATION_TASKS ? piece_count(s) : DPCRI_EVALUATION_TASKS,
                        evaluate_task, s);
    }
    for (int64_t b = s->row; b < s->row + s->rows; b++)
        if (s->space.active[b]) report->evaluations += s->hi - s->lo;
    report->seconds_evaluate += dpcri_lap(s->run);
    if (!is_fused(s->plan) && s->values && *s->code >= 0) solve_steps(s, s->lo, s->hi, carry, steps->width);
    report->seconds_linear += dpcri_lap(s->run);
    const bool stopped = dpcri_watch_stopped(s->watch);
    s->watch = NULL;
    if (stopped) return dpcri_fail_stopped(s->run->error, "solve");
    return dpcri_callback_status(s->run, s->needs_jacobian ? "linearise" : "advance", *s->code);
}

// Counts what the residuals say: which sequences go on, which prefix is within tolerance. Returns the largest residual.
static double judge_residuals(sweep *s) {
    dpcri_run *run = s->run;
    double worst = 0;
    for (int64_t b = s->row; b < s->row + s->rows; b++) {
        if (!s->space.active[b]) continue;
        const int64_t good = s->lo + leading(s, s->space.good, b);
        s->space.until[b] = good;
        const double here = largest(s, s->space.worst, b);
        worst = fmax(worst, here);
        run->last_residual[b] = here;
        run->work[b] += s->hi - run->front[b];
        const bool mean = s->plan->options.lock == DPCR_LOCK_MEAN_SQUARE;
        if (mean || good < s->hi || s->hi < s->plan->steps.length) run->sweeps[b]++;
        for (int64_t i = 0; i < piece_count(s); i++)
            if (s->space.front_bad[i * s->plan->steps.batch + b]) run->reason[b] = DPCR_REASON_NONFINITE;
    }
    run->residual = worst;
    return worst;
}

static bool has_finite_value(const sweep *s, int64_t l, int64_t b) {
    const dpcr_array f = buffer_view(s, s->space.f, s->plan->steps.width, l, 1);
    const void *value = dpcri_state_at(&f, 0, b - s->row);
    return isfinite(s->ops->distance(value, value, s->plan->steps.width));
}

// Rounding took more than is allowed from the sum that step l's state is.
static bool is_drowned(const sweep *s, int64_t l, int64_t b) {
    const dpcr_steps *steps = &s->plan->steps;
    const dpcr_array delta = buffer_view(s, s->space.r, steps->width, l, 1);
    const void *z = dpcri_state_at(&s->run->t.z, l, b), *d = dpcri_state_at(&delta, 0, b - s->row);
    const double *scale = s->plan->options.step_scale, limit = (scale ? scale[l] : 1) * s->plan->options.atol;
    const double eps = steps->dtype == DPCR_F32 ? 0x1p-24 : 0x1p-53;
    for (int64_t i = 0; i < steps->width; i++) {
        const double sum = fabs(dpcri_state_get(steps->dtype, z, i)), part = fabs(dpcri_state_get(steps->dtype, d, i));
        if (eps * fmax(sum, part) > limit) return true;
    }
    return false;
}

// ParaDiGMS: past the steps whose corrections were small, and the next, which those steps made: but for rounding, so
// not where bits are asked for, and as its step made it where the sum is rounded by more than is allowed.
static int64_t mean_lock(const sweep *s, int64_t b) {
    const int64_t small = s->lo + leading(s, s->space.delta_good, b);
    if (small == s->hi || s->plan->options.atol == 0 || !has_finite_value(s, small, b)) return small;
    if (is_drowned(s, small, b)) {
        const dpcr_array f = buffer_view(s, s->space.f, s->plan->steps.width, small, 1);
        memcpy(dpcri_state_at(&s->run->t.z, small, b), dpcri_state_at(&f, 0, b - s->row),
               (size_t)s->plan->steps.width * dpcr_dtype_size(s->plan->steps.dtype));
    }
    return small + 1;
}

// Leaves sequence b, to be finished in order.
static void give_up(sweep *s, int64_t b) {
    const bool open = s->plan->options.no_fallback != 0;
    s->run->reason[b] = open ? DPCR_REASON_NOT_CONVERGED : DPCR_REASON_FALLBACK;
    s->space.active[b] = 0;
    if (open && s->plan->options.guess == DPCR_GUESS_STATE)
        dpcri_hold(s->run, b, NULL, s->space.filled[b], s->plan->steps.length);
}

// Of sequence b; what lies behind the window may not have been guessed yet.
static double largest_number(const sweep *s, int64_t b) {
    const dpcr_steps *steps = &s->plan->steps;
    double most = 0;
    for (int64_t l = 0; l < s->hi; l++)
        for (int64_t i = 0; i < steps->width; i++)
            most = fmax(most, fabs(dpcri_state_get(steps->dtype, dpcri_state_at(&s->run->t.z, l, b), i)));
    return most;
}

// Behind kinks a chain may settle a step a sweep, where all residuals are within tolerance: for so many sweeps.
enum { CREEPS = 8 };

// Of sequence b, which a sweep has brought on by `moved` steps. Residuals of small chains count beside their numbers.
static bool creeps(sweep *s, int64_t b, int64_t moved) {
    const dpcr_solve_options *o = &s->plan->options;
    const double far = s->run->last_residual[b], within = o->atol + o->rtol;
    const bool ahead = s->hi - s->run->front[b] + moved > 2 * CREEPS;
    const bool crept = s->kinked && !o->no_fallback && ahead && moved <= 2 && far <= within;
    s->space.crept[b] = crept ? s->space.crept[b] + 1 : 0;
    if (s->space.crept[b] < CREEPS) return false;
    s->space.crept[b] = 0;
    return far <= within * fmin(1, largest_number(s, b));
}

// Moves the fronts, after the update.
static void lock_prefixes(sweep *s) {
    dpcri_run *run = s->run;
    const bool mean = s->plan->options.lock == DPCR_LOCK_MEAN_SQUARE;
    for (int64_t b = s->row; b < s->row + s->rows; b++) {
        if (!s->space.active[b] || run->reason[b]) continue;
        const double estimate = largest(s, s->space.estimate, b);
        int64_t lock = s->space.until[b];
        bool held = !mean && !s->confirmed && lock > run->front[b];
        if (s->confirmed) {
            const bool complete = lock == s->hi;
            const int64_t confirmed = s->lo + leading(s, s->space.delta_good, b), front = run->front[b];
            held = s->kinked && lock > front && confirmed > front;
            if (complete && confirmed < lock && estimate >= 0.5 * run->last_estimate[b])
                run->residual_only[b] = 1;  // rounding: no further sweep would make the correction smaller
            else if (confirmed < lock)
                lock = confirmed;
            if (lock == s->hi) run->estimate = fmax(run->estimate, estimate);
            run->last_estimate[b] = complete && lock < s->hi ? estimate : HUGE_VAL;
            // Nobody has said yet how many times the correction of the window's last state counts.
            if (s->plan->growth && lock == s->hi && lock < s->plan->steps.length && lock > run->front[b] + 1) lock--;
        } else {
            run->residual_only[b] = 1;
        }
        if (mean) lock = mean_lock(s, b);
        const bool exact = s->plan->options.atol == 0 && s->plan->options.rtol == 0;
        if (run->exact[b] == run->front[b] && !held) run->exact[b]++;  // F of a state with the loop's bits
        const int64_t was = run->front[b];
        run->front[b] = lock > was ? lock : was + 1;
        if (exact) run->exact[b] = run->front[b];
        if (run->front[b] >= s->plan->steps.length) {
            // Where the last step is that of an exact state, no estimate was within the tolerance that could be told.
            const bool whole = exact || (s->confirmed && lock < run->front[b] && run->exact[b] == run->front[b]);
            run->reason[b] = whole                         ? DPCR_REASON_EXACT
                             : s->plan->options.step_scale ? DPCR_REASON_SCALED
                             : run->residual_only[b]       ? DPCR_REASON_RESIDUAL_ONLY
                                                           : DPCR_REASON_CONVERGED;
            run->locked[b] = run->front[b];
            run->last_estimate[b] = estimate;  // no round is to come that would compare it
            s->space.active[b] = 0;
        } else {
            s->space.partial[b] = 1;
            if (creeps(s, b, run->front[b] - was)) give_up(s, b);
        }
    }
}

// One round for the group at work.
static dpcr_status sweep_group(sweep *s) {
    dpcri_run *run = s->run;
    for (int64_t b = s->row; b < s->row + s->rows; b++) {
        s->space.masked[b] = s->space.active[b] ? run->front[b] : s->plan->steps.length;
        s->space.reset[b] = dpcri_inputs(&run->t, run->front[b] < s->hi ? run->front[b] : 0, 1, b, 1).data;
    }
    const dpcr_status status = evaluate_and_solve(s, NULL);
    if (status != DPCR_OK) return status;
    const double worst = judge_residuals(s);
    for (int64_t b = s->row; b < s->row + s->rows; b++)  // a sequence that leaves the finite numbers is left as it is
        if (run->reason[b] == DPCR_REASON_NONFINITE) s->space.active[b] = 0, s->space.masked[b] = s->plan->steps.length;
    const double states = (double)(s->hi - s->lo) * (double)s->rows;
    dpcri_for_tasks(s->plan, states * 8 * (double)s->plan->steps.width, piece_count(s), update_piece, s);
    lock_prefixes(s);
    dpcri_record_sweep(run, worst, run->last_residual);
    run->report->seconds_evaluate += dpcri_lap(run);
    return DPCR_OK;
}

typedef struct guess_job {
    dpcri_run *run;
    const void *zero;
    int64_t piece;
    _Atomic int code;
} guess_job;

static void guess_piece(void *argument, int64_t task) {
    guess_job *job = argument;
    const dpcr_steps *steps = &job->run->plan->steps;
    const int64_t first = task * job->piece, left = steps->length - first;
    const int64_t count = left < job->piece ? left : job->piece;
    dpcr_array in = dpcri_inputs(&job->run->t, 0, count, 0, steps->batch);
    in.strides[0] = 0;  // every lane starts from the same state
    if (job->zero) {
        in.data = (void *)job->zero;
        in.strides[1] = 0;
    }
    const dpcr_array out = dpcri_outputs(&job->run->t, first, count, 0, steps->batch);
    const dpcr_span span = dpcri_span(first, count, 1, 1, 0, steps->batch);
    const int code = dpcri_advance(steps, &span, &in, NULL, &out, NULL);
    if (code < 0) job->code = code;
}

dpcr_status dpcri_make_guess(dpcri_run *run, void *zero) {
    const dpcr_steps *steps = &run->plan->steps;
    if (run->plan->options.guess == DPCR_GUESS_GIVEN || run->plan->options.guess == DPCR_GUESS_STATE) return DPCR_OK;
    guess_job job = {.run = run, .piece = run->plan->piece};
    if (run->plan->options.guess == DPCR_GUESS_ZERO) {
        memset(zero, 0, (size_t)steps->width * dpcr_dtype_size(steps->dtype));
        job.zero = zero;
    }
    const int64_t tasks = (steps->length + job.piece - 1) / job.piece;
    const double flops = (double)steps->length * (double)steps->batch * steps->flops;
    if (!dpcri_for_tasks_or_stop(run->plan, flops, tasks, guess_piece, &job))
        return dpcri_fail_stopped(run->error, "solve");
    run->report->evaluations += steps->length * steps->batch;
    return dpcri_callback_status(run, "advance", job.code);
}

// Chooses the next group: with one window over the whole chain all sequences together, masked by their fronts; else the
// first sequence that is not done and its neighbours at the same front, so that no sequence's window depends on
// another's.
static bool next_group(sweep *s) {
    const int64_t length = s->plan->steps.length, batch = s->plan->steps.batch;
    const int64_t *front = s->run->front;
    if (s->plan->window >= length) {
        s->row = 0, s->rows = batch, s->hi = length, s->lo = length;
        for (int64_t b = 0; b < batch; b++)
            if (s->space.active[b] && front[b] < s->lo) s->lo = front[b];
        return s->lo < length;
    }
    int64_t b = 0;
    while (b < batch && !s->space.active[b]) b++;
    if (b == batch) return false;
    s->row = b;
    while (b < batch && s->space.active[b] && front[b] == front[s->row]) b++;
    s->rows = b - s->row;
    s->lo = front[s->row];
    s->hi = s->lo + s->plan->window < length ? s->lo + s->plan->window : length;
    return true;
}

// DPCR_GUESS_STATE: steps that have just come into the window copy the last state before them.
static void fill_entering(sweep *s) {
    if (s->plan->options.guess != DPCR_GUESS_STATE) return;
    for (int64_t b = s->row; b < s->row + s->rows; b++) {
        dpcri_hold(s->run, b, NULL, s->space.filled[b], s->hi);
        if (s->space.filled[b] < s->hi) s->space.filled[b] = s->hi;
    }
}

// Sequences of the group whose budget does not hold another round.
static void spend_budget(sweep *s) {
    const double budget = (double)s->plan->options.max_sweeps * (double)s->plan->steps.length;
    for (int64_t b = s->row; b < s->row + s->rows; b++)
        if (s->space.active[b] && (double)(s->run->work[b] + s->hi - s->run->front[b]) > budget + 0.5) give_up(s, b);
}

static bool any_active(const sweep *s) {
    for (int64_t b = s->row; b < s->row + s->rows; b++)
        if (s->space.active[b]) return true;
    return false;
}

enum { UNSETTLED = 2 };  // in the place of `partial`: beyond a kink a residual is more than rounding

// Evaluates the window and solves for the correction of every step of it, locked or not, given that of the step before.
static dpcr_status verify_window(sweep *s, double *estimate) {
    const dpcr_steps *steps = &s->plan->steps;
    const dpcr_status status = evaluate_and_solve(s, s->lo ? s->space.carry : NULL);
    if (status != DPCR_OK) return status;
    const int64_t shape[3] = {1, steps->batch, steps->width};
    const dpcr_array carry = dpcr_array_make(s->space.carry, steps->dtype, 3, shape);
    const dpcr_array delta = buffer_view(s, s->space.r, steps->width, s->lo, s->hi - s->lo);
    const dpcr_array z = dpcri_outputs(&s->run->t, s->lo, s->hi - s->lo, 0, steps->batch);
    const dpcr_array growth = growth_view(s, s->lo, s->hi - s->lo);
    s->ops->measure(&z, &delta, s->plan->growth ? &growth : NULL, estimate, &carry);
    for (int64_t b = 0; s->kinked && b < steps->batch; b++)
        if (s->lo + leading(s, s->space.good, b) < s->hi) s->space.partial[b] = UNSETTLED;
    return DPCR_OK;
}

// What the estimates say of the whole chain; sequences that one round confirmed have had theirs. Two correctly rounded
// loops differ by rounding errors that walk at random on a chain that keeps them; what exceeds that comes from
// amplification, and then only the loop itself is right.
static void judge_estimates(sweep *s, const double *estimate) {
    dpcri_run *run = s->run;
    const dpcr_solve_options *o = &s->plan->options;
    const double eps = s->plan->steps.dtype == DPCR_F64 ? 2.2e-16 : 1.2e-7;
    const double tolerance = o->atol + o->rtol, floor = 8 * eps * sqrt((double)s->plan->steps.length);
    run->estimate = -1;
    for (int64_t b = 0; b < s->plan->steps.batch; b++) {
        if (!s->space.active[b]) {
            if (run->reason[b] == DPCR_REASON_CONVERGED) run->estimate = fmax(run->estimate, estimate[b]);
            continue;
        }
        if (estimate[b] <= tolerance && s->space.partial[b] != UNSETTLED) {
            run->reason[b] = DPCR_REASON_CONVERGED;
        } else if (estimate[b] <= tolerance + floor) {
            run->reason[b] = DPCR_REASON_RESIDUAL_ONLY;
        } else {
            run->reason[b] = o->no_fallback ? DPCR_REASON_NOT_CONVERGED : DPCR_REASON_FALLBACK;
            run->front[b] = run->exact[b];
            if (!o->no_fallback) continue;  // the loop will be right
        }
        run->estimate = fmax(run->estimate, estimate[b]);
    }
}

// A prefix that was locked on the way is taken as exact by the sweeps that follow, so their corrections say nothing of
// what became of its own error. One more linear solve over the whole chain, nothing cut, does; only where Newton's J is
// at hand.
static dpcr_status verify(sweep *s) {
    const dpcr_steps *steps = &s->plan->steps;
    bool any = false;
    if (!s->confirmed) return DPCR_OK;
    for (int64_t b = 0; b < steps->batch; b++) {
        const int reason = s->run->reason[b];
        const bool claimed = reason == DPCR_REASON_CONVERGED || reason == DPCR_REASON_RESIDUAL_ONLY;
        s->space.active[b] = claimed && (s->space.partial[b] || s->run->residual_only[b]);
        s->space.masked[b] = s->space.active[b] ? -1 : steps->length;
        if (s->space.active[b]) s->run->last_estimate[b] = 0;
        any = any || s->space.active[b];
    }
    if (!any) return DPCR_OK;
    s->row = 0, s->rows = steps->batch, s->verifying = true;
    for (s->lo = 0; s->lo < steps->length; s->lo = s->hi) {
        s->hi = s->lo + s->plan->window < steps->length ? s->lo + s->plan->window : steps->length;
        const dpcr_status status = verify_window(s, s->run->last_estimate);
        if (status != DPCR_OK) return status;
    }
    judge_estimates(s, s->run->last_estimate);
    return DPCR_OK;
}

dpcr_status dpcri_solve_sweeps(dpcri_run *run) {
    const dpcr_solve_plan *plan = run->plan;
    const dpcr_steps *steps = &plan->steps;
    sweep s = {.run = run,
               .plan = plan,
               .ops = dpcri_row_ops_of(steps->dtype),
               .values = dpcr_transition_values(&plan->transition)};
    dpcri_sweep_carve(plan, &run->arena, &s.space);
    s.needs_jacobian = needs_jacobian(plan);
    s.own_jacobian = has_own_jacobian(plan);
    s.confirmed = is_confirmed(plan);
    s.kinked = s.confirmed && steps->kinks != DPCR_KINKS_NONE;
    _Atomic int code = 0;
    s.code = &code;
    memset(s.space.active, 1, (size_t)steps->batch);
    memset(s.space.partial, 0, (size_t)steps->batch);
    memset(s.space.filled, 0, (size_t)steps->batch * sizeof *s.space.filled);
    memset(s.space.crept, 0, (size_t)steps->batch * sizeof *s.space.crept);
    if (s.space.units) memset(s.space.units, 0, (size_t)(plan->window * steps->batch) * sizeof *s.space.units);
    dpcr_status status = dpcri_make_guess(run, s.space.r);
    while (status == DPCR_OK && next_group(&s)) {
        if (dpcri_cancelled(plan->context)) return dpcri_fail_stopped(run->error, "solve");
        spend_budget(&s);
        if (!any_active(&s)) continue;
        fill_entering(&s);
        status = sweep_group(&s);
    }
    return status == DPCR_OK ? verify(&s) : status;
}
