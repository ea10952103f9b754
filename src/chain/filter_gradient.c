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
    double *signals;                 // [sections + 1][length]; u_{s+1} of a section that is done holds its next g
    double *g, *w;                   // [length], [length + order]
    double *states;                  // [2][order]: of one section, in and out
    dpcr_filter **section, **poles;  // [sections]: each by itself, and with b = 1
    dpcr_filter alone[2];            // those of a filter of one section
    double *one;                     // [order + 1]: 1, then zeros
    dpcri_watch *watch;
} gradient;

static dpcr_status section_of(const dpcr_filter *f, int64_t s, bool poles, dpcr_filter **section, dpcr_error *error) {
    static const double one = 1;
    const int64_t n = f->order + 1;
    return dpcr_filter_create_ba(f->context, poles ? 1 : n, poles ? &one : f->b + s * n, n, f->a + s * n, section,
                                 error);
}

// All sections' filters, which the channels share. What is known of a lone section's powers hangs on its poles alone.
static dpcr_status make_sections(gradient *d, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    if (d->filter->sections == 1) {
        d->alone[0] = d->alone[1] = *d->filter;
        d->alone[1].b = d->one;
        d->section[0] = &d->alone[0], d->poles[0] = &d->alone[1];
        return DPCR_OK;
    }
    for (int64_t s = 0; s < d->filter->sections && status == DPCR_OK; s++) {
        status = section_of(d->filter, s, false, &d->section[s], error);
        if (status == DPCR_OK) status = section_of(d->filter, s, true, &d->poles[s], error);
    }
    return status;
}

static void drop_sections(gradient *d) {
    for (int64_t s = 0; s < d->filter->sections && d->filter->sections > 1; s++) {
        dpcr_filter_destroy(d->section[s]);
        dpcr_filter_destroy(d->poles[s]);
    }
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

// Stretch by stretch of a long signal, between which the caller may stop.
static double correlate(const double *w, const double *u, int64_t n, dpcri_watch *watch) {
    double part[PARTS] = {0}, sum = 0;
    const int64_t whole = n / PARTS * PARTS, stretch = watch ? dpcri_watch_steps(2) / PARTS * PARTS : whole;
    for (int64_t l = 0; l < whole && !dpcri_watch_stopped(watch);)
        for (const int64_t end = whole - l < stretch ? whole : l + stretch; l < end; l += PARTS)
            for (int i = 0; i < PARTS; i++) part[i] += w[l + i] * u[l + i];
    for (int64_t l = whole; l < n; l++) sum += w[l] * u[l];
    for (int i = 0; i < PARTS; i++) sum += part[i];
    return sum;
}

static dpcr_status forward(const gradient *d, const dpcr_array *x, const dpcr_array *zi, int64_t b, dpcr_error *error) {
    const int64_t n = d->length;
    dpcr_status status = DPCR_OK;
    for (int64_t l = 0; l < n; l++) d->signals[l] = get(x, b, l);
    for (int64_t s = 0; s < d->filter->sections && status == DPCR_OK; s++) {
        const dpcr_array in = signal_of(d->signals + s * n, n), out = signal_of(d->signals + (s + 1) * n, n),
                         states = states_of(d, d->states);
        take_states(d, zi, b, s, d->states);
        status = dpcr_filter_execute(d->section[s], &in, &states, &out, NULL, error);
    }
    return status;
}

// gb, ga: section s's coefficients', from [order + 1] on. u_{s+1} becomes the gradient of what went into it.
static dpcr_status back(const gradient *d, double *from, const dpcr_array *gzf, const dpcr_array *gzi, int64_t b,
                        int64_t s, double *gb, double *ga, dpcr_error *error) {
    const int64_t n = d->length, p = d->filter->order;
    const dpcr_array g = signal_of(from, n), w = signal_of(d->w, n), in = states_of(d, d->states),
                     next = signal_of(d->signals + (s + 1) * n, n), out = states_of(d, d->states + p);
    dpcr_status status;
    take_states(d, gzf, b, s, d->states);
    DPCR_TRY(dpcr_filter_adjoint(d->poles[s], &g, &in, &w, NULL, error));
    memcpy(d->w + n, d->states, (size_t)p * sizeof *d->w);
    for (int64_t k = 0; k <= p; k++) {
        gb[k] += correlate(d->w + k, d->signals + s * n, n, d->watch);
        if (k) ga[k] -= correlate(d->w + k, d->signals + (s + 1) * n, n, d->watch);
    }
    DPCR_TRY(dpcr_filter_adjoint(d->section[s], &g, &in, &next, &out, error));
    if (gzi) memcpy((double *)gzi->data + b * gzi->strides[0] + s * p, out.data, (size_t)p * sizeof *d->w);
done:
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
        d.one = dpcri_arena_take(&arena, filter->order + 1, sizeof *d.one);
        d.section = dpcri_arena_take(&arena, filter->sections, sizeof(dpcr_filter *));
        d.poles = dpcri_arena_take(&arena, filter->sections, sizeof(dpcr_filter *));
        if (pass) break;
        memory = arena.overflow ? NULL : dpcri_alloc(filter->context, arena.used);
        if (!memory)
            return dpcri_fail(error, DPCR_ERROR_MEMORY, "filter_gradient: no memory for %" PRId64 " signals",
                              filter->sections + 3);
        arena = (dpcri_arena){.base = memory, .size = arena.used};
    }
    memset(d.one, 0, (size_t)(filter->order + 1) * sizeof *d.one);
    d.one[0] = 1;
    memset(d.section, 0, (size_t)filter->sections * sizeof *d.section);
    memset(d.poles, 0, (size_t)filter->sections * sizeof *d.poles);
    dpcri_watch watch;
    const double flops = (double)filter->sections * 8 * (double)(filter->order + 1);  // a sample
    d.watch = dpcri_watch_begin(&watch, filter->context, flops * (double)x->shape[0] * (double)d.length);
    if (x->shape[0] > 0) status = make_sections(&d, error);
    for (int64_t b = 0; b < x->shape[0] && status == DPCR_OK && !dpcri_watch_stopped(d.watch); b++)
        status = channel(&d, x, zi, gy, gzf, gb, ga, gx, gzi, b, error);
    drop_sections(&d);
    dpcri_free(filter->context, memory);
    if (status == DPCR_OK && dpcri_watch_stopped(d.watch)) status = dpcri_fail_stopped(error, "filter_gradient");
done:
    return status;
}
