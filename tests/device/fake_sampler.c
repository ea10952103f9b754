// SPDX-License-Identifier: MIT
// The stand-in's samplers: layers of a denoiser, denoising steps, sweeps of picard and parataa.
#include <string.h>

#include "fake_kernels.h"

// The step and the sequence of a row; false: there is none.
static bool place_of(const dpcri_device_window *w, int64_t row, int64_t *step, int64_t *sequence) {
    *step = 0, *sequence = row;
    if (!w->count) return true;
    *sequence = w->who[row % w->count];
    *step = w->places[*sequence].front + w->first + row / w->count;
    return w->first + row / w->count < w->most && *step < w->length;
}

dpcr_status fake_dense(int id, const dpcri_device_dense *d, void *stream, dpcr_error *error) {
    (void)id;
    (void)stream;
    (void)error;
    int64_t l, b;
    for (int64_t r = 0; r < d->rows; r++)
        for (int64_t u = 0; u < d->out && place_of(&d->window, r, &l, &b); u++) {
            const float *const x = d->x + (d->path ? l * d->window.batch + b : r) * d->x_row;
            const float more = d->more ? d->more[(d->index ? d->index[b] : 0) * d->more_row + u] : 0;
            double sum = d->bias[l * d->bias_row + u] + more;
            for (int64_t k = 0; k < d->in; k++) sum += (double)x[k] * (double)d->weight[u * d->in + k];
            const double y = act(d->activation, sum);
            d->y[r * d->y_row + u] = (float)(d->residual ? (double)x[u] + y : y);
        }
    return DPCR_OK;
}

static double said(const float *m, const float *plain, float guidance, int64_t n) {
    return plain ? plain[n] + guidance * (m[n] - plain[n]) : m[n];
}

static double cut(double x0, double clip) { return clip > 0 ? fmax(-clip, fmin(clip, x0)) : x0; }

dpcr_status fake_denoise(int id, const dpcri_device_denoise *d, void *stream, dpcr_error *error) {
    (void)id;
    (void)stream;
    (void)error;
    int64_t l, b;
    for (int64_t n = 0; n < d->rows * d->width; n++) {
        const int64_t r = n / d->width, i = n % d->width;
        if (!place_of(&d->window, r, &l, &b)) continue;
        const dpcri_device_factors *const by = d->window.count ? &d->steps[l] : &d->by;
        if (d->m1 && !by->twice) continue;
        const int64_t at = l * d->window.batch + b;
        float *const to = d->to + r * d->to_row + i;
        const double x = d->x[at * d->x_row + i], m = said(d->m, d->plain, d->guidance, n);
        const double x0 = cut(by->x0_x * x + by->x0_m * m, d->clip);
        double next = by->by_x * x + by->by_x0 * x0 + by->by_e * (by->e_x * x + by->e_m * m);
        if (d->former) next += by->by_former * d->former[at * d->former_row + i];
        if (d->noise) next += by->by_noise * d->noise[at * d->width + i];
        if (d->m1) {
            const double m1 = said(d->m1, d->plain1, d->guidance, n);
            next = by->then_x * x + by->then_x0 * x0 + by->then_x1 * *to +
                   by->then_x01 * cut(by->then_x0_x * *to + by->then_x0_m * m1, d->clip);
        }
        if (d->kept) d->kept[r * d->kept_row + i] = (float)x0;
        if (d->mask && d->mask[i] && (d->m1 || !by->twice))
            next = by->alpha * d->known[b * d->width + i] + by->sigma * d->start[b * d->width + i];
        *to = (float)next;
    }
    return DPCR_OK;
}

dpcr_status fake_move(int id, const dpcri_device_move *m, void *stream, dpcr_error *error) {
    (void)id;
    (void)stream;
    (void)error;
    for (int64_t l = 0; l < m->steps; l++)
        for (int64_t n = 0; n < m->rows * m->width; n++) {
            const int64_t row = n / m->width, i = n % m->width;
            m->to[l * m->to_step + row * m->to_row + i] =
                m->from ? m->from[l * m->from_step + row * m->from_row + i] : 0;
        }
    return DPCR_OK;
}

// ---- sweeps of picard ----

static float *state_at(const dpcri_device_sweep *s, int64_t l, int64_t b) {
    return s->path + ((l + 1) * s->window.batch + b) * s->width;
}

static bool all_finite(const float *x, int64_t width) {
    bool finite = true;
    for (int64_t k = 0; k < width; k++) finite = finite && isfinite(x[k]);
    return finite;
}

// The residual over max(1, |z|), and whether the step is within its tolerance.
static double residual_of(const dpcri_device_sweep *s, const float *f, const float *z, double unit, bool *within) {
    double worst = 0;
    *within = all_finite(f, s->width) && all_finite(z, s->width);
    for (int64_t k = 0; k < s->width; k++) {
        const double size = fabs((double)f[k] - (double)z[k]), value = fabs((double)z[k]);
        *within = *within && size <= unit * (s->atol + s->rtol * value);
        worst = fmax(worst, size / fmax(1, value));
    }
    return worst;
}

static void end_sweep(const dpcri_device_sweep *s, int64_t b, int64_t hi, dpcri_device_progress *p) {
    const int64_t length = s->window.length, left = length - p->front;
    const int64_t next = left < s->window.most ? left : s->window.most;
    if (!p->ended && p->front >= length) p->ended = DPCRI_DEVICE_LOCKED;
    if (!p->ended && p->work + next > s->max_sweeps * length) p->ended = DPCRI_DEVICE_SPENT;
    const int64_t end = p->ended == DPCRI_DEVICE_SPENT && s->no_fallback ? length : p->front + next;
    p->filled = p->filled > hi ? p->filled : hi;
    for (; p->filled < end; p->filled++)
        if (s->guess)
            memcpy(state_at(s, p->filled, b), state_at(s, p->filled - 1, b), (size_t)s->width * sizeof(float));
    p->locked = p->front;
    if (p->ended == DPCRI_DEVICE_NOT_FINITE || (p->ended == DPCRI_DEVICE_SPENT && !s->no_fallback)) p->front = p->exact;
}

// By mean squares: the step behind the small ones too, as it was made where its sum is rounded by more than is allowed.
static int64_t lock_beyond(const dpcri_device_sweep *s, int64_t item, int64_t b, int64_t lo, int64_t hi,
                           int64_t small) {
    const int64_t w = s->width, at = ((small - lo) * s->window.count + item) * w;
    if (small == hi || s->atol == 0 || !all_finite(s->f + at, w)) return small;
    const double limit = (s->scale ? s->scale[small] : 1) * s->atol;
    float *const z = state_at(s, small, b);
    bool drowned = false;
    for (int64_t k = 0; k < w; k++) drowned = drowned || 0x1p-24 * fmax(fabs(z[k]), fabs(s->r[at + k])) > limit;
    if (drowned) memcpy(z, s->f + at, (size_t)w * sizeof(float));
    return small + 1;
}

static void sweep_sequence(const dpcri_device_sweep *s, int64_t item) {
    const int64_t b = s->window.who[item], w = s->width, count = s->window.count;
    dpcri_device_progress *const p = (dpcri_device_progress *)(uintptr_t)&s->window.places[b];
    const int64_t lo = p->front, end = lo + s->window.most, hi = end < s->window.length ? end : s->window.length;
    int64_t good = lo, small = lo;
    if (s->in_order) {
        if (lo < hi) memcpy(state_at(s, p->front++, b), s->f + item * w, (size_t)w * sizeof(float));
        return;
    }
    p->residual = 0;
    for (int64_t l = lo; l < hi; l++) {
        const float *const f = s->f + ((l - lo) * count + item) * w, *const z = state_at(s, l, b);
        float *const r = s->r + ((l - lo) * count + item) * w;
        bool within;
        p->residual = fmax(p->residual, residual_of(s, f, z, s->scale ? s->scale[l] : 1, &within));
        if (within && good == l) good++;
        for (int64_t k = 0; k < w; k++) {
            const bool linked = l > lo && all_finite(f, w);
            r[k] = (all_finite(f, w) ? f[k] - z[k] : 0) + (linked ? r[k - count * w] : 0);
        }
    }
    p->work += hi - lo;
    if (s->mean || good < hi || hi < s->window.length) p->sweeps++;
    if (!all_finite(s->f + item * w, w)) {
        p->ended = DPCRI_DEVICE_NOT_FINITE;
        end_sweep(s, b, hi, p);
        return;
    }
    for (int64_t l = lo; l < hi; l++) {
        const float *const f = s->f + ((l - lo) * count + item) * w, *const d = s->r + ((l - lo) * count + item) * w;
        float *const z = state_at(s, l, b);
        const double limit = (s->scale ? s->scale[l] : 1) * s->atol;
        double square = 0;
        bool lost = false;
        for (int64_t k = 0; k < w; k++) {
            const double part = limit > 0 ? (double)d[k] / limit : d[k] == 0 ? 0 : HUGE_VAL;
            square += part * part;
            lost = lost || !isfinite(z[k] + d[k]);
        }
        if (square <= (double)w && !lost && all_finite(f, w) && small == l) small++;
        const float *const from = l == lo || all_finite(f, w) ? f : state_at(s, lo - 1, b);
        for (int64_t k = 0; k < w && (s->mean || l >= good); k++) z[k] = l == lo || lost ? from[k] : z[k] + d[k];
    }
    if (s->mean) good = lock_beyond(s, item, b, lo, hi, small);
    if (p->exact == p->front && (s->mean || good == lo)) p->exact++;
    p->front = good > lo ? good : lo + 1;
    if (s->atol == 0 && s->rtol == 0) p->exact = p->front;
    end_sweep(s, b, hi, p);
}

// ---- and of parataa ----

static double slope_of(const dpcri_device_sweep *s, int64_t l) { return s->slopes ? s->slopes[l] : 1; }

static float *past_of(const dpcri_device_sweep *s, float *of, int64_t b, int64_t q, int64_t l) {
    return of + ((b * (s->mixed - 1) + q) * s->window.most + l % s->window.most) * s->width;
}

static float *old_of(const dpcri_device_sweep *s, float *of, int64_t b, int64_t l) {
    return of + (b * s->window.most + l % s->window.most) * s->width;
}

static bool holds(const dpcri_device_past *past, int64_t q, int64_t l) {
    return q < past->count && l >= past->lo[q] && l < past->hi[q];
}

static void solve_three(int64_t n, double m[3][4], double *gamma) {
    for (int64_t i = 0; i < n; i++) m[i][i] += 1e-3;
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < n; k++) {
            const double factor = m[k][i] / m[i][i];
            for (int64_t j = 0; j < 4 && k != i; j++) m[k][j] -= factor * m[i][j];
        }
    for (int64_t i = 0; i < n; i++) gamma[i] = m[i][3] / m[i][i];
}

static double *changes(const dpcri_device_sweep *s, int64_t item, int64_t j) {
    return s->change + (j * s->window.count + item) * s->width;
}

// R of the window; the first step that is not within its tolerance.
static int64_t substitute(const dpcri_device_sweep *s, int64_t item, int64_t b, int64_t lo, int64_t hi, double *worst) {
    const int64_t w = s->width, count = s->window.count;
    int64_t good = lo;
    for (int64_t l = lo; l < hi; l++) {
        const float *const f = s->f + ((l - lo) * count + item) * w, *const z = state_at(s, l, b);
        bool within;
        *worst = fmax(*worst, residual_of(s, f, z, s->scale ? s->scale[l] : 1, &within));
        if (within && good == l) good++;
        for (int64_t k = 0; k < w; k++) {
            const double r = (double)f[k] - (double)z[k];
            double sum = isfinite(r) ? r : 0, product = 1;
            if (l > lo) sum += slope_of(s, l) * changes(s, item, l - lo - 1)[k];
            for (int64_t i = l; i > l - s->order && l - lo >= s->order; i--) product *= slope_of(s, i);
            if (l - lo >= s->order) {
                const double out = (double)f[k - s->order * count * w] - (double)state_at(s, l - s->order, b)[k];
                if (isfinite(out)) sum -= product * out;
            }
            changes(s, item, l - lo)[k] = sum;
        }
    }
    return good;
}

static void remember(const dpcri_device_sweep *s, int64_t item, int64_t b, int64_t lo, int64_t hi, int64_t sweeps) {
    dpcri_device_past *const past = &s->past[b];
    const int64_t pasts = s->mixed - 1, slot = pasts ? (sweeps + pasts - 2) % pasts : 0;
    const int64_t from = lo > past->old_lo ? lo : past->old_lo, to = hi < past->old_hi ? hi : past->old_hi;
    if (!pasts) return;
    for (int64_t l = lo; l < hi; l++)
        for (int64_t k = 0; k < s->width; k++) {
            const double r = changes(s, item, l - lo)[k], z = state_at(s, l, b)[k];
            float *const old_r = old_of(s, s->old_r, b, l) + k, *const old_z = old_of(s, s->old_z, b, l) + k;
            if (l >= from && l < to) {
                past_of(s, s->past_r, b, slot, l)[k] = (float)(r - (double)*old_r);
                past_of(s, s->past_z, b, slot, l)[k] = (float)(z - (double)*old_z);
            }
            *old_r = (float)r, *old_z = (float)z;
        }
    past->lo[slot] = from, past->hi[slot] = to;
    past->count += sweeps > 1 && past->count < pasts;
    past->old_lo = lo, past->old_hi = hi;
}

static void mix(const dpcri_device_sweep *s, int64_t item, int64_t b, int64_t lo, int64_t hi, int64_t good, int64_t n) {
    double sums[3][4] = {{0}};
    if (good == lo) memcpy(state_at(s, lo, b), s->f + item * s->width, (size_t)s->width * sizeof(float));
    for (int64_t l = good == lo ? lo + 1 : lo; l < hi; l++) {
        const double *const R = changes(s, item, l - lo);
        double m[3][4], gamma[3] = {0};
        for (int64_t q = 0; q < n; q++)
            for (int64_t k = 0; k < s->width && holds(&s->past[b], q, l); k++) {
                const double x = past_of(s, s->past_r, b, q, l)[k];
                for (int64_t p = 0; p < n; p++)
                    if (holds(&s->past[b], p, l)) sums[q][p] += x * (double)past_of(s, s->past_r, b, p, l)[k];
                sums[q][3] += x * R[k];
            }
        memcpy(m, sums, sizeof m);
        solve_three(n, m, gamma);
        for (int64_t k = 0; k < s->width && l >= good; k++) {
            double next = (double)state_at(s, l, b)[k] + R[k];
            for (int64_t q = 0; q < n; q++)
                if (holds(&s->past[b], q, l))
                    next -= gamma[q] *
                            ((double)past_of(s, s->past_z, b, q, l)[k] + (double)past_of(s, s->past_r, b, q, l)[k]);
            state_at(s, l, b)[k] = isfinite(next) ? (float)next : state_at(s, lo, b)[k];
        }
    }
}

static void mixed_sweep(const dpcri_device_sweep *s, int64_t item) {
    const int64_t b = s->window.who[item];
    dpcri_device_progress *const p = (dpcri_device_progress *)(uintptr_t)&s->window.places[b];
    const int64_t lo = p->front, end = lo + s->window.most, hi = end < s->window.length ? end : s->window.length;
    p->residual = 0;
    p->work += hi - lo;
    p->sweeps++;
    if (!all_finite(s->f + item * s->width, s->width)) {
        p->ended = DPCRI_DEVICE_NOT_FINITE;
        end_sweep(s, b, hi, p);
        return;
    }
    const int64_t good = substitute(s, item, b, lo, hi, &p->residual);
    if (good < s->window.length) {
        remember(s, item, b, lo, hi, p->sweeps);
        mix(s, item, b, lo, hi, good, p->sweeps > 1 ? s->past[b].count : 0);
    } else {
        p->sweeps--;
    }
    if (p->exact == lo && good == lo) p->exact++;
    p->front = good > lo ? good : lo + 1;
    if (s->atol == 0 && s->rtol == 0) p->exact = p->front;
    end_sweep(s, b, hi, p);
}

dpcr_status fake_sweep(int id, const dpcri_device_sweep *s, void *stream, dpcr_error *error) {
    (void)id;
    (void)stream;
    (void)error;
    for (int64_t item = 0; item < s->window.count; item++)
        (s->mixed && !s->in_order ? mixed_sweep : sweep_sequence)(s, item);
    return DPCR_OK;
}
