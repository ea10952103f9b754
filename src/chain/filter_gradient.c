// SPDX-License-Identifier: MIT
// Gradients of a filter's coefficients. Section by section, u_0 = x, u_{s+1} = section s of u_s, all kept in double;
// then back from the last. With w = g / (1 + a_1 z^-1 ..) from the last sample down (the adjoint of the section with b
// = 1), and past the last sample w_{L+i} = the gradient of state i that goes out:
//   gb_k += sum_l w_{l+k} u_s[l];   ga_k -= sum_l w_{l+k} u_{s+1}[l]
// and g <- the section's adjoint of g. That is sum_k b_k w_{l+k} too, which cancels where zeros lie near poles: w has
// the poles' whole gain, and is right beside its largest alone. Work 3 filters and 2 (p + 1) sums a section; memory
// sections + 3 signals. Derivation: docs/math/filter.md.
#include <inttypes.h>
#include <string.h>

#include "chain/filter.h"
#include "rt/watch.h"

enum { PARTS = 8 };  // partial sums of a correlation

typedef struct gradient {
    const dpcr_filter *filter;
    int64_t length;
    double *signals;  // [sections + 1][length]; u_{s+1} of a section that is done holds its next g
    double *g, *w;    // [length], [length + order]
    double *states;   // [2][order]: of one section, in and out
} gradient;

static dpcr_status section_of(const dpcr_filter *f, int64_t s, bool poles, dpcr_filter **section, dpcr_error *error) {
    static const double one = 1;
    const int64_t n = f->order + 1;
    return dpcr_filter_create_ba(f->context, poles ? 1 : n, poles ? &one : f->b + s * n, n, f->a + s * n, section,
                                 error);
}

static dpcr_array signal_of(double *data, int64_t length) {
    return dpcr_array_make(data, DPCR_F64, 2, (const int64_t[]){1, length});
}

static dpcr_array states_of(const gradient *d, double *data) {
    return dpcr_array_make(data, DPCR_F64, 3, (const int64_t[]){1, 1, d->filter->order});
}

static double get(const dpcr_array *a, int64_t b, int64_t l) {
    const int64_t at = b * a->strides[0] + l * a->strides[1];
    return a->dtype == DPCR_F32 ? (double)((const float *)a->data)[at] : ((const double *)a->data)[at];
}

static void put(const dpcr_array *a, int64_t b, int64_t l, double value) {
    const int64_t at = b * a->strides[0] + l * a->strides[1];
    if (a->dtype == DPCR_F32)
        ((float *)a->data)[at] = (float)value;
    else
        ((double *)a->data)[at] = value;
}

// Section s's states of channel b, zeros where there are none.
static void take_states(const gradient *d, const dpcr_array *from, int64_t b, int64_t s, double *to) {
    const size_t bytes = (size_t)d->filter->order * sizeof *to;
    if (from)
        memcpy(to, (const double *)from->data + b * from->strides[0] + s * d->filter->order, bytes);
    else
        memset(to, 0, bytes);
}

static double correlate(const double *w, const double *u, int64_t n) {
    double part[PARTS] = {0}, sum = 0;
    int64_t l = 0;
    for (; l + PARTS <= n; l += PARTS)
        for (int i = 0; i < PARTS; i++) part[i] += w[l + i] * u[l + i];
    for (; l < n; l++) sum += w[l] * u[l];
    for (int i = 0; i < PARTS; i++) sum += part[i];
    return sum;
}

static dpcr_status forward(const gradient *d, const dpcr_array *x, const dpcr_array *zi, int64_t b, dpcr_error *error) {
    const int64_t n = d->length;
    dpcr_status status = DPCR_OK;
    for (int64_t l = 0; l < n; l++) d->signals[l] = get(x, b, l);
    for (int64_t s = 0; s < d->filter->sections && status == DPCR_OK; s++) {
        dpcr_filter *section = NULL;
        const dpcr_array in = signal_of(d->signals + s * n, n), out = signal_of(d->signals + (s + 1) * n, n),
                         states = states_of(d, d->states);
        take_states(d, zi, b, s, d->states);
        status = section_of(d->filter, s, false, &section, error);
        if (status == DPCR_OK) status = dpcr_filter_execute(section, &in, &states, &out, NULL, error);
        dpcr_filter_destroy(section);
    }
    return status;
}

// gb, ga: section s's coefficients', from [order + 1] on. u_{s+1} becomes the gradient of what went into it.
static dpcr_status back(const gradient *d, double *from, const dpcr_array *gzf, const dpcr_array *gzi, int64_t b,
                        int64_t s, double *gb, double *ga, dpcr_error *error) {
    const int64_t n = d->length, p = d->filter->order;
    const dpcr_array g = signal_of(from, n), w = signal_of(d->w, n), in = states_of(d, d->states),
                     next = signal_of(d->signals + (s + 1) * n, n), out = states_of(d, d->states + p);
    dpcr_filter *poles = NULL, *section = NULL;
    dpcr_status status;
    take_states(d, gzf, b, s, d->states);
    DPCR_TRY(section_of(d->filter, s, true, &poles, error));
    DPCR_TRY(section_of(d->filter, s, false, &section, error));
    DPCR_TRY(dpcr_filter_adjoint(poles, &g, &in, &w, NULL, error));
    memcpy(d->w + n, d->states, (size_t)p * sizeof *d->w);
    for (int64_t k = 0; k <= p; k++) {
        gb[k] += correlate(d->w + k, d->signals + s * n, n);
        if (k) ga[k] -= correlate(d->w + k, d->signals + (s + 1) * n, n);
    }
    DPCR_TRY(dpcr_filter_adjoint(section, &g, &in, &next, &out, error));
    if (gzi) memcpy((double *)gzi->data + b * gzi->strides[0] + s * p, out.data, (size_t)p * sizeof *d->w);
done:
    dpcr_filter_destroy(poles);
    dpcr_filter_destroy(section);
    return status;
}

static dpcr_status channel(const gradient *d, const dpcr_array *x, const dpcr_array *zi, const dpcr_array *gy,
                           const dpcr_array *gzf, double *gb, double *ga, const dpcr_array *gx, const dpcr_array *gzi,
                           int64_t b, dpcr_error *error) {
    dpcr_status status = forward(d, x, zi, b, error);
    for (int64_t l = 0; l < d->length; l++) d->g[l] = get(gy, b, l);
    double *g = d->g;
    for (int64_t s = d->filter->sections - 1; s >= 0 && status == DPCR_OK; s--) {
        status = back(d, g, gzf, gzi, b, s, gb + s * (d->filter->order + 1), ga + s * (d->filter->order + 1), error);
        g = d->signals + (s + 1) * d->length;
    }
    for (int64_t l = 0; l < d->length && gx && status == DPCR_OK; l++) put(gx, b, l, g[l]);
    return status;
}

static bool in_one_place(const dpcr_array *a, const dpcr_array *b) {
    return a && b && a->data == b->data && (a->shape[0] < 2 || a->strides[0] == b->strides[0]);
}

// What is written, channel after channel, lies apart from what later ones read; gzi may be zi or gzf.
static dpcr_status check_apart(const dpcr_array *x, const dpcr_array *zi, const dpcr_array *gy, const dpcr_array *gzf,
                               const dpcr_array *gx, const dpcr_array *gzi, dpcr_error *error) {
    static const char call[] = "filter_gradient";
    dpcr_status status;
    if (x->data == gy->data && x->data && x->shape[0] && x->shape[1])
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: x and gy lie in the same place", call);
    DPCR_TRY(dpcri_check_apart(call, "x", x, "gx", gx, error));
    DPCR_TRY(dpcri_check_apart(call, "gy", gy, "gx", gx, error));
    DPCR_TRY(dpcri_check_apart(call, "zi", zi, "gx", gx, error));
    DPCR_TRY(dpcri_check_apart(call, "gzf", gzf, "gx", gx, error));
    DPCR_TRY(dpcri_check_apart(call, "gzi", gzi, "gx", gx, error));
    DPCR_TRY(dpcri_check_apart(call, "x", x, "gzi", gzi, error));
    DPCR_TRY(dpcri_check_apart(call, "gy", gy, "gzi", gzi, error));
    if (!in_one_place(zi, gzi)) DPCR_TRY(dpcri_check_apart(call, "zi", zi, "gzi", gzi, error));
    if (!in_one_place(gzf, gzi)) DPCR_TRY(dpcri_check_apart(call, "gzf", gzf, "gzi", gzi, error));
done:
    return status;
}

dpcr_status dpcr_filter_gradient(const dpcr_filter *filter, const dpcr_array *x, const dpcr_array *zi,
                                 const dpcr_array *gy, const dpcr_array *gzf, double *gb, double *ga,
                                 const dpcr_array *gx, const dpcr_array *gzi, dpcr_error *error) {
    dpcr_status status;
    if (!gb || !ga) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "filter_gradient: gb or ga is NULL");
    DPCR_TRY(dpcri_filter_check(filter, "filter_gradient", x, zi, gy, gzf, error));
    DPCR_TRY(dpcri_filter_check(filter, "filter_gradient", x, gzi, gx ? gx : gy, NULL, error));
    DPCR_TRY(dpcri_check_written("filter_gradient", "gx", gx, error));
    DPCR_TRY(dpcri_check_written("filter_gradient", "gzi", gzi, error));
    DPCR_TRY(check_apart(x, zi, gy, gzf, gx, gzi, error));
    gradient d = {.filter = filter, .length = x->shape[1]};
    dpcri_arena arena = {0};
    void *memory = NULL;
    for (int pass = 0; pass < 2; pass++) {
        int64_t count = 0;
        if (!dpcri_mul(filter->sections + 1, d.length, &count)) arena.overflow = true;
        d.signals = dpcri_arena_take(&arena, count, sizeof *d.signals);
        d.g = dpcri_arena_take(&arena, d.length, sizeof *d.g);
        d.w = dpcri_arena_take(&arena, d.length + filter->order, sizeof *d.w);
        d.states = dpcri_arena_take(&arena, 2 * filter->order + 1, sizeof *d.states);
        if (pass) break;
        memory = arena.overflow ? NULL : dpcri_alloc(filter->context, arena.used);
        if (!memory)
            return dpcri_fail(error, DPCR_ERROR_MEMORY, "filter_gradient: no memory for %" PRId64 " signals",
                              filter->sections + 3);
        arena = (dpcri_arena){.base = memory, .size = arena.used};
    }
    dpcri_watch watch, *const watching =
                           dpcri_watch_begin(&watch, filter->context, (double)x->shape[0] * (double)d.length);
    for (int64_t b = 0; b < x->shape[0] && status == DPCR_OK && !dpcri_watch_stopped(watching); b++)
        status = channel(&d, x, zi, gy, gzf, gb, ga, gx, gzi, b, error);
    dpcri_free(filter->context, memory);
    if (status == DPCR_OK && dpcri_watch_stopped(watching)) status = dpcri_fail_stopped(error, "filter_gradient");
done:
    return status;
}
