// SPDX-License-Identifier: MIT
// ParaTAA: k steps substituted into each other with the slopes c_l that are known of them (1 where none are), and
// Anderson mixing whose weights are triangular, so that late steps never reach back:
//
//   r_l = f_l(z_{l-1}) - z_l;    R_l = r_l + c_l r_{l-1} + c_l c_{l-1} r_{l-2} + .., k terms at most, from the front on
//   for every l:  B_l = sum_{s<=l} dR_s dR_s^T,  d_l = sum_{s<=l} dR_s R_s  (over components too; s from the front on),
//                 gamma_l = (B_l + lambda I)^-1 d_l,   z_l += R_l - (dZ_l + dR_l) gamma_l;   the front takes the plain
//                 step
//   front moves past the leading steps with |r_l| <= atol + rtol |z_l|, by one at least
//
// dR, dZ: the last m - 1 differences between sweeps. The substitution starts at the front, or locked values (right to
// the tolerance) and the equations would disagree and the front stall. Order k = all is the frame of sweeps.c with A =
// c I. A shorter one sums in blocks of k: within the block of step l, and over the end of the one before, whose sums
// from each of its steps on are made first. A slope of 0 cuts, whatever lies before it. Work a sweep: W evaluations and
// O(W w m^2), whatever k; memory (2 m + 1) W w numbers a sequence, of the chain's type: differences of states would be
// rounding alone in a narrower one. Source: Tang et al., arXiv 2402.09970 (no code of theirs). docs/diffusion.md.
#include <math.h>
#include <string.h>

#include "rt/watch.h"
#include "solve/state.h"

enum { MEMORY = 4, PASTS = MEMORY - 1 };
#define LAMBDA 1e-3

static const double own_flops = 40;  // that what follows an evaluation takes as long as, a number of a state

typedef struct parataa {
    dpcri_run *run;
    const dpcr_solve_plan *plan;
    const dpcr_steps *steps;
    const dpcri_row_ops *ops;
    dpcr_array f;           // [window][B][w]
    double *change;         // [window][w]: R of the sequence at work
    double *sum;            // [w]: of a block's steps so far
    void *past_z, *past_r;  // [B][m - 1][window][w]: differences, slot (sweep % (m - 1)); by step l % window
    void *old_z, *old_r;    // [B][window][w]: of the last sweep
    int64_t *old_lo, *old_hi, *filled;  // [B]: old_lo .. old_hi - 1 were in the last sweep's window
    int64_t *past_lo, *past_hi;         // [B][PASTS]: the steps that it holds
    int *count;                         // [B]: differences held
    unsigned char *active;
    // the group at work: sequences [row, row + rows), steps [lo, hi)
    int64_t row, rows, lo, hi;
    dpcri_watch *watch;  // over the sweep at work; NULL: soon done
    int64_t look;        // steps of a sequence between two looks at it, beside those at each piece
    _Atomic int code;
} parataa;

static void carve(const dpcr_solve_plan *plan, dpcri_arena *arena, parataa *p) {
    const dpcr_steps *s = &plan->steps;
    const int64_t W = plan->window, w = s->width;
    int64_t states = 0;
    if (!dpcri_mul(W, s->batch * w, &states)) arena->overflow = true;
    const int64_t pasts = plan->options.mixed - 1;
    const size_t real = dpcr_dtype_size(s->dtype);
    p->f = dpcr_array_make(dpcri_arena_take(arena, states, real), s->dtype, 3, (int64_t[]){W, s->batch, w});
    p->change = dpcri_arena_take(arena, W * w, sizeof *p->change);
    p->sum = dpcri_arena_take(arena, w, sizeof *p->sum);
    p->past_z = dpcri_arena_take(arena, pasts * states, real);
    p->past_r = dpcri_arena_take(arena, pasts * states, real);
    p->old_z = dpcri_arena_take(arena, pasts ? states : 0, real);
    p->old_r = dpcri_arena_take(arena, pasts ? states : 0, real);
    p->old_lo = dpcri_arena_take(arena, s->batch, sizeof *p->old_lo);
    p->old_hi = dpcri_arena_take(arena, s->batch, sizeof *p->old_hi);
    p->filled = dpcri_arena_take(arena, s->batch, sizeof *p->filled);
    p->past_lo = dpcri_arena_take(arena, s->batch * PASTS, sizeof *p->past_lo);
    p->past_hi = dpcri_arena_take(arena, s->batch * PASTS, sizeof *p->past_hi);
    p->count = dpcri_arena_take(arena, s->batch, sizeof *p->count);
    p->active = dpcri_arena_take(arena, s->batch, 1);
}

void dpcri_parataa_carve(const dpcr_solve_plan *plan, dpcri_arena *arena) {
    parataa p;
    carve(plan, arena, &p);
}

static int pasts_of(const parataa *p) { return p->plan->options.mixed - 1; }

static void *past_at(const parataa *p, void *of, int64_t b, int slot, int64_t l) {
    const int64_t W = p->plan->window, at = ((b * pasts_of(p) + slot) * W + l % W) * p->steps->width;
    return (char *)of + at * (int64_t)dpcr_dtype_size(p->steps->dtype);
}

static void *old_at(const parataa *p, void *of, int64_t b, int64_t l) {
    const int64_t W = p->plan->window, at = (b * W + l % W) * p->steps->width;
    return (char *)of + at * (int64_t)dpcr_dtype_size(p->steps->dtype);
}

static void *state(const parataa *p, int64_t l, int64_t b) {
    return l < 0 ? (char *)p->run->t.z0.data + b * p->run->t.z0.strides[0] * (int64_t)dpcr_dtype_size(p->steps->dtype)
                 : dpcri_state_at(&p->run->t.z, l, b);
}

static const void *value(const parataa *p, int64_t l, int64_t b) { return dpcri_state_at(&p->f, l - p->lo, b); }

static double slope(const parataa *p, int64_t l) { return p->steps->slopes ? p->steps->slopes[l] : 1; }

// c x, where 0 stays 0: a slope of 0 forgets what is infinite, and what is right stays right by an infinite slope.
static double times(double c, double x) { return c == 0 || x == 0 ? 0 : c * x; }

static double residual(dpcr_dtype dtype, const void *f, const void *z, int64_t i) {
    const double r = dpcri_state_get(dtype, f, i) - dpcri_state_get(dtype, z, i);
    return isfinite(r) ? r : 0;
}

// Whether the caller says stop; looks once in so many steps. What is left of the sweep may then be left out.
static bool heard(const parataa *p, int64_t l) { return p->watch && l % p->look == 0 && dpcri_watch_stopped(p->watch); }

// The steps' own residuals decide what is locked next. Returns where that begins.
static int64_t judge(const parataa *p, int64_t b, double *worst) {
    const dpcr_solve_options *o = &p->plan->options;
    const int64_t w = p->steps->width, lo = p->run->front[b], hi = p->hi;
    int64_t good = lo;
    *worst = 0;
    for (int64_t l = lo; l < hi && !heard(p, l); l++) {
        const void *f = value(p, l, b), *z = state(p, l, b);
        const double unit = o->step_scale ? o->step_scale[l] : 1, d = p->ops->distance(f, z, w);
        const bool same = !memcmp(f, z, (size_t)w * dpcr_dtype_size(p->steps->dtype));
        const bool finite = isfinite(p->ops->distance(f, f, w));  // else its turn at the front will tell
        if (good == l && finite && (same || p->ops->close(f, z, w, unit * o->atol, unit * o->rtol))) good++;
        if (!same && !(d <= *worst)) *worst = d;
    }
    return good;
}

// To `change` of a block's step l: what the steps from l - k + 1 on and before the block come to at its start.
static void bring_in(const parataa *p, int64_t b, int64_t begin, int64_t end) {
    const dpcr_dtype dtype = p->steps->dtype;
    const int64_t w = p->steps->width, lo = p->run->front[b], order = p->plan->options.order;
    double product = 1;  // c_{j+1} .. c_{begin-1}
    for (int64_t i = 0; i < w; i++) p->sum[i] = 0;
    for (int64_t j = begin - 1; j > begin - order && !heard(p, j); j--) {
        const void *f = value(p, j, b), *z = state(p, j, b);
        const int64_t l = j + order - 1;
        for (int64_t i = 0; i < w; i++) {
            p->sum[i] += times(product, residual(dtype, f, z, i));
            if (l < end) p->change[(l - lo) * w + i] = p->sum[i];
        }
        product = times(product, slope(p, j));
    }
}

// R of a block: r_l + c_l r_{l-1} + .. from its first step on, and what was brought in.
static void sum_block(const parataa *p, int64_t b, int64_t begin, int64_t end) {
    const dpcr_dtype dtype = p->steps->dtype;
    const int64_t w = p->steps->width, lo = p->run->front[b], order = p->plan->options.order;
    double product = 1;  // c_begin .. c_l
    for (int64_t l = begin; l < end && !heard(p, l); l++) {
        const void *f = value(p, l, b), *z = state(p, l, b);
        const double c = slope(p, l);
        const bool more = begin > lo && l - begin < order - 1;
        double *R = p->change + (l - lo) * w;
        product = times(product, c);
        for (int64_t i = 0; i < w; i++) {
            p->sum[i] = residual(dtype, f, z, i) + (l > begin ? times(c, p->sum[i]) : 0);
            R[i] = p->sum[i] + (more ? times(product, R[i]) : 0);
        }
    }
}

// R of sequence b's window, to `change`. A sum that slides, of which what leaves is taken away, would keep the rounding
// of all that has left, and slopes above 1 let that grow.
static void substitute(const parataa *p, int64_t b) {
    const int64_t lo = p->run->front[b], hi = p->hi, order = p->plan->options.order;
    for (int64_t begin = lo, end; begin < hi; begin = end) {
        end = hi - begin > order ? begin + order : hi;
        if (begin > lo) bring_in(p, b, begin, end);
        sum_block(p, b, begin, end);
    }
}

// gamma = (B + lambda I)^-1 d by elimination; B is symmetric positive.
static void solve_small(int n, double b[PASTS][PASTS], const double *d, double *gamma) {
    double a[PASTS][PASTS + 1] = {0};
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) a[i][j] = b[i][j] + (i == j ? LAMBDA : 0);
        a[i][n] = d[i];
    }
    for (int i = 0; i < n; i++)
        for (int k = i + 1; k < n; k++) {
            const double factor = a[k][i] / a[i][i];
            for (int j = i; j <= n; j++) a[k][j] -= factor * a[i][j];
        }
    for (int i = n - 1; i >= 0; i--) {
        gamma[i] = a[i][n];
        for (int j = i + 1; j < n; j++) gamma[i] -= a[i][j] * gamma[j];
        gamma[i] /= a[i][i];
    }
}

// The differences of this sweep's R and z from the last's, where both had the step.
static void remember(parataa *p, int64_t b) {
    const dpcr_dtype dtype = p->steps->dtype;
    const int pasts = pasts_of(p), sweeps = p->run->sweeps[b];
    const int64_t w = p->steps->width, lo = p->run->front[b], hi = p->hi;
    if (pasts < 1) return;
    const int64_t from = lo > p->old_lo[b] ? lo : p->old_lo[b], to = hi < p->old_hi[b] ? hi : p->old_hi[b];
    const int slot = (sweeps + pasts - 2) % pasts;  // the first differences, of sweep 2, go to slot 0
    for (int64_t l = lo; l < hi && !heard(p, l); l++) {
        const double *R = p->change + (l - lo) * w;
        const void *z = state(p, l, b);
        void *old_r = old_at(p, p->old_r, b, l), *old_z = old_at(p, p->old_z, b, l);
        void *past_r = past_at(p, p->past_r, b, slot, l), *past_z = past_at(p, p->past_z, b, slot, l);
        for (int64_t i = 0; l >= from && l < to && i < w; i++) {
            dpcri_state_set(dtype, past_r, i, R[i] - dpcri_state_get(dtype, old_r, i));
            dpcri_state_set(dtype, past_z, i, dpcri_state_get(dtype, z, i) - dpcri_state_get(dtype, old_z, i));
        }
        for (int64_t i = 0; i < w; i++) dpcri_state_set(dtype, old_r, i, R[i]);
        memcpy(old_z, z, (size_t)w * dpcr_dtype_size(dtype));
    }
    p->past_lo[b * PASTS + slot] = from;
    p->past_hi[b * PASTS + slot] = to;
    if (sweeps > 1 && p->count[b] < pasts) p->count[b]++;
    p->old_lo[b] = lo;
    p->old_hi[b] = hi;
}

static bool holds(const parataa *p, int64_t b, int q, int64_t l) {
    return q < p->count[b] && l >= p->past_lo[b * PASTS + q] && l < p->past_hi[b * PASTS + q];
}

// Steps before `good` stay as their residual was measured.
static void update(parataa *p, int64_t b, int64_t good) {
    const dpcr_dtype dtype = p->steps->dtype;
    const int n = p->run->sweeps[b] > 1 ? p->count[b] : 0;
    const int64_t w = p->steps->width, lo = p->run->front[b], hi = p->hi;
    double matrix[PASTS][PASTS] = {{0}}, d[PASTS] = {0}, gamma[PASTS] = {0};
    for (int64_t l = lo; l < hi && !heard(p, l); l++) {
        void *z = state(p, l, b);
        const double *R = p->change + (l - lo) * w;
        for (int q = 0; q < n; q++) {
            if (!holds(p, b, q, l)) continue;
            const void *x = past_at(p, p->past_r, b, q, l);
            for (int k = 0; k < n; k++) {
                const void *y = holds(p, b, k, l) ? past_at(p, p->past_r, b, k, l) : NULL;
                for (int64_t i = 0; y && i < w; i++)
                    matrix[q][k] += dpcri_state_get(dtype, x, i) * dpcri_state_get(dtype, y, i);
            }
            for (int64_t i = 0; i < w; i++) d[q] += dpcri_state_get(dtype, x, i) * R[i];
        }
        if (l < good) continue;
        if (l == lo) {
            memcpy(z, value(p, l, b), (size_t)w * dpcr_dtype_size(dtype));
            continue;
        }
        if (n) solve_small(n, matrix, d, gamma);
        for (int64_t i = 0; i < w; i++) {
            double next = dpcri_state_get(dtype, z, i) + R[i];
            for (int q = 0; q < n; q++)
                if (holds(p, b, q, l))
                    next -= gamma[q] * (dpcri_state_get(dtype, past_at(p, p->past_z, b, q, l), i) +
                                        dpcri_state_get(dtype, past_at(p, p->past_r, b, q, l), i));
            if (!isfinite(next)) next = dpcri_state_get(dtype, state(p, lo, b), i);
            dpcri_state_set(dtype, z, i, next);
        }
    }
}

// f of one piece of the window; pieces lie at multiples of their size.
static void evaluate_piece(void *argument, int64_t task) {
    parataa *p = argument;
    const int64_t begin = (p->lo / p->plan->piece + task) * p->plan->piece, end = begin + p->plan->piece;
    int64_t l = begin > p->lo ? begin : p->lo;
    const int64_t last = end < p->hi ? end : p->hi;
    while (l < last && !dpcri_watch_stopped(p->watch)) {
        const int64_t count = l == 0 ? 1 : last - l;  // step 0 apart: what goes into it lies elsewhere
        const dpcr_array in = dpcri_inputs(&p->run->t, l, count, p->row, p->rows);
        const dpcr_array f = dpcri_slice(&p->f, l - p->lo, count, p->row, p->rows);
        dpcr_span span = dpcri_span(l, count, 1, 1, p->row, p->rows);
        span.active = p->active + p->row;
        const int code = dpcri_advance(p->steps, &span, &in, NULL, &f, NULL);
        if (code < 0) p->code = code;
        l += count;
    }
}

// One window over the whole chain: all sequences together, each from its own front on. Else those beside each other
// whose fronts are the same, so that no sequence's window depends on another's.
static bool next_group(parataa *p) {
    const int64_t length = p->steps->length, batch = p->steps->batch, *front = p->run->front;
    int64_t b = 0;
    p->lo = p->hi = length;
    while (b < batch && !p->active[b]) b++;
    if (b == batch) return false;
    p->row = b;
    if (p->plan->window >= length) {
        p->row = 0, p->rows = batch;
        for (b = 0; b < batch; b++)
            if (p->active[b] && front[b] < p->lo) p->lo = front[b];
        return true;
    }
    while (b < batch && p->active[b] && front[b] == front[p->row]) b++;
    p->rows = b - p->row;
    p->lo = front[p->row];
    p->hi = p->lo + p->plan->window < length ? p->lo + p->plan->window : length;
    return true;
}

// The window's new entries copy the last state before them.
static void fill_entering(parataa *p, int64_t b) {
    if (p->plan->options.guess != DPCR_GUESS_STATE) return;
    dpcri_hold(p->run, b, NULL, p->filled[b], p->hi);
    if (p->filled[b] < p->hi) p->filled[b] = p->hi;
}

static void end_of(parataa *p, int64_t b) {
    const dpcr_solve_options *o = &p->plan->options;
    const bool exact = o->atol == 0 && o->rtol == 0;
    p->run->reason[b] = exact ? DPCR_REASON_EXACT : o->step_scale ? DPCR_REASON_SCALED : DPCR_REASON_RESIDUAL_ONLY;
    p->run->locked[b] = p->run->front[b] = p->steps->length;
    p->active[b] = 0;
}

static void sweep_sequence(parataa *p, int64_t b) {
    dpcri_run *run = p->run;
    const dpcr_solve_options *o = &p->plan->options;
    const int64_t length = p->steps->length, front = run->front[b];
    const bool exact = o->atol == 0 && o->rtol == 0;
    const double own = p->ops->distance(value(p, front, b), value(p, front, b), p->steps->width);
    run->work[b] += p->hi - front;
    run->sweeps[b]++;
    if (!isfinite(own)) {  // what goes into the front is right: the chain itself leaves the finite numbers
        run->reason[b] = DPCR_REASON_NONFINITE;
        p->active[b] = 0;
        return;
    }
    const int64_t good = judge(p, b, &run->last_residual[b]);
    run->residual = fmax(run->residual, run->last_residual[b]);
    if (good < length) {
        substitute(p, b);
        remember(p, b);
        update(p, b, good);
    } else {
        run->sweeps[b]--;  // a check that found nothing to do
    }
    if (run->exact[b] == front && good == front) run->exact[b]++;  // f of a state with the loop's bits
    run->front[b] = good > front ? good : front + 1;
    if (exact) run->exact[b] = run->front[b];
    if (run->front[b] >= length)
        end_of(p, b);
    else if ((double)(run->work[b] +
                      (length - run->front[b] < p->plan->window ? length - run->front[b] : p->plan->window)) >
             (double)o->max_sweeps * (double)length + 0.5) {
        run->reason[b] = o->no_fallback ? DPCR_REASON_NOT_CONVERGED : DPCR_REASON_FALLBACK;
        p->active[b] = 0;
        if (o->no_fallback && o->guess == DPCR_GUESS_STATE) dpcri_hold(run, b, NULL, p->filled[b], length);
    }
}

// f of the group's window; its sequences that are done are not evaluated.
static dpcr_status evaluate(parataa *p) {
    dpcri_run *run = p->run;
    int64_t rows = 0;
    for (int64_t b = p->row; b < p->row + p->rows; b++) rows += p->active[b];
    dpcri_lap(run);
    dpcri_for_tasks(p->plan, (double)(p->hi - p->lo) * (double)rows * p->steps->flops,
                    (p->hi - 1) / p->plan->piece - p->lo / p->plan->piece + 1, evaluate_piece, p);
    run->report->evaluations += (p->hi - p->lo) * rows;
    run->report->seconds_evaluate += dpcri_lap(run);
    return dpcri_callback_status(run, "advance", p->code);
}

static dpcr_status sweep(parataa *p) {
    dpcri_run *run = p->run;
    const double rows = (double)p->rows, own = own_flops * (double)p->steps->width;
    dpcri_watch watch;
    const double states = (double)(p->hi - p->lo) * rows,
                 flops = dpcri_flops_to_watch(p->steps, states * p->steps->flops);
    p->watch = dpcri_watch_begin(&watch, p->plan->context, flops + states * own);
    p->look = dpcri_watch_steps(own);
    for (int64_t b = p->row; b < p->row + p->rows; b++)
        if (p->active[b]) fill_entering(p, b);
    const dpcr_status status = evaluate(p);
    run->residual = 0;
    for (int64_t b = p->row; b < p->row + p->rows && status == DPCR_OK && !dpcri_watch_stopped(p->watch); b++)
        if (p->active[b]) sweep_sequence(p, b);
    if (dpcri_watch_stopped(p->watch)) return dpcri_fail_stopped(run->error, "solve");
    if (status != DPCR_OK) return status;
    dpcri_record_sweep(run, run->residual, run->last_residual);
    run->report->seconds_linear += dpcri_lap(run);
    return DPCR_OK;
}

dpcr_status dpcri_solve_parataa(dpcri_run *run) {
    parataa p = {
        .run = run, .plan = run->plan, .steps = &run->plan->steps, .ops = dpcri_row_ops_of(run->plan->steps.dtype)};
    carve(run->plan, &run->arena, &p);
    p.code = 0;
    for (int64_t b = 0; b < p.steps->batch; b++) {
        p.active[b] = 1;
        p.count[b] = 0;
        p.old_lo[b] = p.old_hi[b] = p.filled[b] = 0;
        for (int q = 0; q < PASTS; q++) p.past_lo[b * PASTS + q] = p.past_hi[b * PASTS + q] = 0;
    }
    dpcr_status status = dpcri_make_guess(run, p.change);
    while (status == DPCR_OK && next_group(&p)) {
        if (dpcri_cancelled(run->plan->context)) return dpcri_fail_stopped(run->error, "solve");
        status = sweep(&p);
    }
    return status;
}
