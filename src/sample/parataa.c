// SPDX-License-Identifier: MIT
// ParaTAA: k steps substituted into each other with the slopes c_l that they have where the noise estimate stays, and
// Anderson mixing whose weights are triangular, so that late steps never reach back:
//
//   r_l = f_l(z_{l-1}) - z_l;    R_l = r_l + c_l R_{l-1} over the last k steps, from the front on;   R_front = r_front
//   for every l:  B_l = sum_{s<=l} dR_s dR_s^T,  d_l = sum_{s<=l} dR_s R_s  (sums over components too),
//                 gamma_l = (B_l + lambda I)^-1 d_l,   z_l += R_l - (dZ_l + dR_l) gamma_l;   the front takes the plain
//                 step
//   front moves past the leading steps with |r_l| <= tolerance (1 + |z_l|), by one at least
//
// dR, dZ: the last m - 1 differences between sweeps. The substitution starts at the front, or locked values (right to
// the tolerance) and the equations would disagree and the front stall. Order k = all is the frame of solve.h with A = c
// I. Work a sweep: W evaluations and O(W w m); memory (2 m + 1) W w a sequence. Source: Tang et al., arXiv 2402.09970
// (no code of theirs). docs/diffusion.md.
#include <string.h>

#include "sample/sweeping.h"

enum { MEMORY = 4, PASTS = MEMORY - 1 };
#define LAMBDA 1e-3

typedef struct parataa {
    dpcri_sweeping *s;
    int64_t window, row;               // row: numbers of a state of all sequences
    void *f;                           // [window][B][w]
    double *c;                         // [L]
    double *change;                    // [window][w]: R of the sequence at work
    float *past_z, *past_r;            // [B][PASTS][window][w]: differences, slot (sweep % (m - 1)); by step l % window
    float *old_z, *old_r;              // [B][window][w]: of the last sweep
    int64_t *front, *old_lo, *old_hi;  // [B]: old_lo .. old_hi - 1 were in the last sweep's window
    int *count;                        // [B]: differences held
    int64_t *past_lo;                  // [B][PASTS]: steps before it hold nothing
    int64_t *past_hi;
} parataa;

static float *past_at(const parataa *p, float *of, int64_t b, int slot, int64_t l) {
    return of + ((b * PASTS + slot) * p->window + l % p->window) * p->s->width;
}

static float *old_at(const parataa *p, float *of, int64_t b, int64_t l) {
    return of + (b * p->window + l % p->window) * p->s->width;
}

static void *state(const parataa *p, int64_t l, int64_t b) {
    const dpcri_sweeping *s = p->s;
    return l < 0 ? dpcri_state_at(s->dtype, s->z0.data, b * s->width)
                 : dpcri_state_at(s->dtype, s->z.data, (l * s->batch + b) * s->width);
}

static int64_t window_end(const parataa *p, int64_t b) {
    const int64_t end = p->front[b] + p->window;
    return end < p->s->length ? end : p->s->length;
}

// R of sequence b's window, to `change`; the steps' residuals decide what is locked next. Returns where that begins.
static int64_t substitute(parataa *p, int64_t b, int64_t low, double *worst, bool *equal) {
    const dpcri_sweeping *s = p->s;
    const int64_t w = s->width, lo = p->front[b], hi = window_end(p, b), order = s->options.order;
    int64_t good = lo;
    *worst = 0;
    *equal = true;
    for (int64_t l = lo; l < hi; l++) {
        const void *f = dpcri_state_at(s->dtype, p->f, ((l - low) * s->batch + b) * w), *z = state(p, l, b);
        const double d = dpcri_state_distance(s->dtype, f, z, w);
        const bool same = !memcmp(f, z, (size_t)w * dpcr_dtype_size(s->dtype));
        if (good == l && (same || d <= s->options.tolerance)) good++;
        *equal = *equal && same;
        if (!(d <= *worst)) *worst = d;
        double product = 1;  // of the slopes of the last k steps, for the one that leaves
        const bool leaves = l - lo >= order;
        for (int64_t j = l; leaves && j > l - order; j--) product *= p->c[j];
        for (int64_t i = 0; i < w; i++) {
            double r = dpcri_state_get(s->dtype, f, i) - dpcri_state_get(s->dtype, z, i);
            if (!isfinite(r)) r = 0;
            double sum = r + (l > lo ? p->c[l] * p->change[(l - 1 - lo) * w + i] : 0);
            if (leaves) {
                const double out =
                    dpcri_state_get(s->dtype, dpcri_state_at(s->dtype, p->f, ((l - order - low) * s->batch + b) * w),
                                    i) -
                    dpcri_state_get(s->dtype, state(p, l - order, b), i);
                if (isfinite(out)) sum -= product * out;
            }
            p->change[(l - lo) * w + i] = sum;
        }
    }
    return good;
}

// gamma = (B + lambda I)^-1 d by elimination; B is symmetric positive.
static void solve_small(int n, double b[PASTS][PASTS], const double *d, double *gamma) {
    double a[PASTS][PASTS + 1];
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
    const dpcri_sweeping *s = p->s;
    const int pasts = (int)s->options.memory - 1;
    const int64_t w = s->width, lo = p->front[b], hi = window_end(p, b);
    if (pasts < 1) return;
    const int64_t from = lo > p->old_lo[b] ? lo : p->old_lo[b], to = hi < p->old_hi[b] ? hi : p->old_hi[b];
    const int slot = (s->sweeps + pasts - 2) % pasts;  // the first differences, of sweep 2, go to slot 0
    for (int64_t l = from; l < to; l++)
        for (int64_t i = 0; i < w; i++) {
            past_at(p, p->past_r, b, slot, l)[i] =
                (float)(p->change[(l - lo) * w + i] - (double)old_at(p, p->old_r, b, l)[i]);
            past_at(p, p->past_z, b, slot, l)[i] =
                (float)(dpcri_state_get(s->dtype, state(p, l, b), i) - (double)old_at(p, p->old_z, b, l)[i]);
        }
    p->past_lo[b * PASTS + slot] = from;
    p->past_hi[b * PASTS + slot] = to;
    if (s->sweeps > 1 && p->count[b] < pasts) p->count[b]++;
    for (int64_t l = lo; l < hi; l++)
        for (int64_t i = 0; i < w; i++) {
            old_at(p, p->old_r, b, l)[i] = (float)p->change[(l - lo) * w + i];
            old_at(p, p->old_z, b, l)[i] = (float)dpcri_state_get(s->dtype, state(p, l, b), i);
        }
    p->old_lo[b] = lo;
    p->old_hi[b] = hi;
}

static bool holds(const parataa *p, int64_t b, int q, int64_t l) {
    return q < p->count[b] && l >= p->past_lo[b * PASTS + q] && l < p->past_hi[b * PASTS + q];
}

// Steps before `good` stay as their residual was measured.
static void update(parataa *p, int64_t b, int64_t low, int64_t good) {
    const dpcri_sweeping *s = p->s;
    const int n = s->sweeps > 1 ? p->count[b] : 0;
    const int64_t w = s->width, lo = p->front[b], hi = window_end(p, b);
    double matrix[PASTS][PASTS] = {{0}}, d[PASTS] = {0}, gamma[PASTS] = {0};
    for (int64_t l = lo; l < hi; l++) {
        void *z = state(p, l, b);
        const double *R = p->change + (l - lo) * w;
        if (l == lo && l >= good) {
            memcpy(z, dpcri_state_at(s->dtype, p->f, ((l - low) * s->batch + b) * w),
                   (size_t)w * dpcr_dtype_size(s->dtype));
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
            double next = dpcri_state_get(s->dtype, z, i) + R[i];
            for (int q = 0; q < n; q++)
                if (holds(p, b, q, l))
                    next -= gamma[q] *
                            ((double)past_at(p, p->past_z, b, q, l)[i] + (double)past_at(p, p->past_r, b, q, l)[i]);
            if (!isfinite(next)) next = dpcri_state_get(s->dtype, state(p, lo, b), i);
            dpcri_state_set(s->dtype, z, i, next);
        }
    }
}

// f of every step between the first front and the last window's end, sequences at work.
static dpcr_status evaluate(parataa *p, int64_t low, int64_t high) {
    dpcr_status status;
    dpcri_sweeping *s = p->s;
    const int64_t first = low > 0 ? low : 1;
    if (low == 0)
        DPCR_TRY(
            dpcri_sweeping_run(s->sampler, 0, 1, 1, 1, s->z0.data, p->row, NULL, p->f, p->row, s->active, s->error));
    status = first < high ? dpcri_sweeping_run(s->sampler, first, high - first, 1, 1, state(p, first - 1, 0), p->row,
                                               NULL, dpcri_state_at(s->dtype, p->f, (first - low) * p->row), p->row,
                                               s->active, s->error)
                          : DPCR_OK;
done:
    return status;
}

// The rest of sequence b in order.
static dpcr_status finish(parataa *p, int64_t b) {
    dpcri_sweeping *s = p->s;
    const int64_t from = p->front[b];
    unsigned char *mask = dpcri_alloc_zero(s->sampler->context, (size_t)s->batch);  // the others rest
    if (!mask) return dpcri_fail(s->error, DPCR_ERROR_MEMORY, "parataa: no memory for the sequences");
    mask[b] = 1;
    const dpcr_status status =
        dpcri_sweeping_run(s->sampler, from, 1, 1, s->length - from, from ? state(p, from - 1, 0) : s->z0.data, p->row,
                           state(p, from, 0), NULL, p->row, mask, s->error);
    dpcri_free(s->sampler->context, mask);
    dpcri_sweeping_done(s, b, DPCR_REASON_FALLBACK);
    return status;
}

// The window's new entries copy the last state before them.
static void fill(parataa *p, int64_t b, int64_t from, int64_t to) {
    for (int64_t l = from; l < to; l++)
        memcpy(state(p, l, b), state(p, from - 1, b), (size_t)p->s->width * dpcr_dtype_size(p->s->dtype));
}

static dpcr_status sweep(parataa *p) {
    dpcr_status status = DPCR_OK;
    dpcri_sweeping *s = p->s;
    int64_t low = s->length, high = 0;
    for (int64_t b = 0; b < s->batch; b++)
        if (s->active[b]) {
            low = p->front[b] < low ? p->front[b] : low;
            high = window_end(p, b) > high ? window_end(p, b) : high;
        }
    DPCR_TRY(evaluate(p, low, high));
    s->sweeps++;
    s->residual = 0;
    for (int64_t b = 0; b < s->batch; b++) {
        double worst;
        bool equal;
        if (!s->active[b]) continue;
        const int64_t hi = window_end(p, b), good = substitute(p, b, low, &worst, &equal);
        if (!(worst <= s->residual)) s->residual = worst;
        if (good == s->length) {
            dpcri_sweeping_done(s, b, s->options.tolerance == 0 ? DPCR_REASON_EXACT : DPCR_REASON_RESIDUAL_ONLY);
            continue;
        }
        remember(p, b);
        update(p, b, low, good);
        p->front[b] = good > p->front[b] ? good : p->front[b] + 1;
        if (p->front[b] >= s->length) {  // the last step was the front: it has the loop's step
            dpcri_sweeping_done(s, b, s->options.tolerance == 0 ? DPCR_REASON_EXACT : DPCR_REASON_RESIDUAL_ONLY);
            continue;
        }
        fill(p, b, hi, window_end(p, b));
        if (s->sweeps >= s->options.max_sweeps) DPCR_TRY(finish(p, b));
    }
done:
    return status;
}

static dpcr_status take(parataa *p, void *place, int64_t a, int64_t b, size_t element) {
    bool overflow = false;
    const size_t bytes = dpcri_bytes(a, b, (int64_t)element, &overflow);
    void *memory = overflow ? NULL : dpcri_alloc_zero(p->s->sampler->context, bytes);
    if (!memory)
        return dpcri_fail(p->s->error, DPCR_ERROR_MEMORY, "parataa: no memory for %lld x %lld numbers", (long long)a,
                          (long long)b);
    memcpy(place, &memory, sizeof memory);
    return DPCR_OK;
}

static dpcr_status take_all(parataa *p) {
    dpcr_status status;
    const dpcri_sweeping *s = p->s;
    const int64_t states = p->window * p->row;
    // Sequences may stand apart by up to a chain, so f holds that many steps where there are several.
    DPCR_TRY(take(p, &p->f, s->batch > 1 ? s->length : p->window, p->row, dpcr_dtype_size(s->dtype)));
    DPCR_TRY(take(p, &p->c, s->length, 1, sizeof *p->c));
    DPCR_TRY(take(p, &p->change, p->window, s->width, sizeof *p->change));
    DPCR_TRY(take(p, &p->past_z, PASTS, states, sizeof *p->past_z));
    DPCR_TRY(take(p, &p->past_r, PASTS, states, sizeof *p->past_r));
    DPCR_TRY(take(p, &p->old_z, 1, states, sizeof *p->old_z));
    DPCR_TRY(take(p, &p->old_r, 1, states, sizeof *p->old_r));
    DPCR_TRY(take(p, &p->front, s->batch, 1, sizeof *p->front));
    DPCR_TRY(take(p, &p->old_lo, s->batch, 1, sizeof *p->old_lo));
    DPCR_TRY(take(p, &p->old_hi, s->batch, 1, sizeof *p->old_hi));
    DPCR_TRY(take(p, &p->count, s->batch, 1, sizeof *p->count));
    DPCR_TRY(take(p, &p->past_lo, s->batch, PASTS, sizeof *p->past_lo));
    DPCR_TRY(take(p, &p->past_hi, s->batch, PASTS, sizeof *p->past_hi));
done:
    return status;
}

// dx'/dx of a step where the noise estimate stays: x0 = (x - sigma e) / alpha.
static double slope_of(const dpcr_sampler *sampler, const double *abar, int64_t l) {
    const dpcri_step *step = &sampler->steps[l];
    const dpcri_place at = dpcri_place_at(&sampler->options.noise, abar, step->first.time);
    return step->x + step->x0 / at.alpha;
}

dpcr_status dpcri_solve_parataa(dpcri_sweeping *s) {
    dpcr_status status;
    parataa p = {.s = s, .window = s->options.window, .row = s->batch * s->width};
    dpcr_context *context = s->sampler->context;
    double abar[DPCRI_MOST_TIMES];
    dpcri_noise_fill(&s->sampler->options.noise, NULL, abar);
    if (s->sampler->p || s->sampler->options.kind == DPCR_SAMPLER_HEUN)
        return dpcri_fail(s->error, DPCR_ERROR_UNSUPPORTED,
                          "parataa: %s's steps are not x' = c x + d e; wanted ddpm, ddim or euler, or parareal",
                          dpcr_sampler_name(s->sampler->options.kind));
    DPCR_TRY(take_all(&p));
    for (int64_t l = 0; l < s->length; l++) p.c[l] = slope_of(s->sampler, abar, l);
    for (int64_t b = 0; b < s->batch; b++) fill(&p, b, 0, p.window);
    while (dpcri_sweeping_any(s)) {
        if (dpcri_cancelled(context))
            DPCR_TRY(dpcri_fail(s->error, DPCR_ERROR_CANCELLED, "parataa: stopped by the caller's cancel function"));
        DPCR_TRY(sweep(&p));
    }
done:;
    void *const owned[] = {p.f,     p.c,      p.change, p.past_z, p.past_r,  p.old_z,  p.old_r,
                           p.front, p.old_lo, p.old_hi, p.count,  p.past_lo, p.past_hi};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) dpcri_free(context, owned[i]);
    return status;
}
