// SPDX-License-Identifier: MIT
// ParaTAA: k steps substituted into each other with the slopes c_l that are known of them (1 where none are), and
// Anderson mixing whose weights are triangular, so that late steps never reach back:
//
//   r_l = f_l(z_{l-1}) - z_l;    R_l = r_l + c_l R_{l-1} over the last k steps, from the front on;   R_front = r_front
//   for every l:  B_l = sum_{s<=l} dR_s dR_s^T,  d_l = sum_{s<=l} dR_s R_s  (sums over components too),
//                 gamma_l = (B_l + lambda I)^-1 d_l,   z_l += R_l - (dZ_l + dR_l) gamma_l;   the front takes the plain
//                 step
//   front moves past the leading steps with |r_l| <= atol + rtol |z_l|, by one at least
//
// dR, dZ: the last m - 1 differences between sweeps. The substitution starts at the front, or locked values (right to
// the tolerance) and the equations would disagree and the front stall. Order k = all is the frame of sweeps.c with A =
// c I. Work a sweep: W evaluations and O(W w m); memory (2 m + 1) W w a sequence. Source: Tang et al., arXiv 2402.09970
// (no code of theirs). docs/diffusion.md.
#include <math.h>
#include <string.h>

#include "solve/state.h"

enum { MEMORY = 4, PASTS = MEMORY - 1 };
#define LAMBDA 1e-3

typedef struct parataa {
    dpcri_run *run;
    const dpcr_solve_plan *plan;
    const dpcr_steps *steps;
    const dpcri_row_ops *ops;
    dpcr_array f;            // [window][B][w]
    double *change;          // [window][w]: R of the sequence at work
    float *past_z, *past_r;  // [B][PASTS][window][w]: differences, slot (sweep % (m - 1)); by step l % window
    float *old_z, *old_r;    // [B][window][w]: of the last sweep
    int64_t *old_lo, *old_hi, *filled;  // [B]: old_lo .. old_hi - 1 were in the last sweep's window
    int64_t *past_lo, *past_hi;         // [B][PASTS]: the steps that it holds
    int *count;                         // [B]: differences held
    unsigned char *active;
    // the group at work: sequences [row, row + rows), steps [lo, hi)
    int64_t row, rows, lo, hi;
    _Atomic int code;
} parataa;

static void carve(const dpcr_solve_plan *plan, dpcri_arena *arena, parataa *p) {
    const dpcr_steps *s = &plan->steps;
    const int64_t W = plan->window, w = s->width;
    int64_t states = 0;
    if (!dpcri_mul(W, s->batch * w, &states)) arena->overflow = true;
    const int64_t pasts = plan->options.mixed - 1;
    p->f = dpcr_array_make(dpcri_arena_take(arena, states, dpcr_dtype_size(s->dtype)), s->dtype, 3,
                           (int64_t[]){W, s->batch, w});
    p->change = dpcri_arena_take(arena, W * w, sizeof *p->change);
    p->past_z = dpcri_arena_take(arena, pasts * states, sizeof *p->past_z);
    p->past_r = dpcri_arena_take(arena, pasts * states, sizeof *p->past_r);
    p->old_z = dpcri_arena_take(arena, pasts ? states : 0, sizeof *p->old_z);
    p->old_r = dpcri_arena_take(arena, pasts ? states : 0, sizeof *p->old_r);
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

static float *past_at(const parataa *p, float *of, int64_t b, int slot, int64_t l) {
    return of + ((b * pasts_of(p) + slot) * p->plan->window + l % p->plan->window) * p->steps->width;
}

static float *old_at(const parataa *p, float *of, int64_t b, int64_t l) {
    return of + (b * p->plan->window + l % p->plan->window) * p->steps->width;
}

static void *state(const parataa *p, int64_t l, int64_t b) {
    return l < 0 ? (char *)p->run->t.z0.data + b * p->run->t.z0.strides[0] * (int64_t)dpcr_dtype_size(p->steps->dtype)
                 : dpcri_state_at(&p->run->t.z, l, b);
}

static const void *value(const parataa *p, int64_t l, int64_t b) { return dpcri_state_at(&p->f, l - p->lo, b); }

static double slope(const parataa *p, int64_t l) { return p->steps->slopes ? p->steps->slopes[l] : 1; }

// R of sequence b's window, to `change`; the steps' residuals decide what is locked next. Returns where that begins.
static int64_t substitute(parataa *p, int64_t b, double *worst) {
    const dpcr_solve_options *o = &p->plan->options;
    const dpcr_dtype dtype = p->steps->dtype;
    const int64_t w = p->steps->width, lo = p->run->front[b], hi = p->hi, order = o->order;
    int64_t good = lo;
    *worst = 0;
    for (int64_t l = lo; l < hi; l++) {
        const void *f = value(p, l, b), *z = state(p, l, b);
        const double unit = o->step_scale ? o->step_scale[l] : 1, d = p->ops->distance(f, z, w);
        const bool same = !memcmp(f, z, (size_t)w * dpcr_dtype_size(dtype));
        const bool finite = isfinite(p->ops->distance(f, f, w));  // else its turn at the front will tell
        if (good == l && finite && (same || p->ops->close(f, z, w, unit * o->atol, unit * o->rtol))) good++;
        if (!same && !(d <= *worst)) *worst = d;
        double product = 1;  // of the slopes of the last k steps, for the one that leaves
        const bool leaves = l - lo >= order;
        for (int64_t j = l; leaves && j > l - order; j--) product *= slope(p, j);
        for (int64_t i = 0; i < w; i++) {
            double r = dpcri_state_get(dtype, f, i) - dpcri_state_get(dtype, z, i);
            if (!isfinite(r)) r = 0;
            double sum = r + (l > lo ? slope(p, l) * p->change[(l - 1 - lo) * w + i] : 0);
            if (leaves) {
                const double out = dpcri_state_get(dtype, value(p, l - order, b), i) -
                                   dpcri_state_get(dtype, state(p, l - order, b), i);
                if (isfinite(out)) sum -= product * out;
            }
            p->change[(l - lo) * w + i] = sum;
        }
    }
    return good;
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
    for (int64_t l = from; l < to; l++)
        for (int64_t i = 0; i < w; i++) {
            past_at(p, p->past_r, b, slot, l)[i] =
                (float)(p->change[(l - lo) * w + i] - (double)old_at(p, p->old_r, b, l)[i]);
            past_at(p, p->past_z, b, slot, l)[i] =
                (float)(dpcri_state_get(dtype, state(p, l, b), i) - (double)old_at(p, p->old_z, b, l)[i]);
        }
    p->past_lo[b * PASTS + slot] = from;
    p->past_hi[b * PASTS + slot] = to;
    if (sweeps > 1 && p->count[b] < pasts) p->count[b]++;
    for (int64_t l = lo; l < hi; l++)
        for (int64_t i = 0; i < w; i++) {
            old_at(p, p->old_r, b, l)[i] = (float)p->change[(l - lo) * w + i];
            old_at(p, p->old_z, b, l)[i] = (float)dpcri_state_get(dtype, state(p, l, b), i);
        }
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
    for (int64_t l = lo; l < hi; l++) {
        void *z = state(p, l, b);
        const double *R = p->change + (l - lo) * w;
        if (l == lo && l >= good) {
            memcpy(z, value(p, l, b), (size_t)w * dpcr_dtype_size(dtype));
            continue;
        }
        for (int q = 0; q < n; q++) {
            if (!holds(p, b, q, l)) continue;
            const float *x = past_at(p, p->past_r, b, q, l);
            for (int k = 0; k < n; k++) {
                const float *y = holds(p, b, k, l) ? past_at(p, p->past_r, b, k, l) : NULL;
                for (int64_t i = 0; y && i < w; i++) matrix[q][k] += (double)x[i] * (double)y[i];
            }
            for (int64_t i = 0; i < w; i++) d[q] += (double)x[i] * R[i];
        }
        if (l < good) continue;
        if (n) solve_small(n, matrix, d, gamma);
        for (int64_t i = 0; i < w; i++) {
            double next = dpcri_state_get(dtype, z, i) + R[i];
            for (int q = 0; q < n; q++)
                if (holds(p, b, q, l))
                    next -= gamma[q] *
                            ((double)past_at(p, p->past_z, b, q, l)[i] + (double)past_at(p, p->past_r, b, q, l)[i]);
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
    while (l < last) {  // step 0 apart: what goes into it lies elsewhere
        const int64_t count = l == 0 ? 1 : last - l;
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
    const int64_t good = substitute(p, b, &run->last_residual[b]);
    run->residual = fmax(run->residual, run->last_residual[b]);
    if (good < length) {
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

static dpcr_status sweep(parataa *p) {
    dpcri_run *run = p->run;
    const double states = (double)(p->hi - p->lo) * (double)p->rows;
    dpcri_lap(run);
    for (int64_t b = p->row; b < p->row + p->rows; b++)
        if (p->active[b]) fill_entering(p, b);
    dpcri_for_tasks(p->plan, states * p->steps->flops, (p->hi - 1) / p->plan->piece - p->lo / p->plan->piece + 1,
                    evaluate_piece, p);
    run->report->evaluations += (p->hi - p->lo) * p->rows;
    run->report->seconds_evaluate += dpcri_lap(run);
    const dpcr_status status = dpcri_callback_status(run, "advance", p->code);
    if (status != DPCR_OK) return status;
    run->residual = 0;
    for (int64_t b = p->row; b < p->row + p->rows; b++)
        if (p->active[b]) sweep_sequence(p, b);
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
